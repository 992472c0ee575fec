"""The three accumulation models: against scalar twins on adversarial operands, and what each promises."""

import time

import numpy as np
import pytest
from scalar_mma import blackwell_step, float32_step, scalar_mma

from mxfp8fa.numerics import MXTensor, decode, encode, get_format, mma, quantize
from mxfp8fa.numerics.tensor_core import round_toward_zero

STEPS = {"blackwell": blackwell_step, "float32": float32_step}
both_models = pytest.mark.parametrize("model", STEPS)


def assert_same_bits(got, expected_bits):
    """Equal bit patterns; any NaN equals any NaN."""
    expected = expected_bits.view(np.float32)
    assert got.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected_bits[~nan])


def check(model, a, b, c, a_scale=None, b_scale=None, a_fmt="e4m3", b_fmt="e4m3", k_slice=32):
    got = mma(a, b, c, a_scale=a_scale, b_scale=b_scale, a_fmt=a_fmt, b_fmt=b_fmt, k_slice=k_slice, accumulate=model)
    formats = get_format(a_fmt), get_format(b_fmt)
    assert_same_bits(got, scalar_mma(STEPS[model], a, b, c, a_scale, b_scale, *formats, k_slice))
    return got


def accumulators(rng, shape):
    """float32 of every exponent, zeros of both signs and subnormals among them."""
    c = (rng.standard_normal(shape) * 2.0 ** rng.integers(-140, 100, shape)).astype(np.float32)
    c.flat[:4] = [0.0, -0.0, 1e-45, -1e-40]
    return c


def finite_codes(rng, shape, fmt):
    codes = rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint8)
    return np.where(np.isfinite(decode(codes, fmt)), codes, 1)


@both_models
@pytest.mark.parametrize(
    ("a_fmt", "b_fmt"), [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2"), ("e2m1", "e4m3"), ("e2m3", "e3m2")]
)
@pytest.mark.parametrize("scales", ["none", "near one", "all"])
def test_random_codes(model, a_fmt, b_fmt, scales):
    rng = np.random.default_rng(1)
    a, b = (decode(finite_codes(rng, (4, 96), get_format(f)), f) for f in (a_fmt, b_fmt))
    low, high = {"none": (0, 0), "near one": (117, 138), "all": (0, 255)}[scales]
    a_scale, b_scale = (None if scales == "none" else rng.integers(low, high, (4, 3), dtype=np.uint8) for _ in "ab")
    check(model, a, b, accumulators(rng, (4, 4)), a_scale, b_scale, a_fmt, b_fmt)


@both_models
def test_products_that_cancel(model):
    """Big terms that cancel leave what truncation left of the small ones."""
    rng = np.random.default_rng(2)
    big = rng.choice(np.float32([448, 416, 320]), (4, 16))
    small = decode(rng.integers(1, 24, (4, 16), dtype=np.uint8), "e4m3")
    a = np.concatenate([big, small, big, small], axis=1).astype(np.float32)
    b = np.concatenate([big[:1], small[:1], -big[:1], small[:1]], axis=1).repeat(4, axis=0).astype(np.float32)
    c = -(a[:, :16].astype(np.float64) @ b[:, :16].T).astype(np.float32)
    scale = np.array([[127, 127], [120, 135], [97, 157], [127, 60]], np.uint8)
    check(model, a, b, c)
    check(model, a, b, c, scale, scale[::-1].copy())
    check(model, a, b, c, scale, scale, k_slice=64)


@both_models
def test_subnormal_elements_and_results(model):
    """Subnormal codes with scale codes 0 and 1: sums far below and around the smallest float32."""
    rng = np.random.default_rng(3)
    a = decode(finite_codes(rng, (4, 64), get_format("e4m3")) & 0x87, "e4m3")
    b = decode(finite_codes(rng, (4, 64), get_format("e4m3")), "e4m3")
    scale = np.array([[0, 0], [0, 1], [64, 60], [110, 20]], np.uint8)
    c = np.array([[0, 1e-45, -1e-44, 1e-38]] * 4, np.float32)
    check(model, a, b, c, scale, scale)


@both_models
def test_wide_formats(model):
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 1 << 32, (2, 3, 32), dtype=np.uint32)
    half = (bits >> 16).astype(np.uint16).view(np.float16).astype(np.float32)
    brain = (bits & 0xFFFF0000).view(np.float32)
    tensor = (bits & 0xFFFFE000).view(np.float32)
    for name, pair, k_slice in (("f16", half, 16), ("bf16", brain, 16), ("tf32", tensor, 8)):
        a, b = (np.where(np.isfinite(x), x, 0) for x in pair)
        if name != "f16":  # keep products inside float32, so that the result is not just infinity
            a, b = (np.where((abs(x) < 2.0**60) & (abs(x) > 2.0**-60), x, np.float32(1.5)) for x in (a, b))
        check(model, a, b, accumulators(rng, (3, 3)), a_fmt=name, b_fmt=name, k_slice=k_slice)


