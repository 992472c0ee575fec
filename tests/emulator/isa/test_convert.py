"""cvt between scalar types (PTX ISA 9.7.9, "cvt"), against Python integers and exact fractions."""

import itertools
import math
import zlib
from fractions import Fraction

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import BF16, F16, F32, F64, FORMATS, MODES, agree, bulk

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}  # Python's round: ties to even
EVERY_HALF = list(range(1 << 16))


def width(t):
    return int(t[1:])


def limits(t):
    """Smallest and largest integer of a type."""
    return (-(1 << (width(t) - 1)), (1 << (width(t) - 1)) - 1) if t[0] == "s" else (0, (1 << width(t)) - 1)


def number(x, t):
    """The integer that raw bits stand for."""
    return x - (1 << width(t)) if t[0] == "s" and x >> (width(t) - 1) else x


def raw(i, bits):
    return i & ((1 << bits) - 1)


def integers(t, seed):
    """Edge values, powers of two and their neighbours, ties of the float formats, random numbers of all sizes."""
    rng = np.random.default_rng(seed)
    n = width(t)
    found = [raw(s * (1 << k) + d, n) for k in range(n) for d in (-1, 0, 1) for s in (1, -1)]
    for bits in (8, 11, 24, 53):  # 2^k + half an ulp of a format with that many mantissa bits, and neighbours
        found += [raw(s * ((1 << k) + (m << (k - bits))) + d, n)
                  for k in range(bits, n) for m in (1, 3) for d in (-1, 0, 1) for s in (1, -1)]  # fmt: skip
    found += [raw(int(x) >> int(k), n) for x, k in rng.integers(0, (1 << 63, n), (300, 2))]
    return sorted(set(found))


def floats(fmt, seed, count=400):
    """Edge values, integers and halves around the limits of every integer type, random numbers."""
    near = []
    for value in [0, 1, 2, 3, *(1 << k for k in (7, 8, 15, 16, 31, 32, 63, 64))]:
        for quarter in range(-8, 9):
            near.append(fmt.round(Fraction(value) + Fraction(quarter, 4), "rn"))
            near.append(fmt.round(-Fraction(value) + Fraction(quarter, 4), "rn"))
        close = fmt.round(Fraction(value), "rz")
        near += [close + d for d in (-2, -1, 0, 1, 2) if 0 <= close + d < fmt.inf]
        near += [(close + d) | fmt.sign_bit for d in (-2, -1, 0, 1, 2) if 0 <= close + d < fmt.inf]
    return exact.edges(fmt) + near + exact.random_numbers(fmt, count, seed)


# -- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "source"), list(itertools.product(INTEGERS, INTEGERS)))
def test_integer_to_integer(to, source):
    """Extended by the source's signedness, or cut off; with .sat clamped where the source's range is not inside."""
    values = integers(source, 1)
    agree(f"cvt.{to}.{source}", [values], lambda x: raw(number(x, source), width(to)))
    (low, high), (least, most) = limits(to), limits(source)
    if least < low or most > high:
        agree(f"cvt.sat.{to}.{source}", [values], lambda x: raw(min(max(number(x, source), low), high), width(to)))


@pytest.mark.parametrize(("to", "source"), list(itertools.product(FORMATS, INTEGERS)))
def test_integer_to_float(to, source):
    fmt = FORMATS[to]
    values = integers(source, 2)
    for mode in MODES:
        agree(f"cvt.{mode}.{to}.{source}", [values], lambda x, m=mode: fmt.round(Fraction(number(x, source)), m))
        if to != "bf16":
            agree(f"cvt.{mode}.sat.{to}.{source}", [values],
                  lambda x: fmt.one if number(x, source) > 0 else 0)  # fmt: skip
    if to == "f32":
        assert bulk(f"cvt.rz.ftz.f32.{source}", values) == bulk(f"cvt.rz.f32.{source}", values)


