"""Step 5. One attention tile: O = softmax(scale * Q K^T) V for 128 queries and 128 keys, all operands MXFP8.

New: the softmax between the two products of step 4, one row per thread, so that no thread needs another's numbers.

    S = Q K^T      two or four block-scaled instructions (head_dim 64 or 128)
    m              row maximum: 64 instructions of max.NaN.f32 with three inputs
    P = 2^8 p      p = 2^(scale_log2 * (s - m)): one fma and one ex2 a score; then E4M3 under the constant scale 2^-8
    l              row sum of the unrounded P, by packed additions
    O = P V / l    V (keys, head_dim) as it lies in memory is an operand B whose N is contiguous: "MN-major"

Why 2^8: p lies in (0, 1], E4M3 has 448 = 2^8.8 at its upper end. A constant scale needs no maximum of a block and no
exchange between warps; p below 2^-17 become 0. The row sum takes the same factor.

The float32 operations and their order are those of `mxfp8fa.numerics.softmax`, so O and lse are those of
`attention_mxfp8` bit for bit. Subtracting m first would be one more instruction a score; instead the fma adds
8 - scale_log2 * m. Only where that number has no fraction bits left, beyond 2^16, the row subtracts.

Constraints: 128 queries, 128 keys, head_dim D 64 or 128; one head, one CTA. Q and K in blocks along D, V along the keys
(or square ones).

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
    loaded   1      warp 0, and the TMA bytes  warp 0     Q, K, V and their scales are in shared memory
    s_full   1      tcgen05.commit             all warps  S is in TMEM
    p_full   128    all threads                warp 0     P and its scales are in TMEM
    o_full   1      tcgen05.commit             all warps  O is in TMEM
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.checks import Size, check_tensor
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem, tma_tiles
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import (
    BLOCK,
    E4M3,
    E8M0,
    TILE,
    copy_scales,
    make_tiled_mma,
    scale_columns_a,
    scale_columns_b,
)
from mxfp8fa.kernels.steps.step4_quantizer import (
    ATOM_COLUMNS,
    codes_operand,
    issue_mma,
    load_row,
    make_tiled_mma_from_tmem,
    max3,
    store_row,
    store_scales,
)
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.softmax import LN_2, REFERENCE_LIMIT_LOG2, SUM_LANES, softmax_scale_log2

TILE_M, TILE_N = 128, 128  # queries, keys
HEAD_DIMS = (64, 128)
THREADS = 128
P_OFFSET = 8  # log2 of the factor on P
P_SCALE = 127 - P_OFFSET  # E8M0 code of every block of P
P_SCALES = P_SCALE * 0x01010101  # a word of four

TMEM = TmemMap(
    Columns("S", 0, TILE_N, "tcgen05.mma", "tcgen05.ld", "scores: query m in lane m, key n in column n"),
    Columns("P", 0, TILE_N // 4, "tcgen05.st", "tcgen05.mma", "codes of P, four keys to a column", over="S"),
    Columns("O", 128, 128, "tcgen05.mma", "tcgen05.ld", "output, the first D of the columns"),
    Columns("SFQ", 256, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of Q"),
    Columns("SFK", 260, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of K"),
    Columns("SFP", 264, ATOM_COLUMNS, "tcgen05.st", "tcgen05.mma", "scales of P, all bytes 119"),
    Columns("SFV", 268, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of V"),
)
BARRIERS = Barriers(
    Barrier("loaded", 1, "warp 0, and the TMA bytes", "warp 0", "Q, K, V and their scales are in shared memory"),
    Barrier("s_full", 1, "tcgen05.commit", "all warps", "S is in TMEM"),
    Barrier("p_full", THREADS, "all threads", "warp 0", "P and its scales are in TMEM"),
    Barrier("o_full", 1, "tcgen05.commit", "all warps", "O is in TMEM"),
)


def arguments(
    q: MXOperand, k: MXOperand, v: MXOperand, o: torch.Tensor, lse: torch.Tensor, softmax_scale: float
) -> tuple[cute.Tensor | cutlass.Float32, ...]:
    """What `attention_tile` takes.

    Args:
        q: (128, D) in E4M3 with blocks along D, or square ones; codes contiguous.
        k: (128, D), likewise.
        v: (128, D) with blocks along the keys, or square ones.
        o: (128, D) float32, contiguous; will hold the output.
        lse: (128,) float32; will hold the natural logarithm of the row sums of exp(softmax_scale * S).
        softmax_scale: factor on the scores, finite and above 0.

    Raises:
        ValueError: another format, shape, order, blocks along another axis, or softmax_scale.
    """
    return attention_arguments(q, k, v, o, lse, softmax_scale, tokens=TILE_M)


def attention_arguments(
    q: MXOperand, k: MXOperand, v: MXOperand, o: torch.Tensor, lse: torch.Tensor, softmax_scale: float, *, tokens: Size
) -> tuple[cute.Tensor | cutlass.Float32, ...]:
    """The same for `tokens` queries and keys; if that is not one number, one compilation serves all numbers."""
    head_dim = q.shape[-1]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {head_dim}; allowed: {HEAD_DIMS}")
    if not (isinstance(softmax_scale, float | int) and 0 < softmax_scale < float("inf")):
        raise ValueError(f"softmax_scale = {softmax_scale!r}; allowed: finite numbers above 0")
    loose = None if isinstance(tokens, int) else 1
    tensors = []
    for name, x, axis, rows in (("q", q, 1, tokens), ("k", k, 1, tokens), ("v", v, 0, k.shape[0])):
        if x.fmt != "e4m3" or axis not in x.axes:
            raise ValueError(
                f"{name} is {x.fmt} in blocks along axes {x.axes}; allowed: e4m3, axes ({axis},) or (0, 1)"
            )
        check_tensor(f"{name}.codes", x.codes, torch.uint8, rows, head_dim)
        if axis == 1:
            scales = x.scales_with_rows("tokens")
            tensors += [gmem(x.codes, E4M3, divisible_by=(loose, None)), gmem(scales, E8M0, divisible_by=(loose,))]
        else:  # operand B of P V is V^T
            scales = x.scales_with_rows("head_dim")
            tensors += [
                gmem(x.codes.T, E4M3, divisible_by=(None, loose)),
                gmem(scales, E8M0, divisible_by=(None, loose)),
            ]
    check_tensor("o", o, torch.float32, q.shape[0], head_dim)
    check_tensor("lse", lse, torch.float32, q.shape[0])
    scale_log2 = cutlass.Float32(float(softmax_scale_log2(softmax_scale)))
    return (*tensors, gmem(o, divisible_by=(loose,)), gmem(lse, divisible_by=(loose,)), scale_log2)


@cute.jit
def attention_tile(
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
    """Choose instructions, layouts and copies; launch.

    Args:
        mQ: (128, D) E4M3.
        mSFQ: (1, 1, 512) E8M0, rows of the atom are queries.
        mK: (128, D) E4M3.
        mSFK: (1, 1, 512) E8M0, rows are keys.
        mV: (D, 128) E4M3: V transposed, head_dim contiguous.
        mSFV: (1, 1, 512) E8M0, rows are head_dim.
        mO: (128, D) FP32.
        mLSE: (128,) FP32.
        scale_log2: softmax_scale * log2(e).
    """
    products, layouts, tma, matrices = make_products(mQ, mK, mV, 1)
    attention_tile_kernel(
        products, layouts, tma, matrices, (mSFQ, mSFK, mSFV), mO, mLSE, scale_log2
    ).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))  # fmt: skip


def make_products(mQ: cute.Tensor, mK: cute.Tensor, mV: cute.Tensor, stages: int) -> tuple[tuple, tuple, tuple, tuple]:
    """The instructions of attention, and how their operands come to shared memory.

    Returns:
        products: S = Q K^T and O = P V.
        layouts: of shared memory, for Q, for K and V (in stages), and for the scale atoms of each.
        tma: the copies of Q, K and V.
        matrices: Q, K and V for these copies.
    """
    head_dim = cute.size(mQ, mode=[1])
    qk = make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K)
    pv = make_tiled_mma_from_tmem(head_dim, OperandMajorMode.MN)
    qk_tile, pv_tile = (TILE_M, TILE_N, head_dim), (TILE_M, head_dim, TILE_N)
    q_layout = blackwell.make_smem_layout_a(qk, qk_tile, E4M3, 1)
    k_layout = blackwell.make_smem_layout_b(qk, qk_tile, E4M3, stages)
    v_layout = blackwell.make_smem_layout_b(pv, pv_tile, E4M3, stages)
    # An atom has four blocks whatever head_dim is; with 64, two of them are padding.
    sf_layouts = [blockscaled_layout.make_smem_layout_sfa(qk, TILE, BLOCK, n) for n in (1, stages)]
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_q, mQ_tma = cute.nvgpu.make_tiled_tma_atom_A(load, mQ, q_layout, qk_tile, qk)
    tma_k, mK_tma = cute.nvgpu.make_tiled_tma_atom_B(load, mK, k_layout, qk_tile, qk)
    tma_v, mV_tma = cute.nvgpu.make_tiled_tma_atom_B(load, mV, v_layout, pv_tile, pv)
    layouts = q_layout, k_layout, v_layout, *sf_layouts
    return (qk, pv), layouts, (tma_q, tma_k, tma_v), (mQ_tma, mK_tma, mV_tma)


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    loaded: cute.struct.MemRange[cutlass.Int64, 1]
    s_full: cute.struct.MemRange[cutlass.Int64, 1]
    p_full: cute.struct.MemRange[cutlass.Int64, 1]
    o_full: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32


@cute.kernel
def attention_tile_kernel(
    products: tuple,
    layouts: tuple,
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    scale_log2: cutlass.Float32,
) -> None:
    """One CTA: load, S, softmax, O."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    tiles, (sSFQ, sSFK, sSFV) = allocate_tiles(smem, layouts)
    loaded, s_full = storage.loaded.data_ptr(), storage.s_full.data_ptr()
    p_full, o_full = storage.p_full.data_ptr(), storage.o_full.data_ptr()
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    head_dim = cute.size(mO, mode=[1])
    (tStS, tOtO), (operand_q, operand_k, operand_p, operand_v) = operands(
        products, tiles, layouts, tmem, TMEM, head_dim
    )

    # 1. Load everything, S = Q K^T.
    if warp == 0:
        copy_q, copy_k, copy_v = copies(products, tma, matrices, tiles, head_dim)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(loaded, 3 * (TILE_M * head_dim + ATOM_BYTES))
        load_tile(copy_q, atoms[0][0, 0, None], sSFQ, 0, 0, loaded)
        load_tile(copy_k, atoms[1][0, 0, None], sSFK, 0, 0, loaded)
        load_tile(copy_v, atoms[2][0, 0, None], sSFV, 0, 0, loaded)
        cute.arch.mbarrier_wait(loaded, 0)
        copy_scales(sSFQ, operand_q[1], 0)
        copy_scales(sSFK, operand_k[1], 0)
        copy_scales(sSFV, operand_v[1], 0)
        issue_mma(products[0], tStS, operand_q, operand_k, False)
        with cute.arch.elect_one():
            tcgen05.commit(s_full)

    # 2. Softmax, a row per thread.
    cute.arch.mbarrier_wait(s_full, 0)
    row = load_row(tmem + TMEM["S"].start, TILE_N, thread)
    row_max = largest(row)
    probabilities(row, row_max, scale_log2)
    store_probabilities(row, tmem + TMEM["P"].start, thread)
    store_scales(cutlass.Int32(P_SCALES), tmem + TMEM["SFP"].start, None, P_SCALE, thread)
    cute.arch.fence_view_async_tmem_store()
    cute.arch.mbarrier_arrive(p_full)
    row_sum = lane_sum(row, cutlass.Float32(0))  # while the tensor core multiplies

    # 3. O = P V, divided by the row sums.
    if warp == 0:
        cute.arch.mbarrier_wait(p_full, 0)
        issue_mma(products[1], tOtO, operand_p, operand_v, False)
        with cute.arch.elect_one():
            tcgen05.commit(o_full)
    cute.arch.mbarrier_wait(o_full, 0)
    inverse_sum, lse = finish(row_max, row_sum, scale_log2)
    store_output(tmem + TMEM["O"].start, inverse_sum, lse, mO, mLSE, 0, thread)
    free_tmem(tmem, TMEM.allocation, warp)


