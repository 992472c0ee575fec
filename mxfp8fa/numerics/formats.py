"""Small floating-point formats as data, and the two directions between codes and values.

A *code* is the integer that is stored, a *value* is the number it stands for. Every format here is
`[sign | exponent | mantissa]`, so one formula with different field widths covers them all:

    exponent field 0:  value = (-1)^sign * 2^(1 - bias)        * (mantissa / 2^mantissa_bits)       (subnormal)
    otherwise:         value = (-1)^sign * 2^(exponent - bias) * (1 + mantissa / 2^mantissa_bits)

`encode_scalar` and `decode_scalar` say that in plain Python with exact fractions; `encode` and `decode` do the same
for arrays with integer operations on the float32 bit pattern. The tests hold the two against each other.

Rounding is that of the hardware conversion `cvt.rn.satfinite` (PTX ISA, cvt): to nearest, ties to even, and a magnitude
above the largest finite value, infinity included, becomes that value. E8M0 is the exception, see `encode`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

FLOAT32_BIAS = 127
FLOAT32_MANTISSA_BITS = 23
FLOAT32_ABS_MASK = np.int32(0x7FFFFFFF)
FLOAT32_INF_BITS = np.int32(0x7F800000)

# Elements per pass: small enough that the work arrays of a pass stay in a level 2 cache, large enough that the few
# microseconds of Python around them do not count.
CHUNK = 1 << 16


@dataclass(frozen=True)
class Format:
    """One floating-point format: field widths, exponent bias and the codes that are special.

    Attributes:
        name: lower-case name, as accepted by every `fmt=` argument.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the mantissa field, the hidden bit not counted.
        bias: exponent field of the value 1.0.
        max_code: code of the largest finite value.
        nan_code: the NaN that conversions produce, or None if the format has no NaN.
        inf_code: code of +infinity, or None.
        signed: False only for E8M0.
        has_subnormals: False only for E8M0, whose exponent field 0 is an ordinary power of two.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_code: int
    nan_code: int | None
    inf_code: int | None = None
    signed: bool = True
    has_subnormals: bool = True

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @property
    def has_infinity(self) -> bool:
        """Whether some code stands for infinity."""
        return self.inf_code is not None

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value; subnormals share it."""
        return 1 - self.bias if self.has_subnormals else -self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value (`emax` of OCP MX v1.0: 8 for E4M3, 15 for E5M2)."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def max_value(self) -> float:
        """Largest finite value."""
        return float(decode_scalar(self.max_code, self))

    @property
    def min_normal(self) -> float:
        """Smallest positive normal value."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value; equal to `min_normal` where the format has no subnormals."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits) if self.has_subnormals else self.min_normal


# OCP 8-bit floating point specification (OFP8) v1.0: E4M3 gives its top exponent to numbers and keeps only mantissa 111
# for NaN; E5M2 is IEEE-like.
E4M3 = Format("e4m3", 4, 3, bias=7, max_code=0x7E, nan_code=0x7F)
E5M2 = Format("e5m2", 5, 2, bias=15, max_code=0x7B, nan_code=0x7F, inf_code=0x7C)
# OCP MX v1.0, section 5.4.1: a bare exponent, 2^-127 to 2^127; no sign, no zero, no infinity.
E8M0 = Format("e8m0", 8, 0, bias=127, max_code=0xFE, nan_code=0xFF, signed=False, has_subnormals=False)
# OCP MX v1.0, section 5.3: every code is a number.
E2M3 = Format("e2m3", 2, 3, bias=1, max_code=0x1F, nan_code=None)
E3M2 = Format("e3m2", 3, 2, bias=3, max_code=0x1F, nan_code=None)
E2M1 = Format("e2m1", 2, 1, bias=1, max_code=0x7, nan_code=None)
# Wider tensor-core operands. Their codes do not fit a byte, so encode and decode refuse them; `mma` needs their fields.
F16 = Format("f16", 5, 10, bias=15, max_code=0x7BFF, nan_code=0x7FFF, inf_code=0x7C00)
BF16 = Format("bf16", 8, 7, bias=127, max_code=0x7F7F, nan_code=0x7FFF, inf_code=0x7F80)
TF32 = Format("tf32", 8, 10, bias=127, max_code=0x3FBFF, nan_code=0x3FFFF, inf_code=0x3FC00)

