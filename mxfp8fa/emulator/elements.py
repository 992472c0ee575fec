"""Which element of a tensor an address belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Elements:
    """Where the elements of a tensor lie.

    Attributes:
        address: of element (0, 0, ...).
        shape: per axis.
        strides_bytes: per axis.
        item_bytes: of one element.
    """

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, value: Any) -> Elements | None:
        """Of a NumPy array, a torch tensor or the DSL's tensor of one; None if elements are no whole bytes, or unknown."""
        if isinstance(value, np.ndarray):
            return cls(value.ctypes.data, value.shape, value.strides, value.itemsize)
        if hasattr(value, "untyped_storage"):
            size = value.element_size()
            return cls(value.data_ptr(), tuple(value.shape), tuple(s * size for s in value.stride()), size)
        if hasattr(value, "load_dltensor"):
            size, rest = divmod(value.element_type.width, 8)
            if not rest and value.stride is not None:
                return cls(value.data_ptr, tuple(value.shape), tuple(s * size for s in value.stride), size)
        return None

    def index(self, address: int) -> tuple[int, ...] | None:
        """The index of the element at an address, or None if there is no such element.

        Axes are peeled off from the largest stride to the smallest, which is right for tensors that do not overlap themselves.
        """
        left = address - self.address
        found = [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda i: -self.strides_bytes[i]):
            stride = self.strides_bytes[axis]
            if stride > 0 and self.shape[axis] > 1:
                found[axis], left = divmod(left, stride)
        inside = all(0 <= i < n for i, n in zip(found, self.shape, strict=True))
        return tuple(found) if inside and 0 <= left < self.item_bytes else None
