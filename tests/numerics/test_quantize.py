"""Block quantization against exact rational arithmetic, and the contract for blocks that are not ordinary."""

import math
import sys
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from mxfp8fa.numerics import (
    SCALE_RULES,
    MXTensor,
    decode,
    quantize,
    quantize_block_scalar,
    scale_code_scalar,
    scale_codes,
)

FLT_MAX = float(np.finfo(np.float32).max)
quantize_module = sys.modules[quantize.__module__]
every_rule = pytest.mark.parametrize("rule", SCALE_RULES)
every_format = pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])


def exact_block(block, fmt="e4m3", rule="rceil"):
    """(scale code, codes) of one block of any shape, by the scalar definition."""
    scale, codes = quantize_block_scalar([float(v) for v in block.flat], fmt, rule)
    return scale, np.array(codes, np.uint8).reshape(block.shape)


def blocks_of_every_kind(rng, count=14):
    """(count + 4, 32): a power of two of its own for every block, then a zero, an edge, a NaN and an infinity block."""
    x = rng.standard_normal((count, 32)) * 2.0 ** (np.arange(count) % 7 - 3)[:, None]
    special = np.zeros((4, 32))
    special[0, 5] = -0.0
    special[1] = rng.standard_normal(32)
    special[1, 7] = 449.0
    special[2] = rng.standard_normal(32)
    special[2, 31] = np.nan
    special[3] = rng.standard_normal(32)
    special[3, 0] = -np.inf
    return np.concatenate([x, special]).astype(np.float32)


def assert_same(q, codes, scale):
    np.testing.assert_array_equal(q.codes, codes)
    np.testing.assert_array_equal(q.scale_e8m0, scale)


# The four rules ------------------------------------------------------------------------------------------------------

TINY = 2.0**-149
#                 amax, floor, ceil, even, rceil for E4M3
EDGES = [
    (448.0, 127, 128, 127, 127),
    (449.0, 127, 128, 127, 128),
    (464.0, 127, 128, 127, 128),
    (480.0, 127, 128, 127, 128),
    (511.99, 127, 128, 128, 128),
    (512.0, 128, 128, 128, 128),
    (3.99, 120, 121, 121, 121),
    (1.75, 119, 120, 119, 119),
    (float(np.nextafter(np.float32(1.75), np.float32(2))), 119, 120, 119, 120),
    (1.875, 119, 120, 119, 120),
    (float(np.nextafter(np.float32(1), np.float32(0))), 118, 119, 119, 119),
    (float(np.nextafter(np.float32(8), np.float32(0))), 121, 122, 122, 122),
    (2.0**-118, 1, 1, 1, 1),
    (2.0**-119, 0, 0, 0, 0),
    (2.0**-119 * 1.9, 0, 1, 0, 1),
    (2.0**-120, 0, 0, 0, 0),
    (2.0**-126, 0, 0, 0, 0),
    (2.0**-127, 0, 0, 0, 0),
    (2.0**-136, 0, 0, 0, 0),
    (TINY, 0, 0, 0, 0),
    (2.0**127, 246, 246, 246, 246),
    (FLT_MAX, 246, 247, 247, 247),
    (0.0, 0, 0, 0, 0),
    (math.inf, 255, 255, 255, 255),
    (math.nan, 255, 255, 255, 255),
]


@pytest.mark.parametrize("edge", EDGES, ids=lambda e: f"{e[0]:.6g}")
def test_scale_codes_at_the_edges(edge):
    amax, *expected = edge
    got = [int(scale_codes(np.float32(amax), "e4m3", rule)) for rule in ("floor", "ceil", "even", "rceil")]
    assert got == expected
    assert [scale_code_scalar(amax, "e4m3", rule) for rule in ("floor", "ceil", "even", "rceil")] == expected


@every_rule
@every_format
def test_scale_codes_equal_the_definition(rule, fmt):
    rng = np.random.default_rng(2)
    random = rng.integers(0, 0x7F800000, 1500, dtype=np.uint32).view(np.float32)
    powers = (2.0 ** np.arange(-149, 128)).astype(np.float32)
    thresholds = np.outer([1, 1.75, 1.875, 1.9375], powers).astype(np.float32).reshape(-1)
    near = [np.nextafter(thresholds, np.float32(to)) for to in (0, np.inf)]
    amax = np.concatenate([random, thresholds, *near])
    expected = [scale_code_scalar(float(a), fmt, rule) for a in amax]
    np.testing.assert_array_equal(scale_codes(amax, fmt, rule), expected)