@both_models
def test_specials(model):
    """Every kind of special against every other, in rows of A, of B, in C and in the scales."""
    nan, inf = np.nan, np.inf
    a, b = np.ones((6, 32), np.float32), np.ones((6, 32), np.float32)
    a[:, 3] = [1, nan, inf, -inf, 0, inf]
    a[5, 4] = -inf
    b[:, 3] = [1, 0, inf, -inf, nan, -1]
    c = np.tile(np.float32([0, nan, inf, -inf, 1, -0.0]), (6, 1))
    check(model, a, b, c, a_fmt="e5m2", b_fmt="e5m2")
    check(model, a, b, c.T.copy(), a_fmt="e5m2", b_fmt="e5m2")
    scale = np.array([[127], [255], [0], [254], [127], [127]], np.uint8)
    check(model, a, b, c, scale, scale, a_fmt="e5m2", b_fmt="e5m2")


@pytest.mark.parametrize("model", ["exact", "float32", "blackwell"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 4)])
def test_a_nan_scale_poisons_zero_data(model, shape):
    a, b = np.zeros((shape[0], 64), np.float32), np.zeros((shape[1], 64), np.float32)
    a_scale = np.zeros((shape[0], 2), np.uint8)
    b_scale = np.zeros((shape[1], 2), np.uint8)
    a_scale[-1, 1] = 0xFF
    d = mma(a, b, a_scale=a_scale, b_scale=b_scale, accumulate=model)
    assert np.isnan(d[-1]).all()
    assert (d[:-1] == 0).all()


def test_blackwell_nan_is_the_canonical_one():
    a = np.full((1, 32), -np.nan, np.float32)
    assert mma(a, np.ones_like(a), accumulate="blackwell").view(np.uint32) == 0x7FFFFFFF


# What makes "blackwell" differ from rounding, one property at a time -------------------------------------------------


def row(*values, k=32):
    x = np.zeros((1, k), np.float32)
    x[0, : len(values)] = values
    return x


def blackwell(a, b, c, **arguments):
    return float(mma(a, b, np.float32([[c]]), accumulate="blackwell", **arguments)[0, 0])


def test_every_term_is_truncated_25_bits_below_the_largest_exponent():
    """1 - 1 + t + t: terms t of 2^-25 survive beside exponent 0; of 2^-26 each is lost, though their sum would fit."""
    e5m2 = {"a_fmt": "e5m2", "b_fmt": "e5m2"}
    assert blackwell(row(-1, 2.0**-13, 2.0**-13), row(1, 2.0**-12, 2.0**-12), 1.0, **e5m2) == 2.0**-24
    assert blackwell(row(-1, 2.0**-13, 2.0**-13), row(1, 2.0**-13, 2.0**-13), 1.0, **e5m2) == 0.0
    # Toward zero, not down: three quarters of a unit are lost whatever their sign.
    assert blackwell(row(-1, -1.5 * 2.0**-13), row(1, 2.0**-13), 1.0, **e5m2) == 0.0


