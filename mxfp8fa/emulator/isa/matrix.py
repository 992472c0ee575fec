"""ldmatrix and stmatrix, PTX ISA section 9.7.14.5: 8x8 matrices of 16-bit elements between shared memory and a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import Misaligned
from mxfp8fa.emulator.isa.registry import machine
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.warp import Outcome, Warp

NUMBERS = ("x1", "x2", "x4")
SPACE = ("shared", "shared::cta")


def _elements(trans: bool) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the low and high element that each lane holds, shape (2, 32).

    Lane t holds row t/4, columns 2(t%4) and 2(t%4)+1; transposed, rows 2(t%4) and 2(t%4)+1 of column t/4.
    """
    t = np.arange(32)
    outer = np.stack([t // 4, t // 4])
    inner = np.stack([2 * (t % 4), 2 * (t % 4) + 1])
    return (inner, outer) if trans else (outer, inner)


def _row_addresses(a: np.ndarray, matrix: int) -> np.ndarray:
    """Addresses of a matrix's 8 rows of 16 bytes: lanes 8i to 8i+7 supply those of matrix i."""
    rows = a[8 * matrix : 8 * matrix + 8]
    if (rows % np.uint64(16)).any():
        lane = 8 * matrix + int(np.nonzero(rows % np.uint64(16))[0][0])
        raise Misaligned(f"matrix row at {int(a[lane]):#x}: not a multiple of 16", lane=lane)
    return rows


@machine(
    "ldmatrix.sync.aligned.m8n8.num{.trans}{.ss}.b16 d:b32, [a]", num=NUMBERS, ss=SPACE, section="9.7.14.5 ldmatrix"
)
def ldmatrix(warp: Warp, bits: int, a: np.ndarray, *, num: str, trans: bool = False, ss: str | None = None) -> Any:
    """d = num 8x8 matrices of 16-bit elements; lanes 8i to 8i+7 give the row addresses of matrix i."""
    if not warp.converged(warp.start_bits, "ldmatrix"):
        return Outcome.BLOCKED
    row, column = _elements(trans)
    results = []
    for matrix in range(int(num[1:])):
        rows = _row_addresses(a, matrix)
        halves = []
        for half in range(2):
            where = rows[row[half]] + (2 * column[half]).astype(np.uint64)
            halves.append(access.load(warp, bits, ss or "generic", where, 2)[0])
        results.append(_pair(halves[0], halves[1]))
    return results


def _pair(low: access.Tracked, high: access.Tracked) -> access.Tracked:
    def join(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x.astype(np.uint32) | y.astype(np.uint32) << np.uint32(16)

    zero = np.zeros(32, np.uint16)
    shadow = None
    if low[1] is not None or high[1] is not None:
        shadow = join(zero if low[1] is None else low[1], zero if high[1] is None else high[1])
    return join(low[0], high[0]), shadow


@machine(
    "stmatrix.sync.aligned.m8n8.num{.trans}{.ss}.b16 [a], b:b32",
    num=NUMBERS,
    ss=SPACE,
    section="9.7.14.5 stmatrix",
    extra={"tracked": ("b",)},
)
def stmatrix(
    warp: Warp, bits: int, a: np.ndarray, b: Any, *, num: str, trans: bool = False, ss: str | None = None
) -> Any:
    """num 8x8 matrices of 16-bit elements = b; the inverse of ldmatrix."""
    if not warp.converged(warp.start_bits, "stmatrix"):
        return Outcome.BLOCKED
    row, column = _elements(trans)
    for matrix in range(int(num[1:])):
        rows = _row_addresses(a, matrix)
        value, shadow = b[matrix]
        for half in range(2):
            where = rows[row[half]] + (2 * column[half]).astype(np.uint64)
            part = (value >> np.uint32(16 * half)).astype(np.uint16)
            poison = None if shadow is None else (shadow >> np.uint32(16 * half)).astype(np.uint16)
            access.store(warp, bits, ss or "generic", where, [(part, poison)])
    return None
