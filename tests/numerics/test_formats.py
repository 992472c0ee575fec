"""Formats against their specifications, every code, every tie, and ml_dtypes where it follows the same rules."""

import math
from itertools import pairwise

import numpy as np
import pytest

from mxfp8fa.numerics import formats
from mxfp8fa.numerics.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    decode,
    decode_scalar,
    decode_table,
    encode,
    encode_scalar,
    get_format,
)

BYTE_FORMATS = [E4M3, E5M2, E2M3, E3M2, E2M1]
by_name = pytest.mark.parametrize("fmt", BYTE_FORMATS, ids=lambda f: f.name)

# OFP8 v1.0, table 1; OCP MX v1.0, tables 2 to 5; IEEE 754 for f16.
#                 max_value, min_normal, min_subnormal, has_infinity, bits
SPECIFIED = {
    "e4m3": (448.0, 2.0**-6, 2.0**-9, False, 8),
    "e5m2": (57344.0, 2.0**-14, 2.0**-16, True, 8),
    "e8m0": (2.0**127, 2.0**-127, 2.0**-127, False, 8),
    "e2m3": (7.5, 1.0, 0.125, False, 6),
    "e3m2": (28.0, 0.25, 0.0625, False, 6),
    "e2m1": (6.0, 1.0, 0.5, False, 4),
    "f16": (65504.0, 2.0**-14, 2.0**-24, True, 16),
    "bf16": (float.fromhex("0x1.fep127"), 2.0**-126, 2.0**-133, True, 16),
    "tf32": (float.fromhex("0x1.ffcp127"), 2.0**-126, 2.0**-136, True, 19),
}


def float32(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def positive_values(fmt):
    """Finite non-negative values in ascending order, and the one that would come next."""
    values = [decode_scalar(code, fmt) for code in range(fmt.max_code + 1)]
    return [*values, 2 * values[-1] - values[-2]]


def ties_and_neighbours(fmt):
    """Every midpoint of two adjacent values with the float32 values next to it, both signs."""
    values = np.array(positive_values(fmt))
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    inf = np.float32(np.inf)
    points = np.concatenate([middle, np.nextafter(middle, inf), np.nextafter(middle, -inf)])
    return np.concatenate([points, -points])


@pytest.mark.parametrize("name", FORMATS)
def test_figures_are_those_of_the_specification(name):
    fmt = get_format(name)
    assert (fmt.max_value, fmt.min_normal, fmt.min_subnormal, fmt.has_infinity, fmt.bits) == SPECIFIED[name]


def test_names_are_case_insensitive_and_formats_pass_through():
    assert get_format("E4M3") is E4M3
    assert get_format(E5M2) is E5M2


@pytest.mark.parametrize(
    ("fmt", "code", "value"),
    [
        (E4M3, 0x00, 0.0),
        (E4M3, 0x01, 2.0**-9),
        (E4M3, 0x07, 7 * 2.0**-9),
        (E4M3, 0x08, 2.0**-6),
        (E4M3, 0x38, 1.0),
        (E4M3, 0x79, 288.0),
        (E4M3, 0x7E, 448.0),
        (E4M3, 0xFE, -448.0),
        (E5M2, 0x3C, 1.0),
        (E5M2, 0x7B, 57344.0),
        (E5M2, 0x7C, math.inf),
        (E5M2, 0xFC, -math.inf),
        (E8M0, 0x00, 2.0**-127),
        (E8M0, 0x7F, 1.0),
        (E8M0, 0xFE, 2.0**127),
        (E2M1, 0x7, 6.0),
        (E2M1, 0xF, -6.0),
        (E2M3, 0x1F, 7.5),
        (E3M2, 0x3F, -28.0),
    ],
)
def test_known_codes(fmt, code, value):
    assert decode_scalar(code, fmt) == value
    assert decode(np.uint8(code), fmt) == np.float32(value)


@pytest.mark.parametrize(
    ("fmt", "codes"),
    [(E4M3, {0x7F, 0xFF}), (E5M2, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}), (E8M0, {0xFF}), (E2M1, set())],
)
def test_nan_codes(fmt, codes):
    assert set(np.flatnonzero(np.isnan(decode_table(fmt)))) == codes


