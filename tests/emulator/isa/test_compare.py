"""Comparisons and selections against Python's own comparison of the decoded numbers."""

import itertools
import math
import operator

import pytest
from scalar_lanes import EDGES, bf16, check, f16, f32, f64, number, rows_of, run

INTEGERS = ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"]
DECODE = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}
WIDTH_AND_MANTISSA = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}
PYTHON = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
BOOLEAN = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
FLOAT_OPS = [*PYTHON, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


def float_codes(t):
    """Zeros, ends of the subnormals and of the normals, ones, infinities and NaNs, of both signs."""
    width, mantissa = WIDTH_AND_MANTISSA[t]
    infinity = (1 << (width - 1)) - (1 << mantissa)
    one = infinity // 2 // (1 << mantissa) * (1 << mantissa)
    positive = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, infinity - 1, infinity, infinity + 1]
    positive += [infinity + (1 << (mantissa - 1)), (1 << (width - 1)) - 1]
    return positive + [x | 1 << (width - 1) for x in positive]


def compare_floats(op, x, y):
    """PTX ISA: ordered operators are false when either is NaN, unordered ones true."""
    nan = math.isnan(x) or math.isnan(y)
    if op in ("num", "nan"):
        return nan == (op == "nan")
    if op in PYTHON:
        return not nan and PYTHON[op](x, y)
    return nan or PYTHON[op[:-1]](x, y)


def flushed(x, t):
    """The number of a code with subnormals taken as zero."""
    width, mantissa = WIDTH_AND_MANTISSA[t]
    value, exponent = DECODE[t](x), (x & ~(1 << (width - 1))) >> mantissa
    return value if exponent else math.copysign(0.0, value)


def integer_operators(t):
    if t[0] == "b":
        return ["eq", "ne"]
    return [*PYTHON, "lo", "ls", "hi", "hs"] if t[0] == "u" else list(PYTHON)


