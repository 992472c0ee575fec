"""cvt between scalar types: PTX ISA 9.7.9, "cvt". Packed and sub-byte formats are in `convert_packed.py`.

Which combinations of types and modifiers exist was checked against ptxas 13.5 (PTX 9.2, sm_100a). Operands wider than
their type are truncated and results extended by whoever binds the registers (PTX ISA 9.4.1).
"""

from __future__ import annotations

from mxfp8fa.emulator.isa.floating import to_f32
from mxfp8fa.emulator.isa.registry import pure
from mxfp8fa.emulator.isa.rounding import (
    FORMAT_OF,
    ROUNDING,
    UNSIGNED_OF,
    canonical,
    directed_f64,
    encode,
    flush,
    inf_code,
    is_nan,
    is_tiny,
    odd_sum,
    quiet,
    quiet_first,
    saturate,
    sign_bit,
    widen,
)
from mxfp8fa.emulator.values import (
    BITS,
    Value,
    ceil,
    const,
    floor,
    fma_sign,
    is_signed,
    rint,
    select,
    trunc,
    value_type,
)
from mxfp8fa.numerics.formats import TF32, Format

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
INTEGER_ROUNDING = {"rni": rint, "rzi": trunc, "rmi": floor, "rpi": ceil}
NAN_BITS = "NaN payloads: NaN gives the canonical NaN of the result type (the ISA leaves the bits open)."
NAN_F64 = "NaN payloads: kept, at the top of the mantissa, and quieted (not documented; measured on an H200)."
NAN_RNA = "NaN: cut to 10 mantissa bits like a number, with .satfinite less one unit (measured on an H200)."
SECTION = "9.7.9 cvt"
F64_MANTISSA = FORMAT_OF["f64"].mantissa_bits
F32, F64 = ({"type": (t,), "atype": (t,)} for t in ("f32", "f64"))  # keywords of a definition from a type to itself


# -- integer to integer -----------------------------------------------------------------------------------------------


def integer_range(t: str) -> tuple[int, int]:
    """Smallest and largest integer of a type."""
    return (-(1 << (BITS[t] - 1)), (1 << (BITS[t] - 1)) - 1) if is_signed(t) else (0, (1 << BITS[t]) - 1)


def clamp_integer(a: Value, to: str) -> Value:
    """An integer clamped to the range of type `to`, in that type."""
    (low, high), (least, most) = integer_range(to), integer_range(a.type)
    if low > least:
        a = select(a < low, const(low, a.type), a)
    if high < most:
        a = select(a > high, const(high, a.type), a)
    return a.to(to)


@pure("cvt.dtype.atype d:dtype, a:atype", dtype=INTEGERS, atype=INTEGERS, section=SECTION, moves=("a",))
def cvt_integer(a: Value, *, dtype: str, atype: str) -> Value:
    """d = a, extended by the signedness of atype, or cut off."""
    return a.to(dtype)


def wider_than(t: str) -> tuple[str, ...]:
    """The integer types with values outside the range of t: .sat is illegal for the others."""
    low, high = integer_range(t)
    return tuple(other for other in INTEGERS if integer_range(other)[0] < low or integer_range(other)[1] > high)


def cvt_integer_sat(a: Value, *, dtype: str, atype: str) -> Value:
    """d = a clamped to the range of dtype."""
    return clamp_integer(a, dtype)


for _to in INTEGERS:
    pure("cvt.sat.dtype.atype d:dtype, a:atype", dtype=(_to,), atype=wider_than(_to), section=SECTION)(cvt_integer_sat)


# -- integer to float -------------------------------------------------------------------------------------------------


def _as_f64(a: Value, sticky: bool) -> Value:
    """An integer as f64: exactly, or (64-bit integers) rounded to odd or to nearest."""
    if BITS[a.type] < 64 or not sticky:
        return a.to("f64")
    return odd_sum(*_parts(a))


def _parts(a: Value) -> tuple[Value, Value]:
    """Two f64 whose sum is the 64-bit integer a: its upper half times 2^32 (signed as a is) and its lower half."""
    high = (a >> 32).to("f64") * const(0x41F0000000000000, "f64")  # 2^32
    return high, a.to("u32").to("f64")


def integer_to_float(a: Value, dtype: str, rounding: str) -> Value:
    """An integer in a float type, rounded once."""
    if rounding == "rn" and dtype in ("f32", "f64"):
        return a.to(dtype)
    if dtype == "f64":
        if BITS[a.type] < 64:
            return a.to("f64")
        high, low = _parts(a)
        nearest = high + low
        one = const(0x3FF0000000000000, "f64")
        return directed_f64(nearest, fma_sign(high, one, low, nearest), rounding)
    return write_float(_as_f64(a, sticky=True), dtype, rounding)