@pytest.mark.parametrize("fmt", [*BYTE_FORMATS, E8M0], ids=lambda f: f.name)
def test_decode_equals_decode_scalar_on_every_code(fmt):
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    expected = np.array([decode_scalar(int(code), fmt) for code in codes], np.float32)
    np.testing.assert_array_equal(decode(codes, fmt).view(np.uint32), expected.view(np.uint32))


def test_scalars_of_numpy_are_numbers_too():
    codes = np.array([0x83, 0x7E, 0xFF], np.uint8)
    assert [decode_scalar(codes[i], E4M3) for i in (0, 1)] == [-3 * 2.0**-9, 448.0]
    assert np.isnan(decode_scalar(codes[2], E4M3))
    for dtype in (np.float16, np.float32, np.float64):
        assert encode_scalar(np.array([-3.375], dtype)[0], E4M3) == 0xC6  # a tie between 3.25 (0x45) and 3.5 (0x46)


@by_name
def test_every_code_round_trips(fmt):
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    values = decode(codes, fmt)
    number = ~np.isnan(values)
    back = encode(values, fmt, saturate=fmt.nan_code is None)
    np.testing.assert_array_equal(back[number], codes[number])
    np.testing.assert_array_equal(back[~number], fmt.nan_code or 0)
    assert [encode_scalar(float(v), fmt) for v in values[number & np.isfinite(values)]] == list(
        codes[number & np.isfinite(values)]
    )


@by_name
def test_ties_go_to_the_even_code(fmt):
    values = positive_values(fmt)
    for code, (low, high) in enumerate(pairwise(values)):
        tie = np.float32((low + high) / 2)
        expected = min(code + code % 2, fmt.max_code)
        above = min(code + 1, fmt.max_code)
        neighbours = np.array([np.nextafter(tie, np.float32(0)), tie, np.nextafter(tie, np.float32(np.inf))])
        assert list(encode(neighbours, fmt)) == [code, expected, above]


@pytest.mark.parametrize(
    ("fmt", "saturate"),
    [*((fmt, True) for fmt in BYTE_FORMATS), (E4M3, False), (E5M2, False)],
    ids=lambda p: getattr(p, "name", f"saturate={p}"),
)
def test_encode_equals_its_definition_around_every_tie(fmt, saturate):
    points = ties_and_neighbours(fmt)
    expected = [encode_scalar(float(x), fmt, saturate=saturate) for x in points]
    np.testing.assert_array_equal(encode(points, fmt, saturate=saturate), expected)


@by_name
def test_encode_equals_its_definition_on_random_bit_patterns(fmt):
    rng = np.random.default_rng(1)
    wide = float32(rng.integers(0, 1 << 32, 300, dtype=np.uint32))
    near = (rng.standard_normal(300) * 2.0 ** rng.integers(-12, 10, 300)).astype(np.float32)
    points = np.concatenate([wide, near])
    np.testing.assert_array_equal(encode(points, fmt), [encode_scalar(float(x), fmt) for x in points])


@by_name
def test_specials_saturate(fmt):
    signalling_nan = float32(0x7F800001)
    x = np.array([np.inf, -np.inf, np.nan, signalling_nan, -np.nan, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45], np.float32)
    sign = 1 << (fmt.bits - 1)
    nan = fmt.max_code if fmt.nan_code is None else fmt.nan_code
    largest = fmt.max_code
    expected = [largest, sign | largest, nan, nan, nan, 0, sign, largest, sign | largest, 0]
    np.testing.assert_array_equal(encode(x, fmt), expected)


