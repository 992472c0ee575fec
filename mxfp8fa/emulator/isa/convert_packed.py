"""cvt to and from packed formats, and cvt.pack: PTX ISA 9.7.9, "cvt" and "cvt.pack".

One rule of order: of two f32 operands, a goes to the upper part of the result and b to the lower one; a packed operand
keeps its order. Rounding, saturation and NaN are those of `rounding.encode`; the formats come from
`mxfp8fa.numerics.formats`.
"""

from __future__ import annotations

import numpy as np

from mxfp8fa.emulator.isa.convert import read_float
from mxfp8fa.emulator.isa.packed import halves, join, packing_shadow
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import (
    BF16,
    F16,
    decode,
    encode,
    float_const,
    is_nan,
    magnitude_bits,
    nan_code,
)
from mxfp8fa.emulator.values import Value, const, float_div, rint, select
from mxfp8fa.numerics.formats import E8M0, FORMATS, Format

SECTION = "9.7.9 cvt"
HALF_PAIRS = {"f16x2": F16, "bf16x2": BF16}
BYTES = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2")
HIGH_LOW_16 = {"shadow": packing_shadow(16, np.uint32)}
HIGH_LOW_8 = {"shadow": packing_shadow(8, np.uint16)}
HIGH_LOW_4 = {"shadow": packing_shadow(4, np.uint8)}
S2F6_SCALE, S2F6_LOW, S2F6_HIGH = 64.0, -128.0, 127.0  # PTX ISA 5.2.4: an s8 in units of 2^-6


def element_format(packed: str) -> Format:
    """The format of the elements of a packed type: E4M3 for ``e4m3x2``."""
    return FORMATS[packed[:-2]]


def pack_bytes(high: Value, low: Value) -> Value:
    """Two codes of at most 8 bits as a u16, high in bits 15:8."""
    return (high.to("u16") << 8) | low.to("u16")


def unpack_bytes(word: Value) -> tuple[Value, Value]:
    """(high, low) bytes of a u16."""
    return word >> 8, word & 0xFF


def pack_nibbles(high: Value, low: Value) -> Value:
    """Two 4-bit codes as a u8, high in bits 7:4."""
    return (high.to("u8") << 4) | low.to("u8")


def half_values(word: Value, packed: str) -> tuple[Value, Value]:
    """(high, low) elements of an f16x2 or bf16x2 as f32."""
    low, high = halves(word, "u16")
    return read_float(high, packed[:-2]), read_float(low, packed[:-2])


# -- f16x2, bf16x2 ----------------------------------------------------------------------------------------------------


@pure("cvt.rnd{.relu}{.satfinite}.dtype.f32 d:b32, a:f32, b:f32", rnd=("rn", "rz"), dtype=HALF_PAIRS, section=SECTION,
      extra=HIGH_LOW_16, not_modelled="NaN payloads: NaN gives 0x7FFF.")  # fmt: skip
def cvt_half_x2(a: Value, b: Value, *, rnd: str, dtype: str, relu: bool = False, satfinite: bool = False) -> Value:
    """d = {a in bits 31:16, b in bits 15:0}, each rounded to 16 bits."""
    high, low = (encode(x, HALF_PAIRS[dtype], rnd, satfinite=satfinite, relu=relu) for x in (a, b))
    return (high << 16) | low


SUBNORMAL_STOCHASTIC = "Subnormal f16 results (not documented): the random bits lie just below the last kept bit."
RANDOM_BITS = {"f16x2": 13, "bf16x2": 16}  # per element, the low ones of each half of rbits


@pure("cvt.rs{.relu}{.satfinite}.dtype.f32 d:b32, a:f32, b:f32, r:b32", dtype=HALF_PAIRS, section=SECTION,
      confidence="inferred", not_modelled=SUBNORMAL_STOCHASTIC)  # fmt: skip
