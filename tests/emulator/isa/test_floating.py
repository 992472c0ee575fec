"""f32 and f64 arithmetic, min and max, mixed precision: PTX ISA 9.7.3 and 9.7.5, against exact fractions."""

import functools
import itertools
import zlib
from fractions import Fraction

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import BF16, F16, F32, F64, FORMATS, MODES, agree, bulk

OPERATIONS = {"add": (2, exact.add), "mul": (2, exact.mul), "fma": (3, exact.fma), "div": (2, exact.div)}
PLUS_ZERO, MINUS_ZERO, ONE, HALF = 0, 0x80000000, 0x3F800000, 0x3F000000


def f64_nan(*operands):
    """The first NaN of operands b, c, a, quieted, else the default NaN (measured on an H200)."""
    return next((x | 1 << 51 for x in (*operands[1:], operands[0]) if F64.is_nan(x)), F64.nan)


def settled(fmt, result, *operands):
    """result, with None replaced by the NaN the instruction delivers."""
    if result is not None:
        return result
    return f64_nan(*operands) if fmt is F64 else fmt.nan


def saturated(fmt, x):
    """x clamped to [0, 1], as bits; NaN and -0 give +0."""
    if fmt.is_nan(x) or fmt.negative(x):
        return 0
    return min(x, fmt.one)


def test_the_reference_agrees_with_this_machine():
    """The fractions against NumPy's own f32 and f64 arithmetic, which rounds to nearest."""
    for fmt, raw, wide in ((F32, np.uint32, np.float32), (F64, np.uint64, np.float64)):
        a, b = exact.tuples(fmt, 2, 500, 9)
        x, y = np.array(a, raw).view(wide), np.array(b, raw).view(wide)
        with np.errstate(all="ignore"):
            results = {exact.add: x + y, exact.mul: x * y, exact.div: x / y}
        for function, values in results.items():
            for p, q, value in zip(a, b, values, strict=True):
                want = function(fmt, p, q)
                assert np.isnan(value) if want is None else int(value.view(raw)) == want


# -- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic(op, mode, t):
    operands, function = OPERATIONS[op]
    fmt = FORMATS[t]
    columns = exact.tuples(fmt, operands, 500, seed=zlib.crc32(f"{op} {mode} {t}".encode()))
    order = -1 if op == "div" else 1  # of two NaNs div returns the first (measured on an H200)
    agree(f"{op}.{mode}.{t}", columns, lambda *row: settled(fmt, function(fmt, *row, mode), *row[::order]))


@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_sub_mad_rcp_sqrt(mode, t):
    fmt = FORMATS[t]
    pairs, triples = exact.tuples(fmt, 2, 300, 1), exact.tuples(fmt, 3, 100, 2, limit=300)
    singles = exact.tuples(fmt, 1, 400, 3)
    agree(f"sub.{mode}.{t}", pairs, lambda a, b: settled(fmt, exact.add(fmt, a, b ^ fmt.sign_bit, mode), a, b))
    agree(f"mad.{mode}.{t}", triples, lambda *row: settled(fmt, exact.fma(fmt, *row, mode), *row))
    agree(f"rcp.{mode}.{t}", singles, lambda a: settled(fmt, exact.div(fmt, fmt.one, a, mode), a))
    agree(f"sqrt.{mode}.{t}", singles, lambda a: settled(fmt, exact.sqrt(fmt, a, mode), a))


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_default_rounding_is_to_nearest(t):
    columns = exact.tuples(FORMATS[t], 2, 200, 4)
    for op in ("add", "sub", "mul"):
        assert bulk(f"{op}.{t}", *columns) == bulk(f"{op}.rn.{t}", *columns)