@pure("cvt.rnd{.ftz}{.sat}.f32.atype d:f32, a:atype", rnd=ROUNDING, atype=INTEGERS, section=SECTION)
def cvt_f32_integer(a: Value, *, atype: str, rnd: str, ftz: bool = False, sat: bool = False) -> Value:
    """d = a rounded to f32; .ftz has nothing to flush."""
    result = integer_to_float(a, "f32", rnd)
    return saturate(result) if sat else result


@pure("cvt.rnd{.sat}.f64.atype d:f64, a:atype", rnd=ROUNDING, atype=INTEGERS, section=SECTION)
def cvt_f64_integer(a: Value, *, atype: str, rnd: str, sat: bool = False) -> Value:
    """d = a rounded to f64."""
    result = integer_to_float(a, "f64", rnd)
    return saturate(result) if sat else result


@pure("cvt.rnd{.sat}.f16.atype d:f16, a:atype", rnd=ROUNDING, atype=INTEGERS, section=SECTION,
      not_modelled="Overflow gives infinity; the ISA (6.5.1) names 131,000 or so, which is no f16 value.")  # fmt: skip
def cvt_f16_integer(a: Value, *, atype: str, rnd: str, sat: bool = False) -> Value:
    """d = a rounded to f16."""
    wide = _as_f64(a, sticky=True)
    return write_float(saturate(wide) if sat else wide, "f16", rnd)


@pure("cvt.rnd.bf16.atype d:bf16, a:atype", rnd=ROUNDING, atype=INTEGERS, section=SECTION)
def cvt_bf16_integer(a: Value, *, atype: str, rnd: str) -> Value:
    """d = a rounded to bf16."""
    return integer_to_float(a, "bf16", rnd)


# -- float to integer -------------------------------------------------------------------------------------------------


def float_to_integer(x: Value, dtype: str, nan: int) -> Value:
    """An integral f32 or f64 clamped to the range of an integer type; NaN gives `nan`."""
    low, high = integer_range(dtype)
    # Bounds that the float type holds exactly: 2^n above, and the smallest integer itself below.
    above = x >= _integer_const(high + 1, x.type)
    below = x < _integer_const(low, x.type)
    inside = select(above | below | is_nan(x), const(0, x.type), x).to(dtype)
    clamped = select(above, const(high, dtype), select(below, const(low, dtype), inside))
    return select(is_nan(x), const(nan, dtype), clamped)


def _integer_const(i: int, t: str) -> Value:
    """The float i (a power of two, up to sign, or zero) of type f32 or f64."""
    if i == 0:
        return const(0, t)
    fmt = FORMAT_OF[t]
    exponent = abs(i).bit_length() - 1 + fmt.bias
    return const((exponent << fmt.mantissa_bits) | ((i < 0) << (fmt.bits - 1)), t)


def nan_integer(dtype: str, atype: str) -> int:
    """What NaN becomes: 0, but the top bit alone when the source is f64 or the result has 64 bits (PTX ISA, cvt)."""
    return 1 << (BITS[dtype] - 1) if atype == "f64" or BITS[dtype] == 64 else 0


@pure("cvt.irnd{.ftz}{.sat}.dtype.f32 d:dtype, a:f32", irnd=INTEGER_ROUNDING, dtype=INTEGERS, section=SECTION)
def cvt_integer_f32(a: Value, *, irnd: str, dtype: str, ftz: bool = False, sat: bool = False) -> Value:
    """d = a rounded to an integer and clamped to the range of dtype; NaN gives 0, in 64 bits the top bit alone."""
    return float_to_integer(INTEGER_ROUNDING[irnd](flush(a) if ftz else a), dtype, nan_integer(dtype, "f32"))


@pure("cvt.irnd{.sat}.dtype.f64 d:dtype, a:f64", irnd=INTEGER_ROUNDING, dtype=INTEGERS, section=SECTION)
def cvt_integer_f64(a: Value, *, irnd: str, dtype: str, sat: bool = False) -> Value:
    """d = a rounded to an integer and clamped to the range of dtype; NaN gives the top bit alone."""
    return float_to_integer(INTEGER_ROUNDING[irnd](a), dtype, nan_integer(dtype, "f64"))


@pure("cvt.irnd{.sat}.dtype.atype d:dtype, a:atype", irnd=INTEGER_ROUNDING, dtype=INTEGERS, atype=("f16",),
      section=SECTION)  # fmt: skip
