"""TMA loads of whole boxes as a compiled instruction: check the tensor map and the coordinates, move chunks, count bytes.

What a tensor map means is worked out in Python by the first load through it (`Copies.learn`) and kept with the 64 bytes
that it was read from; compiled code compares those every time. A box that sticks out of its tensor, a destination in
another CTA, multicast, gathers and everything that is an error are the Python step's. Only under the eager schedule, where a
load is complete when it is issued.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from mxfp8fa.emulator.compiled.barriers import barrier_word, require_room, update_barrier, wake_waiters
from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.memory import require_direct, shared_offset
from mxfp8fa.emulator.compiled.state import Blocked, State
from mxfp8fa.emulator.machine import tensor_map
from mxfp8fa.emulator.machine.memory import Range
from mxfp8fa.emulator.machine.tensor_map import CHUNK_BYTES, DECODED_BYTES, Box, TensorMap

MAPS = 32  # tensor maps of a launch that are known
PERIOD_BYTES = 1024  # of every swizzle: destinations at multiples of it are alike
MAX_RANK = 5
_RAW_WORDS = DECODED_BYTES // 8


class Map(IntEnum):
    """Words that describe a tensor map; the raw words of the map, the limits and the strides follow."""

    ADDRESS = 0  # where the map lies; 0: no map
    RANK = 1
    TENSOR = 2  # where the tensor begins
    BYTES = 3  # of a box
    EXTENT = 4  # from the first byte of a box in global memory to one after its last
    CHUNKS = 5  # how many
    SOURCES = 6  # address of their places in global memory, from the first byte of the box
    TARGETS = 7  # address of their places in shared memory, from the start of the destination
    FROM = 8  # the valid range of global memory that the tensor is in
    END = 9
    SPAN = 10  # bytes of shared memory from the start of the destination to one after the last byte
    RAW = 11
    LIMITS = RAW + _RAW_WORDS  # per dimension the largest coordinate of a whole box
    STRIDES = LIMITS + MAX_RANK
    WORDS = STRIDES + MAX_RANK


class Copies:
    """The tensor maps of one launch.

    Attributes:
        table: a row of `Map` words for each.
    """

    def __init__(self) -> None:
        self.table = np.zeros((MAPS, int(Map.WORDS)), np.int64)
        self._kept: list[Any] = []
        self._known: set[tuple[int, TensorMap]] = set()

    def learn(self, address: int, raw: bytes, tensor: TensorMap, box: Box, valid: Range | None) -> None:
        """Note what the map at an address means; `box`: a whole box that was just loaded, `valid`: the range that holds it."""
        if valid is None or (address, tensor) in self._known:
            return
        self._known.add((address, tensor))
        chunks = tensor_map.chunks_of(tensor, 0)
        free = np.flatnonzero((self.table[:, Map.ADDRESS] == address) | (self.table[:, Map.ADDRESS] == 0))
        if chunks is None or tensor.unit_elements != 1 or not free.size:
            return
        sources, targets = (np.ascontiguousarray(x, np.int64) for x in (chunks[0], chunks[1] * CHUNK_BYTES))
        self._kept.append((sources, targets))
        words = self.table[free[0]]
        words[Map.RANK], words[Map.TENSOR], words[Map.BYTES] = tensor.rank, tensor.address, tensor_map.counted_bytes(tensor, box)
        words[Map.EXTENT] = int(box.addresses.max() - box.addresses.min()) + tensor.element_bytes
        words[Map.CHUNKS], words[Map.SOURCES], words[Map.TARGETS] = sources.size, sources.ctypes.data, targets.ctypes.data
        words[Map.SPAN] = targets.max() + CHUNK_BYTES
        words[Map.FROM], words[Map.END] = valid.address, valid.end
        words[Map.RAW : Map.RAW + _RAW_WORDS] = np.frombuffer(raw, np.int64)
        for d in range(tensor.rank):
            words[Map.LIMITS + d] = tensor.dims[d] - tensor.box_counts[d]
            words[Map.STRIDES + d] = tensor.strides_bytes[d]
        words[Map.ADDRESS] = address


def load_box(rank: int) -> FunctionWriter:
    """cp.async.bulk.tensor to the own CTA by one thread. Pairs of slot and constant: d, mbarrier, map, coordinates."""
    f = FunctionWriter(f"load_box_{rank}")
    require_direct(f)
    maps = f.word(State.MAPS, "ptr")
    f.require(f.put(f"icmp ne ptr {maps}, null"))
    mask = f.mask()
    f.require(f.put(f"icmp eq i64 {f.lane_count(mask)}, 1"))
    lane = f.first_lane(mask)
    d, barrier, address = (f.operand(i, bits, lane, mask) for i, bits in enumerate((32, 32, 64)))
    record = _find(f, maps, address)
    f.require(f.put(f"icmp eq i64 {_word(f, record, Map.RANK)}, {rank}"))
    there = f.put(f"inttoptr i64 {address} to ptr")
    for i in range(_RAW_WORDS):
        f.require(f.put(f"icmp eq i64 {f.load('i64', there, i, 'i64')}, {_word(f, record, Map.RAW + i)}"))
    origin = _origin(f, record, rank, lane, mask)
    extent = f.put(f"add i64 {origin}, {_word(f, record, Map.EXTENT)}")
    f.require(f.put(f"icmp uge i64 {origin}, {_word(f, record, Map.FROM)}"))
    f.require(f.put(f"icmp ule i64 {extent}, {_word(f, record, Map.END)}"))
    size = _word(f, record, Map.BYTES)
    place = shared_offset(f, d, str(PERIOD_BYTES))
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {place}, {_word(f, record, Map.SPAN)}')}, {f.word(State.SHARED_END)}"))
    offset, word, pending, tx = barrier_word(f, barrier)
    tx = f.put(f"sub i64 {tx}, {size}")
    f.require(f.put(f"icmp sge i64 {tx}, {-((1 << 20) - 1)}"))
    complete = f.put(f"icmp eq i64 {f.put(f'or i64 {pending}, {tx}')}, 0")
    require_room(f, complete)
    _move(f, record, origin, place)
    for counter in (State.GLOBAL_LOAD, State.SHARED_STORE):
        f.add_word(counter, size)
    update_barrier(f, offset, word, pending, tx, complete)
    with f.when(complete):
        wake_waiters(f, Blocked.MBARRIER, offset)
    f.body = f.finish()
    return f


def _word(f: FunctionWriter, record: str, field: int) -> str:
    return f.load("i64", record, int(field), "i64")


def _find(f: FunctionWriter, maps: str, address: str) -> str:
    """The row of a map's address; refuses if there is none."""
    f.require(f.put(f"icmp ne i64 {address}, 0"))
    with f.accumulate(str(MAPS), "ptr", ["null"]) as (i, (found,), update):
        row = f.at(maps, f.put(f"mul i64 {i}, {int(Map.WORDS)}"), "i64")
        same = f.put(f"icmp eq i64 {_word(f, row, Map.ADDRESS)}, {address}")
        update[0] = f.put(f"select i1 {same}, ptr {row}, ptr {found}")
    f.require(f.put(f"icmp ne ptr {found}, null"))
    return found


