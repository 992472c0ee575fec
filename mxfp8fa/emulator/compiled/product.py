"""The tensor core's product under accumulate="float32" as machine code: unpack both operands, multiply, round, add.

The arithmetic is that of `numerics.mma`: the dot product of an instruction in float64, rounded to float32, added to D in
float32. Products of 8- and 16-bit elements are exact in float64, and so is their sum unless its terms lie more than 37
binary places apart, so the order of the sum, which is the one thing that differs from a BLAS, does not matter.

`multiply` does the common cases: 8- or 16-bit elements, with or without E8M0 scales, accumulators in float32, nothing
poisoned. For all others it returns False before it has written anything.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mxfp8fa.emulator.compiled.function import FunctionWriter
from mxfp8fa.emulator.compiled.jit import available, the_jit, wide_vectors
from mxfp8fa.emulator.compiled.multiply import Field, Products, Shape, form_number
from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.layouts import tmem
from mxfp8fa.numerics.formats import E8M0, FORMATS, decode

if TYPE_CHECKING:
    from mxfp8fa.emulator.isa.tcgen05_descriptor import MMAShape
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.tensor_core import Product

KINDS = ("f16", "f8f6f4", "mxf8f6f4")
FORMATS_HERE = ("bf16", "f16", "e4m3", "e5m2")
_ONES = (np.ones((1, 1)), np.ones((1, 1)))
RUN = 8  # elements that lie side by side: 16 bytes in every swizzle, of 8- and of 16-bit elements


@dataclass(frozen=True)
class Tile:
    """The part of D that stays in vector registers: rows, columns, elements of a vector."""

    name: str
    rows: int
    columns: int
    width: int
    attributes: str = ""


NARROW = Tile("product", 4, 8, 4)
WIDE = Tile("product_wide", 8, 16, 8, '"prefer-vector-width"="512" "min-legal-vector-width"="512" ')


def tile_for(rows: int, columns: int) -> Tile:
    """The tile for a part of D with so many rows and columns."""
    return WIDE if wide_vectors() and rows % WIDE.rows == columns % WIDE.columns == 0 else NARROW



def _unpack(name: str, fmt: str) -> FunctionWriter:
    """Elements of a memory as float64; returns whether one of them is poison.

    Parameters: memory, its shadow, byte addresses of runs of RUN elements (i32), how many runs, result, table of the
    values of 8-bit codes.
    """
    f = FunctionWriter(name, "ptr %memory, ptr %shadow, ptr %runs, i64 %count, ptr %to, ptr %table")
    width = f"i{FORMATS[fmt].bits}"
    vector = f"<{RUN} x {width}>"
    with f.accumulate("%count", vector, ["zeroinitializer"]) as (i, (poison,), update):
        at = f.put(f"zext i32 {f.load('i32', '%runs', i, 'i32')} to i64")
        update[0] = f.put(f"or {vector} {poison}, {f.load(vector, '%shadow', at)}")
        to = f.at("%to", f.put(f"mul i64 {i}, {RUN}"), "double")
        if width == "i8":
            for k in range(RUN):
                code = f.put(f"zext i8 {f.load('i8', '%memory', f.put(f'add i64 {at}, {k}'))} to i64")
                f.store("double", f.load("double", "%table", code, "double"), to, k, "double")
        else:
            f.store(f"<{RUN} x double>", _wide(f, fmt, f.load(vector, "%memory", at)), to)
    word = f.put(f"bitcast {vector} {poison} to i{RUN * FORMATS[fmt].bits}")
    f.body = f.leave(f.put(f"zext i1 {f.put(f'icmp ne i{RUN * FORMATS[fmt].bits} {word}, 0')} to i64"))
    return f


def _wide(f: FunctionWriter, fmt: str, codes: str) -> str:
    """A run of 16-bit codes as float64."""
    single = f"<{RUN} x float>"
    if fmt == "f16":
        values = f.put(f"fpext <{RUN} x half> {f.put(f'bitcast <{RUN} x i16> {codes} to <{RUN} x half>')} to {single}")
    else:
        words = f.put(f"zext <{RUN} x i16> {codes} to <{RUN} x i32>")
        places = f"<{', '.join(['i32 16'] * RUN)}>"
        values = f.put(f"bitcast <{RUN} x i32> {f.put(f'shl <{RUN} x i32> {words}, {places}')} to {single}")
    return f.put(f"fpext {single} {values} to <{RUN} x double>")


def _product(tile: Tile) -> FunctionWriter:
    """D = fl(A B) (+ D): D in rows of tensor memory.

    Parameters: A (M, K) and B (K, stride) in float64, first column of D and of its shadow, lane of each of its
    rows, whether D is read (then all of it is clean).
    """
    f = FunctionWriter(
        tile.name,
        "ptr %a, ptr %b, ptr %d, ptr %shadow, ptr %lanes, i64 %m, i64 %n, i64 %k, i64 %stride, i64 %accumulate",
        tile.attributes,
    )
    add = f.put("icmp ne i64 %accumulate, 0")
    fresh = f.put(f"xor i1 {add}, true")
    with f.loop("%m", step=tile.rows) as row, f.loop("%n", step=tile.columns) as column:
        sums = _dot_products(f, tile, row, column)
        for r in range(tile.rows):
            lane = f.load("i32", "%lanes", f.put(f"add i64 {row}, {r}"), "i32")
            cell = f.put(f"mul i64 {f.put(f'zext i32 {lane} to i64')}, {tmem.COLUMNS}")
            for part, dot in enumerate(sums[r]):
                at = f.put(f"add i64 {cell}, {f.put(f'add i64 {column}, {tile.width * part}')}")
                _add_to(f, tile.width, dot, at, add)
                with f.when(fresh):
                    f.store(f"<{tile.width} x i32>", "zeroinitializer", "%shadow", at, "float")
    f.body = f.leave("0")
    return f


def _dot_products(f: FunctionWriter, tile: Tile, row: str, column: str) -> list[list[str]]:
    """Dot products of a tile, as vectors of float64."""
    width, parts = tile.width, tile.columns // tile.width
    vector = f"<{width} x double>"
    lines = [f.at("%a", f.put(f"mul i64 {f.put(f'add i64 {row}, {r}')}, %k"), "double") for r in range(tile.rows)]
    right = f.at("%b", column, "double")
    with f.accumulate("%k", vector, ["zeroinitializer"] * (tile.rows * parts)) as (k, sums, update):
        at = f.at(right, f.put(f"mul i64 {k}, %stride"), "double")
        b = [f.load(vector, at, width * p, "double") for p in range(parts)]
        for r in range(tile.rows):
            scalar = f.load("double", lines[r], k, "double")
            one = f.put(f"insertelement {vector} undef, double {scalar}, i32 0")
            a = f.put(f"shufflevector {vector} {one}, {vector} undef, <{width} x i32> zeroinitializer")
            for p in range(parts):
                i = r * parts + p
                terms = (f"{vector} {a}", f"{vector} {b[p]}", f"{vector} {sums[i]}")
                update[i] = f.call(f"llvm.fma.v{width}f64", vector, *terms)
    return [sums[r * parts : (r + 1) * parts] for r in range(tile.rows)]


def _add_to(f: FunctionWriter, width: int, dot: str, cell: str, add: str) -> None:
    """Round dot products to float32 and add them to D, or to zero; any NaN is canonical."""
    vector, words = f"<{width} x float>", f"<{width} x i32>"
    old = f.load(vector, "%d", cell, "float")
    start = f.put(f"select i1 {add}, {vector} {old}, {vector} zeroinitializer")
    total = f.put(f"fadd {vector} {start}, {f.put(f'fptrunc <{width} x double> {dot} to {vector}')}")
    nan = f.put(f"fcmp uno {vector} {total}, {total}")
    word = f.put(f"bitcast {vector} {total} to {words}")
    canonical = f"<{', '.join([f'i32 {0x7FFFFFFF}'] * width)}>"
    f.store(words, f.put(f"select <{width} x i1> {nan}, {words} {canonical}, {words} {word}"), "%d", cell, "float")


class Functions:
    """The compiled functions and the tables they use."""

    def __init__(self) -> None:
        writers = {fmt: _unpack(f"unpack_{fmt}", fmt) for fmt in FORMATS_HERE}
        products = {tile.name: _product(tile) for tile in ((NARROW, WIDE) if wide_vectors() else (NARROW,))}
        every = [*writers.values(), *products.values()]
        jit = the_jit()
        data = jit.compile([w.body for w in every], {d for w in every for d in w.declarations})
        addresses = jit.load(data, [f"unpack_{fmt}" for fmt in writers] + list(products))
        self.addresses = dict(zip([*writers, *products], addresses, strict=True))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        unpack = ctypes.CFUNCTYPE(integer, pointer, pointer, pointer, integer, pointer, pointer)
        self.unpack = {fmt: unpack(a) for fmt, a in zip(writers, addresses, strict=False)}
        product = ctypes.CFUNCTYPE(integer, *[pointer] * 5, *[integer] * 5)
        self.products = {name: product(self.addresses[name]) for name in products}
        codes = np.arange(256, dtype=np.uint8)
        self.scales = decode(codes, E8M0).astype(np.float64)
        self._values = {fmt: decode(codes, FORMATS[fmt]).astype(np.float64) for fmt in FORMATS_HERE if FORMATS[fmt].bits == 8}
        self.tables = {fmt: values.ctypes.data for fmt, values in self._values.items()}


@lru_cache(maxsize=1)
def _functions() -> Functions:
    return Functions()


@dataclass(frozen=True)
class Place:
    """Where the elements of an operand lie.

    Attributes:
        runs: byte addresses of runs of RUN elements.
        pointer: to them.
        shape: of the elements, in the order of the runs.
        turn: whether the other order is wanted.
        low, high: first byte and the one after the last.
    """

    runs: np.ndarray
    pointer: int
    shape: tuple[int, int]
    turn: bool
    low: int
    high: int


@lru_cache(maxsize=4096)
def _shared_place(word: int, rows: int, shape: MMAShape, mn_major: bool, transposed: bool) -> Place | None:
    from mxfp8fa.emulator.machine.tensor_core import descriptor, operand_addresses

    found = operand_addresses(descriptor(word, "operand"), rows, shape.k_bytes, shape.element_bytes, mn_major)
    return _place(found, shape.element_bytes, transposed)


@lru_cache(maxsize=1024)
def _tensor_place(address: int, shape: MMAShape) -> Place | None:
    lane, column = tmem.split_address(address)
    cells = (tmem.row_lanes(shape.m, shape.cta_group)[:, None] + lane) * tmem.COLUMNS + column
    elements = np.arange(shape.k_bytes // shape.element_bytes) * shape.element_bytes
    return _place(4 * cells + elements, shape.element_bytes, False)


def _place(addresses: np.ndarray, element_bytes: int, transposed: bool) -> Place | None:
    """The place of (rows, K) addresses, wanted as (K, rows) if `transposed`; None if they do not come in runs."""
    for turned in (False, True):
        order = addresses.T if turned else addresses
        if order.shape[1] % RUN:
            continue
        runs = order.reshape(order.shape[0], -1, RUN)
        if (np.diff(runs, axis=-1) == element_bytes).all():
            starts = np.ascontiguousarray(runs[:, :, 0], np.int32)
            low, high = int(addresses.min()), int(addresses.max()) + element_bytes
            return Place(starts, starts.ctypes.data, order.shape, turned != transposed, low, high)
    return None


@lru_cache(maxsize=1024)
def can_multiply(shape: MMAShape) -> bool:
    """Whether products of this shape have compiled code."""
    return (
        available() and shape.kind in KINDS and shape.d_format == "f32"
        and shape.a_format in FORMATS_HERE and shape.b_format in FORMATS_HERE
        and not shape.negate_a and not shape.negate_b
    )  # fmt: skip


def multiply(ctas: list[CTA], p: Product) -> bool:
    """As `tensor_core.multiply` under accumulate="float32"; False, and nothing done, where that has to do it."""
    shape = p.shape
    if not can_multiply(shape) or p.scale_d or p.disabled or ctas[0].machine.watch.watching:
        return False
    if p.a_in_tensor_memory and shape.m == 128 and shape.cta_group == 2:
        return False
    targets = [_target(cta, p) for cta in ctas]
    b = _read_b(ctas, p)
    if b is None or None in targets:
        return False
    products = []
    for cta, target in zip(ctas, targets, strict=True):
        a, factors = _read_a(cta, p), _scales(cta, p)
        if a is None or factors is None:
            return False
        products.append((target, a, b) if not shape.scales else (target, a * factors[0], b * factors[1]))
    for target, a, right in products:
        assert target is not None
        _write(target, p, a, right)
    for cta in ctas:
        _count(cta, p, len(ctas))
    ctas[0].machine.progress()
    return True


def learn(products: Products, p: Product) -> None:
    """Note what the descriptors of a product mean; `multiply` has just done it for one CTA."""
    shape = p.shape
    a = place_of_a(p)
    b = place_of_b(p, shape.n)
    known = products.shapes.get(shape)
    if known is None:
        known = products.shapes[shape] = shape_words(shape)
    if a is None or b is None or known is None:
        return
    address = known.ctypes.data  # a multiple of 8: the low bits tell operands apart
    products.enter(shape.descriptor, form_number(shape.kind, shape.vector), known)
    products.enter(p.b, address + 1, _place_words(b), b)
    first = tmem.split_address(p.a)[1] if p.a_in_tensor_memory else 0
    products.enter(p.a, address + (3 if p.a_in_tensor_memory else 2), _place_words(a, first), a)


def _place_words(place: Place, first_column: int = 0) -> np.ndarray:
    words = np.zeros(len(Field), np.int64)
    words[Field.RUNS], words[Field.COUNT], words[Field.HIGH] = place.pointer, place.runs.size, place.high
    words[Field.ROWS], words[Field.COLUMNS] = place.shape
    words[Field.TURN], words[Field.FIRST] = place.turn, first_column
    return words


def place_of_a(p: Product) -> Place | None:
    """Where A lies, or None."""
    if p.a_in_tensor_memory:
        return _tensor_place(p.a, p.shape)
    return _shared_place(p.a, p.shape.m // p.shape.cta_group, p.shape, p.shape.a_mn_major, False)


def place_of_b(p: Product, rows: int) -> Place | None:
    """Where `rows` columns of B lie, or None."""
    return _shared_place(p.b, rows, p.shape, p.shape.b_mn_major, True)


def shape_words(shape: MMAShape) -> np.ndarray:
    """What compiled code has to know about an instruction descriptor, see `multiply.Shape`."""
    functions, (starts, _, _, _) = _functions(), _lanes(shape.m, shape.n, shape.cta_group)
    words = np.zeros(len(Shape), np.int64)
    words[Shape.UNPACK_A], words[Shape.UNPACK_B] = (functions.addresses[x] for x in (shape.a_format, shape.b_format))
    words[Shape.PRODUCT], words[Shape.LANES] = functions.addresses[tile_for(shape.m, shape.n).name], starts.ctypes.data
    words[Shape.VALUES_A], words[Shape.VALUES_B] = (functions.tables.get(x, 0) for x in (shape.a_format, shape.b_format))
    words[Shape.SCALES] = functions.scales.ctypes.data
    words[Shape.M], words[Shape.N], words[Shape.K] = shape.m, shape.n, shape.k
    words[Shape.SFA_BYTE], words[Shape.SFB_BYTE] = shape.sfa_id, shape.sfb_id
    return words


def _read_b(ctas: list[CTA], p: Product) -> np.ndarray | None:
    """B as (K, N) float64, each CTA of a pair having a part of N; None if some of it is poison or out of bounds."""
    shape, place = p.shape, place_of_b(p, p.shape.n // len(ctas))
    parts = [_unpack_shared(cta, place, shape.b_format) for cta in ctas]
    found = [x for x in parts if x is not None]
    if len(found) < len(parts):
        return None
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def _read_a(cta: CTA, p: Product) -> np.ndarray | None:
    """A of one CTA as (M, K) float64, or None."""
    shape = p.shape
    place = place_of_a(p)
    if not p.a_in_tensor_memory:
        return _unpack_shared(cta, place, shape.a_format)
    lane, column = tmem.split_address(p.a)
    if lane not in shape.lane_bases or not cta.tensor.owned[column : column + shape.k_bytes // 4].all():
        return None
    if place is None or place.high > cta.tensor.data.nbytes:
        return None
    return _unpack_at(cta.tensor.data_address, cta.tensor.shadow_address, place, shape.a_format)


def _unpack_shared(cta: CTA, place: Place | None, fmt: str) -> np.ndarray | None:
    words = cta.shared.words
    if place is None or place.low < SHARED_BASE or place.high > words.size_bytes:
        return None
    return _unpack_at(words.data_address, words.shadow_address, place, fmt)


def _unpack_at(data: int, shadow: int, place: Place, fmt: str) -> np.ndarray | None:
    f, found = _functions(), np.empty(place.shape)
    if f.unpack[fmt](data, shadow, place.pointer, place.runs.size, found.ctypes.data, f.tables.get(fmt)):
        return None
    return np.ascontiguousarray(found.T) if place.turn else found


def _scales(cta: CTA, p: Product) -> tuple[np.ndarray, np.ndarray] | None:
    """The factors of A, (M, 1), and of B, (1, N); None if one is poison."""
    from mxfp8fa.emulator.machine.tensor_core import read_scales

    shape = p.shape
    if not shape.scales:
        return _ONES
    pair = shape.m == 128 and shape.cta_group == 2
    sfa, bad_a = read_scales(cta, p.sfa, shape.m // shape.cta_group, shape.sfa_id, shape.scales, pair, "A")
    sfb, bad_b = read_scales(cta, p.sfb, shape.n, shape.sfb_id, shape.scales, pair, "B")
    if bad_a.any() or bad_b.any():
        return None
    table = _functions().scales
    return table[sfa[:, 0]][:, None], table[sfb[:, 0]][None, :]


@dataclass(frozen=True)
class Target:
    """Where one CTA's part of D goes: tensor memory, first column, and per group of columns the lanes of the rows."""

    cta: CTA
    column: int
    lanes: np.ndarray
    columns: int


