"""f16 and bf16 arithmetic, scalar and packed: PTX ISA 9.7.4, against exact fractions and, in bulk, NumPy."""

import itertools
import zlib

import exact_floats as exact
import numpy as np
import pytest
from exact_floats import BF16, F16, FORMATS, agree, bulk

EVERY = list(range(1 << 16))
NAN = 0x7FFF
TYPES = ("f16", "bf16")
OPERATIONS = {"add": (2, exact.add), "mul": (2, exact.mul), "fma.rn": (3, exact.fma)}


def flags(t):
    """Spellings of the arithmetic modifiers a type has."""
    return ("", ".ftz", ".sat", ".ftz.sat") if t == "f16" else ("",)


def expected(function, fmt, row, modifiers):
    """An arithmetic result with .ftz, .sat and .relu, as bits."""
    result = function(fmt, *row, ftz=".ftz" in modifiers)
    if ".sat" in modifiers:
        result = 0 if result is None or fmt.negative(result) else min(result, fmt.one)
    if result is None:
        return NAN
    return 0 if ".relu" in modifiers and fmt.negative(result) else result


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic(op, t):
    operands, function = OPERATIONS[op]
    fmt = FORMATS[t]
    columns = exact.tuples(fmt, operands, 600, zlib.crc32(f"{op} {t}".encode()), limit=1500)
    for modifiers in flags(t):
        agree(f"{op}{modifiers}.{t}", columns, lambda *row, m=modifiers: expected(function, fmt, row, m))
    if op == "fma.rn":
        for modifiers in (".relu", ".ftz.relu")[: 2 if t == "f16" else 1]:
            agree(f"{op}{modifiers}.{t}", columns, lambda *row, m=modifiers: expected(function, fmt, row, m))
    else:
        assert bulk(f"{op}.rn.{t}", *columns) == bulk(f"{op}.{t}", *columns)


@pytest.mark.parametrize("t", TYPES)
def test_sub(t):
    fmt = FORMATS[t]
    columns = exact.tuples(fmt, 2, 300, 1, limit=1500)
    for modifiers in flags(t):
        agree(f"sub{modifiers}.{t}", columns,
              lambda a, b, m=modifiers: expected(exact.add, fmt, (a, b ^ fmt.sign_bit), m))  # fmt: skip


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_f16_against_numpy_on_every_first_operand(op):
    """Sums and products of two f16 are exact in float64, so NumPy's cast to float16 rounds once."""
    seconds = [0x0000, 0x8001, 0x03FF, 0x0400, 0x3555, 0x3C01, 0xC800, 0x7BFF, 0xFC00]
    a = np.arange(1 << 16, dtype=np.uint16)
    x = a.view(np.float16).astype(np.float64)
    for b in seconds:
        y = np.float64(np.uint16(b).view(np.float16))
        with np.errstate(all="ignore"):
            exactly = {"add": x + y, "sub": x - y, "mul": x * y}[op]
            want = np.where(np.isnan(exactly), np.uint16(NAN), exactly.astype(np.float16).view(np.uint16))
        got = np.array(bulk(f"{op}.f16", EVERY, [b] * len(EVERY)), np.uint16)
        assert (got == want).all(), f"{op} {hex(b)}: first difference at {hex(np.argmax(got != want))}"


def test_fma_where_rounding_twice_differs():
    """A product half way between two bf16 plus a crumb that float64 cannot hold beside it."""
    a, b, crumb = 0x3F88, 0x4288, 0x0D80  # 1.0625 * 68 = 72.25: half way between 72 and 72.5
    assert (BF16.value(a) * BF16.value(b), BF16.value(crumb)) == (72.25, 2.0**-100)
    assert bulk("fma.rn.bf16", [a], [b], [0]) == [0x4290]
    assert bulk("fma.rn.bf16", [a], [b], [crumb]) == [0x4291]
    assert bulk("fma.rn.bf16", [a], [b], [crumb | 0x8000]) == [0x4290]


