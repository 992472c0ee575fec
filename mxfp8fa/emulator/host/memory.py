"""Which global memory a call may touch: the storages of the tensors passed to it.

A tensor stands for its whole storage (other views of it share the allocation). A pointer made from a bare address says
nothing about its allocation and is therefore not covered; name such memory with `allow=`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mxfp8fa.emulator.elements import Elements

from .cuda_view import dlpack_extent, unwrap


class MemoryRange(NamedTuple):
    """Valid global memory: `size_bytes` from `address` on; `elements` of the tensor that brought it, where they are known."""

    address: int
    size_bytes: int
    writable: bool
    name: str
    elements: Elements | None = None


def covers(ranges: Iterable[MemoryRange], address: int, size_bytes: int) -> bool:
    """Whether one of the ranges holds all of the given bytes."""
    return any(r.address <= address and address + size_bytes <= r.address + r.size_bytes for r in ranges)


def memory_ranges(
    args: Sequence[Any], kwargs: dict[str, Any] | None = None, names: Sequence[str] = ()
) -> list[MemoryRange]:
    """Storages of all tensors in the arguments, each storage once, ordered by address.

    Args:
        args: positional arguments: tensors (torch, NumPy, `from_dlpack`, `as_cuda`, anything with `__dlpack__`), and
            tuples, lists, dicts and dataclasses of them. Everything else has no storage.
        kwargs: keyword arguments.
        names: names of the positional arguments; "args[i]" where it is too short.
    """
    named = [(names[i] if i < len(names) else f"args[{i}]", a) for i, a in enumerate(args)]
    found: dict[tuple[int, int], MemoryRange] = {}
    for name, value in [*named, *(kwargs or {}).items()]:
        for memory in _walk(value, name):
            if memory.size_bytes:
                found.setdefault(memory[:2], memory)
    return sorted(found.values(), key=lambda r: r[:4])


def allowed_range(memory: Any) -> list[MemoryRange]:
    """One entry of `allow=`: a tensor, or (address, size in bytes)."""
    if isinstance(memory, MemoryRange):
        return [memory]
    if isinstance(memory, tuple) and len(memory) == 2 and all(isinstance(n, int) for n in memory):
        return [MemoryRange(memory[0], memory[1], True, "allow")]
    ranges = list(_walk(memory, "allow"))
    if not ranges:
        raise ValueError(f"allow= takes tensors and (address, size in bytes) pairs, got {type(memory).__name__}")
    return ranges


def _walk(value: Any, name: str) -> Iterator[MemoryRange]:
    memory = _storage(value, name)
    if memory is not None:
        yield memory
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        fields = getattr(type(value), "_fields", None)
        for i, item in enumerate(value):
            yield from _walk(item, f"{name}.{fields[i]}" if fields else f"{name}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name, None), f"{name}.{field.name}")


def _storage(value: Any, name: str) -> MemoryRange | None:
    """The whole storage behind one tensor, or None when the value is no tensor."""
    value = unwrap(value)
    if isinstance(value, np.ndarray):
        return _numpy_storage(value, name)
    if hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        return MemoryRange(storage.data_ptr(), storage.nbytes(), True, name, Elements.of(value))
    extent = dlpack_extent(value)
    return None if extent is None else MemoryRange(*extent, True, name, Elements.of(value))


def _numpy_storage(array: np.ndarray, name: str) -> MemoryRange:
    """From an array's first to its last byte, of the array that owns the memory where that is an array."""
    writable, elements = array.flags.writeable, Elements.of(array)
    while isinstance(array.base, np.ndarray):
        array = array.base
    low, high = np.lib.array_utils.byte_bounds(array)
    return MemoryRange(low, high - low, writable, name, elements)
