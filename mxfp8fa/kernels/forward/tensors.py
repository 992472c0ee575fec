"""Tensors on both sides of a launch: torch passes rows, the kernel unfolds them.

A contiguous (B, S, H, D) goes in as (B * S * H, D): a size of 1 has no stride of its own, and one compilation is to
serve all sizes. Only the last one is compiled in.
"""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass import cute

from mxfp8fa.kernels.launch import gmem


def rows(x: torch.Tensor, element_type: Any = None) -> Any:
    """A contiguous tensor as a kernel takes it: (everything else, last size)."""
    return gmem(x.reshape(-1, x.shape[-1]), element_type, divisible_by=(1, None))


def unfold(mX: cute.Tensor, *sizes: cutlass.Int32) -> cute.Tensor:
    """(rows, last) as (*sizes, last), with strides of 64 bits: tensors may have more than 2^31 elements."""
    last = cute.size(mX, mode=[1])
    strides: list[Any] = [1]
    step: Any = last
    for size in reversed(sizes):
        strides.insert(0, step)
        step = cute.assume(cutlass.Int64(size) * step, divby=last)
    return cute.make_tensor(mX.iterator, cute.make_layout((*sizes, last), stride=tuple(strides)))


def by_tiles(mX: cute.Tensor, batch: cutlass.Int32, heads: cutlass.Int32) -> cute.Tensor:
    """(rows, elements of a tile) as (batch, heads, tiles, elements): scales and whatever else is padded to tiles."""
    return unfold(mX, batch, heads, cute.size(mX, mode=[0]) // (batch * heads))


def permuted(mX: cute.Tensor, modes: tuple[int, ...]) -> cute.Tensor:
    """The tensor with its modes in another order."""
    return cute.make_tensor(mX.iterator, cute.select(mX.layout, mode=list(modes)))