def cvt_half_x2_stochastic(
    a: Value, b: Value, r: Value, *, dtype: str, relu: bool = False, satfinite: bool = False
) -> Value:
    """d = {a, b} in 16 bits, rounded away from zero where random bits plus the discarded bits carry, else toward it.

    The upper half of r serves a, the lower half b: 16 bits each for bf16, 13 for f16.
    """
    count = RANDOM_BITS[dtype]
    random = ((r >> 16) & ((1 << count) - 1), r & ((1 << count) - 1))
    high, low = (
        encode(x, HALF_PAIRS[dtype], "rs", satfinite=satfinite, relu=relu, random=(bits, count)).to("u32")
        for x, bits in zip((a, b), random, strict=True)
    )
    return (high << 16) | low


# -- FP8, FP6, FP4 ----------------------------------------------------------------------------------------------------


@pure("cvt.rn.satfinite{.relu}.dtype.f32 d:b16, a:f32, b:f32", dtype=BYTES, section=SECTION, extra=HIGH_LOW_8)
def cvt_byte_x2(a: Value, b: Value, *, dtype: str, relu: bool = False) -> Value:
    """d = {a in bits 15:8, b in bits 7:0} in FP8 or FP6; overflow and, in FP6, NaN give the largest."""
    return pack_bytes(*(encode(x, element_format(dtype), satfinite=True, relu=relu) for x in (a, b)))


@pure("cvt.rn.satfinite{.relu}.e2m1x2.f32 d:b8, a:f32, b:f32", section=SECTION, extra=HIGH_LOW_4)
def cvt_e2m1x2(a: Value, b: Value, *, relu: bool = False) -> Value:
    """d = {a in bits 7:4, b in bits 3:0} in FP4; overflow and NaN give the largest value (NaN: positive)."""
    return pack_nibbles(*(encode(x, FORMATS["e2m1"], satfinite=True, relu=relu) for x in (a, b)))


@pure("cvt.rn.satfinite{.relu}.dtype.atype d:b16, a:b32", dtype=BYTES, atype=HALF_PAIRS, section=SECTION)
def cvt_byte_x2_half(a: Value, *, dtype: str, atype: str, relu: bool = False) -> Value:
    """d = both halves of a in FP8 or FP6, order kept."""
    return pack_bytes(*(encode(x, element_format(dtype), satfinite=True, relu=relu) for x in half_values(a, atype)))


@pure("cvt.rn.satfinite{.relu}.e2m1x2.atype d:b8, a:b32", atype=HALF_PAIRS, section=SECTION)
def cvt_e2m1x2_half(a: Value, *, atype: str, relu: bool = False) -> Value:
    """d = both halves of a in FP4, order kept."""
    return pack_nibbles(*(encode(x, FORMATS["e2m1"], satfinite=True, relu=relu) for x in half_values(a, atype)))


def _narrow_values(a: Value, packed: str) -> tuple[Value, Value]:
    """(high, low) elements of a packed FP8, FP6 (upper 2 bits of a byte ignored) or FP4 operand as f32, exactly."""
    fmt = element_format(packed)
    high, low = (a >> 4, a & 0xF) if fmt.bits == 4 else unpack_bytes(a)
    mask = (1 << fmt.bits) - 1
    return decode(high & mask, fmt), decode(low & mask, fmt)


def _pair(high: Value, low: Value, fmt: Format, *, relu: bool = False, satfinite: bool = False) -> Value:
    codes = (encode(x, fmt, relu=relu, satfinite=satfinite).to("u16") for x in (low, high))
    return join(*codes)


@pure("cvt.rn{.relu}.f16x2.atype d:b32, a:b16", atype=BYTES, section=SECTION)
@pure("cvt.rn{.relu}.f16x2.atype d:b32, a:b8", atype=("e2m1x2",), section=SECTION)
def cvt_f16x2_narrow(a: Value, *, atype: str, relu: bool = False) -> Value:
    """d = both elements of a as f16, exactly; NaN gives 0x7FFF."""
    return _pair(*_narrow_values(a, atype), F16, relu=relu)


def scale_values(c: Value) -> tuple[Value, Value]:
    """(high, low) UE8M0 scale factors of a u16 as f64: 2^(code - 127), NaN for 0xFF."""
    return tuple(
        select(code.eq(0xFF), const(0x7FF8000000000000, "f64"), ((code.to("u64") + (1023 - 127)) << 52).bits("f64"))
        for code in unpack_bytes(c)
    )  # type: ignore[return-value]


