"""Tensor memory of one CTA: 128 lanes x 512 columns of 32 bits, allocated in columns, poison until written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, OutOfBounds
from mxfp8fa.layouts.tmem import ALLOCATION_COLUMNS, COLUMNS, LANES


@dataclass
class TensorMemory:
    """Cells, their shadow (one bits are poison), and the allocations.

    Attributes:
        data: (128, 512) uint32.
        allocated: base column -> columns.
        smallest: columns of the latest allocation; a later one may not be larger.
        relinquished: whether the CTA gave up the right to allocate.
        owned: per column, whether it is allocated.
        requested, granted: a warp waits for so many columns; it may take the columns from this base (alloc of a pair).
    """

    data: np.ndarray = field(default_factory=lambda: np.zeros((LANES, COLUMNS), np.uint32))
    shadow: np.ndarray = field(default_factory=lambda: np.full((LANES, COLUMNS), 0xFFFFFFFF, np.uint32))
    allocated: dict[int, int] = field(default_factory=dict)
    smallest: int = COLUMNS
    relinquished: bool = False
    requested: int | None = None
    granted: int | None = None
    owned: np.ndarray = field(default_factory=lambda: np.zeros(COLUMNS, bool))

    def __post_init__(self) -> None:
        self.data_address, self.shadow_address = self.data.ctypes.data, self.shadow.ctypes.data

    def has_room(self, columns: int) -> bool:
        """Whether an allocation, if it is legal, can be made now."""
        if columns not in ALLOCATION_COLUMNS:
            raise IllegalOperation(
                f"tcgen05.alloc of {columns} columns: allowed are {', '.join(map(str, ALLOCATION_COLUMNS))}"
            )
        if self.relinquished:
            raise IllegalOperation("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
        if columns > self.smallest:
            raise IllegalOperation(
                f"tcgen05.alloc of {columns} columns after one of {self.smallest}: allocations must not grow"
            )
        return self._free_base(columns) is not None

    def _free_base(self, columns: int) -> int | None:
        """First fit at a multiple of the size; the ISA leaves the place open (inferred)."""
        bases = range(0, COLUMNS, columns)
        return next((b for b in bases if not self.owned[b : b + columns].any()), None)

    def allocate(self, columns: int) -> int:
        """Base column of a new allocation, after `has_room`."""
        base = self._free_base(columns)
        assert base is not None, "callers ask has_room first"
        self.owned[base : base + columns] = True
        self.allocated[base] = self.smallest = columns
        self.shadow[:, base : base + columns] = 0xFFFFFFFF
        return base

    def free(self, address: int, columns: int) -> None:
        """Undo an allocation."""
        if self.allocated.get(address) != columns:
            known = ", ".join(f"{c} columns at {b:#x}" for b, c in self.allocated.items()) or "nothing"
            raise IllegalOperation(f"tcgen05.dealloc of {columns} columns at {address:#x}: allocated is {known}")
        del self.allocated[address]
        self.owned[address : address + columns] = False

    def check(self, lanes: np.ndarray, columns: np.ndarray, what: str) -> None:
        """Raise unless all cells exist and their columns are allocated."""
        if lanes.size and (lanes.max() >= LANES or columns.max() >= COLUMNS or lanes.min() < 0 or columns.min() < 0):
            raise OutOfBounds(
                f"{what} reaches lane {int(lanes.max())}, column {int(columns.max())}: tensor memory has {LANES} x {COLUMNS}"
            )
        missing = ~self.owned[columns]
        if missing.any():
            raise OutOfBounds(
                f"{what} reaches column {int(np.asarray(columns)[missing].min())}, which is not allocated"
            )

    def read(self, lanes: np.ndarray, columns: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
        """Cells and their shadow."""
        self.check(lanes, columns, what)
        return self.data[lanes, columns], self.shadow[lanes, columns]

    def write(
        self, lanes: np.ndarray, columns: np.ndarray, values: np.ndarray, shadow: np.ndarray | int, what: str
    ) -> None:
        """Set cells."""
        self.check(lanes, columns, what)
        self.data[lanes, columns] = values
        self.shadow[lanes, columns] = shadow
