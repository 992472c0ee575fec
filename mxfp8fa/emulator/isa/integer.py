"""Integer arithmetic, PTX ISA section 9.7.1 (the bit-field instructions of that section are in bits.py).

Which types and modifiers exist on sm_100 was checked against ptxas 13.5 (PTX 9.5): the byte-wise SIMD types and
add.sat of anything but s32 belong to the sm_120 family and have no form here.
"""

from __future__ import annotations

from mxfp8fa.emulator.isa.packed import elementwise_shadow, halves, join
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.values import BITS, Value, const, divide, is_signed, remainder, select

INTEGER = ("u16", "s16", "u32", "s32", "u64", "s64")
SIGNED_INTEGER = ("s16", "s32", "s64")
PACKED = {"shadow": elementwise_shadow}


def lesser(a: Value, b: Value) -> Value:
    """The smaller of two integers of one type."""
    return select(a < b, a, b)


def greater(a: Value, b: Value) -> Value:
    """The larger of two integers of one type."""
    return select(a > b, a, b)


def saturate_s32(wide: Value) -> Value:
    """An s64 clamped to the range of s32."""
    top, bottom = const(2**31 - 1, "s64"), const(-(2**31), "s64")
    return lesser(greater(wide, bottom), top).to("s32")


def product(a: Value, b: Value) -> Value:
    """The full product of two integers below 64 bits, in the type of twice the width."""
    wide = f"{a.type[0]}{2 * BITS[a.type]}"
    return a.to(wide) * b.to(wide)


def high_half(a: Value, b: Value) -> Value:
    """The upper half of the full product, in the operands' type."""
    if BITS[a.type] == 64:
        return _high_half_64(a, b)
    return (product(a, b) >> BITS[a.type]).to(a.type)


def _high_half_64(a: Value, b: Value) -> Value:
    """Bits 127:64 of a 64x64 product, from four products of 32-bit halves.

    Read as unsigned, a negative operand is 2**64 too large, so the product is too large by 2**64 times the other one.
    """
    x, y = a.bits("u64"), b.bits("u64")
    x0, x1, y0, y1 = x & 0xFFFFFFFF, x >> 32, y & 0xFFFFFFFF, y >> 32
    middle = x1 * y0 + ((x0 * y0) >> 32)
    carry = x0 * y1 + (middle & 0xFFFFFFFF)
    high = x1 * y1 + (middle >> 32) + (carry >> 32)
    if is_signed(a.type):
        zero = const(0, "u64")
        high = high - select(a < 0, y, zero) - select(b < 0, x, zero)
    return high.bits(a.type)


@pure("add.type d, a, b", type=INTEGER, section="9.7.1 add")
def add(a: Value, b: Value, *, type: str) -> Value:
    """d = a + b, wrapping."""
    return a + b


@pure("add.sat.s32 d, a, b", section="9.7.1 add")
def add_sat(a: Value, b: Value) -> Value:
    """d = a + b, clamped to the range of s32."""
    return saturate_s32(a.to("s64") + b.to("s64"))


@pure("add.type d:u32, a:u32, b:u32", type=("u16x2", "s16x2"), section="9.7.1 add", extra=PACKED)
def add_x2(a: Value, b: Value, *, type: str) -> Value:
    """d = a + b for each of two 16-bit elements, wrapping."""
    (a0, a1), (b0, b1) = halves(a, type[:3]), halves(b, type[:3])
    return join(a0 + b0, a1 + b1)


@pure("sub.type d, a, b", type=INTEGER, section="9.7.1 sub")
def sub(a: Value, b: Value, *, type: str) -> Value:
    """d = a - b, wrapping."""
    return a - b


@pure("sub.sat.s32 d, a, b", section="9.7.1 sub")
def sub_sat(a: Value, b: Value) -> Value:
    """d = a - b, clamped to the range of s32."""
    return saturate_s32(a.to("s64") - b.to("s64"))


@pure("mul.lo.type d, a, b", type=INTEGER, section="9.7.1 mul")
def mul_lo(a: Value, b: Value, *, type: str) -> Value:
    """d = the lower half of a * b."""
    return a * b


@pure("mul.hi.type d, a, b", type=INTEGER, section="9.7.1 mul")
def mul_hi(a: Value, b: Value, *, type: str) -> Value:
    """d = the upper half of a * b."""
    return high_half(a, b)


