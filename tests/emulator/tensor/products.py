"""One case of tcgen05.mma: its data, its PTX, and what plain NumPy says about the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from tests.emulator.tensor import operands
from tests.emulator.tensor.kernels import SM, copy_in, run, tensor_in, tensor_out, wait
from tests.emulator.tensor.operands import SPAN_BYTES
from tests.layouts.test_tmem import accumulator_by_hand

KINDS: dict[str, tuple[int, int]] = {  # K of one instruction, bytes of K
    "f16": (16, 32), "tf32": (8, 32), "f8f6f4": (32, 32), "i8": (32, 32),
    "mxf8f6f4": (32, 32), "mxf4": (64, 32), "mxf4nvf4": (64, 32),
}  # fmt: skip
FORMAT_CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}
D_CODES = {"f16": 0, "f32": 1, "s32": 2}
EMPTY = 0x7FA0DEAD
COLUMNS = 512
A_COLUMN, SFA_COLUMN, SFB_COLUMN = 256, 320, 352


@dataclass(frozen=True)
class Case:
    """What an instruction is; `steps` of them run over K."""

    kind: str = "f16"
    group: int = 1
    m: int = 128
    n: int = 32
    a: str = "bf16"
    b: str = "bf16"
    d: str = "f32"
    a_major: str = "K"
    b_major: str = "K"
    a_swizzle: str = "128B"
    b_swizzle: str = "128B"
    tensor_a: bool = False
    negate: tuple[bool, bool] = (False, False)
    saturate: bool = False
    accumulate: bool = False
    scale_d: int | None = None
    disabled: tuple[int, ...] = ()
    vector: str = ""
    scales: int = 0
    scale_format: str = "ue8m0"
    sfa_id: int = 0
    sfb_id: int = 0
    lane: int = 0
    steps: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def k(self) -> int:
        return KINDS[self.kind][0] * self.steps

    @property
    def packed(self) -> bool:
        return self.kind in ("mxf4", "mxf4nvf4")

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        return KINDS[self.kind][0] // self.scales

    def change(self, **values: Any) -> Case:
        return replace(self, **values)


def descriptor(c: Case, step: int = 0) -> int:
    """The 32-bit instruction descriptor, field by field as the ISA's tables list them."""
    codes = (1, 1) if c.packed else (FORMAT_CODES[c.a], FORMAT_CODES[c.b])
    word = codes[0] << 7 | codes[1] << 10 | c.negate[0] << 13 | c.negate[1] << 14
    word |= (c.a_major == "MN") << 15 | (c.b_major == "MN") << 16 | c.n >> 3 << 17 | c.m >> 4 << 24
    if c.scales:
        ids = (c.sfa_id + step, c.sfb_id + step) if c.steps > 1 else (c.sfa_id, c.sfb_id)
        return word | ids[1] << 4 | (c.scale_format == "ue8m0") << 23 | ids[0] << 29
    return word | D_CODES[c.d] << 4 | c.saturate << 3


@dataclass
class Data:
    """Raw operands of the whole product, scales, and the accumulator's start (values)."""

    a: np.ndarray
    b: np.ndarray
    sfa: np.ndarray
    sfb: np.ndarray
    c: np.ndarray


def random_data(c: Case, seed: int = 0) -> Data:
    """Asymmetric, non-uniform data; a power of two of its own for every row and block."""
    rng = np.random.default_rng(seed)
    a, b = operands.random_raw(rng, c.a, (c.m, c.k)), operands.random_raw(rng, c.b, (c.n, c.k))
    blocks = c.scales * c.steps
    if c.scale_format == "ue8m0":
        row, block = np.arange(c.m)[:, None], np.arange(blocks)[None, :]
        sfa = (127 + (row * 3 + block * 5) % 7 - 3).astype(np.uint8)
        column = np.arange(c.n)[:, None]
        sfb = (127 + (column * 2 + block * 3 + 1) % 7 - 3).astype(np.uint8)
    else:
        sfa, sfb = rng.integers(0, 0x7F, (c.m, blocks), np.uint8), rng.integers(0, 0x7F, (c.n, blocks), np.uint8)
    start = rng.integers(-(2**31), 2**31, (c.m, c.n)) if c.d == "s32" else rng.integers(-999, 1000, (c.m, c.n)) / 8
    return Data(a, b, sfa, sfb, start.astype(np.float64))


