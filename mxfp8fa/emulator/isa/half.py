"""Half-precision arithmetic: PTX ISA 9.7.4 (f16, f16x2, bf16, bf16x2) without tanh and ex2, which are in `approx.py`.

An element is its 16-bit code. Arithmetic is done where it is exact or where a second rounding cannot show, and
`rounding.encode` rounds the result to the element's format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxfp8fa.emulator.isa.floating import extremum
from mxfp8fa.emulator.isa.packed import elementwise_shadow, per_half
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import (
    BF16,
    F16,
    encode,
    inf_code,
    is_nan,
    is_tiny,
    nan_code,
    odd_sum,
    saturate,
    widen,
)
from mxfp8fa.emulator.values import Value, const, select, value_type
from mxfp8fa.numerics.formats import Format

NAN_HALF = "NaN payloads: every NaN result is 0x7FFF (the ISA leaves the bits open)."
NAN_NEGATION = "NaN operands: the ISA leaves the result open. Here 0x7FFF, since ptxas emits an addition."
OOB = "fma.oob: the bits of the OOB NaN are not documented."
F16_TYPES, BF16_TYPES = ("f16", "f16x2"), ("bf16", "bf16x2")
PACKED = {"shadow": elementwise_shadow}
Function = Callable[..., Value]


def format_of(type: str) -> Format:
    """The element format of a PTX type."""
    return BF16 if type.startswith("bf16") else F16


def per_element(type: str, function: Callable[..., Value], *operands: Value) -> Value:
    """function (of u16 codes) on a scalar operand, or on both elements of packed ones; the result has the PTX type."""
    if type.endswith("x2"):
        return per_half(function, *operands)
    return function(*(o.bits("u16") for o in operands)).bits(value_type(type))


def flush_code(code: Value, fmt: Format) -> Value:
    """A code with a subnormal replaced by the zero of its sign (.ftz)."""
    sign = 1 << (fmt.bits - 1)
    return select((code & (sign - 1)) < (1 << fmt.mantissa_bits), code & sign, code)


def rounded(x: Value, fmt: Format, ftz: bool = False, sat: bool = False, relu: bool = False) -> Value:
    """x (f32 or f64, exact or with an innocuous rounding) as a code, after .sat or .relu and .ftz."""
    code = encode(saturate(x) if sat else x, fmt, relu=relu).to("u16")
    return select(is_tiny(x, fmt, "rn"), code & (1 << (fmt.bits - 1)), code) if ftz else code


def _operands(codes: tuple[Value, ...], fmt: Format, ftz: bool) -> list[Value]:
    return [widen(flush_code(c, fmt) if ftz else c, fmt) for c in codes]


def sum_half(a: Value, b: Value, fmt: Format, ftz: bool, sat: bool) -> Value:
    """a + b. Rounding to f32 first is innocuous: 24 bits are at least twice the element's 11 or 8, plus 2.

    (S. Figueroa, "When is double rounding innocuous?", 1995; sums in the subnormal range are exact.)
    """
    x, y = _operands((a, b), fmt, ftz)
    return rounded(x + y, fmt, ftz, sat)


def product_half(a: Value, b: Value, fmt: Format, ftz: bool, sat: bool) -> Value:
    """a * b. The f32 product is exact wherever the element does not round it to zero.

    It has 22 bits (f16, far inside f32's range) or 16 (bf16): from half of the smallest bf16, 2^-134, down to 2^-149.
    """
    x, y = _operands((a, b), fmt, ftz)
    return rounded(x * y, fmt, ftz, sat)


def fused_half(a: Value, b: Value, c: Value, fmt: Format, ftz: bool, sat: bool, relu: bool) -> Value:
    """a * b + c, rounded once: exact product in f64, sum rounded to odd."""
    x, y, z = (v.to("f64") for v in _operands((a, b, c), fmt, ftz))
    return rounded(odd_sum(x * y, z), fmt, ftz, sat, relu)


# -- add, sub, mul, fma -----------------------------------------------------------------------------------------------


def arithmetic(pattern: str, types: tuple[str, str], **keywords: Any) -> Callable[[Function], Function]:
    """Declare an instruction for the scalar and for the packed type of a format; the packed one has a poison rule."""

    def declare(function: Function) -> Function:
        pure(pattern, type=types[:1], **keywords)(function)
        return pure(pattern, type=types[1:], extra=PACKED, **keywords)(function)

    return declare


@arithmetic("add{.rnd}{.ftz}{.sat}.type d, a, b", F16_TYPES, rnd=("rn",), section="9.7.4 add", not_modelled=NAN_HALF)
@arithmetic("add{.rnd}.type d, a, b", BF16_TYPES, rnd=("rn",), section="9.7.4 add", not_modelled=NAN_HALF)
def add_half(a: Value, b: Value, *, type: str, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a + b."""
    return per_element(type, lambda x, y: sum_half(x, y, format_of(type), ftz, sat), a, b)


@arithmetic("sub{.rnd}{.ftz}{.sat}.type d, a, b", F16_TYPES, rnd=("rn",), section="9.7.4 sub", not_modelled=NAN_HALF)
@arithmetic("sub{.rnd}.type d, a, b", BF16_TYPES, rnd=("rn",), section="9.7.4 sub", not_modelled=NAN_HALF)
def sub_half(a: Value, b: Value, *, type: str, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a - b."""
    return per_element(type, lambda x, y: sum_half(x, y ^ 0x8000, format_of(type), ftz, sat), a, b)


@arithmetic("mul{.rnd}{.ftz}{.sat}.type d, a, b", F16_TYPES, rnd=("rn",), section="9.7.4 mul", not_modelled=NAN_HALF)
@arithmetic("mul{.rnd}.type d, a, b", BF16_TYPES, rnd=("rn",), section="9.7.4 mul", not_modelled=NAN_HALF)
def mul_half(a: Value, b: Value, *, type: str, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a * b."""
    return per_element(type, lambda x, y: product_half(x, y, format_of(type), ftz, sat), a, b)


@arithmetic("fma.rn{.ftz}{.sat}.type d, a, b, c", F16_TYPES, section="9.7.4 fma", not_modelled=f"{NAN_HALF} {OOB}")
@arithmetic("fma.rn.type d, a, b, c", BF16_TYPES, section="9.7.4 fma", not_modelled=f"{NAN_HALF} {OOB}")
def fma_half(a: Value, b: Value, c: Value, *, type: str, ftz: bool = False, sat: bool = False) -> Value:
    """d = a * b + c, rounded once."""
    return per_element(type, lambda x, y, z: fused_half(x, y, z, format_of(type), ftz, sat, relu=False), a, b, c)


@arithmetic("fma.rn{.ftz}.relu.type d, a, b, c", F16_TYPES, section="9.7.4 fma", not_modelled=f"{NAN_HALF} {OOB}")
@arithmetic("fma.rn.relu.type d, a, b, c", BF16_TYPES, section="9.7.4 fma", not_modelled=f"{NAN_HALF} {OOB}")
def fma_relu_half(a: Value, b: Value, c: Value, *, type: str, ftz: bool = False) -> Value:
    """d = a * b + c, rounded once, +0 if that is negative."""
    return per_element(type, lambda x, y, z: fused_half(x, y, z, format_of(type), ftz, sat=False, relu=True), a, b, c)


# -- neg, abs, min, max -----------------------------------------------------------------------------------------------


def _sign_operation(code: Value, changed: Value, fmt: Format, ftz: bool) -> Value:
    changed = flush_code(changed, fmt) if ftz else changed
    return select((code & 0x7FFF) > inf_code(fmt), const(nan_code(fmt), "u16"), changed)


@arithmetic("neg{.ftz}.type d, a", F16_TYPES, section="9.7.4 neg", not_modelled=NAN_NEGATION)
@arithmetic("neg.type d, a", BF16_TYPES, section="9.7.4 neg", not_modelled=NAN_NEGATION)
def neg_half(a: Value, *, type: str, ftz: bool = False) -> Value:
    """d = -a."""
    return per_element(type, lambda x: _sign_operation(x, x ^ 0x8000, format_of(type), ftz), a)


@arithmetic("abs{.ftz}.type d, a", F16_TYPES, section="9.7.4 abs", not_modelled=NAN_NEGATION)
@arithmetic("abs.type d, a", BF16_TYPES, section="9.7.4 abs", not_modelled=NAN_NEGATION)
def abs_half(a: Value, *, type: str, ftz: bool = False) -> Value:
    """d = |a|."""
    return per_element(type, lambda x: _sign_operation(x, x & 0x7FFF, format_of(type), ftz), a)


def _extremum_half(op: str, a: Value, b: Value, fmt: Format, ftz: bool, NaN: bool, xorsign_abs: bool) -> Value:
    sign = (a ^ b) & 0x8000
    if xorsign_abs:
        a, b = a & 0x7FFF, b & 0x7FFF
    if ftz:
        a, b = flush_code(a, fmt), flush_code(b, fmt)
    nan = const(nan_code(fmt), "u16")
    best = extremum(op, a, b, widen(a, fmt), widen(b, fmt), nan, propagate=NaN)
    return select(is_nan(widen(best, fmt)), best, best | sign) if xorsign_abs else best


@arithmetic("max{.ftz}{.NaN}{.xorsign.abs}.type d, a, b", F16_TYPES, section="9.7.4 max", not_modelled=NAN_HALF)
@arithmetic("max{.NaN}{.xorsign.abs}.type d, a, b", BF16_TYPES, section="9.7.4 max", not_modelled=NAN_HALF)
def max_half(
    a: Value, b: Value, *, type: str, ftz: bool = False, NaN: bool = False, xorsign_abs: bool = False
) -> Value:
    """d = max(a, b), +0 > -0; a NaN operand loses, with .NaN it wins."""
    return per_element(type, lambda x, y: _extremum_half("max", x, y, format_of(type), ftz, NaN, xorsign_abs), a, b)


@arithmetic("min{.ftz}{.NaN}{.xorsign.abs}.type d, a, b", F16_TYPES, section="9.7.4 min", not_modelled=NAN_HALF)
@arithmetic("min{.NaN}{.xorsign.abs}.type d, a, b", BF16_TYPES, section="9.7.4 min", not_modelled=NAN_HALF)
def min_half(
    a: Value, b: Value, *, type: str, ftz: bool = False, NaN: bool = False, xorsign_abs: bool = False
) -> Value:
    """d = min(a, b), -0 < +0; a NaN operand loses, with .NaN it wins."""
    return per_element(type, lambda x, y: _extremum_half("min", x, y, format_of(type), ftz, NaN, xorsign_abs), a, b)