def test_wide_integers_are_rounded_once():
    """2^63 + 2^39 + 1 is just above half way between two f32; rounding to f64 first would drop the 1."""
    assert bulk("cvt.rn.f32.u64", [(1 << 63) + (1 << 39) + 1]) == [0x5F000001]
    assert bulk("cvt.rn.f32.u64", [(1 << 63) + (1 << 39)]) == [0x5F000000]
    assert bulk("cvt.rn.bf16.s64", [(1 << 62) + (1 << 54) + 1]) == [0x5E81]
    assert bulk("cvt.rm.f64.u64", [(1 << 64) - 1]) == [0x43EFFFFFFFFFFFFF]
    assert bulk("cvt.rp.f64.u64", [(1 << 64) - 1]) == [0x43F0000000000000]


def nan_result(to, source):
    """PTX ISA: zero if the source is not f64 and the destination has not 64 bits, else the top bit alone."""
    return 1 << (width(to) - 1) if source == "f64" or width(to) == 64 else 0


def integer_from(fmt, x, irnd, to):
    low, high = limits(to)
    if fmt.is_inf(x):
        return raw(low if fmt.negative(x) else high, width(to))
    return raw(min(max(INTEGRAL[irnd](fmt.value(x)), low), high), width(to))


@pytest.mark.parametrize(("to", "source"), list(itertools.product(INTEGERS, FORMATS)))
def test_float_to_integer(to, source):
    """Rounded as .rni .rzi .rmi .rpi say, clamped with and without .sat; what NaN gives is the ISA's rule."""
    fmt = FORMATS[source]
    values = floats(fmt, 3, 100)
    for irnd in INTEGRAL:

        def want(x, irnd=irnd):
            return nan_result(to, source) if fmt.is_nan(x) else integer_from(fmt, x, irnd, to)

        agree(f"cvt.{irnd}.{to}.{source}", [values], want)
        if source != "bf16":
            assert bulk(f"cvt.{irnd}.sat.{to}.{source}", values) == bulk(f"cvt.{irnd}.{to}.{source}", values)


def test_float_to_integer_flushes_first():
    """With .ftz the smallest subnormal is 0 also when rounded up."""
    assert bulk("cvt.rpi.s32.f32", [1, 0x80000001]) == [1, 0]
    assert bulk("cvt.rpi.ftz.s32.f32", [1, 0x007FFFFF]) == [0, 0]
    assert bulk("cvt.rmi.ftz.sat.s64.f32", [0x80000001]) == [0]
    assert bulk("cvt.rmi.s64.f32", [0x80000001]) == [(1 << 64) - 1]