def _origin(f: FunctionWriter, record: str, rank: int, lane: str, mask: str) -> str:
    """Where the box begins; refuses coordinates at which it sticks out, or does not begin with a chunk."""
    origin = _word(f, record, Map.TENSOR)
    for d in range(rank):
        given = f.operand(3 + d, 32, lane, mask)
        coordinate = f.put(f"sext i32 {f.put(f'trunc i64 {given} to i32')} to i64")
        f.require(f.put(f"icmp sge i64 {coordinate}, 0"))
        f.require(f.put(f"icmp sle i64 {coordinate}, {_word(f, record, Map.LIMITS + d)}"))
        step = f.put(f"mul i64 {coordinate}, {_word(f, record, Map.STRIDES + d)}")
        origin = f.put(f"add i64 {origin}, {step}")
    f.require(f.put(f"icmp eq i64 {f.put(f'and i64 {origin}, {CHUNK_BYTES - 1}')}, 0"))
    return origin


def _move(f: FunctionWriter, record: str, origin: str, place: str) -> None:
    """The chunks of a box to shared memory, which is not poison then."""
    sources, targets = (f.load("ptr", record, int(field), "i64") for field in (Map.SOURCES, Map.TARGETS))
    source = f.put(f"inttoptr i64 {origin} to ptr")
    data, shadow = (f.at(f.word(field, "ptr"), place) for field in (State.SHARED, State.SHARED_SHADOW))
    chunk = f"<{CHUNK_BYTES} x i8>"
    with f.loop(_word(f, record, Map.CHUNKS)) as i:
        target = f.load("i64", targets, i, "i64")
        f.store(chunk, f.load(chunk, source, f.load("i64", sources, i, "i64")), data, target)
        f.store(chunk, "zeroinitializer", shadow, target)
