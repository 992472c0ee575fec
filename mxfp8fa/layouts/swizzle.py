"""Shared-memory swizzles: which 16-byte chunk of a row really holds the data.

A swizzle XORs some bits of the absolute shared address with higher ones (PTX ISA, "Shared Memory Swizzling Modes"; as
CuTe writes it, Swizzle<bits, base, shift>). TMA and tensor core apply the same function, so kernels see plain tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

_Address = TypeVar("_Address", int, np.ndarray)


@dataclass(frozen=True)
class Swizzle:
    """address ^ ((address >> shift) & mask), the mask being `bits` ones from bit `base` on.

    Attributes:
        name: as the PTX ISA names it.
        span_bytes: row length that the pattern belongs to; 16 for none.
    """

    name: str
    bits: int
    base: int
    shift: int
    span_bytes: int

    def __call__(self, address: _Address) -> _Address:
        """The address where data of a plain tile's `address` lies."""
        mask = ((1 << self.bits) - 1) << self.base
        return address ^ ((address >> self.shift) & mask)

    @property
    def repeat_bytes(self) -> int:
        """The pattern repeats after this many bytes; tiles start at multiples of it."""
        return 1 << (self.base + self.shift + self.bits) if self.bits else 16


NONE = Swizzle("none", 0, 4, 3, 16)
SW32 = Swizzle("32B", 1, 4, 3, 32)
SW64 = Swizzle("64B", 2, 4, 3, 64)
SW128 = Swizzle("128B", 3, 4, 3, 128)
SW128_ATOM32 = Swizzle("128B, 32-byte atoms", 2, 5, 2, 128)
SW128_ATOM64 = Swizzle("128B, 64-byte atoms", 1, 6, 1, 128)
