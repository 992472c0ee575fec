"""Fused multiply-add on float32 arrays, correctly rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import as_array

_DROPPED_BITS = np.int64((1 << 29) - 1)  # float64 mantissa bits that float32 does not have
_HALFWAY = np.int64(1 << 28)
_FLOAT32_MIN_NORMAL = 2.0**-126


def fma(a: Any, b: Any, c: Any) -> NDArray[np.float32]:
    """The float32 number nearest to a * b + c: one rounding, ties to even (PTX ISA, fma.rn.f32, without .ftz).

    The product of two float32 numbers is exact in float64, so only the sum can be inexact there. Rounding that sum
    again to float32 goes wrong only where it lies exactly half way between two float32 numbers although the true sum
    does not; those few elements, and results below the float32 normal range, are nudged to the true side first.

    Args:
        a: float32 array or scalar; the three broadcast against each other.
        b: the same.
        c: the same.
    """
    a, b, c = (as_array(x, dtype=np.float32) for x in (a, b, c))
    with np.errstate(all="ignore"):
        addend = c.astype(np.float64)
        product = np.multiply(a, b, dtype=np.float64)
        total = np.asarray(product + addend)
        halfway = (total.view(np.int64) & _DROPPED_BITS) == _HALFWAY
        delicate = halfway | (np.abs(total) < _FLOAT32_MIN_NORMAL)
        if delicate.any():
            p, s = (np.broadcast_to(x, total.shape)[delicate] for x in (product, addend))
            total[delicate] = _to_odd(total[delicate], _two_sum_error(p, s, total[delicate]))
        return total.astype(np.float32)


def _two_sum_error(a: NDArray[np.float64], b: NDArray[np.float64], s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact a + b - s for the rounded sum s (D. Knuth, The Art of Computer Programming 2, section 4.2.2)."""
    b_seen = s - a
    return (a - (s - b_seen)) + (b - b_seen)


def _to_odd(s: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.float64]:
    """s, moved one float64 step towards s + error where its last bit is 0 and error is not."""
    bits = s.view(np.int64)
    outward = np.where((error > 0) == (s > 0), 1, -1)
    inexact = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    return np.where(inexact, bits + outward, bits).view(np.float64)