@every_rule
@every_format
def test_codes_and_scales_equal_exact_arithmetic(rule, fmt):
    rng = np.random.default_rng(3)
    wide_block = rng.standard_normal((12, 32)) * 2.0 ** rng.integers(-40, 40, (12, 1))
    wide_element = rng.standard_normal((12, 32)) * 2.0 ** rng.integers(-20, 20, (12, 32))
    tiny = rng.standard_normal((12, 32)) * 2.0**-130
    ties = rng.integers(-64, 64, (12, 32)) / 2.0
    bits = rng.integers(0, 1 << 32, (12, 32), dtype=np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        families = [f.astype(np.float32) for f in (wide_block, wide_element, tiny, ties, bits)]
    x = np.concatenate([blocks_of_every_kind(rng), *families])
    expected = [exact_block(block, fmt, rule) for block in x]
    q = quantize(x, fmt=fmt, rule=rule)
    assert_same(q, [codes for _, codes in expected], [[scale] for scale, _ in expected])


@every_rule
def test_the_largest_element_decodes_as_published(rule):
    """First element of blocks whose amax is at an edge of E4M3: values computed by hand from the rules."""
    amax = np.array([448, 480, 512, 3.99, 1.75, 1.875, FLT_MAX], np.float32)
    expected = {
        "floor": [448, 448, 512, 3.5, 1.75, 1.75, 448 * 2.0**119],
        "rceil": [448, 480, 512, 4, 1.75, 1.875, 2.0**128],
        "ceil": [448, 480, 512, 4, 1.75, 1.875, 2.0**128],
        "even": [448, 448, 512, 4, 1.75, 1.75, 2.0**128],
    }[rule]
    x = np.zeros((amax.size, 32), np.float32)
    x[:, 0] = amax
    np.testing.assert_array_equal(quantize(x, rule=rule).dequantize(np.float64)[:, 0], expected)


def test_only_floor_and_even_clip():
    """Under ceil and rceil the scaled maximum is at most 448, so no element may move by more than half a step."""
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((400, 32)) * 2.0 ** rng.integers(-9, 9, (400, 1))).astype(np.float32)
    for rule, clips in (("ceil", False), ("rceil", False), ("floor", True), ("even", True)):
        q = quantize(x, rule=rule)
        scale = decode(q.scale_e8m0, "e8m0")
        over = np.abs(x) > 448 * scale
        assert over.any() == clips
        # Half a unit in the last of 4 significand bits, or half of the smallest subnormal.
        bound = np.maximum(np.abs(x) / 16, scale * 2.0**-10)
        assert (np.abs(q.dequantize() - x) <= bound)[~over].all()


# Contract for blocks that are not ordinary ---------------------------------------------------------------------------


@every_rule
def test_zero_blocks_keep_signs_and_have_scale_code_zero(rule):
    x = np.zeros((1, 64), np.float32)
    x[0, 1::2] = -0.0
    q = quantize(x, rule=rule)
    assert_same(q, np.tile(np.array([0, 0x80], np.uint8), 32)[None], [[0, 0]])
    assert np.signbit(q.dequantize())[0, 1::2].all()


@every_rule
@every_format
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("position", [0, 17, 31])
def test_one_nan_or_infinity_spoils_its_block_only(rule, fmt, bad, position):
    x = np.ones((1, 96), np.float32)
    x[0, 32 + position] = bad
    q = quantize(x, fmt=fmt, rule=rule)
    assert q.scale_e8m0[0, 1] == 0xFF
    assert (q.codes[0, 32:64] == 0x7F).all()
    np.testing.assert_array_equal(q.dequantize()[0, [0, 31, 64, 95]], 1.0)
    assert np.isnan(q.dequantize()[0, 32:64]).all()


