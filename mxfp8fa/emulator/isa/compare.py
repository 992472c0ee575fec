"""Comparison and selection: PTX ISA 9.7.6 (set, setp, selp, slct), 9.7.7 (half-precision set and setp), 9.7.3 testp.

Every comparison has two forms, with and without a Boolean operator that combines it with a predicate; `comparison`
declares both. Which combinations of types and .ftz exist was checked against ptxas 13.5 (PTX 9.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxfp8fa.emulator.isa.packed import halves, join
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import flush, magnitude_bits, widen
from mxfp8fa.emulator.values import Value, const, is_float, select, value_type
from mxfp8fa.numerics.formats import BF16

EQUALITY = ("eq", "ne")
ORDER = (*EQUALITY, "lt", "le", "gt", "ge")
UNSIGNED_ORDER = (*ORDER, "lo", "ls", "hi", "hs")
FLOAT_ORDER = (*ORDER, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOLEAN = ("and", "or", "xor")

RAW = ("b16", "b32", "b64")
UNSIGNED = ("u16", "u32", "u64")
SIGNED = ("s16", "s32", "s64")
ANY = (*RAW, *UNSIGNED, *SIGNED, "f32", "f64")

EXPONENT_BITS = {"f32": 0x7F800000, "f64": 0x7FF0000000000000}
TRUE_BITS = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}  # 1.0; integer destinations: all ones
PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}


def comparison(pattern: str, **keywords: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a comparison as it stands, and with .BoolOp after .CmpOp and a predicate c after the operands."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        combined = pattern.replace(".CmpOp", ".CmpOp.BoolOp") + ", c:pred"
        pure(combined, BoolOp=BOOLEAN, **keywords)(function)
        return pure(pattern, **keywords)(function)

    return declare


def relation(CmpOp: str, a: Value, b: Value) -> Value:
    """a CmpOp b, as a pred, for two integers or two floats of one type.

    eq ne lt le gt ge are false when an operand is NaN, their unordered namesakes (equ ...) are true.
    """
    if is_float(a.type):
        return _float_relation(CmpOp, a, b)
    order = UNSIGNED_NAMES.get(CmpOp, CmpOp)
    return {"eq": a.eq(b), "ne": a.ne(b), "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[order]


def _float_relation(CmpOp: str, a: Value, b: Value) -> Value:
    unordered = a.ne(a) | b.ne(b)
    if CmpOp in ("num", "nan"):
        return unordered if CmpOp == "nan" else ~unordered
    ordered = {"eq": a.eq(b), "ne": (a < b) | (a > b), "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return ordered[CmpOp] if CmpOp in ordered else ordered[CmpOp[:-1]] | unordered


def combine(t: Value, c: Value | None, BoolOp: str) -> Value:
    """t BoolOp c; t itself in the form without a Boolean operator."""
    if c is None:
        return t
    return {"and": t & c, "or": t | c, "xor": t ^ c}[BoolOp]


def compare(a: Value, b: Value, CmpOp: str, stype: str, ftz: bool) -> Value:
    """a CmpOp b for operands of PTX type stype, a bfloat16 widened, subnormals flushed if asked."""
    if stype == "bf16":
        a, b = widen(a, BF16), widen(b, BF16)
    if ftz:
        a, b = flush(a), flush(b)
    return relation(CmpOp, a, b)


def _truth(t: Value, dtype: str) -> Value:
    """What set writes: 1.0 or 0.0 in a float type, all ones or zero in an integer type."""
    carrier = value_type(dtype)
    return select(t, const(TRUE_BITS.get(dtype, -1), carrier), const(0, carrier))


@comparison("setp.CmpOp.type p:pred|q, a, b", CmpOp=EQUALITY, type=RAW, section="9.7.6 setp")
@comparison("setp.CmpOp.type p:pred|q, a, b", CmpOp=UNSIGNED_ORDER, type=UNSIGNED, section="9.7.6 setp")
@comparison("setp.CmpOp.type p:pred|q, a, b", CmpOp=ORDER, type=SIGNED, section="9.7.6 setp")
@comparison("setp.CmpOp{.ftz}.type p:pred|q, a, b", CmpOp=FLOAT_ORDER, type=("f32",), section="9.7.6 setp")
@comparison("setp.CmpOp.type p:pred|q, a, b", CmpOp=FLOAT_ORDER, type=("f64",), section="9.7.6 setp")
def setp(
    a: Value, b: Value, c: Value | None = None, *, CmpOp: str, type: str, BoolOp: str = "", ftz: bool = False
) -> tuple[Value, Value]:
    """p = t and q = !t, where t compares a with b; with a Boolean operator p = t op c and q = !t op c."""
    t = compare(a, b, CmpOp, type, ftz)
    return combine(t, c, BoolOp), combine(~t, c, BoolOp)


@comparison("setp.CmpOp{.ftz}.type p:pred, a, b", CmpOp=FLOAT_ORDER, type=("f16",), section="9.7.7 setp")
@comparison("setp.CmpOp.type p:pred, a, b", CmpOp=FLOAT_ORDER, type=("bf16",), section="9.7.7 setp")
def setp_half(
    a: Value, b: Value, c: Value | None = None, *, CmpOp: str, type: str, BoolOp: str = "", ftz: bool = False
) -> Value:
    """p = t, or t op c with a Boolean operator, where t compares a with b."""
    return combine(compare(a, b, CmpOp, type, ftz), c, BoolOp)


def _compare_halves(a: Value, b: Value, CmpOp: str, stype: str, ftz: bool) -> tuple[Value, Value]:
    """The comparison of element 0 and of element 1 of two packed operands."""
    element = PAIRS[stype]
    (a0, a1), (b0, b1) = halves(a, value_type(element)), halves(b, value_type(element))
    return compare(a0, b0, CmpOp, element, ftz), compare(a1, b1, CmpOp, element, ftz)


@comparison("setp.CmpOp{.ftz}.type p:pred|q, a, b", CmpOp=FLOAT_ORDER, type=("f16x2",), section="9.7.7 setp")
@comparison("setp.CmpOp.type p:pred|q, a, b", CmpOp=FLOAT_ORDER, type=("bf16x2",), section="9.7.7 setp")
def setp_half_x2(
    a: Value, b: Value, c: Value | None = None, *, CmpOp: str, type: str, BoolOp: str = "", ftz: bool = False
) -> tuple[Value, Value]:
    """p as for f16 and bf16, from element 0 of the operands; q the same from element 1."""
    low, high = _compare_halves(a, b, CmpOp, type, ftz)
    return combine(low, c, BoolOp), combine(high, c, BoolOp)


_SET = "set.CmpOp.dtype.stype d:dtype, a:stype, b:stype"
_SET_FTZ = "set.CmpOp{.ftz}.dtype.stype d:dtype, a:stype, b:stype"
_WIDE = ("u32", "s32", "f32", "f16", "bf16")
_NARROW = ("u16", "s16", "u32", "s32")


@comparison(_SET, CmpOp=EQUALITY, dtype=_WIDE, stype=RAW, section="9.7.6 and 9.7.7 set")
@comparison(_SET, CmpOp=UNSIGNED_ORDER, dtype=_WIDE, stype=UNSIGNED, section="9.7.6 and 9.7.7 set")
@comparison(_SET, CmpOp=ORDER, dtype=_WIDE, stype=SIGNED, section="9.7.6 and 9.7.7 set")
@comparison(_SET, CmpOp=FLOAT_ORDER, dtype=_WIDE, stype=("f64",), section="9.7.6 and 9.7.7 set")
@comparison(_SET_FTZ, CmpOp=FLOAT_ORDER, dtype=_WIDE[:-1], stype=("f32",), section="9.7.6 and 9.7.7 set")
@comparison(_SET, CmpOp=FLOAT_ORDER, dtype=("bf16",), stype=("f32", "f16"), section="9.7.7 set")
@comparison(_SET_FTZ, CmpOp=FLOAT_ORDER, dtype=(*_NARROW, "f16"), stype=("f16",), section="9.7.7 set")
@comparison(_SET, CmpOp=FLOAT_ORDER, dtype=(*_NARROW, "bf16"), stype=("bf16",), section="9.7.7 set")
def set_(
    a: Value, b: Value, c: Value | None = None, *,
    CmpOp: str, dtype: str, stype: str, BoolOp: str = "", ftz: bool = False,
) -> Value:  # fmt: skip
    """d = p of setp: true as 1.0 (float d) or all ones (integer d), false as zero."""
    return _truth(combine(compare(a, b, CmpOp, stype, ftz), c, BoolOp), dtype)


@comparison(_SET_FTZ, CmpOp=FLOAT_ORDER, dtype=("f16x2", "u32", "s32"), stype=("f16x2",), section="9.7.7 set")
@comparison(_SET, CmpOp=FLOAT_ORDER, dtype=("bf16x2", "u32", "s32"), stype=("bf16x2",), section="9.7.7 set")
def set_x2(
    a: Value, b: Value, c: Value | None = None, *,
    CmpOp: str, dtype: str, stype: str, BoolOp: str = "", ftz: bool = False,
) -> Value:  # fmt: skip
    """d = p of setp for each of two 16-bit elements: true as 1.0 (float d) or 0xFFFF (integer d), false as zero."""
    element = PAIRS.get(dtype, "u16")
    low, high = (_truth(combine(t, c, BoolOp), element) for t in _compare_halves(a, b, CmpOp, stype, ftz))
    return join(low, high).bits(value_type(dtype))


@pure("selp.type d, a, b, c:pred", type=ANY, section="9.7.6 selp", moves=("a", "b"))
def selp(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = a where c, else b."""
    return select(c, a, b)


