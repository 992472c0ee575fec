"""Quantize: BF16, FP16 or FP32 to element codes and scales in 128x4 atoms, in one pass over memory.

A CTA takes 128 tokens by 128 columns of one head, a warp 32 by 64 of them. A thread's eight rows are all on their way
before it looks at the first value, and everything after that happens in registers (`fragment`): a warp holds whole
blocks, whichever way they run. Codes go out 8 bytes a thread and row, scales through shared memory as whole atoms.

Tokens and columns beyond the end are the last ones loaded again: copies change no maximum of their block, and nothing of
what becomes of them is stored. Packed sequences need no more than a table that says where the tokens of a tile begin and
how many they are: codes are compact, atoms padded, and nobody gathers anything.

Constraints: the last axis contiguous, its length a multiple of 32; every row starts at a multiple of 16 bytes.
"""

import cutlass
from cutlass import cute, memory

from mxfp8fa.kernels.producers.atoms import STORING_THREADS, stage_column_scales, stage_row_scale, store_atom
from mxfp8fa.kernels.producers.fragment import VECTOR, Blocks, encode_row, fragment_scales
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.mx_tensor import BLOCK

TILE_TOKENS, TILE_COLUMNS = 128, 128
WARP_COLUMNS = 64
WARPS_ACROSS = TILE_COLUMNS // WARP_COLUMNS
THREADS = 32 * (TILE_TOKENS // BLOCK) * WARPS_ACROSS
ROWS, ROW_LANES = 8, (8, 16)  # of a thread: see `fragment`
CTAS_PER_SM = 3  # at least: bounds registers to 80. Measured on an H200: 2 are 10 % slower, 4 spill
SMEM_PERCENT = 10  # of the memory that is both L1 and shared memory: each CTA needs 1 KiB
ROW_BYTES = 16  # alignment of rows


@cute.struct
class Storage:
    """An atom in each orientation."""

    tokens: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, ATOM_BYTES], 128]
    head_dim: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, ATOM_BYTES], 128]


@cute.jit
def quantize(
    pX: cute.Pointer,
    pCodes: cute.Pointer,
    pTokens: cute.Pointer | None,
    pHeadDim: cute.Pointer | None,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    stream: object,
    blocks: cutlass.Constexpr[Blocks],
) -> None:
    """Launch a CTA per tile, neighbours in memory after each other.

    Args:
        pX: first element of the data.
        pCodes: of the codes, contiguous.
        pTokens: of the scales with tokens as rows, if blocks run along the last axis.
        pHeadDim: of the scales with the head dimension as rows, if they run along the tokens.
        pTiles: of (tiles, 2) int32, first token and number of tokens of every tile, for packed sequences.
        sizes: batches, tokens of one, heads, head dimension, token tiles of a batch.
        strides: of the data, in elements: batch, token, head.
        stream: CUDA stream.
        blocks: what to make.
    """
    batches, _, heads, head_dim, tiles = sizes
    grid = batches * tiles * heads * cute.ceil_div(head_dim, TILE_COLUMNS)
    quantize_kernel(pX, pCodes, pTokens, pHeadDim, pTiles, sizes, strides, blocks).launch(
        grid=(grid, 1, 1),
        block=(THREADS, 1, 1),
        stream=stream,
        min_blocks_per_mp=CTAS_PER_SM,
        preferred_smem_carveout=SMEM_PERCENT,
    )