def test_one_nan_spoils_its_square_only():
    x = np.ones((64, 64), np.float32)
    x[40, 3] = np.nan
    q = quantize(x, axes=(0, 1))
    np.testing.assert_array_equal(np.isnan(q.dequantize()), np.kron([[0, 0], [1, 0]], np.ones((32, 32))).astype(bool))
    assert (q.codes[32:, :32] == 0x7F).all()


def test_the_definition_takes_float32_scalars_without_rounding():
    """2^120 / 2^-127 is no float32: the definition has to leave float32 before it divides."""
    for block in (np.array([1.1, -0.0, 2.0**-20], np.float32), np.array([2.0**120, 2.0**-130], np.float32)):
        assert quantize_block_scalar(block) == quantize_block_scalar(block.tolist())
        assert scale_code_scalar(np.abs(block).max()) == quantize_block_scalar(block)[0]
    assert quantize_block_scalar(np.array([2.0**-140, 2.0**-136], np.float32)) == (0, [0, 1])


def test_subnormal_blocks_are_exact_where_they_fit():
    """Below 2^-118 the scale stays at 2^-127; elements down to 2^-136 exist, half of that rounds to zero."""
    x = np.zeros((4, 32), np.float32)
    x[:, 0] = [2.0**-127, 2.0**-136, 2.0**-137, -3 * 2.0**-137]
    np.testing.assert_array_equal(quantize(x).dequantize()[:, 0], np.float32([2.0**-127, 2.0**-136, 0, -(2.0**-135)]))


def test_dequantize_is_exact_in_float64_and_states_what_float32_cannot_hold():
    x = np.full((1, 32), FLT_MAX, np.float32)
    q = quantize(x, rule="even")
    np.testing.assert_array_equal(q.dequantize(np.float64), 2.0**128)
    np.testing.assert_array_equal(q.dequantize(), np.inf)
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    scale = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 8))
    q = MXTensor(codes, scale, "e4m3", (1,))
    exact = decode(codes, "e4m3").astype(np.float64) * decode(np.arange(256, dtype=np.uint8), "e8m0")[:, None]
    np.testing.assert_array_equal(q.dequantize(np.float64), exact)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(q.dequantize(), exact.astype(np.float32))


# Axes, tails, sequences ----------------------------------------------------------------------------------------------


def test_blocks_along_any_axis_equal_blocks_along_the_last():
    x = blocks_of_every_kind(np.random.default_rng(5), 12).reshape(4, 2, 64)
    for axis in range(3):
        moved = np.ascontiguousarray(np.moveaxis(x, 2, axis))
        for given in (axis, axis - 3, (axis,)):
            q = quantize(moved, axes=given)
            assert q.axes == (axis,)
            expected = quantize(x)
            assert_same(q, np.moveaxis(expected.codes, 2, axis), np.moveaxis(expected.scale_e8m0, 2, axis))


def squares_of_every_kind(rng):
    """(64, 224): 14 squares, every one with its own power of two, then zero, NaN and edge ones."""
    x = rng.standard_normal((64, 224)).astype(np.float32)
    square = np.arange(14).reshape(2, 7)
    x *= np.kron(2.0 ** (square % 7 - 3), np.ones((32, 32))).astype(np.float32)
    x[:32, 64:96] = -0.0
    x[40, 100] = np.nan
    x[33, 10] = 480.0
    return x


@every_rule
def test_squares_equal_exact_arithmetic(rule):
    x = squares_of_every_kind(np.random.default_rng(6))[:, :128]
    q = quantize(x, axes=(0, 1), rule=rule)
    assert q.scale_e8m0.shape == (2, 4)
    for i in range(2):
        for j in range(4):
            part = np.s_[32 * i : 32 * i + 32, 32 * j : 32 * j + 32]
            scale, codes = exact_block(x[part], "e4m3", rule)
            assert q.scale_e8m0[i, j] == scale
            np.testing.assert_array_equal(q.codes[part], codes)


@every_rule
@every_format
def test_squares_transpose_without_requantizing(rule, fmt):
    x = squares_of_every_kind(np.random.default_rng(7))
    q = quantize(x, axes=(0, 1), fmt=fmt, rule=rule)
    again = quantize(np.ascontiguousarray(x.T), axes=(0, 1), fmt=fmt, rule=rule)
    assert q.T.axes == again.axes == (0, 1)
    assert_same(q.T, again.codes, again.scale_e8m0)
    np.testing.assert_array_equal(q.T.dequantize(), q.dequantize().T)


