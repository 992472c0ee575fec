"""Block-scaled operands made by hand: quantised values and scales packed as the tensor core wants them."""

from __future__ import annotations

import numpy as np


def pack_scales(scale_e8m0: np.ndarray, padding: int = 0) -> np.ndarray:
    """(..., rows, columns) scale codes in 128x4 atoms, (..., row tiles, column tiles, 512).

    Byte r % 32 * 16 + r % 128 // 32 * 4 + c % 4 of atom (r // 128, c // 4) belongs to row r, column c.
    """
    *lead, rows, columns = scale_e8m0.shape
    packed = np.full((*lead, -(-rows // 128), -(-columns // 4), 512), padding, np.uint8)
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    packed[..., r // 128, c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scale_e8m0
    return packed