def test_overflow_without_saturation():
    x = np.array([448, 464, np.nextafter(np.float32(464), np.float32(500)), np.inf, -1e9], np.float32)
    np.testing.assert_array_equal(encode(x, E4M3, saturate=False), [0x7E, 0x7E, 0x7F, 0x7F, 0xFF])
    x = np.array([57344, np.nextafter(np.float32(61440), np.float32(0)), 61440, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(encode(x, E5M2, saturate=False), [0x7B, 0x7B, 0x7C, 0x7C, 0xFC])


def test_float64_is_rounded_once():
    # 1.0625 is the tie of 1.0 (0x38) and 1.125 (0x39); float32 cannot hold the excess that breaks it.
    x = np.array([1.0625, 1.0625 + 2.0**-40, 1.0625 - 2.0**-40, 1.1875 - 2.0**-40, 1e300, -1e300, 1e-300, -0.0, np.nan])
    expected = [0x38, 0x39, 0x38, 0x39, 0x7E, 0xFE, 0x00, 0x80, 0x7F]
    np.testing.assert_array_equal(encode(x, E4M3), expected)
    assert [encode_scalar(float(v), E4M3) for v in x] == expected
    # 2^-10 is the tie of 0 and the smallest subnormal.
    np.testing.assert_array_equal(encode(np.array([2.0**-10, 2.0**-10 + 2.0**-60]), E4M3), [0, 1])


def test_half_precision_input_is_widened_exactly():
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(encode(half, E4M3), encode(half.astype(np.float32), E4M3))


@pytest.mark.peers
def test_bfloat16_input_is_widened_exactly():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = encode(float32(bits.astype(np.uint32) << 16), E4M3)
    np.testing.assert_array_equal(encode(bits.view(ml_dtypes.bfloat16), E4M3), expected)


# E8M0 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["nearest", "up", "down"])
@pytest.mark.parametrize("saturate", [True, False])
def test_e8m0_equals_its_definition(rounding, saturate):
    powers = 2.0 ** np.arange(-149, 128).astype(np.float64)
    steps = np.concatenate([powers, powers * 1.25, powers * 1.5, powers * 1.75]).astype(np.float32)
    up, down = np.nextafter(steps, np.float32(np.inf)), np.nextafter(steps, np.float32(0))
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)
    x = np.concatenate([steps, up, down, -steps[:9], specials])
    got = encode(x, E8M0, saturate=saturate, rounding=rounding)
    expected = [encode_scalar(float(v), E8M0, saturate=saturate, rounding=rounding) for v in x]
    np.testing.assert_array_equal(got, expected)


def test_e8m0_rounding_by_hand():
    x = np.array([1.0, 1.25, 1.5, 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, 0.0], np.float32)
    np.testing.assert_array_equal(encode(x, "e8m0"), [127, 127, 128, 0, 1, 1, 0])
    np.testing.assert_array_equal(encode(x, "e8m0", rounding="up"), [127, 128, 128, 0, 1, 1, 0])
    np.testing.assert_array_equal(encode(x, "e8m0", rounding="down"), [127, 127, 127, 0, 0, 1, 0])


# ml_dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.peers
@by_name
def test_ml_dtypes_agrees_on_all_codes_and_on_every_top_half(fmt):
    """All codes; and of float32, every sign, exponent and top 7 mantissa bits, exact and with a sticky bit below."""
    suffix = "" if fmt is E5M2 else "fn"
    peer = np.dtype(getattr(pytest.importorskip("ml_dtypes"), f"float{fmt.bits}_{fmt.name}{suffix}"))
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    np.testing.assert_array_equal(decode(codes, fmt), codes.view(peer).astype(np.float32))
    top = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0x0000, 0x0001, 0xFFFF):
        x = float32(top | low)
        x = x[~np.isnan(x)]
        with np.errstate(over="ignore"):
            expected = x.astype(peer).view(np.uint8)
        np.testing.assert_array_equal(encode(x, fmt, saturate=fmt.nan_code is None), expected)


