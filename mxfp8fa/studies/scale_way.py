"""One 128x4 atom of scale factors on its way through the compiled kernel of step 3, memory by memory.

Needs the extra `kernels`: the kernel is compiled, and run in the emulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS
from mxfp8fa.numerics import MXTensor


@dataclass(frozen=True)
class ScaleWay:
    """Where the scales of A's one atom were found. Every byte is named by the scale it is: 4 row + block.

    Attributes:
        gmem: (512,) the packed atom as the kernel gets it.
        smem: (512,) the atom in shared memory.
        smem_offset: where it begins there.
        tmem: (128, 4, 4) lane, column and byte of the columns of tensor memory that belong to it.
        first_column: of these columns.
    """

    gmem: NDArray[np.int64]
    smem: NDArray[np.int64]
    smem_offset: int
    tmem: NDArray[np.int64]
    first_column: int


def follow_atom() -> ScaleWay:
    """Run step 3 on one tile, twice, and pick up A's scales in every memory that the CTA leaves behind.

    A byte has too few values to name 512 scales: in the first run every scale code is its row, in the second its block.
    """
    row, block = np.arange(ATOM_ROWS)[:, None], np.arange(ATOM_COLUMNS)[None, :]
    by_row, by_block = _run(row + 0 * block), _run(0 * row + block)
    offset = by_row.smem.tobytes().find(by_row.gmem.tobytes())
    atom = slice(offset, offset + ATOM_BYTES)

    def named(rows: NDArray[np.uint8], blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
        return ATOM_COLUMNS * rows.astype(np.int64) + blocks

    return ScaleWay(
        named(by_row.gmem, by_block.gmem),
        named(by_row.smem[atom], by_block.smem[atom]),
        offset,
        named(by_row.tmem, by_block.tmem),
        by_row.first_column,
    )


@dataclass(frozen=True)
class _Memories:
    """The atom in global memory, all of shared memory, and the columns (128, 4, 4) of one run."""

    gmem: NDArray[np.uint8]
    smem: NDArray[np.uint8]
    tmem: NDArray[np.uint8]
    first_column: int


def _run(scale: NDArray[np.int64]) -> _Memories:
    """Step 3 on ones, with these (128, 4) scale codes for A and 2^0 for B."""
    import torch

    from mxfp8fa.emulator import run
    from mxfp8fa.emulator.remains import MemoryAtExit
    from mxfp8fa.kernels import MXOperand, compile_kernel
    from mxfp8fa.kernels.steps import step3_block_scaled as step

    ones = np.full((ATOM_ROWS, step.TILE_K), 0x38, np.uint8)
    a = MXOperand.from_mx_tensor(MXTensor(ones, scale.astype(np.uint8), axes=(1,)))
    b = MXOperand.from_mx_tensor(MXTensor(ones, np.full(scale.shape, 127, np.uint8), axes=(1,)))
    arguments = step.arguments(a, b, torch.zeros(ATOM_ROWS, ATOM_ROWS))
    remains = MemoryAtExit()
    run(compile_kernel(step.block_scaled, *arguments), *arguments, trace=remains)
    columns = step.TMEM["SFA"].start
    cells = remains.tmem[0, 0, 0].values[:, columns : columns + step.ATOM_COLUMNS].copy()
    bytes_of_cells = cells.view(np.uint8).reshape(ATOM_ROWS, step.ATOM_COLUMNS, 4)
    return _Memories(a.scales["tokens"].numpy().reshape(-1), remains.smem[0, 0, 0].values, bytes_of_cells, columns)


WRONG_PLACES = (
    "rows 32 apart swapped",
    "neighbouring rows swapped",
    "blocks of K reversed",
    "rows and blocks transposed",
    "tiles of K swapped",
    "tiles of rows swapped",
)


def misplace(packed: Any, way: str) -> Any:
    """Packed scales, wrongly placed: what an error in an offset or a layout would make of them.

    Args:
        packed: (tiles of rows, tiles of K, 512), a torch tensor.
        way: one of WRONG_PLACES.

    Raises:
        ValueError: another way.
    """
    if way not in WRONG_PLACES:
        raise ValueError(f"way = {way!r}; allowed: {', '.join(WRONG_PLACES)}")
    atoms = packed.reshape(*packed.shape[:2], 32, 4, 4)  # row % 32, row // 32, block of K
    wrong = {
        "rows 32 apart swapped": atoms.flip(3),
        "neighbouring rows swapped": atoms.roll(1, 2),
        "blocks of K reversed": atoms.flip(4),
        "rows and blocks transposed": atoms.transpose(3, 4),
        "tiles of K swapped": atoms.flip(1),
        "tiles of rows swapped": atoms.flip(0),
    }[way]
    return wrong.contiguous().reshape(packed.shape)
