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
        return WorkTile(self, row, number // heads_q, head, head // (heads_q // heads_kv))


class WorkTile(Fixed):
    """Two Q tiles of one head.

    Attributes:
        q_tile: number of the first of its Q tiles in the sequence.
        batch, head, kv_head: which.
        seqlen_q, seqlen_k: of its sequence.
    """

    def __init__(
        self, work: Scheduler, row: cutlass.Int32, batch: cutlass.Int32, head: cutlass.Int32, kv_head: cutlass.Int32
    ) -> None:
        super().__init__(q_tile=Q_TILES * row, batch=batch, head=head, kv_head=kv_head, causal=work.causal)
        _, self.seqlen_q, self.seqlen_k, *_ = work.sizes

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
