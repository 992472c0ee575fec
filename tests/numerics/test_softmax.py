"""The pieces of the online softmax, and which tiles the loops visit."""

import numpy as np
import pytest

from mxfp8fa.numerics import AttentionOptions, decode, encode_scalar
from mxfp8fa.numerics.backward import visited_q_tiles
from mxfp8fa.numerics.dq import DqAccumulator
from mxfp8fa.numerics.forward import visited_kv_tiles
from mxfp8fa.numerics.problem import Sequence
from mxfp8fa.numerics.softmax import (
    DIRECT_CODE_OF_NAN,
    OnlineSoftmax,
    direct_codes,
    exp2_ftz,
    half_sum,
    lane_sum,
)

F32 = np.float32
DIRECT = AttentionOptions(exp="direct", row_sum="rounded")


def scores(*maxima):
    """One tile of 32 scores per row, the first of them the maximum."""
    s = np.full((len(maxima), 32), -40, F32)
    s[:, 0] = maxima
    return s


def test_the_maximum_stays_while_it_grows_by_no_more_than_the_threshold():
    """Equality stays: FA4 compares with >=."""
    softmax = OnlineSoftmax(3, F32(1), AttentionOptions(rescale_threshold=0.5))
    softmax.step(scores(0, 0, 0))
    step = softmax.step(scores(0.5, np.nextafter(F32(0.5), F32(1)), -1))
    np.testing.assert_array_equal(softmax.row_max, [0, np.nextafter(F32(0.5), F32(1)), 0])
    assert step.acc_scale[0] == step.acc_scale[2] == 1 and step.acc_scale[1] < 1


def test_exp2_flushes_subnormal_results():
    x = np.array([-126, np.nextafter(F32(-126), F32(-200)), -149, -np.inf, 0, np.nan, 200], F32)
    np.testing.assert_array_equal(exp2_ftz(x), np.array([2.0**-126, 0, 0, 0, 1, np.nan, np.inf], F32))


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5])
def test_the_first_columns_of_every_16_take_exp2_by_polynomial(share):
    s = np.random.default_rng(0).standard_normal((4, 64)).astype(F32)
    sums = [OnlineSoftmax(4, F32(1), AttentionOptions(exp2=choice)) for choice in ("mufu", share)]
    x = (s - s.max(axis=1, keepdims=True)) + F32(8)
    p, mixed = (softmax._exp2(x) for softmax in sums)
    differ = np.flatnonzero((p != mixed).any(axis=0)) % 16
    assert set(differ) == set(range(int(16 * share)))
    for softmax in sums:
        softmax.step(s)
    np.testing.assert_allclose(sums[1].row_sum, sums[0].row_sum, rtol=2.0**-8.99)


def test_a_block_with_a_nan_has_a_nan_scale_under_dynamic_scales():
    softmax = OnlineSoftmax(2, F32(1), AttentionOptions(p_scale="dynamic"))
    s = np.zeros((2, 64), F32)
    s[1, 40] = np.nan
    step = softmax.step(s)
    # The row's reference is NaN, and with it every block of the row.
    np.testing.assert_array_equal(step.scale_e8m0, [[120, 120], [255, 255]])
    assert np.isnan(softmax.finish()[1][1]) and np.isfinite(softmax.finish()[1][0])


def test_dynamic_scale_puts_the_largest_p_below_256():
    softmax = OnlineSoftmax(1, F32(1), AttentionOptions(p_scale="dynamic"))
    s = np.repeat(np.array([[0, -0.5, -7.25, -300]], F32), 32, axis=1)
    step = softmax.step(s)
    np.testing.assert_array_equal(step.scale_e8m0[0], [127 - 7, 127 - 8, 127 - 15, 0])
    expected = [encode_scalar(2.0**x, "e4m3") for x in (7, 7.5, 7.75)] + [0]
    np.testing.assert_array_equal(step.codes[0, ::32], expected)