def test_the_sum_is_truncated_not_rounded():
    # 1 + 31 terms of 2^-24 = 1 + 15.5 * 2^-23: the half is cut off; nearest even would go up to 16.
    a, b = row(*[2.0**-9] * 31), row(*[2.0**-9] * 31)
    scale = np.array([[121]], np.uint8)
    one = np.ones((1, 1), np.float32)
    arguments = {"a_scale": scale, "b_scale": np.array([[127]], np.uint8)}
    assert mma(a, b, one, accumulate="blackwell", **arguments) == 1 + 15 * 2.0**-23
    assert mma(a, b, one, accumulate="float32", **arguments) == 1 + 16 * 2.0**-23
    assert mma(-a, b, -one, accumulate="blackwell", **arguments) == -(1 + 15 * 2.0**-23)


def test_the_exponent_of_a_product_is_not_normalised():
    """1.75 * 1.75 = 3.0625 counts as exponent 0, so that 2^-25 survives beside it; 2 * 1 has exponent 1."""
    assert blackwell(row(1.75, -1.75), row(1.75, 1.75), 2.0**-25) == 2.0**-25
    assert blackwell(row(1.75, -1.75), row(1.75, 1.75), 2.0**-26) == 0.0
    assert blackwell(row(2.0, -2.0), row(1.0, 1.0), 2.0**-25) == 0.0


def test_subnormal_elements_count_with_the_minimum_exponent():
    """2^-9 is a subnormal of exponent -6: beside 2^-9 * 2^-9 (exponent -12) the unit is 2^-37, not 2^-43."""
    assert blackwell(row(2.0**-9, -(2.0**-9)), row(2.0**-9, 2.0**-9), 2.0**-37) == 2.0**-37
    assert blackwell(row(2.0**-9, -(2.0**-9)), row(2.0**-9, 2.0**-9), 2.0**-38) == 0.0


def test_an_exact_zero_is_positive_and_a_truncated_one_keeps_its_sign():
    minus_zeros = np.full((1, 32), -0.0, np.float32)
    zero = mma(minus_zeros, -minus_zeros, np.float32([[-0.0]]), accumulate="blackwell")
    assert zero.view(np.uint32) == 0
    # With C = 0 the unit is 2^-151, and the smallest float32 is 2^-149: a sum of one unit is truncated at the end, a
    # term of half a unit already before the sum.
    for code, bits in ((118, 0x80000000), (117, 0)):
        scales = {"a_scale": np.array([[0]], np.uint8), "b_scale": np.array([[code]], np.uint8)}
        assert mma(row(-(2.0**-9)), row(2.0**-6), accumulate="blackwell", **scales).view(np.uint32) == bits


def test_slices_are_accumulated_in_order():
    """The first slice's sum loses what a later slice would have cancelled."""
    a = np.zeros((1, 96), np.float32)
    a[0, [0, 32, 64]] = [448, 2.0**-9, -448]
    b = np.zeros((1, 96), np.float32)
    b[0, [0, 32, 64]] = [448, 2.0**-9, 448]
    for model in ("float32", "blackwell"):
        assert mma(a, b, accumulate=model) == 0.0
        assert mma(a, b, accumulate=model, k_slice=96) == (0.0 if model == "blackwell" else 2.0**-18)
    assert mma(a, b, accumulate="exact") == 2.0**-18


def test_round_toward_zero():
    flt_max = float(np.finfo(np.float32).max)
    beyond_max = 2.0**128 * (1 - 2.0**-30)
    x = np.array([1 + 2.0**-24, -(1 + 2.0**-24), 1 + 2.0**-23, 1.5 * 2.0**-149, -(2.0**-150), beyond_max, 2.0**128])
    expected = np.float32([1, -1, 1 + 2.0**-23, 2.0**-149, -0.0, flt_max, np.inf])
    np.testing.assert_array_equal(round_toward_zero(x).view(np.uint32), expected.view(np.uint32))


