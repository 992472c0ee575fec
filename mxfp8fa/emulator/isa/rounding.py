"""Rounding and special values, shared by the floating-point instructions (no instruction is defined here).

Everything is built from `values.py` primitives, whose float arithmetic rounds to nearest even. The other modes follow
from two facts:

- A float64 result that carries a sticky last bit (*rounded to odd*) can be rounded again, in any mode, to a format with
  at least two bits less, and comes out as if rounded once (S. Boldo, G. Melquiond, "Emulation of FMA and correctly
  rounded sums: proved algorithms using rounding to odd", 2008). So f32 sums go through `odd_sum` and `encode`.
- A float64 result rounded to nearest is one of the two neighbours of the exact result; the sign of its error says
  whether a directed mode takes the other one (`directed_f64`).
"""

from __future__ import annotations

from collections.abc import Callable

from mxfp8fa.emulator.values import Value, const, fma_sign, select
from mxfp8fa.numerics.formats import BF16, F16, Format

ROUNDING = ("rn", "rz", "rm", "rp")

# The two wide formats as the same kind of data as the narrow ones. Canonical NaNs: arithmetic on f32 delivers 0x7FFFFFFF
# (PTX ISA leaves the bits open; NVIDIA's headers call it CUDART_NAN_F), f64 delivers 0xFFF8000000000000 (CUDART_NAN).
F32 = Format("f32", 8, 23, bias=127, max_code=0x7F7FFFFF, nan_code=0x7FFFFFFF, inf_code=0x7F800000)
F64 = Format(
    "f64", 11, 52, bias=1023, max_code=0x7FEFFFFFFFFFFFFF, nan_code=0xFFF8000000000000, inf_code=0x7FF0000000000000
)
FORMAT_OF = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
UNSIGNED_OF = {"f16": "u16", "bf16": "u16", "f32": "u32", "f64": "u64"}


def float_const(x: float, t: str) -> Value:
    """The constant x (exact in t) as a float Value; t is f32 or f64."""
    import numpy as np

    wide = np.array(x, dtype={"f32": np.float32, "f64": np.float64}[t])
    return const(int(wide.view({"f32": np.uint32, "f64": np.uint64}[t])), t)


def is_nan(x: Value) -> Value:
    """Whether a float is NaN."""
    return x.ne(x)


def magnitude_bits(x: Value) -> Value:
    """The bits of a float without its sign, unsigned."""
    word = UNSIGNED_OF[x.type]
    return x.bits(word) & ((1 << (FORMAT_OF[x.type].bits - 1)) - 1)


def sign_bit(x: Value) -> Value:
    """The bits of a float with all but the sign cleared, unsigned."""
    word = UNSIGNED_OF[x.type]
    return x.bits(word) & (1 << (FORMAT_OF[x.type].bits - 1))


def flush(x: Value) -> Value:
    """x, with a subnormal replaced by zero of the same sign (.ftz)."""
    subnormal = magnitude_bits(x) < (1 << FORMAT_OF[x.type].mantissa_bits)
    return select(subnormal, sign_bit(x), x.bits(UNSIGNED_OF[x.type])).bits(x.type)


def canonical(x: Value) -> Value:
    """x (f32), with any NaN replaced by the canonical one."""
    return select(is_nan(x), const(F32.nan_code or 0, "f32"), x)


def saturate(x: Value) -> Value:
    """x (f32 or f64) clamped to [+0, 1]; NaN gives +0 (.sat)."""
    one = float_const(1.0, x.type)
    positive = select(x > const(0, x.type), x, const(0, x.type))
    return select(positive < one, positive, one)


def quiet_first(result: Value, *operands: Value) -> Value:
    """result (f64) unless it is NaN; then the first NaN operand, quieted, or the default NaN where no operand is NaN.

    PTX ISA, 9.7.3: NaN payloads are supported in double precision. Which operand wins is not documented (inferred).
    """
    nan = const(F64.nan_code or 0, "f64")
    for operand in reversed(operands):
        quieted = (operand.bits("u64") | (1 << (F64.mantissa_bits - 1))).bits("f64")
        nan = select(is_nan(operand), quieted, nan)
    return select(is_nan(result), nan, result)


