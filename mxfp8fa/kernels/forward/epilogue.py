"""The epilogue warp: chunks of O from shared to global memory by TMA, which leaves out the rows behind the last query."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.plan import CHUNK_STAGES, Q_TILES


@cute.jit
def store(cta: Fixed, tma: cute.CopyAtom, mO: cute.Tensor, chunk: cutlass.Constexpr[tuple[int, int]]) -> None:
    """Every chunk of every Q tile.

    Args:
        cta: what the roles share.
        tma: the TMA copy.
        mO: O as it sees it, (tokens, D, heads, sequences).
        chunk: rows and columns of a chunk.
    """
    work, events = cta.work, cta.events
    chunks = cutlass.Int32(0)
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        gO = cute.local_tile(tile.o.rows(mO, 0), chunk, (None, None, None))
        # Source (TMA, stages) and destination (TMA, tiles of queries, chunks of a row, heads).
        tOsO, tOgO = cpasync.tma_partition(
            tma, 0, cute.make_layout(1), cute.group_modes(cta.sO, 0, 2), cute.group_modes(gO, 0, 2)
        )
        for i in cutlass.range(Q_TILES, unroll=1):
            if tile.exists(i):
                for column in cutlass.range(cute.size(tOgO, mode=[2]), unroll=1):
                    events.chunk_full.wait(chunks)
                    cute.copy(tma, tOsO[None, chunks % CHUNK_STAGES], tOgO[None, tile.q_tile + i, column, tile.head])
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
                    with cute.arch.elect_one():
                        events.chunk_empty.arrive(chunks)
                    chunks += 1
