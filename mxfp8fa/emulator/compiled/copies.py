"""Copies as compiled instructions: TMA loads of whole boxes, bulk loads, tcgen05.cp. They check, move chunks, count bytes.

What a tensor map means is worked out in Python by the first load through it (`Copies.learn`) and kept with the 64 bytes
that it was read from; compiled code compares those every time. A box that sticks out of its tensor, a destination in
another CTA, multicast, gathers and everything that is an error are the Python step's. Only under the eager schedule, where a
copy is complete when it is issued.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np

from mxfp8fa.emulator.compiled.barriers import barrier_word, require_room, update_barrier, wake_waiters
from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.memory import require_direct, require_inside, shared_offset
from mxfp8fa.emulator.compiled.multiply import Products, look_up, require_owned
from mxfp8fa.emulator.compiled.state import Blocked, NodeField, State
from mxfp8fa.emulator.isa.tcgen05_memory import COPY_FORMS
from mxfp8fa.emulator.machine import tensor_map
from mxfp8fa.emulator.machine.memory import SHARED_BASE, Range
from mxfp8fa.emulator.machine.tensor_map import CHUNK_BYTES, DECODED_BYTES, Box, TensorMap
from mxfp8fa.layouts import tmem

MAPS = 32  # tensor maps of a launch that are known
PERIOD_BYTES = 1024  # of every swizzle: destinations at multiples of it are alike
MAX_RANK = 5
_RAW_WORDS = DECODED_BYTES // 8
_CHUNK, _CHUNK_WORDS = f"<{CHUNK_BYTES} x i8>", CHUNK_BYTES // 4


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


class Rows(IntEnum):
    """Words that describe the source and the form of a tcgen05.cp."""

    RUNS = 0  # address of the byte addresses of chunks, row by row
    COUNT = 1  # chunks
    HIGH = 2  # one after the last byte
    PER_ROW = 3  # chunks of a row
    LANES = 4  # address of the lanes that each row goes to, copy after copy
    COPIES = 5


class Copies:
    """The tensor maps and the valid memory of one launch.

    Attributes:
        table: a row of `Map` words for each map.
        ranges: first address and the one after the last of every range of global memory.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.table = np.zeros((MAPS, int(Map.WORDS)), np.int64)
        self.ranges = np.array([(r.address, r.end) for r in ranges] or np.zeros((0, 2)), np.int64).reshape(-1, 2)
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
        words[Map.RANK], words[Map.TENSOR], words[Map.BYTES] = (
            tensor.rank,
            tensor.address,
            tensor_map.counted_bytes(tensor, box),
        )
        words[Map.EXTENT] = int(box.addresses.max() - box.addresses.min()) + tensor.element_bytes
        words[Map.CHUNKS], words[Map.SOURCES], words[Map.TARGETS] = (
            sources.size,
            sources.ctypes.data,
            targets.ctypes.data,
        )
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
    extent, first, end = (_word(f, record, word) for word in (Map.EXTENT, Map.FROM, Map.END))
    require_inside(f, origin, extent, first, end)
    place = shared_offset(f, d, str(PERIOD_BYTES))
    f.require(
        f.put(f"icmp ule i64 {f.put(f'add i64 {place}, {_word(f, record, Map.SPAN)}')}, {f.word(State.SHARED_END)}")
    )
    with _completion(f, barrier, _word(f, record, Map.BYTES)):
        _move(f, record, origin, place)
    f.body = f.finish()
    return f


def load_bulk() -> FunctionWriter:
    """cp.async.bulk from global memory to the own CTA by one thread. Pairs of slot and constant: d, mbarrier, source, bytes."""
    f = FunctionWriter("load_bulk")
    require_direct(f)
    f.require(f.put(f"icmp ne i64 {f.word(State.MAPS)}, 0"))
    mask = f.mask()
    f.require(f.put(f"icmp eq i64 {f.lane_count(mask)}, 1"))
    lane = f.first_lane(mask)
    d, barrier, source, size = (f.operand(i, bits, lane, mask) for i, bits in enumerate((32, 32, 64, 32)))
    f.require(f.put(f"icmp ne i64 {size}, 0"))
    every = f.put(f"or i64 {f.put(f'or i64 {source}, {size}')}, {d}")
    f.require(f.put(f"icmp eq i64 {f.put(f'and i64 {every}, {CHUNK_BYTES - 1}')}, 0"))
    _require_valid(f, source, f.put(f"add i64 {source}, {size}"))
    place = shared_offset(f, d, str(CHUNK_BYTES))
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {place}, {size}')}, {f.word(State.SHARED_END)}"))
    data, shadow = (f.at(f.word(field, "ptr"), place) for field in (State.SHARED, State.SHARED_SHADOW))
    start = f.put(f"inttoptr i64 {source} to ptr")
    with _completion(f, barrier, size), f.loop(size, step=CHUNK_BYTES) as i:
        f.store(_CHUNK, f.load(_CHUNK, start, i), data, i)
        f.store(_CHUNK, "zeroinitializer", shadow, i)
    f.body = f.finish()
    return f


def _require_valid(f: FunctionWriter, first: str, end: str) -> None:
    """Refuse unless a range of global memory holds all of these addresses."""
    ranges = f.word(State.RANGES, "ptr")
    with f.accumulate(f.word(State.RANGE_COUNT), "i1", ["false"]) as (i, (found,), update):
        row = f.at(ranges, f.put(f"mul i64 {i}, 2"), "i64")
        after = f.put(f"icmp uge i64 {first}, {_word(f, row, 0)}")
        before = f.put(f"icmp ule i64 {end}, {_word(f, row, 1)}")
        forward = f.put(f"icmp ult i64 {first}, {end}")
        inside = f.put(f"and i1 {forward}, {f.put(f'and i1 {after}, {before}')}")
        update[0] = f.put(f"or i1 {found}, {inside}")
    f.require(found)


