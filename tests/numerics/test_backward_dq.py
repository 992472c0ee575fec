"""Adding up dQ: order, float16, its scale and its overflow."""

import dataclasses

import numpy as np
import pytest
from attention_data import both, gaussian

from mxfp8fa.numerics import AttentionOptions, attention_reference_backward, sqnr_db

F32 = np.float32


def test_dq_order_is_the_order_that_was_asked_for():
    """The sum of the tiles in any given order, bit for bit; other orders differ in last places only."""
    q, k, v, dO = gaussian((1, 200, 2, 32), (1, 160, 1, 32))
    options = AttentionOptions(tile_m=64, tile_n=32, k_mean=False)
    rng = np.random.default_rng(0)
    orders = {(0, head, tile): rng.permutation(5).tolist() for head in (0, 1) for tile in range(3)}
    tiles = []
    _, gradients = both(q, k, v, dO, options=options, on_tile=tiles.append, dq_tile_order=orders)
    parts = {(t.head, t.q_tile, t.kv_tile): t.dq for t in tiles}
    scale = F32(32**-0.5)
    for head in (0, 1):
        for q_tile in range(4):  # the last one is not in `orders` and follows dq_order
            total = np.zeros((64, 32), F32)
            for kv_tile in orders.get((0, head, q_tile), range(5)):
                total = total + parts[head, q_tile, kv_tile]
            rows = slice(q_tile * 64, min((q_tile + 1) * 64, 200))
            np.testing.assert_array_equal(gradients.dQ[0, rows, head], (total * scale)[: rows.stop - rows.start])
    ascending, descending = (
        both(q, k, v, dO, options=dataclasses.replace(options, dq_order=order))[1]
        for order in ("ascending", "descending")
    )
    bound = 5 * 2.0**-24 * scale * sum(np.abs(x).max() for x in parts.values())
    assert 0 < np.abs(ascending.dQ - descending.dQ).max() < bound
    assert 0 < np.abs(ascending.dQ - gradients.dQ).max() < bound
    np.testing.assert_array_equal(ascending.dK, descending.dK)
    np.testing.assert_array_equal(ascending.dV, gradients.dV)


@pytest.mark.parametrize(
    ("key", "order", "message"),
    [
        ((0, 0, 0), [0], r"dq_tile_order\[0, 0, 0\] = \[0\] is no order of .*\[0, 1\]"),
        ((0, 0, 0), [0, 1, 1], "is no order of"),
        ((0, 0, 0), 1, r"dq_tile_order\[0, 0, 0\] = 1 is no order of"),
        ((0, 0), [0, 1], r"must be a dict \{\(sequence, query head, query tile\)"),
        (0, [0, 1], "must be a dict"),
        ((0, 0, 1), [0, 1], r"there is no such query tile"),
        ((1, 0, 0), [0, 1], r"there is no such query tile"),
        ((0, 2, 0), [0, 1], r"there is no such query tile"),
    ],
)
def test_a_wrong_order_is_refused(key, order, message):
    q, k, v, dO = gaussian((1, 20, 1, 32), (1, 200, 1, 32))
    with pytest.raises(ValueError, match=message):
        both(q, k, v, dO, dq_tile_order={key: order})


def test_dq_in_float16():
    """Emulated, published: about 61 dB of its own at 4,096 keys, so that only range matters."""
    q, k, v, dO = gaussian((1, 512, 1, 128))
    exact = both(q, k, v, dO)[1]
    for scale_log2 in (0, 8, 12, "auto"):
        options = AttentionOptions(dq_accumulate="float16", dq_scale_log2=scale_log2)
        gradients = both(q, k, v, dO, options=options)[1]
        assert 55 < sqnr_db(gradients.dQ, exact.dQ) < 75 and gradients.dq_overflow_count == 0
        np.testing.assert_array_equal(gradients.dK, exact.dK)
    assert gradients.dq_scale_log2 <= 12  # the bound of "auto" is far from tight


def test_float16_range():
    """Too small a scale loses small gradients to subnormals, too large a one overflows and says so."""
    q, k, v, dO = gaussian((1, 256, 1, 128))
    small = dO * F32(1e-8)
    reference = attention_reference_backward(q, k, v, small)[0]
    low = both(q, k, v, small, options=AttentionOptions(dq_accumulate="float16", dq_scale_log2=0))[1]
    auto = both(q, k, v, small, options=AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto"))[1]
    assert sqnr_db(low.dQ, reference) < 10 < 22 < sqnr_db(auto.dQ, reference)
    high = both(q, k, v, dO, options=AttentionOptions(dq_accumulate="float16", dq_scale_log2=20))[1]
    assert high.dq_overflow_count == np.count_nonzero(~np.isfinite(high.dQ)) > 0
    large = both(q, k, v, dO * F32(1e4), options=AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto"))[1]
    assert large.dq_overflow_count == 0 and large.dq_scale_log2 < 0
    assert sqnr_db(large.dQ, attention_reference_backward(q, k, v, dO * F32(1e4))[0]) > 22


def test_auto_scale_is_safe_where_its_bound_is_nearly_reached():
    """Two keys k and -k with values v and -v, dO along v: dS = +-|dO||V| / 2 and |dQ| = |dO||V||k|, half the bound."""
    q, k, v, dO = (np.zeros((1, n, 1, 32), F32) for n in (1, 2, 2, 1))
    k[0, :, 0, 0], v[0, :, 0, 0], dO[..., 0] = [448, -448], [448, -448], 448
    auto = both(q, k, v, dO, options=AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto"))[1]
    expected = attention_reference_backward(q, k, v, dO)[0]
    assert auto.dq_overflow_count == 0
    np.testing.assert_allclose(auto.dQ, expected, rtol=2.0**-4)  # dS is rounded to E4M3
    more = AttentionOptions(dq_accumulate="float16", dq_scale_log2=auto.dq_scale_log2 + 3)
    assert both(q, k, v, dO, options=more)[1].dq_overflow_count == 1


def test_a_nan_of_the_inputs_is_no_overflow():
    q, k, v, dO = gaussian((1, 64, 1, 32))
    dO[0, 40, 0, 0] = np.nan
    gradients = both(q, k, v, dO, options=AttentionOptions(dq_accumulate="float16"))[1]
    assert gradients.dq_overflow_count == 0 and np.isnan(gradients.dQ).any()
