"""Where a warp's registers lie: one row of 32 lanes per register, in one block of memory.

A row has the width of its register (a predicate: one byte per lane). Beside the rows there is one word per register
whose bits name the lanes that hold poison. Compiled code reads and writes rows; the Python steps see `RegisterRows` and
`RegisterShadows`, which behave like the lists of `machine.warp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mxfp8fa.emulator.machine.memory import SHARED_RANK_SHIFT
from mxfp8fa.emulator.machine.warp import FULL, bits_of, lanes_of

ALIGNMENT_BYTES = 64


class RegisterLayout:
    """Byte offsets of the rows of a kernel's registers.

    Attributes:
        offsets: per register.
        dtypes, shapes, sizes: of a row; sizes in bytes.
        size_bytes: of all rows.
        zero_slot, rank_slot: of two constant rows after the registers: zero, and the shared address of the CTA's memory.
    """

    def __init__(self, registers: Sequence[np.ndarray]):
        blank = [*registers, np.zeros(32, np.uint64), np.zeros(32, np.uint32)]
        self.dtypes = [b.dtype for b in blank]
        self.shapes = [b.shape for b in blank]
        self.sizes = [b.nbytes for b in blank]
        self.offsets: list[int] = []
        at = 0
        for b in blank:
            self.offsets.append(at)
            at += -(-b.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.size_bytes = at
        self.zero_slot, self.rank_slot = (self.slot(len(blank) - 2 + i) for i in range(2))

    def slot(self, register: int) -> int:
        """How compiled functions are told of a register: its number << 32 | the offset of its row."""
        return register << 32 | self.offsets[register]


class RegisterRows:
    """The registers of one warp as a list of arrays; reading copies, so an array never changes behind its reader."""

    def __init__(self, layout: RegisterLayout, rank: int = 0, memory: np.ndarray | None = None):
        """`memory`: that of a warp that has exited, to be used again."""
        self._layout = layout
        if memory is None:
            raw = np.zeros(layout.size_bytes + ALIGNMENT_BYTES, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT_BYTES
            memory = raw[start : start + layout.size_bytes]
        else:
            memory.fill(0)
        self.memory = memory
        self.address = self.memory.ctypes.data
        self._rows: list[np.ndarray | None] = [None] * len(layout.offsets)
        self.row(len(layout.offsets) - 1)[...] = rank << SHARED_RANK_SHIFT

    def row(self, register: int) -> np.ndarray:
        """The row itself."""
        found = self._rows[register]
        if found is None:
            dtype, shape = self._layout.dtypes[register], self._layout.shapes[register]
            start = self._layout.offsets[register]
            row = self.memory[start : start + self._layout.sizes[register]].view(dtype)
            found = self._rows[register] = row if len(shape) == 1 else row.reshape(shape)
        return found

    def __getitem__(self, register: int) -> np.ndarray:
        return self.row(register).copy()

    def __setitem__(self, register: int, value: np.ndarray) -> None:
        self.row(register)[...] = value

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))


class RegisterShadows:
    """The poison of one warp's registers as a list of arrays or None.

    Attributes:
        lanes: per register the lanes that hold poison, one bit each.
    """

    def __init__(self, layout: RegisterLayout):
        self._layout = layout
        self.lanes = np.full(len(layout.offsets), FULL, np.uint32)
        self.lanes[-2:] = 0
        self.address = self.lanes.ctypes.data
        self._words = self.lanes.data
        self._partial: dict[int, np.ndarray] = {}  # shadows other than all ones in the lanes named

    def __getitem__(self, register: int) -> np.ndarray | None:
        lanes = self._words[register]
        if not lanes:
            return None
        mask = lanes_of(lanes)
        dtype, shape = self._layout.dtypes[register], self._layout.shapes[register]
        if len(shape) > 1:
            mask = mask[:, None]
        known = self._partial.get(register)
        ones = ~np.zeros(shape, dtype)
        return np.where(mask, ones if known is None else known, np.zeros((), dtype))

    def __setitem__(self, register: int, shadow: np.ndarray | None) -> None:
        self._partial.pop(register, None)
        if shadow is None:
            self._words[register] = 0
            return
        bad = shadow != 0
        self._words[register] = bits_of(bad.any(axis=1) if bad.ndim > 1 else bad)
        if (self._words[register] and not np.array_equal(shadow[bad], (~np.zeros_like(shadow))[bad])) or bad.ndim > 1:
            self._partial[register] = shadow.copy()

    def merge(self, register: int, shadow: np.ndarray | None, bits: int) -> None:
        """Set the shadow of the lanes in bits."""
        old = self._words[register]
        if shadow is None:
            self._words[register] = old & ~bits & FULL
            return
        mask = lanes_of(bits)
        before = self[register]
        self[register] = np.where(mask, shadow, np.zeros_like(shadow) if before is None else before)

    def __len__(self) -> int:
        return len(self.lanes)
