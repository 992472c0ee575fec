"""Which work there is, who does it, and which keys a query sees: the one place that knows how long sequences are.

A work tile is 256 queries of one head, two Q tiles. CTAs stay on their SM and take every n-th of them, n the number of
CTAs. Under a causal mask later queries see more keys; those come first, so that the last work to be started is short.
So that K and V stay in the L2 cache, heads are gone through in groups: all queries of a group, then the next group.
"""

from __future__ import annotations

import cutlass
from cutlass import cute

from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.plan import Q_TILES, TILE_M, TILE_N
from mxfp8fa.kernels.forward.sequences import InBatch, work_row

WORK_ROWS = Q_TILES * TILE_M
L2_BYTES = 32 << 20  # of the 126 MB of a B200, for K and V of the heads being worked on


class Scheduler(Fixed):
    """The work of one launch, as every role of every CTA goes through it.

        for index in cutlass.range(work.first, work.count, work.step, unroll=1):
            tile = work.tile(index)

    Args:
        sizes: B, Sq, Sk, Hq, Hkv, and how many query heads make a group.
        causal: whether query i sees key j only where j <= i + Sk - Sq.
    """

    def __init__(self, sizes: tuple, causal: bool) -> None:
        batch, seqlen_q, _, heads_q, *_ = sizes
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        super().__init__(sizes=sizes, causal=causal, first=first, step=step)
        self.rows = cute.ceil_div(seqlen_q, WORK_ROWS)  # of work tiles
        self.heads = batch * heads_q
        self.count = self.rows * self.heads

    def tile(self, index: cutlass.Int32) -> WorkTile:
        """Work tile number `index`, longest first within a group."""
        _, _, _, heads_q, heads_kv, group = self.sizes
        first_head = index // (self.rows * group) * group
        heads = cutlass.min(group, self.heads - first_head)  # the last group may be smaller
        rest = index % (self.rows * group)
        row = self.rows - 1 - rest // heads if self.causal else rest // heads
        number = first_head + rest % heads
        head = number % heads_q
        where = InBatch(number // heads_q)
        sequence = Fixed(q=where, k=where, o=where, seqlen_q=self.sizes[1], seqlen_k=self.sizes[2])
        return WorkTile(sequence, row, head, head // (heads_q // heads_kv), self.causal)


class JaggedScheduler(Fixed):
    """The work of a jagged launch, all heads of a row of the work table after each other, long rows before short ones.

    CTAs take every n-th work tile, back and forth: a CTA that had the longest of one round has the shortest of the next.

    Args:
        mTable: of tiles of 256 queries (`mxfp8fa.kernels.jagged`).
        sizes: as for `Scheduler`; T in the place of lengths, 1 in that of B.
        causal: likewise.
    """

    def __init__(self, mTable: cute.Tensor, sizes: tuple, causal: bool) -> None:
        first, _, _ = cute.arch.block_idx()
        step, _, _ = cute.arch.grid_dim()
        super().__init__(mTable=mTable, heads=sizes[3:5], causal=causal, first=first, step=step)
        self.tiles = mTable[0, 0] * sizes[3]
        self.count = cute.ceil_div(self.tiles, step) * step  # whole rounds

    def tile(self, index: cutlass.Int32) -> WorkTile:
        """Work tile number `index`; one without queries if the last round has none for this CTA."""
        heads_q, heads_kv = self.heads
        turn, place = index // self.step, index % self.step
        number = turn * self.step + place + turn % 2 * (self.step - 1 - 2 * place)
        exists = cutlass.Int32(number < self.tiles)
        number = cutlass.min(number, self.tiles - 1)
        sequence = work_row(self.mTable, number // heads_q)
        head = number % heads_q
        tile = WorkTile(sequence, sequence.tile, head, head // (heads_q // heads_kv), self.causal)
        tile.seqlen_q = tile.seqlen_q * exists
        return tile


class WorkTile(Fixed):
    """Two Q tiles of one head.

    Attributes:
        q_tile: number of the first of its Q tiles in the sequence.
        head, kv_head: which.
        seqlen_q, seqlen_k: of its sequence.
        q, k, o: where the sequence lies in Q, in K and V, and in O and lse (`sequences.py`).
    """

    def __init__(
        self, sequence: Fixed, row: cutlass.Int32, head: cutlass.Int32, kv_head: cutlass.Int32, causal: bool
    ) -> None:
        super().__init__(q_tile=Q_TILES * row, head=head, kv_head=kv_head, causal=causal)
        self.seqlen_q, self.seqlen_k = sequence.seqlen_q, sequence.seqlen_k
        self.q, self.k, self.o = sequence.q, sequence.k, sequence.o

    def exists(self, i: cutlass.Int32) -> cutlass.Boolean:
        """Whether Q tile i has a query."""
        return (self.q_tile + i) * TILE_M < self.seqlen_q

    def keys_seen(self, query: cutlass.Int32) -> cutlass.Int32:
        """How many keys a query sees: the first ones of the sequence."""
        if not self.causal:
            return self.seqlen_k
        return cutlass.max(cutlass.min(query + 1 + self.seqlen_k - self.seqlen_q, self.seqlen_k), 0)

    def kv_tiles(self, i: cutlass.Int32) -> cutlass.Int32:
        """How many tiles of keys Q tile i visits: the first ones, from the last of them down to tile 0."""
        q_tile = self.q_tile + i
        seen = self.keys_seen(q_tile * TILE_M + TILE_M - 1)
        return cute.ceil_div(seen, TILE_N) * cutlass.Int32(q_tile * TILE_M < self.seqlen_q)
