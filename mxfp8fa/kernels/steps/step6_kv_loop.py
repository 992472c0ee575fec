"""Step 6. The KV loop: attention over any number of keys, everything in order. The simplest correct MXFP8 attention.

New: the online softmax. The maximum of a row is known only at the end, so every tile measures from the largest score
seen so far; when a later tile raises it by a factor 1 / acc_scale, what was summed before is multiplied by acc_scale:

    m'        = max(m, maximum of the tile's row)
    acc_scale = 2^(scale_log2 * (m - m'))
    l         = l * acc_scale + row sum of the tile
    O         = O * acc_scale + P V                    O in tensor memory: load, multiply, store

Lazy rescale: as long as m' is above m by less than 2^0.8 (times softmax_scale), the row keeps measuring from m, and
acc_scale is 1. P grows up to 2^8.8 = 448, exactly the largest E4M3 number: nothing saturates, and O is touched only
when some row of a warp needs it. The first score of a row always raises m, from -infinity, and acc_scale is 0.

The tiles of keys run from the last to the first, so that the mask for the keys past the end is in the first step. Those
keys are zeros with scale 0 in shared memory (TMA fills what lies outside of a tensor; packed scales are padded with 0),
their scores are set to -infinity, so P is 0 there. Queries past the end are computed on zeros and not stored.

In order: load a tile, multiply, softmax, multiply, next tile. The tensor core waits while the threads compute and the
threads wait while it multiplies; step 7 ends that. One barrier, `o_full`, says everything that a second tile needs: O is
complete, P has been read and so have K and V.

Constraints: any number of queries and keys from 1; head_dim D 64 or 128; one head; a CTA per 128 queries. No causal
mask.

TMEM, 512 columns allocated:

    columns  name  written by   read by      holds
    0-127    S     tcgen05.mma  tcgen05.ld   scores: query m in lane m, key n in column n
    0-31     P     tcgen05.st   tcgen05.mma  codes of P, four keys to a column (over S)
    128-255  O     tcgen05.mma  tcgen05.ld   output, the first D of the columns
    256-259  SFQ   tcgen05.cp   tcgen05.mma  scales of Q
    260-263  SFK   tcgen05.cp   tcgen05.mma  scales of K
    264-267  SFP   tcgen05.st   tcgen05.mma  scales of P, all bytes 119
    268-271  SFV   tcgen05.cp   tcgen05.mma  scales of V

Barriers:

    barrier  count  arrives                    waits      means
    q_full   1      warp 0, and the TMA bytes  warp 0     Q and its scales are in shared memory
    kv_full  1      warp 0, and the TMA bytes  warp 0     a tile of K and V and their scales, likewise
    s_full   1      tcgen05.commit             all warps  S is in TMEM
    p_full   128    all threads                warp 0     P is in TMEM, and O is rescaled
    o_full   1      tcgen05.commit             all warps  O is in TMEM; K, V and P have been read
"""

import cutlass
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import tcgen05

from mxfp8fa.kernels.checks import Multiple
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import copy_scales
from mxfp8fa.kernels.steps.step4_quantizer import issue_mma, load_row, store_row, store_scales
from mxfp8fa.kernels.steps.step5_attention_tile import (
    P_SCALE,
    P_SCALES,
    THREADS,
    TILE_M,
    TILE_N,
    TMEM,
    allocate_tiles,
    attention_arguments,
    copies,
    finish,
    lane_sum,
    largest,
    load_tile,
    make_products,
    operands,
    probabilities,
    reference,
    store_output,
    store_probabilities,
)
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics import AttentionOptions

RESCALE_THRESHOLD = AttentionOptions().rescale_threshold  # 0.8, in units of log2

BARRIERS = Barriers(
    Barrier("q_full", 1, "warp 0, and the TMA bytes", "warp 0", "Q and its scales are in shared memory"),
    Barrier("kv_full", 1, "warp 0, and the TMA bytes", "warp 0", "a tile of K and V and their scales, likewise"),
    Barrier("s_full", 1, "tcgen05.commit", "all warps", "S is in TMEM"),
    Barrier("p_full", THREADS, "all threads", "warp 0", "P is in TMEM, and O is rescaled"),
    Barrier("o_full", 1, "tcgen05.commit", "all warps", "O is in TMEM; K, V and P have been read"),
)


