"""The correction warps: O in tensor memory is rescaled when a row maximum grew; in the end normalised and passed on.

Their place in time is between S and PV of a step: `p_full` needs the softmax warps for P and these for O.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.forward.events import Carried, Fixed
from mxfp8fa.kernels.forward.plan import CHUNK_BYTES, CHUNK_STAGES, Q_TILES, TILE_M, TMEM
from mxfp8fa.kernels.forward.rows import PART, finish
from mxfp8fa.kernels.steps.step4_quantizer import load_row, store_row


@cute.jit
def correct(cta: Fixed, mLSE: cute.Tensor) -> None:
    """Both Q tiles of every work tile."""
    work = cta.work
    thread = cute.arch.thread_idx()[0] % TILE_M
    # Of each Q tile: PV that O was made ready for, rescalings so far, work tiles ended; chunks of O stored by both.
    a, b = Carried(ready=0, scales=0, ended=0), Carried(ready=0, scales=0, ended=0)
    a, b = release_output(cta, 0, a), release_output(cta, 1, b)
    chunks = cutlass.Int32(0)
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        n0, n1 = tile.kv_tiles(0), tile.kv_tiles(1)
        steps = cutlass.max(n0, n1)
        for j in cutlass.range(1, steps, unroll=1):
            kv_tile = steps - 1 - j
            if kv_tile < n0 - 1:
                a = rescale_output(cta, 0, a, thread)
            if kv_tile < n1 - 1:
                b = rescale_output(cta, 1, b, thread)
        for i in cutlass.range(Q_TILES, unroll=1):
            if tile.exists(i):
                a, chunks = finish_output(cta, i, a, tile, mLSE, chunks, thread)
            a, b = b, a  # the second trip is for the other, and swaps them back


@cute.jit
def rescale_output(cta: Fixed, i: cutlass.Constexpr[int], mine: Carried, thread: cutlass.Int32) -> Carried:
    """O * acc_scale, unless no row of the warp needs it. PV of the step before is done: the softmax warps
    waited for it before they gave acc_scale.
    """
    events, tO = cta.events, cta.tmem + TMEM[f"O{i}"].start
    events.scale_full(i).wait(mine.scales)
    acc_scale = cta.acc_scale[i * TILE_M + thread]
    if cute.arch.vote_any_sync(acc_scale != 1.0):
        for column in cutlass.range_constexpr(0, cta.config.head_dim, PART):
            part = load_row(tO + column, PART, thread)
            part.store(part.load() * acc_scale)
            store_row(part, tO + column, thread)
        cute.arch.fence_view_async_tmem_store()
    mine = mine.but(scales=mine.scales + 1)
    return release_output(cta, i, mine)


def release_output(cta: Fixed, i: cutlass.Int32, mine: Carried) -> Carried:
    """The next PV may write O."""
    cta.events.p_full(i).arrive(mine.ready)
    return mine.but(ready=mine.ready + 1)


@cute.jit
def finish_output(
    cta: Fixed,
    i: cutlass.Int32,
    mine: Carried,
    tile: Fixed,
    mLSE: cute.Tensor,
    chunks: cutlass.Int32,
    thread: cutlass.Int32,
) -> tuple[Carried, cutlass.Int32]:
    """lse, and O divided and in chunks to the epilogue warp. Queries that see no key have O = 0 and lse = -inf."""
    events, sees_keys = cta.events, tile.kv_tiles(i) > 0
    row_max, row_sum = -cutlass.Float32.inf, cutlass.Float32(0)
    if sees_keys:
        events.sum_full(i).wait(mine.ended)
        slot = (mine.ended % 2 * Q_TILES + i) * TILE_M + thread
        row_max, row_sum = cta.row_max[slot], cta.row_sum[slot]
        events.o_full(i).wait(mine.ready - 1)
    inverse_sum, lse = finish(row_max, row_sum, cta.scale_log2, cta.config.p_offset)
    query = (tile.q_tile + i) * TILE_M + thread
    if query < tile.seqlen_q:
        batch, row = tile.o.row(query)
        mLSE[batch, tile.head, row] = lse
    tO = cta.tmem + TMEM["O0"].start + i * (TMEM["O1"].start - TMEM["O0"].start)
    columns = CHUNK_BYTES * 8 // cta.config.o_type.width
    for column in cutlass.range(0, cta.config.head_dim, columns, unroll=1):
        events.chunk_empty.wait_one_turn_before(chunks)
        sRow = cta.sO[thread, None, chunks % CHUNK_STAGES]
        for part in cutlass.range(columns // PART, unroll=1):
            target = cute.local_tile(sRow, (PART,), (part,))
            normalise_part(tO + column + part * PART, inverse_sum, sees_keys, target, thread)
        cute.arch.fence_view_async_shared()
        events.chunk_full.arrive(chunks)
        chunks += 1
    if sees_keys:
        mine = release_output(cta, i, mine.but(ended=mine.ended + 1))
    return mine, chunks


@cute.jit
def normalise_part(
    tO: cute.Pointer,
    inverse_sum: cutlass.Float32,
    sees_keys: cutlass.Boolean,
    target: cute.Tensor,
    thread: cutlass.Int32,
) -> None:
    """32 columns of O * inverse_sum, or 0, rounded to the type of `target` in shared memory."""
    result = cute.make_rmem_tensor(PART, target.element_type)
    result.fill(0.0)
    if sees_keys:  # else nothing was ever written there, or a scale is just being copied there
        row = load_row(tO, PART, thread)
        result.store((row.load() * inverse_sum).to(target.element_type))
    cute.autovec_copy(result, target)
