"""attention_mxfp8 at its edges: causal leaks, lengths, rows that see nothing, NaN, large scores."""

import math

import numpy as np
import pytest
from attention_data import gaussian

from mxfp8fa.numerics import (
    AttentionOptions,
    MXTensor,
    attention_mxfp8,
    attention_reference,
    quantize,
    sqnr_db,
)

F32 = np.float32
DIRECT = {"exp": "direct", "row_sum": "rounded"}


def leak(name, factor, **options):
    """How far any element of O of tokens 0..30 moves when token 31 of one input is multiplied by factor."""
    inputs = dict(zip("qkv", gaussian((1, 128, 1, 128))[:3], strict=True))
    options = AttentionOptions(**options)
    before = attention_mxfp8(**inputs, causal=True, options=options)[0][:, :31]
    inputs[name] = inputs[name].copy()
    inputs[name][:, 31] *= factor
    after = attention_mxfp8(**inputs, causal=True, options=options)[0][:, :31]
    return float(np.abs(after - before).max()), float(np.abs(before).max())


@pytest.mark.parametrize("factor", [8, 32, 512, 2048])
def test_causal_1x32_along_d_leaks_nothing(factor):
    for name in "qk":
        assert leak(name, factor)[0] == 0


def test_causal_v_leaks_through_the_scale_of_its_block():
    """Emulated, published: x 8 exactly 0, x 32 1.6e-6, x 512 6e-4, x 2048 0.03. Scales are powers of two, so a larger
    scale only matters for what becomes subnormal."""
    assert leak("v", 8)[0] == 0
    for factor, published in ((32, 1.6e-6), (512, 6e-4), (2048, 0.03)):
        assert abs(leak("v", factor)[0] / published - 1) < 0.05


def test_causal_square_blocks_leak():
    """Emulated, published: square K[31] x 2000 moves earlier rows by 0.010, Q by 0.007; here of O's largest element."""
    for name, published in (("k", 0.010), ("q", 0.007)):
        moved, largest = leak(name, 2000, qk_blocks="square")
        assert published / 1.5 < moved / largest < published * 1.5
        moved, largest = leak(name, 8, qk_blocks="square")
        assert moved / largest < 1e-5  # only what is subnormal within its square moves


def test_floor_leaks_more():
    """Clipping depends on the block's maximum too, so floor leaks at factors where rceil does not."""
    assert leak("v", 8, rule="rceil")[0] == 0
    assert leak("v", 8, rule="floor")[0] > 0.1


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (1, 200), (200, 1), (300, 40), (40, 300), (129, 128)])
def test_lengths_and_rows_that_see_nothing(seqlen_q, seqlen_k):
    q, k, v, _ = gaussian((1, seqlen_q, 2, 32), (1, seqlen_k, 2, 32))
    for causal in (False, True):
        o, lse = attention_mxfp8(q, k, v, causal=causal)
        o_reference, lse_reference = attention_reference(q, k, v, causal=causal)
        blind = max(seqlen_q - seqlen_k, 0) if causal else 0
        assert (o[:, :blind] == 0).all() and (lse[..., :blind] == -np.inf).all()
        assert sqnr_db(o, o_reference) > 24
        assert np.abs(lse[..., blind:] - lse_reference[..., blind:]).max() < 0.15


def test_one_key_gives_v():
    q, k, v, _ = gaussian((1, 3, 1, 32), (1, 1, 1, 32))
    np.testing.assert_array_equal(
        attention_mxfp8(q, k, v)[0], np.repeat(quantize(v, axes=1, tail="partial").dequantize(), 3, axis=1)
    )


NAN_CASES = [
    # input, token, blocks of Q and K: rows of O and lse that become NaN, of 200 queries and 300 keys
    ("q", 40, "1x32", range(40, 41)),
    ("q", 40, "square", range(32, 64)),
    ("k", 250, "1x32", range(150, 200)),  # causal: query i sees key j <= i + 100
    ("k", 250, "square", range(124, 200)),  # keys 224..255 are NaN; the first to see 224 is query 124
]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, DIRECT, DIRECT | {"direct_share": 0.5}, {"p_scale": "dynamic"}], ids=str)
@pytest.mark.parametrize(("name", "token", "blocks", "rows"), NAN_CASES)
def test_reach_of_a_nan_in_q_or_k(name, token, blocks, rows, options, value):
    inputs = dict(zip("qkv", gaussian((1, 200, 2, 64), (1, 300, 2, 64))[:3], strict=True))
    options = AttentionOptions(qk_blocks=blocks, **options)
    clean = attention_mxfp8(**inputs, causal=True, options=options)
    inputs[name][0, token, 1, 5] = value
    o, lse = attention_mxfp8(**inputs, causal=True, options=options)
    expected = np.zeros((200, 2), bool)
    expected[rows, 1] = True
    np.testing.assert_array_equal(np.isnan(o[0]).all(axis=-1), expected)
    np.testing.assert_array_equal(np.isnan(o[0]).any(axis=-1), expected)
    np.testing.assert_array_equal(np.isnan(lse[0]).T, expected)
    np.testing.assert_array_equal(o[0][~expected], clean[0][0][~expected])