attention_tile_kernel.set_name_prefix("attention_tile", remove_cutlass_symbol=True, keep_mangled_name=False)


def allocate_tiles(smem: memory.SmemAllocator, layouts: tuple) -> tuple[tuple, tuple]:
    """Shared memory for the codes of Q, K and V, and for their scales."""
    q, k, v, sf_q, sf_kv = layouts
    codes = tuple(smem.allocate_tensor(E4M3, x.outer, byte_alignment=1024, swizzle=x.inner) for x in (q, k, v))
    return codes, tuple(smem.allocate_tensor(E8M0, x, byte_alignment=128) for x in (sf_q, sf_kv, sf_kv))


def operands(
    products: tuple, tiles: tuple, layouts: tuple, tmem: cute.Pointer, columns: TmemMap, head_dim: int
) -> tuple[tuple, tuple]:
    """The accumulators of both products, and their four operands: (codes, scales in tensor memory)."""
    (qk, pv), (sQ, sK, sV), sf_layout = products, tiles, layouts[3]
    accumulators = tuple(
        cute.make_tensor(tmem + columns[name].start, mma.make_fragment_C(mma.partition_shape_C((TILE_M, n))).layout)
        for name, mma, n in (("S", qk, TILE_N), ("O", pv, head_dim))
    )
    sf_q, sf_p = (scale_columns_a(qk, tmem + columns[name].start, sf_layout) for name in ("SFQ", "SFP"))
    sf_k, sf_v = (scale_columns_b(qk, tmem + columns[name].start, sf_layout) for name in ("SFK", "SFV"))
    codes_p = codes_operand(pv, tmem + columns["P"].start)
    operand_q, operand_k = (qk.make_fragment_A(sQ), sf_q), (qk.make_fragment_B(sK), sf_k)
    return accumulators, (operand_q, operand_k, (codes_p, sf_p), (pv.make_fragment_B(sV), sf_v))


