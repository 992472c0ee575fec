"""RMSNorm and quantize for rows of more than 1,024: a cluster of up to eight CTAs shares 32 tokens.

32 rows of 8,192 are 512 KiB, more than an SM holds. Each CTA keeps up to 1,024 columns in shared memory, sums of squares
meet there as well, every CTA telling every other, and x is read once from global memory.

    load 32 x 64 a warp -> squares: thread, warp (shuffles), CTA (shared memory), cluster -> rstd -> y -> `fragment`

Registers would be the obvious place for x. But y is needed twice, for the maxima and for the codes, and the compiler
keeps what it has computed: 64 float32 a thread, twice the size of BF16, and two CTAs no longer fit on an SM. A thread
reads its own part of x back instead, once for each, and multiplies again.

Every cluster takes one group of 32 tokens. Clusters that stay and prefetch, as `rmsnorm_kernel` does, were slower on an
H200: one CTA an SM waits for the barrier of eight SMs with nothing else to do.

Scales and padding as in `rmsnorm_kernel`. Constraints: as for `quantize_kernel`; rows of at most 8,192.
"""

from typing import NamedTuple

import cutlass
from cutlass import cute, memory

from mxfp8fa.kernels.producers.fragment import VECTOR, Blocks, Row, Scales, encode_row, fragment_scales, select
from mxfp8fa.kernels.producers.quantize_kernel import (
    ROW_LANES,
    ROWS,
    TILE_COLUMNS,
    TILE_TOKENS,
    WARP_COLUMNS,
    load_rows,
    store_row,
    tile_tokens,
)
from mxfp8fa.kernels.producers.rmsnorm_kernel import COLUMN_LANES, store_scales, sum_of_squares
from mxfp8fa.numerics.mx_tensor import BLOCK

CTA_COLUMNS = 1024
THREADS_OF_SM = 1024  # at least, at 64 registers each
SMEM_PERCENT = 100  # of the memory that is both L1 and shared memory
MAX_CLUSTER = 8  # portable (CUDA C++ Programming Guide, "Thread Block Clusters")
BLOCKS_OF_TILE = TILE_TOKENS // BLOCK


class Shape(NamedTuple):
    """How a row is shared out; what a kernel is compiled for."""

    cluster: int  # CTAs
    warps: int  # of a CTA


