"""fma, exp2 and two sums in torch, bit for bit the NumPy ones: `mxfp8fa.numerics.fma`, `.exp2` and `.softmax`.

Every step is an IEEE operation in float64 or on its bits, so eager torch gives the same bits on any device that has
float64. A compiler that contracts a multiplication and an addition may change the last float64 bit of the polynomial in
`exp2`, which reaches float32 about once in 2^29 results.
"""

from __future__ import annotations

import numpy as np
import torch

from mxfp8fa.numerics.exp2 import COEFFICIENTS
from mxfp8fa.numerics.exp2 import EXCEPTIONS as NUMPY_EXCEPTIONS
from mxfp8fa.numerics.exp2 import HIGHEST as NUMPY_HIGHEST
from mxfp8fa.numerics.exp2 import LOWEST as NUMPY_LOWEST
from mxfp8fa.numerics.exp2 import POLYNOMIAL as NUMPY_POLYNOMIAL
from mxfp8fa.numerics.exp2 import POLYNOMIAL_LOWEST as NUMPY_POLYNOMIAL_LOWEST
from mxfp8fa.numerics.exp2 import POLYNOMIAL_ROUND as NUMPY_POLYNOMIAL_ROUND
from mxfp8fa.numerics.softmax import SUM_LANES

# Plain floats: a compiler would take NumPy scalars for tensors.
EXCEPTIONS = tuple((float(argument), float(result)) for argument, result in NUMPY_EXCEPTIONS)
LOWEST, HIGHEST = float(NUMPY_LOWEST), float(NUMPY_HIGHEST)
POLYNOMIAL = tuple(map(float, NUMPY_POLYNOMIAL))
POLYNOMIAL_ROUND, POLYNOMIAL_LOWEST = float(NUMPY_POLYNOMIAL_ROUND), float(NUMPY_POLYNOMIAL_LOWEST)
FLOAT32_MIN_NORMAL = 2.0**-126
_DROPPED_BITS = (1 << 29) - 1  # float64 mantissa bits that float32 does not have
_HALFWAY = 1 << 28
_ROUND_TO_INTEGER = 1.5 * 2.0**52


@torch.compiler.assume_constant_result
def float32(x: float) -> float:
    """The float32 number nearest to x."""
    return float(np.float32(x))


def fma(a: torch.Tensor, b: torch.Tensor | float, c: torch.Tensor) -> torch.Tensor:
    """The float32 number nearest to a * b + c; float32 tensors, or floats that are float32 numbers, that broadcast."""
    product = a.double() * (b.double() if isinstance(b, torch.Tensor) else b)  # exact
    addend = c.double()
    total = product + addend
    bits = total.view(torch.int64)
    delicate = ((bits & _DROPPED_BITS) == _HALFWAY) | (total.abs() < FLOAT32_MIN_NORMAL)
    seen = total - product
    error = (product - (total - seen)) + (addend - seen)
    outward = torch.where((error > 0) == (total > 0), 1, -1)
    nudge = delicate & (error != 0) & torch.isfinite(error) & ((bits & 1) == 0)
    return torch.where(nudge, bits + outward, bits).view(torch.float64).float()


def exp2(x: torch.Tensor) -> torch.Tensor:
    """2^x correctly rounded to float32, results below the normal range flushed to 0 (PTX ISA, ex2.approx.ftz.f32)."""
    wide = x.double().clamp(LOWEST, HIGHEST)
    n = wide + _ROUND_TO_INTEGER
    f = wide - (n - _ROUND_TO_INTEGER)
    p = f * COEFFICIENTS[-1]
    for coefficient in COEFFICIENTS[-2:0:-1]:
        p = (p + coefficient) * f
    p = p + COEFFICIENTS[0]
    y = (p.view(torch.int64) + (n.view(torch.int64) << 52)).view(torch.float64).float()
    for argument, result in EXCEPTIONS:
        y = torch.where(x == argument, result, y)
    return torch.where(torch.isnan(x), x, torch.where(y < FLOAT32_MIN_NORMAL, 0.0, y))


def exp2_polynomial(x: torch.Tensor) -> torch.Tensor:
    """2^x to about 9 bits: `mxfp8fa.numerics.exp2.exp2_polynomial`."""
    c1, c2 = (torch.full_like(x, c) for c in POLYNOMIAL)
    x = torch.where(x > POLYNOMIAL_LOWEST, x, POLYNOMIAL_LOWEST)  # NaN too
    n = x + POLYNOMIAL_ROUND
    f = x - (n - POLYNOMIAL_ROUND)
    p = fma(fma(c2, f, c1), f, torch.ones_like(x))
    return (p.view(torch.int32) + (n.view(torch.int32) << 23)).view(torch.float32)


def lane_sum(p: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Sums along the last axis in the kernel's order: (..., n), (...) -> (...), n a multiple of 8.

    Eight lanes add up every eighth column in turn, the first beginning with `start`; `tree_sum` adds up the lanes.
    """
    groups = p.unflatten(-1, (-1, SUM_LANES))
    lanes = groups[..., 0, :] + torch.nn.functional.pad(start[..., None], (0, SUM_LANES - 1))
    for group in range(1, groups.shape[-2]):
        lanes = lanes + groups[..., group, :]
    return tree_sum(lanes)


def half_sum(p: torch.Tensor) -> torch.Tensor:
    """Sums of E4M3 values along the last axis in packed float16, promoted: `mxfp8fa.numerics.softmax.half_sum`."""
    groups = p.half().unflatten(-1, (-1, SUM_LANES))
    lanes = groups[..., 0, :]
    for group in range(1, groups.shape[-2]):
        lanes = lanes + groups[..., group, :]
    pair = ((lanes[..., 0:2] + lanes[..., 2:4]) + (lanes[..., 4:6] + lanes[..., 6:8])).float()
    return pair[..., 0] + pair[..., 1]


def tree_sum(lanes: torch.Tensor) -> torch.Tensor:
    """(..., 8) -> (...): the additions of `mxfp8fa.numerics.softmax.tree_sum`."""
    pair = (lanes[..., 0:2] + lanes[..., 2:4]) + (lanes[..., 4:6] + lanes[..., 6:8])
    return pair[..., 0] + pair[..., 1]


def row_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(..., D), (..., D) -> (...): eight lanes of fma over every eighth column, then `tree_sum`."""
    lanes = torch.zeros_like(a[..., :SUM_LANES])
    for start in range(0, a.shape[-1], SUM_LANES):
        lanes = fma(a[..., start : start + SUM_LANES], b[..., start : start + SUM_LANES], lanes)
    return tree_sum(lanes)
