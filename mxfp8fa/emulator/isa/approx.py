"""Approximate instructions: rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh, div (PTX ISA 9.7.3 and 9.7.4).

NVIDIA documents error bounds and special values of these, not their bits. Where a correctly rounded result lies within
the bounds, and it always does, that is what they give here; an exactly specified part (special values, flushed inputs
and results) follows the ISA.
"""

from __future__ import annotations

from collections.abc import Callable

from mxfp8fa.emulator.isa.floating import finish, quotient_f32
from mxfp8fa.emulator.isa.half import BF16_TYPES, F16_TYPES, arithmetic, flush_code, format_of, per_element, rounded
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import (
    F64,
    canonical,
    float_const,
    flush,
    inf_code,
    magnitude_bits,
    quiet_first,
    sign_bit,
    widen,
)
from mxfp8fa.emulator.values import Value, const, cos, exp2, float_div, log2, rsqrt, select, sin, sqrt, tanh

BITS = "The hardware's bits (not published): the correctly rounded result, within the documented error bound."
HALF_BITS = "The hardware's bits (not published): the correctly rounded f32 result, rounded to the element type."
UPPER_BITS = "The hardware's bits: here rounded to nearest."
UPPER_NAN = 0x7FFFFFFF00000000  # PTX ISA, rcp.approx.ftz.f64: the canonical NaN


def unary(function: Callable[[Value], Value], a: Value, ftz: bool) -> Value:
    """function of an f32 operand, with .ftz on both sides."""
    return finish(function(flush(a) if ftz else a), ftz, False)


@pure("rcp.approx{.ftz}.f32 d, a", section="9.7.3 rcp", not_modelled=BITS)
def rcp_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = 1 / a, within 1 ulp."""
    return quotient_f32(float_const(1.0, "f32"), a, "rn", ftz)


@pure("sqrt.approx{.ftz}.f32 d, a", section="9.7.3 sqrt", not_modelled=BITS)
def sqrt_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = sqrt(a), with a relative error of at most 2^-23."""
    return unary(sqrt, a, ftz)


@pure("rsqrt.approx{.ftz}.f32 d, a", section="9.7.3 rsqrt", not_modelled=BITS)
def rsqrt_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = 1 / sqrt(a), with a relative error of at most 2^-22.9; -inf for -0."""
    return unary(rsqrt, a, ftz)


@pure("sin.approx{.ftz}.f32 d, a", section="9.7.3 sin",
      not_modelled=f"{BITS} The hardware is far less accurate outside [-100 pi, 100 pi].")  # fmt: skip
def sin_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = sin(a), with an absolute error of at most 2^-20.5 in [-2 pi, 2 pi]."""
    return unary(sin, a, ftz)


@pure("cos.approx{.ftz}.f32 d, a", section="9.7.3 cos",
      not_modelled=f"{BITS} The hardware is far less accurate outside [-100 pi, 100 pi].")  # fmt: skip
def cos_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = cos(a), with an absolute error of at most 2^-20.4 in [-2 pi, 2 pi]."""
    return unary(cos, a, ftz)


@pure("lg2.approx{.ftz}.f32 d, a", section="9.7.3 lg2", not_modelled=BITS)
def lg2_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = log2(a), with an error of at most 2^-22 (absolute in (0.5, 2), relative elsewhere)."""
    return unary(log2, a, ftz)


@pure("ex2.approx{.ftz}.f32 d, a", section="9.7.3 ex2", not_modelled=BITS)
def ex2_approx(a: Value, *, ftz: bool = False) -> Value:
    """d = 2^a, within 2 ulp."""
    return unary(exp2, a, ftz)


@pure("tanh.approx.f32 d, a", section="9.7.3 tanh", not_modelled=f"{BITS} That bound is only 2^-11.")
def tanh_approx(a: Value) -> Value:
    """d = tanh(a), with a relative error of at most 2^-11."""
    return unary(tanh, a, ftz=False)


# -- division ---------------------------------------------------------------------------------------------------------


@pure("div.approx{.ftz}.f32 d, a, b", section="9.7.3 div",
      not_modelled=f"{BITS} For |b| below 2^-126 without .ftz the ISA gives no bound.")  # fmt: skip
