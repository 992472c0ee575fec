"""The tensor core: reads operands from shared and tensor memory, multiplies, writes the accumulator.

What an instruction may be is in `isa.tcgen05_descriptor`; here is what it does. The arithmetic is `numerics.mma`, the
same function that the NumPy models use, so both sides of a comparison round alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, PoisonError
from mxfp8fa.emulator.machine.cluster import CTA
from mxfp8fa.layouts import tmem
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor, byte_addresses
from mxfp8fa.numerics.formats import E8M0, FORMATS, decode
from mxfp8fa.numerics.mma import mma
from mxfp8fa.numerics.tensor_core_fp4 import fp4_step

if TYPE_CHECKING:
    from mxfp8fa.emulator.isa.tcgen05_descriptor import MMAShape
    from mxfp8fa.emulator.machine.warp import Warp


def tensor_pipe(warp: Warp, group: str) -> Hashable:
    """The in-order queue of a CTA (cta_group::1) or of a pair.

    mma, cp, shift and commit of one pipe complete in issue order. For mma before a later cp of the same thread the ISA
    does not promise that, but kernels rely on it.
    """
    rank = warp.cta.rank if group == "cta_group::1" else warp.cta.rank // 2 * 2
    return ("tensor", warp.cta.cluster.number, group, rank)


def the_pair(cta: CTA, group: str) -> list[CTA]:
    """The CTAs that an instruction works in: one, or the even and the odd one of a pair."""
    if group == "cta_group::1":
        return [cta]
    even = cta.rank // 2 * 2
    return cta.cluster.ctas[even : even + 2]


@lru_cache(maxsize=4096)
def descriptor(word: int, what: str) -> MatrixDescriptor:
    """A shared-memory matrix descriptor; IllegalOperation naming the field that is wrong."""
    try:
        return MatrixDescriptor.decode(word)
    except ValueError as error:
        raise IllegalOperation(f"{what}: {error}") from None


@lru_cache(maxsize=1024)
def operand_addresses(d: MatrixDescriptor, rows: int, k_bytes: int, element_bytes: int, mn_major: bool) -> np.ndarray:
    """`byte_addresses`, remembered: a kernel uses the same few descriptors again and again."""
    addresses = byte_addresses(d, rows, k_bytes, element_bytes, mn_major=mn_major)
    addresses.flags.writeable = False
    return addresses


@lru_cache(maxsize=1024)
def _words_touched(d: MatrixDescriptor, rows: int, k_bytes: int, element_bytes: int, mn_major: bool) -> np.ndarray:
    """Offsets of the 4-byte words that an operand lies in."""
    return np.unique(operand_addresses(d, rows, k_bytes, element_bytes, mn_major) & ~3)


@dataclass(frozen=True)
class Operand:
    """Values of one operand in one CTA, and which rows contain poison.

    Attributes:
        values: (rows, K) float32.
        poison: (rows,) bool.
    """

    values: np.ndarray
    poison: np.ndarray


def read_shared(
    cta: CTA, d: MatrixDescriptor, rows: int, fmt: str, shape: MMAShape, mn_major: bool, what: str
) -> Operand:
    """An operand from shared memory."""
    element_bytes = shape.element_bytes
    addresses = operand_addresses(d, rows, shape.k_bytes, element_bytes, mn_major)
    cta.shared.check(
        np.array([addresses.min(), addresses.max()], np.uint64), element_bytes, f"tcgen05.mma operand {what}"
    )
    if cta.machine.watch.watching:
        cta.machine.watch.shared(cta, _words_touched(d, rows, shape.k_bytes, element_bytes, mn_major), 4, write=False)
    words, shadow = cta.shared.words.load(addresses, element_bytes)
    poison = np.zeros(rows, bool) if shadow is None else np.any(_data_bytes(shadow, fmt, shape) != 0, axis=1)
    cta.machine.count_bytes("shared load", words.nbytes)
    return Operand(values_of(words, fmt, shape), poison)


def _data_bytes(words: np.ndarray, fmt: str, shape: MMAShape) -> np.ndarray:
    """Raw elements without the padding of 4- and 6-bit groups, which nothing reads."""
    if shape.packed_fp4 or fmt not in FORMATS or FORMATS[fmt].bits >= 8:
        return words
    return words.reshape(words.shape[0], -1, 16)[:, :, : 2 * FORMATS[fmt].bits].reshape(words.shape[0], -1)


def read_tensor_a(cta: CTA, address: int, fmt: str, shape: MMAShape) -> Operand:
    """Operand A from tensor memory: K-major, packed into 32-bit columns."""
    lane, column = tmem.split_address(address)
    if lane not in shape.lane_bases:
        raise IllegalOperation(f"tcgen05.mma: A at lane {lane}; allowed for M = {shape.m}: {shape.lane_bases}")
    lanes, columns = np.broadcast_arrays(
        (tmem.row_lanes(shape.m, shape.cta_group) + lane)[:, None], np.arange(shape.k_bytes // 4) + column
    )
    cells, shadow = _read_cells_of_a(cta, lanes, columns)
    if shape.m == 128 and shape.cta_group == 2:  # both halves of the lanes must hold the CTA's 64 rows
        other, other_shadow = _read_cells_of_a(cta, lanes + 64, columns)
        shadow = shadow | other_shadow
        if ((cells != other) & (shadow == 0)).any():
            raise IllegalOperation("tcgen05.mma, M = 128 of a pair: the copies of A in lanes 0-63 and 64-127 differ")
    words = np.ascontiguousarray(cells).view(f"u{shape.element_bytes}")
    return Operand(values_of(words, fmt, shape, in_tensor_memory=True), np.any(shadow != 0, axis=1))


def _read_cells_of_a(cta: CTA, lanes: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cta.machine.watch.tensor(cta, lanes, columns, write=False)
    return cta.tensor.read(lanes, columns, "tcgen05.mma operand A")


def values_of(words: np.ndarray, fmt: str, shape: MMAShape, *, in_tensor_memory: bool = False) -> np.ndarray:
    """float32 values of raw operand elements."""
    if fmt == "f16":
        return words.view(np.float16).astype(np.float32)
    if fmt == "bf16":
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if fmt == "tf32":
        return words.view(np.float32)
    if fmt in ("s8", "u8"):
        return words.view(np.int8 if fmt == "s8" else np.uint8).astype(np.float32)
    if shape.packed_fp4:  # two per byte, the lower K in the low nibble
        words = np.stack([words & 0xF, words >> 4], axis=-1).reshape(words.shape[0], -1)
    elif FORMATS[fmt].bits < 8:
        words = _from_tensor_container(words, fmt) if in_tensor_memory else padded_codes(words, FORMATS[fmt].bits)
    return decode(words, FORMATS[fmt])


def padded_codes(words: np.ndarray, bits: int) -> np.ndarray:
    """Codes of 4- and 6-bit elements, (rows, K): every 16 bytes hold 16 of them, from the lowest bit on, and padding."""
    rows = words.shape[0]
    stream = np.unpackbits(words.reshape(rows, -1, 16), axis=-1, bitorder="little")[:, :, : 16 * bits]
    elements = stream.reshape(rows, -1, 16, bits)
    return (elements << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8).reshape(rows, -1)


def _from_tensor_container(words: np.ndarray, fmt: str) -> np.ndarray:
    """A 4-bit element sits in bits 5:2 of its byte, a 6-bit one in bits 5:0 (inferred)."""
    return words >> 2 & 0xF if FORMATS[fmt].bits == 4 else words & 0x3F


def read_scales(
    cta: CTA, address: int, rows: int, first_byte: int, count: int, pair: bool, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, count) scale bytes from tensor memory, and which rows contain poison. All copies read must agree.

    `pair`: of an M = 128 of two CTAs, where a partition has only some rows and columns.
    """
    lane, column = tmem.split_address(address & 0x3FFFFFFF)  # bits 31:30 may repeat the scale id
    lanes, columns = tmem.scale_cells(rows, split=pair and what == "B", own=pair and what == "A")
    cta.machine.watch.tensor(cta, lanes + lane, columns + column, write=False)
    cells, shadow = cta.tensor.read(lanes + lane, columns + column, f"tcgen05.mma scale factors {what}")
    used = slice(first_byte, first_byte + count)
    scales, poison = (np.ascontiguousarray(x).view(np.uint8).reshape(-1, rows, 4)[:, :, used] for x in (cells, shadow))
    differ = ((scales != scales[0]) & ((poison | poison[0]) == 0)).any(axis=-1)
    if differ.any():
        copy, row = (int(i[0]) for i in np.nonzero(differ))
        raise IllegalOperation(
            f"tcgen05.mma: scale factors {what} of row {row} differ between the lane partitions "
            f"({int(cells[0, row]):#010x} in the first, {int(cells[copy, row]):#010x} in number {copy}); all must be equal"
        )
    return scales[0], np.any(poison != 0, axis=(0, 2))


