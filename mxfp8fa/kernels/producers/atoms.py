"""Scales of a tile of 128 tokens by 128 columns, from the registers that made them to 128x4 atoms in global memory.

Such a tile has 128 x 4 scales whichever way its blocks run, so it fills one atom in each orientation and nobody else
writes into that atom: its padding, too, is this tile's. Bytes meet in shared memory and leave as 512 contiguous ones.

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