def half_values(t):
    """The values of all 2^16 codes, as float64."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    narrow = codes.view(np.float16) if t == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return narrow.astype(np.float64)


@pytest.mark.parametrize("to", ["u8", "s16", "s32", "u64"])
@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_every_half_to_integer(source, to):
    low, high = limits(to)
    values = half_values(source)
    for irnd, function in (("rni", np.rint), ("rmi", np.floor)):
        limited = np.clip(function(np.nan_to_num(values)), -1e30, 1e30)
        want = [raw(min(max(int(x), low), high), width(to)) for x in limited.tolist()]
        for code in np.nonzero(np.isnan(values))[0].tolist():
            want[code] = nan_result(to, source)
        assert bulk(f"cvt.{irnd}.{to}.{source}", EVERY_HALF) == want


# -- float to float ---------------------------------------------------------------------------------------------------


def converted(to, source, x, mode, nan):
    """A number of one format in another, rounded once."""
    if source.is_nan(x):
        return nan
    sign = to.sign_bit if source.negative(x) else 0
    return to.inf | sign if source.is_inf(x) else to.round(source.value(x), mode, source.negative(x))


def ties(to, source, seed):
    """Numbers of `source` at, just below and just above ties of `to`, and around its overflow threshold."""
    found = []
    for code in [*exact.edges(to), *exact.random_numbers(to, 150, seed)]:
        if to.magnitude(code) < to.inf - 1:
            middle = (to.value(code) + to.value(code + 1)) / 2
            nearest = source.round(middle, "rz", to.negative(code))
            found += [nearest + d for d in (-1, 0, 1) if source.magnitude(nearest) > 1]
    beyond = source.round(to.value(to.inf - 1) + (to.value(to.inf - 1) - to.value(to.inf - 2)) / 2, "rz")
    return found + [(beyond + d) | s for d in (-1, 0, 1) for s in (0, source.sign_bit) if beyond + d < source.inf]


NARROWING = [(to, source) for to in ("f16", "bf16") for source in FORMATS if source != to] + [("f32", "f64")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("to", "source"), NARROWING)
def test_narrowing(to, source, mode):
    """Ties and their neighbours, overflow thresholds, subnormal results.

    NaN gives the canonical NaN; from f64 sign and upper payload bits are kept (measured on an H200).
    """
    narrow, wide = FORMATS[to], FORMATS[source]
    values = floats(wide, 4, 200) + ties(narrow, wide, zlib.crc32(mode.encode()))

    def want(x):
        nan = narrow.nan
        if source == "f64":
            upper = (x & (1 << 52) - 1) >> (52 - narrow.mantissa_bits)
            nan = (x >> 63) * narrow.sign_bit | narrow.inf | 1 << (narrow.mantissa_bits - 1) | upper
        return converted(narrow, wide, x, mode, nan)

    agree(f"cvt.{mode}.{to}.{source}", [values], want)


@pytest.mark.parametrize(("to", "source"), [("f16", "bf16"), ("bf16", "f16")])
def test_every_half_to_the_other_half(to, source):
    """Every code in the default rounding, which is to nearest (ptxas accepts it unspelt); every 16th in the others."""
    dtype = np.float16 if to == "f16" else pytest.importorskip("ml_dtypes").bfloat16
    with np.errstate(over="ignore", invalid="ignore"):
        values = half_values(source).astype(np.float32)
        want = np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(dtype).view(np.uint16)).tolist()
    assert bulk(f"cvt.{to}.{source}", EVERY_HALF) == bulk(f"cvt.rn.{to}.{source}", EVERY_HALF) == want
    narrow, wide = FORMATS[to], FORMATS[source]
    for mode in MODES:
        agree(f"cvt.{mode}.{to}.{source}", [EVERY_HALF[::16] + exact.edges(wide)],
              lambda x, m=mode: converted(narrow, wide, x, m, narrow.nan))  # fmt: skip


def test_f16_to_f32_and_f64_on_every_code():
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    nan = np.isnan(values)
    single = np.where(nan, np.uint32(F32.nan), values.astype(np.float32).view(np.uint32))
    assert bulk("cvt.f32.f16", EVERY_HALF) == single.tolist()
    double = np.array(bulk("cvt.f64.f16", EVERY_HALF), np.uint64)
    assert (double[~nan] == values.astype(np.float64).view(np.uint64)[~nan]).all()
    assert np.isnan(double[nan].view(np.float64)).all()


def test_bf16_to_f32_on_every_code():
    """A shift, which keeps NaN payloads; with .ftz NaN is canonical and subnormals are zero."""
    for mode in ("", ".rn", ".rp"):
        assert bulk(f"cvt{mode}.f32.bf16", EVERY_HALF) == [x << 16 for x in EVERY_HALF]
        assert bulk(f"cvt{mode}.ftz.f32.bf16", EVERY_HALF) == [
            F32.nan if BF16.is_nan(x) else F32.flush(x << 16) for x in EVERY_HALF
        ]
        doubles = np.array(bulk(f"cvt{mode}.f64.bf16", EVERY_HALF), np.uint64).view(np.float64)
        assert np.array_equal(doubles, (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32), equal_nan=True)


def test_f32_to_f64():
    values = exact.edges(F32) + exact.random_numbers(F32, 500, 5)
    got = bulk("cvt.f64.f32", values)
    for x, result in zip(values, got, strict=True):
        if F32.is_nan(x):
            assert result == (x >> 31 << 63) | 0x7FF8 << 48 | (x & 0x3FFFFF) << 29  # quieted, payload on top
        else:
            assert result == converted(F64, F32, x, "rn", 0)
    # With .ftz NaN is made canonical before it is widened (measured on an H200).
    flushed = [F32.nan if F32.is_nan(x) else F32.flush(x) for x in values]
    assert bulk("cvt.ftz.f64.f32", values) == bulk("cvt.f64.f32", flushed)


SAME = {"f32": ("", ".ftz"), "f64": ("",), "f16": ("",), "bf16": ("",)}


@pytest.mark.parametrize("t", FORMATS)
@pytest.mark.parametrize("irnd", ["", *INTEGRAL])
def test_same_type_and_integral_values(t, irnd):
    """The sign of a zero result is the operand's (IEEE 754: -0.5 rounds to -0)."""
    fmt = FORMATS[t]
    values = floats(fmt, 6, 200)
    for ftz in SAME[t]:

        def want(x, ftz=ftz):
            x = fmt.flush(x) if ftz else x
            if fmt.is_nan(x):
                moved = t in ("f32", "f64") and not irnd and not ftz
                return x if moved else x | 1 << 51 if t == "f64" else fmt.nan
            if fmt.is_inf(x) or not irnd:
                return x
            return fmt.round(Fraction(INTEGRAL[irnd](fmt.value(x))), "rn", fmt.negative(x))

        agree(f"cvt{'.' + irnd if irnd else ''}{ftz}.{t}.{t}", [values], want)


