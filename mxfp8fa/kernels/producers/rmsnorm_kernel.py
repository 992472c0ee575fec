"""RMSNorm and quantize: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), straight to codes and scales.

A row has to be seen to its end before its first code can be made, and blocks along the tokens need 32 rows at once. Here
a CTA holds 32 rows of at most 1,024; `rmsnorm_cluster_kernel` has longer ones.

    load 32 x 64 a warp -> squares: thread, warp (shuffles), CTA (shared memory) -> rstd -> y -> `fragment`

Loading, adding up and quantizing follow each other, so memory would rest most of the time. CTAs stay on their SM, and
while one quantizes 32 tokens, the next are on their way (cp.async). A thread copies what it alone will read, so this
pipeline needs no barrier; the sum needs two.

Scales go out byte by byte: the four groups of 32 tokens that share an atom are different turns, or CTAs. Groups whose
tokens do not exist write the zeros of their part of the padding.

Constraints: as for `quantize_kernel`; rows of at most 1,024.
"""

from typing import NamedTuple

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu.cpasync import CopyG2SOp, LoadCacheMode

from mxfp8fa.kernels.producers.atoms import LINE
from mxfp8fa.kernels.producers.fragment import VECTOR, Blocks, Scales, encode_row, fragment_scales, select
from mxfp8fa.kernels.producers.quantize_kernel import (
    ROW_LANES,
    ROWS,
    TILE_COLUMNS,
    TILE_TOKENS,
    WARP_COLUMNS,
    store_row,
    tile_tokens,
)
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.mx_tensor import BLOCK

CTA_COLUMNS = 1024
MAX_COLUMNS = 8192  # of `rmsnorm_cluster_kernel`
BLOCKS_OF_TILE = TILE_TOKENS // BLOCK
COLUMN_LANES = (1, 2, 4)  # distances of the lanes that share a token
SM_THREADS = 512  # at least, at up to 128 registers each
SM_STAGE_BYTES = 208 * 1024  # of shared memory, for the stages of all CTAs of an SM
MAX_STAGES = 3
SMEM_PERCENT = 100  # of the memory that is both L1 and shared memory


