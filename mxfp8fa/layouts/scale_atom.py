"""The 128x4 scale-factor atom: where tcgen05.mma expects block scales in memory.

A scale matrix has one row per row of the operand (M or N) and one column per 32 elements of K. It is cut into atoms of
128 rows by 4 columns, 512 bytes each and contiguous; atoms along K are neighbours. Inside an atom the rows r, r + 32,
r + 64 and r + 96 share 16 bytes, 4 columns each (PTX ISA, "tcgen05.mma block scaling"; cuBLAS, "1D block scaling
factors layout"). Rows and columns beyond the matrix are padding. They are written as 0, that is 2^-127: a stray 0xFF
would be NaN and, times padded zero data, still NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.layouts.jagged import block_starts, cu_blocks, cu_tiles, padded_index
from mxfp8fa.numerics.mx_tensor import BLOCK, MXTensor, normalize_axes, normalize_cu_seqlens, scale_shape

ATOM_ROWS, ATOM_COLUMNS = 128, 4
ATOM_BYTES = ATOM_ROWS * ATOM_COLUMNS
ROWS = ("tokens", "head_dim")

_Index = TypeVar("_Index", int, NDArray[np.int64])


def scale_offset(row: _Index, column: _Index, columns: int) -> _Index:
    """Byte offset of scale (row, column) in the packed form of a matrix with `columns` columns (K / 32)."""
    atom = row // ATOM_ROWS * -(-columns // ATOM_COLUMNS) + column // ATOM_COLUMNS
    return atom * ATOM_BYTES + row % 32 * 16 + row % ATOM_ROWS // 32 * 4 + column % ATOM_COLUMNS


def pack_atoms(scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Scale matrices (..., R, C) as atoms (..., ceil(R/128), ceil(C/4), 512), each matrix on its own, padding 0.

    Raises:
        ValueError: not a uint8 array of rank 2 or more.
    """
    _check_uint8("scale", scale, 2)
    *batch, rows, columns = scale.shape
    row_tiles, column_tiles = -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS)
    padded = np.zeros((*batch, row_tiles * ATOM_ROWS, column_tiles * ATOM_COLUMNS), np.uint8)
    padded[..., :rows, :columns] = scale
    split = padded.reshape(prod(batch), row_tiles, 4, 32, column_tiles, ATOM_COLUMNS)
    return split.transpose(0, 1, 4, 3, 2, 5).reshape(*batch, row_tiles, column_tiles, ATOM_BYTES)


def unpack_atoms(packed: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """The scale matrices (..., rows, columns) in atoms (..., ceil(R/128), ceil(C/4), 512); padding is not looked at.

    Raises:
        ValueError: dtype or shape that is not the packed form of such matrices.
    """
    _check_uint8("packed", packed, 3)
    row_tiles, column_tiles = -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS)
    if packed.shape[-3:] != (row_tiles, column_tiles, ATOM_BYTES):
        raise ValueError(
            f"packed has shape {packed.shape}; {rows} x {columns} scales need (..., {row_tiles}, {column_tiles}, 512)"
        )
    batch = packed.shape[:-3]
    split = packed.reshape(prod(batch), row_tiles, column_tiles, 32, 4, ATOM_COLUMNS).transpose(0, 1, 4, 3, 2, 5)
    matrix = split.reshape(*batch, row_tiles * ATOM_ROWS, column_tiles * ATOM_COLUMNS)
    return np.ascontiguousarray(matrix[..., :rows, :columns])


def pack_scales(x: MXTensor, *, rows: str = "tokens") -> NDArray[np.uint8]:
    """The scales of `x` as the tensor core reads them, with tokens or the head dimension as rows of the operand.

        data                          rows = "tokens"                              rows = "head_dim"
        (S, D)                        (ceil(S/128), ceil(D/128), 512)              (ceil(D/128), ceil(S/128), 512)
        (B, S, H, D)                  (B, H, ceil(S/128), ceil(D/128), 512)        (B, H, ceil(D/128), ceil(S/128), 512)
        (T, H, D) with cu_seqlens     (H, cu_tiles[-1], ceil(D/128), 512)          (H, ceil(D/128), cu_tiles[-1], 512)

    Tokens are rows in the GEMMs that contract the head dimension (Q and K in S = Q K^T; dO and V in dP): blocks run
    along D. The head dimension is rows where tokens are contracted (V in P V, dO in dV, Q in dK, K in dQ): blocks run
    along S. Square blocks serve both and are repeated along the rows here. Packed sequences are padded to 128 tokens
    each, so sequence i begins at tile `cu_tiles[i]` (`mxfp8fa.layouts.cu_tiles`) while the codes stay compact.

    Raises:
        ValueError: not an `MXTensor`, a rank other than these, or blocks that do not run along the contracted axis.
    """
    if not isinstance(x, MXTensor):
        raise ValueError(f"x is a {type(x).__name__}; allowed: an MXTensor (pack_atoms packs plain scale matrices)")
    row_axis, k_axis = matrix_axes(x.codes.shape, x.axes, x.cu_seqlens is not None, rows)
    scale = x.scale_of_rows(row_axis) if row_axis in x.axes else x.scale_e8m0
    matrix = scale.transpose(batch_first(row_axis, k_axis, scale.ndim))
    if x.cu_seqlens is not None:
        matrix = _scatter(matrix, *token_slots(x.cu_seqlens, rows))
    return pack_atoms(matrix)