def sum_error(a: Value, b: Value, s: Value) -> Value:
    """a + b - s, exactly, for the rounded f64 sum s (D. Knuth, The Art of Computer Programming 2, section 4.2.2)."""
    b_seen = s - a
    return (a - (s - b_seen)) + (b - b_seen)


def odd_sum(a: Value, b: Value) -> Value:
    """a + b rounded to odd in f64. a and b come from f32 numbers or their products, so nothing over- or underflows."""
    s = a + b
    error = sum_error(a, b, s)
    zero = const(0, "f64")
    above, below = error > zero, error < zero
    outward = select(s > zero, above, below)
    word = s.bits("u64")
    nudged = select(outward, word + 1, word - 1)
    inexact_even = (above | below) & (word & 1).eq(0)  # an overflowed or NaN sum has a NaN error: neither above nor below
    return select(inexact_even, nudged, word).bits("f64")


def signed_zero_sum(result: Value, a: Value, b: Value, rounding: str) -> Value:
    """result, the sum a + b, with the zero that IEEE 754 section 6.3 asks for under rm: -0 unless both are +0.

    `result` has the f32 or f64 type of the sum, a and b are the f64 (or same-typed) terms.
    """
    if rounding != "rm":
        return result
    exact_zero = (a + b).eq(const(0, a.type))
    negative = (sign_bit(a) | sign_bit(b)).ne(0)
    minus_zero = const(1 << (FORMAT_OF[result.type].bits - 1), result.type)
    return select(exact_zero & negative, minus_zero, result)


def directed_f64(nearest: Value, error: Value, rounding: str) -> Value:
    """The f64 result of a directed mode, from the result to nearest and the sign of (exact - nearest)."""
    word, zero = nearest.bits("u64"), const(0, "f64")
    negative = sign_bit(nearest).ne(0)
    above, below = error > zero, error < zero
    outward, inward = word + 1, word - 1
    if rounding == "rp":
        moved = select(above, select(negative, inward, outward), word)
    elif rounding == "rm":
        moved = select(below, select(negative, outward, inward), word)
    else:
        moved = select(select(negative, above, below) & magnitude_bits(nearest).ne(0), inward, word)
    return moved.bits("f64")


def fma_error(a: Value, b: Value, c: Value, nearest: Value) -> Value:
    """The sign of a * b + c - nearest, exactly, as an f64."""
    return fma_sign(a, b, c, nearest)


def _exponent_and_significand(x: Value, word: str, lowest: int) -> tuple[Value, Value, Value]:
    """(biased exponent, at least `lowest`; significand with its hidden bit; how far below `lowest` the exponent is)."""
    wide = FORMAT_OF[x.type]
    magnitude = magnitude_bits(x).to(word)
    field = magnitude >> wide.mantissa_bits
    hidden = select(field.eq(0), const(0, word), const(1 << wide.mantissa_bits, word))
    significand = (magnitude & ((1 << wide.mantissa_bits) - 1)) | hidden
    own = select(field.eq(0), const(1, word), field)
    exponent = select(own < lowest, const(lowest, word), own)
    return exponent, significand, exponent - own


def _increment(rounding: str, negative: Value, significand: Value, shift: Value) -> Value:
    """What is added to a significand before its low `shift` bits are cut off."""
    one = const(1, significand.type)
    unit = one << shift
    if rounding == "rn":
        return (unit >> 1) - 1 + ((significand >> shift) & 1)
    if rounding == "rna":
        return unit >> 1
    if rounding == "rm":
        return select(negative, unit - 1, 0)
    if rounding == "rp":
        return select(negative, const(0, significand.type), unit - 1)
    return const(0, significand.type)


def _overflow_code(fmt: Format, rounding: str, negative: Value, infinite: Value, satfinite: bool, word: str) -> Value:
    """The magnitude code of a value beyond the largest finite one."""
    largest = const(fmt.max_code, word)
    if satfinite:
        return largest
    beyond = const(fmt.max_code if fmt.nan_code is None else fmt.nan_code, word)
    if fmt.inf_code is not None:
        beyond = const(fmt.inf_code, word)
    if rounding == "rz":
        return select(infinite, beyond, largest)
    if rounding == "rm":
        return select(infinite | negative, beyond, largest)
    if rounding == "rp":
        return select(infinite, beyond, select(negative, largest, beyond))
    return beyond


