"""Compiled loads and stores: shared memory of the own CTA, global memory, parameters, tensor memory in the shape .32x32b.

Every function looks at all active lanes first: bounds, alignment, poison. Only then does it read or write; in every other
case it refuses, and the Python step says what is wrong, or does what is rare. An observer of accesses makes all of them
refuse (`State.DIRECT` is 0).

Nodes: LIST holds the slots of the address and of the words, WORDS how many words there are, OFFSET what is added to the
address.
"""

from __future__ import annotations

from mxfp8fa.emulator.compiled.function import SCALARS, FunctionWriter
from mxfp8fa.emulator.compiled.state import NodeField, State
from mxfp8fa.emulator.machine.memory import SHARED_BASE, SHARED_OFFSET_MASK, SHARED_RANK_SHIFT
from mxfp8fa.layouts.tmem import COLUMNS, PARTITION_LANES

WORD_BYTES = (1, 2, 4, 8)
ADDRESS_BITS = (32, 64)
TILE = 8  # lanes and columns of tensor memory that are turned over together


def require_direct(f: FunctionWriter) -> None:
    """Refuse while somebody observes accesses."""
    f.require(f.put(f"icmp ne i64 {f.word(State.DIRECT)}, 0"))


def shared_offset(f: FunctionWriter, address: str, size: str) -> str:
    """The offset of a shared address of the own CTA; refuses if it is not one, out of bounds or misaligned."""
    rank = f.put(f"lshr i64 {address}, {SHARED_RANK_SHIFT}")
    f.require(f.put(f"icmp eq i64 {rank}, {f.word(State.RANK)}"))
    offset = f.put(f"and i64 {address}, {SHARED_OFFSET_MASK}")
    f.require(f.put(f"icmp uge i64 {offset}, {SHARED_BASE}"))
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {offset}, {size}')}, {f.word(State.SHARED_END)}"))
    _require_aligned(f, offset, size)
    return offset


def _require_aligned(f: FunctionWriter, address: str, size: str) -> None:
    low = f.put(f"and i64 {address}, {f.put(f'sub i64 {size}, 1')}")
    f.require(f.put(f"icmp eq i64 {low}, 0"))


def require_inside(f: FunctionWriter, address: str, size: str, first: str, end: str) -> None:
    """Refuse unless the bytes from an address on lie from `first` to before `end`, also where address + size wraps."""
    f.require(f.put(f"icmp uge i64 {address}, {first}"))
    f.require(f.put(f"icmp ult i64 {address}, {end}"))
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {address}, {size}')}, {end}"))


def lane_address(f: FunctionWriter, row: str, lane: str, bits: int) -> str:
    """The address of a lane, with the node's offset, as an i64; 32-bit addresses wrap."""
    base = f.load(f"i{bits}", row, lane, f"i{bits}")
    wide = base if bits == 64 else f.put(f"zext i32 {base} to i64")
    total = f.put(f"add i64 {wide}, {f.word(NodeField.OFFSET)}")
    return total if bits == 64 else f.put(f"and i64 {total}, {0xFFFFFFFF}")