# What the models promise ---------------------------------------------------------------------------------------------


@both_models
def test_layout_and_shape_of_the_call_do_not_matter(model):
    """An element depends on its own row and column only: not on strides, offsets or the size of the product."""
    rng = np.random.default_rng(5)
    spread = 2.0 ** rng.integers(-6, 6, (130, 1))
    a, b = (quantize((rng.standard_normal((130, 128)) * spread).astype(np.float32)) for _ in "ab")
    whole = mma(a, b, accumulate=model)
    values, scale = decode(b.codes, "e4m3"), b.scale_e8m0
    for rows in (slice(0, 1), slice(3, 10), slice(0, 128)):
        part = mma(a, values[rows], b_scale=scale[rows], accumulate=model)
        np.testing.assert_array_equal(part.view(np.uint32), whole[:, rows].view(np.uint32))
    np.testing.assert_array_equal(mma(b, a, accumulate=model), whole.T)
    fortran = mma(a, np.asfortranarray(values), b_scale=np.asfortranarray(scale), accumulate=model)
    np.testing.assert_array_equal(fortran, whole)


def test_float32_model_stays_within_its_error_bound():
    """Each of S slices rounds its dot (u) and the running sum (u): |error| <= (S + 1) u sum |a b|, u = 2^-24."""
    rng = np.random.default_rng(6)
    a, b = (quantize(rng.standard_normal((64, 256)).astype(np.float32)) for _ in "ab")
    exact = mma(a, b, accumulate="exact")
    magnitude = np.abs(a.dequantize(np.float64)) @ np.abs(b.dequantize(np.float64)).T
    error = np.abs(mma(a, b) - exact)
    assert (error <= 9 * 2.0**-24 * magnitude).all()
    assert error.max() > 0
    # "blackwell" loses less than a unit 2^(E - 25) for each of 33 terms and less than 2^-23 of the sum, in 8 slices. Of
    # the term with exponent E the magnitude is at least 2^E (no element is subnormal in the largest product).
    error = np.abs(mma(a, b, accumulate="blackwell") - exact)
    assert (error <= 8 * (33 * 2.0**-25 + 2.0**-23) * magnitude).all()


def test_exact_is_the_float64_product():
    rng = np.random.default_rng(7)
    a, b = (quantize(rng.standard_normal((40, 64)).astype(np.float32), axes=(1,)) for _ in "ab")
    c = rng.standard_normal((40, 40)).astype(np.float32)
    d = mma(a, b, c, accumulate="exact")
    assert d.dtype == np.float64
    np.testing.assert_array_equal(d, a.dequantize(np.float64) @ b.dequantize(np.float64).T + c)
    inf, zero = np.full((1, 32), np.inf, np.float32), np.zeros((1, 32), np.float32)
    assert np.isnan(mma(inf, zero, a_fmt="f16", b_fmt="f16", accumulate="exact"))  # and no warning


@pytest.mark.parametrize("model", ["exact", "float32", "blackwell"])
def test_mx_tensors_bring_scales_and_format(model):
    rng = np.random.default_rng(8)
    x, y = (rng.standard_normal((64, 96)).astype(np.float32) * np.float32(2.0**s) for s in (3, -5))
    for fmt, axes in (("e4m3", (1,)), ("e5m2", (1,)), ("e4m3", (0, 1))):
        a, b = quantize(x, axes=axes, fmt=fmt), quantize(y)
        a_scale = a.scale_e8m0 if axes == (1,) else np.repeat(a.scale_e8m0, 32, axis=0)
        got = mma(a, b, accumulate=model)
        values = {"a": decode(a.codes, fmt), "b": decode(b.codes, "e4m3")}
        expected = mma(**values, a_scale=a_scale, b_scale=b.scale_e8m0, a_fmt=fmt, accumulate=model)
        np.testing.assert_array_equal(got, expected)
    transposed = mma(quantize(x, axes=(0, 1)).T, quantize(y[:, :64]), accumulate=model)
    again = mma(quantize(x.T.copy(), axes=(0, 1)), quantize(y[:, :64]), accumulate=model)
    np.testing.assert_array_equal(transposed, again)


