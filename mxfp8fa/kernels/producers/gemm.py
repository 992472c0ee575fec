"""`gemm_quantize`: a projection whose results are in MXFP8, and `gemm`, the same product in BF16 or FP32."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import cutlass
import torch

from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.producers.data import Tokens as _Tokens
from mxfp8fa.kernels.producers.data import (
    empty_operand,
    launch,
    make_blocks,
    multiprocessors,
    pointer,
    target_for,
    tokens_of,
    with_aligned_rows,
)
from mxfp8fa.kernels.producers.fragment import Blocks
from mxfp8fa.numerics.mx_tensor import BLOCK

_MAIN_LOOPS = {"sm_90a": "gemm_hopper", "sm_100a": "gemm_blackwell", "sm_103a": "gemm_blackwell"}


def gemm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    head_dim: int | None = None,
    axes: Sequence[int] | Sequence[Sequence[int]],
    fmt: str = "e4m3",
    rule: str = "rceil",
    tail: str = "partial",
    cu_seqlens: torch.Tensor | None = None,
    validate: bool = False,
) -> MXOperand | tuple[MXOperand, ...]:
    """x weight^T in MXFP8: BF16 in, FP32 accumulators, codes and scales out; nothing is rounded in between.

    Args:
        x: bfloat16 (S, K) or (B, S, K), or (T, K) with cu_seqlens; K a multiple of 32.
        weight: bfloat16 (N, K), as in `torch.nn.Linear`; N a multiple of 32.
        head_dim: D, 32, 64 or a multiple of 128 that divides N; results are (B, S, N / D, D), or (T, N / D, D) with
            cu_seqlens. None for x of shape (S, K) without them: results are (S, N).
        axes: blocked axes of the result, as for `quantize`; or several of them, for as many results from one product.
        fmt: as for `quantize`.
        rule: as for `quantize`.
        tail: as for `quantize`.
        cu_seqlens: cumulative lengths of the sequences packed along axis 0 of x.
        validate: as for `quantize`.

    Returns:
        One operand, or a tuple if `axes` has several entries.

    Raises:
        ValueError: a dtype, shape, axis, format, rule, length or device that is not allowed; says which are.
    """
    shape = _result_shape(x, weight, head_dim, cu_seqlens)
    several = len(axes) > 0 and not isinstance(axes[0], int)
    wanted: Any = axes if several else (axes,)
    tokens = tokens_of(shape, cu_seqlens, x.device, validate=validate)
    blocks = tuple(make_blocks(shape, one, fmt, rule, tail, tokens) for one in wanted)
    operands = tuple(empty_operand(shape, one, tokens, x.device) for one in blocks)
    targets = [(o.codes, o.scales.get("tokens"), o.scales.get("head_dim")) for o in operands]
    _run(x, weight, shape, tokens, targets, blocks)
    return operands if several else operands[0]


def gemm(x: torch.Tensor, weight: torch.Tensor, *, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """x weight^T by the same main loop, in bfloat16 or float32: what `gemm_quantize` is compared with.

    Args:
        x: bfloat16 (S, K).
        weight: bfloat16 (N, K).
        dtype: of the result.

    Raises:
        ValueError: as for `gemm_quantize`; another dtype.
    """
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"dtype = {dtype}; allowed: torch.bfloat16, torch.float32")
    shape = _result_shape(x, weight, None, None)
    result = torch.empty(shape, dtype=dtype, device=x.device)
    _run(x, weight, shape, tokens_of(shape, None, x.device), [(result, None, None)], (None,))
    return result


def _run(
    x: torch.Tensor,
    weight: torch.Tensor,
    shape: tuple[int, ...],
    tokens: _Tokens,
    targets: Sequence[tuple[torch.Tensor | None, ...]],
    outputs: tuple[Blocks | None, ...],
) -> None:
    """Launch the main loop that the device has."""
    module = importlib.import_module(f"mxfp8fa.kernels.producers.{_MAIN_LOOPS[target_for(x.device)]}")
    n, k = weight.shape
    if 0 in shape:
        return
    source = with_aligned_rows(x.detach().reshape(-1, k))
    factors = weight.detach().contiguous()
    sizes = source.shape[0], n, k, shape[-1], tokens.batches, tokens.seqlen, tokens.tiles
    pointers = tuple(
        (pointer(values, None if blocks is None else blocks.element_type), *map(pointer, scales))
        for (values, *scales), blocks in zip(targets, outputs, strict=True)
    )
    launch(
        module.gemm,
        pointer(source),
        pointer(with_aligned_rows(factors)),
        pointers,
        pointer(tokens.table),
        tuple(map(cutlass.Int32, sizes)),
        cutlass.Int64(source.stride(0)),
        cutlass.Int32(multiprocessors(x.device)),
        device=x.device,
        constants=(outputs, min(4, shape[-1] // BLOCK)),
        memory=(source, factors, tokens.table, *(t for target in targets for t in target)),
    )


def _result_shape(
    x: torch.Tensor, weight: torch.Tensor, head_dim: int | None, cu_seqlens: torch.Tensor | None
) -> tuple[int, ...]:
    """Shape of x weight^T in heads.

    Raises:
        ValueError: operands that do not fit together, or heads that are not allowed.
    """
    for name, tensor, ranks in (("x", x, (2, 3)), ("weight", weight, (2,))):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.bfloat16 or tensor.ndim not in ranks:
            given = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ValueError(f"{name} is {given}; allowed: torch.bfloat16 of rank {' or '.join(map(str, ranks))}")
    n, k = weight.shape
    if x.shape[-1] != k or k < BLOCK or k % BLOCK or n < BLOCK or n % BLOCK:
        raise ValueError(
            f"x {tuple(x.shape)} and weight {tuple(weight.shape)}; allowed: (..., K) and (N, K), N and K positive "
            f"multiples of {BLOCK}"
        )
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device}; allowed: {x.device}, as x")
    if head_dim is None:
        if x.ndim != 2 or cu_seqlens is not None:
            raise ValueError("head_dim is None; allowed for x of shape (S, K) without cu_seqlens")
        return x.shape[0], n
    if (head_dim not in (32, 64) and head_dim % 128) or head_dim < 1 or n % head_dim:
        raise ValueError(f"head_dim = {head_dim}; allowed: 32, 64 and multiples of 128, such that N = {n} is whole heads")
    if x.ndim == 2 and cu_seqlens is None:
        raise ValueError("x of shape (S, K) with head_dim needs cu_seqlens; allowed without them: (B, S, K)")
    return *x.shape[:-1], n // head_dim, head_dim
