"""Floating-point functions that NumPy lacks or does not round correctly: fma, exp2, log2, rsqrt, tanh, sin, cos.

NVIDIA does not publish the bits of the approximate units (PTX ISA gives error bounds only), so the emulator gives the
correctly rounded float32 result: a float64 estimate decides unless it lies too close to a rounding boundary, and then
exact decimal arithmetic settles it. The estimates are taken to be within 8 float64 ulps; NumPy's functions are within 4
(the tests compare all of them with mpmath).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np

from mxfp8fa.numerics.exp2 import exp2 as exp2_float32
from mxfp8fa.numerics.fma import fma as fma_float32

_DIGITS = 120  # 39 digits before the point for the largest float32, and far more behind it than any rounding needs
_ULPS = 8
_DROPPED_BITS, _HALFWAY = np.int64((1 << 29) - 1), np.int64(1 << 28)  # of a float64 mantissa that becomes a float32
_MIN_NORMAL = 2.0**-126


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding, for float32 and float64 vectors."""
    if a.dtype == np.float64:
        return _per_lane(_fma64, a, b, c)
    total = np.asarray(a.astype(np.float64) * b + c)  # the product is exact; 32 lanes rarely hold a delicate sum
    halfway = (total.view(np.int64) & _DROPPED_BITS) == _HALFWAY
    tiny = (np.abs(total) < _MIN_NORMAL) & (total != 0)
    return fma_float32(a, b, c) if (halfway | tiny).any() else total.astype(np.float32)


def fma_sign(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The sign of the exact a * b + c - d in float64, see `values.fma_sign`."""
    return _per_lane(_fma_sign, a, b, c, d)


def _per_lane(function: Callable[..., float], *operands: np.ndarray) -> np.ndarray:
    """A scalar function of Python floats, on every lane."""
    lanes = np.broadcast(*operands)
    return np.array([function(*(float(x) for x in lane)) for lane in lanes], np.float64).reshape(lanes.shape)


def _fma64(a: float, b: float, c: float) -> float:
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        # The rounded product may be infinite only where an operand is; then it decides as the exact one would.
        return a * b + c if not (np.isfinite(a) and np.isfinite(b)) else c
    value = Fraction(a) * Fraction(b) + Fraction(c)
    if value == 0:
        return float(np.copysign(0.0, a) * np.copysign(1.0, b) + c) if a * b == 0 == c else 0.0
    try:
        return value.numerator / value.denominator  # Python's int division rounds correctly
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _fma_sign(a: float, b: float, c: float, d: float) -> float:
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)) or np.isnan(d):
        return 0.0
    if np.isinf(d):
        return -1.0 if d > 0 else 1.0
    value = Fraction(a) * Fraction(b) + Fraction(c) - Fraction(d)
    return float((value > 0) - (value < 0))


def exp2(x: np.ndarray) -> np.ndarray:
    """2**x, correctly rounded to float32: where NumPy's float64 function leaves a doubt, that of the numerics decides."""
    estimate = np.exp2(x.astype(np.float64))
    slack = estimate * (_ULPS * 2.0**-52)
    low, high = (estimate - slack).astype(np.float32), (estimate + slack).astype(np.float32)
    return low if (low == high).all() else exp2_float32(x)


def _correctly_rounded(x: np.ndarray, estimate: np.ndarray, exact: Callable[[Decimal], Decimal]) -> np.ndarray:
    """estimate (float64, within _ULPS ulps of f(x)) rounded to float32; where that is too close to call, `exact`."""
    slack = np.abs(estimate) * (_ULPS * 2.0**-52)
    low, high = (estimate - slack).astype(np.float32), (estimate + slack).astype(np.float32)
    hard = (low != high) & np.isfinite(x) & np.isfinite(estimate)
    result = np.array(estimate, np.float32)
    with localcontext() as context:
        context.prec = _DIGITS
        for i in zip(*np.nonzero(np.atleast_1d(hard)), strict=True):
            np.atleast_1d(result)[i] = _nearest(exact(Decimal(float(np.atleast_1d(x)[i]))), np.atleast_1d(result)[i])
    return result


def _nearest(value: Decimal, guess: np.float32) -> np.float32:
    """The float32 nearest to value, which is the guess or one of its neighbours (a tie does not occur)."""
    candidates = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    return min(candidates, key=lambda c: abs(Decimal(float(c)) - value))


@cache
def _pi() -> Decimal:
    """pi to _DIGITS digits (J. Machin: pi / 4 = 4 atan(1/5) - atan(1/239)), in integers with 10 guard digits."""
    unit = 10 ** (_DIGITS + 10)

    def arctan_of_inverse(n: int) -> int:
        power, total, k = unit // n, 0, 0
        while power:
            total += (-power if k % 2 else power) // (2 * k + 1)
            power //= n * n
            k += 1
        return total

    return Decimal(4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))) / Decimal(unit)


def log2(x: np.ndarray) -> np.ndarray:
    """The base-2 logarithm, correctly rounded to float32; NaN below zero, -inf at zero."""
    return _correctly_rounded(x, np.log2(x.astype(np.float64)), lambda v: v.ln() / Decimal(2).ln())


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x), correctly rounded to float32; +-inf at +-0, NaN below zero."""
    return _correctly_rounded(x, 1.0 / np.sqrt(x.astype(np.float64)), lambda v: 1 / v.sqrt())


def tanh(x: np.ndarray) -> np.ndarray:
    """The hyperbolic tangent, correctly rounded to float32."""

    def exact(v: Decimal) -> Decimal:
        e = (-2 * abs(v)).exp()
        return ((1 - e) / (1 + e)).copy_sign(v)

    return _correctly_rounded(x, np.tanh(x.astype(np.float64)), exact)


def _sine(v: Decimal) -> Decimal:
    """sin by its series, after reduction to [-pi, pi]."""
    turn = 2 * _pi()
    v -= turn * (v / turn).to_integral_value()
    term, total, n = v, v, 1
    while abs(term) > Decimal(10) ** -(_DIGITS - 40):
        term = -term * v * v / ((n + 1) * (n + 2))
        total, n = total + term, n + 2
    return total


def sin(x: np.ndarray) -> np.ndarray:
    """The sine, correctly rounded to float32."""
    return _correctly_rounded(x, np.sin(x.astype(np.float64)), _sine)


def cos(x: np.ndarray) -> np.ndarray:
    """The cosine, correctly rounded to float32."""
    return _correctly_rounded(x, np.cos(x.astype(np.float64)), lambda v: _sine(v + _pi() / 2))
