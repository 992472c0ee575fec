"""Approximate instructions (PTX ISA 9.7.3, 9.7.4), and the correct rounding of the functions behind them."""

import math
from decimal import Decimal

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import BF16, F32, F64, agree, bulk

from mxfp8fa.emulator import elementary

mpmath = pytest.importorskip("mpmath")
INF, NAN, ONE, MINUS = 0x7F800000, 0x7FFFFFFF, 0x3F800000, 0x80000000

FUNCTIONS = {
    "ex2": (elementary.exp2, lambda v: mpmath.power(2, v)),
    "lg2": (elementary.log2, lambda v: mpmath.log(v, 2)),
    "rsqrt": (elementary.rsqrt, lambda v: 1 / mpmath.sqrt(v)),
    "tanh": (elementary.tanh, mpmath.tanh),
    "sin": (elementary.sin, mpmath.sin),
    "cos": (elementary.cos, mpmath.cos),
}


@pytest.fixture(autouse=True)
def precise():
    """Enough digits for the reduction of the largest float32 by pi and 100 bits more."""
    with mpmath.workprec(300):
        yield


def rounded(value):
    """An mpmath number as float32 bits: the nearest, by comparing distances."""
    if value == 0:
        return 0
    guess = np.float32(float(value))
    if np.isinf(guess):
        half_beyond = mpmath.mpf(2) ** 128 - mpmath.mpf(2) ** 103
        guess = np.float32(np.copysign(np.inf if abs(value) >= half_beyond else np.finfo(np.float32).max, guess))
        return int(guess.view(np.uint32))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    best = min(near, key=lambda c: (abs(mpmath.mpf(float(c)) - value) if np.isfinite(c) else mpmath.inf))
    return int(np.float32(best).view(np.uint32)) & (0x7FFFFFFF if best == 0 else 0xFFFFFFFF)


def arguments(name):
    """Finite float32 where the function is interesting: its range, its zeros, its limits, tiny and huge numbers."""
    rng = np.random.default_rng(len(name))
    spread = rng.integers(0, INF, 600, dtype=np.uint32).view(np.float32)
    near_one = (1 + rng.normal(0, 1e-4, 300)).astype(np.float32)
    found = {
        "ex2": [rng.uniform(-150, 128, 900), rng.normal(0, 1, 300), spread],
        "lg2": [spread, near_one, rng.uniform(0, 10, 400)],
        "rsqrt": [spread, rng.uniform(0.25, 4, 600)],
        "tanh": [rng.uniform(-10, 10, 900), spread],
        "sin": [rng.uniform(-7, 7, 600), spread, np.arange(1, 60) * np.float32(math.pi)],
        "cos": [rng.uniform(-7, 7, 600), spread, (np.arange(1, 60) - 0.5) * np.float32(math.pi)],
    }[name]
    found = np.concatenate(found).astype(np.float32)
    subnormal = np.array([1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF], np.uint32).view(np.float32)
    found = np.concatenate([found, subnormal])
    return found if name in ("lg2", "rsqrt") else np.concatenate([found, -spread, -subnormal])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_correctly_rounded(name):
    function, true = FUNCTIONS[name]
    x = arguments(name)
    with np.errstate(all="ignore"):
        got = function(x)
    for argument, result in zip(x.tolist(), got, strict=True):
        value = mpmath.mpf(argument)
        if name == "ex2" and abs(value) > 200:
            want = INF if value > 0 else 0
        elif name == "tanh" and abs(value) > 50:
            want = ONE if value > 0 else ONE | MINUS
        else:
            want = rounded(true(value))
        got_bits = int(np.float32(result).view(np.uint32))
        assert got_bits == want, f"{name}({argument!r}): {got_bits:#x}, correctly rounded is {want:#x}"


def test_estimates_are_as_accurate_as_assumed():
    """elementary.py trusts NumPy's float64 functions to 8 ulps before it turns to exact arithmetic."""
    for name, estimate in (("lg2", np.log2), ("tanh", np.tanh), ("sin", np.sin), ("cos", np.cos)):
        x = arguments(name)[::2]
        for argument, value in zip(x.tolist(), estimate(x.astype(np.float64)), strict=True):
            true = FUNCTIONS[name][1](mpmath.mpf(argument))
            error = abs(mpmath.mpf(float(value)) - true)
            assert error <= 4 * 2.0**-52 * abs(true), f"{name}({argument!r})"