def scale_values(codes: np.ndarray, c: Case) -> np.ndarray:
    """Values of scale codes, one per element of K."""
    values = 2.0 ** (codes.astype(np.float64) - 127) if c.scale_format == "ue8m0" else operands.table("e4m3")[codes]
    return np.repeat(values, c.block, axis=1)


def dot(c: Case, data: Data, step: int) -> np.ndarray:
    """Exact sums of products of one step, (M, N) float64."""
    a, b = operands.values_of(data.a, c.a), operands.values_of(data.b, c.b)
    if c.scales:
        a, b = a * scale_values(data.sfa, c), b * scale_values(data.sfb, c)
    a, b = (-x if negated else x for x, negated in zip((a, b), c.negate, strict=True))
    part = slice(step * KINDS[c.kind][0], (step + 1) * KINDS[c.kind][0])
    return a[:, part] @ b[:, part].T


def expected(c: Case, data: Data) -> np.ndarray:
    """Raw cells of the product, (M, N): fl32(D + fl32(dot)) step by step; s32 exactly, then wrapped or saturated."""
    total = data.c if c.accumulate else np.zeros((c.m, c.n))
    if c.d == "s32":
        for step in range(c.steps):
            total = total + dot(c, data, step)
            total = np.clip(total, -(2**31), 2**31 - 1) if c.saturate else (total + 2**31) % 2**32 - 2**31
        return total.astype(np.int64).astype(np.int32).view(np.uint32)
    for step in range(c.steps):
        start = total * 2.0 ** -(c.scale_d or 0)
        with np.errstate(over="ignore"):
            total = (start.astype(np.float32) + dot(c, data, step).astype(np.float32)).astype(np.float64)
        if c.d == "f16":
            total = total.astype(np.float16).astype(np.float64)
    if c.d == "f16":
        return total.astype(np.float16).view(np.uint16).astype(np.uint32)
    return total.astype(np.float32).view(np.uint32)


def letter(c: Case) -> str:
    """The ISA's letter of the accumulator's layout."""
    return {(128, 1): "D", (64, 1): "F", (256, 2): "A", (128, 2): "B"}[c.m, c.group]


@cache
def cells_of(layout: str, rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, n) lanes and columns of an accumulator in one CTA."""
    places = np.array([[accumulator_by_hand(layout, r, column, n) for column in range(n)] for r in range(rows)])
    return places[..., 0], places[..., 1]


def spread(c: Case, cells: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """(CTA, 128, columns) of tensor memory with the (M, N) cells at their places, `initial` elsewhere."""
    found, rows = initial.copy(), c.m // c.group
    lanes, columns = cells_of(letter(c), rows, c.n)
    lanes = lanes + c.lane
    for cta in range(c.group):
        kept = np.zeros(lanes.shape, bool)
        if c.disabled:
            words = np.array(c.disabled[4 * cta : 4 * cta + 4], np.uint32)
            kept = (words[lanes // 32] >> (lanes % 32).astype(np.uint32) & 1).astype(bool)
        mine = cells[cta * rows : (cta + 1) * rows]
        found[cta, lanes[~kept], columns[~kept]] = mine[~kept]
    return found


# -- where things lie -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """An operand's place in shared memory."""

    start: int
    lbo: int
    sbo: int
    step_bytes: int
    size_bytes: int


