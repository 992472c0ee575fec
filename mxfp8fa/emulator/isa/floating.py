"""Floating-point instructions with IEEE 754 results: PTX ISA 9.7.3 (f32, f64, f32x2) and 9.7.5 (mixed precision).

The plain functions (`sum_f32` ...) are the arithmetic; the definitions below them say how it is spelt. Approximate
instructions are in `approx.py`, half precision is in `half.py`.
"""

from __future__ import annotations

from functools import partial

from mxfp8fa.emulator.isa.packed import elementwise_shadow, per_single
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import (
    F32,
    F64,
    FORMAT_OF,
    ROUNDING,
    UNSIGNED_OF,
    canonical,
    directed_f64,
    encode,
    exact_zero,
    float_const,
    flush,
    inf_code,
    is_nan,
    is_tiny,
    magnitude_bits,
    nan_code,
    odd_sum,
    quiet,
    quiet_first,
    saturate,
    sign_bit,
    widen,
)
from mxfp8fa.emulator.values import Value, const, float_div, fma, fma_sign, select, sqrt

NAN_F32 = "NaN payloads: every NaN result is 0x7FFFFFFF (the ISA leaves the bits open)."
NAN_F64 = "Which NaN's payload survives is not documented; here as measured on an H200. A new NaN is 0xFFF8000000000000."
NAN_NEGATION = "NaN operands: the ISA leaves the result open. Here 0x7FFFFFFF, since ptxas emits an FADD."
NAN_NEGATION_F64 = "NaN operands: quieted, sign kept, as measured on an H200 (the ISA leaves neg open)."
TWO_NAN_F64 = "Two NaN operands: b, quieted (read from ptxas's code)."
PACKED = {"shadow": elementwise_shadow}


# -- f32 arithmetic ---------------------------------------------------------------------------------------------------


def finish(result: Value, ftz: bool, sat: bool, tiny: Value | None = None) -> Value:
    """The modifiers that apply to an f32 result: NaN made canonical, .sat, .ftz (where `tiny`; by default subnormals)."""
    result = saturate(result) if sat else canonical(result)
    if not ftz:
        return result
    return flush(result) if tiny is None else select(tiny, sign_bit(result), result.bits("u32")).bits("f32")


def to_f32(x: Value, rounding: str) -> Value:
    """x (f64, exact or rounded to odd) rounded to f32."""
    return encode(x, F32, rounding).to("u32").bits("f32")


def sum_f32(a: Value, b: Value, rounding: str, ftz: bool = False, sat: bool = False) -> Value:
    """a + b in f32."""
    if ftz:
        a, b = flush(a), flush(b)
    if rounding == "rn":
        return finish(a + b, ftz, sat)
    wide = odd_sum(a.to("f64"), b.to("f64"))
    negative = (sign_bit(a) | sign_bit(b)).ne(0)
    return finish(exact_zero(to_f32(wide, rounding), wide.eq(const(0, "f64")), negative, rounding), ftz, sat)


def product_f32(a: Value, b: Value, rounding: str, ftz: bool = False, sat: bool = False) -> Value:
    """a * b in f32."""
    if ftz:
        a, b = flush(a), flush(b)
    # The f64 product of two f32 numbers is exact: 48 bits, exponents within range.
    wide = a.to("f64") * b.to("f64")
    result = a * b if rounding == "rn" else to_f32(wide, rounding)
    return finish(result, ftz, sat, is_tiny(wide, F32, rounding))


def fused_f32(a: Value, b: Value, c: Value, rounding: str, ftz: bool = False, sat: bool = False) -> Value:
    """a * b + c in f32, rounded once."""
    if ftz:
        a, b, c = flush(a), flush(b), flush(c)
    product = a.to("f64") * b.to("f64")
    wide = odd_sum(product, c.to("f64"))
    if rounding == "rn":
        result = fma(a, b, c)
    else:
        negative = sign_bit(product).ne(0) | sign_bit(c).ne(0)
        result = exact_zero(to_f32(wide, rounding), wide.eq(const(0, "f64")), negative, rounding)
    return finish(result, ftz, sat, is_tiny(wide, F32, rounding))


