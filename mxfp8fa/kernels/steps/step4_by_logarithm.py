"""Step 4 with its bit tricks undone, for comparison: scales by a logarithm, their reciprocals by a division."""

from __future__ import annotations

from typing import Any
from unittest import mock

import cutlass
from cutlass import cute

from mxfp8fa.kernels.launch import compile_kernel
from mxfp8fa.kernels.steps import step4_quantizer as step4


@cute.jit
def block_scale_by_logarithm(x: cute.Tensor) -> cutlass.Int32:
    """ceil(log2(amax / 448)) + 127."""
    amax = cutlass.Float32(0)
    for i in cutlass.range_constexpr(0, step4.BLOCK, 2):
        amax = step4.max3(amax, x[i], x[i + 1], abs=True)
    exponent = cute.math.ceil(cute.math.log2(amax / cutlass.Float32(448), fastmath=True))
    return cutlass.Int32(exponent) + 127


@cute.jit
def reciprocal_by_division(scale: cutlass.Int32) -> cutlass.Float32:
    """1 / 2^(scale - 127), the power by an exponential."""
    return cutlass.Float32(1) / cute.math.exp2(cutlass.Float32(scale - 127), fastmath=True)


def compile_with_logarithm(*arguments: Any) -> Any:
    """`requantized_product` compiled with these two in the place of `block_scale` and `reciprocal`."""
    with (
        mock.patch.object(step4, "block_scale", block_scale_by_logarithm),
        mock.patch.object(step4, "reciprocal", reciprocal_by_division),
    ):
        return compile_kernel(step4.requantized_product, *arguments)