@pure("cvt.irnd.dtype.atype d:dtype, a:atype", irnd=INTEGER_ROUNDING, dtype=INTEGERS, atype=("bf16",), section=SECTION)
def cvt_integer_half(a: Value, *, irnd: str, dtype: str, atype: str, sat: bool = False) -> Value:
    """d = a rounded to an integer and clamped to the range of dtype; NaN gives 0, in 64 bits the top bit alone."""
    return float_to_integer(INTEGER_ROUNDING[irnd](read_float(a, atype)), dtype, nan_integer(dtype, atype))


# -- float to float ---------------------------------------------------------------------------------------------------


def read_float(a: Value, t: str) -> Value:
    """An operand of a float type as f32 (f16, bf16, f32) or f64, exactly."""
    return widen(a.bits("u16"), FORMAT_OF[t]) if t in ("f16", "bf16") else a


def write_float(x: Value, t: str, rounding: str = "rn", *, satfinite: bool = False, relu: bool = False) -> Value:
    """x (f32 or f64) in a float type, rounded once; NaN becomes that type's canonical NaN."""
    if t == "f64":
        return quiet_first(x.to("f64"), x.to("f64"))
    if t == "f32":
        if x.type == "f32":
            return canonical(x)
        return canonical(x.to("f32")) if rounding == "rn" else to_f32(x, rounding)
    return encode(x, FORMAT_OF[t], rounding, satfinite=satfinite, relu=relu).to("u16").bits(value_type(t))


def convert_float(
    a: Value, dtype: str, atype: str, rounding: str = "rn", irnd: str = "", ftz: bool = False, sat: bool = False
) -> Value:
    """A float of atype in dtype: .ftz on an f32 operand, .irnd, .sat, rounding, .ftz on an f32 result."""
    x = read_float(a, atype)
    if ftz and atype == "f32" and dtype != "f16":  # measured on an H200: .ftz does nothing in cvt.f16.f32
        x = canonical(flush(x))
    if irnd:
        x = INTEGER_ROUNDING[irnd](x)
    result = write_float(saturate(x) if sat else x, dtype, rounding)
    if atype == "f64" and dtype != "f64" and not sat:
        word = UNSIGNED_OF[dtype]
        result = select(is_nan(x), nan_narrowed(x, FORMAT_OF[dtype]).to(word), result.bits(word)).bits(result.type)
    if not (ftz and dtype == "f32"):
        return result
    if x.type == "f32":
        return flush(result)
    return select(is_tiny(x, FORMAT_OF["f32"], rounding), sign_bit(result), result.bits("u32")).bits("f32")


def nan_narrowed(x: Value, fmt: Format) -> Value:
    """The code (u64) of an f64 NaN in a narrower format: sign and upper payload bits kept, quiet."""
    bits = quiet(x).bits("u64")
    payload = (bits & ((1 << F64_MANTISSA) - 1)) >> (F64_MANTISSA - fmt.mantissa_bits)
    return ((bits >> (64 - fmt.bits)) & (1 << (fmt.bits - 1))) | payload | inf_code(fmt)