def copies(products: tuple, tma: tuple, matrices: tuple, tiles: tuple, head_dim: int) -> list[tuple]:
    """For Q, K and V: the TMA copy, its destination (TMA, stages) and its source (TMA, tiles of tokens)."""
    (qk, pv), (mQ, mK, mV) = products, matrices
    parts = (
        qk.get_slice(0).partition_A(cute.local_tile(mQ, (TILE_M, head_dim), (None, 0))),
        qk.get_slice(0).partition_B(cute.local_tile(mK, (TILE_N, head_dim), (None, 0))),
        pv.get_slice(0).partition_B(cute.local_tile(mV, (head_dim, TILE_N), (0, None))),
    )
    return [(t, *tma_tiles(t, tile, part)) for t, tile, part in zip(tma, tiles, parts, strict=True)]


@cute.jit
def load_tile(
    copy: tuple, gAtom: cute.Tensor, sSF: cute.Tensor, tile: cutlass.Int32, stage: cutlass.Int32, full: cute.Pointer
) -> None:
    """One tile of codes and its atom of scales into a stage; `full` counts the bytes."""
    tma, tXsX, tXgX = copy
    cute.copy(tma, tXgX[None, tile], tXsX[None, stage], tma_bar_ptr=full)
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), E8M0, num_bits_per_copy=8 * ATOM_BYTES)
    sAtoms = cute.make_tensor(sSF.iterator, cute.make_layout((ATOM_BYTES, cute.size(tXsX, mode=[1]))))
    with cute.arch.elect_one():
        cute.copy(bulk, gAtom, sAtoms[None, stage], mbar_ptr=full)


