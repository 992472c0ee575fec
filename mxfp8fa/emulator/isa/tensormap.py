"""Tensor maps edited on the device, PTX ISA sections 9.7.9.28 and 9.7.13: tensormap.replace and tensormap.cp_fenceproxy."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation
from mxfp8fa.emulator.isa.registry import machine
from mxfp8fa.emulator.isa.tcgen05_memory import whole_warp
from mxfp8fa.emulator.machine import access, tensor_map
from mxfp8fa.emulator.machine.warp import Outcome, Warp, indices_of

_FIELDS = {  # field -> (byte offset of each ordinal's word, bit, width, bits added to the value)
    "rank": (0x08, 4, 3, 0), "elemtype": (0x08, 7, 4, 0), "interleave_layout": (0x08, 11, 2, 0), "swizzle_mode": (0x08, 13, 2, 0),
    "fill_mode": (0x08, 15, 1, 0), "swizzle_atomicity": (0x08, 19, 2, 0),
}  # fmt: skip


@machine("tensormap.replace.tile.field{.ss}.b1024.type [a], b{, c}", field=("global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode"),
         ss=("global", "shared::cta"), type=("b32", "b64"), section="9.7.9.28 tensormap.replace", confidence="inferred")  # fmt: skip
def replace(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: Any = None, *, field: str, type: str, ss: str | None = None
) -> None:
    """Set a field of the tensor map at [a] to the last operand; box_dim and the like take an ordinal first."""
    ordinal = np.zeros(32, np.uint32) if c is None else b
    value = b if c is None else c
    for lane in indices_of(bits):
        for offset, bit, width, number in _field_places(field, int(ordinal[lane]), int(value[lane])):
            where = np.full(32, int(a[lane]) + offset, np.uint64)
            one = 1 << int(lane)
            ((old, _),) = access.load(warp, one, ss or "generic", where, 4)
            keep = ~np.uint32(((1 << width) - 1) << bit)
            new = old & keep | np.uint32((number & ((1 << width) - 1)) << bit)
            access.store(warp, one, ss or "generic", where, [(new, None)])


def _field_places(field: str, ordinal: int, value: int) -> list[tuple[int, int, int, int]]:
    """(byte offset of a word, first bit, width, number) to write for a field."""
    if field in _FIELDS:
        offset, bit, width, add = _FIELDS[field]
        return [(offset, bit, width, value + add)]
    if field == "global_address":
        return [(0, 0, 32, value & 0xFFFFFFFF), (4, 0, 32, value >> 32)]
    if field == "global_dim":
        return [(0x20 + 4 * ordinal, 0, 32, value - 1)]
    if field == "global_stride":
        return [(0x0C + 4 * ordinal, 0, 32, value >> 4), (0x1C, 4 * ordinal, 4, value >> 36)]
    if field == "element_stride":
        return [(0x34, 3 * ordinal, 3, value - 1)]
    return [(0x34, 24, 8, value - 1)] if ordinal == 0 else [(0x38, 8 * (ordinal - 1), 8, value - 1)]


@machine(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [d], [a], b:u32",
    scope=("cta", "cluster", "gpu", "sys"),
    section="9.7.13 tensormap.cp_fenceproxy",
)
def cp_fenceproxy(warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, *, scope: str) -> Outcome | None:
    """Copy the b = 128 bytes of a tensor map from shared [a] to global [d]."""
    if not whole_warp(warp, bits, "tensormap.cp_fenceproxy"):
        return Outcome.BLOCKED
    lane = int(indices_of(bits)[0])
    if int(b[lane]) != tensor_map.MAP_BYTES:
        raise IllegalOperation(f"tensormap.cp_fenceproxy of {int(b[lane])} bytes: 128 are needed")
    one = 1 << lane
    for i in range(0, tensor_map.MAP_BYTES, 8):
        words = access.load(warp, one, "shared::cta", a + np.uint64(i), 8)
        access.store(warp, one, "global", d + np.uint64(i), words)
    return None
