"""Before the main kernel: dO in square blocks, delta, lse in the form that the main kernel adds, and an empty dQ.

A CTA takes 128 queries of one head, a thread one of them, a warp the 32 rows of a row of square blocks:

    codes      dO in E4M3, one payload for dP^T = V dO^T and for dV = P^T dO
    scales     of dO, packed twice: with tokens as rows of the atoms (for dP) and with head_dim (for dV)
    addend     p_offset - lse * log2 e: P = exp2(S * softmax_scale_log2 + addend) is one fma and one ex2 a score
    delta      rowsum(dO * O), dO as the products see it, or as it was given

A row that saw no key (lse = -inf), and rows past the end, get addend -inf and delta 0: P and dS of them are 0.

The scale of a square block is a number of its warp. A word of the atom with tokens as rows has the four blocks of a row
along head_dim, which one warp knows; a word with head_dim as rows has the four blocks along the tokens, which four warps
know: they meet in shared memory.
"""

import cutlass
from cutlass import cute, memory

from mxfp8fa.kernels.backward.square import scale_value, square_scale
from mxfp8fa.kernels.forward.sequences import work_row
from mxfp8fa.kernels.forward.tensors import unfold
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3
from mxfp8fa.kernels.steps.step4_quantizer import reciprocal
from mxfp8fa.numerics.softmax import LOG2_E, SUM_LANES

TILE_M = 128  # queries
THREADS = 128
WARPS = 4
VECTOR_BYTES = 16


@cute.jit
def preprocess(
    mdO: cute.Tensor,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    mdLSE: cute.Tensor,
    mCodes: cute.Tensor,
    mScales: cute.Tensor,
    mTerms: cute.Tensor,
    mdQ: cute.Tensor,
    mTable: cute.Tensor | None,
    batch: cutlass.Int32,
    seqlen_q: cutlass.Int32,
    heads: cutlass.Int32,
    p_offset: cutlass.Constexpr[int],
    rule: cutlass.Constexpr[str],
    dequantized: cutlass.Constexpr[bool],
) -> None:
    """Launch a CTA per tile of queries, query head and batch. Tensors come as rows (`tensors.py`).

    Args:
        mdO: (B, Sq, Hq, D) FP32, BF16 or FP16.
        mO: the same shape, FP32, BF16 or FP16.
        mLSE: (B, Hq, Sq, 1) FP32.
        mdLSE: (B, Hq, Sq, 1) FP32, the gradient of lse, or None.
        mCodes: (B, Sq, Hq, D) E4M3, out: dO.
        mScales: (2, B, Hq, tiles, 128) Int32, out: its scales, packed with tokens as rows, and with head_dim as rows.
        mTerms: (B, Hq, tiles, 2 * 128) FP32, out: addend and delta of the rows.
        mdQ: (B, Hq, tiles, 128 * D) FP32 or FP16, out: zeros; None if it is not this kernel's business.
        mTable: for packed sequences, B = 1 and S = T, all tiles of queries as they lie (`mxfp8fa.kernels.jagged`).
        batch: B.
        seqlen_q: Sq.
        heads: Hq.
        p_offset: log2 of the factor on P.
        rule: how scales follow from maxima (`numerics.scale_rules`).
        dequantized: whether delta takes dO as the products see it.
    """
    tiles = cute.ceil_div(seqlen_q, TILE_M)
    if cutlass.const_expr(mTable is not None):
        tiles = cute.size(mTable, mode=[0]) - 1
    mdO, mO, mCodes = (unfold(x, batch, seqlen_q, heads) for x in (mdO, mO, mCodes))
    mLSE = unfold(mLSE, batch, heads, seqlen_q)
    if cutlass.const_expr(mdLSE is not None):
        mdLSE = unfold(mdLSE, batch, heads, seqlen_q)
    mScales = unfold(mScales, 2, batch, heads, tiles)
    mTerms = unfold(mTerms, batch, heads, tiles)
    if cutlass.const_expr(mdQ is not None):
        mdQ = unfold(mdQ, batch, heads, tiles)
    preprocess_kernel(mdO, mO, mLSE, mdLSE, mCodes, mScales, mTerms, mdQ, mTable, p_offset, rule, dequantized).launch(
        grid=(tiles, heads, batch), block=(THREADS, 1, 1)
    )


@cute.struct
class Storage:
    """Scales of the blocks of a tile, (warp, block along head_dim)."""

    scales: cute.struct.MemRange[cutlass.Int32, WARPS * 4]


@cute.kernel
def preprocess_kernel(
    mdO: cute.Tensor,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    mdLSE: cute.Tensor,
    mCodes: cute.Tensor,
    mScales: cute.Tensor,
    mTerms: cute.Tensor,
    mdQ: cute.Tensor,
    mTable: cute.Tensor | None,
    p_offset: cutlass.Constexpr[int],
    rule: cutlass.Constexpr[str],
    dequantized: cutlass.Constexpr[bool],
) -> None:
    """One CTA: 128 queries of one head."""
    thread, _, _ = cute.arch.thread_idx()
    tile, head, batch = cute.arch.block_idx()
    storage = memory.SmemAllocator().allocate(Storage)
    sScales = storage.scales.get_tensor(cute.make_layout((WARPS, 4), stride=(4, 1)))
    here, query, exists = query_of(mTable, tile, batch, cute.size(mdO, mode=[1]), thread)

    row = load_row(mdO, here, query, head, exists)
    codes = cute.make_rmem_tensor(cute.size(row), E4M3)
    tokens_word = quantize_row(row, codes, sScales, thread, rule, dequantized)
    if exists:
        cute.autovec_copy(codes, mCodes[here, query, head, None])
    mScales[0, batch, head, tile, place_in_atom(thread)] = tokens_word if exists else 0
    cute.arch.sync_threads()
    mScales[1, batch, head, tile, place_in_atom(thread)] = head_dim_word(sScales, thread, cute.size(row))

    addend, delta = -cutlass.Float32.inf, cutlass.Float32(0)
    if exists:
        lse = mLSE[here, head, query, 0]
        if lse != -cutlass.Float32.inf:
            # An explicit rounding, or the compiler makes one fma of product and difference.
            log2 = cute.math.mul(lse, float(LOG2_E), rounding=cute.math.RoundingMode.NEAREST_EVEN)
            addend = cutlass.Float32(p_offset) - log2
            delta = row_dot(row, load_row(mO, here, query, head, True))
            if cutlass.const_expr(mdLSE is not None):
                delta = delta - mdLSE[here, head, query, 0]
    mTerms[batch, head, tile, thread] = addend
    mTerms[batch, head, tile, TILE_M + thread] = delta
    if cutlass.const_expr(mdQ is not None):
        fill_with_zeros(mdQ[batch, head, tile, None], thread)


