"""Kernel parameters from Python values, for PTX that comes without host code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from mxfp8fa.emulator.host.memory import MemoryRange, allowed_range
from mxfp8fa.emulator.ptx.module import Kernel
from mxfp8fa.emulator.ptx.syntax import Variable

_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def pack_parameters(kernel: Kernel, values: Sequence[Any]) -> tuple[bytes, list[MemoryRange]]:
    """The parameter block for a kernel, and the global memory that the values bring with them.

    Args:
        kernel: whose `.param` list says what is needed.
        values: one per parameter: an array or tensor (its address; its storage becomes valid memory), an integer, a
            float (for .f16 .f32 .f64, or by size for .b32 .b64), or bytes of exactly the parameter's size.

    Raises:
        ValueError: a wrong number of values, or one that does not fit its parameter.
    """
    if len(values) != len(kernel.params):
        names = ", ".join(f".{p.type} {p.name}" for p in kernel.params) or "none"
        raise ValueError(
            f"kernel {kernel.name} has {len(kernel.params)} parameters ({names}), {len(values)} were given"
        )
    block = bytearray(kernel.param_bytes)
    ranges: list[MemoryRange] = []
    for i, (parameter, value) in enumerate(zip(kernel.params, values, strict=True)):
        data, memory = _pack(parameter, value, f"parameter {i} ({parameter.name})")
        ranges += memory
        start = parameter.offset_bytes or 0
        block[start : start + len(data)] = data
    return bytes(block), ranges


def _pack(parameter: Variable, value: Any, what: str) -> tuple[bytes, list[MemoryRange]]:
    size = parameter.size_bytes
    if isinstance(value, bytes | bytearray):
        if len(value) != size:
            raise ValueError(f"{what} takes {size} bytes, {len(value)} were given")
        return bytes(value), []
    if isinstance(value, bool | int | np.integer | np.bool_):
        number = int(value)
        if not -(1 << (8 * size - 1)) <= number < 1 << 8 * size:
            raise ValueError(f"{what} has {size} bytes: {number} does not fit")
        return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little"), []
    if isinstance(value, float | np.floating):
        form = _FLOATS.get(parameter.type) or {4: "<f", 8: "<d"}.get(size)
        if form is None or parameter.type[0] in "us":
            raise ValueError(f"{what} is .{parameter.type}: a float does not fit")
        try:
            return struct.pack(form, float(value)), []
        except OverflowError:
            raise ValueError(f"{what} has {size} bytes: the float {value} does not fit") from None
    if not (hasattr(value, "data_ptr") or isinstance(value, np.ndarray)):
        allowed = "an array, a tensor, an integer, a float or bytes"
        raise ValueError(f"{what} was given as {type(value).__name__}: allowed are {allowed}")
    if size != 8:
        raise ValueError(f"{what} has {size} bytes: the address of an array needs 8")
    address = value.ctypes.data if isinstance(value, np.ndarray) else int(value.data_ptr())
    return address.to_bytes(8, "little"), [r._replace(name=what) for r in allowed_range(value)]