@pytest.mark.parametrize(("to", "source", "rounding"), [
    ("f16", "f32", ".rn"), ("f16", "f32", ".rp"), ("f16", "f64", ".rm"), ("f32", "f64", ".rz"), ("f32", "f16", ""),
    ("f64", "f32", ""), ("f64", "f16", ""), ("f32", "f32", ""), ("f64", "f64", ""), ("f16", "f16", ""),
    ("f32", "f32", ".rni"), ("f64", "f64", ".rpi"), ("f16", "f16", ".rzi"),
])  # fmt: skip
def test_sat(to, source, rounding):
    """The converted number clamped to [0, 1]; NaN, -0 and negative numbers give +0."""
    fmt = FORMATS[to]
    values = floats(FORMATS[source], 7, 300)
    plain = bulk(f"cvt{rounding}.{to}.{source}", values)
    clamped = [0 if fmt.is_nan(x) or fmt.negative(x) else min(x, fmt.one) for x in plain]
    assert bulk(f"cvt{rounding}.sat.{to}.{source}", values) == clamped


@pytest.mark.parametrize("mode", MODES)
def test_ftz_applies_to_the_f32_side(mode):
    """Operands are flushed when they are f32, except on the way to f16 (measured on an H200), results when they are."""
    singles = exact.edges(F32) + ties(BF16, F32, 8)
    flushed = bulk(f"cvt.{mode}.bf16.f32", [F32.flush(x) for x in singles])
    assert bulk(f"cvt.{mode}.ftz.bf16.f32", singles) == flushed
    assert bulk(f"cvt.{mode}.ftz.f16.f32", singles) == bulk(f"cvt.{mode}.f16.f32", singles)
    doubles = [x for x in exact.edges(F64) + ties(F32, F64, 9) if not F64.is_nan(x)]
    below = F64.round(Fraction(1, 2**126), "rn")
    doubles += [(below - (k << 27)) | s for k in range(10) for s in (0, F64.sign_bit)]  # quarters of an ulp below 2^-126

    def want(x):
        exponents_end = F64.is_inf(x)
        return converted(F32, F64, x, mode, 0) if exponents_end else F32.round_flushed(F64.value(x), mode, F64.negative(x))

    agree(f"cvt.{mode}.ftz.f32.f64", [doubles], want)