class _Access:
    """The parts that loads and stores of shared and global memory have in common."""

    def __init__(self, name: str, word_bytes: int, address_bits: int):
        f = self.f = FunctionWriter(name)
        self.word_bytes, self.bits = word_bytes, address_bits
        self.element = SCALARS[word_bytes]
        require_direct(f)
        self.mask = f.mask()
        self.words = f.word(NodeField.WORDS)
        self.size = f.put(f"mul i64 {self.words}, {word_bytes}")
        address = f.slot(0)
        f.require_clean([address], self.mask)
        self.row = f.row(address)

    def sources_clean(self) -> None:
        """Refuse to store poison."""
        f = self.f
        with f.loop(self.words) as k:
            f.require_clean([f.slot(f.put(f"add i64 {k}, 1"))], self.mask)

    def word_rows(self, lane: str, move: str, base: str, offset: str, shadow: str | None = None) -> None:
        """Move a lane's words between registers and memory."""
        f, e = self.f, self.element
        with f.loop(self.words) as k:
            row = f.row(f.slot(f.put(f"add i64 {k}, 1")))
            at = f.put(f"add i64 {offset}, {f.put(f'mul i64 {k}, {self.word_bytes}')}")
            if move == "load":
                f.store(e, f.load(e, base, at), row, lane, e)
            else:
                f.store(e, f.load(e, row, lane, e), base, at)
            if shadow is not None:
                f.store(e, "0", shadow, at)

    def done(self, counter: State, *, load: bool) -> str:
        """Count the bytes; what was loaded is not poison, what was stored others may see."""
        f = self.f
        f.add_word(counter, f.put(f"mul i64 {f.lane_count(self.mask)}, {self.size}"))
        if load:
            with f.loop(self.words) as k:
                f.cleanse(f.slot(f.put(f"add i64 {k}, 1")), self.mask)
        else:
            f.add_word(State.EPOCH, "1")
        return f.finish()


def load_shared(word_bytes: int, bits: int) -> FunctionWriter:
    """ld.shared: words of written memory."""
    a = _Access(f"load_shared_{word_bytes}_{bits}", word_bytes, bits)
    f, data, shadow = a.f, a.f.word(State.SHARED, "ptr"), a.f.word(State.SHARED_SHADOW, "ptr")
    with f.lanes(a.mask) as lane:
        offset = shared_offset(f, lane_address(f, a.row, lane, bits), a.size)
        with f.loop(a.words) as k:
            at = f.put(f"add i64 {offset}, {f.put(f'mul i64 {k}, {word_bytes}')}")
            f.require(f.put(f"icmp eq {a.element} {f.load(a.element, shadow, at)}, 0"))
    with f.lanes(a.mask) as lane:
        offset = f.put(f"and i64 {lane_address(f, a.row, lane, bits)}, {SHARED_OFFSET_MASK}")
        a.word_rows(lane, "load", data, offset)
    f.body = a.done(State.SHARED_LOAD, load=True)
    return f


def store_shared(word_bytes: int, bits: int) -> FunctionWriter:
    """st.shared."""
    a = _Access(f"store_shared_{word_bytes}_{bits}", word_bytes, bits)
    f, data, shadow = a.f, a.f.word(State.SHARED, "ptr"), a.f.word(State.SHARED_SHADOW, "ptr")
    a.sources_clean()
    with f.lanes(a.mask) as lane:
        shared_offset(f, lane_address(f, a.row, lane, bits), a.size)
    with f.lanes(a.mask) as lane:
        offset = f.put(f"and i64 {lane_address(f, a.row, lane, bits)}, {SHARED_OFFSET_MASK}")
        a.word_rows(lane, "store", data, offset, shadow)
    f.body = a.done(State.SHARED_STORE, load=False)
    return f


def _require_global(a: _Access, lane: str) -> str:
    """A global address inside the range that was used last; refuses otherwise."""
    f = a.f
    address = lane_address(f, a.row, lane, 64)
    require_inside(f, address, a.size, f.word(State.GLOBAL_FROM), f.word(State.GLOBAL_END))
    _require_aligned(f, address, a.size)
    return address


def load_global(word_bytes: int, bits: int) -> FunctionWriter:
    """ld.global."""
    a = _Access(f"load_global_{word_bytes}_64", word_bytes, 64)
    f = a.f
    with f.lanes(a.mask) as lane:
        _require_global(a, lane)
    with f.lanes(a.mask) as lane:
        a.word_rows(lane, "load", "null", lane_address(f, a.row, lane, 64))
    f.body = a.done(State.GLOBAL_LOAD, load=True)
    return f