@pytest.mark.parametrize("options", [AttentionOptions(), DIRECT], ids=["exact", "direct"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_or_an_infinite_score_makes_the_row_sum_nan(options, value):
    """Direct codes of NaN are 0, so the sum has to carry it."""
    for first in (value, 0.0):
        softmax = OnlineSoftmax(1, F32(1), options)
        with np.errstate(invalid="ignore"):
            softmax.step(scores(first))
            softmax.step(scores(value))
            inverse_sum, lse = softmax.finish()
        assert np.isnan(inverse_sum[0]) and np.isnan(lse[0])


def test_direct_codes_of_special_values():
    """cvt.rni.s32.f32 and cvt.pack.sat.u8: ties to even, NaN and everything negative to 0."""
    y = np.array([0.5, 1.5, 2.5, 126.4, -0.4, -1e9, -np.inf, np.nan, 1e9, np.inf], F32)
    np.testing.assert_array_equal(direct_codes(y), [0, 2, 2, 126, 0, 0, 0, 0, 255, 255])


def test_a_nan_is_kept_by_the_conversion_to_subnormals():
    y = np.array([np.nan, -np.inf, 56, 126.4], F32)
    np.testing.assert_array_equal(direct_codes(y, nan_code=DIRECT_CODE_OF_NAN["subnormal"]), [0xFF, 0, 56, 126])
    assert encode_scalar(float("nan"), "e4m3") & 0x7F == DIRECT_CODE_OF_NAN["subnormal"] & 0x7F


def test_a_code_is_the_bits_of_a_float16_subnormal():
    """The claim behind direct_codes="subnormal": rounding y * 2^-24 to float16 rounds y to an integer, and shifted by 7
    these bits are the float16 of 2^-8 P."""
    y = np.linspace(0, 126.4, 100_001).astype(F32)
    bits = (y * F32(2.0**-24)).astype(np.float16).view(np.uint16)
    codes = direct_codes(y)
    np.testing.assert_array_equal(bits, codes)
    np.testing.assert_array_equal((bits << 7).view(np.float16), decode(codes, "e4m3") * F32(2.0**-8))


@pytest.mark.parametrize("n", [32, 128, 256])
def test_half_sum(n):
    """Within 2^-11 a level of additions, and exact where the sums need no more than 11 bits; the largest do not overflow."""
    rng = np.random.default_rng(0)
    values = decode(rng.integers(0, 127, (200, n), dtype=np.uint8), "e4m3")
    exact = values.sum(axis=1, dtype=np.float64)
    assert np.abs(half_sum(values) / exact - 1).max() < (n // 8 + 2) * 2.0**-11
    np.testing.assert_array_equal(half_sum(np.full((3, n), 4, F32)), np.full(3, 4 * n, F32))
    assert half_sum(np.full((1, n), 448, F32))[0] == pytest.approx(448 * n, rel=1e-2)


def test_lane_sum_is_the_sum_of_integers():
    p = np.arange(256, dtype=F32).reshape(2, 128)
    np.testing.assert_array_equal(lane_sum(p, np.array([1000, 0], F32)), [p[0].sum() + 1000, p[1].sum()])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [(32, 32), (64, 32), (32, 96)])
def test_tiles_visited_are_those_with_something_to_see(causal, tile):
    """By brute force over the mask, lengths on both sides of every tile boundary."""
    options = AttentionOptions(tile_m=tile[0], tile_n=tile[1])
    for seqlen_q in (1, 31, 32, 33, 95, 127, 128):
        for seqlen_k in (1, 32, 33, 64, 96, 97, 200):
            sequence = Sequence(0, 0, seqlen_q, 0, seqlen_k, causal)
            seen = sequence.visible(range(seqlen_q), range(seqlen_k))
            starts_q, starts_k = range(0, seqlen_q, tile[0]), range(0, seqlen_k, tile[1])
            pairs = {
                (i, j)
                for i, q in enumerate(starts_q)
                for j, k in enumerate(starts_k)
                if seen[q : q + tile[0], k : k + tile[1]].any()
            }
            forward = {(i, j) for i in range(len(starts_q)) for j in visited_kv_tiles(sequence, i, options)}
            backward = {(i, j) for j in range(len(starts_k)) for i in visited_q_tiles(sequence, j, options)}
            assert forward == backward == pairs, (seqlen_q, seqlen_k)


def test_float32_dq_is_added_like_a_bulk_reduction_that_keeps_subnormals():
    """As measured on an H200 (docs/silicon.md), where the PTX ISA says that they are flushed."""
    sequence = Sequence(0, 0, 32, 0, 32, False)
    sums = DqAccumulator(AttentionOptions(tile_m=32, tile_n=32), 0, None, sequence, range(1), 32)
    tile = np.zeros((32, 32), F32)
    tile[0, :3] = 1e-39, 2.0**-126, 1.0
    sums.add(0, 0, 0, tile)
    np.testing.assert_array_equal(sums.total(0)[0, :3], tile[0, :3])
    tile[0, :3] = 1e-39, -(2.0**-127), -0.5
    sums.add(0, 0, 0, tile)
    np.testing.assert_array_equal(sums.total(0)[0, :3], np.array([F32(1e-39) + F32(1e-39), 2.0**-127, 0.5], F32))