def div_approx(a: Value, b: Value, *, ftz: bool = False) -> Value:
    """d = a * (1 / b), within 2 ulp for |b| in [2^-126, 2^126]; beyond that a * 0."""
    beyond = magnitude_bits(b).bits("f32") > float_const(2.0**126, "f32")
    return select(beyond, canonical((flush(a) if ftz else a) * sign_bit(b).bits("f32")), quotient_f32(a, b, "rn", ftz))


@pure("div.full{.ftz}.f32 d, a, b", section="9.7.3 div", not_modelled=BITS)
def div_full(a: Value, b: Value, *, ftz: bool = False) -> Value:
    """d = a / b, within 2 ulp over the full range."""
    return quotient_f32(a, b, "rn", ftz)


# -- f64 --------------------------------------------------------------------------------------------------------------


@pure("rsqrt.approx.f64 d, a", section="9.7.3 rsqrt",
      not_modelled="The library's bits: 1 / sqrt(a) with two roundings, within 1.5 ulp.")  # fmt: skip
def rsqrt_approx_f64(a: Value) -> Value:
    """d = 1 / sqrt(a)."""
    return quiet_first(float_div(float_const(1.0, "f64"), sqrt(a)), a)


def _upper_word(function: Callable[[Value], Value], a: Value) -> Value:
    """function of a's upper 32 bits as an f64 with 20 mantissa bits, rounded to the same; subnormals flushed."""
    low = (1 << 32) - 1
    result = function(flush((a.bits("u64") & ~low).bits("f64"))).bits("u64")
    nearest = flush(((result + (1 << 31)) & ~low).bits("f64"))
    nan = magnitude_bits(result.bits("f64")) > inf_code(F64)
    return select(nan, const(UPPER_NAN, "f64"), nearest)


@pure("rcp.approx.ftz.f64 d, a", section="9.7.3 rcp.approx.ftz.f64", not_modelled=UPPER_BITS)
def rcp_approx_f64(a: Value) -> Value:
    """d = 1 / a from and to the upper 32 bits, the lower ones zero; subnormals flushed, NaN canonical."""
    return _upper_word(lambda x: float_div(float_const(1.0, "f64"), x), a)


@pure("rsqrt.approx.ftz.f64 d, a", section="9.7.3 rsqrt.approx.ftz.f64", not_modelled=UPPER_BITS)
def rsqrt_approx_ftz_f64(a: Value) -> Value:
    """d = 1 / sqrt(a) from and to the upper 32 bits, the lower ones zero; subnormals flushed, NaN canonical."""
    return _upper_word(lambda x: float_div(float_const(1.0, "f64"), sqrt(x)), a)


# -- half precision ---------------------------------------------------------------------------------------------------


def _half(function: Callable[[Value], Value], a: Value, type: str, ftz: bool = False) -> Value:
    fmt = format_of(type)
    return per_element(type, lambda x: rounded(function(widen(flush_code(x, fmt) if ftz else x, fmt)), fmt, ftz), a)


@arithmetic("tanh.approx.type d, a", F16_TYPES, section="9.7.4 tanh", not_modelled=HALF_BITS)
@arithmetic("tanh.approx.type d, a", BF16_TYPES, section="9.7.4 tanh", not_modelled=HALF_BITS)
def tanh_half(a: Value, *, type: str) -> Value:
    """d = tanh(a), with an absolute error of at most 2^-10.987 (f16) or 2^-8 (bf16)."""
    return _half(tanh, a, type)


@arithmetic("ex2.approx.type d, a", F16_TYPES, section="9.7.4 ex2", not_modelled=HALF_BITS)
def ex2_f16(a: Value, *, type: str) -> Value:
    """d = 2^a, with a relative error of at most 2^-9.9."""
    return _half(exp2, a, type)


@arithmetic("ex2.approx.ftz.type d, a", BF16_TYPES, section="9.7.4 ex2", not_modelled=HALF_BITS)
def ex2_bf16(a: Value, *, type: str) -> Value:
    """d = 2^a, with a relative error of at most 2^-7; subnormal operands and results are flushed."""
    return _half(exp2, a, type, ftz=True)