@cute.kernel
def quantize_kernel(
    pX: cute.Pointer,
    pCodes: cute.Pointer,
    pTokens: cute.Pointer | None,
    pHeadDim: cute.Pointer | None,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    blocks: cutlass.Constexpr[Blocks],
) -> None:
    """One CTA: one tile of 128 x 128."""
    thread, _, _ = cute.arch.thread_idx()
    index, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    _, seqlen, heads, head_dim, tiles = sizes
    across = cute.ceil_div(head_dim, TILE_COLUMNS)
    batch_tile, head, tile_d = index // (across * heads), index // across % heads, index % across
    batch, tile = batch_tile // tiles, batch_tile % tiles
    first, tokens = tile_tokens(pTiles, tile, seqlen)
    columns = head_dim - tile_d * TILE_COLUMNS  # from here on; may exceed the tile

    token_block = warp // WARPS_ACROSS
    token = BLOCK * token_block + lane // 8  # the first of the thread's
    column = WARP_COLUMNS * (warp % WARPS_ACROSS) + VECTOR * (lane % 8)
    batch_stride, token_stride, head_stride = strides
    source = batch * batch_stride + first * token_stride + head * head_stride + tile_d * TILE_COLUMNS
    raw = load_rows(pX, source + cutlass.min(column, columns - VECTOR), token_stride, token, tokens)
    values = [raw[None, i].load().to(cutlass.Float32) for i in range(ROWS)]
    scales = fragment_scales(lambda i, _: values[i], ROWS, 1, ROW_LANES, blocks)
    target = ((cutlass.Int64(batch) * seqlen + first) * heads + head) * head_dim + tile_d * TILE_COLUMNS + column
    for i in cutlass.range_constexpr(ROWS):
        row = token + 4 * i
        codes = encode_row(values[i], scales, i, 0, blocks)
        if row < tokens and column < columns:
            store_row(codes, pCodes, target + cutlass.Int64(row) * (heads * head_dim))

    storage = memory.SmemAllocator().allocate(Storage)
    block = column // BLOCK
    if cutlass.const_expr(blocks.last):
        sTokens = storage.tokens.get_tensor(cute.make_layout(ATOM_BYTES))
        if lane % 4 == 0:
            for i in cutlass.range_constexpr(ROWS):
                row = token + 4 * i
                exists = row < tokens and column < columns
                stage_row_scale(sTokens, scales.of_row[i][0], row, block, exists)
    if cutlass.const_expr(blocks.token):
        sHeadDim = storage.head_dim.get_tensor(cute.make_layout(ATOM_BYTES))
        if lane < 8:
            exists = BLOCK * token_block < tokens and column < columns
            of_columns = [column[0] for column in scales.of_column]
            stage_column_scales(sHeadDim, of_columns, lane, block, token_block, exists)
    cute.arch.sync_threads()
    head_index = cutlass.Int64(batch * heads + head)
    if thread < STORING_THREADS:
        if cutlass.const_expr(blocks.last):
            store_atom(sTokens, pTokens, (head_index * tiles + tile) * across + tile_d, thread)
        if cutlass.const_expr(blocks.token):
            store_atom(sHeadDim, pHeadDim, (head_index * across + tile_d) * tiles + tile, thread)


quantize_kernel.set_name_prefix("quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def tile_tokens(
    pTiles: cute.Pointer | None, tile: cutlass.Int32, seqlen: cutlass.Int32
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """First token of a tile in its batch, and the number of tokens, at most 128."""
    first = tile * TILE_TOKENS
    tokens = cutlass.min(seqlen - first, TILE_TOKENS)
    if cutlass.const_expr(pTiles is not None):
        gTile = cute.make_tensor(pTiles + 2 * tile, 2)
        first, tokens = gTile[0], gTile[1]
    return first, tokens


def load_rows(
    pX: cute.Pointer, source: cutlass.Int64, stride: cutlass.Int64, token: cutlass.Int32, tokens: cutlass.Int32
) -> cute.Tensor:
    """Eight columns of the thread's tokens, (8, 8 rows): every fourth token, the last one for all beyond.

    Args:
        pX: first element of the data.
        source: offset of the thread's columns in the first token of the tile, in elements.
        stride: from token to token.
        token: the thread's first.
        tokens: how many the tile has.
    """
    aligned = ROW_BYTES * 8 // pX.dtype.width
    raw = cute.make_rmem_tensor(cute.make_layout((VECTOR, ROWS)), pX.dtype)
    for i in range(ROWS):
        row = cutlass.min(token + 4 * i, tokens - 1)
        offset = cute.assume(source + row * stride, divby=aligned)
        cute.autovec_copy(cute.make_tensor(pX + offset, VECTOR), raw[None, i])
    return raw


def store_row(values: cute.Tensor, pTarget: cute.Pointer, target: cutlass.Int64) -> None:
    """Eight codes or values to the given element."""
    cute.autovec_copy(values, cute.make_tensor(pTarget + cute.assume(target, divby=VECTOR), VECTOR))