# -- relu, satfinite, tf32 --------------------------------------------------------------------------------------------


def finished(fmt, x, relu, satfinite):
    """.satfinite and .relu applied to a rounded result: overflow to the largest number, negative to +0."""
    if fmt.is_nan(x):
        return x
    if satfinite and fmt.is_inf(x):
        x -= 1
    return 0 if relu and fmt.negative(x) else x


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_relu_and_satfinite(to, mode):
    fmt = FORMATS[to]
    values = floats(F32, 10, 200) + ties(fmt, F32, 11)
    plain = [converted(fmt, F32, x, mode, fmt.nan) for x in values]
    for relu, satfinite in ((True, False), (False, True), (True, True)):
        spelled = ".relu" * relu + ".satfinite" * satfinite
        assert bulk(f"cvt.{mode}{spelled}.{to}.f32", values) == [finished(fmt, x, relu, satfinite) for x in plain]


TF32 = exact.Binary(8, 10, 0x3FFFF)


@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_tf32(mode):
    """Ten mantissa bits on top of the register, zeros below; rna rounds ties away from zero."""
    values = floats(F32, 12, 200) + ties(TF32, F32, 13)
    if mode == "rna":  # NaN: see below
        values = [x for x in values if not F32.is_nan(x)]
    plain = [converted(TF32, F32, x, mode, TF32.nan) for x in values]
    for relu, satfinite in itertools.product((False, True), (False, True)):
        if relu and mode == "rna":
            continue
        got = bulk(f"cvt.{mode}{'.satfinite' * satfinite}{'.relu' * relu}.tf32.f32", values)
        assert got == [finished(TF32, x, relu, satfinite) << 13 for x in plain]


def test_rna_cuts_nans_like_numbers():
    """A NaN with few payload bits becomes infinity, with .satfinite the largest number (measured on an H200)."""
    nans = [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFC02000]
    assert bulk("cvt.rna.tf32.f32", nans) == [0x7F800000, 0xFF800000, 0x7FFFE000, 0xFFC02000]
    assert bulk("cvt.rna.satfinite.tf32.f32", nans) == [0x7F7FE000, 0xFF7FE000, 0x7FFFC000, 0xFFC00000]


def test_tf32_ties_by_hand():
    tie_even, tie_odd = 0x3F801000, 0x3F803000
    assert bulk("cvt.rn.tf32.f32", [tie_even, tie_odd]) == [0x3F800000, 0x3F804000]
    assert bulk("cvt.rna.tf32.f32", [tie_even, tie_odd | 1 << 31]) == [0x3F802000, 0xBF804000]
    assert bulk("cvt.rz.tf32.f32", [tie_even + 0xFFF]) == [0x3F800000]


def test_ml_dtypes_and_numpy_agree():
    """f32 to bf16 by ml_dtypes and to f16 by NumPy, random bits."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(1).integers(0, 1 << 32, 50000, dtype=np.uint32).view(np.float32)
    for to, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        with np.errstate(all="ignore"):
            want = np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(dtype).view(np.uint16))
        assert bulk(f"cvt.rn.{to}.f32", x.view(np.uint32)) == want.tolist()


def test_f16_saturation_threshold():
    """65519.99 rounds to 65504, 65520 is the tie that overflows."""
    below, tie = 0x477FEFFF, 0x477FF000
    assert bulk("cvt.rn.f16.f32", [below, tie]) == [0x7BFF, F16.inf]
    assert bulk("cvt.rz.f16.f32", [tie, 0x7F7FFFFF, 0x7F800000]) == [0x7BFF, 0x7BFF, F16.inf]
    assert bulk("cvt.rn.satfinite.f16.f32", [tie, 0x7F800000, 0xFF800000]) == [0x7BFF, 0x7BFF, 0xFBFF]