def _scaled_pair(a: tuple[Value, Value], c: Value | None, relu: bool, satfinite: bool) -> Value:
    """Two f32 values times their scale factors as bf16x2; the f64 product is exact, so it is rounded once."""
    if c is not None:
        high, low = (x.to("f64") * s for x, s in zip(a, scale_values(c), strict=True))
        a = (high, low)
    return _pair(*a, BF16, relu=relu, satfinite=satfinite)


@pure("cvt.rn{.relu}{.satfinite}.bf16x2.atype d:b32, a:b16", atype=BYTES, section=SECTION)
@pure("cvt.rn{.relu}{.satfinite}.bf16x2.atype d:b32, a:b8", atype=("e2m1x2",), section=SECTION)
@pure("cvt.rn{.relu}{.satfinite}.scaled::n2::ue8m0.bf16x2.atype d:b32, a:b16, c:b16", atype=BYTES, section=SECTION)
@pure("cvt.rn{.relu}{.satfinite}.scaled::n2::ue8m0.bf16x2.atype d:b32, a:b8, c:b16", atype=("e2m1x2",), section=SECTION)
def cvt_bf16x2_narrow(
    a: Value, c: Value | None = None, *, atype: str, relu: bool = False, satfinite: bool = False
) -> Value:
    """d = both elements of a as bf16, times the UE8M0 factors of c (bits 15:8 for the upper element)."""
    return _scaled_pair(_narrow_values(a, atype), c, relu, satfinite)


# -- UE8M0 ------------------------------------------------------------------------------------------------------------


def encode_ue8m0(x: Value, rounding: str, satfinite: bool) -> Value:
    """The UE8M0 code of the power of two next to |x| (f32): not above it for rz, not below it for rp.

    Zero and everything below 2^-127 has code 0 (rp: from just above 2^-127 on code 1). NaN has code 0xFF; so has
    infinity, and for rp what lies above 2^127, without .satfinite.
    """
    magnitude = magnitude_bits(x)
    code = magnitude >> 23
    if rounding == "rp":
        # Code 0 stands for 2^-127, which is half of f32's smallest normal number.
        above = select(code.eq(0), magnitude > 0x400000, (magnitude & 0x7FFFFF).ne(0))
        code = select(above, code + 1, code)
    if satfinite:
        code = select(code > E8M0.max_code, const(E8M0.max_code, "u32"), code)
    return select(is_nan(x), const(nan_code(E8M0), "u32"), code)


UE8M0_SIGN = "The sign of the operand is ignored (read from NVIDIA's header, cuda_fp8.hpp)."


@pure("cvt.rnd{.satfinite}.ue8m0x2.f32 d:b16, a:f32, b:f32", rnd=("rz", "rp"), section=SECTION, confidence="inferred",
      extra=HIGH_LOW_8, not_modelled=UE8M0_SIGN)  # fmt: skip
def cvt_ue8m0x2(a: Value, b: Value, *, rnd: str, satfinite: bool = False) -> Value:
    """d = {a in bits 15:8, b in bits 7:0} as powers of two, rounded down (rz) or up (rp)."""
    return pack_bytes(*(encode_ue8m0(x, rnd, satfinite) for x in (a, b)))


@pure("cvt.rnd{.satfinite}.ue8m0x2.bf16x2 d:b16, a:b32", rnd=("rz", "rp"), section=SECTION, confidence="inferred",
      not_modelled=UE8M0_SIGN)  # fmt: skip
def cvt_ue8m0x2_bf16x2(a: Value, *, rnd: str, satfinite: bool = False) -> Value:
    """d = both halves of a as powers of two, rounded down (rz) or up (rp)."""
    return pack_bytes(*(encode_ue8m0(x, rnd, satfinite) for x in half_values(a, "bf16x2")))


@pure("cvt.rn.bf16x2.ue8m0x2 d:b32, a:b16", section=SECTION)
def cvt_bf16x2_ue8m0x2(a: Value) -> Value:
    """d = both powers of two as bf16, exactly; 0xFF gives NaN."""
    return _pair(*scale_values(a), BF16)


# -- S2F6 -------------------------------------------------------------------------------------------------------------