def largest(row: cute.Tensor) -> cutlass.Float32:
    """Maximum of a row, NaN if one of its scores is: in four chains, so that no maximum waits for the one before it."""
    chains = [max3(row[2 * c], row[2 * c + 1], row[2 * c + 1]) for c in range(4)]
    for i in range(8, cute.size(row), 8):
        chains = [max3(chain, row[i + 2 * c], row[i + 2 * c + 1]) for c, chain in enumerate(chains)]
    return max3(max3(chains[0], chains[1], chains[2]), chains[3], chains[3])


@cute.jit
def reference(row_max: cutlass.Float32) -> cutlass.Float32:
    """What scores are measured from: the maximum, or 0 if all are masked, where -inf - (-inf) would be NaN."""
    return cutlass.Float32(0) if row_max == -cutlass.Float32.inf else row_max


@cute.jit
def probabilities(row: cute.Tensor, row_max: cutlass.Float32, scale_log2: cutlass.Float32) -> None:
    """Scores to 2^8 P, in place."""
    m = reference(row_max)
    addend = cute.math.fma(-m, scale_log2, cutlass.Float32(P_OFFSET))
    product = m * scale_log2
    if cutlass.max(product, -product) > cutlass.Float32(float(REFERENCE_LIMIT_LOG2)):
        row.store(row.load() - m)
        addend = cutlass.Float32(P_OFFSET)
    for i in cutlass.range(0, cute.size(row), 2, unroll_full=True):
        x = cute.arch.fma_packed_f32x2((row[i], row[i + 1]), (scale_log2, scale_log2), (addend, addend))
        row[i], row[i + 1] = cute.math.exp2(x[0], fastmath=True), cute.math.exp2(x[1], fastmath=True)