def test_signs_of_exact_zeros():
    """x - x is +0, but -0 toward minus infinity; zeros of one sign keep it."""
    for t, fmt in (("f32", F32), ("f64", F64)):
        minus = fmt.sign_bit
        for mode in MODES:
            cancelled = minus if mode == "rm" else 0
            rows = ([fmt.one, 0, minus, 0, minus], [fmt.one | minus, minus, 0, 0, minus])
            assert bulk(f"add.{mode}.{t}", *rows) == [cancelled, cancelled, cancelled, 0, minus]
            assert bulk(f"sub.{mode}.{t}", [fmt.one], [fmt.one]) == [cancelled]
            assert bulk(f"fma.{mode}.{t}", [fmt.one], [fmt.one], [fmt.one | minus]) == [cancelled]
            assert bulk(f"mul.{mode}.{t}", [minus, minus, 1], [0, minus, minus | 1])[:2] == [minus, 0]


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_overflow_and_underflow_by_mode(t):
    fmt = FORMATS[t]
    largest, minus = fmt.inf - 1, fmt.sign_bit
    over = {"rn": fmt.inf, "rz": largest, "rm": largest, "rp": fmt.inf}
    over_negative = {"rn": fmt.inf, "rz": largest, "rm": fmt.inf, "rp": largest}
    under = {"rn": 0, "rz": 0, "rm": 0, "rp": 1}
    for mode in MODES:
        assert bulk(f"add.{mode}.{t}", [largest], [largest]) == [over[mode]]
        assert bulk(f"mul.{mode}.{t}", [largest | minus], [largest]) == [over_negative[mode] | minus]
        assert bulk(f"div.{mode}.{t}", [largest], [1]) == [over[mode]]
        assert bulk(f"fma.{mode}.{t}", [1], [1], [0]) == [under[mode]]
        assert bulk(f"mul.{mode}.{t}", [1 | minus], [1]) == [minus | {"rm": 1}.get(mode, 0)]
        # Infinity itself is exact in every mode.
        assert bulk(f"add.{mode}.{t}", [fmt.inf], [largest | minus]) == [fmt.inf]


def test_fma_where_rounding_twice_differs():
    """1 + 2^-23 plus a product just below 2^-24: a float64 sum is a tie and rounds the wrong way to float32."""
    ulp = Fraction(1, 2**23)
    a, b, c = F32.round((1 + ulp) / 2**24, "rn"), F32.round(1 - ulp, "rn"), ONE + 1
    total = F32.value(a) * F32.value(b) + F32.value(c)
    assert Fraction(float(total)) == 1 + ulp + ulp / 2 != total  # as a float64 the sum is a tie
    assert bulk("fma.rn.f32", [a], [b], [c]) == [ONE + 1]
    # The same in the subnormal range and for the other modes, where the float64 sum looks exact.
    tiny = F32.round(Fraction(1, 2**149), "rn")
    assert bulk("add.rp.f32", [ONE], [tiny]) == [ONE + 1]
    assert bulk("add.rm.f32", [ONE], [tiny | MINUS_ZERO]) == [ONE - 1]
    assert bulk("fma.rz.f32", [tiny | MINUS_ZERO], [tiny], [ONE]) == [ONE - 1]


# -- modifiers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_ftz(op, mode):
    """Subnormal operands and tiny results become zeros of their sign; many results near 2^-126."""
    operands, function = OPERATIONS[op]
    columns = exact.tuples(F32, operands, 150, 5, limit=400)
    a = [(40 << 23 | m) ^ (m & 1) << 31 for m in np.random.default_rng(1).integers(0, 1 << 23, 400).tolist()]
    ratios = [abs(F32.value(x)) * 2**126 if op == "div" else Fraction(1, 2**126) / abs(F32.value(x)) for x in a]
    b = [F32.round(r, "rz") + i % 3 for i, r in enumerate(ratios)]  # a * b, or a / b, is close to 2^-126
    columns = [old + new for old, new in zip(columns, (a, b, [0] * len(a)), strict=False)]
    agree(f"{op}.{mode}.ftz.f32", columns, lambda *row: settled(F32, function(F32, *row, mode, ftz=True)))


def test_ftz_looks_at_the_result_with_endless_exponents():
    """Half an ulp below 2^-126 is flushed although the subnormal grid rounds it up; a quarter is not."""
    scale, a = F32.round(Fraction(1, 2**63), "rn"), F32.round((1 - Fraction(1, 2**24)) / 2**63, "rn")
    assert bulk("mul.f32", [a], [scale]) == [0x00800000]
    assert bulk("mul.ftz.f32", [a, a | MINUS_ZERO], [scale]) == [0, MINUS_ZERO]
    assert bulk("mul.rz.ftz.f32", [a], [scale]) == [0]
    almost = [F32.round((1 + Fraction(1, 2**23)) / 2**63, "rn"), F32.round((1 - Fraction(1, 2**23)) / 2**63, "rn")]
    assert F32.value(almost[0]) * F32.value(almost[1]) == Fraction(1, 2**126) * (1 - Fraction(1, 2**46))
    assert bulk("mul.ftz.f32", almost[:1], almost[1:]) == [0x00800000]
    tie = [F32.round(Fraction(31, 2**75), "rn"), F32.round(Fraction(1082401, 2**76), "rn")]  # 31 * 1082401 = 2^25 - 1
    assert bulk("mul.ftz.f32", tie[:1], tie[1:]) == [0x00800000]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "mad"])