def quotient_f32(a: Value, b: Value, rounding: str, ftz: bool = False) -> Value:
    """a / b in f32."""
    if ftz:
        a, b = flush(a), flush(b)
    # An f64 quotient of f32 numbers cannot round onto or across a number m of 25 bits unless it equals m: otherwise
    # |a - m b| is at least one unit of a 49-bit product, so the quotient is 2^-49 away from m, relatively.
    wide = float_div(a.to("f64"), b.to("f64"))
    result = float_div(a, b) if rounding == "rn" else to_f32(wide, rounding)
    return finish(result, ftz, False, is_tiny(wide, F32, rounding))


def root_f32(a: Value, rounding: str, ftz: bool = False) -> Value:
    """sqrt(a) in f32."""
    a = flush(a) if ftz else a
    # As for the quotient: |a - m^2| is at least 2^-48 a unless sqrt(a) = m.
    return finish(sqrt(a) if rounding == "rn" else to_f32(sqrt(a.to("f64")), rounding), ftz, False)


# -- f64 arithmetic ---------------------------------------------------------------------------------------------------


def fused_f64(a: Value, b: Value, c: Value, rounding: str) -> Value:
    """a * b + c in f64, rounded once, before NaN rules."""
    nearest = fma(a, b, c)
    if rounding == "rn":
        return nearest
    error = fma_sign(a, b, c, nearest)
    zero = const(0, "f64")
    is_zero = nearest.eq(zero) & error.eq(zero)
    negative = (sign_bit(a) ^ sign_bit(b)).ne(0) | sign_bit(c).ne(0)
    return directed_f64(exact_zero(nearest, is_zero, negative, rounding), error, rounding)


def sum_f64(a: Value, b: Value, rounding: str) -> Value:
    """a + b in f64, before NaN rules."""
    return a + b if rounding == "rn" else fused_f64(a, float_const(1.0, "f64"), b, rounding)


def product_f64(a: Value, b: Value, rounding: str) -> Value:
    """a * b in f64, before NaN rules."""
    nearest = a * b
    return nearest if rounding == "rn" else directed_f64(nearest, fma_sign(a, b, const(0, "f64"), nearest), rounding)


def quotient_f64(a: Value, b: Value, rounding: str) -> Value:
    """a / b in f64, before NaN rules."""
    nearest, zero = float_div(a, b), const(0, "f64")
    if rounding == "rn":
        return nearest
    remainder = fma_sign(-nearest, b, a, zero)  # the sign of a - nearest * b
    error = select(b < zero, -remainder, remainder)
    infinity = inf_code(F64)
    finite = (magnitude_bits(a) < infinity) & b.ne(zero)
    overflowed = magnitude_bits(nearest).eq(infinity) & finite
    return directed_f64(nearest, select(overflowed, -nearest, error), rounding)


def root_f64(a: Value, rounding: str) -> Value:
    """sqrt(a) in f64, before NaN rules."""
    nearest = sqrt(a)
    if rounding == "rn":
        return nearest
    return directed_f64(nearest, fma_sign(-nearest, nearest, a, const(0, "f64")), rounding)


# -- add, sub, mul, fma, mad ------------------------------------------------------------------------------------------