def tile(major: str, swizzle: str, rows: int, k: int, k_bytes: int, start: int) -> Tile:
    """A legal layout with gaps: offsets that no two modes share, so that a swapped LBO and SBO shows."""
    span, per_step = SPAN_BYTES[swizzle], 32
    element_bytes = k_bytes // k if major == "MN" else 1
    if major == "K" and swizzle == "none":
        sbo = 128 * (k_bytes // 16) + 16  # 8 rows of one 16-byte column, columns of a row group next to each other
        return Tile(start, 128, sbo, 2 * 128, sbo * (rows // 8) + 2048)
    if major == "K":
        sbo = 8 * span + 1024
        return Tile(start, 0, sbo, per_step, sbo * (rows // 8) + 1024)
    depth = 4 if "atoms" in swizzle else 8
    steps_k = 32 // element_bytes  # elements of K of one instruction (16-bit: 16, 8-bit: 32, tf32: 8)
    across = -(-rows * element_bytes // span)
    if swizzle == "none":  # LBO along K, SBO along M or N
        lbo = 128 * across + 48 * 16
        return Tile(start, lbo, 128, steps_k // 8 * lbo, lbo * (k // 8) + 1024)
    sbo = depth * span * across + 1024
    return Tile(start, depth * span, sbo, steps_k // depth * sbo, sbo * (k // depth) + 1024)


def images(c: Case, data: Data) -> tuple[np.ndarray, Tile, Tile]:
    """(CTA, bytes) of shared memory from address 0x400 on, and the tiles of A and B."""
    k_bytes = KINDS[c.kind][1] * c.steps
    rows_a, rows_b = c.m // c.group, c.n // c.group
    a = tile(c.a_major, c.a_swizzle, rows_a, c.k, k_bytes, SM)
    b = tile(c.b_major, c.b_swizzle, rows_b, c.k, k_bytes, SM + -(-a.size_bytes // 2048) * 2048)
    size = -(-(b.start - SM + b.size_bytes) // 4096) * 4096
    found = np.full((c.group, size), 0x5A, np.uint8)
    for cta in range(c.group):
        for raw, fmt, rows, major, swizzle, t in (
            (data.a, c.a, rows_a, c.a_major, c.a_swizzle, a), (data.b, c.b, rows_b, c.b_major, c.b_swizzle, b),
        ):  # fmt: skip
            mine = operands.shared_rows(raw[cta * rows : (cta + 1) * rows], fmt, packed=c.packed)
            operands.place(found[cta], t.start, mine, operands.ELEMENT_BYTES.get(fmt, 1), major, swizzle, t.lbo, t.sbo)
    return found, a, b


def tensor_image(c: Case, data: Data, seed: int = 9) -> np.ndarray:
    """(CTA, 128, 512) of tensor memory before the product: D at column 0, A at 256, scale factors at 320 and 352."""
    found = np.random.default_rng(seed).integers(0, 2**32, (c.group, 128, COLUMNS), np.uint32)
    found[:, :, :A_COLUMN] = EMPTY
    raw = data.c.astype(np.float32).view(np.uint32)
    if c.d == "f16":
        raw = data.c.astype(np.float16).view(np.uint16).astype(np.uint32) | 0xABCD0000  # the upper half is not read
    elif c.d == "s32":
        raw = data.c.astype(np.int64).astype(np.int32).view(np.uint32)
    if c.accumulate:
        found[:, :, :A_COLUMN] = spread(c.change(disabled=()), raw, found[:, :, :A_COLUMN])
    for cta in range(c.group):
        _place_a(c, data, cta, found[cta])
        if c.scales:
            _place_scales(c, data, cta, found[cta])
    return found


def _place_a(c: Case, data: Data, cta: int, cells: np.ndarray) -> None:
    rows = c.m // c.group
    words = operands.tensor_rows(data.a[cta * rows : (cta + 1) * rows], c.a, packed=c.packed)
    for r in range(rows) if c.tensor_a else ():
        lane = accumulator_by_hand(letter(c), r, 0, 2)[0] + c.lane
        cells[lane, A_COLUMN : A_COLUMN + words.shape[1]] = words[r]
        if letter(c) == "B":
            cells[lane + 64, A_COLUMN : A_COLUMN + words.shape[1]] = words[r]


def _place_scales(c: Case, data: Data, cta: int, cells: np.ndarray) -> None:
    """Only the bytes that count; what else is in a cell differs between the copies."""
    octets, rows = cells.view(np.uint8).reshape(128, COLUMNS, 4), c.m // c.group
    for r in range(rows):
        for p in range(4):
            at = c.sfa_id + np.arange(data.sfa.shape[1])
            octets[32 * p + r % 32, SFA_COLUMN + r // 32, at] = data.sfa[cta * rows + r]
    for column in range(c.n):
        half, within = divmod(column, c.n // 2) if letter(c) == "B" else (0, column)
        for p in range(2 if letter(c) == "B" else 4):
            at = c.sfb_id + np.arange(data.sfb.shape[1])
            octets[64 * half + 32 * p + within % 32, SFB_COLUMN + within // 32, at] = data.sfb[column]


# -- PTX ------------------------------------------------------------------------------------------------------------------


def instructions(c: Case, a: Tile, b: Tile) -> str:
    """The tcgen05.mma of every step, issued by the leader."""
    lines = [f" add.u32 %b0, %r5, {c.lane << 16}; add.u32 %b1, %r5, {A_COLUMN + (c.lane << 16)};"]
    lines += [f" add.u32 %b2, %r5, {SFA_COLUMN}; add.u32 %b3, %r5, {SFB_COLUMN};"]
    for step in range(c.steps):
        flag = int(c.accumulate or step > 0)
        lines.append(f" mov.b32 %b4, {flag}; setp.ne.u32 %p1, %b4, 0; add.u32 %b5, %b1, {8 * step};")
        a_text = (
            "[%b5]"
            if c.tensor_a
            else str(operands.descriptor(a.start + step * a.step_bytes, a.lbo, a.sbo, c.a_swizzle))
        )
        b_text = str(operands.descriptor(b.start + step * b.step_bytes, b.lbo, b.sbo, c.b_swizzle))
        name = f"tcgen05.mma.cta_group::{c.group}.kind::{c.kind}"
        words = [
            f" @%leader {name}{'.block_scale' if c.scales else ''}{c.vector} [%b0], {a_text}, {b_text}, {descriptor(c, step)}"
        ]
        words += ["[%b2], [%b3]"] if c.scales else []
        words += ["{" + ", ".join(map(str, c.disabled)) + "}"] if c.disabled else []
        words += ["%p1"] + ([str(c.scale_d)] if c.scale_d is not None else [])
        lines.append(", ".join(words) + ";")
    return "\n".join(lines) + "\n"


def commit(group: int) -> str:
    """Arrive on barrier 0 of every CTA when the leader's work is done."""
    if group == 1:
        return " @%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];\n"
    return (
        " @%leader tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r4], 3;\n"
    )


def segments(c: Case) -> list[tuple[int, int]]:
    """(first column, columns) of tensor memory that the case uses."""
    found = [(0, -(-c.n // 8) * 8)]
    found += [(A_COLUMN, 8 * c.steps)] if c.tensor_a else []
    return found + ([(SFA_COLUMN, 8), (SFB_COLUMN, 8)] if c.scales else [])


def product(c: Case, data: Data, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """(cells found, tensor memory before) after the case's instructions ran as a kernel; (CTA, 128, n columns)."""
    shared, a, b = images(c, data)
    tensor = tensor_image(c, data)
    width = segments(c)[0][1]
    body, source = copy_in(shared.shape[1]), [shared]
    for first, columns in segments(c):
        body += tensor_in(sum(x.shape[1] for x in source), columns, first)
        source.append(np.ascontiguousarray(tensor[:, :, first : first + columns]).reshape(c.group, -1).view(np.uint8))
    body += (
        " barrier.cluster.arrive; barrier.cluster.wait;\n"
        + instructions(c, a, b)
        + commit(c.group)
        + wait()
        + tensor_out(width)
    )
    out = np.zeros((c.group, 128, width), np.uint32)
    run(
        body, out, np.concatenate(source, axis=1), ctas=c.group, group=c.group, columns=COLUMNS, shared_bytes=shared.shape[1],
        **(c.options | options),
    )  # fmt: skip
    return out, tensor[:, :, :width]


def check(c: Case, seed: int = 0, **options: Any) -> None:
    """The product agrees with NumPy in every cell, and everything beside it is untouched."""
    data = random_data(c, seed)
    found, before = product(c, data, **options)
    wanted = spread(c, expected(c, data), before)
    np.testing.assert_array_equal(found, wanted)