def compare_integers(op, x, y):
    return PYTHON[{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(op, op)](x, y)


def test_decoding_in_this_file():
    """The hand-made codes mean what their names say."""
    codes = float_codes("f16")
    assert [f16(c) for c in codes[:9]][:8] == [0, 2**-24, 2**-14 - 2**-24, 2**-14, 1, 1 + 2**-10, 65504, math.inf]
    assert all(math.isnan(f16(c)) for c in codes[8:11])
    assert bf16(float_codes("bf16")[4]) == 1 and f32(float_codes("f32")[4]) == 1 and f64(float_codes("f64")[4]) == 1


@pytest.mark.parametrize("t", INTEGERS)
def test_setp_integers(t):
    n = int(t[1:])
    rows = rows_of([n, n], 30, seed=1) + [(x, x) for x in EDGES[n]]
    for op in integer_operators(t):

        def result(a, b, op=op):
            return compare_integers(op, number(a, t), number(b, t))

        check(f"setp.{op}.{t}", rows, lambda a, b, f=result: (f(a, b), not f(a, b)))


@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_setp_floats(op, t):
    rows = list(itertools.product(float_codes(t), repeat=2))
    decode = DECODE[t]
    check(f"setp.{op}.{t}", rows, lambda a, b: (r := compare_floats(op, decode(a), decode(b)), not r))
    if t == "f32":
        zero = lambda x: flushed(x, t)  # noqa: E731
        check(f"setp.{op}.ftz.f32", rows, lambda a, b: (r := compare_floats(op, zero(a), zero(b)), not r))


@pytest.mark.parametrize("t", ["f16", "bf16"])
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_setp_half(op, t):
    rows = list(itertools.product(float_codes(t), repeat=2))
    check(f"setp.{op}.{t}", rows, lambda a, b: compare_floats(op, DECODE[t](a), DECODE[t](b)))
    if t == "f16":
        check(f"setp.{op}.ftz.f16", rows, lambda a, b: compare_floats(op, flushed(a, t), flushed(b, t)))


def packed_rows(t):
    """Pairs of packed operands whose two elements walk through different combinations."""
    pairs = list(itertools.product(float_codes(t), repeat=2))
    shifted = pairs[7:] + pairs[:7]
    return [(a0 | a1 << 16, b0 | b1 << 16) for (a0, b0), (a1, b1) in zip(pairs, shifted, strict=True)]


@pytest.mark.parametrize("t", ["f16", "bf16"])
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_packed_half_comparisons(op, t):
    one = {"f16": 0x3C00, "bf16": 0x3F80}[t]
    for ftz in [False, True] if t == "f16" else [False]:

        def elements(a, b, ftz=ftz):
            decode = (lambda x: flushed(x, t)) if ftz else DECODE[t]
            return tuple(compare_floats(op, decode(a >> s & 0xFFFF), decode(b >> s & 0xFFFF)) for s in (0, 16))

        def packed(a, b, true, f=elements):
            low, high = f(a, b)
            return (true if low else 0) | (true if high else 0) << 16

        suffix = ".ftz" if ftz else ""
        check(f"setp.{op}{suffix}.{t}x2", packed_rows(t), elements)
        check(f"set.{op}{suffix}.{t}x2.{t}x2", packed_rows(t), lambda a, b, f=packed: f(a, b, one))
        check(f"set.{op}{suffix}.u32.{t}x2", packed_rows(t), lambda a, b, f=packed: f(a, b, 0xFFFF))
        check(f"set.{op}{suffix}.s32.{t}x2", packed_rows(t), lambda a, b, f=packed: f(a, b, 0xFFFF))


@pytest.mark.parametrize("combine", BOOLEAN)
def test_boolean_operator(combine):
    f = BOOLEAN[combine]
    truth = [(x, y, c) for x in (3, 4) for y in (3, 4) for c in (False, True)]
    check(f"setp.lt.{combine}.s32", truth, lambda a, b, c: (f(a < b, c), f(not a < b, c)))
    check(f"set.ge.{combine}.u32.u32", truth, lambda a, b, c: 0xFFFFFFFF if f(a >= b, c) else 0)
    floats = [(x, y, c) for x in (0x3F80, 0x7FC0) for y in (0x3F80, 0x4000) for c in (False, True)]
    check(f"setp.leu.{combine}.bf16", floats, lambda a, b, c: f(compare_floats("leu", bf16(a), bf16(b)), c))
    wide = [(x << 16 | 0x3F80, y << 16 | 0x4000, c) for x, y, c in floats]
    high = lambda a, b: compare_floats("eq", bf16(a >> 16), bf16(b >> 16))  # noqa: E731
    check(f"setp.eq.{combine}.bf16x2", wide, lambda a, b, c: (f(False, c), f(high(a, b), c)))
    ones = lambda low, high: 0x3F80 * low + (0x3F80 << 16) * high  # noqa: E731
    check(f"set.eq.{combine}.bf16x2.bf16x2", wide, lambda a, b, c: ones(f(False, c), f(high(a, b), c)))


TRUE = {"u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF}
TRUE |= {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
SET_FORMS = [(d, s, False) for d in ("u32", "s32", "f32", "f16", "bf16") for s in ("f64", *INTEGERS)]
SET_FORMS += [(d, "f32", ftz) for d in ("u32", "s32", "f32", "f16") for ftz in (False, True)]
SET_FORMS += [(d, "f16", ftz) for d in ("u16", "s16", "u32", "s32", "f16") for ftz in (False, True)]
SET_FORMS += [(d, "bf16", False) for d in ("u16", "s16", "u32", "s32", "bf16")]
SET_FORMS += [("bf16", "f32", False), ("bf16", "f16", False)]


@pytest.mark.parametrize("dtype, stype, ftz", SET_FORMS)
def test_set(dtype, stype, ftz):
    if stype in DECODE:
        rows = list(itertools.product(float_codes(stype)[::2], repeat=2))
        decode = (lambda x: flushed(x, stype)) if ftz else DECODE[stype]
        operators, compare = ["eq", "ne", "lt", "geu", "nan"], compare_floats
    else:
        rows = rows_of([int(stype[1:])] * 2, 4, seed=2)[::2]
        decode = lambda x: number(x, stype)  # noqa: E731
        operators, compare = integer_operators(stype), compare_integers
    for op in operators:
        mnemonic = f"set.{op}{'.ftz' * ftz}.{dtype}.{stype}"
        check(mnemonic, rows, lambda a, b, op=op: TRUE[dtype] if compare(op, decode(a), decode(b)) else 0)


@pytest.mark.parametrize("t", [*INTEGERS, "f32", "f64"])
def test_selp_and_slct_move_bits(t):
    n = int(t[1:])
    nan_like = (1 << n) - 2  # a NaN with a payload in the float types: must come through unchanged
    values = [(nan_like, 5), (5, nan_like), (0, (1 << n) - 1)]
    check(f"selp.{t}", [(a, b, p) for a, b in values for p in (False, True)], lambda a, b, p: a if p else b)
    signs = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    check(f"slct.{t}.s32", [(a, b, c) for a, b in values for c in signs], lambda a, b, c: b if c >> 31 else a)
    floats = [(a, b, c) for a, b in values for c in float_codes("f32")]
    check(f"slct.{t}.f32", floats, lambda a, b, c: a if f32(c) >= 0 else b)  # -0.0 >= 0, and NaN is not
    check("slct.ftz." + t + ".f32", floats, lambda a, b, c: a if flushed(c, "f32") >= 0 else b)


def test_slct_flushes_a_negative_subnormal_to_minus_zero():
    assert run("slct.u32.f32", [(1, 2, 0x80000001)]) == [2]
    assert run("slct.ftz.u32.f32", [(1, 2, 0x80000001)]) == [1]


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_testp(t):
    smallest_normal = {"f32": 2.0**-126, "f64": 2.0**-1022}[t]
    properties = {
        "finite": math.isfinite,
        "infinite": math.isinf,
        "number": lambda x: not math.isnan(x),
        "notanumber": math.isnan,
        "normal": lambda x: math.isfinite(x) and (x == 0 or abs(x) >= smallest_normal),
        "subnormal": lambda x: 0 < abs(x) < smallest_normal,
    }
    for name, holds in properties.items():
        check(f"testp.{name}.{t}", [(c,) for c in float_codes(t)], lambda a, f=holds: f(DECODE[t](a)))


@pytest.mark.parametrize(
    "mnemonic", ["setp.lt.b32", "setp.lo.s32", "setp.equ.u32", "setp.eq.ftz.f64", "setp.eq.ftz.bf16", "set.eq.u16.u16",
                 "set.eq.f16.bf16", "set.eq.ftz.bf16.f32", "set.eq.f32.f16", "selp.f16", "testp.finite.f16"]
)  # fmt: skip
def test_forms_that_ptxas_refuses_on_sm_100_have_no_definition(mnemonic):
    with pytest.raises(ValueError, match="not a pure instruction"):
        run(mnemonic, [(1,) * {"selp": 3, "test": 1}.get(mnemonic[:4], 2)])