def unpack_scales(
    packed: NDArray[np.uint8],
    *,
    shape: tuple[int, ...],
    axes: int | tuple[int, ...],
    rows: str = "tokens",
    cu_seqlens: NDArray[np.int32] | None = None,
) -> NDArray[np.uint8]:
    """`scale_e8m0` of data of `shape` in blocks along `axes`, from what `pack_scales` made of it.

    Padding is not looked at, whatever it holds.

    Raises:
        ValueError: a shape, axes or `packed` that do not belong together, or square blocks whose rows disagree.
    """
    if not isinstance(shape, Sequence):
        raise ValueError(f"shape = {shape!r}; allowed: a tuple of lengths")
    axes = normalize_axes(axes, len(shape))
    lengths = normalize_cu_seqlens(cu_seqlens, shape)
    row_axis, k_axis = matrix_axes(shape, axes, lengths is not None, rows)
    per_row = list(scale_shape(shape, (k_axis,), lengths))
    order = batch_first(row_axis, k_axis, len(shape))
    expected = tuple(per_row[axis] for axis in order)
    if lengths is None:
        matrix = _unpack_checked(packed, expected)
    else:
        side, index, size = token_slots(lengths, rows)
        padded = list(expected)
        padded[side] = size
        matrix = np.take(_unpack_checked(packed, tuple(padded)), index, axis=side)
    scale = matrix.transpose(np.argsort(order))
    if row_axis in axes:
        scale = _one_row_per_square(scale, row_axis, shape[row_axis], lengths)
    return np.ascontiguousarray(scale)


def _check_uint8(name: str, array: NDArray, rank: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim < rank:
        given = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {given}; allowed: a uint8 array of rank {rank} or more")


def matrix_axes(shape: tuple[int, ...], axes: tuple[int, ...], packed: bool, rows: str) -> tuple[int, int]:
    """Axes of the data that become the rows and the contracted dimension of the operand."""
    if rows not in ROWS:
        raise ValueError(f"rows = {rows!r}; allowed: {', '.join(ROWS)}")
    allowed = {2: 0, 3: 0} if packed else {2: 0, 4: 1}
    if len(shape) not in allowed:
        layouts = "(T, D), (T, H, D)" if packed else "(S, D), (B, S, H, D)"
        with_or_without = "with" if packed else "without"
        raise ValueError(f"data has shape {shape}; allowed {with_or_without} cu_seqlens: {layouts}")
    token_axis, head_axis = allowed[len(shape)], len(shape) - 1
    row_axis, k_axis = (token_axis, head_axis) if rows == "tokens" else (head_axis, token_axis)
    if k_axis not in axes or not set(axes) <= {row_axis, k_axis}:
        raise ValueError(
            f"blocks along axes {axes} with rows = {rows!r}: the scales have to run along axis {k_axis}; "
            f"allowed: ({k_axis},), or {tuple(sorted((row_axis, k_axis)))} for squares"
        )
    return row_axis, k_axis


def batch_first(row_axis: int, k_axis: int, rank: int) -> tuple[int, ...]:
    """Order of axes that puts the matrix last and everything else, in order, first."""
    return (*(axis for axis in range(rank) if axis not in (row_axis, k_axis)), row_axis, k_axis)


def token_slots(cu_seqlens: NDArray[np.int32], rows: str) -> tuple[int, NDArray[np.int64], int]:
    """Where packed tokens go: matrix axis (-2 rows, -1 columns), slot of every row or block, number of slots."""
    tiles = int(cu_tiles(cu_seqlens)[-1])
    if rows == "tokens":
        return -2, padded_index(cu_seqlens, ATOM_ROWS), tiles * ATOM_ROWS
    return -1, padded_index(cu_blocks(cu_seqlens), ATOM_COLUMNS), tiles * ATOM_COLUMNS


def _scatter(matrix: NDArray[np.uint8], side: int, index: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    shape = list(matrix.shape)
    shape[side] = size
    padded = np.zeros(shape, np.uint8)
    padded[(..., index, slice(None)) if side == -2 else (..., index)] = matrix
    return padded


def _unpack_checked(packed: NDArray[np.uint8], expected: tuple[int, ...]) -> NDArray[np.uint8]:
    """`unpack_atoms` that also holds the batch axes against the data's shape."""
    matrix = unpack_atoms(packed, *expected[-2:])
    if matrix.shape != expected:
        raise ValueError(f"packed has batch axes {matrix.shape[:-2]}; the data's shape needs {expected[:-2]}")
    return matrix


def _one_row_per_square(
    scale: NDArray[np.uint8], axis: int, length: int, cu_seqlens: NDArray[np.int32] | None
) -> NDArray[np.uint8]:
    """Undo the repetition of square scales along `axis`, after checking that it is one."""
    bounds = np.array([0, length]) if axis or cu_seqlens is None else cu_seqlens
    starts = block_starts(bounds)
    first = np.take(scale, starts, axis=axis)
    repeated = np.repeat(first, np.diff(np.append(starts, length)), axis=axis)
    if not np.array_equal(repeated, scale):
        raise ValueError(f"packed scales differ along axis {axis} within a square of {BLOCK} rows; squares need one")
    return first