preprocess_kernel.set_name_prefix("backward_preprocess", remove_cutlass_symbol=True, keep_mangled_name=False)


def query_of(
    mTable: cute.Tensor | None, tile: cutlass.Int32, batch: cutlass.Int32, seqlen: cutlass.Int32, thread: cutlass.Int32
) -> tuple[cutlass.Int32, cutlass.Int32, cutlass.Boolean]:
    """Batch and row of the thread's query in (B, S, ...), and whether it exists."""
    if mTable is None:
        query = tile * TILE_M + thread
        return batch, query, query < seqlen
    work = work_row(mTable, tile)
    query = work.tile * TILE_M + thread
    return *work.o.row(query), query < work.seqlen_q


@cute.jit
def load_row(
    mX: cute.Tensor, batch: cutlass.Int32, query: cutlass.Int32, head: cutlass.Int32, exists: cutlass.Boolean
) -> cute.Tensor:
    """A row in registers as FP32 (D,), or zeros."""
    head_dim = cute.size(mX, mode=[3])
    stored = cute.make_rmem_tensor(head_dim, mX.element_type)
    stored.fill(0)
    if exists:
        cute.autovec_copy(mX[batch, query, head, None], stored)
    row = cute.make_rmem_tensor(head_dim, cutlass.Float32)
    row.store(stored.load().to(cutlass.Float32))
    return row


@cute.jit
def quantize_row(
    row: cute.Tensor,
    codes: cute.Tensor,
    sScales: cute.Tensor,
    thread: cutlass.Int32,
    rule: cutlass.Constexpr[str],
    dequantized: cutlass.Constexpr[bool],
) -> cutlass.Int32:
    """Codes of a row, and the word of its scales.

    Args:
        row: (D,); becomes the dequantized row if `dequantized`.
        codes: (D,) E4M3, out.
        sScales: (warps, 4), out: the warp's scales.
        thread: its number.
        rule: of the scales.
        dequantized: see `row`.
    """
    word = cutlass.Int32(0)
    for block in cutlass.range_constexpr(cute.size(row) // BLOCK):
        part, coded = cute.local_tile(row, (BLOCK,), (block,)), cute.local_tile(codes, (BLOCK,), (block,))
        scale = square_scale(part, rule)
        coded.store((part.load() * reciprocal(scale)).to(E4M3))
        word = word | (scale << (8 * block))
        if thread % 32 == 0:
            sScales[thread // 32, block] = scale
        if cutlass.const_expr(dequantized):
            part.store(coded.load().to(cutlass.Float32) * scale_value(scale))
    return word


@cute.jit
def head_dim_word(sScales: cute.Tensor, thread: cutlass.Int32, head_dim: cutlass.Constexpr[int]) -> cutlass.Int32:
    """The four scales along the tokens of row `thread` of head_dim; 0 past its end."""
    word = cutlass.Int32(0)
    if thread < head_dim:
        for warp in cutlass.range_constexpr(WARPS):
            word = word | (sScales[warp, thread // BLOCK] << (8 * warp))
    return word


def place_in_atom(row: cutlass.Int32) -> cutlass.Int32:
    """Where the word of a row stands in a 128x4 atom (`mxfp8fa.layouts.scale_atom`)."""
    return row % 32 * 4 + row // 32


def row_dot(a: cute.Tensor, b: cute.Tensor) -> cutlass.Float32:
    """Dot product of two rows in the order of `numerics.backward_inputs.row_dot`: eight lanes in packed accumulators."""
    zero = cutlass.Float32(0)
    lanes = [(zero, zero)] * (SUM_LANES // 2)
    for group in range(0, cute.size(a), SUM_LANES):
        for pair in range(SUM_LANES // 2):
            i = group + 2 * pair
            lanes[pair] = cute.arch.fma_packed_f32x2((a[i], a[i + 1]), (b[i], b[i + 1]), lanes[pair])
    low, high = (cute.arch.add_packed_f32x2(lanes[i], lanes[i + 1]) for i in (0, 2))
    even, odd = cute.arch.add_packed_f32x2(low, high)
    return even + odd


@cute.jit
def fill_with_zeros(gX: cute.Tensor, thread: cutlass.Int32) -> None:
    """A tile of the workspace, 16 bytes a thread at a time."""
    vector = VECTOR_BYTES * 8 // gX.element_type.width
    zeros = cute.make_rmem_tensor(vector, gX.element_type)
    zeros.fill(0)
    parts = cute.logical_divide(gX, cute.make_layout(vector))  # (vector, parts)
    for i in cutlass.range_constexpr(cute.size(parts, mode=[1]) // THREADS):
        cute.autovec_copy(zeros, parts[None, i * THREADS + thread])
