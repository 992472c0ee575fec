"""The compute warps: P^T = exp2(S^T * softmax_scale_log2 + addend) and dS^T = P^T * (dP^T - delta), and both quantized.

A thread has one key, its lane of tensor memory, and 64 of the 128 queries of a tile, in two blocks of 32. The scale of P
is constant. A square block of dS is 32 registers of 32 lanes, and so lies within a warp: its codes go to tensor memory,
where dK reads them, and the same codes to shared memory, where dQ reads them with queries as rows.
"""

from types import SimpleNamespace

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.square import square_scale
from mxfp8fa.kernels.backward.tables import COMPUTE_WARP, HALF, STAGES, TILE_M, TILE_N, TMEM
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3
from mxfp8fa.kernels.steps.step4_quantizer import load_row, reciprocal, store_row

GROUP_THREADS = 128  # of the warps that share 64 queries
VECTOR = 16  # codes that a thread stores at a time


@cute.jit
def compute(
    tmem: cute.Pointer,
    sTerms: cute.Tensor,
    sdS: cute.Tensor,
    sWords: cute.Tensor,
    events: SimpleNamespace,
    place: tuple,
    q_tiles: tuple,
    lengths: tuple,
    scale_log2: cutlass.Float32,
    causal: cutlass.Constexpr[bool],
    p_offset: cutlass.Constexpr[int],
    rounded: cutlass.Constexpr[bool],
) -> None:
    """P and dS, tile after tile.

    Args:
        tmem: first column.
        sTerms: (2 * 128, stages): addend, delta.
        sdS: (128 queries, 128 keys) E4M3 as dQ reads it, out.
        sWords: (blocks of keys, blocks of queries) Int32, scales of dS, out.
        events: see `tables.BARRIERS`.
        place: tile of keys, head of keys, batch.
        q_tiles: first tile of queries, tiles, query heads for each head of keys.
        lengths: seqlen_q, seqlen_k.
        scale_log2: softmax_scale * log2(e).
        causal: whether query i sees key j only where j <= i + seqlen_k - seqlen_q.
        p_offset: log2 of the factor on P.
        rounded: whether dS takes P as rounded to E4M3.
    """
    (kv_tile, _, _), (first, tiles, group) = place, q_tiles
    thread, _, _ = cute.arch.thread_idx()
    half = (thread - 32 * COMPUTE_WARP) // GROUP_THREADS
    lane = thread % GROUP_THREADS
    tS, tdP = (tmem + TMEM[name].start + half * HALF for name in ("S", "dP"))
    p = cute.make_rmem_tensor(HALF, cutlass.Float32)
    t = cutlass.Int32(0)
    for _head in cutlass.range(group, unroll=1):
        for tile in cutlass.range(first, tiles, unroll=1):
            sAddend, sDelta = (cute.local_tile(sTerms[None, t % STAGES], (HALF,), (2 * i + half,)) for i in (0, 1))
            events.q_full.wait(t)
            events.s_full.wait(t)
            row = load_row(tS, HALF, lane)
            events.s_drained.arrive(t)
            mask(row, kv_tile, tile * TILE_M + half * HALF, lane, lengths, causal)
            probabilities(row, sAddend, p, tS, scale_log2, p_offset, rounded, lane)
            cute.arch.fence_view_async_tmem_store()
            events.p_full.arrive(t)

            events.dp_full.wait(t)
            row = load_row(tdP, HALF, lane)
            events.dp_drained.arrive(t)
            differentiate(row, sDelta, p)
            scales = quantize_squares(p, sWords, half, lane)
            events.ds_scaled.arrive(t)
            store_codes(p, scales, tdP, sdS, half, lane)
            cute.arch.fence_view_async_tmem_store()
            cute.arch.fence_view_async_shared()
            events.ds_full.arrive(t)
            t += 1