@contextmanager
def _completion(f: FunctionWriter, barrier: str, size: str) -> Iterator[None]:
    """Check that a barrier can count these bytes; after the copy in between, count them there and for the report."""
    offset, word, pending, tx = barrier_word(f, barrier)
    tx = f.put(f"sub i64 {tx}, {size}")
    f.require(f.put(f"icmp sge i64 {tx}, {-((1 << 20) - 1)}"))
    complete = f.put(f"icmp eq i64 {f.put(f'or i64 {pending}, {tx}')}, 0")
    require_room(f, complete)
    yield
    for counter in (State.GLOBAL_LOAD, State.SHARED_STORE):
        f.add_word(counter, size)
    update_barrier(f, offset, word, pending, tx, complete)
    with f.when(complete):
        wake_waiters(f, Blocked.MBARRIER, offset)


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
    with f.loop(_word(f, record, Map.CHUNKS)) as i:
        target = f.load("i64", targets, i, "i64")
        f.store(_CHUNK, f.load(_CHUNK, source, f.load("i64", sources, i, "i64")), data, target)
        f.store(_CHUNK, "zeroinitializer", shadow, target)


# -- tcgen05.cp -------------------------------------------------------------------------------------------------------


def rows_kind(form: str) -> int:
    """The kind of a source descriptor of tcgen05.cp, apart from those of products: negative."""
    return -2 - COPY_FORMS.index(form)


def learn_rows(products: Products, word: int, form: str, where: np.ndarray) -> None:
    """Note where the source of a tcgen05.cp lies; `where`: (rows, words) byte addresses."""
    shape, _, multicast = form.partition(".")
    chunks = where.reshape(where.shape[0], -1, CHUNK_BYTES // 4)
    if (np.diff(chunks, axis=2) != 4).any():
        return
    runs = np.ascontiguousarray(chunks[:, :, 0], np.int32)
    lanes = np.ascontiguousarray(tmem.copy_lanes(shape, multicast), np.int32)
    words = np.zeros(len(Rows), np.int64)
    words[Rows.RUNS], words[Rows.COUNT], words[Rows.HIGH] = runs.ctypes.data, runs.size, int(where.max()) + 4
    words[Rows.PER_ROW], words[Rows.LANES], words[Rows.COPIES] = runs.shape[1], lanes.ctypes.data, lanes.shape[0]
    if where.min() >= SHARED_BASE:
        products.enter(word, rows_kind(form), words, (runs, lanes))


def copy_rows() -> FunctionWriter:
    """tcgen05.cp.cta_group::1 by one thread. Pairs of slot and constant: address, descriptor; CONSTANT: `rows_kind`."""
    f = FunctionWriter("copy_rows")
    require_direct(f)
    f.require(f.put(f"icmp ne i64 {f.word(State.PRODUCTS)}, 0"))
    mask = f.mask()
    f.require(f.put(f"icmp eq i64 {f.lane_count(mask)}, 1"))
    lane = f.first_lane(mask)
    column, source = f.operand(0, 32, lane, mask), f.operand(1, 64, lane, mask)
    record = f.put(f"inttoptr i64 {look_up(f, source, f.word(NodeField.CONSTANT))} to ptr")
    f.require(f.put(f"icmp ult i64 {column}, {tmem.COLUMNS}"))
    per_row, count = _word(f, record, Rows.PER_ROW), _word(f, record, Rows.COUNT)
    require_owned(f, column, f.put(f"mul i64 {per_row}, {_CHUNK_WORDS}"))
    f.require(f.put(f"icmp ule i64 {_word(f, record, Rows.HIGH)}, {f.word(State.SHARED_END)}"))
    runs, lanes = (f.load("ptr", record, int(field), "i64") for field in (Rows.RUNS, Rows.LANES))
    data, shadow = (f.word(field, "ptr") for field in (State.SHARED, State.SHARED_SHADOW))
    with f.loop(count) as i:
        word = f.load("i128", shadow, _index(f, runs, i))
        f.require(f.put(f"icmp eq i128 {word}, 0"))
    tensor, poison = (f.at(f.word(field, "ptr"), column, "i32") for field in (State.TENSOR, State.TENSOR_SHADOW))
    rows, copies = f.put(f"udiv i64 {count}, {per_row}"), _word(f, record, Rows.COPIES)
    with f.loop(copies) as copy, f.loop(rows) as row, f.loop(per_row) as k:
        chunk = f.put(f"add i64 {f.put(f'mul i64 {row}, {per_row}')}, {k}")
        to = _index(f, lanes, f.put(f"add i64 {f.put(f'mul i64 {copy}, {rows}')}, {row}"))
        cell = f.put(f"add i64 {f.put(f'mul i64 {to}, {tmem.COLUMNS}')}, {f.put(f'mul i64 {k}, {_CHUNK_WORDS}')}")
        f.store(_CHUNK, f.load(_CHUNK, data, _index(f, runs, chunk)), f.at(tensor, cell, "i32"))
        f.store(_CHUNK, "zeroinitializer", f.at(poison, cell, "i32"))
    size = f.put(f"mul i64 {count}, {CHUNK_BYTES}")
    f.add_word(State.SHARED_LOAD, size)
    f.add_word(State.TENSOR_STORE, f.put(f"mul i64 {size}, {copies}"))
    f.add_word(State.EPOCH, "1")
    f.body = f.finish()
    return f


def _index(f: FunctionWriter, numbers: str, i: str) -> str:
    """Number i of a list of i32, as an i64."""
    return f.put(f"zext i32 {f.load('i32', numbers, i, 'i32')} to i64")
