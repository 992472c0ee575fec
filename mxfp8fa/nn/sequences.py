"""Sequences of different lengths packed along one axis: where every token lies in a padded tensor, and its position."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from mxfp8fa.kernels.jagged import host_may_look


@dataclass(frozen=True)
class Sequences:
    """Sequences packed along axis 0, without gaps.

    Attributes:
        cu_seqlens: (B + 1,) int32 or int64 cumulative lengths: 0, the end of the first sequence, ... , T.
        max_seqlen: a bound on the lengths; padded tensors are as long.
        tokens: T.
    """

    cu_seqlens: torch.Tensor
    max_seqlen: int
    tokens: int

    @property
    def count(self) -> int:
        """Number of sequences B."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def lengths(self) -> torch.Tensor:
        """(B,) lengths."""
        return self.cu_seqlens.diff()

    def number(self) -> torch.Tensor:
        """(T,) which sequence every token belongs to; nothing is read by the host."""
        token = torch.arange(self.tokens, device=self.cu_seqlens.device, dtype=self.cu_seqlens.dtype)
        return torch.bucketize(token, self.cu_seqlens[1:], right=True)

    def positions(self) -> torch.Tensor:
        """(T,) position of every token in its sequence."""
        token = torch.arange(self.tokens, device=self.cu_seqlens.device)
        return token - self.cu_seqlens[self.number()]

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """(T, ...) -> (B, max_seqlen, ...) with zeros after the end of each sequence."""
        padded = x.new_zeros((self.count * self.max_seqlen, *x.shape[1:]))
        return padded.index_copy(0, self._slots(), x).unflatten(0, (self.count, self.max_seqlen))

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `pad`."""
        return x.flatten(0, 1).index_select(0, self._slots())

    def _slots(self) -> torch.Tensor:
        return self.number() * self.max_seqlen + self.positions()


def make_sequences(cu_seqlens: torch.Tensor, tokens: int, max_seqlen: int | None) -> Sequences:
    """Check cumulative lengths; with `max_seqlen` given only those of CPU tensors are read, so that a GPU is not waited for.

    Raises:
        ValueError: they are no cumulative lengths of so many tokens, or `max_seqlen` is less than the longest.
    """
    allowed = f"allowed: int32 or int64 (B + 1,) from 0 to {tokens}, not falling"
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}; {allowed}")
    if max_seqlen is not None and (isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int) or max_seqlen < 1):
        raise ValueError(f"max_seqlen = {max_seqlen!r}; allowed: a positive integer, at least the longest length")
    if max_seqlen is not None and not _may_look(cu_seqlens):
        return Sequences(cu_seqlens, max_seqlen, tokens)
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends[-1] != tokens or ends != sorted(ends):
        given = str(ends) if len(ends) <= 8 else f"{ends[:4]}...{ends[-1]}"
        raise ValueError(f"cu_seqlens = {given}; {allowed}")
    longest = max(1, max(b - a for a, b in itertools.pairwise(ends)))
    if max_seqlen is not None and max_seqlen < longest:
        raise ValueError(f"max_seqlen = {max_seqlen}; allowed: at least {longest}, the longest length in cu_seqlens")
    return Sequences(cu_seqlens, longest if max_seqlen is None else max_seqlen, tokens)


def _may_look(cu_seqlens: torch.Tensor) -> bool:
    """Whether there are values that can be read without waiting: not while a graph is made, nor of fake tensors."""
    return host_may_look(cu_seqlens.device) and type(cu_seqlens) is torch.Tensor and not torch.compiler.is_compiling()


def rotate(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary embedding (RoPE, arXiv 2104.09864) in the form of GPT-NeoX and Llama: element i turns with i + D / 2.

    Args:
        x: (..., S, H, D); computed in float32, returned in its dtype.
        positions: (S,).
        base: of the wavelengths, 10,000 in the paper.
    """
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = (positions.float()[:, None] * frequency)[:, None]  # (S, 1, D / 2)
    cos, sin = angle.cos(), angle.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
