"""Batched products of block-scaled values with float32 sums, and the mask of the scores."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


def without_autocast(x: torch.Tensor) -> AbstractContextManager[Any]:
    """`torch.autocast` off on the device of x: it would round float32 operands of products, and turn BF16 ones into FP16."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b^T: (..., M, K), (..., N, K) -> (..., M, N) in float32, for operands that are block-scaled E4M3 values.

    On CUDA the operands go in as bfloat16: its 8 significant bits and float32's exponents hold each of them exactly (but
    for magnitudes below 2^-126, which no attention reaches). The device's tensor core adds up in float32.
    """
    if not a.is_cuda:
        return a @ b.mT
    left, right = (x.bfloat16().flatten(0, -3) for x in (a, b))
    return torch.bmm(left, right.mT, out_dtype=torch.float32).unflatten(0, a.shape[:-2])


@dataclass(frozen=True)
class Visibility:
    """Which keys a query sees.

    Attributes:
        seqlen_q: Sq.
        seqlen_k: Sk.
        causal: query i sees key j when j <= i + (length of the keys) - (length of the queries).
        lengths_q: (B,) valid queries of each sequence, the first ones, or None for all.
        lengths_k: (B,) valid keys, likewise.
    """

    seqlen_q: int
    seqlen_k: int
    causal: bool
    lengths_q: torch.Tensor | None = None
    lengths_k: torch.Tensor | None = None

    def mask(self, s: torch.Tensor, first_key: int) -> torch.Tensor:
        """(B, H, Sq, n) scores of the keys from `first_key` on, with -inf where a query does not see a key."""
        last = first_key + s.shape[-1]
        if not self.causal and self.lengths_k is None and last <= self.seqlen_k:
            return s
        key = torch.arange(first_key, last, device=s.device)
        length_k = self._length(self.lengths_k, self.seqlen_k)
        visible = key < length_k  # (B or 1, 1, 1, n)
        if self.causal:
            query = torch.arange(self.seqlen_q, device=s.device)[:, None]
            visible = visible & (key <= query + length_k - self._length(self.lengths_q, self.seqlen_q))
        return torch.where(visible, s, float("-inf"))

    def valid_rows(self, x: torch.Tensor, side: str) -> torch.Tensor:
        """X (B, H, S, D) with zeros after the end of each sequence of the "q" or "k" side."""
        lengths = self.lengths_q if side == "q" else self.lengths_k
        if lengths is None:
            return x
        row = torch.arange(x.shape[-2], device=x.device)[:, None]
        return torch.where(row < self._length(lengths, 0), x, 0.0)

    @staticmethod
    def _length(lengths: torch.Tensor | None, default: int) -> torch.Tensor | int:
        """(B, 1, 1, 1) lengths, or the one number."""
        return default if lengths is None else lengths[:, None, None, None]