@pytest.mark.peers
def test_where_ml_dtypes_differs():
    """Casts neither saturate nor know that a zero block has scale code 0; that is why the package uses none."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    big = np.array([465.0, np.inf], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(big.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), [0x7F, 0x7F])
        assert np.float32(61440).astype(ml_dtypes.float8_e5m2).view(np.uint8) == 0x7C
    np.testing.assert_array_equal(encode(big, E4M3), [0x7E, 0x7E])
    assert encode(np.float32(61440), E5M2) == 0x7B
    edges = np.array([0.0, -1.0, 3e38, np.inf], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(edges.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8), [255, 255, 255, 255])
    np.testing.assert_array_equal(encode(edges, E8M0), [0, 127, 254, 254])
    powers = (1.1 * 2.0 ** np.arange(-126, 127)).astype(np.float32)
    np.testing.assert_array_equal(encode(powers, E8M0), powers.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))


# Shapes, memory and errors -------------------------------------------------------------------------------------------


def test_any_shape_and_memory_order():
    x = np.random.default_rng(0).standard_normal((5, 7, 3)).astype(np.float32)
    expected = encode(x, E4M3)
    assert encode(x[2, 3, 1], E4M3).shape == ()
    assert encode(x[:0], E4M3).shape == (0, 7, 3)
    np.testing.assert_array_equal(encode(np.asfortranarray(x), E4M3), expected)
    np.testing.assert_array_equal(encode(x[::2, ::-1], E4M3), expected[::2, ::-1])
    x.flags.writeable = False
    np.testing.assert_array_equal(encode(x, E4M3), expected)
    np.testing.assert_array_equal(decode(expected[::2, :, ::-1], E4M3), decode(expected, E4M3)[::2, :, ::-1])


def test_more_elements_than_one_chunk():
    x = np.random.default_rng(0).standard_normal(2 * formats.CHUNK + 5).astype(np.float32)
    codes = encode(x, E4M3)
    parts = np.concatenate([encode(part, E4M3) for part in np.array_split(x, 7)])
    np.testing.assert_array_equal(codes, parts)
    np.testing.assert_array_equal(decode(codes, E4M3), decode_table(E4M3)[codes])


@pytest.mark.parametrize(
    ("call", "given", "allowed"),
    [
        (lambda: get_format("e4m4"), "'e4m4'", "e4m3, e5m2"),
        (lambda: get_format(None), "None", "e4m3"),
        (lambda: encode(np.arange(3), E4M3), "int64", "float32"),
        (lambda: encode(np.zeros(3, ">f4"), E4M3), ">f4", "float32"),
        (lambda: encode(np.zeros(3, complex), E4M3), "complex128", "float32"),
        (lambda: encode(np.zeros(3, np.float32), "bf16"), "bf16", "at most 8 bits"),
        (lambda: encode(np.zeros(3, np.float32), E2M1, saturate=False), "e2m1", "True"),
        (lambda: encode(np.zeros(3, np.float32), E4M3, rounding="up"), "'up'", "nearest"),
        (lambda: encode(np.zeros(3, np.float32), E8M0, rounding="zero"), "'zero'", "nearest, up, down"),
        (lambda: decode(np.zeros(3, np.int64), E4M3), "int64", "uint8"),
        (lambda: decode(np.array([3, 16], np.uint8), E2M1), "0x10", "0xf"),
        (lambda: decode_scalar(256, E4M3), "0x100", "0xff"),
        (lambda: decode_scalar(-1, E4M3), "-0x1", "0xff"),
        (lambda: decode_scalar(3.0, E4M3), "3.0", "an integer"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, given, allowed):
    with pytest.raises(ValueError) as error:
        call()
    assert given in str(error.value)
    assert allowed in str(error.value)