def scaled(values: np.ndarray, scales: np.ndarray, scale_format: str) -> np.ndarray:
    """Values times their scales, exact in float32 for 4-bit elements."""
    per = values.shape[1] // scales.shape[1]
    factor = decode(scales, E8M0) if scale_format == "ue8m0" else np.abs(decode(scales, FORMATS["e4m3"]))
    with np.errstate(invalid="ignore"):
        return values * np.repeat(factor, per, axis=1)


@dataclass(frozen=True)
class Product:
    """Everything one tcgen05.mma needs, captured at issue.

    Attributes:
        shape: kind, M, N, K, formats, majors.
        d, a, b: addresses and descriptors; a is an address in tensor memory if a_in_tensor_memory.
        accumulate: enable-input-d.
        scale_d: scale-input-d, the accumulator is multiplied by 2**-scale_d.
        sfa, sfb: tensor-memory addresses of the scale factors.
        disabled: per CTA of the pair, (128,) lanes that are not written.
    """

    shape: MMAShape
    d: int
    a: int
    b: int
    a_in_tensor_memory: bool
    accumulate: bool
    scale_d: int = 0
    sfa: int = 0
    sfb: int = 0
    disabled: tuple[np.ndarray, ...] = ()


def multiply(ctas: list[CTA], p: Product, mode: str) -> None:
    """D = A B (+ D) in one CTA or in both of a pair: each has its rows of A and D and its half of B."""
    shape = p.shape
    if mode == "float32" and ctas[0].machine.evaluator.multiply(ctas, p):
        return
    parts = [
        read_shared(
            cta,
            descriptor(p.b, "tcgen05.mma operand B"),
            shape.n // len(ctas),
            shape.b_format,
            shape,
            shape.b_mn_major,
            "B",
        )
        for cta in ctas
    ]
    b = Operand(np.concatenate([x.values for x in parts]), np.concatenate([x.poison for x in parts]))
    if shape.negate_b:
        b = Operand(-b.values, b.poison)
    for i, cta in enumerate(ctas):
        a = read_tensor_a(cta, p.a, shape.a_format, shape) if p.a_in_tensor_memory else read_shared(
            cta, descriptor(p.a, "tcgen05.mma operand A"), shape.m // shape.cta_group, shape.a_format, shape, shape.a_mn_major, "A"
        )  # fmt: skip
        if shape.negate_a:
            a = Operand(-a.values, a.poison)
        _multiply_one(cta, p, a, b, mode, p.disabled[i] if p.disabled else None)
    ctas[0].machine.progress()


