"""Tensors in global memory and their boxes, element by element, as the ISA describes tiled copies; and PTX for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mxfp8fa.emulator.host import TiledMap
from tests.emulator.tensor.kernels import SM, aligned, copy_out, run, wait
from tests.layouts.cute_layout import swizzled

# CUtensorMapDataType: bits of an element in global memory, bytes of 16 elements in shared memory.
U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ, U4, U4_PADDED, U6_PADDED = range(16)
BITS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6)
FLOATS = (F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ)
SWIZZLE_NAMES = {0: "none", 1: "32B", 2: "64B", 3: "128B", 4: "128B, 32-byte atoms", 6: "128B, 64-byte atoms"}
UNTOUCHED = 0xEE


@dataclass
class Tensor:
    """A tensor of random bytes with rows padded to 16 bytes, some space before and after, and its map."""

    memory: np.ndarray
    map: TiledMap

    @property
    def start(self) -> int:
        """Offset of the tensor in `memory`."""
        return self.map.address - self.memory.ctypes.data


def tensor(
    data_type: int,
    dims: tuple[int, ...],
    box: tuple[int, ...],
    *,
    steps: tuple[int, ...] = (),
    seed: int = 0,
    **options: int,
) -> Tensor:
    """Rows take their bytes rounded up to 16 (32 for padded types) and 16 more, so that no two strides are alike."""
    unit = 32 if data_type >= U4_PADDED else 16
    pitch, strides = -(-dims[0] * BITS[data_type] // 8 // unit) * unit + unit, []
    for d in dims[1:]:
        strides.append(pitch)
        pitch = pitch * d + unit
    memory = aligned(np.random.default_rng(seed).integers(0, 256, pitch + 512, np.uint8), 128)
    address = memory.ctypes.data + 256
    return Tensor(memory, TiledMap(data_type, address, dims, strides, box, steps or (1,) * len(dims), **options))


def box_counts(m: TiledMap) -> tuple[int, ...]:
    """Elements that a copy moves in each dimension; the step of dimension 0 is ignored without interleave (CUDA Driver API)."""
    steps = (1, *m.element_strides[1:])
    return tuple(-(-b // s) for b, s in zip(m.box, steps, strict=True))


def elements(m: TiledMap, at: tuple[int, ...], rows: tuple[int, ...] | None = None) -> list[tuple[int, ...] | None]:
    """Coordinates of a box's elements in the order of shared memory, None where they are outside of the tensor."""
    counts = box_counts(m) if rows is None else (m.box[0], 4)
    steps = (1, *m.element_strides[1:])
    found: list[tuple[int, ...] | None] = []
    for index in product(*(range(n) for n in reversed(counts))):
        place = [a + i * s for a, i, s in zip(at, reversed(index), steps, strict=True)]
        if rows is not None:
            place[1] = rows[index[0]]
        inside = all(0 <= p < d for p, d in zip(place, m.dims, strict=True))
        found.append(tuple(place) if inside else None)
    return found


def bit_of(m: TiledMap, place: tuple[int, ...]) -> int:
    """First bit of an element, counted from the tensor's address."""
    return place[0] * BITS[m.data_type] + 8 * sum(p * s for p, s in zip(place[1:], m.strides_bytes, strict=True))


def row_bytes(m: TiledMap) -> tuple[int, int]:
    """Bytes of a row of a box in shared memory, and to the next row: narrow swizzled rows take a row of the pattern each."""
    length = m.box[0] if m.data_type in (U4_PADDED, U6_PADDED) else m.box[0] * BITS[m.data_type] // 8
    return length, max(length, {0: 0, 1: 32, 2: 64}.get(m.swizzle, 128))


def shared_bit(m: TiledMap, number: int) -> int:
    """First bit of the box's element `number`, before swizzling: padded types put 16 elements into 16 bytes."""
    row, column = divmod(number, m.box[0])
    start = 8 * row * row_bytes(m)[1]
    if m.data_type in (U4_PADDED, U6_PADDED):
        return start + column // 16 * 128 + column % 16 * BITS[m.data_type]
    return start + column * BITS[m.data_type]