@cache
def _lanes(m: int, n: int, cta_group: int) -> tuple[np.ndarray, int, int, int]:
    """((groups, rows) lanes, columns of a group, first and one after the last lane)."""
    _, lanes, columns = tmem.accumulator_layout(m, n, cta_group)
    width = int(columns.max()) + 1
    starts = np.ascontiguousarray(lanes[:, ::width].T, np.int32)
    return starts, width, int(lanes.min()), int(lanes.max()) + 1


def _target(cta: CTA, p: Product) -> Target | None:
    """D of one CTA, its poison gone; None if it is out of bounds, or is read and partly poison."""
    shape = p.shape
    lane, column = tmem.split_address(p.d)
    lanes, width, low, high = _lanes(shape.m, shape.n, shape.cta_group)
    end = column + width
    if lane not in shape.lane_bases or high + lane > tmem.LANES or end > tmem.COLUMNS or width % NARROW.columns:
        return None
    if not cta.tensor.owned[column:end].all():
        return None
    if p.accumulate and cta.tensor.shadow[low + lane : high + lane, column:end].any():
        return None
    return Target(cta, column, lanes + lane if lane else lanes, width)


def _write(target: Target, p: Product, a: np.ndarray, b: np.ndarray) -> None:
    """The product of one CTA."""
    tensor, (k, n), place = target.cta.tensor, b.shape, 4 * target.column
    left, right = a.ctypes.data, b.ctypes.data
    for group, lanes in enumerate(target.lanes):
        _functions().products[tile_for(len(lanes), target.columns).name](
            left, right + 8 * group * target.columns, tensor.data_address + place, tensor.shadow_address + place,
            lanes.ctypes.data, len(lanes), target.columns, k, n, p.accumulate,
        )  # fmt: skip


def _count(cta: CTA, p: Product, ctas: int) -> None:
    """The bytes that moved, as `tensor_core` counts them."""
    shape = p.shape
    rows = shape.n // ctas + (0 if p.a_in_tensor_memory else shape.m // shape.cta_group)
    cta.machine.count_bytes("shared load", rows * shape.k_bytes)
    cta.machine.count_bytes("tensor store", 4 * shape.m // shape.cta_group * shape.n)
