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

Producers take one tensor and so need less: `tile_table`, and where torch quantizes, `token_slots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mxfp8fa.layouts import TILE_TOKENS
from mxfp8fa.numerics.mx_tensor import normalize_cu_seqlens

OFFSET_DTYPES = (torch.int32, torch.int64)
COLUMNS = ("tile", "seqlen_q", "seqlen_k", "q_start", "q_tile", "k_start", "k_tile", "o_start", "o_tile")
Side = Literal["q", "k"]


def tile_bound(tokens: int, batch: int, tile: int = TILE_TOKENS) -> int:
    """At most so many tiles have `batch` sequences of `tokens` tokens in all, each padded on its own."""
    return (tokens + (tile - 1) * batch) // tile


def host_may_look(device: torch.device) -> bool:
    """Whether reading values there keeps nobody waiting. A GPU's are read when it has done all that was asked of it before."""
    return device.type == "cpu"


def checked_offsets(
    cu_seqlens: torch.Tensor, tokens: int, device: torch.device, *, validate: bool = False
) -> torch.Tensor:
    """Where sequences of `tokens` tokens in all begin: (B + 1,) int32 on `device`.

    Args:
        cu_seqlens: (B + 1,) int32 or int64.
        tokens: T.
        device: of the data.
        validate: look at the values wherever they are; those of CPU tensors are always looked at.

    Raises:
        ValueError: not such a tensor, or one that does not start at 0, falls, or does not end at T.
    """
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in OFFSET_DTYPES or cu_seqlens.ndim != 1:
        is_tensor = isinstance(cu_seqlens, torch.Tensor)
        given = f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}" if is_tensor else type(cu_seqlens).__name__
        raise ValueError(f"cu_seqlens is {given}; allowed: a tensor of int32 or int64 (B + 1,)")
    if len(cu_seqlens) < (2 if tokens else 1):
        raise ValueError(f"cu_seqlens has {len(cu_seqlens)} elements for {tokens} tokens; allowed: B + 1, B sequences")
    if validate or host_may_look(cu_seqlens.device):
        normalize_cu_seqlens(cu_seqlens.cpu().numpy(), (tokens,))
    return cu_seqlens.to(device, torch.int32, non_blocking=host_may_look(cu_seqlens.device), copy=True)


def tile_table(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """First token and number of tokens of every tile of 128, (tiles, 2) int32, made where the offsets are.

    On the CPU as many rows as there are tiles, elsewhere as many as there may be. A row too many has no tokens and begins at
    token 1: a kernel that loads token min(i, number - 1) of a tile for its i-th then loads one that exists, as always.

    Args:
        cu_seqlens: (B + 1,), taken for granted; the host reads those of CPU tensors only.
        tokens: T.
    """
    if len(cu_seqlens) < 2:
        return torch.zeros(0, 2, dtype=torch.int32, device=cu_seqlens.device)
    offsets = cu_seqlens.long()
    first_tile, tiles = _cumulative_tiles(offsets, TILE_TOKENS), tile_count(cu_seqlens, tokens)
    index = torch.arange(tiles, device=offsets.device)
    sequence = torch.searchsorted(first_tile[1:], index, right=True).clamp(max=len(offsets) - 2)
    first = offsets[sequence] + TILE_TOKENS * (index - first_tile[sequence])
    number = (offsets[sequence + 1] - first).clamp(0, TILE_TOKENS)
    return torch.stack([torch.where(number > 0, first, 1), number], dim=1).int()


def tile_count(cu_seqlens: torch.Tensor, tokens: int, tile: int = TILE_TOKENS) -> int:
    """Tiles that memory is taken for: as many as there are if the host may look, else as many as there may be."""
    if host_may_look(cu_seqlens.device):
        return int(_cumulative_tiles(cu_seqlens.long(), tile)[-1])
    return tile_bound(tokens, len(cu_seqlens) - 1, tile)


def sequence_of_tokens(cu_seqlens: torch.Tensor, tokens: int) -> torch.Tensor:
    """(T,) which sequence every token belongs to."""
    token = torch.arange(tokens, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].long(), token, right=True)


def token_slots(cu_seqlens: torch.Tensor, tokens: int, tile: int = TILE_TOKENS) -> torch.Tensor:
    """(T,) where every token lies when each sequence is padded to whole tiles."""
    offsets, sequence = cu_seqlens.long(), sequence_of_tokens(cu_seqlens, tokens)
    shift = _cumulative_tiles(offsets, tile) * tile - offsets
    return torch.arange(tokens, device=offsets.device) + shift[sequence]


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