def test_rows_of_blocks_do_not_transpose_without_requantizing():
    """The counterpart: a 1x32 tensor's transpose has its blocks along the other axis."""
    x = squares_of_every_kind(np.random.default_rng(8))
    q = quantize(x)
    assert q.T.axes == (0,)
    assert (quantize(x.T.copy()).codes != q.T.codes).any()
    np.testing.assert_array_equal(q.T.dequantize(), q.dequantize().T)


def test_squares_over_tokens_and_head_dim_of_four_axes():
    batch, tokens, heads, dim = 2, 96, 3, 64
    x = np.random.default_rng(9).standard_normal((batch, tokens, heads, dim)).astype(np.float32)
    x *= 2.0 ** np.random.default_rng(9).integers(-9, 9, x.shape)
    q = quantize(x, axes=(1, 3))
    assert q.scale_e8m0.shape == (batch, 3, heads, 2)
    for b in range(batch):
        for h in range(heads):
            alone = quantize(x[b, :, h], axes=(0, 1))
            assert_same(alone, q.codes[b, :, h], q.scale_e8m0[b, :, h])
    swapped = quantize(x, axes=(-1, -3))
    assert_same(swapped, q.codes, q.scale_e8m0)
    order = q.transpose(0, 3, 2, 1)
    assert order.axes == (1, 3)
    assert_same(order, *(lambda r: (r.codes, r.scale_e8m0))(quantize(x.transpose(0, 3, 2, 1), axes=(1, 3))))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_short_last_block_is_a_block(axes):
    rng = np.random.default_rng(10)
    x = (rng.standard_normal((70, 45)) * 2.0 ** rng.integers(-9, 9, (70, 45))).astype(np.float32)
    q = quantize(x, axes=axes, tail="partial")
    assert q.scale_e8m0.shape == tuple(-(-n // 32) if a in axes else n for a, n in enumerate(x.shape))
    padded = np.zeros((96, 64), np.float32)
    padded[:70, :45] = x
    whole = quantize(padded, axes=axes)
    scale = whole.scale_e8m0[tuple(slice(0, n) for n in q.scale_e8m0.shape)]
    assert_same(q, whole.codes[:70, :45], scale)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2)])
def test_blocks_restart_at_every_sequence(axes):
    cu = np.array([0, 5, 5, 69, 101, 101, 200], np.int64)
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((200, 2, 64)) * 2.0 ** rng.integers(-9, 9, (200, 1, 1))).astype(np.float32)
    q = quantize(x, axes=axes, tail="partial", cu_seqlens=cu)
    assert q.cu_seqlens.dtype == np.int32
    blocks = [0, 1, 1, 3, 4, 4, 8] if 0 in axes else cu
    assert q.scale_e8m0.shape == (blocks[-1], 2, 2 if 2 in axes else 64)
    for i, (start, stop) in enumerate(pairwise(cu)):
        alone = quantize(x[start:stop], axes=axes, tail="partial")
        assert_same(alone, q.codes[start:stop], q.scale_e8m0[blocks[i] : blocks[i + 1]])
        np.testing.assert_array_equal(alone.dequantize(), q.dequantize()[start:stop])


@pytest.mark.parametrize(("shape", "axes"), [((96,), 0), ((2, 64, 2, 3, 32), (1, 4)), ((2, 1, 64, 3, 1), 2)])
def test_any_rank(shape, axes):
    """Every block, found by its own index arithmetic, equals the scalar definition."""
    rng = np.random.default_rng(17)
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(np.float32)
    q = quantize(x, axes=axes)
    for index in np.ndindex(*q.scale_e8m0.shape):
        part = tuple(slice(32 * i, 32 * i + 32) if axis in q.axes else slice(i, i + 1) for axis, i in enumerate(index))
        scale, codes = exact_block(x[part])
        assert q.scale_e8m0[index] == scale
        np.testing.assert_array_equal(q.codes[part], codes)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0), (2, 0, 3, 64)])