@cute.jit
def mask(
    row: cute.Tensor,
    kv_tile: cutlass.Int32,
    first_query: cutlass.Int32,
    lane: cutlass.Int32,
    lengths: tuple,
    causal: cutlass.Constexpr[bool],
) -> None:
    """-infinity where a query does not see the thread's key; `first_query` is that of the row's first number."""
    seqlen_q, seqlen_k = lengths
    last_key = kv_tile * TILE_N + TILE_N - 1
    needed = last_key >= seqlen_k
    if cutlass.const_expr(causal):
        needed = needed or last_key > first_query + seqlen_k - seqlen_q
    if needed:
        key = kv_tile * TILE_N + lane
        unseen = cutlass.Int32(0)  # how many of the first numbers
        if cutlass.const_expr(causal):
            unseen = key - (seqlen_k - seqlen_q) - first_query
        unseen = unseen if key < seqlen_k else cutlass.Int32(cute.size(row))
        for i in cutlass.range(cute.size(row), unroll_full=True):
            row[i] = row[i] if i >= unseen else -cutlass.Float32.inf


@cute.jit
def probabilities(
    s: cute.Tensor,
    sAddend: cute.Tensor,
    p: cute.Tensor,
    tP: cute.Pointer,
    scale_log2: cutlass.Float32,
    p_offset: cutlass.Constexpr[int],
    rounded: cutlass.Constexpr[bool],
    lane: cutlass.Int32,
) -> None:
    """P in FP32 from scores, and 2^p_offset P in E4M3 to tensor memory."""
    codes = cute.make_rmem_tensor(HALF, E4M3)
    addend = cute.make_rmem_tensor(HALF, cutlass.Float32)
    cute.autovec_copy(sAddend, addend)
    for i in cutlass.range(0, HALF, 2, unroll_full=True):
        x = cute.arch.fma_packed_f32x2((s[i], s[i + 1]), (scale_log2, scale_log2), (addend[i], addend[i + 1]))
        p[i], p[i + 1] = cute.math.exp2(x[0], fastmath=True), cute.math.exp2(x[1], fastmath=True)
    codes.store(p.load().to(E4M3))
    store_row(cute.recast_tensor(codes, cutlass.Float32), tP, lane)
    if cutlass.const_expr(rounded):
        p.store(codes.load().to(cutlass.Float32))
    p.store(p.load() * cutlass.Float32(2.0**-p_offset))


@cute.jit
def differentiate(dp: cute.Tensor, sDelta: cute.Tensor, p: cute.Tensor) -> None:
    """P * (dP - delta), in place of P."""
    delta = cute.make_rmem_tensor(HALF, cutlass.Float32)
    cute.autovec_copy(sDelta, delta)
    p.store(p.load() * (dp.load() - delta.load()))


@cute.jit
def quantize_squares(ds: cute.Tensor, sWords: cute.Tensor, half: cutlass.Int32, lane: cutlass.Int32) -> list:
    """The scales of the thread's blocks, also left in shared memory, a word each."""
    scales = []
    for block in cutlass.range_constexpr(HALF // BLOCK):
        scale = square_scale(cute.local_tile(ds, (BLOCK,), (block,)))
        if lane % 32 == 0:
            sWords[lane // 32, half * (HALF // BLOCK) + block] = scale
        scales.append(scale)
    return scales


@cute.jit
def store_codes(
    ds: cute.Tensor, scales: list, tdS: cute.Pointer, sdS: cute.Tensor, half: cutlass.Int32, lane: cutlass.Int32
) -> None:
    """dS in E4M3 to tensor memory and to shared memory."""
    codes = cute.make_rmem_tensor(HALF, E4M3)
    for block in cutlass.range_constexpr(HALF // BLOCK):
        part, coded = (cute.local_tile(x, (BLOCK,), (block,)) for x in (ds, codes))
        coded.store((part.load() * reciprocal(scales[block])).to(E4M3))
    store_row(cute.recast_tensor(codes, cutlass.Float32), tdS, lane)
    sRow = sdS[(None, lane % 32), 0, lane // 32, 0]  # the queries of the thread's key
    for i in cutlass.range_constexpr(HALF // VECTOR):
        target = cute.local_tile(sRow, (VECTOR,), (half * (HALF // VECTOR) + i,))
        cute.autovec_copy(cute.local_tile(codes, (VECTOR,), (i,)), target)