FORMATS = {f.name: f for f in (E4M3, E5M2, E8M0, E2M3, E3M2, E2M1, F16, BF16, TF32)}


def get_format(fmt: str | Format) -> Format:
    """The `Format` called `fmt`; a `Format` is returned as it is.

    Raises:
        ValueError: no format has that name.
    """
    if isinstance(fmt, Format):
        return fmt
    if isinstance(fmt, str) and fmt.lower() in FORMATS:
        return FORMATS[fmt.lower()]
    raise ValueError(f"fmt = {fmt!r} is not a known format; allowed: {', '.join(FORMATS)}")


def _byte_format(fmt: str | Format) -> Format:
    fmt = get_format(fmt)
    if fmt.bits > 8:
        raise ValueError(f"{fmt.name} codes have {fmt.bits} bits; encode and decode handle formats of at most 8 bits")
    return fmt


def decode_scalar(code: int, fmt: str | Format) -> float:
    """The value of one code, exactly (a Python float holds every value of these formats).

    Raises:
        ValueError: not an integer, or one that does not fit the format.
    """
    fmt = get_format(fmt)
    code = _checked_code(code, fmt)
    sign_bit = 1 << (fmt.bits - 1) if fmt.signed else 0
    sign = -1.0 if code & sign_bit else 1.0
    magnitude = code & ~sign_bit
    if magnitude > fmt.max_code:
        return sign * float("inf") if magnitude == fmt.inf_code else float("nan")
    exponent, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    if exponent == 0 and fmt.has_subnormals:
        return sign * 2.0**fmt.min_exponent * (mantissa / 2**fmt.mantissa_bits)
    return sign * 2.0 ** (exponent - fmt.bias) * (1 + mantissa / 2**fmt.mantissa_bits)


def _checked_code(code: int, fmt: Format) -> int:
    """The code as a Python integer: masks of a sign bit do not fit into NumPy's small ones."""
    if not isinstance(code, int | np.integer):
        raise ValueError(f"code = {code!r}; allowed: an integer from 0 to {(1 << fmt.bits) - 1:#x}")
    if not 0 <= code < 1 << fmt.bits:
        raise ValueError(f"code = {code:#x} does not fit {fmt.name}: allowed are 0 to {(1 << fmt.bits) - 1:#x}")
    return int(code)


def encode_scalar(value: float, fmt: str | Format, *, saturate: bool = True, rounding: str = "nearest") -> int:
    """The code nearest to `value` by exact distances to the two values around it: the definition `encode` must meet.

    Raises:
        ValueError: as for `encode`.
    """
    fmt = _checked_format(fmt, saturate, rounding)
    if not isinstance(value, Real):
        raise ValueError(f"value = {value!r}; allowed: a real number")
    if math.isnan(value):
        return fmt.max_code if fmt.nan_code is None else fmt.nan_code
    values = _exact_values(fmt)
    target = values[-1] if abs(value) >= values[-1] else abs(Fraction(float(value)))
    upper = bisect_left(values, target)
    lower = upper if values[upper] == target else max(upper - 1, 0)
    to_lower, to_upper = abs(target - values[lower]), abs(values[upper] - target)
    tie_goes_up = fmt is E8M0 or lower % 2 == 1
    if rounding == "nearest":
        code = upper if to_upper < to_lower or (to_upper == to_lower and tie_goes_up) else lower
    else:
        code = upper if rounding == "up" else lower
    if code > fmt.max_code or (math.isinf(value) and not saturate):
        code = fmt.max_code if saturate else _overflow_code(fmt)
    return code | (_sign_bit(fmt) if math.copysign(1.0, value) < 0 else 0)