@pure("mul.wide.u16 d:u32, a, b", section="9.7.1 mul")
@pure("mul.wide.s16 d:s32, a, b", section="9.7.1 mul")
@pure("mul.wide.u32 d:u64, a, b", section="9.7.1 mul")
@pure("mul.wide.s32 d:s64, a, b", section="9.7.1 mul")
def mul_wide(a: Value, b: Value) -> Value:
    """d = a * b, twice as wide as the operands."""
    return product(a, b)


@pure("mad.lo.type d, a, b, c", type=INTEGER, section="9.7.1 mad")
def mad_lo(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = the lower half of a * b, plus c, wrapping."""
    return a * b + c


@pure("mad.hi.type d, a, b, c", type=INTEGER, section="9.7.1 mad")
def mad_hi(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = the upper half of a * b, plus c, wrapping."""
    return high_half(a, b) + c


@pure("mad.hi.sat.s32 d, a, b, c", section="9.7.1 mad")
def mad_hi_sat(a: Value, b: Value, c: Value) -> Value:
    """d = the upper half of a * b, plus c, the sum clamped to the range of s32."""
    return saturate_s32(high_half(a, b).to("s64") + c.to("s64"))


@pure("mad.wide.u16 d:u32, a, b, c:u32", section="9.7.1 mad")
@pure("mad.wide.s16 d:s32, a, b, c:s32", section="9.7.1 mad")
@pure("mad.wide.u32 d:u64, a, b, c:u64", section="9.7.1 mad")
@pure("mad.wide.s32 d:s64, a, b, c:s64", section="9.7.1 mad")
def mad_wide(a: Value, b: Value, c: Value) -> Value:
    """d = a * b + c, with d and c twice as wide as a and b, wrapping."""
    return product(a, b) + c


def _multiply_24(a: Value, b: Value, mode: str) -> Value:
    """Bits 31:0 (lo) or 47:16 (hi) of the product of the operands' lowest 24 bits."""
    if is_signed(a.type):
        a, b = (a << 8) >> 8, (b << 8) >> 8
    else:
        a, b = a & 0xFFFFFF, b & 0xFFFFFF
    return (product(a, b) >> 16).to(a.type) if mode == "hi" else a * b


_UPPER_BYTE = "the ISA leaves the operands' upper 8 bits open: ignored here, as in the code ptxas makes for sm_100a"


@pure("mul24.mode.type d, a, b", mode=("lo", "hi"), type=("u32", "s32"), section="9.7.1 mul24",
      confidence="inferred", not_modelled=_UPPER_BYTE)  # fmt: skip
def mul24(a: Value, b: Value, *, mode: str, type: str) -> Value:
    """d = bits 31:0 (lo) or 47:16 (hi) of the product of two 24-bit integers."""
    return _multiply_24(a, b, mode)


@pure("mad24.mode.type d, a, b, c", mode=("lo", "hi"), type=("u32", "s32"), section="9.7.1 mad24",
      confidence="inferred", not_modelled=_UPPER_BYTE)  # fmt: skip
def mad24(a: Value, b: Value, c: Value, *, mode: str, type: str) -> Value:
    """d = bits 31:0 (lo) or 47:16 (hi) of the product of two 24-bit integers, plus c, wrapping."""
    return _multiply_24(a, b, mode) + c


@pure("mad24.hi.sat.s32 d, a, b, c", section="9.7.1 mad24", confidence="inferred", not_modelled=_UPPER_BYTE)
def mad24_hi_sat(a: Value, b: Value, c: Value) -> Value:
    """d = bits 47:16 of the product of two 24-bit integers, plus c, the sum clamped to the range of s32."""
    return saturate_s32(_multiply_24(a, b, "hi").to("s64") + c.to("s64"))


@pure("sad.type d, a, b, c", type=INTEGER, section="9.7.1 sad")
def sad(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = c + |a - b|, wrapping."""
    return c + select(a < b, b - a, a - b)


@pure("div.type d, a, b", type=INTEGER, section="9.7.1 div",
      not_modelled="division by zero is unspecified: all ones here; most negative / -1 wraps")  # fmt: skip
def div(a: Value, b: Value, *, type: str) -> Value:
    """d = a / b, truncated toward zero."""
    return divide(a, b)


@pure("rem.type d, a, b", type=INTEGER, section="9.7.1 rem",
      not_modelled="the sign for negative operands is machine-dependent: here that of a; "
      "remainder by zero is unspecified: all ones here, as on an H200")  # fmt: skip
def rem(a: Value, b: Value, *, type: str) -> Value:
    """d = a - b * (a / b)."""
    return remainder(a, b)


@pure("abs.type d, a", type=SIGNED_INTEGER, section="9.7.1 abs")
def absolute(a: Value, *, type: str) -> Value:
    """d = |a|; the most negative value stays."""
    return select(a < 0, -a, a)


@pure("neg.type d, a", type=SIGNED_INTEGER, section="9.7.1 neg")
def negate(a: Value, *, type: str) -> Value:
    """d = -a, wrapping."""
    return -a


@pure("min.type d, a, b", type=("u16", "s16", "u32", "u64", "s64"), section="9.7.1 min")
@pure("min{.relu}.s32 d, a, b", section="9.7.1 min")
def minimum(a: Value, b: Value, *, type: str = "s32", relu: bool = False) -> Value:
    """d = the smaller of a and b; .relu: 0 if that is negative."""
    d = lesser(a, b)
    return greater(d, const(0, d.type)) if relu else d


@pure("max.type d, a, b", type=("u16", "s16", "u32", "u64", "s64"), section="9.7.1 max")
@pure("max{.relu}.s32 d, a, b", section="9.7.1 max")
def maximum(a: Value, b: Value, *, type: str = "s32", relu: bool = False) -> Value:
    """d = the larger of a and b; .relu: 0 if that is negative."""
    d = greater(a, b)
    return greater(d, const(0, d.type)) if relu else d


@pure("min.type d:u32, a:u32, b:u32", type=("u16x2",), section="9.7.1 min", extra=PACKED)
@pure("min{.relu}.type d:u32, a:u32, b:u32", type=("s16x2",), section="9.7.1 min", extra=PACKED)
def minimum_x2(a: Value, b: Value, *, type: str, relu: bool = False) -> Value:
    """d = the smaller of a and b for each of two 16-bit elements; .relu: 0 if that is negative."""
    (a0, a1), (b0, b1) = halves(a, type[:3]), halves(b, type[:3])
    return join(minimum(a0, b0, relu=relu), minimum(a1, b1, relu=relu))


@pure("max.type d:u32, a:u32, b:u32", type=("u16x2",), section="9.7.1 max", extra=PACKED)
@pure("max{.relu}.type d:u32, a:u32, b:u32", type=("s16x2",), section="9.7.1 max", extra=PACKED)
def maximum_x2(a: Value, b: Value, *, type: str, relu: bool = False) -> Value:
    """d = the larger of a and b for each of two 16-bit elements; .relu: 0 if that is negative."""
    (a0, a1), (b0, b1) = halves(a, type[:3]), halves(b, type[:3])
    return join(maximum(a0, b0, relu=relu), maximum(a1, b1, relu=relu))


def _element(word: Value, index: int, width: int, extend: str) -> Value:
    """Element `index` of `width` bits of a u32, extended to 32 bits by its sign (extend = s32) or by zeros (u32)."""
    return (word >> (width * index)).to(f"u{width}").bits(f"{extend[0]}{width}").to(extend).bits("u32")


@pure("dp4a.atype.btype d, a, b, c", atype=("u32", "s32"), btype=("u32", "s32"), section="9.7.1 dp4a")
def dp4a(a: Value, b: Value, c: Value, *, atype: str, btype: str) -> Value:
    """d = c + the sum over i = 0..3 of byte i of a times byte i of b, wrapping."""
    for i in range(4):
        c = c + _element(a, i, 8, atype) * _element(b, i, 8, btype)
    return c


@pure("dp2a.mode.atype.btype d, a, b, c", mode=("lo", "hi"), atype=("u32", "s32"), btype=("u32", "s32"),
      section="9.7.1 dp2a")  # fmt: skip
def dp2a(a: Value, b: Value, c: Value, *, mode: str, atype: str, btype: str) -> Value:
    """d = c + the sum over i = 0, 1 of half i of a times byte i (lo) or i + 2 (hi) of b, wrapping."""
    first = 0 if mode == "lo" else 2
    for i in range(2):
        c = c + _element(a, i, 16, atype) * _element(b, first + i, 8, btype)
    return c