def test_empty_arrays(shape):
    q = quantize(np.zeros(shape, np.float32), axes=(-1,))
    assert q.codes.shape == shape
    assert q.scale_e8m0.shape == (*shape[:-1], shape[-1] // 32)
    assert q.dequantize().shape == shape
    assert q.T.codes.shape == shape[::-1]


def test_no_sequences_and_only_empty_sequences():
    for cu in ([0], [0, 0, 0]):
        q = quantize(np.zeros((0, 64), np.float32), axes=0, cu_seqlens=cu)
        assert q.scale_e8m0.shape == (0, 64)


def test_scale_of_rows_repeats_square_scales():
    x = np.random.default_rng(12).standard_normal((70, 64)).astype(np.float32)
    q = quantize(x, axes=(0, 1), tail="partial")
    np.testing.assert_array_equal(q.scale_of_rows(0), np.repeat(q.scale_e8m0, [32, 32, 6], axis=0))
    np.testing.assert_array_equal(q.scale_of_rows(-1), np.repeat(q.scale_e8m0, 32, axis=1))
    jagged = quantize(x, axes=(0, 1), tail="partial", cu_seqlens=[0, 40, 70])
    np.testing.assert_array_equal(jagged.scale_of_rows(0), np.repeat(jagged.scale_e8m0, [32, 8, 30], axis=0))


# Input types and memory ----------------------------------------------------------------------------------------------


def test_float16_equals_its_float32_values():
    x = np.random.default_rng(13).integers(0, 1 << 16, (64, 96), dtype=np.uint16).view(np.float16)
    for axes in ((0,), (1,), (0, 1)):
        expected = quantize(x.astype(np.float32), axes=axes)
        assert_same(quantize(x, axes=axes), expected.codes, expected.scale_e8m0)


@pytest.mark.peers
def test_bfloat16_equals_its_float32_values():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(14).integers(0, 1 << 16, (64, 96), dtype=np.uint16)
    x = bits.view(ml_dtypes.bfloat16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    for axes in ((0,), (1,), (0, 1)):
        expected = quantize(wide, axes=axes)
        assert_same(quantize(x, axes=axes), expected.codes, expected.scale_e8m0)
        assert_same(quantize(x.T, axes=axes), *(lambda r: (r.codes, r.scale_e8m0))(quantize(wide.T, axes=axes)))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_strides_do_not_matter_and_input_is_untouched(axes):
    x = blocks_of_every_kind(np.random.default_rng(15), 60)
    x = np.tile(x, (1, 2))
    expected = quantize(x, axes=axes)
    before = x.copy()
    x.flags.writeable = False
    spread = np.zeros((128, 192), np.float32)
    spread[::2, ::3] = x
    for view in (x, np.asfortranarray(x), spread[::2, ::3], x[::-1, ::-1][::-1, ::-1]):
        q = quantize(view, axes=axes)
        assert_same(q, expected.codes, expected.scale_e8m0)
        assert q.codes.flags.c_contiguous and q.scale_e8m0.flags.c_contiguous
    np.testing.assert_array_equal(x.view(np.uint32), before.view(np.uint32))


def test_chunks_do_not_show(monkeypatch):
    x = np.random.default_rng(16).standard_normal((3, 128, 5, 64)).astype(np.float32)
    for axes in ((1,), (3,), (1, 3), (0,)):
        tail = "partial" if axes == (0,) else "error"
        expected = quantize(x, axes=axes, tail=tail)
        for chunk in (1 << 10, 3000, 1 << 20):
            monkeypatch.setattr(quantize_module, "CHUNK", chunk)
            assert_same(quantize(x, axes=axes, tail=tail), expected.codes, expected.scale_e8m0)
        monkeypatch.undo()


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
def test_extra_memory_is_the_result_and_little_else(axes):
    """2048 x 2048 float32 gives 4 MiB of codes and up to 128 KiB of scales; work arrays do not grow with the input."""
    x = np.ones((2048, 2048), np.float32)
    quantize(x[:32, :32], axes=axes)
    tracemalloc.start()
    quantize(x, axes=axes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4.2 * 2**20 + 2 * 2**20


# Errors --------------------------------------------------------------------------------------------------------------

OK = np.zeros((64, 64), np.float32)
CODES, SCALE = np.zeros((64, 64), np.uint8), np.zeros((64, 2), np.uint8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: quantize(np.zeros((64, 64), np.int32)), ["int32", "float32, float16, bfloat16"]),
        (lambda: quantize(np.zeros((64, 64))), ["float64", "float32, float16, bfloat16"]),
        (lambda: quantize(np.float32(1)), ["rank 0"]),
        (lambda: quantize(OK, fmt="e8m0"), ["'e8m0'", "e4m3, e5m2"]),
        (lambda: quantize(OK, fmt="e2m1"), ["'e2m1'", "e4m3, e5m2"]),
        (lambda: quantize(OK, rule="round"), ["'round'", "floor, ceil, even, rceil"]),
        (lambda: quantize(OK, tail="pad"), ["'pad'", "error, partial"]),
        (lambda: quantize(OK, axes=2), ["axes = 2", "rank 2"]),
        (lambda: quantize(OK, axes=-3), ["axes = -3", "rank 2"]),
        (lambda: quantize(OK, axes=(0, -2)), ["(0, -2)", "twice"]),
        (lambda: quantize(OK, axes=()), ["0 axes", "one", "two"]),
        (lambda: quantize(np.zeros((32, 32, 32), np.float32), axes=(0, 1, 2)), ["3 axes"]),
        (lambda: quantize(OK, axes=(0.0,)), ["0.0"]),
        (lambda: quantize(OK, axes="01"), ["'01'"]),
        (lambda: quantize(np.zeros((64, 33), np.float32)), ["axis 1", "33", "32", "partial"]),
        (lambda: quantize(np.zeros((33, 64), np.float32), axes=(0, 1)), ["axis 0", "33"]),
        (lambda: quantize(OK, axes=0, cu_seqlens=[0, 32, 50, 64]), ["axis 0, sequence 1", "18"]),
        (lambda: quantize(OK, cu_seqlens=[1, 64]), ["[1, 64]", "start at 0"]),
        (lambda: quantize(OK, cu_seqlens=[0, 40, 20, 64]), ["never decrease"]),
        (lambda: quantize(OK, cu_seqlens=[0, 32]), ["end at 64"]),
        (lambda: quantize(OK, cu_seqlens=[]), ["non-empty"]),
        (lambda: quantize(OK, cu_seqlens=[0.0, 64.0]), ["float64", "integer"]),
        (lambda: quantize(OK, cu_seqlens=[[0, 64]]), ["(1, 2)", "1-D"]),
        (lambda: quantize(OK).dequantize(np.float16), ["float16", "float32, float64"]),
        (lambda: quantize(OK).transpose(0, 0), ["(0, 0)", "permutation"]),
        (lambda: quantize(OK, cu_seqlens=[0, 64]).T, ["axis 0", "cu_seqlens"]),
        (lambda: quantize(OK).scale_of_rows(0), ["axis = 0", "(1,)"]),
        (lambda: quantize(OK).scale_of_rows(5), ["axis = 5", "(1,)"]),
        (lambda: quantize(OK).scale_of_rows(-3), ["axis = -3", "(1,)"]),
        (lambda: quantize(OK, axes=None), ["axes = None", "rank 2"]),
        (lambda: quantize(OK, axes=1.0), ["axes = 1.0", "rank 2"]),
        (lambda: scale_code_scalar(-1.0), ["amax = -1.0", "negative"]),
        (lambda: MXTensor(CODES, SCALE[:, :1]), ["(64, 1)", "(64, 2)"]),
        (lambda: MXTensor(CODES, SCALE, axes=(0,)), ["(64, 2)", "(2, 64)"]),
        (lambda: MXTensor(CODES.astype(np.int8), SCALE), ["codes is int8", "uint8"]),
        (lambda: MXTensor(CODES, SCALE.tolist()), ["scale_e8m0 is list", "uint8"]),
        (lambda: MXTensor(CODES, SCALE, fmt="bf16"), ["'bf16'", "e4m3, e5m2"]),
        (lambda: MXTensor(CODES, SCALE, cu_seqlens=np.array([0, 63])), ["end at 64"]),
        (lambda: scale_codes(np.zeros(3), "e4m3"), ["float64"]),
        (lambda: scale_codes(-np.ones(3, np.float32)), ["negative"]),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, said):
    with pytest.raises(ValueError) as error:
        call()
    for part in said:
        assert part in str(error.value)