@both_models
def test_tails_count_as_zeros(model):
    rng = np.random.default_rng(9)
    a, b = (quantize(rng.standard_normal((5, 70)).astype(np.float32), tail="partial") for _ in "ab")
    padded = [np.pad(decode(q.codes, "e4m3"), ((0, 0), (0, 26))) for q in (a, b)]
    expected = mma(*padded, a_scale=a.scale_e8m0, b_scale=b.scale_e8m0, accumulate=model)
    np.testing.assert_array_equal(mma(a, b, accumulate=model), expected)


def test_c_is_added_and_left_alone():
    c = np.full((2, 3), 5.0, np.float32)
    c.flags.writeable = False
    a, b = np.ones((2, 32), np.float32), np.ones((3, 32), np.float32)
    for model in ("exact", "float32", "blackwell"):
        np.testing.assert_array_equal(mma(a, b, c, accumulate=model), np.full((2, 3), 37.0))
        np.testing.assert_array_equal(mma(a[:, :0], b[:, :0], c, accumulate=model), c)
        assert mma(a[:0], b, accumulate=model).shape == (0, 3)
    assert (c == 5).all()


def test_tf32_ignores_the_low_bits():
    a = np.full((1, 8), np.float32(1 + 2.0**-10 + 2.0**-11))
    for model in ("exact", "float32", "blackwell"):
        d = mma(a, np.ones_like(a), a_fmt="tf32", b_fmt="tf32", k_slice=8, accumulate=model)
        assert d == 8 * (1 + 2.0**-10)


def test_one_tile_under_blackwell_takes_less_than_100_ms():
    rng = np.random.default_rng(10)
    a, b = (quantize(rng.standard_normal((128, 128)).astype(np.float32)) for _ in "ab")
    times = []
    for _ in range(5):
        start = time.process_time()
        mma(a, b, accumulate="blackwell")
        times.append(time.process_time() - start)
    assert min(times) < 0.1


# Errors --------------------------------------------------------------------------------------------------------------

