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

from mxfp8fa.emulator.values import Value, const, select
from mxfp8fa.numerics.formats import BF16, F16, Format

ROUNDING = ("rn", "rz", "rm", "rp")

# The two wide formats, as the same kind of data as the narrow ones. Canonical NaNs (the PTX ISA leaves the bits open):
# 0x7FFFFFFF for f32, which NVIDIA's headers call CUDART_NAN_F, and 0xFFF8000000000000 for f64, CUDART_NAN.
F32 = Format("f32", 8, 23, bias=127, max_code=0x7F7FFFFF, nan_code=0x7FFFFFFF, inf_code=0x7F800000)
F64 = Format(
    "f64", 11, 52, bias=1023, max_code=0x7FEFFFFFFFFFFFFF, nan_code=0xFFF8000000000000, inf_code=0x7FF0000000000000
)
FORMAT_OF = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
UNSIGNED_OF = {"f16": "u16", "bf16": "u16", "f32": "u32", "f64": "u64"}


def nan_code(fmt: Format) -> int:
    """The code that NaN becomes: the canonical NaN, or the largest value in a format without NaN."""
    return fmt.max_code if fmt.nan_code is None else fmt.nan_code


def inf_code(fmt: Format) -> int:
    """The code of infinity, or what overflow gives in its place: NaN, or the largest value."""
    return nan_code(fmt) if fmt.inf_code is None else fmt.inf_code


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


def is_tiny(x: Value, fmt: Format, rounding: str) -> Value:
    """Whether x, rounded to fmt's precision as if exponents had no end, is still below fmt's smallest normal number.

    This is when .ftz flushes a result (measured on an H200): half an ulp below 2^-126 a product that the subnormal grid
    would round up to 2^-126 is flushed, a quarter of an ulp below it is not.

    Args:
        x: the exact value, or one rounded to odd; f32 or f64.
        fmt: format of the result.
        rounding: rounding mode.
    """
    smallest, ulp = 2.0**fmt.min_exponent, 2.0 ** -(fmt.mantissa_bits + 1)  # the ulp below 1, relative to 1
    size = magnitude_bits(x).bits(x.type)
    inward = size < float_const(smallest, x.type)
    if rounding == "rn":
        return size < float_const(smallest * (1 - ulp / 2), x.type)
    if rounding == "rz":
        return inward
    outward = size <= float_const(smallest * (1 - ulp), x.type)
    negative = sign_bit(x).ne(0)
    return select(negative, outward, inward) if rounding == "rm" else select(negative, inward, outward)


def canonical(x: Value) -> Value:
    """x (f32), with any NaN replaced by the canonical one."""
    return select(is_nan(x), const(nan_code(F32), "f32"), x)


def saturate(x: Value) -> Value:
    """x (f32 or f64) clamped to [+0, 1]; NaN gives +0 (.sat)."""
    one = float_const(1.0, x.type)
    positive = select(x > const(0, x.type), x, const(0, x.type))
    return select(positive < one, positive, one)


def quiet(x: Value) -> Value:
    """A NaN (f64) made quiet, its sign and payload kept."""
    return (x.bits("u64") | (1 << (F64.mantissa_bits - 1))).bits("f64")


def quiet_first(result: Value, *operands: Value) -> Value:
    """result (f64) unless it is NaN; then the first NaN of the operands, quieted, or the default NaN if none is NaN.

    PTX ISA, 9.7.3: NaN payloads are supported in double precision. Which operand wins was measured on an H200.
    """
    nan = const(nan_code(F64), "f64")
    for operand in reversed(operands):
        nan = select(is_nan(operand), quiet(operand), nan)
    return select(is_nan(result), nan, result)


def sum_error(a: Value, b: Value, s: Value) -> Value:
    """a + b - s, exactly, for the rounded f64 sum s (D. Knuth, The Art of Computer Programming 2, section 4.2.2)."""
    b_seen = s - a
    return (a - (s - b_seen)) + (b - b_seen)


def odd_sum(a: Value, b: Value) -> Value:
    """a + b rounded to odd in f64, for terms far from f64's limits: f32, products of f32, integers."""
    s = a + b
    error = sum_error(a, b, s)
    zero = const(0, "f64")
    above, below = error > zero, error < zero
    outward = select(s > zero, above, below)
    word = s.bits("u64")
    nudged = select(outward, word + 1, word - 1)
    # An infinite or NaN sum has a NaN error, which is neither above nor below.
    inexact_even = (above | below) & (word & 1).eq(0)
    return select(inexact_even, nudged, word).bits("f64")


