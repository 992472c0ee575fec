"""Arguments of kernels, checked before anything is compiled."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Multiple(NamedTuple):
    """A size that may be any positive multiple of `of`."""

    of: int

    def __str__(self) -> str:
        return f"a multiple of {self.of}"


Size = int | Multiple


def check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, *sizes: Size, column_major: bool = False) -> None:
    """Refuse a tensor that a kernel does not take.

    Args:
        name: of the argument, for the message.
        tensor: the argument.
        dtype: its only allowed dtype.
        *sizes: what each dimension may be.
        column_major: also allow a matrix whose transpose is contiguous.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} is {type(tensor).__name__}; allowed: a torch tensor")
    given = tuple(tensor.shape)
    fits = len(given) == len(sizes) and all(_fits(g, s) for g, s in zip(given, sizes, strict=True))
    if tensor.dtype != dtype or not fits:
        allowed = ", ".join(str(s) for s in sizes)
        raise ValueError(f"{name} is {tensor.dtype} {given}; allowed: {dtype} ({allowed})")
    if not (tensor.is_contiguous() or (column_major and tensor.T.is_contiguous())):
        orders = "contiguous or the transpose of a contiguous tensor" if column_major else "contiguous"
        raise ValueError(f"{name} of shape {given} has strides {tensor.stride()}; allowed: {orders}")


def _fits(given: int, allowed: Size) -> bool:
    if isinstance(allowed, Multiple):
        return given >= 1 and given % allowed.of == 0
    return given == allowed
