"""cuTensorMapEncodeTiled: the driver's argument rules and the 64 meaningful bytes of a tiled tensor map.

Sources: CUDA Driver API, cuTensorMapEncodeTiled (rules); the bit positions are those that `tensormap.replace` compiles
to for sm_100a. Measured on an H200 (driver 580.159.04, 2026-11-29, tests/emulator/host/test_tensormap_driver.py): the
driver writes every field that exists on sm_90 at these positions and refuses every broken rule. Bits 3:0 (2 here, 0 on
sm_90) and 21 of word 2 (never set on sm_90) come from the maps that the CuTe DSL's host code writes inline for sm_100a;
types 13..15 and swizzles 4..6 exist from sm_100 on and are checked against nothing but those positions. Bytes
0x40..0x7F are zero here: `tensormap.replace` and the DSL leave them alone, the driver keeps derived sizes there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAP_BYTES = 128
_RANK_MAX = 5
_LARGE_TENSOR_BYTES = 128 * 1024  # from this footprint on, bit 21 of word 2 is set


@dataclass(frozen=True)
class _DataType:
    """A CUtensorMapDataType: name, bits of an element in global memory, PTX element type, tf32 flag, is it a float."""

    name: str
    bits: int
    ptx_type: int
    tf32: int = 0
    is_float: bool = False


_DATA_TYPES = (
    _DataType("UINT8", 8, 0),
    _DataType("UINT16", 16, 1),
    _DataType("UINT32", 32, 2),
    _DataType("INT32", 32, 3),
    _DataType("UINT64", 64, 4),
    _DataType("INT64", 64, 5),
    _DataType("FLOAT16", 16, 6, is_float=True),
    _DataType("FLOAT32", 32, 7, is_float=True),
    _DataType("FLOAT64", 64, 9, is_float=True),
    _DataType("BFLOAT16", 16, 10, is_float=True),
    _DataType("FLOAT32_FTZ", 32, 8, is_float=True),
    _DataType("TFLOAT32", 32, 7, tf32=1, is_float=True),
    _DataType("TFLOAT32_FTZ", 32, 8, tf32=1, is_float=True),
    _DataType("16U4_ALIGN8B", 4, 11),
    _DataType("16U4_ALIGN16B", 4, 12),
    _DataType("16U6_ALIGN16B", 6, 13),
)
_INTERLEAVE_32B = 2
# CUtensorMapSwizzle -> (swizzle mode, atomicity, span in bytes)
_SWIZZLES = ((0, 0, None), (1, 0, 32), (2, 0, 64), (3, 0, 128), (3, 1, 128), (3, 2, 128), (3, 3, 128))


@dataclass(frozen=True)
class TiledMap:
    """Arguments of cuTensorMapEncodeTiled, numbered as in the driver.

    Attributes:
        data_type: CUtensorMapDataType, 0..15.
        address: global address.
        dims: elements per dimension, innermost first.
        strides_bytes: distance of neighbours in dimensions 1.. (one fewer than `dims`).
        box: elements of the box per dimension.
        element_strides: traversal strides per dimension.
        interleave: 0 none, 1 16B, 2 32B.
        swizzle: 0 none, 1 32B, 2 64B, 3 128B, 4 128B_ATOM_32B, 5 128B_ATOM_32B_FLIP_8B, 6 128B_ATOM_64B.
        l2_promotion: 0 none, 1 64B, 2 128B, 3 256B.
        oob_fill: 0 zeros, 1 NaN.
    """

    data_type: int
    address: int
    dims: Sequence[int]
    strides_bytes: Sequence[int]
    box: Sequence[int]
    element_strides: Sequence[int]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 2
    oob_fill: int = 0

    def check(self) -> None:
        """Apply the driver's rules.

        Raises:
            ValueError: names the argument, its value and what the driver allows.
        """
        self._check_ranges()
        data_type = _DATA_TYPES[self.data_type]
        unit = 32 if self.interleave == _INTERLEAVE_32B or self.data_type in (14, 15) else 16
        _require(self.address % unit == 0, f"globalAddress = {self.address:#x}", f"a multiple of {unit}")
        for i, dim in enumerate(self.dims):
            _require(0 < dim <= 2**32, f"globalDim[{i}] = {dim}", "1..2^32")
        for i, stride in enumerate(self.strides_bytes):
            allowed = stride % unit == 0 and 0 <= stride < 2**40
            _require(allowed, f"globalStrides[{i}] = {stride} bytes", f"a multiple of {unit} below 2^40")
        for i, size in enumerate(self.box):
            _require(0 < size <= 256, f"boxDim[{i}] = {size}", "1..256")
        for i, stride in enumerate(self.element_strides):
            _require(1 <= stride <= 8, f"elementStrides[{i}] = {stride}", "1..8")
        self._check_inner_box(data_type)
        if self.oob_fill:
            _require(data_type.is_float, f"oobFill NaN with {data_type.name}", "a floating-point type")

    def _check_ranges(self) -> None:
        rank = len(self.dims)
        _require(1 <= rank <= _RANK_MAX, f"tensorRank = {rank}", f"1..{_RANK_MAX}")
        _require(0 <= self.data_type < len(_DATA_TYPES), f"tensorDataType = {self.data_type}", "0..15")
        _require(0 <= self.interleave <= 2, f"interleave = {self.interleave}", "0..2")
        _require(0 <= self.swizzle < len(_SWIZZLES), f"swizzle = {self.swizzle}", "0..6")
        _require(0 <= self.l2_promotion <= 3, f"l2Promotion = {self.l2_promotion}", "0..3")
        _require(self.oob_fill in (0, 1), f"oobFill = {self.oob_fill}", "0 or 1")
        _require(not self.interleave or rank >= 3, f"interleave with tensorRank = {rank}", "rank 3 or more")
        if self.interleave == _INTERLEAVE_32B:
            _require(self.swizzle == 1, f"swizzle = {self.swizzle} with interleave 32B", "swizzle 32B")

    def _check_inner_box(self, data_type: _DataType) -> None:
        """Rules of the innermost dimension."""
        if self.data_type in (14, 15):
            given = f"globalDim[0] = {self.dims[0]} with {data_type.name}"
            _require(self.dims[0] % 128 == 0, given, "a multiple of 128")
            _require(self.box[0] == 128, f"boxDim[0] = {self.box[0]} with {data_type.name}", "128")
        elif self.data_type == 13:
            _require(self.dims[0] % 2 == 0, f"globalDim[0] = {self.dims[0]} with {data_type.name}", "a multiple of 2")
        if self.interleave:
            return
        inner_bits = self.box[0] * data_type.bits
        if self.data_type not in (14, 15):
            given = f"boxDim[0] = {self.box[0]} of {data_type.bits} bits"
            _require(inner_bits % 128 == 0, given, "a multiple of 16 bytes")
        span_bytes = _SWIZZLES[self.swizzle][2]
        if span_bytes is not None:
            fits = inner_bits <= 8 * span_bytes
            _require(fits, f"an inner box of {inner_bits // 8} bytes", f"at most the swizzle's {span_bytes} bytes")

    def footprint_bytes(self) -> int:
        """Bytes from the first to one past the last element."""
        inner = -(-_DATA_TYPES[self.data_type].bits * self.dims[0] // 8)
        return inner + sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides_bytes, strict=True))

    def encode(self) -> bytes:
        """The 128 bytes of the map, after `check`."""
        self.check()
        data_type = _DATA_TYPES[self.data_type]
        mode, atomicity, _ = _SWIZZLES[self.swizzle]
        word2 = 2 | len(self.dims) - 1 << 4 | data_type.ptx_type << 7 | self.interleave << 11 | mode << 13
        word2 |= self.oob_fill << 15 | data_type.tf32 << 16 | self.l2_promotion << 17 | atomicity << 19
        word2 |= (self.footprint_bytes() >= _LARGE_TENSOR_BYTES) << 21
        strides = _padded([s >> 4 for s in self.strides_bytes], 4, 0)
        dims = _padded(self.dims, 5, 1)
        box = _padded(self.box, 5, 1)
        high = sum((s >> 32) << 4 * i for i, s in enumerate(strides))
        steps = sum(s - 1 << 3 * i for i, s in enumerate(self.element_strides))
        words = [word2, *(s & 0xFFFFFFFF for s in strides), high, *(d - 1 for d in dims), steps | box[0] - 1 << 24]
        words.append(sum(b - 1 << 8 * i for i, b in enumerate(box[1:])))
        return (struct.pack("<Q", self.address) + struct.pack(f"<{len(words)}I", *words)).ljust(MAP_BYTES, b"\0")


def _padded(values: Sequence[int], length: int, filler: int) -> list[int]:
    return [*values, *[filler] * (length - len(values))]


def _require(condition: bool, given: str, allowed: str) -> None:
    if not condition:
        raise ValueError(f"cuTensorMapEncodeTiled: {given}; allowed: {allowed}")