@cache
def _exact_values(fmt: Format) -> list[Fraction]:
    """Values of the codes 0 to `max_code`, and the value that would come next: rounding to that one is overflow."""
    values = [Fraction(decode_scalar(code, fmt)) for code in range(fmt.max_code + 1)]
    return [*values, 2 * values[-1] if fmt is E8M0 else 2 * values[-1] - values[-2]]


def _sign_bit(fmt: Format) -> int:
    return 1 << (fmt.bits - 1) if fmt.signed else 0


def _overflow_code(fmt: Format) -> int:
    """Where a magnitude beyond the largest value goes without saturation: infinity, else NaN."""
    code = fmt.nan_code if fmt.inf_code is None else fmt.inf_code
    assert code is not None, "callers check that the format has one"
    return code


def _checked_format(fmt: str | Format, saturate: bool, rounding: str) -> Format:
    fmt = _byte_format(fmt)
    if not saturate and fmt.nan_code is None:
        raise ValueError(f"saturate = False: {fmt.name} has no infinity and no NaN; allowed: True")
    allowed = ("nearest", "up", "down") if fmt is E8M0 else ("nearest",)
    if rounding not in allowed:
        raise ValueError(f"rounding = {rounding!r} for {fmt.name}; allowed: {', '.join(allowed)}")
    return fmt


def as_array(x: Any, name: str = "x", dtype: DTypeLike | None = None) -> NDArray[Any]:
    """`np.asarray`, but for masked arrays, whose mask it would drop in silence.

    Raises:
        ValueError: a masked array, or what makes no array.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array; masks mean nothing here: pass its .filled(value) or .data")
    return np.asarray(x, dtype)


def to_float32(x: ArrayLike) -> NDArray[np.float32]:
    """`x` as float32 without any rounding: float32 as it is, float16 and bfloat16 widened.

    bfloat16 is recognised by its name, so arrays of any package that registers one with NumPy work and none is needed.

    Raises:
        ValueError: any other dtype. Narrowing is left to the caller, who knows how to round.
    """
    array = as_array(x)
    if array.dtype == np.float32:
        return array
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.name == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    raise ValueError(f"dtype = {array.dtype}; allowed: float32, float16, bfloat16")


def round_values(x: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Float32 or float64 values rounded once, to nearest even, to the values that `dtype` has; the array's dtype stays.

    Args:
        x: any shape.
        dtype: "float32", "float16" or "bfloat16"; magnitudes beyond their largest values become infinity.

    Raises:
        ValueError: another dtype.
    """
    if dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"dtype = {dtype!r}; allowed: float32, float16, bfloat16")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype != "bfloat16":
            return x.astype(dtype).astype(x.dtype)
        values = _float64_to_odd_float32(x) if x.dtype == np.float64 else to_float32(x)
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, rounded.view(np.float32)).astype(x.dtype)