def arguments(
    q: MXOperand, k: MXOperand, v: MXOperand, o: torch.Tensor, lse: torch.Tensor, softmax_scale: float
) -> tuple[cute.Tensor | cutlass.Float32, ...]:
    """What `kv_loop` takes; one compilation serves all numbers of queries and keys.

    Args:
        q: (Sq, D) in E4M3 with blocks along D, or square ones; codes contiguous.
        k: (Sk, D), likewise.
        v: (Sk, D) with blocks along the keys, or square ones.
        o: (Sq, D) float32, contiguous; will hold the output.
        lse: (Sq,) float32; will hold the natural logarithm of the row sums of exp(softmax_scale * S).
        softmax_scale: factor on the scores, finite and above 0.

    Raises:
        ValueError: another format, shape, order, blocks along another axis, or softmax_scale.
    """
    return attention_arguments(q, k, v, o, lse, softmax_scale, tokens=Multiple(1))


@cute.jit
def kv_loop(
    mQ: cute.Tensor,
    mSFQ: cute.Tensor,
    mK: cute.Tensor,
    mSFK: cute.Tensor,
    mV: cute.Tensor,
    mSFV: cute.Tensor,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    scale_log2: cutlass.Float32,
) -> None:
    """Choose instructions, layouts and copies; launch a CTA per 128 queries.

    Args:
        mQ: (Sq, D) E4M3.
        mSFQ: (tiles of queries, 1, 512) E8M0, rows of an atom are queries.
        mK: (Sk, D) E4M3.
        mSFK: (tiles of keys, 1, 512) E8M0, rows are keys.
        mV: (D, Sk) E4M3: V transposed, head_dim contiguous.
        mSFV: (1, tiles of keys, 512) E8M0, rows are head_dim.
        mO: (Sq, D) FP32.
        mLSE: (Sq,) FP32.
        scale_log2: softmax_scale * log2(e).
    """
    products, layouts, tma, matrices = make_products(mQ, mK, mV, 1)
    grid = (cute.ceil_div(cute.size(mO, mode=[0]), TILE_M), 1, 1)
    kv_loop_kernel(
        products, layouts, tma, matrices, (mSFQ, mSFK, mSFV), mO, mLSE, cute.size(mK, mode=[0]), scale_log2
    ).launch(grid=grid, block=(THREADS, 1, 1))


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    q_full: cute.struct.MemRange[cutlass.Int64, 1]
    kv_full: cute.struct.MemRange[cutlass.Int64, 1]
    s_full: cute.struct.MemRange[cutlass.Int64, 1]
    p_full: cute.struct.MemRange[cutlass.Int64, 1]
    o_full: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32


