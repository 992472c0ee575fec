"""`rmsnorm_quantize`: RMSNorm of a tensor in MXFP8, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cutlass
import torch

from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.producers import rmsnorm_kernel
from mxfp8fa.kernels.producers.data import (
    FLOATS,
    check_floats,
    empty_operand,
    launch,
    make_blocks,
    pointer,
    resident_clusters,
    sizes_and_strides,
    tokens_of,
    with_aligned_rows,
)

EPS = 1e-6


@dataclass(frozen=True)
class Normalized:
    """What `rmsnorm_quantize` gives.

    Attributes:
        operand: y in MXFP8.
        rstd: float32, the shape of x without its last axis; the backward needs it.
        y: in the dtype of x, the same numbers before they were quantized, rounded to it; None unless it was asked for.
    """

    operand: MXOperand
    rstd: torch.Tensor
    y: torch.Tensor | None


def rmsnorm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    axes: int | Sequence[int],
    eps: float = EPS,
    fmt: str = "e4m3",
    rule: str = "rceil",
    tail: str = "partial",
    cu_seqlens: torch.Tensor | None = None,
    validate: bool = False,
    return_y: bool = False,
) -> Normalized:
    """y = x * rstd * weight in MXFP8, with rstd = 1 / sqrt(mean of x^2 over the last axis + eps).

    y is float32, (x * rstd) * weight with a rounding after each product; its codes are those of the rule. Sums of
    squares are float32, in an order that depends on the number of columns only.

    Args:
        x: as for `quantize`; at most 8,192 columns.
        weight: one number per column: bfloat16, float16 or float32.
        axes: as for `quantize`.
        eps: added to the mean; not negative.
        fmt: as for `quantize`.
        rule: as for `quantize`.
        tail: as for `quantize`.
        cu_seqlens: as for `quantize`.
        validate: as for `quantize`.
        return_y: also write y, in the dtype of x.

    Raises:
        ValueError: as for `quantize`; more columns; a weight of another shape, dtype or device; a negative eps.
    """
    check_floats("x", x, 2, 3, 4)
    columns = x.shape[-1]
    if columns > rmsnorm_kernel.MAX_COLUMNS:
        raise ValueError(f"x has {columns} columns; allowed: at most {rmsnorm_kernel.MAX_COLUMNS}")
    _check_weight(weight, columns, x.device)
    if not eps >= 0:
        raise ValueError(f"eps = {eps}; allowed: numbers from 0")
    tokens = tokens_of(tuple(x.shape), cu_seqlens, x.device, validate=validate)
    blocks = make_blocks(tuple(x.shape), axes, fmt, rule, tail, tokens)
    operand = empty_operand(tuple(x.shape), blocks, tokens, x.device)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if return_y else None
    if operand.codes.numel():
        source, factors = with_aligned_rows(x.detach()), with_aligned_rows(weight.detach())
        scales = operand.scales.get("tokens"), operand.scales.get("head_dim")
        shape = rmsnorm_kernel.shape_for(columns, x.element_size())
        launch(
            rmsnorm_kernel.rmsnorm_quantize,
            pointer(source),
            pointer(factors),
            pointer(operand.codes, blocks.element_type),
            *map(pointer, (*scales, y, rstd, tokens.table)),
            *sizes_and_strides(source, tokens),
            cutlass.Float32(eps),
            cutlass.Int32(resident_clusters(x.device, shape.cluster) * shape.ctas_per_sm),
            device=x.device,
            constants=(blocks, shape),
            memory=(source, factors, operand.codes, *scales, y, rstd, tokens.table),
        )
    return Normalized(operand, rstd, y)


def _check_weight(weight: torch.Tensor, columns: int, device: torch.device) -> None:
    if not isinstance(weight, torch.Tensor) or weight.dtype not in FLOATS or weight.shape != (columns,):
        given = f"{weight.dtype} {tuple(weight.shape)}" if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"weight is {given}; allowed: ({columns},) of {', '.join(map(str, FLOATS))}")
    if weight.device != device:
        raise ValueError(f"weight is on {weight.device}; allowed: {device}, as x")