def _float64_to_odd_float32(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """float64 truncated to float32 with the lost bits folded into the last one (round to odd).

    Rounding the result to fewer than 23 bits then gives what rounding `x` directly would (S. Boldo and G. Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008); a plain cast would round twice.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = x.astype(np.float32)
        bits = nearest.view(np.int32)
        inexact = (nearest != x) & ~np.isnan(x)
        # Step back where the cast rounded away from zero: as integers, magnitudes are ordered.
        bits = bits - (inexact & (np.abs(nearest) > np.abs(x)))
    return (bits | inexact).view(np.float32)


def encode(
    x: ArrayLike, fmt: str | Format, *, saturate: bool = True, rounding: str = "nearest"
) -> NDArray[np.uint8]:
    """Codes of the values in `x`, one byte each, in the shape of `x`.

    E4M3, E5M2, E2M3, E3M2, E2M1: round to nearest, ties to even. A magnitude that rounds above the largest value
    becomes it (`saturate=True`, infinity too; PTX ISA, cvt.rn.satfinite), or infinity if the format has one, else NaN
    (`saturate=False`). NaN gives the format's NaN, 0x7F, or +max_value in a format without NaN. -0.0 keeps its sign.

    E8M0 encodes |x|: `rounding` is "nearest" (halfway goes up), "up" or "down" (PTX ISA, cvt.rp and cvt.rz to ue8m0).
    Zero and everything below 2^-127 give code 0, which is 2^-127; overflow gives 0xFE, or 0xFF (NaN) if not `saturate`.

    Args:
        x: float32, float16, bfloat16 or float64 values of any shape; float64 is rounded once, not by way of float32.
        fmt: a format of at most 8 bits, or its name.
        saturate: what overflow becomes.
        rounding: see above; only E8M0 has a choice.

    Raises:
        ValueError: unknown format, a format wider than 8 bits, `saturate=False` where no code could say overflow,
            a rounding the format does not have, or a dtype that is not one of the four.
    """
    fmt = _checked_format(fmt, saturate, rounding)
    array = as_array(x)
    values = _float64_to_odd_float32(array) if array.dtype == np.float64 else to_float32(array)
    codes = np.empty(array.shape, np.uint8)
    flat_bits = np.ascontiguousarray(values).reshape(-1).view(np.int32)
    flat_codes = codes.reshape(-1)
    for start in range(0, flat_bits.size, CHUNK):
        bits = flat_bits[start : start + CHUNK]
        out = flat_codes[start : start + CHUNK]
        if fmt is E8M0:
            out[...] = _encode_e8m0_bits(bits, saturate, rounding)
        else:
            _encode_element_bits(bits, fmt, saturate, out)
    return codes


def _encode_element_bits(bits: NDArray[np.int32], fmt: Format, saturate: bool, out: NDArray[np.uint8]) -> None:
    """Codes of any float32 bit patterns, specials included."""
    magnitude = bits & FLOAT32_ABS_MASK
    nan = magnitude > FLOAT32_INF_BITS
    largest = np.float32(fmt.max_value).view(np.int32)
    overflow = np.zeros_like(nan) if saturate else magnitude >= _overflow_threshold(fmt)
    np.minimum(magnitude, largest, out=magnitude)
    round_magnitudes(magnitude, out, RoundWork(magnitude.size, fmt))
    if not saturate:
        out[overflow] = _overflow_code(fmt)
    out |= (bits < 0).view(np.uint8) * np.uint8(_sign_bit(fmt))
    out[nan] = fmt.max_code if fmt.nan_code is None else fmt.nan_code


def _overflow_threshold(fmt: Format) -> int:
    """float32 bit pattern of the smallest magnitude that rounds beyond the largest value."""
    half_step = 2.0 ** (fmt.max_exponent - fmt.mantissa_bits - 1)
    tie = int(np.float32(fmt.max_value + half_step).view(np.int32))
    # The tie goes to the even code: down if the largest value has it (E4M3, 0x7E), up if not (E5M2, 0x7B).
    return tie + 1 if fmt.max_code % 2 == 0 else tie


class RoundWork:
    """Scratch and constants of `round_magnitudes`, for arrays of up to `size` elements."""

    def __init__(self, size: int, fmt: Format) -> None:
        self.fmt = fmt
        self.power = np.empty(size, np.int32)
        # An array, because NumPy's integer maximum is three times slower with a scalar operand.
        self.min_normal = np.full(size, np.float32(fmt.min_normal).view(np.int32))


def round_magnitudes(magnitude: NDArray[np.int32], out: NDArray[np.uint8], work: RoundWork) -> None:
    """Codes, without sign, of non-negative float32 bit patterns, rounded to nearest even; overwrites `magnitude`.

    The float32 adder does the rounding. With 2^E the power of two at or below a value (at least `min_normal`), the code
    counts units of 2^(E - mantissa_bits), and that is the last place of 2^(E + 23 - mantissa_bits): adding this power
    to the value rounds it there, and the difference of the two bit patterns is the count n. For normal results n runs
    from 2^mantissa_bits to twice that, and the code is n plus a multiple of E; a carry into the next exponent comes out
    right by itself. Below `min_normal` the code is n.

    Args:
        magnitude: bit patterns of values below 2^(max_exponent + 1), 1-D contiguous; beyond that the code is garbage.
        out: codes, the same shape. A value above `max_value` may give `max_code + 1`: clamping is the caller's.
        work: made for the format, of at least this size.
    """
    fmt, size = work.fmt, magnitude.size
    shift = FLOAT32_MANTISSA_BITS - fmt.mantissa_bits
    power, values = work.power[:size], magnitude.view(np.float32)
    np.bitwise_and(magnitude, FLOAT32_INF_BITS, out=power)
    np.maximum(power, work.min_normal[:size], out=power)
    np.add(power, np.int32(shift << FLOAT32_MANTISSA_BITS), out=power)
    np.add(values, power.view(np.float32), out=values)
    np.subtract(magnitude, power, out=magnitude)
    np.right_shift(power, np.int32(shift), out=power)
    np.add(magnitude, power, out=magnitude)
    np.copyto(out, magnitude, casting="unsafe")
    # What remains to subtract, the biases of both exponents and the hidden bit, is taken modulo 256.
    excess = ((FLOAT32_BIAS + shift - fmt.bias) << fmt.mantissa_bits) + (1 << fmt.mantissa_bits)
    np.subtract(out, np.uint8(excess % 256), out=out)


def _encode_e8m0_bits(bits: NDArray[np.int32], saturate: bool, rounding: str) -> NDArray[np.int32]:
    """E8M0 codes of float32 bit patterns, by the exponent field and what the mantissa adds to it."""
    magnitude = bits & FLOAT32_ABS_MASK
    # float32 has no normal 2^-127: double the mantissa of subnormals so that field 0 counts from 2^-127 upwards.
    subnormal = magnitude < (1 << FLOAT32_MANTISSA_BITS)
    stretched = np.where(subnormal, np.maximum(magnitude - (1 << 22), 0) << 1, magnitude)
    carry = {"down": 0, "nearest": 1 << 22, "up": (1 << 23) - 1}[rounding]
    codes = np.minimum(stretched, FLOAT32_INF_BITS) + carry >> FLOAT32_MANTISSA_BITS
    codes = np.minimum(codes, 0xFE if saturate else 0xFF)
    return np.where(magnitude > FLOAT32_INF_BITS, 0xFF, codes)


@cache
def decode_table(fmt: Format) -> NDArray[np.float32]:
    """Values of all codes of `fmt`, read-only; index it with codes."""
    table = np.array([decode_scalar(code, fmt) for code in range(1 << fmt.bits)], np.float32)
    table.flags.writeable = False
    return table


def decode(codes: ArrayLike, fmt: str | Format) -> NDArray[np.float32]:
    """Values of uint8 codes, exact in float32 (E8M0 code 0 is 2^-127, a float32 subnormal).

    Raises:
        ValueError: unknown or wider format, codes that are not uint8, or a code that does not fit the format.
    """
    fmt = _byte_format(fmt)
    array = as_array(codes, "codes")
    if array.dtype != np.uint8:
        raise ValueError(f"codes have dtype {array.dtype}; allowed: uint8")
    if fmt.bits < 8 and array.size and array.max() >> fmt.bits:
        raise ValueError(f"code = {array.max():#x} does not fit {fmt.name}: allowed are 0 to {(1 << fmt.bits) - 1:#x}")
    values = np.empty(array.shape, np.float32)
    decode_into(np.ascontiguousarray(array).reshape(-1), fmt, values.reshape(-1))
    return values


def decode_into(codes: NDArray[np.uint8], fmt: Format, out: NDArray[np.float32]) -> None:
    """`decode` of 1-D codes into `out`, in chunks: `take` widens its indices to 8 bytes each."""
    table = decode_table(fmt)
    for start in range(0, codes.size, CHUNK):
        # "clip" only selects NumPy's unbuffered path; every code has an entry.
        np.take(table, codes[start : start + CHUNK], out=out[start : start + CHUNK], mode="clip")