def shared_size(m: TiledMap, count: int) -> int:
    """Bytes of shared memory for `count` elements."""
    return count // m.box[0] * row_bytes(m)[1]


def transferred(m: TiledMap, count: int) -> int:
    """Bytes that are counted on the mbarrier: those of the elements, without padding."""
    return count * BITS[m.data_type] // 8


def loaded(
    t: Tensor, at: tuple[int, ...], *, start: int = SM, rows: tuple[int, ...] | None = None, fill: int = 0
) -> np.ndarray:
    """Shared memory from `start` on after a load, UNTOUCHED where nothing is written; fill: a byte pair for outside."""
    m, bits = t.map, BITS[t.map.data_type]
    places = elements(m, at, rows)
    size = shared_size(m, len(places))
    dense = np.unpackbits(np.full(size, UNTOUCHED, np.uint8), bitorder="little")
    memory = np.unpackbits(t.memory[t.start :], bitorder="little")
    outside = np.unpackbits(np.resize(np.array([fill & 0xFF, fill >> 8], np.uint8), 8), bitorder="little")
    for number, place in enumerate(places):
        to = shared_bit(m, number)
        source = outside if place is None else memory[bit_of(m, place) :]
        dense[to : to + bits] = source[:bits]
    flat = np.packbits(dense, bitorder="little")
    found = np.full_like(flat, UNTOUCHED)
    for offset in range(size):
        found[swizzled(start + offset, SWIZZLE_NAMES[m.swizzle]) - start] = flat[offset]
    return found


FILL_SHARED = f"""
 {{ mov.b32 %a0, {UNTOUCHED * 0x01010101}; mad.lo.u32 %a1, %r1, 16, %r3; mov.b32 %a2, 0;
 FILLING: st.shared.v4.b32 [%a1], {{%a0, %a0, %a0, %a0}}; add.u32 %a1, %a1, 2048; add.u32 %a2, %a2, 2048;
 setp.lt.u32 %p0, %a2, ALL; @%p0 bra FILLING;
 fence.proxy.async; bar.sync 0; }}
"""


def fill_shared(size_bytes: int) -> str:
    """Write UNTOUCHED to the first bytes of `sm` (rounded up to 2048)."""
    return FILL_SHARED.replace("ALL", str(size_bytes))


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, at)) + "}"


def load_text(
    m: TiledMap, at: tuple[int, ...], *, to: str = "%r3", mode: str = "", barrier: str = "%r4", guard: str = "@%leader "
) -> str:
    """The load instruction."""
    name = f"cp.async.bulk.tensor.{len(m.dims)}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    return f" {guard}{name} [{to}], [%map0, {coordinates(at)}], [{barrier}];\n"


def expect(size_bytes: int, barrier: str = "%r4", guard: str = "@%leader ") -> str:
    return f" {guard}mbarrier.arrive.expect_tx.shared.b64 _, [{barrier}], {size_bytes};\n"


def load(
    t: Tensor,
    at: tuple[int, ...],
    *,
    offset: int = 0,
    rows: tuple[int, ...] | None = None,
    size: int = 0,
    **options: Any,
) -> np.ndarray:
    """Shared memory (from `sm` + offset on) after a kernel loaded one box there."""
    count = len(elements(t.map, at, rows))
    size = size or shared_size(t.map, count)
    whole = -(-(offset + size) // 2048) * 2048
    out = np.zeros(whole, np.uint8)
    mode, where = ("", at) if rows is None else (".tile::gather4", (at[0], *rows))
    body = fill_shared(whole) + expect(transferred(t.map, count)) + f" add.u32 %b0, %r3, {offset};\n"
    body += load_text(t.map, where, to="%b0", mode=mode) + wait() + copy_out(whole)
    run(body, out, maps=options.pop("maps", [t.map]), allow=(t.memory,), shared_bytes=max(whole, 4096), **options)
    assert (out[:offset] == UNTOUCHED).all()
    return out[offset : offset + size]


def with_map(t: Tensor, **changes: Any) -> Tensor:
    return Tensor(t.memory, replace(t.map, **changes))