@pure("add{.rnd}{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDING, section="9.7.3 add", not_modelled=NAN_F32)
def add_f32(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a + b."""
    return sum_f32(a, b, rnd, ftz, sat)


@pure("sub{.rnd}{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDING, section="9.7.3 sub", not_modelled=NAN_F32)
def sub_f32(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a - b."""
    return sum_f32(a, -b, rnd, ftz, sat)


@pure("mul{.rnd}{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDING, section="9.7.3 mul", not_modelled=NAN_F32)
def mul_f32(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a * b."""
    return product_f32(a, b, rnd, ftz, sat)


@pure("fma.rnd{.ftz}{.sat}.f32 d, a, b, c", rnd=ROUNDING, section="9.7.3 fma", not_modelled=NAN_F32)
@pure("mad.rnd{.ftz}{.sat}.f32 d, a, b, c", rnd=ROUNDING, section="9.7.3 mad", not_modelled=NAN_F32)
def fma_f32(a: Value, b: Value, c: Value, *, rnd: str, ftz: bool = False, sat: bool = False) -> Value:
    """d = a * b + c, rounded once."""
    return fused_f32(a, b, c, rnd, ftz, sat)


@pure("add{.rnd}.f64 d, a, b", rnd=ROUNDING, section="9.7.3 add", not_modelled=NAN_F64)
def add_f64(a: Value, b: Value, *, rnd: str = "rn") -> Value:
    """d = a + b."""
    return quiet_first(sum_f64(a, b, rnd), b, a)


@pure("sub{.rnd}.f64 d, a, b", rnd=ROUNDING, section="9.7.3 sub", not_modelled=NAN_F64)
def sub_f64(a: Value, b: Value, *, rnd: str = "rn") -> Value:
    """d = a - b."""
    return quiet_first(sum_f64(a, -b, rnd), b, a)


@pure("mul{.rnd}.f64 d, a, b", rnd=ROUNDING, section="9.7.3 mul", not_modelled=NAN_F64)
def mul_f64(a: Value, b: Value, *, rnd: str = "rn") -> Value:
    """d = a * b."""
    return quiet_first(product_f64(a, b, rnd), b, a)


@pure("fma.rnd.f64 d, a, b, c", rnd=ROUNDING, section="9.7.3 fma", not_modelled=NAN_F64)
@pure("mad.rnd.f64 d, a, b, c", rnd=ROUNDING, section="9.7.3 mad", not_modelled=NAN_F64)
def fma_f64(a: Value, b: Value, c: Value, *, rnd: str) -> Value:
    """d = a * b + c, rounded once."""
    return quiet_first(fused_f64(a, b, c, rnd), b, c, a)


@pure("add{.rnd}{.ftz}.f32x2 d, a, b", rnd=ROUNDING, section="9.7.3 add", extra=PACKED, not_modelled=NAN_F32)
def add_f32x2(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False) -> Value:
    """d = a + b, for each of two f32."""
    return per_single(partial(sum_f32, rounding=rnd, ftz=ftz), a, b)


@pure("sub{.rnd}{.ftz}.f32x2 d, a, b", rnd=ROUNDING, section="9.7.3 sub", extra=PACKED, not_modelled=NAN_F32)
def sub_f32x2(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False) -> Value:
    """d = a - b, for each of two f32."""
    return per_single(lambda x, y: sum_f32(x, -y, rnd, ftz), a, b)


@pure("mul{.rnd}{.ftz}.f32x2 d, a, b", rnd=ROUNDING, section="9.7.3 mul", extra=PACKED, not_modelled=NAN_F32)
def mul_f32x2(a: Value, b: Value, *, rnd: str = "rn", ftz: bool = False) -> Value:
    """d = a * b, for each of two f32."""
    return per_single(partial(product_f32, rounding=rnd, ftz=ftz), a, b)


@pure("fma.rnd{.ftz}.f32x2 d, a, b, c", rnd=ROUNDING, section="9.7.3 fma", extra=PACKED, not_modelled=NAN_F32)
def fma_f32x2(a: Value, b: Value, c: Value, *, rnd: str, ftz: bool = False) -> Value:
    """d = a * b + c, rounded once, for each of two f32."""
    return per_single(partial(fused_f32, rounding=rnd, ftz=ftz), a, b, c)


# -- mixed precision --------------------------------------------------------------------------------------------------


def widened(a: Value, t: str) -> Value:
    """An f16 or bf16 operand as f32, exactly."""
    return widen(a.bits("u16"), FORMAT_OF[t])


@pure("add{.rnd}{.sat}.f32.atype d:f32, a:atype, b:f32", rnd=ROUNDING, atype=("f16", "bf16"), section="9.7.5 add",
      not_modelled=NAN_F32)  # fmt: skip
def add_mixed(a: Value, b: Value, *, atype: str, rnd: str = "rn", sat: bool = False) -> Value:
    """d = f32(a) + b, for a 16-bit a."""
    return sum_f32(widened(a, atype), b, rnd, sat=sat)


@pure("sub{.rnd}{.sat}.f32.atype d:f32, a:atype, b:f32", rnd=ROUNDING, atype=("f16", "bf16"), section="9.7.5 sub",
      not_modelled=NAN_F32)  # fmt: skip
def sub_mixed(a: Value, b: Value, *, atype: str, rnd: str = "rn", sat: bool = False) -> Value:
    """d = f32(a) - b, for a 16-bit a."""
    return sum_f32(widened(a, atype), -b, rnd, sat=sat)


@pure("fma.rnd{.sat}.f32.abtype d:f32, a:abtype, b:abtype, c:f32", rnd=ROUNDING, abtype=("f16", "bf16"),
      section="9.7.5 fma", not_modelled=NAN_F32)  # fmt: skip
def fma_mixed(a: Value, b: Value, c: Value, *, rnd: str, abtype: str, sat: bool = False) -> Value:
    """d = f32(a) * f32(b) + c, rounded once, for 16-bit a and b."""
    return fused_f32(widened(a, abtype), widened(b, abtype), c, rnd, sat=sat)


# -- div, rcp, sqrt with a rounding mode ------------------------------------------------------------------------------


@pure("div.rnd{.ftz}.f32 d, a, b", rnd=ROUNDING, section="9.7.3 div", not_modelled=NAN_F32)
def div_f32(a: Value, b: Value, *, rnd: str, ftz: bool = False) -> Value:
    """d = a / b."""
    return quotient_f32(a, b, rnd, ftz)


@pure("div.rnd.f64 d, a, b", rnd=ROUNDING, section="9.7.3 div", not_modelled=NAN_F64)
def div_f64(a: Value, b: Value, *, rnd: str) -> Value:
    """d = a / b."""
    return quiet_first(quotient_f64(a, b, rnd), a, b)


@pure("rcp.rnd{.ftz}.f32 d, a", rnd=ROUNDING, section="9.7.3 rcp", not_modelled=NAN_F32)
def rcp_f32(a: Value, *, rnd: str, ftz: bool = False) -> Value:
    """d = 1 / a."""
    return quotient_f32(float_const(1.0, "f32"), a, rnd, ftz)


@pure("rcp.rnd.f64 d, a", rnd=ROUNDING, section="9.7.3 rcp", not_modelled=NAN_F64)
def rcp_f64(a: Value, *, rnd: str) -> Value:
    """d = 1 / a."""
    return quiet_first(quotient_f64(float_const(1.0, "f64"), a, rnd), a)


@pure("sqrt.rnd{.ftz}.f32 d, a", rnd=ROUNDING, section="9.7.3 sqrt", not_modelled=NAN_F32)
def sqrt_f32(a: Value, *, rnd: str, ftz: bool = False) -> Value:
    """d = sqrt(a)."""
    return root_f32(a, rnd, ftz)


@pure("sqrt.rnd.f64 d, a", rnd=ROUNDING, section="9.7.3 sqrt", not_modelled=NAN_F64)
def sqrt_f64(a: Value, *, rnd: str) -> Value:
    """d = sqrt(a)."""
    return quiet_first(root_f64(a, rnd), a)


# -- abs, neg, copysign -----------------------------------------------------------------------------------------------


@pure("abs{.ftz}.f32 d, a", section="9.7.3 abs", not_modelled=NAN_NEGATION)
def abs_f32(a: Value, *, ftz: bool = False) -> Value:
    """d = |a|."""
    return finish(magnitude_bits(a).bits("f32"), ftz, False)


@pure("neg{.ftz}.f32 d, a", section="9.7.3 neg", not_modelled=NAN_NEGATION)
def neg_f32(a: Value, *, ftz: bool = False) -> Value:
    """d = -a."""
    return finish(-a, ftz, False)


@pure("abs.f64 d, a", section="9.7.3 abs", not_modelled=NAN_NEGATION_F64)
def abs_f64(a: Value) -> Value:
    """d = |a|; NaN passes, made quiet."""
    return select(is_nan(a), quiet(a), magnitude_bits(a).bits("f64"))


@pure("neg.f64 d, a", section="9.7.3 neg", not_modelled=NAN_NEGATION_F64)
def neg_f64(a: Value) -> Value:
    """d = -a; NaN passes, made quiet."""
    return select(is_nan(a), quiet(a), -a)


@pure("copysign.type d, a, b", type=("f32", "f64"), section="9.7.3 copysign", moves=("a", "b"))
def copysign(a: Value, b: Value, *, type: str) -> Value:
    """d = b with the sign bit of a."""
    return (magnitude_bits(b) | sign_bit(a)).bits(type)


# -- min, max ---------------------------------------------------------------------------------------------------------


def extremum(op: str, x: Value, y: Value, a: Value, b: Value, nan: Value, *, propagate: bool) -> Value:
    """min or max of two numbers given as bits (x, y) and as floats that compare alike (a, b), with -0 < +0.

    Args:
        op: min or max.
        x: unsigned bits of the first number.
        y: unsigned bits of the second; the result is one of the two.
        a: value of the first number.
        b: value of the second.
        nan: the result when both are NaN, and with `propagate` (.NaN) when one is; otherwise the number wins.
        propagate: the modifier .NaN.
    """
    first = a > b if op == "max" else a < b
    twins = x & y if op == "max" else x | y  # equal numbers have equal bits, except the two zeros
    best = select(first, x, select(a.eq(b), twins, y))  # with NaN: y
    if propagate:
        return select(is_nan(a) | is_nan(b), nan, best)
    return select(is_nan(b), select(is_nan(a), nan, x), best)


def extremum_f32(op: str, a: Value, b: Value, ftz: bool, propagate: bool) -> Value:
    """min or max of two f32."""
    if ftz:
        a, b = flush(a), flush(b)
    nan = const(nan_code(F32), "u32")
    return extremum(op, a.bits("u32"), b.bits("u32"), a, b, nan, propagate=propagate).bits("f32")


def with_sign(result: Value, sign: Value) -> Value:
    """result (f32), not negative, with the sign bits `sign` unless it is NaN (.xorsign)."""
    return select(is_nan(result), result, (result.bits(UNSIGNED_OF[result.type]) | sign).bits(result.type))


def _two(op: str, a: Value, b: Value, ftz: bool, NaN: bool, xorsign_abs: bool) -> Value:
    if not xorsign_abs:
        return extremum_f32(op, a, b, ftz, NaN)
    magnitudes = (magnitude_bits(a).bits("f32"), magnitude_bits(b).bits("f32"))
    return with_sign(extremum_f32(op, *magnitudes, ftz, NaN), sign_bit(a) ^ sign_bit(b))


def _three(op: str, a: Value, b: Value, c: Value, ftz: bool, NaN: bool, abs: bool) -> Value:
    if abs:
        a, b, c = (magnitude_bits(x).bits("f32") for x in (a, b, c))
    return extremum_f32(op, extremum_f32(op, a, b, ftz, NaN), c, ftz, NaN)


@pure("max{.ftz}{.NaN}{.xorsign.abs}.f32 d, a, b", section="9.7.3 max", not_modelled=NAN_F32)
def max_f32(a: Value, b: Value, *, ftz: bool = False, NaN: bool = False, xorsign_abs: bool = False) -> Value:
    """d = max(a, b), +0 > -0; a NaN operand loses, with .NaN it wins."""
    return _two("max", a, b, ftz, NaN, xorsign_abs)


@pure("min{.ftz}{.NaN}{.xorsign.abs}.f32 d, a, b", section="9.7.3 min", not_modelled=NAN_F32)
def min_f32(a: Value, b: Value, *, ftz: bool = False, NaN: bool = False, xorsign_abs: bool = False) -> Value:
    """d = min(a, b), -0 < +0; a NaN operand loses, with .NaN it wins."""
    return _two("min", a, b, ftz, NaN, xorsign_abs)


@pure("max{.ftz}{.NaN}{.abs}.f32 d, a, b, c", section="9.7.3 max", not_modelled=NAN_F32)
def max3_f32(a: Value, b: Value, c: Value, *, ftz: bool = False, NaN: bool = False, abs: bool = False) -> Value:
    """d = max(max(a, b), c), with .abs of the magnitudes."""
    return _three("max", a, b, c, ftz, NaN, abs)


@pure("min{.ftz}{.NaN}{.abs}.f32 d, a, b, c", section="9.7.3 min", not_modelled=NAN_F32)
def min3_f32(a: Value, b: Value, c: Value, *, ftz: bool = False, NaN: bool = False, abs: bool = False) -> Value:
    """d = min(min(a, b), c), with .abs of the magnitudes."""
    return _three("min", a, b, c, ftz, NaN, abs)


def _extremum_f64(op: str, a: Value, b: Value) -> Value:
    # ptxas 13.5 for sm_100a ends its sequence with b | quiet bit when both are NaN.
    nan = b.bits("u64") | (1 << (F64.mantissa_bits - 1))
    return extremum(op, a.bits("u64"), b.bits("u64"), a, b, nan, propagate=False).bits("f64")


@pure("max.f64 d, a, b", section="9.7.3 max", not_modelled=TWO_NAN_F64)
def max_f64(a: Value, b: Value) -> Value:
    """d = max(a, b), +0 > -0; a NaN operand loses."""
    return _extremum_f64("max", a, b)


@pure("min.f64 d, a, b", section="9.7.3 min", not_modelled=TWO_NAN_F64)
def min_f64(a: Value, b: Value) -> Value:
    """d = min(a, b), -0 < +0; a NaN operand loses."""
    return _extremum_f64("min", a, b)
