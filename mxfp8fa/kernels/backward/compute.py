"""The compute warps: P^T = exp2(S^T * softmax_scale_log2 + addend) and dS^T = P^T * (dP^T - delta), and both quantized.

A thread has one key, its lane of tensor memory, and 64 of the 128 queries of a tile, in two blocks of 32. The scale of P
is constant. With direct codes a share of the columns is a share of the lanes here: both ways are computed then, and each
lane keeps its own. A square block of dS is 32 registers of 32 lanes, and so lies within a warp: its codes go to shared
memory, where dK reads them with keys as rows and dQ with queries.
"""

import cutlass
import numpy as np
from cutlass import cute

from mxfp8fa.kernels.backward.plan import COMPUTE_WARP, GROUP_THREADS, HALF, STAGES, TILE_M, TILE_N, TMEM
from mxfp8fa.kernels.backward.square import square_scale
from mxfp8fa.kernels.forward.direct import (
    CODES_PER_WORD,
    GAIN,
    SHARE_PERIOD,
    SUBNORMAL_UNIT,
    packed_integers,
    packed_subnormals,
)
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3
from mxfp8fa.kernels.steps.step4_quantizer import load_row, reciprocal, store_row
from mxfp8fa.numerics.softmax import E4M3_BIAS

VECTOR = 16  # codes that a thread stores at a time


@cute.jit
def compute(cta: Fixed) -> None:
    """P and dS, tile after tile: P to tensor memory, dS to shared memory."""
    events, work, config = cta.events, cta.work, cta.config
    thread, _, _ = cute.arch.thread_idx()
    half = (thread - 32 * COMPUTE_WARP) // GROUP_THREADS
    lane = thread % GROUP_THREADS
    tS, tdP = (cta.tmem + TMEM[name].start + half * HALF for name in ("S", "dP"))
    p = cute.make_rmem_tensor(HALF, cutlass.Float32)
    t = cutlass.Int32(0)
    for _head in cutlass.range(work.group, unroll=1):
        for tile in cutlass.range(work.first, work.q_tiles, unroll=1):
            sTerms = cta.sTerms[None, t % STAGES]
            sAddend, sDelta = (cute.local_tile(sTerms, (HALF,), (2 * i + half,)) for i in (0, 1))
            # For lse and delta. s_full says as much, but by way of the mma warp: who reads what a bulk copy wrote waits for it.
            events.q_full.wait(t)
            events.s_full.wait(t)
            row = load_row(tS, HALF, lane)
            events.s_drained.arrive(t)
            mask(row, work, tile * TILE_M + half * HALF, lane, config.causal)
            codes = probabilities(row, sAddend, p, cta.scale_log2, lane, config)
            store_row(cute.recast_tensor(codes, cutlass.Float32), tS, lane)
            cute.arch.fence_view_async_tmem_store()
            events.p_full.arrive(t)

            events.dp_full.wait(t)
            row = load_row(tdP, HALF, lane)
            events.dp_drained.arrive(t)
            differentiate(row, sDelta, p)
            scales = quantize_squares(p, cta.sWords, half, lane, config.rule)
            events.ds_scaled.arrive(t)
            store_codes(p, scales, cta.tiles["ds_t"], half, lane)
            cute.arch.fence_view_async_shared()
            events.ds_full.arrive(t)
            t += 1


@cute.jit
def mask(
    row: cute.Tensor,
    work: Fixed,
    first_query: cutlass.Int32,
    lane: cutlass.Int32,
    causal: cutlass.Constexpr[bool],
) -> None:
    """-infinity where a query does not see the thread's key; `first_query` is that of the row's first number."""
    last_key = work.kv_tile * TILE_N + TILE_N - 1
    needed = last_key >= work.seqlen_k
    if cutlass.const_expr(causal):
        needed = needed or last_key > first_query + work.seqlen_k - work.seqlen_q
    if needed:
        key = work.kv_tile * TILE_N + lane
        unseen = cutlass.Int32(0)  # how many of the first numbers
        if cutlass.const_expr(causal):
            unseen = key - (work.seqlen_k - work.seqlen_q) - first_query
        unseen = unseen if key < work.seqlen_k else cutlass.Int32(cute.size(row))
        for i in cutlass.range(cute.size(row), unroll_full=True):
            row[i] = row[i] if i >= unseen else -cutlass.Float32.inf


