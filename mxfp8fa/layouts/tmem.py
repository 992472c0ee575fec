"""Tensor memory: where accumulators, operands, scale factors and register fragments lie in its 128 lanes x 512 columns.

Addresses: bits 31:16 lane, 15:0 column; a cell is 32 bits (PTX ISA, "Tensor Memory"). The ISA draws most layouts as
figures; the formulas here agree with CUTLASS's fragment traits (inferred where the ISA has no text).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 128  # PTX ISA, "Tensor Memory"
COLUMNS = 512
PARTITION_LANES = 32  # lanes that one warp of a warpgroup can reach
ALLOCATION_COLUMNS = (32, 64, 128, 256, 512)  # PTX ISA, "tcgen05.alloc": powers of two from 32

Index = NDArray[np.int64]


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


def accumulator_layout(m: int, n: int, cta_group: int) -> tuple[str, Index, Index]:
    """Lane and column offsets of the accumulator D, or of A in tensor memory, in one CTA.

    Args:
        m: M of the instruction (both CTAs together for cta_group 2).
        n: N of the instruction.
        cta_group: 1 or 2.

    Returns:
        The ISA's letter of the layout, and (rows, n) arrays of lanes and columns relative to the address; rows are those
        of this CTA (m, or m / 2 for cta_group 2).
    """
    rows = m // cta_group
    row, column = np.arange(rows, dtype=np.int64)[:, None], np.arange(n, dtype=np.int64)[None, :]
    zero = np.zeros((rows, n), np.int64)
    if rows == 128:
        return ("D" if cta_group == 1 else "A"), row + zero, column + zero
    if cta_group == 1:  # M = 64: 16 lanes of each partition
        return "F", PARTITION_LANES * (row // 16) + row % 16 + zero, column + zero
    return "B", row + 64 * (column // (n // 2)) + zero, column % (n // 2) + zero


def row_lanes(m: int, cta_group: int) -> Index:
    """Lane of each row of A when it comes from tensor memory (the first copy, where M = 128 of a pair needs two)."""
    _, lanes, _ = accumulator_layout(m, 2, cta_group)
    return lanes[:, 0]


def scale_cells(rows: int, *, split: bool = False, own: bool = False) -> tuple[Index, Index]:
    """Lane and column offsets of the scale factors of `rows` rows of A, or columns of B.

    Args:
        rows: M of this CTA for SFA; N for SFB.
        split: SFB of a pair with M = 128: each half of N lies in its own half of the lanes.
        own: SFA of a pair with M = 128: row r is needed only where the accumulator has it, in partitions r // 32 and
            r // 32 + 2 (inferred: cuDNN's MXFP8 backward has zeros in the other two).

    Returns:
        (copies, rows) lanes and columns: every scale is needed in 4 partitions of 32 lanes (2 for a pair with M = 128).
    """
    r = np.arange(rows, dtype=np.int64)
    if own:
        copies = r // PARTITION_LANES + 2 * np.arange(2, dtype=np.int64)[:, None]
        lanes = PARTITION_LANES * copies + r % PARTITION_LANES
        return lanes, np.broadcast_to(r // PARTITION_LANES, lanes.shape)
    half = rows // 2
    local = r % half if split else r
    first = 64 * (r // half) if split else np.zeros_like(r)
    copies = np.arange(2 if split else 4, dtype=np.int64)[:, None]
    lanes = first + PARTITION_LANES * copies + local % PARTITION_LANES
    return lanes, np.broadcast_to(local // PARTITION_LANES, lanes.shape)


FRAGMENT_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")


def fragment_registers(shape: str, number: int) -> int:
    """Registers per thread of a tcgen05.ld or .st (PTX ISA, "tcgen05.ld")."""
    return number * {"16x128b": 2, "16x256b": 4}.get(shape, 1)


def fragment_cells(shape: str, number: int, *, packed: bool = False, split_columns: int = 0) -> tuple[Index, Index]:
    """Lane and column offsets of tcgen05.ld and tcgen05.st.

    Args:
        shape: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2".
        number: the repeat count xN.
        packed: .pack::16b or .unpack::16b: a register holds the low halves of two neighbouring columns; the columns
            returned are those of its low half, the high half is in the next one.
        split_columns: immHalfSplitoff of 16x32bx2.

    Returns:
        (registers, 32) lanes and columns relative to the address.
    """
    j = np.arange(fragment_registers(shape, number), dtype=np.int64)[:, None]
    t = np.arange(32, dtype=np.int64)[None, :]
    zero = 0 * (j + t)
    scale = 2 if packed else 1
    if shape == "32x32b":
        return t + zero, j * scale + zero
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2) + zero, scale * (2 * j + t // 2 % 2)
    if shape == "16x128b":
        return t // 4 + 8 * (j % 2), scale * (4 * (j // 2) + t % 4)
    if shape == "16x256b":
        return t // 4 + 8 * (j // 2 % 2), scale * (8 * (j // 4) + 2 * (t % 4) + j % 2)
    if shape == "16x32bx2":
        return t % 16 + zero, j * scale + t // 16 * split_columns
    raise ValueError(f"shape {shape!r}; allowed: {', '.join(FRAGMENT_SHAPES)}")


COPY_SHAPES = {
    "128x256b": (128, 32), "4x256b": (4, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16),
}  # fmt: skip


def copy_lanes(shape: str, multicast: str) -> Index:
    """Destination lanes of each source row of tcgen05.cp, (copies, rows).

    Args:
        shape: "128x256b", "4x256b", "128x128b", "64x128b" or "32x128b".
        multicast: "", "warpx4", "warpx2::02_13" or "warpx2::01_23".
    """
    row = np.arange(COPY_SHAPES[shape][0], dtype=np.int64)
    if shape == "4x256b":
        return (PARTITION_LANES * row)[None, :]
    if multicast == "warpx4":
        return row + PARTITION_LANES * np.arange(4, dtype=np.int64)[:, None]
    if multicast == "warpx2::02_13":
        return row + 64 * np.arange(2, dtype=np.int64)[:, None]
    if multicast == "warpx2::01_23":
        return 64 * (row // 32) + row % 32 + PARTITION_LANES * np.arange(2, dtype=np.int64)[:, None]
    return row[None, :]