def store_global(word_bytes: int, bits: int) -> FunctionWriter:
    """st.global."""
    a = _Access(f"store_global_{word_bytes}_64", word_bytes, 64)
    f = a.f
    f.require(f.put(f"icmp ne i64 {f.word(State.GLOBAL_WRITABLE)}, 0"))
    a.sources_clean()
    with f.lanes(a.mask) as lane:
        _require_global(a, lane)
    with f.lanes(a.mask) as lane:
        a.word_rows(lane, "store", "null", lane_address(f, a.row, lane, 64))
    f.body = a.done(State.GLOBAL_STORE, load=False)
    return f


def load_parameter(word_bytes: int, register_bytes: int, signed: int) -> FunctionWriter:
    """ld.param at a place that is known: OFFSET is the address of the words, LIST holds the slots of the registers only."""
    f = FunctionWriter(f"load_parameter_{word_bytes}_{register_bytes}_{signed}")
    require_direct(f)
    mask, words, base = f.mask(), f.word(NodeField.WORDS), f.word(NodeField.OFFSET, "ptr")
    word, register = SCALARS[word_bytes], SCALARS[register_bytes]
    with f.loop(words) as k:
        value = f.load(word, base, k, word)
        if register != word:
            value = f.put(f"{'sext' if signed else 'zext'} {word} {value} to {register}")
        slot = f.slot(k)
        row = f.row(slot)
        with f.lanes(mask) as lane:
            f.store(register, value, row, lane, register)
        f.cleanse(slot, mask)
    size = f.put(f"mul i64 {f.lane_count(mask)}, {f.put(f'mul i64 {words}, {word_bytes}')}")
    f.add_word(State.PARAMETER_LOAD, size)
    f.body = f.finish()
    return f


# -- tensor memory ----------------------------------------------------------------------------------------------------


def _tensor_access(name: str) -> tuple[FunctionWriter, str, str, str]:
    """Checks of tcgen05.ld and .st; returns the function, the words, the row of cells and that of their shadow."""
    f = FunctionWriter(name)
    require_direct(f)
    f.require(f.put(f"icmp ne i64 {f.word(State.EAGER)}, 0"))
    mask, words = f.mask(), f.word(NodeField.WORDS)
    f.require(f.put(f"icmp eq i32 {mask}, -1"))
    slot = f.slot(0)
    f.require_clean([slot], mask)
    base = f.uniform(f.row(slot), 32, mask)
    address = f.put(f"and i64 {f.put(f'add i64 {base}, {f.word(NodeField.OFFSET)}')}, {0xFFFFFFFF}")
    lane = f.put(f"lshr i64 {address}, 16")
    first = f.word(State.FIRST_LANE)
    mine = f.put(f"or i1 {f.put(f'icmp eq i64 {lane}, 0')}, {f.put(f'icmp eq i64 {lane}, {first}')}")
    f.require(mine)
    column = f.put(f"and i64 {address}, {0xFFFF}")
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {column}, {words}')}, {COLUMNS}"))
    owned = f.word(State.TENSOR_OWNED, "ptr")
    with f.loop(words) as k:
        at = f.put(f"add i64 {column}, {k}")
        f.require(f.put(f"icmp ne i8 {f.load('i8', owned, at)}, 0"))
    cell = f.put(f"add i64 {f.put(f'mul i64 {first}, {COLUMNS}')}, {column}")
    rows = [f.at(f.word(field, "ptr"), cell, "i32") for field in (State.TENSOR, State.TENSOR_SHADOW)]
    return f, words, rows[0], rows[1]


def _transposed(f: FunctionWriter, rows: list[str]) -> list[str]:
    """The columns of TILE vectors of TILE words: blocks change places across the diagonal, 1 x 1, then 2 x 2, then 4 x 4."""
    vector, places = f"<{TILE} x i32>", range(TILE)
    for step in (1, 2, 4):
        low = [c - step + TILE if c & step else c for c in places]
        high = [c + TILE if c & step else c + step for c in places]
        pairs = {i: (rows[i], rows[i + step]) for i in places if not i & step}
        for i, (a, b) in pairs.items():
            for to, chosen in ((i, low), (i + step, high)):
                mask = ", ".join(f"i32 {c}" for c in chosen)
                rows[to] = f.put(f"shufflevector {vector} {a}, {vector} {b}, <{TILE} x i32> <{mask}>")
    return rows