@cute.jit
def probabilities(
    s: cute.Tensor,
    sAddend: cute.Tensor,
    p: cute.Tensor,
    scale_log2: cutlass.Float32,
    lane: cutlass.Int32,
    config: cutlass.Constexpr,
) -> cute.Tensor:
    """E4M3 codes of 2^p_offset P from scores, as the forward made them.

    Args:
        s: (n,) masked scores.
        sAddend: (n,) p_offset - lse * log2 e of the queries.
        p: (n,), out: P, rounded to E4M3 or not.
        scale_log2: softmax_scale * log2 e.
        lane: of the thread, and its key in the tile.
        config: what is compiled in.
    """
    addend = cute.make_rmem_tensor(HALF, cutlass.Float32)
    cute.autovec_copy(sAddend, addend)
    codes = cute.make_rmem_tensor(HALF, E4M3)
    if cutlass.const_expr(config.direct_columns < SHARE_PERIOD):
        exponentials(s, addend, p, scale_log2)
        codes.store(p.load().to(E4M3))
    if cutlass.const_expr(config.direct_columns):
        words = cute.recast_tensor(codes, cutlass.Int32)
        direct = direct_words(s, addend, scale_log2, config)
        is_direct = lane % SHARE_PERIOD >= SHARE_PERIOD - config.direct_columns
        for i in cutlass.range_constexpr(cute.size(words)):
            words[i] = direct[i] if is_direct else words[i]
    if cutlass.const_expr(config.rounded):
        p.store(codes.load().to(cutlass.Float32))
    p.store(p.load() * cutlass.Float32(2.0**-config.p_offset))
    return codes


def exponentials(s: cute.Tensor, addend: cute.Tensor, p: cute.Tensor, scale_log2: cutlass.Float32) -> None:
    """2^p_offset P: one fma and one ex2 a score."""
    for i in range(0, HALF, 2):
        x = cute.arch.fma_packed_f32x2((s[i], s[i + 1]), (scale_log2, scale_log2), (addend[i], addend[i + 1]))
        p[i], p[i + 1] = cute.math.exp2(x[0], fastmath=True), cute.math.exp2(x[1], fastmath=True)


def direct_words(
    s: cute.Tensor, addend: cute.Tensor, scale_log2: cutlass.Float32, config: cutlass.Constexpr
) -> list[cutlass.Int32]:
    """Direct codes of 2^p_offset P, four to a word: one fma a query for 8 (addend + 7 + c), one a score."""
    unit = SUBNORMAL_UNIT if config.subnormal else 1.0
    gain = cutlass.Float32(GAIN * unit)
    at_zero = cutlass.Float32(GAIN * unit * float(np.float32(E4M3_BIAS + config.direct_bias)))
    slope, pack, words = scale_log2 * gain, packed_subnormals if config.subnormal else packed_integers, []
    for i in range(0, HALF, CODES_PER_WORD):
        y = []
        for j in range(i, i + CODES_PER_WORD, 2):
            start = cute.arch.fma_packed_f32x2((addend[j], addend[j + 1]), (gain, gain), (at_zero, at_zero))
            y += cute.arch.fma_packed_f32x2((s[j], s[j + 1]), (slope, slope), start)
        words.append(pack(*y))
    return words


def differentiate(dp: cute.Tensor, sDelta: cute.Tensor, p: cute.Tensor) -> None:
    """P * (dP - delta), in place of P."""
    delta = cute.make_rmem_tensor(HALF, cutlass.Float32)
    cute.autovec_copy(sDelta, delta)
    p.store(p.load() * (dp.load() - delta.load()))


@cute.jit
def quantize_squares(
    ds: cute.Tensor, sWords: cute.Tensor, half: cutlass.Int32, lane: cutlass.Int32, rule: cutlass.Constexpr[str]
) -> list:
    """The scales of the thread's blocks, also left in shared memory, a word each."""
    scales = []
    for block in cutlass.range_constexpr(HALF // BLOCK):
        scale = square_scale(cute.local_tile(ds, (BLOCK,), (block,)), rule)
        if lane % 32 == 0:
            sWords[lane // 32, half * (HALF // BLOCK) + block] = scale
        scales.append(scale)
    return scales


@cute.jit
def store_codes(ds: cute.Tensor, scales: list, sdS: cute.Tensor, half: cutlass.Int32, lane: cutlass.Int32) -> None:
    """dS in E4M3 to shared memory."""
    codes = cute.make_rmem_tensor(HALF, E4M3)
    for block in cutlass.range_constexpr(HALF // BLOCK):
        part, coded = (cute.local_tile(x, (BLOCK,), (block,)) for x in (ds, codes))
        coded.store((part.load() * reciprocal(scales[block])).to(E4M3))
    sRow = sdS[(None, lane % 32), 0, lane // 32, 0]  # the queries of the thread's key
    for i in cutlass.range_constexpr(HALF // VECTOR):
        target = cute.local_tile(sRow, (VECTOR,), (half * (HALF // VECTOR) + i,))
        cute.autovec_copy(cute.local_tile(codes, (VECTOR,), (i,)), target)
