"""The epilogue of `gemm_quantize`: accumulators in registers to codes and scales, the same for both main loops.

A warpgroup holds 128 tokens by 128 columns, each warp 32 tokens, a thread four tokens by 8 columns of each of four
blocks (`gemm_tiles` says how that came about). So all blocks are inside a warp, and one accumulator gives as many
operands as are wanted: V along the tokens for the forward and along the head dimension for the backward, say. FP32 goes
nowhere but into the codes.

Scales with tokens as rows leave as words, four blocks of a token; those with the head dimension as rows byte by byte, by
the four threads that hold a token's columns, since the other bytes of a word are other warps'. Heads narrower than 128
columns have atoms of their own, filled up with 0.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import cute

from mxfp8fa.kernels.producers.atoms import LINE
from mxfp8fa.kernels.producers.fragment import VECTOR, Blocks, encode_row, fragment_scales, select
from mxfp8fa.kernels.producers.gemm_tiles import HALF_N, TILE_N, Place
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.mx_tensor import BLOCK

ROWS, ROW_LANES = 4, (4, 8, 16)  # of a thread: see `fragment`
COLUMN_BLOCKS = HALF_N // BLOCK
ATOM_BLOCKS = 4


class Target(NamedTuple):
    """Memory of one result: codes and scales, or values in BF16 or FP32."""

    values: cute.Pointer
    tokens: cute.Pointer | None
    head_dim: cute.Pointer | None


class Geometry(NamedTuple):
    """Of the results."""

    n: cutlass.Int32  # columns of all heads
    head_dim: cutlass.Int32
    tiles: cutlass.Int32  # of tokens in a batch


@cute.jit
def write(
    acc: cute.Tensor,
    place: Place,
    half: cutlass.Int32,
    targets: tuple,
    geometry: Geometry,
    outputs: cutlass.Constexpr[tuple[Blocks | None, ...]],
    narrow: cutlass.Constexpr[int],
) -> None:
    """Everything that is made of a warpgroup's accumulators.

    Args:
        acc: 128 float32 of a thread: (2 columns, 2 rows 8 apart, 16 groups of columns, 2 rows 16 apart).
        place: of the tile.
        half: of its columns.
        targets: a `Target` for each output.
        geometry: of the results.
        outputs: which blocks each output has; None for plain values.
        narrow: blocks of columns of a head, at most 4.
    """
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = thread % 32, thread % 128 // 32
    column = place.tile_n * TILE_N + half * HALF_N
    values = fragment(acc, BLOCK * warp + lane // 4, place.tokens)
    for target, blocks in zip(targets, outputs, strict=True):
        if cutlass.const_expr(blocks is None):
            for i in cutlass.range_constexpr(ROWS):
                for b in cutlass.range_constexpr(COLUMN_BLOCKS):
                    store_row(rounded(values(i, b), target[0].dtype), target[0], place, i, b, column, geometry.n)
        else:
            scales = fragment_scales(values, ROWS, COLUMN_BLOCKS, ROW_LANES, blocks)
            for i in cutlass.range_constexpr(ROWS):
                for b in cutlass.range_constexpr(COLUMN_BLOCKS):
                    codes = encode_row(values(i, b), scales, i, b, blocks)
                    store_row(codes, target[0], place, i, b, column, geometry.n)
            store_scales(scales, target, place, column, geometry, narrow)


def fragment(acc: cute.Tensor, first: cutlass.Int32, tokens: cutlass.Int32) -> Any:
    """The accumulators as `fragment` asks for them; tokens that do not exist are 0."""

    def row(i: int, b: int) -> list[cutlass.Float32]:
        at = [64 * (i // 2) + 2 * (i % 2) + 4 * (4 * b + e // 2) + e % 2 for e in range(VECTOR)]
        return [select(first + 8 * i < tokens, acc[index], cutlass.Float32(0)) for index in at]

    return row


def rounded(values: list[cutlass.Float32], element_type: type[cutlass.Numeric]) -> cute.Tensor:
    """Eight values in BF16 or FP32."""
    wide, narrow = cute.make_rmem_tensor(VECTOR, cutlass.Float32), cute.make_rmem_tensor(VECTOR, element_type)
    for e in range(VECTOR):
        wide[e] = values[e]
    narrow.store(wide.load().to(element_type))
    return narrow


@cute.jit
def store_row(
    values: cute.Tensor,
    pTarget: cute.Pointer,
    place: Place,
    i: cutlass.Constexpr[int],
    b: cutlass.Constexpr[int],
    column: cutlass.Int32,
    n: cutlass.Int32,
) -> None:
    """Eight codes or values of the thread's row i and block b, if they exist."""
    thread, _, _ = cute.arch.thread_idx()
    token = thread % 128 // 32 * BLOCK + thread % 32 // 4 + 8 * i
    block_column = column + BLOCK * b
    if token < place.tokens and block_column < n:
        offset = cutlass.Int64(place.row + token) * n + block_column + VECTOR * (thread % 4)
        cute.autovec_copy(values, cute.make_tensor(pTarget + cute.assume(offset, divby=VECTOR), VECTOR))