def test_bf16_products_around_the_smallest_subnormal():
    """All mantissas, products from 2^-135 to 2^-131, where bf16 keeps at most three bits of them."""
    first = [BF16.one - (66 << 7) + m for m in range(128)]
    rows = [(a, BF16.one - (e << 7) + m) for a in first for e in (66, 68, 69) for m in range(0, 128, 5)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    agree("mul.bf16", columns, lambda x, y: expected(exact.mul, BF16, (x, y), ""))


def test_ftz_looks_at_the_result_with_endless_exponents():
    """Half an ulp below 2^-14 is flushed although the subnormal grid rounds it up (measured on an H200)."""
    a = [0x0E01, 0x9A01, 0x8B87]
    b = [0x3154, 0x2554, 0x3440]
    assert bulk("mul.f16", a, b) == [0x0400, 0x8400, 0x8400]
    assert bulk("mul.ftz.f16", a, b) == [0x0000, 0x8000, 0x8000]
    assert bulk("fma.rn.ftz.f16", [0x1022], [0x9021], [0x0404]) == [0]


@pytest.mark.parametrize("t", TYPES)
def test_neg_abs_on_every_code(t):
    fmt = FORMATS[t]
    for modifiers in ("", ".ftz") if t == "f16" else ("",):
        flush = fmt.flush if modifiers else lambda x: x
        agree(f"neg{modifiers}.{t}", [EVERY], lambda x, f=flush: NAN if fmt.is_nan(x) else f(x) ^ 0x8000)
        agree(f"abs{modifiers}.{t}", [EVERY], lambda x, f=flush: NAN if fmt.is_nan(x) else f(x) & 0x7FFF)


def pick(fmt, op, a, b, propagate):
    """PTX ISA, half-precision min and max."""
    if fmt.is_nan(a) or fmt.is_nan(b):
        if propagate or (fmt.is_nan(a) and fmt.is_nan(b)):
            return NAN
        return b if fmt.is_nan(a) else a

    def order(x):
        return (-1 if fmt.negative(x) else 1) * fmt.magnitude(x) - (0.5 if x == fmt.sign_bit else 0)

    return min(a, b, key=order) if op == "min" else max(a, b, key=order)


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("absolute", ["", ".xorsign.abs"])
def test_extremum(absolute, nan, op, t):
    fmt = FORMATS[t]
    columns = exact.tuples(fmt, 2, 300, 3, limit=3000)
    for ftz in ("", ".ftz") if t == "f16" else ("",):

        def want(a, b, ftz=ftz):
            sign = (a ^ b) & 0x8000
            if absolute:
                a, b = a & 0x7FFF, b & 0x7FFF
            if ftz:
                a, b = fmt.flush(a), fmt.flush(b)
            result = pick(fmt, op, a, b, bool(nan))
            return result | sign if absolute and not fmt.is_nan(result) else result

        agree(f"{op}{ftz}{nan}{absolute}.{t}", columns, want)


BINARY = [f"{op}{m}" for op in ("add", "sub", "mul") for m in ("", ".rn")] + ["min", "max.NaN", "min.xorsign.abs"]
PACKED = (
    [(name, t, 2) for name, t in itertools.product(BINARY, TYPES)]
    + [("add.ftz.sat", "f16", 2), ("mul.rn.ftz", "f16", 2), ("max.ftz", "f16", 2), ("neg.ftz", "f16", 1)]
    + [(name, t, 1) for name, t in itertools.product(("neg", "abs"), TYPES)]
    + [(name, t, 3) for name, t in itertools.product(("fma.rn", "fma.rn.relu"), TYPES)]
    + [("fma.rn.ftz.sat", "f16", 3), ("fma.rn.ftz.relu", "f16", 3)]
)


@pytest.mark.parametrize(("name", "t", "operands"), PACKED)
def test_packed_is_two_independent_elements(name, t, operands):
    """Element 0 in the low 16 bits; different numbers in the two elements, so that a swap shows."""
    low, high = (exact.tuples(FORMATS[t], operands, 200, seed, limit=300) for seed in (4, 5))
    elements = [bulk(f"{name}.{t}", *columns) for columns in (low, high)]
    words = [[lo | hi << 16 for lo, hi in zip(*c, strict=True)] for c in zip(low, high, strict=True)]
    assert bulk(f"{name}.{t}x2", *words) == [lo | hi << 16 for lo, hi in zip(*elements, strict=True)]


def test_relu_of_special_results():
    """Negative results, -0 and -infinity give +0; NaN stays NaN (PTX ISA, fma .relu)."""
    rows = ([0xBC00, 0x8000, 0xFC00, 0x7E01, 0x3C00], [0x3C00] * 5, [0, 0x8000, 0, 0, 0])
    assert bulk("fma.rn.relu.f16", *rows) == [0, 0, 0, NAN, 0x3C00]


def test_ml_dtypes_agrees_on_bf16_sums():
    """ml_dtypes computes bfloat16 sums in float32 and rounds, which for sums comes to one rounding."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << 16, (2, 20000), dtype=np.uint16)
    with np.errstate(all="ignore"):
        total = a.view(ml_dtypes.bfloat16) + b.view(ml_dtypes.bfloat16)
    want = np.where(np.isnan(total.astype(np.float32)), np.uint16(NAN), total.view(np.uint16))
    assert bulk("add.bf16", a, b) == want.tolist()


def test_f16_reference_agrees_with_numpy():
    finite = [x for x in EVERY if not F16.is_nan(x) and not F16.is_inf(x)]
    values = np.array(finite, np.uint16).view(np.float16).astype(np.float64)
    assert [float(F16.value(x)) for x in finite] == values.tolist()
    assert [F16.round(F16.value(x), "rn", F16.negative(x)) for x in finite[::7]] == finite[::7]
