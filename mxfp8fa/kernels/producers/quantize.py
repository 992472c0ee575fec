"""`quantize`: a tensor in MXFP8, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.producers import quantize_kernel
from mxfp8fa.kernels.producers.data import (
    check_floats,
    empty_operand,
    launch,
    make_blocks,
    pointer,
    sizes_and_strides,
    tokens_of,
    with_aligned_rows,
)


def quantize(
    x: torch.Tensor,
    *,
    axes: int | Sequence[int],
    fmt: str = "e4m3",
    rule: str = "rceil",
    tail: str = "partial",
    cu_seqlens: torch.Tensor | None = None,
    validate: bool = False,
) -> MXOperand:
    """`x` in MXFP8, code for code what `mxfp8fa.numerics.quantize` gives.

    CUDA tensors are quantized by their GPU, Hopper or Blackwell, CPU tensors in the emulator.

    Args:
        x: bfloat16, float16 or float32, (S, D), (B, S, H, D) or, with cu_seqlens, (T, H, D); D a multiple of 32, any
            number of tokens. Any strides; data with a last axis that is not contiguous, or rows that do not start at
            multiples of 16 bytes, is copied first.
        axes: blocked axes: tokens, the last one, or both (squares).
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
        tail: "partial" lets the last block of tokens be short, "error" refuses it (and reads cu_seqlens for it).
        cu_seqlens: (B + 1,) int32 or int64 cumulative lengths of the sequences packed along axis 0; blocks of tokens restart
            at each. The table of tiles is made on the device, and nobody waits for it.
        validate: look at cu_seqlens of CUDA tensors too, which waits for the device; of CPU tensors they always are.

    Returns:
        Contiguous codes, and the scales in each orientation that the blocks serve. Scales of packed sequences on a GPU have
        as many tiles as there may be, (T + 127 B) // 128; those past the last one are 0.

    Raises:
        ValueError: a dtype, shape, axis, format, rule, length or device that is not allowed; says which are.
    """
    check_floats("x", x, 2, 3, 4)
    tokens = tokens_of(tuple(x.shape), cu_seqlens, x.device, validate=validate)
    blocks = make_blocks(tuple(x.shape), axes, fmt, rule, tail, tokens)
    operand = empty_operand(tuple(x.shape), blocks, tokens, x.device)
    if operand.codes.numel():
        source = with_aligned_rows(x.detach())
        outputs = operand.codes, operand.scales.get("tokens"), operand.scales.get("head_dim")
        launch(
            quantize_kernel.quantize,
            pointer(source),
            pointer(operand.codes, blocks.element_type),
            *map(pointer, (*outputs[1:], tokens.table)),
            *sizes_and_strides(source, tokens),
            device=x.device,
            constants=(blocks,),
            memory=(source, *outputs, tokens.table),
        )
    return operand