def store_probabilities(row: cute.Tensor, tmem: cute.Pointer, thread: cutlass.Int32) -> None:
    """2^8 P rounded to E4M3, into tensor memory as operand A."""
    codes = cute.make_rmem_tensor(cute.size(row), E4M3)
    codes.store(row.load().to(E4M3))
    store_row(cute.recast_tensor(codes, cutlass.Float32), tmem, thread)


def lane_sum(row: cute.Tensor, start: cutlass.Float32 | None = None) -> cutlass.Float32:
    """start, if given, + the sum of a row in the order of `numerics.softmax.lane_sum`: eight lanes in four packed accumulators."""
    lanes = [(row[i], row[i + 1]) for i in range(0, SUM_LANES, 2)]
    if start is not None:
        lanes[0] = (row[0] + start, row[1])
    for group in range(SUM_LANES, cute.size(row), SUM_LANES):
        for pair in range(4):
            column = group + 2 * pair
            lanes[pair] = cute.arch.add_packed_f32x2(lanes[pair], (row[column], row[column + 1]))
    low, high = (cute.arch.add_packed_f32x2(lanes[i], lanes[i + 1]) for i in (0, 2))
    even, odd = cute.arch.add_packed_f32x2(low, high)
    return even + odd


@cute.jit
def finish(
    row_max: cutlass.Float32, row_sum: cutlass.Float32, scale_log2: cutlass.Float32
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """1 / row sum, which O is multiplied by, and lse."""
    total = row_sum * cutlass.Float32(2.0**-P_OFFSET)
    log2_total = cute.math.log2(total, fastmath=True)
    lse = cute.math.fma(reference(row_max), scale_log2, log2_total) * cutlass.Float32(float(LN_2))
    divisor = cutlass.Float32(1) if total == 0.0 else total
    return cutlass.Float32(1) / divisor, lse


@cute.jit
def store_output(
    tmem: cute.Pointer,
    inverse_sum: cutlass.Float32,
    lse: cutlass.Float32,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    tile: cutlass.Int32,
    thread: cutlass.Int32,
) -> None:
    """The thread's row of O, normalised, and its lse, to global memory if the row is one of the queries."""
    row = load_row(tmem, cute.size(mO, mode=[1]), thread)
    row.store(row.load() * inverse_sum)
    query = tile * TILE_M + thread
    if query < cute.size(mO, mode=[0]):
        cute.autovec_copy(row, mO[query, None])
        mLSE[query] = lse