class Shape(NamedTuple):
    """Of a CTA; what a kernel is compiled for."""

    warps: int  # of a CTA
    stages: int  # groups of 32 tokens that a CTA holds: one in work, the others on their way

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return 32 * self.warps

    @property
    def ctas_per_sm(self) -> int:
        """That fit beside each other."""
        return max(1, SM_THREADS // self.threads)


def shape_for(columns: int, element_bytes: int) -> Shape:
    """A CTA for a row of so many columns, with whole atoms of it."""
    warps = -(-columns // TILE_COLUMNS) * (TILE_COLUMNS // WARP_COLUMNS)
    shape = Shape(warps, 1)
    stage_bytes = BLOCK * WARP_COLUMNS * warps * element_bytes
    return shape._replace(stages=max(1, min(MAX_STAGES, SM_STAGE_BYTES // (shape.ctas_per_sm * stage_bytes))))


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
    """Launch as many CTAs as fit on the GPU beside each other; each takes every so manieth group of 32 tokens.

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
        multiprocessors: of the GPU.
        stream: CUDA stream.
        blocks: what to make.
        shape: how a row is shared out.
    """
    batches, _, heads, _, tiles = sizes
    ctas = cutlass.min(batches * tiles * BLOCKS_OF_TILE * heads, multiprocessors * shape.ctas_per_sm)
    rmsnorm_quantize_kernel(
        pX, pWeight, pCodes, pTokens, pHeadDim, pY, pRstd, pTiles, sizes, strides, eps, blocks, shape
    ).launch(
        grid=(ctas, 1, 1),
        block=(shape.threads, 1, 1),
        stream=stream,
        min_blocks_per_mp=shape.ctas_per_sm,
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
    """One CTA: group after group of 32 tokens."""
    thread, _, _ = cute.arch.thread_idx()
    first_group, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    batches, seqlen, heads, head_dim, tiles = sizes
    groups = batches * tiles * BLOCKS_OF_TILE * heads
    lane, warp = thread % 32, thread // 32
    column = WARP_COLUMNS * warp + VECTOR * (lane % 8)
    inside = column < head_dim
    at = cutlass.min(column, head_dim - VECTOR)
    across = cute.ceil_div(head_dim, TILE_COLUMNS)
    weight = cute.make_rmem_tensor(VECTOR, pWeight.dtype)
    cute.autovec_copy(cute.make_tensor(pWeight + cute.assume(at, divby=VECTOR), VECTOR), weight)
    storage = allocate(pX.dtype, shape)
    sX = storage[0]

    for ahead in cutlass.range_constexpr(shape.stages - 1):
        load_group(pX, pTiles, first_group + ahead * ctas, groups, sizes, strides, at, sX[None, None, thread, ahead])
    turn = cutlass.Int32(0)
    for group in cutlass.range(first_group, groups, ctas, unroll=1):
        next_sX = sX[None, None, thread, (turn + shape.stages - 1) % shape.stages]
        load_group(pX, pTiles, group + (shape.stages - 1) * ctas, groups, sizes, strides, at, next_sX)
        cute.arch.cp_async_wait_group(shape.stages - 1)
        x = rows_of(sX[None, None, thread, turn % shape.stages])
        rstd = reciprocal_rms(x, storage, inside, head_dim, eps, turn, shape)

        batch, head, tile, token_block, first, tokens = place(group, pTiles, sizes)
        row = (cutlass.Int64(batch) * seqlen + first) * heads + head
        if warp == 0 and lane < tokens:
            cute.make_tensor(pRstd + (row + lane * heads), 1)[0] = rstd
        y = scaled_rows(x, rstd, weight.load().to(cutlass.Float32), lane)
        scales = fragment_scales(lambda i, _, y=y: y[i], ROWS, 1, ROW_LANES, blocks)  # type: ignore[misc]
        store(y, scales, (pCodes, pY), row * head_dim + column, heads * head_dim, inside, tokens, blocks)
        if column < across * TILE_COLUMNS:
            head_index = cutlass.Int64(batch * heads + head)
            atoms = (
                (head_index * tiles + tile) * across + column // TILE_COLUMNS,
                (head_index * across + column // TILE_COLUMNS) * tiles + tile,
            )
            store_scales((pTokens, pHeadDim), scales, atoms, column, token_block, inside, tokens)
        turn += 1


rmsnorm_quantize_kernel.set_name_prefix("rmsnorm_quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


def allocate(element_type: type[cutlass.Numeric], shape: Shape) -> tuple[cute.Tensor, ...]:
    """Shared memory of a CTA.

    Returns:
        x, (8, rows, threads, stages), of which a thread writes and reads its own; sums of squares of 32 tokens by warp, and
        of the CTA, in two copies for even and odd turns.
    """
    smem = memory.SmemAllocator()
    threads = shape.threads
    kept = cute.make_layout(
        (VECTOR, ROWS, threads, shape.stages), stride=(1, VECTOR * threads, VECTOR, VECTOR * ROWS * threads)
    )
    return (
        smem.allocate_tensor(element_type, kept, byte_alignment=128),
        smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, shape.warps)), byte_alignment=128),
        smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, 2)), byte_alignment=128),
    )


@cute.jit
def place(group: cutlass.Int32, pTiles: cute.Pointer | None, sizes: tuple[cutlass.Int32, ...]) -> tuple:
    """Batch, head, tile, which 32 of its 128 tokens, their first token in the batch, and how many exist (maybe < 1)."""
    _, seqlen, heads, _, tiles = sizes
    head, token_block = group % heads, group // heads % BLOCKS_OF_TILE
    batch_tile = group // (heads * BLOCKS_OF_TILE)
    batch, tile = batch_tile // tiles, batch_tile % tiles
    first, tokens = tile_tokens(pTiles, tile, seqlen)
    return batch, head, tile, token_block, first + BLOCK * token_block, tokens - BLOCK * token_block


@cute.jit
def load_group(
    pX: cute.Pointer,
    pTiles: cute.Pointer | None,
    group: cutlass.Int32,
    groups: cutlass.Int32,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    column: cutlass.Int32,
    sX: cute.Tensor,
) -> None:
    """Start copying the thread's part of a group, (8, rows): every fourth token, the tile's last one for all beyond.

    Beyond the last group nothing is copied, but the empty batch of copies counts all the same.
    """
    if group < groups:
        batch, head, _, _, first, tokens = place(group, pTiles, sizes)
        batch_stride, token_stride, head_stride = strides
        source = batch * batch_stride + first * token_stride + head * head_stride + column
        copy = cute.make_copy_atom(CopyG2SOp(LoadCacheMode.GLOBAL), pX.dtype, num_bits_per_copy=128)
        vector = 128 // pX.dtype.width
        layout = cute.make_layout((vector, VECTOR // vector))
        for i in cutlass.range_constexpr(ROWS):
            row = cutlass.min(cute.arch.lane_idx() // 8 + 4 * i, tokens - 1)
            offset = cute.assume(source + row * token_stride, divby=vector)
            cute.copy(copy, cute.make_tensor(pX + offset, layout), cute.make_tensor(sX[None, i].iterator, layout))
    cute.arch.cp_async_commit_group()


def rows_of(sX: cute.Tensor) -> list[cute.TensorSSA]:
    """The thread's part of x as float32, row by row."""
    rows = []
    for i in range(ROWS):
        raw = cute.make_rmem_tensor(VECTOR, sX.element_type)
        cute.autovec_copy(sX[None, i], raw)
        rows.append(raw.load().to(cutlass.Float32))
    return rows


@cute.jit
def reciprocal_rms(
    x: cutlass.Constexpr,
    storage: tuple,
    inside: cutlass.Boolean,
    head_dim: cutlass.Int32,
    eps: cutlass.Float32,
    turn: cutlass.Int32,
    shape: cutlass.Constexpr[Shape],
) -> cutlass.Float32:
    """rstd of token `lane`, from the parts of its row that all threads of the CTA hold.

    Args:
        x: the thread's rows.
        storage: shared memory of the CTA (`allocate`).
        inside: whether the thread's columns exist.
        head_dim: length of a row.
        eps: added to the mean.
        turn: counts the groups of the CTA.
        shape: of the CTA.
    """
    _, sOfWarp, sOfCta = storage
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread // 32
    for i in cutlass.range_constexpr(ROWS):
        total = select(inside, sum_of_squares(x[i]), cutlass.Float32(0))
        for distance in COLUMN_LANES:
            total += cute.arch.shuffle_sync_bfly(total, offset=distance)
        if lane % 8 == 0:
            sOfWarp[lane // 8 + 4 * i, warp] = total
    cute.arch.sync_threads()
    if warp == 0:
        total = sOfWarp[lane, 0]
        for other in cutlass.range_constexpr(1, shape.warps):
            total += sOfWarp[lane, other]
        sOfCta[lane, turn % 2] = total
    cute.arch.sync_threads()
    return cute.math.rsqrt(sOfCta[lane, turn % 2] / cutlass.Float32(head_dim) + eps)


def sum_of_squares(x: cute.TensorSSA) -> cutlass.Float32:
    """Of a thread's part of a row, from the first column to the last."""
    total = x[0] * x[0]
    for e in range(1, VECTOR):
        total += x[e] * x[e]
    return total


def scaled_rows(
    x: list[cute.TensorSSA], rstd: cutlass.Float32, weight: cute.TensorSSA, lane: cutlass.Int32
) -> list[cute.TensorSSA]:
    """y = (x * rstd) * weight in float32, rounded after each product; rstd is that of token `lane`."""
    return [x[i] * cute.arch.shuffle_sync(rstd, offset=lane // 8 + 4 * i) * weight for i in range(ROWS)]


@cute.jit
def store(
    y: cutlass.Constexpr,
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
        values = y[i]
        codes = encode_row(values, scales, i, 0, blocks)
        if inside and token < tokens:
            store_row(codes, pCodes, element + cutlass.Int64(token) * stride)
            if cutlass.const_expr(pY is not None):
                rounded = cute.make_rmem_tensor(VECTOR, pY.dtype)
                rounded.store(values.to(pY.dtype))
                store_row(rounded, pY, element + cutlass.Int64(token) * stride)


@cute.jit
def store_scales(
    targets: tuple,
    scales: cutlass.Constexpr[Scales],
    atoms: tuple[cutlass.Int64, ...],
    column: cutlass.Int32,
    token_block: cutlass.Int32,
    inside: cutlass.Boolean,
    tokens: cutlass.Int32,
) -> None:
    """Scales of 32 tokens into their atoms, 0 where nothing exists; see `atoms` for the places.

    Args:
        targets: first of the scales with tokens as rows, and with the head dimension as rows; None for what is not made.
        scales: of the thread's rows and columns.
        atoms: index of the atom in each.
        column: first of the thread's.
        token_block: place of the 32 tokens in their tile of 128.
        inside: whether the columns exist.
        tokens: how many exist.
    """
    lane = cute.arch.lane_idx()
    block = column // BLOCK % 4
    if cutlass.const_expr(targets[0] is not None):  # noqa: SIM102 (compiled in, unlike the other condition)
        if lane % 4 == 0:
            gAtom = cute.make_tensor(targets[0] + atoms[0] * ATOM_BYTES, ATOM_BYTES)
            for i in cutlass.range_constexpr(ROWS):
                token = lane // 8 + 4 * i
                code = select(inside and token < tokens, scales.of_row[i][0], cutlass.Int32(0))
                gAtom[LINE * token + 4 * token_block + block] = code.to(cutlass.Uint8)
    if cutlass.const_expr(targets[1] is not None):  # noqa: SIM102
        if lane < 8:
            gAtom = cute.make_tensor(targets[1] + atoms[1] * ATOM_BYTES, ATOM_BYTES)
            for e in cutlass.range_constexpr(VECTOR):
                code = select(inside and tokens > 0, scales.of_column[e][0], cutlass.Int32(0))
                gAtom[LINE * (column % BLOCK + e) + 4 * block + token_block] = code.to(cutlass.Uint8)