@pure("slct.dtype.s32 d:dtype, a:dtype, b:dtype, c", dtype=ANY, section="9.7.6 slct", moves=("a", "b"))
@pure("slct{.ftz}.dtype.f32 d:dtype, a:dtype, b:dtype, c", dtype=ANY, section="9.7.6 slct", moves=("a", "b"))
def slct(a: Value, b: Value, c: Value, *, dtype: str, ftz: bool = False) -> Value:
    """d = a where c >= 0 (also -0.0), else b (also NaN)."""
    return select((flush(c) if ftz else c) >= 0, a, b)


@pure("testp.op.type p:pred, a", op=("finite", "infinite", "number", "notanumber", "normal", "subnormal"),
      type=("f32", "f64"), section="9.7.3 testp")  # fmt: skip
def testp(a: Value, *, op: str, type: str) -> Value:
    """p = whether a is finite, infinite, a number, NaN, normal (zero included), or subnormal."""
    magnitude, infinity = magnitude_bits(a), EXPONENT_BITS[a.type]
    zero, tiny = magnitude.eq(0), (magnitude & infinity).eq(0)
    return {
        "finite": magnitude < infinity,
        "infinite": magnitude.eq(infinity),
        "number": magnitude <= infinity,
        "notanumber": magnitude > infinity,
        "normal": zero | (~tiny & (magnitude < infinity)),
        "subnormal": tiny & ~zero,
    }[op]