def test_sat(op):
    operands = 3 if op in ("fma", "mad") else 2
    columns = exact.tuples(F32, operands, 200, 6, limit=400)
    for mode, ftz in itertools.product(MODES, ("", ".ftz")):
        plain = bulk(f"{op}.{mode}{ftz}.f32", *columns)
        assert bulk(f"{op}.{mode}{ftz}.sat.f32", *columns) == [saturated(F32, x) for x in plain]


def test_f32_nans_are_canonical():
    nans = [0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF800001, 0x7FFFFFFF]
    for op in ("add.f32", "sub.f32", "mul.f32", "div.rn.f32"):
        assert bulk(op, nans, [ONE]) == [F32.nan] * len(nans)
        assert bulk(op, [ONE], nans) == [F32.nan] * len(nans)
    assert bulk("sqrt.rn.f32", [0xBF800000, *nans]) == [F32.nan] * 6
    assert bulk("neg.f32", nans) == bulk("abs.f32", nans) == [F32.nan] * len(nans)


def test_f64_nans_keep_their_payload():
    payload, signalling = 0xFFF8000000000123, 0x7FF0000000000456
    one = F64.one
    assert bulk("add.f64", [payload, one, payload, signalling], [one, signalling, signalling, payload]) == [
        payload, signalling | 1 << 51, signalling | 1 << 51, payload,
    ]  # fmt: skip
    assert bulk("fma.rz.f64", [one], [one], [payload]) == [payload]
    assert bulk("sub.f64", [F64.inf], [F64.inf]) == [F64.nan]


# -- f32 with 16-bit operands -----------------------------------------------------------------------------------------