@cute.kernel
def kv_loop_kernel(
    products: tuple,
    layouts: tuple,
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    seqlen_k: cutlass.Int32,
    scale_log2: cutlass.Float32,
) -> None:
    """One CTA: 128 queries, all keys."""
    thread, _, _ = cute.arch.thread_idx()
    q_tile, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    (qk, pv), (mSFQ, mSFK, mSFV) = products, atoms
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    tiles, (sSFQ, sSFK, sSFV) = allocate_tiles(smem, layouts)
    q_full, kv_full = storage.q_full.data_ptr(), storage.kv_full.data_ptr()
    s_full, p_full, o_full = storage.s_full.data_ptr(), storage.p_full.data_ptr(), storage.o_full.data_ptr()
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    head_dim = cute.size(mO, mode=[1])
    tile_bytes = TILE_N * head_dim + ATOM_BYTES
    (tStS, tOtO), (operand_q, operand_k, operand_p, operand_v) = operands(
        products, tiles, layouts, tmem, TMEM, head_dim
    )
    copy_q, copy_k, copy_v = copies(products, tma, matrices, tiles, head_dim)

    if warp == 0:
        expect(q_full, tile_bytes)
        load_tile(copy_q, mSFQ[q_tile, 0, None], sSFQ, q_tile, 0, q_full)
        cute.arch.mbarrier_wait(q_full, 0)
        copy_scales(sSFQ, operand_q[1], 0)
    store_scales(cutlass.Int32(P_SCALES), tmem + TMEM["SFP"].start, None, P_SCALE, thread)
    row_max, row_sum = -cutlass.Float32.inf, cutlass.Float32(0)

    kv_tiles = cute.ceil_div(seqlen_k, TILE_N)
    for step in cutlass.range(kv_tiles, unroll=1):
        kv_tile, parity = kv_tiles - 1 - step, step % 2
        if warp == 0:
            expect(kv_full, 2 * tile_bytes)
            load_tile(copy_k, mSFK[kv_tile, 0, None], sSFK, kv_tile, 0, kv_full)
            load_tile(copy_v, mSFV[0, kv_tile, None], sSFV, kv_tile, 0, kv_full)
            cute.arch.mbarrier_wait(kv_full, parity)
            copy_scales(sSFK, operand_k[1], 0)
            copy_scales(sSFV, operand_v[1], 0)
            issue_mma(qk, tStS, operand_q, operand_k, False)
            with cute.arch.elect_one():
                tcgen05.commit(s_full)

        cute.arch.mbarrier_wait(s_full, parity)
        row = load_row(tmem + TMEM["S"].start, TILE_N, thread)
        mask(row, seqlen_k - kv_tile * TILE_N)
        row_max, acc_scale = update_max(row_max, largest(row), scale_log2)
        if step > 0:
            rescale_output(tmem + TMEM["O"].start, acc_scale, head_dim, thread)
        probabilities(row, row_max, scale_log2)
        store_probabilities(row, tmem + TMEM["P"].start, thread)
        cute.arch.fence_view_async_tmem_store()
        cute.arch.mbarrier_arrive(p_full)
        # An explicit rounding, or the compiler makes one fma of this product and the sum's first addition.
        row_sum = lane_sum(row, cute.math.mul(row_sum, acc_scale, rounding=cute.math.RoundingMode.NEAREST_EVEN))

        if warp == 0:
            cute.arch.mbarrier_wait(p_full, parity)
            issue_mma(pv, tOtO, operand_p, operand_v, step > 0)
            with cute.arch.elect_one():
                tcgen05.commit(o_full)
        cute.arch.mbarrier_wait(o_full, parity)

    inverse_sum, lse = finish(row_max, row_sum, scale_log2)
    store_output(tmem + TMEM["O"].start, inverse_sum, lse, mO, mLSE, q_tile, thread)
    free_tmem(tmem, TMEM.allocation, warp)


kv_loop_kernel.set_name_prefix("kv_loop", remove_cutlass_symbol=True, keep_mangled_name=False)


def expect(full: cute.Pointer, tx_bytes: int) -> None:
    """Arrive, and let `full` wait for that many bytes."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, tx_bytes)


@cute.jit
def mask(row: cute.Tensor, keys: cutlass.Int32) -> None:
    """-infinity for all scores but the first `keys`."""
    if keys < cute.size(row):
        for i in cutlass.range(cute.size(row), unroll_full=True):
            row[i] = row[i] if i < keys else -cutlass.Float32.inf


@cute.jit
def update_max(
    row_max: cutlass.Float32, tile_max: cutlass.Float32, scale_log2: cutlass.Float32
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """The maximum to measure from, and the factor on what was summed before."""
    raised = cute.arch.fmax(row_max, tile_max, nan=True)
    growth_log2 = (row_max - reference(raised)) * scale_log2  # <= 0, or NaN
    keep = growth_log2 >= -RESCALE_THRESHOLD
    acc_scale = cutlass.Float32(1) if keep else cute.math.exp2(growth_log2, fastmath=True)
    return row_max if keep else raised, acc_scale


@cute.jit
def rescale_output(
    tmem: cute.Pointer, acc_scale: cutlass.Float32, head_dim: cutlass.Constexpr[int], thread: cutlass.Int32
) -> None:
    """O * acc_scale in tensor memory, unless no row of the warp needs it."""
    if cute.arch.vote_any_sync(acc_scale != 1.0):
        row = load_row(tmem, head_dim, thread)
        row.store(row.load() * acc_scale)
        store_row(row, tmem, thread)
