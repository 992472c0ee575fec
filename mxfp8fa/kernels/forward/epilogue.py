"""The epilogue warp: chunks of O from shared to global memory by TMA, which leaves out the rows behind the last query."""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.plan import CHUNK_STAGES, Q_TILES


@cute.jit
def store(cta: Fixed, tma: cute.CopyAtom, tOsO: cute.Tensor, tOgO: cute.Tensor) -> None:
    """Every chunk of every Q tile.

    Args:
        cta: what the roles share.
        tma: the TMA copy.
        tOsO: its source, (TMA, stages).
        tOgO: its destination, (TMA, tiles of queries, chunks of a row, heads, batch).
    """
    work, events = cta.work, cta.events
    chunks = cutlass.Int32(0)
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        for i in cutlass.range(Q_TILES, unroll=1):
            if tile.exists(i):
                for column in cutlass.range(cute.size(tOgO, mode=[2]), unroll=1):
                    events.chunk_full.wait(chunks)
                    target = tOgO[None, tile.q_tile + i, column, tile.head, tile.batch]
                    cute.copy(tma, tOsO[None, chunks % CHUNK_STAGES], target)
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    with cute.arch.elect_one():
                        events.chunk_empty.arrive(chunks)
                    chunks += 1