def encode(
    x: Value,
    fmt: Format,
    rounding: str = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
    random: tuple[Value, int] | None = None,
) -> Value:
    """The code of a float in a narrower format, rounded once.

    Args:
        x: f32 or f64.
        fmt: a signed format with fewer mantissa bits and no more exponent bits than x's.
        rounding: rn, rna, rz, rm, rp; or rs, with `random`.
        satfinite: beyond the largest finite value (infinities too) give that value; otherwise infinity, or NaN, or
            (formats without either) still the largest value.
        relu: negative results become +0.
        random: for rs, (random bits, how many): they are added to the top of the bits that are cut off, and the carry
            decides (PTX ISA, cvt, "Random bits semantics").

    Returns:
        The code in an unsigned Value (u32 for f32, u64 for f64 or rs). NaN gives the format's canonical NaN, positive;
        in a format without NaN its largest value.
    """
    wide = FORMAT_OF[x.type]
    word = "u64" if random else UNSIGNED_OF[x.type]
    negative = sign_bit(x).ne(0)
    dropped = wide.mantissa_bits - fmt.mantissa_bits
    rebias = wide.bias - fmt.bias
    exponent, significand, below = _exponent_and_significand(x, word, rebias + 1)
    # Beyond this shift nothing is left of the significand, and no increment carries it back.
    longest = wide.mantissa_bits + (1 + random[1] if random else 2)
    shift = below + dropped
    shift = select(shift < longest, shift, longest)
    increment = (random[0].to(word) << (shift - random[1])) if random else _increment(rounding, negative, significand, shift)
    quotient = (significand + increment) >> shift
    # The hidden bit, still at bit `mantissa_bits` of the quotient of a normal number, adds the 1 that was subtracted.
    code = ((exponent - (rebias + 1)) << fmt.mantissa_bits) + quotient
    infinite = magnitude_bits(x).eq(wide.inf_code or 0)
    code = select(code > fmt.max_code, _overflow_code(fmt, rounding, negative, infinite, satfinite, word), code)
    if relu:
        code = select(negative, const(0, word), code)
    else:
        code = select(negative, code | (1 << (fmt.bits - 1)), code)
    return select(is_nan(x), const(fmt.max_code if fmt.nan_code is None else fmt.nan_code, word), code)


def decode(code: Value, fmt: Format) -> Value:
    """The value of a code as an f32, exactly; a NaN code gives the canonical NaN.

    The field moves to f32's place and a multiplication by a power of two corrects the bias, which also normalises
    subnormals.
    """
    code = code.to("u32")
    magnitude = code & ((1 << (fmt.bits - 1)) - 1)
    scaled = (magnitude << (F32.mantissa_bits - fmt.mantissa_bits)).bits("f32")
    value = scaled * float_const(2.0 ** (F32.bias - fmt.bias), "f32")
    if fmt.inf_code is not None:
        value = select(magnitude.eq(fmt.inf_code), const(F32.inf_code or 0, "f32"), value)
    word = value.bits("u32") | ((code >> (fmt.bits - 1)) << 31)
    if fmt.nan_code is not None:
        nan = magnitude > (fmt.max_code if fmt.inf_code is None else fmt.inf_code)
        word = select(nan, const(F32.nan_code or 0, "u32"), word)
    return word.bits("f32")


def halves(x: Value, width: int = 16) -> tuple[Value, Value]:
    """(low, high): the two lowest fields of `width` bits, 8 and 16 in an unsigned Value of that width, 4 and 32 too."""
    field = {4: "u8", 8: "u8", 16: "u16", 32: "u32"}[width]
    mask = (1 << width) - 1
    return (x & mask).to(field), ((x >> width) & mask).to(field)


def join(low: Value, high: Value, width: int, t: str) -> Value:
    """low and high, `width` bits each, as one value of type t."""
    return low.to(t) | (high.to(t) << width)


def per_element(function: Callable[..., Value], width: int, t: str, *operands: Value) -> Value:
    """function on the low and on the high elements of packed operands, packed again into type t."""
    pairs = [halves(operand, width) for operand in operands]
    return join(function(*(p[0] for p in pairs)), function(*(p[1] for p in pairs)), width, t)
