"""One exp2, correctly rounded to float32, for every place that needs 2^x: the numerics and the emulator's ex2.

Correct rounding makes the result a property of the input alone. A math library's exp2 is close, but which of two
neighbours it returns depends on the library, the vector width and the version; here every step is an exact or
correctly rounded IEEE operation in a fixed order, with multiplication and addition kept apart (no fused multiply-add),
so NumPy on any machine, and compiled code that respects the order, return the same bits.

    x = n + f,  n the nearest integer, |f| <= 1/2, both exact in float64
    2^f ~ p(f), a polynomial of degree 11 by Horner's rule in float64
    2^x = 2^n p(f), the exponent field of p plus n, exact; then one rounding to float32

p differs from 2^f by less than 2^-54 of it and Horner's rule loses less than one float64 unit in the last place.
`scripts/prove_exp2.py` bounds both, then evaluates every float32 input and settles the eleven whose float64 result lies
that close to a rounding boundary in arbitrary precision. Nine come out right; of two, 2^x lies so near to the midpoint
of two float32 that the nearest float64 is the midpoint itself, and the tie goes the wrong way. They are `EXCEPTIONS`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.formats import to_float32

# Minimax polynomial for the relative error of 2^f on [-1/2, 1/2] with the constant term held at 1, so that integers
# give exact powers of two; coefficients rounded to float64. `scripts/prove_exp2.py --derive` finds them.
COEFFICIENTS = tuple(
    float.fromhex(digits)
    for digits in (
        "0x1.0000000000000p+0",
        "0x1.62e42fefa39f3p-1",
        "0x1.ebfbdff82c598p-3",
        "0x1.c6b08d7048f31p-5",
        "0x1.3b2ab6fba1e1cp-7",
        "0x1.5d87fe7bbbe54p-10",
        "0x1.43091309611b8p-13",
        "0x1.ffcbee3af48b0p-17",
        "0x1.62bfd49ebfb96p-20",
        "0x1.b54167ce0934bp-24",
        "0x1.e605f99bf7beap-28",
        "0x1.c06342a55c055p-32",
    )
)

# Argument and correctly rounded result where rounding twice, to float64 and to float32, is wrong.
EXCEPTIONS = tuple(
    (np.float32(float.fromhex(x)), np.float32(float.fromhex(result)))
    for x, result in (("0x1.853a6ep-9", "0x1.00870ap+0"), ("-0x1.e7526ep-6", "0x1.f58d62p-1"))
)

# 2^f = 1 + f (c1 + f c2), relative error below 2^-8.99 on [-1/2, 1/2]: minimax with the constant term held at 1, so that
# integers are exact. P keeps three bits of mantissa: degree 1 costs decibels, degree 3 gains none
# (`mxfp8fa exponential degrees`).
POLYNOMIAL = tuple(np.float32(float.fromhex(x)) for x in ("0x1.67e7fcp-1", "0x1.eb3dd4p-3"))
# Added to a small float32 number this rounds it to an integer, which then sits in the low bits of the sum.
POLYNOMIAL_ROUND = np.float32(1.5 * 2.0**23)
POLYNOMIAL_LOWEST = np.float32(-127.0)  # here and below, the result is 0
_FLOAT32_MANTISSA_BITS = np.int32(23)

# Beyond these the result is 0 or infinity whatever the argument.
LOWEST, HIGHEST = np.float32(-151.0), np.float32(129.0)
# Adding this rounds a small float64 to an integer, which then sits in the low bits of the sum.
_ROUND_TO_INTEGER = 1.5 * 2.0**52
_FLOAT64_MANTISSA_BITS = np.int64(52)
_CHUNK = 1 << 13  # four float64 work arrays of 64 KB


class _Work:
    def __init__(self, size: int) -> None:
        self.x, self.n, self.f, self.p = (np.empty(size, np.float64) for _ in range(4))


def exp2(x: ArrayLike, *, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """2^x, correctly rounded to float32 (nearest, ties to even), subnormal results included.

    2^-150 is a tie and gives 0; x >= 128 gives infinity; -inf gives 0, NaN gives NaN.

    Args:
        x: float32, float16 or bfloat16, any shape.
        out: float32 array of the same shape for the result; may be `x` itself.

    Raises:
        ValueError: another dtype, or an `out` that does not fit.
    """
    values = to_float32(x)
    if out is None:
        out = np.empty(values.shape, np.float32)
    elif not isinstance(out, np.ndarray):
        raise ValueError(f"out is a {type(out).__name__}; allowed: an array")
    elif out.shape != values.shape or out.dtype != np.float32 or not out.flags.writeable:
        kind = "" if out.flags.writeable else "read-only "
        raise ValueError(f"out is {kind}{out.dtype} {out.shape}; allowed: writable float32 {values.shape}")
    source = np.ascontiguousarray(values).reshape(-1)
    target = out.reshape(-1) if out.flags.c_contiguous else np.empty(source.size, np.float32)
    work = _Work(min(_CHUNK, source.size))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, source.size, _CHUNK):
            _exp2_chunk(source[start : start + _CHUNK], target[start : start + _CHUNK], work)
    if not out.flags.c_contiguous:
        out[...] = target.reshape(out.shape)
    return out


def _exp2_chunk(x: NDArray[np.float32], out: NDArray[np.float32], work: _Work) -> None:
    hits = [(x == argument, result) for argument, result in EXCEPTIONS]  # before `out`, which may be x, is written
    np.copyto(out, exp2_float64(x, work), casting="same_kind")
    for hit, result in hits:
        if hit.any():
            out[hit] = result


def exp2_float64(x: NDArray[np.float32], work: _Work | None = None) -> NDArray[np.float64]:
    """2^x before the final rounding, for 1-D float32; a view of `work`. Arguments are clamped to LOWEST and HIGHEST."""
    work = work or _Work(x.size)
    wide, n, f, p = (array[: x.size] for array in (work.x, work.n, work.f, work.p))
    np.copyto(wide, x)
    np.maximum(wide, np.float64(LOWEST), out=wide)
    np.minimum(wide, np.float64(HIGHEST), out=wide)
    np.add(wide, _ROUND_TO_INTEGER, out=n)
    np.subtract(n, _ROUND_TO_INTEGER, out=f)
    np.subtract(wide, f, out=f)
    np.multiply(f, COEFFICIENTS[-1], out=p)
    for coefficient in COEFFICIENTS[-2:0:-1]:
        np.add(p, coefficient, out=p)
        np.multiply(p, f, out=p)
    np.add(p, COEFFICIENTS[0], out=p)
    # The low bits of `n` are n in two's complement. For NaN they are zero, and p is NaN already.
    exponent, bits = n.view(np.int64), p.view(np.int64)
    np.left_shift(exponent, _FLOAT64_MANTISSA_BITS, out=exponent)
    np.add(bits, exponent, out=bits)
    return p


def exp2_polynomial(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """2^x to about 9 bits, on the pipes for multiplication and addition instead of the one for special functions.

    The float32 operations of a softmax thread in their order: the same bits. For x up to 127; results below 2^-126 are
    not accurate, and a NaN counts as POLYNOMIAL_LOWEST (max.f32 drops it).
    """
    c1, c2 = POLYNOMIAL
    with np.errstate(invalid="ignore"):
        x = np.fmax(x, POLYNOMIAL_LOWEST)
        n = x + POLYNOMIAL_ROUND
        f = x - (n - POLYNOMIAL_ROUND)
    p = fma(fma(f, c2, c1), f, np.float32(1))
    return (p.view(np.int32) + (n.view(np.int32) << _FLOAT32_MANTISSA_BITS)).view(np.float32)