def encode_s2f6(x: Value, relu: bool) -> Value:
    """x (f32 or f64) as an 8-bit integer in units of 2^-6, to nearest even; NaN gives the largest."""
    units = rint(x.to("f64") * float_const(S2F6_SCALE, "f64"))
    low, high = float_const(0.0 if relu else S2F6_LOW, "f64"), float_const(S2F6_HIGH, "f64")
    inside = select(units < low, low, units)
    return select(inside < high, inside, high).to("s32").to("u8")


def _s2f6_pair(a: tuple[Value, Value], c: Value | None, relu: bool) -> Value:
    wide: list[Value] = [x.to("f64") for x in a]
    if c is not None:
        wide = [float_div(x, s) for x, s in zip(wide, scale_values(c), strict=True)]
    return pack_bytes(*(encode_s2f6(x, relu) for x in wide))


@pure("cvt.rn.satfinite{.relu}.s2f6x2.f32 d:b16, a:f32, b:f32", section=SECTION, extra=HIGH_LOW_8)
@pure("cvt.rn.satfinite{.relu}.scaled::n2::ue8m0.s2f6x2.f32 d:b16, a:f32, b:f32, c:b16", section=SECTION)
def cvt_s2f6x2(a: Value, b: Value, c: Value | None = None, *, relu: bool = False) -> Value:
    """d = {a in bits 15:8, b in bits 7:0}, divided by the UE8M0 factors of c, in units of 2^-6."""
    return _s2f6_pair((a, b), c, relu)


@pure("cvt.rn.satfinite{.relu}.s2f6x2.bf16x2 d:b16, a:b32", section=SECTION)
@pure("cvt.rn.satfinite{.relu}.scaled::n2::ue8m0.s2f6x2.bf16x2 d:b16, a:b32, c:b16", section=SECTION)
def cvt_s2f6x2_bf16x2(a: Value, c: Value | None = None, *, relu: bool = False) -> Value:
    """d = both halves of a, divided by the UE8M0 factors of c, in units of 2^-6."""
    return _s2f6_pair(half_values(a, "bf16x2"), c, relu)


@pure("cvt.rn{.satfinite}{.relu}.bf16x2.s2f6x2 d:b32, a:b16", section=SECTION)
@pure("cvt.rn{.satfinite}{.relu}.scaled::n2::ue8m0.bf16x2.s2f6x2 d:b32, a:b16, c:b16", section=SECTION)
def cvt_bf16x2_s2f6x2(a: Value, c: Value | None = None, *, relu: bool = False, satfinite: bool = False) -> Value:
    """d = both elements of a as bf16, times the UE8M0 factors of c."""
    unit = float_const(1 / S2F6_SCALE, "f32")
    high, low = (byte.to("u8").bits("s8").to("f32") * unit for byte in unpack_bytes(a))
    return _scaled_pair((high, low), c, relu, satfinite)


# -- cvt.pack ---------------------------------------------------------------------------------------------------------


def _clamped_field(a: Value, type: str) -> Value:
    """An s32 clamped to the range of a type of 2 to 16 bits, as an unsigned field of that width."""
    width = int(type[1:])
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if type[0] == "s" else (0, (1 << width) - 1)
    a = select(a < low, const(low, "s32"), a)
    return select(a > high, const(high, "s32"), a).bits("u32") & ((1 << width) - 1)


@pure("cvt.pack.sat.type.s32 d:u32, a:s32, b:s32", type=("u16", "s16"), section="9.7.9 cvt.pack")
def cvt_pack16(a: Value, b: Value, *, type: str) -> Value:
    """d = {a in bits 31:16, b in bits 15:0}, each clamped to the range of type."""
    return (_clamped_field(a, type) << 16) | _clamped_field(b, type)


@pure("cvt.pack.sat.type.s32.b32 d:u32, a:s32, b:s32, c:b32", type=("u2", "s2", "u4", "s4", "u8", "s8"),
      section="9.7.9 cvt.pack")  # fmt: skip
def cvt_pack(a: Value, b: Value, c: Value, *, type: str) -> Value:
    """d = c shifted up by two fields, a clamped in the upper new field, b clamped in the lower one."""
    width = int(type[1:])
    return (c << (2 * width)) | (_clamped_field(a, type) << width) | _clamped_field(b, type)