A, B = np.ones((4, 64), np.float32), np.ones((3, 64), np.float32)
S = np.full((4, 2), 127, np.uint8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mma(A, B, accumulate="float16"), ["'float16'", "exact, float32, blackwell"]),
        (lambda: mma(A, B, k_slice=0), ["k_slice = 0", "from 1"]),
        (lambda: mma(A, B, k_slice=32.0), ["32.0"]),
        (lambda: mma(A, B[:, :32]), ["(4, 64)", "(3, 32)", "same length K"]),
        (lambda: mma(A[0], B), ["a has shape (64,)", "rank 2"]),
        (lambda: mma(A.astype(np.float64), B), ["float64", "float32"]),
        (lambda: mma(A, encode(B, "e4m3")), ["uint8", "float32"]),
        (lambda: mma(A, B, np.zeros((3, 4), np.float32)), ["(3, 4)", "(4, 3)"]),
        (lambda: mma(A, B, np.zeros((4, 3))), ["float64", "float32"]),
        (lambda: mma(A, B, a_scale=S[:, :1]), ["a_scale", "(4, 1)", "(4, 2)"]),
        (lambda: mma(A, B, b_scale=S), ["b_scale", "(4, 2)", "(3, 2)"]),
        (lambda: mma(A, B, a_scale=S.astype(int)), ["int64", "uint8"]),
        (lambda: mma(A, B, a_scale=S.tolist()), ["list", "uint8"]),
        (lambda: mma(A, B, a_scale=S, a_fmt="f16"), ["f16", "at most 8 bits"]),
        (lambda: mma(A, B, a_fmt="e8m0"), ["e8m0", "e4m3"]),
        (lambda: mma(A, B, a_fmt="fp8"), ["'fp8'", "e4m3"]),
        (lambda: mma(quantize(A), B, a_scale=S), ["a_scale", "MXTensor"]),
        (lambda: mma(quantize(np.ones((64, 64), np.float32), axes=0), B), ["(0,)", "(1,)", "(0, 1)"]),
        (lambda: mma(MXTensor(np.zeros(64, np.uint8), np.zeros(2, np.uint8)), B), ["(64,)", "rank 2"]),
        (lambda: mma(A * np.float32(1.1), B, accumulate="blackwell"), ["a holds", "1.1", "e4m3"]),
        (lambda: mma(A, B * 480, accumulate="blackwell"), ["b holds", "480", "e4m3"]),
        (lambda: mma(A, B * np.float32(np.inf), accumulate="blackwell"), ["inf", "e4m3"]),
        (lambda: mma(A * np.float32(np.nan), B, a_fmt="e2m1", accumulate="blackwell"), ["nan", "e2m1"]),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, said):
    with pytest.raises(ValueError) as error:
        call()
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize("model", ["float32", "blackwell"])
def test_f16_accumulators_round_every_step(model):
    """2048 + 1 is a tie in float16 and stays 2048, step after step; in one step 2048 + 2 arrives."""
    ones = np.ones((1, 2), np.float32)
    start = np.full((1, 1), 2048, np.float32)
    options = {"a_fmt": "f16", "b_fmt": "f16", "accumulate": model, "d_fmt": "f16"}
    stepwise, at_once = mma(ones, ones, start, k_slice=1, **options), mma(ones, ones, start, k_slice=2, **options)
    assert stepwise.dtype == np.float16 and (stepwise[0, 0], at_once[0, 0]) == (2048, 2050)


def test_f16_accumulators_under_blackwell():
    """The exact sum is rounded once, to nearest even: 1 + 2^-11 + 2^-24 goes up (by way of a truncated float32 it would not)."""
    a, b = np.array([[1, 2.0**-11, 2.0**-12]], np.float32), np.array([[1, 1, 2.0**-12]], np.float32)
    options = {"a_fmt": "f16", "b_fmt": "f16", "k_slice": 16, "accumulate": "blackwell", "d_fmt": "f16"}
    assert mma(a, b, **options)[0, 0] == np.float16(1 + 2.0**-10)
    assert mma(a[:, :2], b[:, :2], **options)[0, 0] == 1
    huge = np.full((1, 1), 65504, np.float32)
    assert mma(np.array([[16]], np.float32), np.ones((1, 1), np.float32), huge, **options)[0, 0] == np.inf
    nan = mma(np.array([[np.inf]], np.float32), np.zeros((1, 1), np.float32), huge, **options)
    assert nan.view(np.uint16)[0, 0] == 0x7FFF


def test_a_subnormal_f16_accumulator_counts_with_2_to_the_minus_14():
    """2 units of 2^-24 and half a unit are a tie; 2^-39 would break it and is kept, 2^-40 is truncated away."""
    options = {"a_fmt": "bf16", "b_fmt": "bf16", "k_slice": 16, "accumulate": "blackwell", "d_fmt": "f16"}
    start, ones = np.full((1, 1), 2.0**-23, np.float32), np.ones((1, 2), np.float32)
    for exponent, units in ((-39, 3), (-40, 2)):
        a = np.array([[2.0**-25, 2.0**exponent]], np.float32)
        assert mma(a, ones, start, **options)[0, 0] == units * 2.0**-24
