"""Tensor maps decoded, and the elements of a box: what a TMA instruction reads or writes.

Encoding (first 64 of 128 bytes; the rest may be garbage): inferred from `tensormap.replace` as ptxas compiles it for
sm_100a and from maps that host code writes; see `host.tensormap` for the other direction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, OutOfBounds
from mxfp8fa.emulator.machine.memory import GlobalMemory
from mxfp8fa.layouts.swizzle import NONE, SW32, SW64, SW128, SW128_ATOM32, SW128_ATOM64, Swizzle

MAP_BYTES = 128
DECODED_BYTES = 64
# Element type code -> name, bits in global memory.
ELEMENT_TYPES = {
    0: ("u8", 8), 1: ("u16", 16), 2: ("u32", 32), 3: ("s32", 32), 4: ("u64", 64), 5: ("s64", 64), 6: ("f16", 16), 7: ("f32", 32),
    8: ("f32", 32), 9: ("f64", 64), 10: ("bf16", 16), 11: ("b4x16", 4), 12: ("b4x16_p64", 4), 13: ("b6x16_p32", 6),
}  # fmt: skip
_SWIZZLES = {(0, 0): NONE, (1, 0): SW32, (2, 0): SW64, (3, 0): SW128, (3, 1): SW128_ATOM32, (3, 3): SW128_ATOM64}
_NAN_FILL = 0x7FF77FF77FF77FF7  # outside elements when the map says NaN: 0x7FF7 in every 16 bits (measured on an H200)
_TF32_NAN = np.uint32(0x7FFFE000)  # what a tf32 load makes of every NaN (measured on an H200)
ADDRESS_LIMIT = 1 << 57  # virtual addresses of a GPU have at most 57 bits
CHUNK_BYTES = 16  # TMA moves 16-byte chunks: where a copy may start, and what a store at the end of a row writes


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map. Dimension 0 is the innermost; sizes are in elements, strides in bytes.

    4-bit packed tensors are kept as bytes (two elements each); padded ones in groups of 16 elements.
    """

    address: int
    type: str
    element_bytes: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle
    fill: int
    flush: bool
    tf32: bool
    unit_elements: int = 1
    padded_bytes: int = 0

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def box_counts(self) -> tuple[int, ...]:
        """Elements (or units) of the box per dimension: every element_strides-th of it."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides, strict=True))


@lru_cache(maxsize=256)
def decode(raw: bytes) -> TensorMap:
    """The map in the first 64 bytes.

    Raises:
        IllegalOperation: names the field, what it holds and what is allowed.
    """
    address, word = struct.unpack_from("<QI", raw)
    low_strides = struct.unpack_from("<4I", raw, 0x0C)
    (high,) = struct.unpack_from("<I", raw, 0x1C)
    sizes = struct.unpack_from("<5I", raw, 0x20)
    (steps,) = struct.unpack_from("<I", raw, 0x34)
    boxes = (raw[0x37], *raw[0x38:0x3C])
    rank, code = (word >> 4 & 7) + 1, word >> 7 & 15
    swizzle = _SWIZZLES.get((word >> 13 & 3, word >> 19 & 3))
    problems = [
        (rank > 5, f"rank {rank}; allowed: 1 to 5"),
        (code not in ELEMENT_TYPES, f"element type {code}; allowed: 0 to 13"),
        (
            swizzle is None,
            f"swizzle mode {word >> 13 & 3}, atomicity {word >> 19 & 3}, which the emulator does not have",
        ),
        (word >> 11 & 3 != 0, f"interleave {word >> 11 & 3}; the emulator has tile mode without interleave"),
        (word & 0xF != 2, f"kind bits {word & 15:#x} in word 2 (no tiled tensor map was written here?)"),
        (address % 16 != 0, f"global address {address:#x}, not a multiple of 16"),
    ]
    for wrong, text in problems:
        if wrong:
            raise IllegalOperation(f"tensor map with {text}")
    assert swizzle is not None
    name, bits = ELEMENT_TYPES[code]
    strides = tuple((low | (high >> 4 * i & 15) << 32) << 4 for i, low in enumerate(low_strides))[: rank - 1]
    dims = [s + 1 for s in sizes[:rank]]
    box = [b + 1 for b in boxes[:rank]]
    steps_ = [(steps >> 3 * i & 7) + 1 for i in range(rank)]
    element_bytes, unit, padded = bits // 8, 1, 0
    if bits < 8:
        unit = 2 if name == "b4x16" else 16
        element_bytes, padded = unit * bits // 8, 0 if name == "b4x16" else 16
        if box[0] % unit or dims[0] % unit:
            raise IllegalOperation(
                f"tensor map of {name}: box {box[0]} and size {dims[0]} of dimension 0 must be multiples of {unit}"
            )
        box[0] //= unit
        dims[0] //= unit
    steps_[0] = 1  # ignored without interleave
    return TensorMap(
        address, name, element_bytes, tuple(dims), (element_bytes, *strides), tuple(box), tuple(steps_), swizzle,
        _NAN_FILL if word >> 15 & 1 else 0, code == 8, bool(word >> 16 & 1), unit, padded,
    )  # fmt: skip


@dataclass(frozen=True)
class Box:
    """The elements of one box: global addresses and which of them are inside the tensor; shape (d4, .., d1, d0).

    `whole`: all of them are inside, and the box is dense.
    """

    addresses: np.ndarray
    inside: np.ndarray
    whole: bool = False


@lru_cache(maxsize=64)
def _whole_box(m: TensorMap) -> Box:
    """A box that lies inside, with addresses relative to its first element."""
    addresses: np.ndarray = np.array(0, np.int64)
    for count, stride in zip(reversed(m.box_counts), reversed(m.strides_bytes), strict=True):
        addresses = addresses[..., None] + np.arange(count, dtype=np.int64) * stride
    return Box(addresses, np.ones(addresses.shape, bool), True)


@lru_cache(maxsize=512)
def chunks_of(m: TensorMap, start: int) -> tuple[np.ndarray, np.ndarray] | None:
    """How a whole box moves in chunks of 16 bytes to shared offset `start`: relative global addresses and offsets.

    None where elements are not just copied, or rows are not whole chunks.
    """
    if m.tf32 or m.padded_bytes or m.element_bytes not in (1, 2, 4, 8):
        return None
    per_chunk, box = CHUNK_BYTES // m.element_bytes, _whole_box(m)
    if box.addresses.shape[-1] % per_chunk:
        return None
    source = box.addresses.reshape(-1, per_chunk)
    target = shared_offsets(m, start, box).reshape(-1, per_chunk)
    if (np.diff(target, axis=1) != m.element_bytes).any() or ((source[:, 0] | target[:, 0]) % CHUNK_BYTES).any():
        return None
    return source[:, 0].copy(), target[:, 0] // CHUNK_BYTES


def counted_bytes(m: TensorMap, box: Box) -> int:
    """Bytes that a load completes on its mbarrier: the whole box, also where it is out of bounds, without padding."""
    return box.inside.size * m.element_bytes


def _row_pitch_bytes(m: TensorMap, box: Box) -> int:
    """Distance of the box's rows in shared memory.

    They follow one another without gaps; those of a swizzled box that is narrower than the pattern take whole rows of
    the pattern (measured on an H200).
    """
    length = box.inside.shape[-1] * (m.padded_bytes or m.element_bytes)
    return length if m.swizzle is NONE else max(length, m.swizzle.span_bytes)


def shared_bytes(m: TensorMap, box: Box) -> int:
    """Bytes of shared memory from the first to one past the last that the box may take."""
    pitch = _row_pitch_bytes(m, box)
    rows = box.inside.size // box.inside.shape[-1]
    return rows * pitch


def box_of(m: TensorMap, coordinates: tuple[int, ...], rows: tuple[int, ...] | None = None) -> Box:
    """Addresses of the box at `coordinates` (elements, innermost first; may be outside).

    Args:
        m: the map.
        coordinates: one per dimension.
        rows: for gather4 and scatter4: the four coordinates of dimension 1.
    """
    if len(coordinates) != m.rank:
        raise IllegalOperation(f"{len(coordinates)} coordinates for a tensor map of rank {m.rank}")
    if rows is not None and m.box_counts[1] != 1:
        raise IllegalOperation(f"gather4 or scatter4 with a box of {m.box[1]} rows: it must have one")
    if coordinates[0] % m.unit_elements:
        raise IllegalOperation(
            f"coordinate {coordinates[0]} of dimension 0 must be a multiple of {m.unit_elements} for {m.type}"
        )
    start = (coordinates[0] // m.unit_elements, *coordinates[1:])
    if rows is None and set(m.element_strides) == {1} and all(
        0 <= first <= size - count for first, size, count in zip(start, m.dims, m.box_counts, strict=True)
    ):
        whole = _whole_box(m)
        origin = m.address + sum(first * stride for first, stride in zip(start, m.strides_bytes, strict=True))
        _check_reach(m, [first + count - 1 for first, count in zip(start, m.box_counts, strict=True)])
        return Box(whole.addresses + origin, whole.inside, True)
    indices = [
        start[d] + np.arange(m.box_counts[d], dtype=np.int64) * m.element_strides[d]
        if d != 1 or rows is None
        else np.array(rows, np.int64)
        for d in range(m.rank)
    ]
    inside_of = [(index >= 0) & (index < size) for index, size in zip(indices, m.dims, strict=True)]
    some = all(ok.any() for ok in inside_of)
    if some:
        _check_reach(m, [int(index[ok].max()) for index, ok in zip(indices, inside_of, strict=True)])
    addresses: np.ndarray = np.array(m.address if some else 0, np.int64)
    inside: np.ndarray = np.array(True)
    for index, ok, stride in reversed(list(zip(indices, inside_of, m.strides_bytes, strict=True))):
        addresses = addresses[..., None] + index * stride
        inside = inside[..., None] & ok
    return Box(addresses, inside)


def _check_reach(m: TensorMap, last: list[int]) -> None:
    """OutOfBounds if an element of the tensor lies where no memory can be; what may overflow is not computed with arrays."""
    address = m.address + sum(index * stride for index, stride in zip(last, m.strides_bytes, strict=True))
    if address >= ADDRESS_LIMIT:
        raise OutOfBounds(
            f"TMA copy of element {tuple(last)} of a tensor at {m.address:#x} with strides of {m.strides_bytes} bytes: global "
            f"address {address:#x} is beyond the address space"
        )


def stored(m: TensorMap, box: Box) -> np.ndarray:
    """Which elements of a box a store writes: those inside, and the rest of the last 16-byte chunk of a row.

    The chunk matters where rows are not a multiple of 16 bytes long: a store past such an end writes into what follows
    (measured on an H200).
    """
    row_bytes = m.dims[0] * m.element_bytes
    if row_bytes % CHUNK_BYTES == 0 or CHUNK_BYTES % m.element_bytes:
        return box.inside
    per_chunk = CHUNK_BYTES // m.element_bytes
    chunks = box.inside.reshape(*box.inside.shape[:-1], -1, per_chunk)
    return np.broadcast_to(chunks.any(axis=-1, keepdims=True), chunks.shape).reshape(box.inside.shape)


def check_coordinates(m: TensorMap, coordinates: tuple[int, ...], *, write: bool) -> None:
    """IllegalOperation for coordinates at which a device stops (measured on an H200: illegal instruction)."""
    if coordinates[0] // m.unit_elements * m.element_bytes % CHUNK_BYTES:
        raise IllegalOperation(
            f"coordinate {coordinates[0]} of dimension 0 is {coordinates[0] // m.unit_elements * m.element_bytes} bytes: a "
            f"tensor copy starts at multiples of {CHUNK_BYTES} bytes"
        )
    if write and min(coordinates) < 0:
        raise IllegalOperation(f"coordinates {coordinates} of a tensor store: they must not be negative")


def check_box(box: Box, m: TensorMap, memory: GlobalMemory, what: str, *, write: bool) -> None:
    """Raise OutOfBounds if an element inside the tensor is outside valid global memory."""
    if box.whole:
        first, last = int(box.addresses.reshape(-1)[0]), int(box.addresses.reshape(-1)[-1]) + m.element_bytes
        found = memory.find(first, last - first)
        if found is not None and (found.writable or not write):
            return
    inside = box.addresses[box.inside]
    if inside.size:
        memory.check(inside.astype(np.uint64), 1, what, write=write)
        memory.check((inside + (m.element_bytes - 1)).astype(np.uint64), 1, what, write=write)


def read_box(box: Box, m: TensorMap, memory: GlobalMemory) -> np.ndarray:
    """Bytes of the dense box, (elements, element_bytes) uint8; outside elements are the fill value."""
    flat, inside = box.addresses.reshape(-1), box.inside.reshape(-1)
    fill = np.resize(np.frombuffer(m.fill.to_bytes(8, "little"), np.uint8), m.element_bytes)
    out = np.empty((flat.size, m.element_bytes), np.uint8)
    if m.element_bytes in (1, 2, 4, 8) and m.address % m.element_bytes == 0:
        words = out.view(f"u{m.element_bytes}")[:, 0]
        words[:] = fill.view(f"u{m.element_bytes}")[0]
        words[inside] = memory.load(flat[inside].astype(np.uint64), m.element_bytes)
    else:
        out[:] = fill
        out[inside] = memory.load((flat[inside][:, None] + np.arange(m.element_bytes)).astype(np.uint64), 1)
    if m.tf32:  # what is filled in stays as it is
        out[inside] = _to_tf32(out[inside].view(np.uint32)).view(np.uint8)
    return out


def _to_tf32(bits: np.ndarray) -> np.ndarray:
    """f32 rounded to the nearest even tf32, as an H200 has it; loads of the ftz types do not flush."""
    exponent_full = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    kept = np.where(exponent_full, bits, rounded) & np.uint32(0xFFFFE000)
    return np.where(exponent_full & (bits & np.uint32(0x7FFFFF) != 0), _TF32_NAN, kept).astype(np.uint32)


def shared_offsets(m: TensorMap, start: int, box: Box) -> np.ndarray:
    """Shared offset of each element (or padded group) of the box that begins at `start`, swizzled, in flat order."""
    size = m.padded_bytes or m.element_bytes
    row, column = np.divmod(np.arange(box.inside.size, dtype=np.int64), box.inside.shape[-1])
    return m.swizzle(start + row * _row_pitch_bytes(m, box) + column * size)