@pure("cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("f16",), atype=("f32",), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
@pure("cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("bf16",), atype=("f32",), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
@pure("cvt.rnd{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("f16",), atype=("f64",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
@pure("cvt.rnd.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("bf16",), atype=("f64",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
@pure("cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("f32",), atype=("f64",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
@pure("cvt{.rnd}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("f16",), atype=("bf16",), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
@pure("cvt{.rnd}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("bf16",), atype=("f16",), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
def cvt_narrowing(a: Value, *, dtype: str, atype: str, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a rounded to the precision and range of dtype."""
    return convert_float(a, dtype, atype, rnd, ftz=ftz, sat=sat)


@pure("cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype", dtype=("f32",), atype=("f16",), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
@pure("cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype", dtype=("f64",), atype=("f32",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
@pure("cvt{.sat}.dtype.atype d:dtype, a:atype", dtype=("f64",), atype=("f16",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
@pure("cvt{.rnd}.dtype.atype d:dtype, a:atype", rnd=ROUNDING, dtype=("f64",), atype=("bf16",), section=SECTION,
      not_modelled=NAN_F64)  # fmt: skip
def cvt_widening(a: Value, *, dtype: str, atype: str, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Value:
    """d = a, which the wider type holds exactly."""
    return convert_float(a, dtype, atype, ftz=ftz, sat=sat)


@pure("cvt{.rnd}.f32.bf16 d:f32, a:bf16", rnd=ROUNDING, section=SECTION, moves=("a",),
      not_modelled="NaN payloads: kept (the ISA leaves them open; ptxas emits a shift).")  # fmt: skip
def cvt_f32_bf16(a: Value, *, rnd: str = "rn") -> Value:
    """d = a: the bits of a are the upper half of d."""
    return widen(a, FORMAT_OF["bf16"])


@pure("cvt{.rnd}.ftz.f32.bf16 d:f32, a:bf16", rnd=ROUNDING, section=SECTION, not_modelled=NAN_BITS)
def cvt_ftz_f32_bf16(a: Value, *, rnd: str = "rn") -> Value:
    """d = a, zero if that is subnormal."""
    return convert_float(a, "f32", "bf16", ftz=True)


# -- float to the same type -------------------------------------------------------------------------------------------


@pure("cvt.type.atype d:type, a:type", section=SECTION, moves=("a",), **F32)
@pure("cvt.type.atype d:type, a:type", section=SECTION, moves=("a",), **F64)
def cvt_same(a: Value, *, type: str, atype: str) -> Value:
    """d = a."""
    return a


@pure("cvt.irnd{.ftz}{.sat}.type.atype d:type, a:type", irnd=INTEGER_ROUNDING, section=SECTION,
      not_modelled=NAN_BITS, **F32)  # fmt: skip
@pure("cvt.irnd{.sat}.type.atype d:type, a:type", irnd=INTEGER_ROUNDING, section=SECTION, not_modelled=NAN_F64, **F64)
@pure("cvt{.irnd}{.sat}.type.atype d:type, a:type", irnd=INTEGER_ROUNDING, type=("f16",), atype=("f16",),
      section=SECTION, not_modelled=NAN_BITS)  # fmt: skip
@pure("cvt{.irnd}.type.atype d:type, a:type", irnd=INTEGER_ROUNDING, type=("bf16",), atype=("bf16",),
      section=SECTION, not_modelled=NAN_BITS)  # fmt: skip
def cvt_integral(a: Value, *, type: str, atype: str, irnd: str = "", ftz: bool = False, sat: bool = False) -> Value:
    """d = a, with .irnd rounded to an integral value."""
    return convert_float(a, type, atype, irnd=irnd, ftz=ftz, sat=sat)


@pure("cvt.ftz{.sat}.f32.f32 d, a", section=SECTION, not_modelled=NAN_BITS)
def cvt_flushed(a: Value, *, sat: bool = False) -> Value:
    """d = a, zero if that is subnormal."""
    return convert_float(a, "f32", "f32", ftz=True, sat=sat)


@pure("cvt.sat.type.atype d:type, a:type", section=SECTION, **F32)
@pure("cvt.sat.type.atype d:type, a:type", section=SECTION, **F64)
def cvt_saturated(a: Value, *, type: str, atype: str) -> Value:
    """d = a clamped to [+0, 1]; NaN gives +0."""
    return saturate(a)


# -- f32 to 16 bits and tf32, with .relu and .satfinite ---------------------------------------------------------------


@pure("cvt.rnd.relu{.satfinite}.dtype.f32 d:dtype, a:f32", rnd=("rn", "rz"), dtype=("f16", "bf16"), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
def cvt_relu_half(a: Value, *, rnd: str, dtype: str, satfinite: bool = False) -> Value:
    """d = a rounded to 16 bits, +0 if that is negative; with .satfinite overflow gives the largest value."""
    return write_float(a, dtype, rnd, satfinite=satfinite, relu=True)


@pure("cvt.rnd.satfinite.dtype.f32 d:dtype, a:f32", rnd=("rn", "rz"), dtype=("f16", "bf16"), section=SECTION,
      not_modelled=NAN_BITS)  # fmt: skip
def cvt_satfinite_half(a: Value, *, rnd: str, dtype: str) -> Value:
    """d = a rounded to 16 bits; overflow gives the largest value."""
    return write_float(a, dtype, rnd, satfinite=True)


@pure("cvt.rnd{.satfinite}{.relu}.tf32.f32 d:b32, a:f32", rnd=("rn", "rz"), section=SECTION, not_modelled=NAN_BITS)
def cvt_tf32(a: Value, *, rnd: str, satfinite: bool = False, relu: bool = False) -> Value:
    """d = a rounded to tf32: 10 mantissa bits on top of the register, 13 zeros below."""
    return encode(a, TF32, rnd, satfinite=satfinite, relu=relu) << 13


@pure("cvt.rna{.satfinite}.tf32.f32 d:b32, a:f32", section=SECTION, not_modelled=NAN_RNA)
def cvt_rna_tf32(a: Value, *, satfinite: bool = False) -> Value:
    """d = a rounded to tf32, ties away from zero."""
    cut = a.bits("u32") & ~0x1FFF
    return select(is_nan(a), cut - 0x2000 if satfinite else cut, encode(a, TF32, "rna", satfinite=satfinite) << 13)