@cute.jit
def store_scales(
    scales: cutlass.Constexpr,
    target: tuple,
    place: Place,
    column: cutlass.Int32,
    geometry: Geometry,
    narrow: cutlass.Constexpr[int],
) -> None:
    """Scales of 32 tokens by 128 columns into their atoms, with their part of the padding."""
    thread, _, _ = cute.arch.thread_idx()
    lane, token_block = thread % 32, thread % 128 // 32
    across = cute.ceil_div(geometry.head_dim, HALF_N)
    heads = geometry.n // geometry.head_dim
    for part in cutlass.range_constexpr(COLUMN_BLOCKS // narrow):  # atoms side by side
        first = column + BLOCK * narrow * part
        head, tile_d = first // geometry.head_dim, first % geometry.head_dim // HALF_N
        head_index = cutlass.Int64(place.batch * heads + head)
        exists = [first + BLOCK * b < geometry.n if b < narrow else False for b in range(ATOM_BLOCKS)]
        if first < geometry.n:
            if cutlass.const_expr(target[1] is not None):  # noqa: SIM102 (compiled in, unlike the other condition)
                if lane % 4 == 0:
                    atom = (head_index * geometry.tiles + place.tile) * across + tile_d
                    for i in cutlass.range_constexpr(ROWS):
                        token = lane // 4 + 8 * i
                        inside = BLOCK * token_block + token < place.tokens
                        word = cutlass.Int32(0)
                        for b in cutlass.range_constexpr(narrow):
                            code = select(exists[b], scales.of_row[i][narrow * part + b], cutlass.Int32(0))
                            word = word | (code << (8 * b))
                        word = select(inside, word, cutlass.Int32(0))
                        offset = cute.assume(atom * ATOM_BYTES + LINE * token + 4 * token_block, divby=4)
                        gWord = cute.make_tensor(cute.recast_ptr(target[1] + offset, dtype=cutlass.Int32), 1)
                        gWord[0] = word
            if cutlass.const_expr(target[2] is not None):  # noqa: SIM102
                if lane < 4:
                    atom = (head_index * across + tile_d) * geometry.tiles + place.tile
                    gAtom = cute.make_tensor(target[2] + atom * ATOM_BYTES, ATOM_BYTES)
                    inside = BLOCK * token_block < place.tokens
                    for b in cutlass.range_constexpr(ATOM_BLOCKS):
                        for e in cutlass.range_constexpr(VECTOR):
                            code = cutlass.Int32(0)
                            if cutlass.const_expr(b < narrow):
                                code = select(inside and exists[b], scales.of_column[e][narrow * part + b], code)
                            gAtom[LINE * (VECTOR * lane + e) + 4 * b + token_block] = code.to(cutlass.Uint8)