def to_f32(fmt, x):
    """A 16-bit number as f32 bits."""
    if fmt.is_nan(x):
        return F32.nan
    sign = MINUS_ZERO if fmt.negative(x) else 0
    return F32.inf | sign if fmt.is_inf(x) else F32.round(fmt.value(x), "rn", fmt.negative(x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_mixed_precision(t, mode):
    """Operand order: the 16-bit one first, then f32; fma has two 16-bit factors and an f32 addend."""
    fmt = FORMATS[t]
    narrow = exact.tuples(fmt, 2, 200, 7, limit=300)
    wide = exact.random_numbers(F32, len(narrow[0]) - 60, 8) + (exact.edges(F32) * 2)[:60]
    a, b = narrow
    widened = functools.partial(to_f32, fmt)
    agree(f"add.{mode}.f32.{t}", [a, wide], lambda x, y: settled(F32, exact.add(F32, widened(x), y, mode)))
    agree(f"sub.{mode}.f32.{t}", [a, wide],
          lambda x, y: settled(F32, exact.add(F32, widened(x), y ^ MINUS_ZERO, mode)))  # fmt: skip
    agree(f"fma.{mode}.f32.{t}", [a, b, wide],
          lambda x, y, z: settled(F32, exact.fma(F32, widened(x), widened(y), z, mode)))  # fmt: skip
    plain = bulk(f"fma.{mode}.f32.{t}", a, b, wide)
    assert bulk(f"fma.{mode}.sat.f32.{t}", a, b, wide) == [saturated(F32, x) for x in plain]
    assert bulk(f"add.{mode}.sat.f32.{t}", a, wide) == [
        saturated(F32, x) for x in bulk(f"add.{mode}.f32.{t}", a, wide)
    ]


def test_mixed_precision_default_rounding():
    assert bulk("add.f32.bf16", [0x3F80], [ONE]) == bulk("sub.f32.f16", [0x4200], [ONE]) == [0x40000000]


# -- abs, neg, copysign -----------------------------------------------------------------------------------------------


def test_abs_neg_f32():
    (a,) = exact.tuples(F32, 1, 100, 10)

    def canonical(x):
        return F32.nan if F32.is_nan(x) else x

    agree("abs.f32", [a], lambda x: canonical(F32.magnitude(x)))
    agree("neg.f32", [a], lambda x: canonical(x ^ MINUS_ZERO))
    agree("abs.ftz.f32", [a], lambda x: canonical(F32.magnitude(F32.flush(x))))
    agree("neg.ftz.f32", [a], lambda x: canonical(F32.flush(x) ^ MINUS_ZERO))


def test_abs_neg_f64():
    (a,) = exact.tuples(F64, 1, 100, 11)
    agree("abs.f64", [a], lambda x: x | 1 << 51 if F64.is_nan(x) else F64.magnitude(x))
    agree("neg.f64", [a], lambda x: x | 1 << 51 if F64.is_nan(x) else x ^ F64.sign_bit)


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_copysign(t):
    """The sign of a on the value of b, NaN included."""
    fmt = FORMATS[t]
    agree(f"copysign.{t}", exact.tuples(fmt, 2, 100, 12),
          lambda a, b: fmt.magnitude(b) | (a & fmt.sign_bit))  # fmt: skip


# -- min, max ---------------------------------------------------------------------------------------------------------


def pick(fmt, op, a, b, propagate, nan):
    """PTX ISA, min and max: numbers before NaN, or NaN before numbers; -0 < +0."""
    if fmt.is_nan(a) or fmt.is_nan(b):
        if propagate or (fmt.is_nan(a) and fmt.is_nan(b)):
            return nan
        return b if fmt.is_nan(a) else a

    def order(x):
        return (-1 if fmt.negative(x) else 1) * fmt.magnitude(x) - (0.5 if x == fmt.sign_bit else 0)

    return min(a, b, key=order) if op == "min" else max(a, b, key=order)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("absolute", ["", ".xorsign.abs"])
def test_two_input_extremum(op, ftz, nan, absolute):
    def expected(a, b):
        sign = (a ^ b) & MINUS_ZERO
        if ftz:
            a, b = F32.flush(a), F32.flush(b)
        if absolute:
            a, b = F32.magnitude(a), F32.magnitude(b)
        result = pick(F32, op, a, b, bool(nan), F32.nan)
        return result | sign if absolute and not F32.is_nan(result) else result

    agree(f"{op}{ftz}{nan}{absolute}.f32", exact.tuples(F32, 2, 100, 13, limit=3000), expected)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("absolute", ["", ".abs"])
def test_three_input_extremum(op, ftz, nan, absolute):
    """A fold of the two-input operation, with .abs of the magnitudes."""

    def expected(*row):
        if ftz:
            row = map(F32.flush, row)
        if absolute:
            row = map(F32.magnitude, row)
        return functools.reduce(lambda a, b: pick(F32, op, a, b, bool(nan), F32.nan), row)

    agree(f"{op}{ftz}{nan}{absolute}.f32", exact.tuples(F32, 3, 200, 14, limit=2000), expected)


def test_three_input_max_by_hand():
    nan, two, minus_three = 0x7FC00000, 0x40000000, 0xC0400000
    assert bulk("max.f32", [nan, nan, ONE], [nan, ONE, two], [ONE, nan, minus_three]) == [ONE, ONE, two]
    assert bulk("max.NaN.f32", [ONE], [nan], [two]) == [F32.nan]
    assert bulk("max.abs.f32", [ONE], [two], [minus_three]) == [0x40400000]
    assert bulk("min.f32", [PLUS_ZERO], [MINUS_ZERO], [PLUS_ZERO]) == [MINUS_ZERO]


@pytest.mark.parametrize("op", ["min", "max"])
def test_extremum_f64(op):
    """Two NaN operands: the second, quieted."""
    agree(f"{op}.f64", exact.tuples(F64, 2, 200, 15, limit=2000),
          lambda a, b: pick(F64, op, a, b, False, b | 1 << 51))  # fmt: skip


def test_formats_here_are_not_those_of_the_package():
    """The reference formats are written down separately; that they describe the same bits is checked once."""
    from mxfp8fa.emulator.isa import rounding

    for ours, theirs in ((F16, rounding.F16), (BF16, rounding.BF16), (F32, rounding.F32), (F64, rounding.F64)):
        assert (ours.bits, ours.mantissa_bits, ours.bias) == (theirs.bits, theirs.mantissa_bits, theirs.bias)
        assert (ours.inf, ours.inf - 1) == (theirs.inf_code, theirs.max_code)