def _cells(f: FunctionWriter, base: str, lane: str, k: str, i: int) -> str:
    """Where TILE columns of lane + i of tensor memory begin."""
    row = f.put(f"mul i64 {f.put(f'add i64 {lane}, {i}')}, {COLUMNS}")
    return f.at(base, f.put(f"add i64 {row}, {k}"), "i32")


def load_tensor(tile: int) -> FunctionWriter:
    """tcgen05.ld.32x32b: thread t gets consecutive columns of lane t. `tile`: the number of columns is a multiple of it."""
    f, words, data, shadow = _tensor_access(f"load_tensor_{tile}")
    vector = f"<{tile} x i32>"
    with f.loop(PARTITION_LANES) as lane, f.loop(words, step=tile) as k:
        bad = f.put(f"icmp ne {vector} {f.load(vector, _cells(f, shadow, lane, k, 0))}, zeroinitializer")
        f.require(f.put(f"icmp eq i{tile} {f.put(f'bitcast <{tile} x i1> {bad} to i{tile}')}, 0"))
    with f.loop(words, step=tile) as k:
        rows = [f.row(f.slot(f.put(f"add i64 {k}, {i + 1}"))) for i in range(tile)]
        with f.loop(PARTITION_LANES, step=tile) as lane:
            found = [f.load(vector, _cells(f, data, lane, k, i)) for i in range(tile)]
            for row, value in zip(rows, _transposed(f, found) if tile > 1 else found, strict=True):
                f.store(vector, value, row, lane, "i32")
    with f.loop(words) as k:
        f.cleanse(f.slot(f.put(f"add i64 {k}, 1")), "-1")
    f.add_word(State.TENSOR_LOAD, f.put(f"mul i64 {words}, {4 * PARTITION_LANES}"))
    f.body = f.finish()
    return f


def store_tensor(tile: int) -> FunctionWriter:
    """tcgen05.st.32x32b, as `load_tensor`."""
    f, words, data, shadow = _tensor_access(f"store_tensor_{tile}")
    vector = f"<{tile} x i32>"
    with f.loop(words) as k:
        f.require_clean([f.slot(f.put(f"add i64 {k}, 1"))], "-1")
    with f.loop(words, step=tile) as k:
        rows = [f.row(f.slot(f.put(f"add i64 {k}, {i + 1}"))) for i in range(tile)]
        with f.loop(PARTITION_LANES, step=tile) as lane:
            given = [f.load(vector, row, lane, "i32") for row in rows]
            for i, value in enumerate(_transposed(f, given) if tile > 1 else given):
                f.store(vector, value, _cells(f, data, lane, k, i))
                f.store(vector, "zeroinitializer", _cells(f, shadow, lane, k, i))
    f.add_word(State.TENSOR_STORE, f.put(f"mul i64 {words}, {4 * PARTITION_LANES}"))
    f.add_word(State.EPOCH, "1")
    f.body = f.finish()
    return f


def pass_by() -> FunctionWriter:
    """Fences: memory is sequentially consistent."""
    f = FunctionWriter("pass_by")
    require_direct(f)
    f.body = f.finish()
    return f


def wait_tensor() -> FunctionWriter:
    """tcgen05.wait under the eager schedule, by the whole warp: everything is complete."""
    f = FunctionWriter("wait_tensor")
    require_direct(f)
    f.require(f.put(f"icmp ne i64 {f.word(State.EAGER)}, 0"))
    f.require(f.put(f"icmp eq i64 {f.word(State.MASK)}, {f.word(State.LIVE)}"))
    f.body = f.finish()
    return f