def exact_zero(result: Value, is_zero: Value, negative: Value, rounding: str) -> Value:
    """result, or under rm the zero of an exact zero sum: -0 unless both terms are +0 (IEEE 754-2019, section 6.3).

    Args:
        result: the sum, f32 or f64; under the other modes its zero is right already.
        is_zero: whether the exact sum is zero.
        negative: whether a term of the sum has its sign bit set.
        rounding: rounding mode.
    """
    if rounding != "rm":
        return result
    minus_zero = const(1 << (FORMAT_OF[result.type].bits - 1), result.type)
    return select(is_zero & negative, minus_zero, result)


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


def _aligned(x: Value, fmt: Format, word: str) -> tuple[Value, Value, Value]:
    """(base, significand, shift): the code of x in fmt is base + (significand >> shift), before rounding."""
    wide = FORMAT_OF[x.type]
    magnitude = magnitude_bits(x).to(word)
    dropped = wide.mantissa_bits - fmt.mantissa_bits
    if fmt.bias == wide.bias:
        return const(0, word), magnitude, const(dropped, word)
    lowest = wide.bias - fmt.bias + 1  # x's exponent field where fmt's normal numbers begin
    field = magnitude >> wide.mantissa_bits
    hidden = select(field.eq(0), const(0, word), const(1 << wide.mantissa_bits, word))
    significand = (magnitude & ((1 << wide.mantissa_bits) - 1)) | hidden
    exponent = select(field < lowest, const(lowest, word), field)
    # The hidden bit, still on top of the shifted significand of a normal number, adds the 1 that is missing from base.
    base = (exponent - lowest) << fmt.mantissa_bits
    return base, significand, exponent - select(field.eq(0), const(1, word), field) + dropped


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
    beyond = const(inf_code(fmt), word)
    if rounding == "rz":
        return select(infinite, beyond, largest)
    if rounding == "rm":
        return select(infinite | negative, beyond, largest)
    if rounding == "rp":
        return select(infinite, beyond, select(negative, largest, beyond))
    return beyond


def _round(x: Value, fmt: Format, rounding: str, negative: Value, word: str, random: tuple[Value, int] | None) -> Value:
    """The magnitude code of x, rounded, as if there were no largest one; meaningless for NaN."""
    base, significand, shift = _aligned(x, fmt, word)
    # Beyond this shift nothing is left of the significand, and no increment carries it back.
    longest = FORMAT_OF[x.type].mantissa_bits + (random[1] + 1 if random else 2)
    shift = shift if shift.op == "const" else select(shift < longest, shift, longest)
    if random:
        increment = random[0].to(word) << (shift - random[1])
    else:
        increment = _increment(rounding, negative, significand, shift)
    return base + ((significand + increment) >> shift)


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
    if fmt == F16 and x.type == "f32" and rounding == "rn":
        code = magnitude_bits(x.to("f16")).to(word)  # processors convert so themselves
    else:
        code = _round(x, fmt, rounding, negative, word, random)
    infinite = magnitude_bits(x).eq(inf_code(wide))
    code = select(code > fmt.max_code, _overflow_code(fmt, rounding, negative, infinite, satfinite, word), code)
    code = select(negative, const(0, word) if relu else code | (1 << (fmt.bits - 1)), code)
    return select(is_nan(x), const(nan_code(fmt), word), code)


def widen(code: Value, fmt: Format) -> Value:
    """The value of an f16 or bf16 code (u16) as an f32, exactly; NaN gives some NaN."""
    return code.bits("f16").to("f32") if fmt == F16 else (code.to("u32") << 16).bits("f32")


def decode(code: Value, fmt: Format) -> Value:
    """The value of a code of at most 8 bits (u8 or wider) as an f32, exactly; NaN gives the canonical NaN.

    The field moves to f32's place, and a multiplication by a power of two corrects the bias, subnormals included.
    """
    code = code.to("u32")
    magnitude = code & ((1 << (fmt.bits - 1)) - 1)
    scaled = (magnitude << (F32.mantissa_bits - fmt.mantissa_bits)).bits("f32")
    value = scaled * float_const(2.0 ** (F32.bias - fmt.bias), "f32")
    if fmt.inf_code is not None:
        value = select(magnitude.eq(fmt.inf_code), const(inf_code(F32), "f32"), value)
    word = value.bits("u32") | ((code & (1 << (fmt.bits - 1))) << (32 - fmt.bits))
    if fmt.nan_code is not None:
        word = select(magnitude > (fmt.inf_code or fmt.max_code), const(nan_code(F32), "u32"), word)
    return word.bits("f32")