def _multiply_one(cta: CTA, p: Product, a: Operand, b: Operand, mode: str, disabled: np.ndarray | None) -> None:
    shape = p.shape
    _, lanes, columns = tmem.accumulator_layout(shape.m, shape.n, shape.cta_group)
    lane, column = tmem.split_address(p.d)
    if lane not in shape.lane_bases:
        raise IllegalOperation(
            f"tcgen05.mma: accumulator at lane {lane}; allowed for M = {shape.m}: {shape.lane_bases}"
        )
    lanes, columns = lanes + lane, columns + column
    rows_poison, columns_poison = a.poison, b.poison
    a_scale = b_scale = None
    if shape.scales:
        pair = shape.m == 128 and shape.cta_group == 2
        rows = shape.m // shape.cta_group
        a_scale, sfa_poison = read_scales(cta, p.sfa, rows, shape.sfa_id, shape.scales, pair, "A")
        b_scale, sfb_poison = read_scales(cta, p.sfb, shape.n, shape.sfb_id, shape.scales, pair, "B")
        rows_poison, columns_poison = rows_poison | sfa_poison, columns_poison | sfb_poison
    cta.machine.watch.tensor(cta, lanes, columns, write=True)
    c, c_poison = _accumulator(cta, p, lanes, columns)
    result = _arithmetic(p, a.values, b.values, a_scale, b_scale, c, mode)
    poison = (rows_poison[:, None] | columns_poison[None, :] | c_poison).astype(np.uint32) * np.uint32(0xFFFFFFFF)
    if disabled is None or not disabled.any():
        cta.tensor.write(lanes, columns, result, poison, "tcgen05.mma accumulator")
    else:
        keep = ~disabled[lanes]
        cta.tensor.check(lanes, columns, "tcgen05.mma accumulator")
        cta.tensor.write(lanes[keep], columns[keep], result[keep], poison[keep], "tcgen05.mma accumulator")
    cta.machine.count_bytes("tensor store", result.nbytes)