@pytest.mark.parametrize("blocks", ["1x32", "square"])
def test_reach_of_a_nan_in_v(blocks):
    """Query tiles that visit its key tile (0 * NaN), in the columns of d of its block; lse does not see V."""
    q, k, v, _ = gaussian((1, 300, 1, 64))
    v[0, 140, 0, 40] = np.nan  # key tile 1: visited by the query tiles 1 and 2
    o, lse = attention_mxfp8(q, k, v, causal=True, options=AttentionOptions(v_blocks=blocks))
    columns = slice(40, 41) if blocks == "1x32" else slice(32, 64)
    expected = np.zeros((300, 64), bool)
    expected[128:, columns] = True
    np.testing.assert_array_equal(np.isnan(o[0, :, 0]), expected)
    assert np.isfinite(lse).all()


def test_a_nan_scale_byte_acts_like_a_nan():
    q, k, v, _ = gaussian((1, 64, 1, 64))
    tensor = quantize(k, axes=3)
    scale = tensor.scale_e8m0.copy()
    scale[0, 50, 0, 1] = 0xFF
    o, lse = attention_mxfp8(q, MXTensor(tensor.codes, scale, axes=(3,)), v, causal=True)
    assert np.isnan(o[0, 50:]).all() and np.isfinite(o[0, :50]).all()
    assert np.isnan(lse[0, 0, 50:]).all() and np.isfinite(lse[0, 0, :50]).all()


@pytest.mark.parametrize("case", [{}, {"row_sum": "rounded"}, DIRECT, {"p_scale": "dynamic"}], ids=str)
@pytest.mark.parametrize("score", [-500.0, 500.0, 1e5, -1e9, 1e9, 1e12])
def test_large_scores(case, score):
    """All keys at `score` is the mean of V whatever its size; one key far above the rest takes the row."""
    q, k, v = (np.zeros((1, n, 1, 32), F32) for n in (3, 256, 256))
    q[..., 0] = 1.0
    k[..., 0] = score
    v[:] = np.arange(32)
    k[..., 1] = 2.0 ** (np.arange(256) % 7 - 3).reshape(1, 256, 1)  # scales differ, scores do not
    options = AttentionOptions(qk_blocks="1x32", **case)
    o, lse = attention_mxfp8(q, k, v, softmax_scale=1.0, options=options)
    quantized_score = float(quantize(k, axes=3).dequantize()[0, 0, 0, 0])
    np.testing.assert_allclose(o, np.broadcast_to(np.arange(32.0), o.shape), rtol=2.0**-4)
    np.testing.assert_allclose(lse, quantized_score + math.log(256), rtol=2.0**-22, atol=0.05)
    if score > 0:
        k[..., 0] = 0
        k[:, 77, :, 0] = score
        v[:, 77] = 2.0
        o, _ = attention_mxfp8(q, k, v, softmax_scale=1.0, options=options)
        # Row sums may be of P before rounding; a P just off 2^8 rounds by at most 2^-4.
        np.testing.assert_allclose(o, 2.0, rtol=2.0**-4)


def test_scores_all_minus_infinity_are_a_row_that_sees_nothing():
    """Products that overflow to -inf: no NaN from -inf - (-inf)."""
    q = np.full((1, 2, 1, 32), 3e38, F32)
    k, v = np.full((1, 40, 1, 32), -3e38, F32), np.ones((1, 40, 1, 32), F32)
    o, lse = attention_mxfp8(q, k, v)
    assert (o == 0).all() and (lse == -np.inf).all()


@pytest.mark.parametrize(("shape_q", "shape_k"), [((0, 4, 2, 32), (0, 5, 2, 32)), ((2, 0, 2, 32), (2, 5, 2, 32))])
def test_empty(shape_q, shape_k):
    o, lse = attention_mxfp8(np.zeros(shape_q, F32), np.zeros(shape_k, F32), np.zeros(shape_k, F32))
    assert o.shape == shape_q and lse.shape == (shape_q[0], shape_q[2], shape_q[1])


def test_no_keys():
    o, lse = attention_mxfp8(np.ones((2, 3, 1, 32), F32), *(np.ones((2, 0, 1, 32), F32),) * 2)
    assert (o == 0).all() and (lse == -np.inf).all()