def shape_for(columns: int, element_bytes: int) -> Shape:
    """The fewest CTAs, 1, 2, 4 or 8, that hold a row of so many columns, each with whole atoms of it."""
    del element_bytes  # FP32 has fewer CTAs an SM, of the same shape
    cluster = next(size for size in (1, 2, 4, MAX_CLUSTER) if columns <= CTA_COLUMNS * size)
    return Shape(cluster, -(-columns // (cluster * TILE_COLUMNS)) * (TILE_COLUMNS // WARP_COLUMNS))


@cute.jit
def rmsnorm_quantize(
    pX: cute.Pointer,
    pWeight: cute.Pointer,
    pCodes: cute.Pointer,
    pTokens: cute.Pointer | None,
    pHeadDim: cute.Pointer | None,
    pY: cute.Pointer | None,
    pRstd: cute.Pointer,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    eps: cutlass.Float32,
    multiprocessors: cutlass.Int32,
    stream: object,
    blocks: cutlass.Constexpr[Blocks],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """Launch a cluster per 32 tokens of a head.

    Args:
        pX: first element of the data.
        pWeight: (head dimension,), contiguous.
        pCodes: of the codes, contiguous.
        pTokens: of the scales with tokens as rows, if blocks run along the last axis.
        pHeadDim: of the scales with the head dimension as rows, if they run along the tokens.
        pY: of y in 16 or 32 bits, contiguous, if it is wanted.
        pRstd: of rstd, a float32 for every row.
        pTiles: of (tiles, 2) int32, first token and number of tokens of every tile, for packed sequences.
        sizes: batches, tokens of one, heads, head dimension, token tiles of a batch.
        strides: of the data, in elements: batch, token, head.
        eps: added to the mean.
        multiprocessors: of the GPU; not used.
        stream: CUDA stream.
        blocks: what to make.
        shape: how a row is shared out.
    """
    batches, _, heads, _, tiles = sizes
    rmsnorm_quantize_kernel(
        pX, pWeight, pCodes, pTokens, pHeadDim, pY, pRstd, pTiles, sizes, strides, eps, blocks, shape
    ).launch(
        grid=(batches * tiles * BLOCKS_OF_TILE * heads * shape.cluster, 1, 1),
        block=(32 * shape.warps, 1, 1),
        cluster=(shape.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=THREADS_OF_SM // (32 * shape.warps),
        preferred_smem_carveout=SMEM_PERCENT,
    )


@cute.kernel
def rmsnorm_quantize_kernel(
    pX: cute.Pointer,
    pWeight: cute.Pointer,
    pCodes: cute.Pointer,
    pTokens: cute.Pointer | None,
    pHeadDim: cute.Pointer | None,
    pY: cute.Pointer | None,
    pRstd: cute.Pointer,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    eps: cutlass.Float32,
    blocks: cutlass.Constexpr[Blocks],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """One CTA: 32 tokens by its part of the columns."""
    if cutlass.const_expr(shape.cluster > 1):
        cute.arch.cluster_arrive_relaxed()  # waited for before another CTA's memory is written
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    rank, index = cta % shape.cluster, cta // shape.cluster
    _, seqlen, heads, head_dim, tiles = sizes
    head, token_block = index % heads, index // heads % BLOCKS_OF_TILE
    batch_tile = index // (heads * BLOCKS_OF_TILE)
    batch, tile = batch_tile // tiles, batch_tile % tiles
    tile_first, tile_count = tile_tokens(pTiles, tile, seqlen)
    first, tokens = tile_first + BLOCK * token_block, tile_count - BLOCK * token_block

    lane, warp = thread % 32, thread // 32
    column = WARP_COLUMNS * (shape.warps * rank + warp) + VECTOR * (lane % 8)
    inside = column < head_dim
    across = cute.ceil_div(head_dim, TILE_COLUMNS)
    head_index = cutlass.Int64(batch * heads + head)
    atoms = (
        (head_index * tiles + tile) * across + column // TILE_COLUMNS,
        (head_index * across + column // TILE_COLUMNS) * tiles + tile,
    )
    if tokens > 0:
        batch_stride, token_stride, head_stride = strides
        at = cutlass.min(column, head_dim - VECTOR)
        source = batch * batch_stride + first * token_stride + head * head_stride + at
        raw = load_rows(pX, source, token_stride, lane // 8, tokens)
        sX, rstd = keep_and_sum(raw, inside, head_dim, eps, thread, rank, shape)
        row = (cutlass.Int64(batch) * seqlen + first) * heads + head
        if rank == 0 and warp == 0 and lane < tokens:
            cute.make_tensor(pRstd + (row + lane * heads), 1)[0] = rstd
        weight = cute.make_rmem_tensor(VECTOR, pWeight.dtype)
        cute.autovec_copy(cute.make_tensor(pWeight + cute.assume(at, divby=VECTOR), VECTOR), weight)
        of_row = [cute.arch.shuffle_sync(rstd, offset=lane // 8 + 4 * i) for i in range(ROWS)]
        y = scaled_rows(sX, of_row, weight.load().to(cutlass.Float32), thread)
        scales = fragment_scales(y, ROWS, 1, ROW_LANES, blocks)
        cute.arch.sync_warp()  # nobody else writes sX; this only makes the compiler read it again
        store(y, scales, (pCodes, pY), row * head_dim + column, heads * head_dim, inside, tokens, blocks)
        if column < across * TILE_COLUMNS:
            store_scales((pTokens, pHeadDim), scales, atoms, column, token_block, inside, tokens)
    else:
        if cutlass.const_expr(shape.cluster > 1):
            cute.arch.cluster_wait()
        if column < across * TILE_COLUMNS:
            zero = [[cutlass.Int32(0)]] * VECTOR
            padding = Scales(zero if blocks.last else None, zero if blocks.token else None)
            store_scales((pTokens, pHeadDim), padding, atoms, column, token_block, inside, tokens)


rmsnorm_quantize_kernel.set_name_prefix("rmsnorm_quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def keep_and_sum(
    raw: cute.Tensor,
    inside: cutlass.Boolean,
    head_dim: cutlass.Int32,
    eps: cutlass.Float32,
    thread: cutlass.Int32,
    rank: cutlass.Int32,
    shape: cutlass.Constexpr[Shape],
) -> tuple[cute.Tensor, cutlass.Float32]:
    """Put the thread's part of x into shared memory, and add up squares with all threads of the cluster.

    Args:
        raw: the thread's part of x, (8, rows).
        inside: whether its columns exist.
        head_dim: length of a row.
        eps: added to the mean.
        thread: in the CTA.
        rank: of the CTA in its cluster.
        shape: how a row is shared out.

    Returns:
        x in shared memory, (8, rows, threads), of which each thread reads its own; and rstd of token `thread % 32`.
    """
    lane, warp = thread % 32, thread // 32
    smem = memory.SmemAllocator()
    sOfWarp = smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, shape.warps)), byte_alignment=128)
    sOfCta = smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, shape.cluster)), byte_alignment=128)
    threads = 32 * shape.warps
    kept = cute.make_layout((VECTOR, ROWS, threads), stride=(1, VECTOR * threads, VECTOR))
    sX = smem.allocate_tensor(raw.element_type, kept, byte_alignment=128)
    for i in cutlass.range_constexpr(ROWS):
        cute.autovec_copy(raw[None, i], sX[None, i, thread])
        total = sum_of_squares(raw[None, i].load().to(cutlass.Float32))
        total = select(inside, total, cutlass.Float32(0))
        for distance in COLUMN_LANES:
            total += cute.arch.shuffle_sync_bfly(total, offset=distance)
        if lane % 8 == 0:
            sOfWarp[lane // 8 + 4 * i, warp] = total
    cute.arch.sync_threads()
    if cutlass.const_expr(shape.cluster > 1):
        cute.arch.cluster_wait()
    if warp == 0:
        total = sOfWarp[lane, 0]
        for other in cutlass.range_constexpr(1, shape.warps):
            total += sOfWarp[lane, other]
        for peer in cutlass.range_constexpr(shape.cluster):
            target = sOfCta.iterator + (lane + BLOCK * rank)
            if cutlass.const_expr(shape.cluster > 1):
                store_to_peer(cute.arch.map_dsmem_ptr(target, peer), total)
            else:
                cute.make_tensor(target, 1)[0] = total
    if cutlass.const_expr(shape.cluster > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    total = sOfCta[lane, 0]
    for other in cutlass.range_constexpr(1, shape.cluster):
        total += sOfCta[lane, other]
    return sX, cute.math.rsqrt(total / cutlass.Float32(head_dim) + eps)


def store_to_peer(target: cute.Pointer, value: cutlass.Float32) -> None:
    """Write into the shared memory of a CTA of the cluster (`map_dsmem_ptr`); the DSL has no call for a plain store."""
    cute.arch.inline_ptx("st.shared::cluster.f32 [{$r0}], {$r1};", read_only_args=[target.toint(), value])


def scaled_rows(sX: cute.Tensor, rstd: list[cutlass.Float32], weight: cute.TensorSSA, thread: cutlass.Int32) -> Row:
    """y = (x * rstd) * weight in float32, rounded after each product, row by row as `fragment` asks for it."""

    def row(i: int, _: int) -> cute.TensorSSA:
        raw = cute.make_rmem_tensor(VECTOR, sX.element_type)
        cute.autovec_copy(sX[None, i, thread], raw)
        return raw.load().to(cutlass.Float32) * rstd[i] * weight

    return row


@cute.jit
def store(
    y: cutlass.Constexpr[Row],
    scales: cutlass.Constexpr[Scales],
    targets: tuple,
    element: cutlass.Int64,
    stride: cutlass.Int32,
    inside: cutlass.Boolean,
    tokens: cutlass.Int32,
    blocks: cutlass.Constexpr[Blocks],
) -> None:
    """Encode and write the thread's rows.

    Args:
        y: the rows.
        scales: of their blocks.
        targets: first of the codes, and of y or None.
        element: of the thread's columns of token 0 in them.
        stride: from token to token.
        inside: whether the columns exist.
        tokens: how many exist.
        blocks: what to make.
    """
    pCodes, pY = targets
    for i in cutlass.range_constexpr(ROWS):
        token = cute.arch.lane_idx() // 8 + 4 * i
        values = y(i, 0)
        codes = encode_row(values, scales, i, 0, blocks)
        if inside and token < tokens:
            store_row(codes, pCodes, element + cutlass.Int64(token) * stride)
            if cutlass.const_expr(pY is not None):
                rounded = cute.make_rmem_tensor(VECTOR, pY.dtype)
                rounded.store(values.to(pY.dtype))
                store_row(rounded, pY, element + cutlass.Int64(token) * stride)
