"""Tensors on both sides of a launch: torch passes rows, the kernel unfolds them.

A contiguous (B, S, H, D) becomes (B * S * H, D) on the way in, because a size of 1 has no stride of its own in DLPack and
one compilation is to serve all sizes; only the last size is compiled in.
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
    """(rows, last) as (*sizes, last)."""
    last = cute.size(mX, mode=[1])
    strides, step = [1], last
    for size in reversed(sizes):
        strides.insert(0, step)
        step = cute.assume(cutlass.Int64(size) * step, divby=last)
    return cute.make_tensor(mX.iterator, cute.make_layout((*sizes, last), stride=tuple(strides)))