def test_exact_arithmetic_decides_alike(monkeypatch):
    """With the estimates declared worthless every result comes from decimals, and is the same."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(0.01, 9, 40), 10.0 ** rng.uniform(-6, 38, 20)]).astype(np.float32)
    for name in ("lg2", "rsqrt", "tanh", "sin", "cos"):
        function = FUNCTIONS[name][0]
        usual = function(x)
        monkeypatch.setattr(elementary, "_ULPS", 2.0**29)
        assert (function(x) == usual).all(), name
        monkeypatch.undo()


def test_close_calls_go_to_exact_arithmetic():
    """An estimate a few float64 ulps beside a tie must not decide; the exact value does."""
    tie, ulp = 1 + 2.0**-24, 2.0**-52
    x = np.ones(4, np.float32)
    estimate = np.array([tie + 3 * ulp, tie - 3 * ulp, tie + 3 * ulp, tie + 20 * ulp])
    crumb = Decimal(2) ** -90
    truth = iter([Decimal(tie) - crumb, Decimal(tie) + crumb, Decimal(tie) + crumb])
    result = elementary._correctly_rounded(x, estimate, lambda _: next(truth))
    above = float(np.nextafter(np.float32(1), np.float32(2)))
    assert result.tolist() == [1, above, above, above]  # the last one is far enough away to need no help


def test_rsqrt_over_two_binades():
    """Every mantissa in [1, 4): the result's two rounding boundaries enclose 1/sqrt(x), in exact integers.

    For a result r with neighbours' midpoints m the claim is m_low^2 x <= 1 <= m_high^2 x. With x = X 2^-23 and
    m = M 2^-25 (r in [1/2, 1] has 24 bits, midpoints 25) that compares M^2 X with 2^73, in two limbs of 64 bits.
    """
    for start in range(0, 1 << 24, 1 << 21):
        bits = (np.arange(start, start + (1 << 21), dtype=np.uint32) + ONE).astype(np.uint32)
        x = bits.view(np.float32)
        r = elementary.rsqrt(x)
        units = (x.astype(np.float64) * 2**23).astype(np.uint64)
        m = (r.astype(np.float64) * 2**25).astype(np.uint64)
        assert (m % 2 == 0).all()
        # Just below a power of two the spacing halves: r = 1 only for x = 1, where the result is exact.
        assert not _above_one(m - np.uint64(1), units).any()
        assert (_above_one(m + np.uint64(1), units)).all()


def _above_one(m, x):
    """Whether m^2 x > 2^73, for m < 2^26 and x < 2^25."""
    square = m * m
    high, low = square >> np.uint64(26), square & np.uint64((1 << 26) - 1)
    top = high * x + (low * x >> np.uint64(26))
    rest = low * x & np.uint64((1 << 26) - 1)
    limit = np.uint64(1 << (73 - 26))
    return (top > limit) | ((top == limit) & (rest > 0))


# -- the instructions -------------------------------------------------------------------------------------------------


SPECIALS = {  # PTX ISA tables: operand -> result
    "rcp.approx": {INF | MINUS: MINUS, MINUS: INF | MINUS, 0: INF, INF: 0},
    "sqrt.approx": {INF | MINUS: NAN, 0xBF800000: NAN, MINUS: MINUS, 0: 0, INF: INF},
    "rsqrt.approx": {INF | MINUS: NAN, 0xBF800000: NAN, MINUS: INF | MINUS, 0: INF, INF: 0},
    "sin.approx": {INF | MINUS: NAN, MINUS: MINUS, 0: 0, INF: NAN},
    "cos.approx": {INF | MINUS: NAN, MINUS: ONE, 0: ONE, INF: NAN},
    "lg2.approx": {INF | MINUS: NAN, 0xBF800000: NAN, MINUS: INF | MINUS, 0: INF | MINUS, INF: INF},
    "ex2.approx": {INF | MINUS: 0, MINUS: ONE, 0: ONE, INF: INF},
    "tanh.approx": {INF | MINUS: ONE | MINUS, MINUS: MINUS, 0: 0, INF: ONE},
}


@pytest.mark.parametrize("name", SPECIALS)
def test_special_values(name):
    """The ISA's tables; every NaN gives the canonical NaN; .ftz turns subnormal operands into zeros."""
    table = SPECIALS[name] | dict.fromkeys([0x7F800001, 0x7FC00000, 0xFFFFFFFF], NAN)
    for ftz in ("", ".ftz") if name != "tanh.approx" else ("",):
        assert bulk(f"{name}{ftz}.f32", list(table)) == list(table.values())
    if name != "tanh.approx":
        assert bulk(f"{name}.ftz.f32", [1, 0x007FFFFF, 1 | MINUS]) == [table[0], table[0], table[MINUS]]