def _accumulator(cta: CTA, p: Product, lanes: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Raw cells of D (None if it is not read), and which of them are poison."""
    if not p.accumulate:
        return None, np.zeros(lanes.shape, bool)
    cells, shadow = cta.tensor.read(lanes, columns, "tcgen05.mma accumulator")
    if cta.machine.options.uninitialised == "strict" and shadow.any():
        raise PoisonError("tcgen05.mma accumulates onto tensor memory that was never written")
    used = np.uint32(0xFFFF if p.shape.d_format == "f16" else 0xFFFFFFFF)
    return cells, shadow & used != 0


def _arithmetic(
    p: Product, a: np.ndarray, b: np.ndarray, a_scale: np.ndarray | None, b_scale: np.ndarray | None,
    c: np.ndarray | None, mode: str,
) -> np.ndarray:  # fmt: skip
    """Raw cells of the new accumulator."""
    shape = p.shape
    if shape.kind == "i8":
        return _integer(shape, a, b, c)
    start = None if c is None else _accumulator_values(c, shape.d_format, p.scale_d)
    if shape.packed_fp4:
        assert a_scale is not None and b_scale is not None
        if mode == "blackwell":
            result = fp4_step(a, b, start, a_scale, b_scale, shape.scale_format)
            return result.view(np.uint32)
        a, b = scaled(a, a_scale, shape.scale_format), scaled(b, b_scale, shape.scale_format)
        a_scale = b_scale = None
    d_format = "f16" if shape.d_format == "f16" else "f32"
    result = mma(
        a, b, start, a_scale=a_scale, b_scale=b_scale, a_fmt=shape.a_format, b_fmt=shape.b_format, k_slice=shape.k,
        accumulate=mode, d_fmt=d_format,
    )  # fmt: skip
    nan = np.isnan(result)
    if d_format == "f16":
        half = result.astype(np.float16).view(np.uint16).astype(np.uint32)
        return np.where(nan, np.uint32(0x7FFF), half)
    return np.where(nan, np.uint32(0x7FFFFFFF), result.astype(np.float32).view(np.uint32))


def _accumulator_values(cells: np.ndarray, d_format: str, scale_d: int) -> np.ndarray:
    """float32 values of D, times 2**-scale_d (exact but for results below the smallest normal float32)."""
    values = cells.view(np.float32)
    if d_format == "f16":
        values = (cells & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float32)
    return values * np.float32(2.0**-scale_d) if scale_d else values


def _integer(shape: MMAShape, a: np.ndarray, b: np.ndarray, c: np.ndarray | None) -> np.ndarray:
    """s32 accumulation: exact, then saturated or wrapped."""
    total = a.astype(np.float64) @ b.astype(np.float64).T
    if c is not None:
        total = total + c.view(np.int32)
    if shape.saturate:
        total = np.clip(total, -(2.0**31), 2.0**31 - 1)
    return (total.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
