"""Packed sequences of different lengths: which work there is, as a table on the device that no host looks into.

Codes lie compact, sequence after sequence; an atom of scales is indivisible, so every sequence has atoms of its own. Two
address spaces, then, and a row of a work table has a sequence's place in both:

    tile                  number of the tile within its sequence
    seqlen_q, seqlen_k    lengths of the sequence
    q_start, q_tile       its first query in the codes of Q, and its first atom in the scales of Q
    k_start, k_tile       its first key in the codes of K and V, and its first atom in their scales
    o_start, o_tile       its first row of O, lse and dO, and its first tile there: q_start, q_tile unless Q is broadcast

Row 0 is no work: it says how many rows follow. What follows that, up to the end of the memory, is zeros. The memory is
taken by a bound, (T + 127 B) // 128 tiles of 128 tokens, which needs no number that only the device knows; on the CPU,
where nobody has to be waited for, it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mxfp8fa.layouts import TILE_TOKENS

COLUMNS = ("tile", "seqlen_q", "seqlen_k", "q_start", "q_tile", "k_start", "k_tile", "o_start", "o_tile")
Side = Literal["q", "k"]


def tile_bound(tokens: int, batch: int, tile: int = TILE_TOKENS) -> int:
    """At most so many tiles have `batch` sequences of `tokens` tokens in all, each padded on its own."""
    return (tokens + (tile - 1) * batch) // tile


@dataclass(frozen=True)
class Jagged:
    """Which sequences a call is about.

    Attributes:
        cu_seqlens_q: (B + 1,) int32 or int64, where the queries of a sequence begin; None: all sequences share one block
            of queries, "broadcast Q".
        cu_seqlens_k: (B + 1,), where its keys begin.
        tokens_q: T of q; with broadcast Q the length of the block.
        tokens_k: T of k and v.
        exact: take memory for the work that there is (the CPU knows); else by the bound.
    """

    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_k: torch.Tensor
    tokens_q: int
    tokens_k: int
    exact: bool = False

    @property
    def batch(self) -> int:
        """B."""
        return len(self.cu_seqlens_k) - 1

    @property
    def tokens_o(self) -> int:
        """Rows of O."""
        return self.tokens_q if self.cu_seqlens_q is not None else self.tokens_q * self.batch

    def offsets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cu_seqlens of O and of the keys, int64."""
        o = self.cu_seqlens_q
        if o is None:
            o = torch.arange(self.batch + 1, device=self.cu_seqlens_k.device) * self.tokens_q
        return o.long(), self.cu_seqlens_k.long()

    def work(self, side: Side, tile: int, *, causal: bool, longest_first: bool = True) -> torch.Tensor:
        """The work table: all tiles of `tile` queries, or of `tile` keys; (1 + tiles, 9) int32.

        Args:
            side: "q" for tiles of queries, in the order of O; "k" for tiles of keys.
            tile: their length.
            causal: whether the mask makes some tiles shorter work than others.
            longest_first: in the order of how many tiles of the other side meet them, or as they lie in memory.
        """
        o, k = self.offsets()
        own = o if side == "q" else k
        first = _cumulative_tiles(own, tile)
        count = first[-1]
        tokens = self.tokens_o if side == "q" else self.tokens_k
        rows = int(count) if self.exact else tile_bound(tokens, self.batch, tile)
        index = torch.arange(rows, device=k.device)
        sequence = torch.searchsorted(first[1:], index, right=True).clamp(max=self.batch - 1)
        number = index - first[sequence]
        o_tile, k_tile = (_cumulative_tiles(x, TILE_TOKENS)[:-1] for x in (o, k))
        q_start, q_tile = (o[:-1], o_tile) if self.cu_seqlens_q is not None else (torch.zeros_like(o_tile),) * 2
        of_sequence = o.diff(), k.diff(), q_start, q_tile, k[:-1], k_tile, o[:-1], o_tile
        columns = [number, *(x[sequence] for x in of_sequence)]
        table = torch.stack(columns, dim=1) * (index < count)[:, None]
        if longest_first:
            table = table[torch.argsort(_met(table, side, tile, causal), descending=True, stable=True)]
        head = torch.nn.functional.pad(count.reshape(1, 1), (0, len(COLUMNS) - 1))
        return torch.cat([head, table]).int()


def _cumulative_tiles(cu_seqlens: torch.Tensor, tile: int) -> torch.Tensor:
    """First tile of every sequence, and the number of tiles: (B + 1,) int64."""
    return torch.nn.functional.pad(torch.cumsum((cu_seqlens.diff() + tile - 1) // tile, 0), (1, 0))


def _met(table: torch.Tensor, side: Side, tile: int, causal: bool) -> torch.Tensor:
    """How many tiles of 128 of the other side meet each tile of a table; -1 for rows without work."""
    number, seqlen_q, seqlen_k = table[:, 0], table[:, 1], table[:, 2]
    if side == "q":
        last = torch.minimum((number + 1) * tile, seqlen_q) - 1
        seen = torch.minimum(last + 1 + seqlen_k - seqlen_q, seqlen_k).clamp(min=0) if causal else seqlen_k
        met, exists = (seen + TILE_TOKENS - 1) // TILE_TOKENS, seqlen_q > 0
    else:
        met, exists = (seqlen_q + TILE_TOKENS - 1) // TILE_TOKENS, seqlen_k > 0
        if causal:
            first = torch.minimum((number * tile - seqlen_k + seqlen_q).clamp(min=0), seqlen_q)
            met = met - first // TILE_TOKENS
    return torch.where(exists, met, -1)