@pytest.mark.parametrize("name", ["rcp", "sqrt"])
def test_rcp_and_sqrt_are_correctly_rounded(name):
    (a,) = exact.tuples(F32, 1, 1000, 1)

    def want(x, ftz=False):
        result = exact.div(F32, ONE, x, ftz=ftz) if name == "rcp" else exact.sqrt(F32, F32.flush(x) if ftz else x)
        return NAN if result is None else result

    agree(f"{name}.approx.f32", [a], want)
    agree(f"{name}.approx.ftz.f32", [a], lambda x: want(x, ftz=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_instruction_is_the_function(name):
    function = FUNCTIONS[name][0]
    x = arguments(name)
    with np.errstate(all="ignore"):
        want = function(x).view(np.uint32).tolist()
        flushed = function(np.array([F32.flush(b) for b in x.view(np.uint32).tolist()], np.uint32).view(np.float32))
    assert bulk(f"{name}.approx.f32", x.view(np.uint32)) == want
    if name != "tanh":
        assert bulk(f"{name}.approx.ftz.f32", x.view(np.uint32)) == [
            F32.flush(b) for b in flushed.view(np.uint32).tolist()
        ]


def test_ex2_by_hand():
    """Powers of two are exact, subnormal ones too; .ftz flushes them; 2^-150 is a tie and gives 0."""
    powers = np.array([0, 1, -1, 127, -126, -127, -149, -150, 128], np.float32).view(np.uint32)
    plain = [ONE, 0x40000000, 0x3F000000, 0x7F000000, 0x00800000, 0x00400000, 1, 0, INF]
    assert bulk("ex2.approx.f32", powers) == plain
    assert bulk("ex2.approx.ftz.f32", powers) == [F32.flush(x) for x in plain]


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_division(ftz):
    """div.full is the quotient; div.approx too, except for |b| > 2^126, where it is a * 0 (PTX ISA, div)."""
    flush = F32.flush if ftz else lambda x: x
    columns = exact.tuples(F32, 2, 500, 2, limit=2000)

    def quotient(a, b):
        result = exact.div(F32, a, b, ftz=bool(ftz))
        return NAN if result is None else result

    def approximate(a, b):
        if 0x7E800000 < F32.magnitude(b) <= INF:
            zero = exact.mul(F32, flush(a), b & MINUS)
            return NAN if zero is None else zero
        return quotient(a, b)

    agree(f"div.full{ftz}.f32", columns, quotient)
    agree(f"div.approx{ftz}.f32", columns, approximate)
    huge = [0x7E800000, 0x7E800001, 0x7F7FFFFF | MINUS]
    assert bulk(f"div.approx{ftz}.f32", [ONE, ONE, INF], huge) == [flush(0x00800000), 0, NAN]


def test_rsqrt_f64():
    """Within 1.5 ulp, specials as for f32."""
    (a,) = exact.tuples(F64, 1, 300, 3)
    for x, result in zip(a, bulk("rsqrt.approx.f64", a), strict=True):
        if F64.is_nan(x) or (F64.negative(x) and F64.magnitude(x)):
            assert F64.is_nan(result)
        elif F64.magnitude(x) == 0:
            assert result == F64.inf | x
        elif F64.is_inf(x):
            assert result == 0
        else:
            true = 1 / mpmath.sqrt(mpmath.mpf(F64.value(x).numerator) / F64.value(x).denominator)
            value = mpmath.mpf(F64.value(result).numerator) / F64.value(result).denominator
            assert abs(value - true) <= 1.5 * 2.0**-52 * true


@pytest.mark.parametrize("name", ["rcp", "rsqrt"])
def test_upper_word_f64(name):
    """From the upper 32 bits to the upper 32 bits; subnormals flushed, one canonical NaN (PTX ISA tables)."""
    nan, minus = 0x7FFFFFFF00000000, 1 << 63
    subnormal = 0x000FFFFF00000000
    table = {minus: F64.inf | minus, 0: F64.inf, subnormal: F64.inf, subnormal | minus: F64.inf | minus, F64.inf: 0}
    table |= {F64.inf | minus: minus if name == "rcp" else nan, F64.inf | 1 << 40: nan, F64.inf | 1: 0, 5: F64.inf}
    assert bulk(f"{name}.approx.ftz.f64", list(table)) == list(table.values())
    (a,) = exact.tuples(F64, 1, 300, 4)
    normal = [x for x in a if F64.min_normal <= F64.magnitude(x) < F64.inf and (name == "rcp" or not F64.negative(x))]
    for x, result in zip(normal, bulk(f"{name}.approx.ftz.f64", normal), strict=True):
        upper = F64.value(x >> 32 << 32)
        true = 1 / upper if name == "rcp" else 1 / mpmath.sqrt(mpmath.mpf(upper.numerator) / upper.denominator)
        assert result & 0xFFFFFFFF == 0
        if abs(true) < 2.0**-1022:
            assert F64.magnitude(result) == 0
        elif name == "rcp":
            assert abs(F64.value(result) / true - 1) <= 2.0**-21
        else:
            assert abs(float(F64.value(result)) / float(true) - 1) <= 2.0**-21 + 2.0**-52


# -- half precision ---------------------------------------------------------------------------------------------------


def half_floats(t):
    codes = np.arange(1 << 16, dtype=np.uint16)
    return codes.view(np.float16).astype(np.float32) if t == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(("name", "t"), [
    ("tanh.approx", "f16"), ("tanh.approx", "bf16"), ("ex2.approx", "f16"), ("ex2.approx.ftz", "bf16"),
])  # fmt: skip
def test_every_half(name, t):
    """The f32 function rounded to the element, on all codes; within the ISA's bounds; packed forms do both elements."""
    with np.errstate(all="ignore"):
        x = half_floats(t)
        ftz = name.endswith("ftz")
        flushed = np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x) if ftz else x
        result = (elementary.tanh if name.startswith("tanh") else elementary.exp2)(flushed)
        got = np.array(bulk(f"{name}.{t}", list(range(1 << 16))), np.uint16)
        value = half_floats(t)[got]
        error = np.abs(value.astype(np.float64) - result)
    nan = np.isnan(x)
    assert (got[nan] == 0x7FFF).all()
    bound, relative = {"f16": (2**-10.987, 2**-9.9), "bf16": (2**-8, 2**-7)}[t]
    finite = np.isfinite(value) & ~nan & (value >= (2.0**-126 if t == "bf16" else 2.0**-14))
    if name.startswith("tanh"):
        assert error[~nan].max() <= bound
    else:
        assert (error[finite] / result[finite]).max() <= relative
        assert (value[x >= 128] == np.inf).all()
    words = np.arange(1 << 16, dtype=np.uint32) << 16 | (np.arange(1 << 16, dtype=np.uint32) * 7 & 0xFFFF)
    packed = np.array(bulk(f"{name}.{t}x2", words), np.uint32)
    assert (packed >> 16 == got).all()
    assert (packed & 0xFFFF == got[words & 0xFFFF]).all()


@pytest.mark.parametrize(("name", "t", "table"), [
    ("ex2.approx.ftz", "bf16", {0xFF80: 0, 0x8001: 0x3F80, 0x8000: 0x3F80, 0: 0x3F80, 0x007F: 0x3F80, 0x7F80: 0x7F80}),
    ("ex2.approx", "f16", {0xFC00: 0, 0x8000: 0x3C00, 0: 0x3C00, 0x7C00: 0x7C00, 0xCC00: 0x0100}),
    ("tanh.approx", "f16", {0xFC00: 0xBC00, 0x8000: 0x8000, 0: 0, 0x7C00: 0x3C00, 1: 1}),
    ("tanh.approx", "bf16", {0xFF80: 0xBF80, 0x8000: 0x8000, 0: 0, 0x7F80: 0x3F80, 0x8001: 0x8001}),
])  # fmt: skip
def test_special_values_of_halves(name, t, table):
    """The ISA's tables; 2^-16 is a subnormal f16 and stays."""
    assert bulk(f"{name}.{t}", list(table)) == list(table.values())


def test_ex2_bf16_flushes_results():
    """2^-127 is a bf16 subnormal."""
    assert BF16.value(0xC2FE) == -127
    assert bulk("ex2.approx.ftz.bf16", [0xC2FE, 0xC2FC]) == [0, 0x0080]
