"""tcgen05.mma as a compiled instruction: look up what its descriptors mean, check, unpack, multiply.

What a descriptor means is worked out in Python the first time (`product.learn`, after the Python step) and kept in a table
that compiled code reads: the 32-bit instruction descriptor leads to a `Shape`, an operand's address or descriptor
to a `Place`. An unknown one, and everything that `product.multiply` would leave to the NumPy code, is refused. Only under the
eager schedule, where an MMA is complete when it is issued, with accumulate="float32" and one CTA.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.memory import require_direct
from mxfp8fa.emulator.compiled.state import NodeField, State
from mxfp8fa.layouts import tmem

if TYPE_CHECKING:
    from mxfp8fa.emulator.isa.tcgen05_descriptor import MMAShape

TABLE_BITS = 12
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # odd: any would do
_WORDS = (1 << 64) - 1
K_BYTES = 32  # of an operand's row in one instruction
LARGEST_M, LARGEST_N, LARGEST_K = 128, 256, 32
# Scratch memory, in float64: A, B, an operand that has to be turned, the scale factors of A and of B.
_B_AT = LARGEST_M * LARGEST_K
_TURNED_AT = _B_AT + LARGEST_N * LARGEST_K
_SCALE_A_AT = _TURNED_AT + LARGEST_N * LARGEST_K
_SCALE_B_AT = _SCALE_A_AT + LARGEST_M
SCRATCH_WORDS = _SCALE_B_AT + LARGEST_N
OPERANDS = ("d", "a", "b", "descriptor", "enable", "sfa", "sfb")


class Shape(IntEnum):
    """Words that describe an instruction descriptor."""

    UNPACK_A = 0  # addresses of functions
    UNPACK_B = 1
    PRODUCT = 2
    VALUES_A = 3  # address of the values of 8-bit codes
    VALUES_B = 4
    SCALES = 5  # address of the values of E8M0 codes
    M = 6
    N = 7
    K = 8
    LANES = 9  # address of the lane of each row of D
    SFA_BYTE = 10
    SFB_BYTE = 11


class Field(IntEnum):
    """Words that describe a place."""

    RUNS = 0  # address of the byte addresses of runs
    COUNT = 1
    HIGH = 2  # one after the last byte
    ROWS = 3
    COLUMNS = 4
    TURN = 5  # 1: columns and rows change places
    FIRST = 6  # of an operand in tensor memory: the first column


def signed(word: int) -> int:
    """The low 64 bits as a signed integer."""
    word &= _WORDS
    return word - (1 << 64) if word >> 63 else word


def _row(key: int, kind: int) -> int:
    """Where a pair of keys stands in the table."""
    return ((key * _MIX[0] ^ kind * _MIX[1]) & _WORDS) >> (64 - TABLE_BITS)


class Products:
    """The table of one program.

    Attributes:
        table: rows of (key, kind of key, address of what it means).
        shapes: `Shape` words that are known.
    """

    def __init__(self) -> None:
        self.table = np.zeros((1 << TABLE_BITS, 3), np.int64)
        self.shapes: dict[MMAShape, np.ndarray] = {}
        self._kept: dict[int, Any] = {}  # what the table's rows point to

    def enter(self, key: int, kind: int, words: np.ndarray, keep: Any = None) -> None:
        """Note that a key of some kind means the record `words`; `keep`: what the record points to."""
        row = _row(key, kind)
        if self.table[row, 2] and tuple(self.table[row, :2]) != (signed(key), kind):
            row ^= 1  # every pair has two places
        self._kept[row] = words, keep
        self.table[row] = signed(key), kind, words.ctypes.data


def form_number(kind: str, vector: str | None) -> int:
    """Tells apart what an instruction descriptor may belong to; odd."""
    from mxfp8fa.emulator.isa.tcgen05_descriptor import KINDS, SCALE_VECTORS

    vectors = sorted({str(v) for known in SCALE_VECTORS.values() for v in known} | {"None"})
    return 2 * (list(KINDS).index(kind) * len(vectors) + vectors.index(str(vector))) + 1


# -- the instruction --------------------------------------------------------------------------------------------------


def widths(*, scaled: bool, tensor_a: bool) -> tuple[int, ...]:
    """Bits of the operands, in the order of OPERANDS; 1: a predicate."""
    return (32, 32 if tensor_a else 64, 64, 32, 1, 32, 32)[: 7 if scaled else 5]


def multiply(form: int) -> FunctionWriter:
    """tcgen05.mma.cta_group::1 by one thread. form: 1 if block-scaled, + 2 if A is in tensor memory.

    Slots: for each operand (d, a, b, descriptor, enable, scale factors) a slot and a constant to add, then the slots of
    the mask of disabled lanes, WORDS of them, all of which must be zero. CONSTANT: the number of the form.
    """
    scaled, tensor_a = bool(form & 1), bool(form & 2)
    f = FunctionWriter(f"multiply_{form}")
    require_direct(f)
    f.require(f.put(f"icmp ne i64 {f.word(State.PRODUCTS)}, 0"))
    mask = f.mask()
    f.require(f.put(f"icmp eq i64 {f.lane_count(mask)}, 1"))
    lane = f.first_lane(mask)
    bits = [max(b, 8) for b in widths(scaled=scaled, tensor_a=tensor_a)]
    values = dict(zip(OPERANDS, [f.operand(i, b, lane, mask) for i, b in enumerate(bits)], strict=False))
    with f.loop(f.word(NodeField.WORDS)) as k:
        slot = f.slot(f.put(f"add i64 {k}, {2 * len(bits)}"))
        f.require_clean([slot], mask)
        f.require(f.put(f"icmp eq i32 {f.load('i32', f.row(slot), lane, 'i32')}, 0"))
    shape = look_up(f, values["descriptor"], f.word(NodeField.CONSTANT))
    b = look_up(f, values["b"], f.put(f"add i64 {shape}, 1"))
    a = look_up(f, values["a"], f.put(f"add i64 {shape}, {3 if tensor_a else 2}"))
    accumulate = f.put(f"zext i1 {_nonzero(f, values['enable'])} to i64")
    column, m, n = _accumulator(f, shape, values["d"], accumulate)
    _unpack(f, shape, b, Shape.UNPACK_B, Shape.VALUES_B, _B_AT, tensor=False)
    _unpack(f, shape, a, Shape.UNPACK_A, Shape.VALUES_A, 0, tensor=tensor_a)
    k_count = _meaning(f, shape, Shape.K)
    if scaled:
        _scale_factors(f, shape, values["sfa"], m, Shape.SFA_BYTE, _SCALE_A_AT)
        _scale_factors(f, shape, values["sfb"], n, Shape.SFB_BYTE, _SCALE_B_AT)
        _scale(f, m, n, k_count)
    place = f.put(f"mul i64 {column}, 4")
    data, shadow = (f.at(f.word(field, "ptr"), place) for field in (State.TENSOR, State.TENSOR_SHADOW))
    scratch = f.word(State.SCRATCH, "ptr")
    arguments = (
        f"ptr {scratch}, ptr {f.at(scratch, _B_AT, 'double')}, ptr {data}, ptr {shadow}, "
        f"ptr {_meaning(f, shape, Shape.LANES, 'ptr')}, i64 {m}, i64 {n}, i64 {k_count}, i64 {n}, i64 {accumulate}"
    )
    f.put(f"call i64 {_meaning(f, shape, Shape.PRODUCT, 'ptr')}({arguments})")
    rows = n if tensor_a else f.put(f"add i64 {m}, {n}")
    f.add_word(State.SHARED_LOAD, f.put(f"mul i64 {rows}, {K_BYTES}"))
    f.add_word(State.TENSOR_STORE, f.put(f"mul i64 {f.put(f'mul i64 {m}, {n}')}, 4"))
    f.add_word(State.EPOCH, "1")
    f.body = f.finish()
    return f


def _nonzero(f: FunctionWriter, value: str) -> str:
    return f.put(f"icmp ne i64 {value}, 0")


def _meaning(f: FunctionWriter, record: str, field: IntEnum, element: str = "i64") -> str:
    """A word of a shape or a place."""
    return f.load(element, f.put(f"inttoptr i64 {record} to ptr"), int(field), "i64")


def _wide(f: FunctionWriter, value: str, bits: int) -> str:
    return f.put(f"zext i{bits} {value} to i64")


def look_up(f: FunctionWriter, key: str, kind: str) -> str:
    """The address of what a key means; refuses if it is unknown."""
    mixed = f.put(f"xor i64 {f.put(f'mul i64 {key}, {signed(_MIX[0])}')}, {f.put(f'mul i64 {kind}, {signed(_MIX[1])}')}")
    row = f.put(f"lshr i64 {mixed}, {64 - TABLE_BITS}")
    table = f.word(State.MEANINGS, "ptr")
    first, second = (f.at(table, f.put(f"mul i64 {r}, 3"), "i64") for r in (row, f.put(f"xor i64 {row}, 1")))
    entry = f.put(f"select i1 {_matches(f, first, key, kind)}, ptr {first}, ptr {second}")
    f.require(_matches(f, entry, key, kind))
    return f.load("i64", entry, 2, "i64")


def _matches(f: FunctionWriter, entry: str, key: str, kind: str) -> str:
    same = [f.put(f"icmp eq i64 {f.load('i64', entry, i, 'i64')}, {wanted}") for i, wanted in enumerate((key, kind))]
    return f.put(f"and i1 {same[0]}, {same[1]}")


def require_owned(f: FunctionWriter, column: str, columns: str) -> None:
    """Refuse unless the columns exist and are allocated."""
    f.require(f.put(f"icmp ule i64 {f.put(f'add i64 {column}, {columns}')}, {tmem.COLUMNS}"))
    owned = f.word(State.TENSOR_OWNED, "ptr")
    with f.loop(columns) as k:
        f.require(f.put(f"icmp ne i8 {f.load('i8', owned, f.put(f'add i64 {column}, {k}'))}, 0"))


def _accumulator(f: FunctionWriter, shape: str, d: str, accumulate: str) -> tuple[str, str, str]:
    """(column, M, N) of D at lane 0; refuses if it is not allocated, or is read and partly poison."""
    f.require(f.put(f"icmp ult i64 {d}, {tmem.COLUMNS}"))
    m, n = _meaning(f, shape, Shape.M), _meaning(f, shape, Shape.N)
    require_owned(f, d, n)
    lanes, shadow = _meaning(f, shape, Shape.LANES, "ptr"), f.word(State.TENSOR_SHADOW, "ptr")
    read = f.put(f"mul i64 {m}, {accumulate}")  # rows of D that are read
    with f.loop(read) as row:
        lane = _wide(f, f.load("i32", lanes, row, "i32"), 32)
        cells = f.at(shadow, f.put(f"add i64 {f.put(f'mul i64 {lane}, {tmem.COLUMNS}')}, {d}"), "i32")
        with f.loop(n, step=8) as k:
            word = f.put(f"bitcast <8 x i32> {f.load('<8 x i32>', cells, k, 'i32')} to i256")
            f.require(f.put(f"icmp eq i256 {word}, 0"))
    return d, m, n


def _unpack(f: FunctionWriter, shape: str, place: str, how: Shape, values: Shape, to: int, *, tensor: bool) -> None:
    """Elements of an operand to scratch memory; refuses if some are poison or out of bounds."""
    high = _meaning(f, place, Field.HIGH)
    if tensor:
        require_owned(f, _meaning(f, place, Field.FIRST), str(K_BYTES // 4))
        memory, shadow = f.word(State.TENSOR, "ptr"), f.word(State.TENSOR_SHADOW, "ptr")
        f.require(f.put(f"icmp ule i64 {high}, {4 * tmem.LANES * tmem.COLUMNS}"))
    else:
        memory, shadow = f.word(State.SHARED, "ptr"), f.word(State.SHARED_SHADOW, "ptr")
        f.require(f.put(f"icmp ule i64 {high}, {f.word(State.SHARED_END)}"))
    scratch = f.word(State.SCRATCH, "ptr")
    target, turned = f.at(scratch, to, "double"), f.at(scratch, _TURNED_AT, "double")
    turn = _nonzero(f, _meaning(f, place, Field.TURN))
    first = f.put(f"select i1 {turn}, ptr {turned}, ptr {target}")
    arguments = (
        f"ptr {memory}, ptr {shadow}, ptr {_meaning(f, place, Field.RUNS, 'ptr')}, i64 {_meaning(f, place, Field.COUNT)}, "
        f"ptr {first}, ptr {_meaning(f, shape, values, 'ptr')}"
    )
    poison = f.put(f"call i64 {_meaning(f, shape, how, 'ptr')}({arguments})")
    f.require(f.put(f"icmp eq i64 {poison}, 0"))
    rows, columns = _meaning(f, place, Field.ROWS), _meaning(f, place, Field.COLUMNS)
    count = f.put(f"select i1 {turn}, i64 {rows}, i64 0")
    with f.loop(count) as r:
        line = f.at(turned, f.put(f"mul i64 {r}, {columns}"), "double")
        with f.loop(columns) as c:
            at = f.put(f"add i64 {f.put(f'mul i64 {c}, {rows}')}, {r}")
            f.store("double", f.load("double", line, c, "double"), target, at, "double")


def _scale_factors(f: FunctionWriter, shape: str, address: str, rows: str, byte: Shape, to: int) -> None:
    """The factors of rows of A, or columns of B, to scratch memory; refuses if copies differ or are poison."""
    column = f.put(f"and i64 {address}, {0x3FFFFFFF}")  # bits 31:30 may repeat the scale id
    f.require(f.put(f"icmp ult i64 {column}, {tmem.COLUMNS}"))
    require_owned(f, column, f.put(f"lshr i64 {f.put(f'add i64 {rows}, {tmem.PARTITION_LANES - 1}')}, 5"))
    data, shadow = f.word(State.TENSOR, "ptr"), f.word(State.TENSOR_SHADOW, "ptr")
    table, target = _meaning(f, shape, Shape.SCALES, "ptr"), f.at(f.word(State.SCRATCH, "ptr"), to, "double")
    chosen = _meaning(f, shape, byte)
    with f.loop(rows) as r:
        lane, beside = f.put(f"and i64 {r}, {tmem.PARTITION_LANES - 1}"), f.put(f"lshr i64 {r}, 5")
        cell = f.put(f"add i64 {f.put(f'mul i64 {lane}, {tmem.COLUMNS}')}, {f.put(f'add i64 {column}, {beside}')}")
        at = f.put(f"add i64 {f.put(f'mul i64 {cell}, 4')}, {chosen}")
        code = f.load("i8", data, at)
        for copy in range(tmem.LANES // tmem.PARTITION_LANES):
            there = f.put(f"add i64 {at}, {4 * copy * tmem.PARTITION_LANES * tmem.COLUMNS}")
            f.require(f.put(f"icmp eq i8 {f.load('i8', data, there)}, {code}"))
            f.require(f.put(f"icmp eq i8 {f.load('i8', shadow, there)}, 0"))
        f.store("double", f.load("double", table, _wide(f, code, 8), "double"), target, r, "double")


def _scale(f: FunctionWriter, m: str, n: str, k_count: str) -> None:
    """Multiply A (M, K) and B (K, N) in scratch memory by their factors."""
    scratch = f.word(State.SCRATCH, "ptr")
    b, factors_a, factors_b = (f.at(scratch, at, "double") for at in (_B_AT, _SCALE_A_AT, _SCALE_B_AT))
    with f.loop(m) as r:
        factor = f.load("double", factors_a, r, "double")
        line = f.at(scratch, f.put(f"mul i64 {r}, {k_count}"), "double")
        with f.loop(k_count) as k:
            f.store("double", f.put(f"fmul double {f.load('double', line, k, 'double')}, {factor}"), line, k, "double")
    vector = "<8 x double>"
    with f.loop(k_count) as k:
        line = f.at(b, f.put(f"mul i64 {k}, {n}"), "double")
        with f.loop(n, step=8) as c:
            product = f.put(f"fmul {vector} {f.load(vector, line, c, 'double')}, {f.load(vector, factors_b, c, 'double')}")
            f.store(vector, product, line, c, "double")
