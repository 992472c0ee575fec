"""Floating-point functions that NumPy lacks or does not round correctly: fma, exp2, log2, rsqrt, tanh, sin, cos.

NVIDIA does not publish the bits of the approximate units (PTX ISA gives error bounds only), so the emulator gives the
correctly rounded float32 result: a float64 estimate decides unless it lies too close to a rounding boundary, and then
exact decimal arithmetic settles it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import numpy as np

_DIGITS = 60  # far beyond the worst known hardness of these functions over 2**32 inputs


def two_sum_error(a: np.ndarray, b: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The exact error a + b - s of the float64 sum s = a + b (Knuth)."""
    back = s - a
    return (a - (s - back)) + (b - back)


def round_to_odd(s: np.ndarray, error: np.ndarray) -> np.ndarray:
    """s nudged so that a later rounding to a much narrower format is as if of s + error (Boldo and Melquiond)."""
    bits = s.view(np.int64)
    nudge = np.where((error > 0) == (s > 0), 1, -1)
    inexact = (error != 0) & np.isfinite(s) & np.isfinite(error) & ((bits & 1) == 0)
    # s = 0 with a nonzero error cannot happen: a cancelling sum is exact.
    return np.where(inexact, bits + nudge, bits).view(np.float64)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding, for float32 and float64 vectors."""
    if a.dtype == np.float64:
        return _fma64(a, b, c)
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits, exponents within range
    addend = c.astype(np.float64)
    s = product + addend
    return round_to_odd(s, two_sum_error(product, addend, s)).astype(np.float32)


def _fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    a, b, c = (np.broadcast_to(x, shape) for x in (a, b, c))
    plain = a * b + c
    exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    out = plain.copy() if shape else np.array(plain)
    for i in zip(*np.nonzero(np.atleast_1d(exact)), strict=True):
        out[i] = _fma64_scalar(float(a[i]), float(b[i]), float(c[i]))
    return out


def _fma64_scalar(a: float, b: float, c: float) -> float:
    value = Fraction(a) * Fraction(b) + Fraction(c)
    if value == 0:
        return a * b + c  # the signs of zero follow IEEE addition
    try:
        return value.numerator / value.denominator  # Python's int division rounds correctly
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def exp2(x: np.ndarray) -> np.ndarray:
    """2**x, correctly rounded to float32: the same function as the numerics use."""
    from mxfp8fa.numerics import exp2 as shared  # one exp2 for numerics and emulator (design.md D5)

    return shared(x)


def _correctly_rounded(
    x: np.ndarray, estimate: np.ndarray, ulps: int, exact: Callable[[Decimal, Context], Decimal]
) -> np.ndarray:
    """estimate (float64, within `ulps` float64 ulps of f(x)) rounded to float32; hard cases by `exact`."""
    slack = np.abs(estimate) * (ulps * 2.0**-52)
    low, high = (estimate - slack).astype(np.float32), (estimate + slack).astype(np.float32)
    result = estimate.astype(np.float32)
    hard = (low != high) & np.isfinite(x) & np.isfinite(estimate)
    if not hard.any():
        return result
    result = result.copy()
    with localcontext() as context:
        context.prec = _DIGITS
        for i in np.nonzero(hard)[0]:
            result[i] = _decimal_to_float32(exact(Decimal(float(x[i])), context))
    return result


def _decimal_to_float32(value: Decimal) -> np.float32:
    """Round to nearest even by comparing with the two float32 neighbours of a first guess."""
    guess = np.float32(float(value))
    best = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    distance = [abs(Decimal(float(g)) - value) for g in best]
    return best[distance.index(min(distance))]


_LN2 = Decimal("0.69314718055994530941723212145817656807550013436025525412068000949339362196969471560586332699641869")
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211707")


def log2(x: np.ndarray) -> np.ndarray:
    """log2(x), correctly rounded to float32; NaN below zero, -inf at zero."""
    return _correctly_rounded(x, np.log2(x.astype(np.float64)), 4, lambda v, c: v.ln(c) / _LN2)


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x), correctly rounded to float32; +-inf at +-0, NaN below zero."""
    wide = x.astype(np.float64)
    estimate = np.where(wide == 0, np.copysign(np.inf, wide), 1.0 / np.sqrt(wide))
    return _correctly_rounded(x, estimate, 4, lambda v, c: 1 / v.sqrt(c))


def tanh(x: np.ndarray) -> np.ndarray:
    """tanh(x), correctly rounded to float32."""

    def exact(v: Decimal, context: Context) -> Decimal:
        e = (-2 * abs(v)).exp(context)
        return ((1 - e) / (1 + e)).copy_sign(v)

    return _correctly_rounded(x, np.tanh(x.astype(np.float64)), 8, exact)


def _sin_decimal(v: Decimal) -> Decimal:
    """sin by its series after reduction to [-pi, pi]; arguments below 2**20 keep 40 digits."""
    v = v - 2 * _PI * (v / (2 * _PI)).to_integral_value()
    term, total, n = v, v, 1
    while term and abs(term) > Decimal(10) ** -55:
        term = -term * v * v / ((n + 1) * (n + 2))
        total, n = total + term, n + 2
    return total


def sin(x: np.ndarray) -> np.ndarray:
    """sin(x), correctly rounded to float32."""
    return _correctly_rounded(x, np.sin(x.astype(np.float64)), 8, lambda v, _: _sin_decimal(v))


def cos(x: np.ndarray) -> np.ndarray:
    """cos(x), correctly rounded to float32."""
    return _correctly_rounded(x, np.cos(x.astype(np.float64)), 8, lambda v, _: _sin_decimal(v + _PI / 2))
