"""Scales of a tile of 128 tokens by 128 columns, from the registers that made them to 128x4 atoms in global memory.

Such a tile has 128 x 4 scales whichever way its blocks run, so it fills one atom in each orientation and nobody else
writes into that atom: its padding, too, is this tile's. Bytes meet in shared memory and leave as 512 contiguous ones.

A warp that has 32 tokens by 64 columns alone writes its part of an atom straight to global memory.

    orientation   blocks along   byte of the atom
    tokens        last axis      16 (token % 32) + 4 (token // 32) + block of columns
    head_dim      tokens         16 (column % 32) + 4 (column // 32) + block of tokens
"""

from typing import Any

import cutlass
from cutlass import cute

from mxfp8fa.kernels.producers.fragment import VECTOR, select
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.mx_tensor import BLOCK

TILE_COLUMNS = 128
LINE = 16  # bytes that rows r, r + 32, r + 64 and r + 96 share
STORE_BYTES = 16
STORING_THREADS = ATOM_BYTES // STORE_BYTES


def stage_row_scale(
    atom: cute.Tensor, code: cutlass.Int32, token: cutlass.Int32, block: cutlass.Int32, exists: cutlass.Boolean
) -> None:
    """A scale of blocks along the last axis: of one token and block of columns. Padding is 0."""
    value = select(exists, code, cutlass.Int32(0))
    atom[LINE * (token % BLOCK) + 4 * (token // BLOCK) + block] = value.to(cutlass.Uint8)


def stage_column_scales(
    atom: cute.Tensor,
    codes: list[Any],
    lane: cutlass.Int32,
    block: cutlass.Int32,
    token_block: cutlass.Int32,
    exists: cutlass.Boolean,
) -> None:
    """Scales of blocks along the tokens: of the thread's 8 columns in a block of columns."""
    for e in range(VECTOR):
        value = select(exists, codes[e], cutlass.Int32(0))
        atom[LINE * (VECTOR * (lane % 4) + e) + 4 * block + token_block] = value.to(cutlass.Uint8)


def store_atom(atom: cute.Tensor, target: cute.Pointer, index: cutlass.Int64, thread: cutlass.Int32) -> None:
    """512 bytes from shared to global memory, by threads 0 to 31.

    Args:
        atom: (512,) bytes in shared memory.
        target: first of the packed scales.
        index: of the atom there.
        thread: from 0 to 31.
    """
    offset = cute.assume(STORE_BYTES * thread, divby=STORE_BYTES)
    sLine = cute.make_tensor(atom.iterator + offset, STORE_BYTES)
    gLine = cute.make_tensor(target + cute.assume(index * ATOM_BYTES + offset, divby=STORE_BYTES), STORE_BYTES)
    cute.autovec_copy(sLine, gLine)


def packed(codes: list[cutlass.Int32]) -> cutlass.Int32:
    """Four codes in a word, the first one lowest."""
    return codes[0] | (codes[1] << 8) | (codes[2] << 16) | (codes[3] << 24)


@cute.jit
def store_row_scales(
    target: cute.Pointer,
    of_row: cutlass.Constexpr,
    atom: cutlass.Int64,
    column: cutlass.Int32,
    token_block: cutlass.Int32,
    head_dim: cutlass.Int32,
    tokens: cutlass.Int32,
) -> None:
    """Scales of 32 tokens by two blocks of columns, 0 where nothing exists: lane r writes the two bytes of token r.

    Args:
        target: first of the packed scales with tokens as rows.
        of_row: the thread's, by row: token lane // 8 + 4 i.
        atom: index of the atom there.
        column: first of the thread's; lane bit 2 chooses the block.
        token_block: place of the 32 tokens in their tile of 128.
        head_dim: number of columns; warps beyond the last atom write nothing.
        tokens: how many exist.
    """
    lane = cute.arch.lane_idx()
    words = [packed([of_row[4 * j + i][0] for i in range(4)]) for j in range(2)]
    words = [select(column < head_dim, word, cutlass.Int32(0)) for word in words]
    code = cutlass.Int32(0)
    for block in cutlass.range_constexpr(2):
        owner = 8 * (lane % 4) + 4 * block  # has tokens lane % 4 + 4 i
        low, high = (cute.arch.shuffle_sync(word, offset=owner) for word in words)
        mine = (select(lane < 16, low, high) >> (8 * (lane // 4 % 4))) & 0xFF
        code = code | (mine << (8 * block))
    code = select(lane < tokens, code, cutlass.Int32(0))
    offset = atom * ATOM_BYTES + LINE * lane + 4 * token_block + column // (2 * BLOCK) % 2 * 2
    gPair = cute.make_tensor(cute.recast_ptr(target + cute.assume(offset, divby=2), dtype=cutlass.Uint16), 1)
    if column < cute.round_up(head_dim, TILE_COLUMNS):  # no shuffle in here: lanes could not be known to be together after it
        gPair[0] = code.to(cutlass.Uint16)


@cute.jit
def store_column_scales(
    target: cute.Pointer,
    of_column: cutlass.Constexpr,
    atom: cutlass.Int64,
    column: cutlass.Int32,
    token_block: cutlass.Int32,
    head_dim: cutlass.Int32,
    tokens: cutlass.Int32,
) -> None:
    """Scales of 32 tokens by 64 columns, 0 where nothing exists: lanes that have the same columns share them out.

    Args:
        target: first of the packed scales with the head dimension as rows.
        of_column: the thread's, by column.
        atom: index of the atom there.
        column: first of the thread's.
        token_block: place of the 32 tokens in their tile of 128.
        head_dim: number of columns; warps beyond the last atom write nothing.
        tokens: how many exist.
    """
    share = cute.arch.lane_idx() // 8
    gAtom = cute.make_tensor(target + atom * ATOM_BYTES, ATOM_BYTES)
    for j in cutlass.range_constexpr(2):
        code = (packed([of_column[4 * j + i][0] for i in range(4)]) >> (8 * share)) & 0xFF
        code = select(column < head_dim and tokens > 0, code, cutlass.Int32(0))
        byte = LINE * (column % BLOCK + 4 * j + share) + 4 * (column // BLOCK % 4) + token_block
        if column < cute.round_up(head_dim, TILE_COLUMNS):
            gAtom[byte] = code.to(cutlass.Uint8)
