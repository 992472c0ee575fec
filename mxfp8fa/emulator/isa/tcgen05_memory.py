"""Tensor memory instructions, PTX ISA section 9.7.16: alloc, dealloc, ld, st, wait, cp, shift, fence, commit."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, PoisonError
from mxfp8fa.emulator.isa import mbarriers
from mxfp8fa.emulator.isa.barrier import uniform
from mxfp8fa.emulator.isa.registry import machine, refuse
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.cluster import CTA
from mxfp8fa.emulator.machine.tensor_core import descriptor, operand_addresses, padded_codes, tensor_pipe, the_pair
from mxfp8fa.emulator.machine.warp import Late, Outcome, Warp, indices_of
from mxfp8fa.layouts import tmem
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor

GROUPS = ("cta_group::1", "cta_group::2")
NUMBERS = tuple(f"x{1 << i}" for i in range(8))
SPACES = ("shared::cta",)
SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b")
LD = "9.7.16.8 tcgen05.ld"
refuse(r"tcgen05\.ld\.red", "loads that also reduce (.red) do not exist on sm_100a")


def whole_warp(warp: Warp, bits: int, what: str) -> bool:
    """Whether all live threads are here (else the group waits for them); IllegalOperation if a guard leaves some out."""
    if not warp.converged(warp.live, what):
        return False
    warp.require_full(bits, what)
    return True


# -- allocation -------------------------------------------------------------------------------------------------------


@machine("tcgen05.alloc.group.sync.aligned{.ss}.b32 [d], a:u32", group=GROUPS, ss=SPACES, section="9.7.16.7 tcgen05.alloc",
         not_modelled="contention between CTAs of one SM")  # fmt: skip
def alloc(warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, *, group: str, ss: str | None = None) -> Outcome | None:
    """Allocate a columns for the CTA (both CTAs of a pair), waiting until they are free; their address goes to shared [d]."""
    if not whole_warp(warp, bits, "tcgen05.alloc"):
        return Outcome.BLOCKED
    same_group(warp, group)
    columns = uniform(bits, a, "the column count of tcgen05.alloc")
    base = _allocate(warp, columns, group)
    if isinstance(base, Outcome):
        return base
    lane = 1 << int(indices_of(bits)[0])
    access.store(warp, lane, ss or "generic", d, [(np.full(32, base, np.uint32), None)])
    return None


def _allocate(warp: Warp, columns: int, group: str) -> int | Outcome:
    """Base column for this CTA. In a pair, whoever comes second (or finds room first) allocates for both."""
    memory, pair = warp.cta.tensor, the_pair(warp.cta, group)
    if memory.granted is None:
        memory.requested = columns
        wanted = [cta.tensor.requested for cta in pair]
        if None in wanted:
            reason = f"tcgen05.alloc.cta_group::2 of {columns} columns waits for the other CTA of the pair to allocate too"
            return warp.block(("tmem", warp.cta.number), reason)
        if len(set(wanted)) > 1:
            raise IllegalOperation(f"tcgen05.alloc.cta_group::2 of {wanted} columns by the CTAs of a pair: both must want the same")
        if not all(cta.tensor.has_room(columns) for cta in pair):
            return warp.block(("tmem", warp.cta.number), f"tcgen05.alloc waits for free columns; allocated: {memory.allocated}")
        for cta in pair:
            cta.tensor.granted, cta.tensor.requested = cta.tensor.allocate(columns), None
            warp.machine.wake(("tmem", cta.number))
        warp.machine.progress()
    base, memory.granted = memory.granted, None
    assert base is not None
    return base


@machine("tcgen05.dealloc.group.sync.aligned.b32 a:u32, b:u32", group=GROUPS, section="9.7.16.7 tcgen05.dealloc")
def dealloc(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, group: str) -> Outcome | None:
    """Free the b columns at address a."""
    if not whole_warp(warp, bits, "tcgen05.dealloc"):
        return Outcome.BLOCKED
    same_group(warp, group)
    address = uniform(bits, a, "the address of tcgen05.dealloc")
    warp.cta.tensor.free(address, uniform(bits, b, "the column count of tcgen05.dealloc"))
    warp.machine.progress()
    for cta in the_pair(warp.cta, group):
        warp.machine.wake(("tmem", cta.number))
    return None


@machine(
    "tcgen05.relinquish_alloc_permit.group.sync.aligned",
    group=GROUPS,
    section="9.7.16.7 tcgen05.relinquish_alloc_permit",
)
def relinquish(warp: Warp, bits: int, *, group: str) -> Outcome | None:
    """The CTA allocates no more."""
    if not whole_warp(warp, bits, "tcgen05.relinquish_alloc_permit"):
        return Outcome.BLOCKED
    same_group(warp, group)
    warp.cta.tensor.relinquished = True
    return None


def same_group(warp: Warp, group: str) -> int:
    """1 or 2; all tcgen05 instructions of a kernel must use the same .cta_group."""
    used = warp.machine.tcgen05_group = warp.machine.tcgen05_group or group
    if used != group:
        raise IllegalOperation(
            f".{group} in a kernel that has used .{used}: all tcgen05 instructions must use the same group"
        )
    if group == "cta_group::2" and len(warp.cta.cluster.ctas) % 2:
        raise IllegalOperation(f".cta_group::2 in a cluster of {len(warp.cta.cluster.ctas)} CTA(s): it needs pairs")
    return int(group[-1])


# -- ld, st, wait -----------------------------------------------------------------------------------------------------


def _cells(
    warp: Warp, bits: int, a: np.ndarray, shape: str, number: str, packed: bool, split: int, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Absolute (registers, 32) lanes and columns of a warp's access.

    Warp w of a warpgroup reaches lanes 32w to 32w + 31. A lane field below 32 counts from there (inferred: public kernels
    rely on it; the ISA does not say).
    """
    address = uniform(bits, a, f"the address of {what}")
    lane, column = tmem.split_address(address)
    first = tmem.PARTITION_LANES * (warp.index % 4)
    if lane >= tmem.PARTITION_LANES and lane // tmem.PARTITION_LANES * tmem.PARTITION_LANES != first:
        raise IllegalOperation(f"{what} at lane {lane}: warp {warp.index} may only reach lanes {first} to {first + 31}")
    within = lane % tmem.PARTITION_LANES
    if within not in ((0,) if shape == "32x32b" else (0, 16)):
        raise IllegalOperation(
            f"{what} at lane {lane}: .{shape} starts at a multiple of {32 if shape == '32x32b' else 16}"
        )
    lanes, columns = tmem.fragment_cells(shape, int(number[1:]), packed=packed, split_columns=split)
    lanes, columns = lanes + first + within, columns + column
    warp.cta.tensor.check(lanes, columns + int(packed), what)
    return lanes, columns


def _read(cta: CTA, lanes: np.ndarray, columns: np.ndarray, packed: bool) -> list[access.Tracked]:
    values, shadow = cta.tensor.read(lanes, columns, "tcgen05.ld")
    if packed:
        high, high_shadow = cta.tensor.read(lanes, columns + 1, "tcgen05.ld")
        values = values & np.uint32(0xFFFF) | high << np.uint32(16)
        shadow = shadow & np.uint32(0xFFFF) | high_shadow << np.uint32(16)
    if shadow.any() and cta.machine.options.uninitialised == "strict":
        register, lane = (int(i[0]) for i in np.nonzero(shadow))
        place = f"lane {int(lanes[register, lane])}, column {int(columns[register, lane])}"
        raise PoisonError(f"tcgen05.ld of tensor memory that was never written ({place})", lane=lane)
    return [(v, s if s.any() else None) for v, s in zip(values, shadow, strict=True)]


def _ld(warp: Warp, bits: int, a: np.ndarray, shape: str, number: str, packed: bool, split: int = 0) -> Any:
    if not whole_warp(warp, bits, "tcgen05.ld"):
        return Outcome.BLOCKED
    cta = warp.cta
    lanes, columns = _cells(warp, bits, a, shape, number, packed, split, "tcgen05.ld")
    warp.machine.count_bytes("tensor load", 4 * lanes.size * (1 + packed))
    watch = warp.machine.watch
    watch.tensor_pending(cta, lanes, columns)
    return Late(lambda: _read(cta, lanes, columns, packed), lambda: watch.tensor(cta, lanes, columns, write=False))


@machine(
    "tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32 d, [a]",
    shape=SHAPES,
    num=NUMBERS,
    section=LD,
    extra={"late": True},
)
def ld(warp: Warp, bits: int, a: np.ndarray, *, shape: str, num: str, pack_16b: bool = False, **_: Any) -> Any:
    """d = a fragment of tensor memory; complete at wait::ld, or when a register is used."""
    return _ld(warp, bits, a, shape, num, pack_16b)


@machine(
    "tcgen05.ld.sync.aligned.16x32bx2.num{.pack::16b}.b32 d, [a], b:u32", num=NUMBERS, section=LD, extra={"late": True}
)
def ld_split(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, num: str, pack_16b: bool = False) -> Any:
    """d = two fragments of 16 lanes, the second b columns further."""
    return _ld(warp, bits, a, "16x32bx2", num, pack_16b, int(b[0]))


def _st(
    warp: Warp,
    bits: int,
    a: np.ndarray,
    words: list[access.Tracked],
    shape: str,
    number: str,
    unpack: bool,
    split: int = 0,
) -> Outcome | None:
    if not whole_warp(warp, bits, "tcgen05.st"):
        return Outcome.BLOCKED
    cta = warp.cta
    lanes, columns = _cells(warp, bits, a, shape, number, unpack, split, "tcgen05.st")
    values = np.stack([v for v, _ in words])
    shadow = np.stack([np.zeros_like(v) if s is None else s for v, s in words])
    warp.machine.count_bytes("tensor store", 4 * lanes.size * (1 + unpack))

    def run() -> None:
        warp.machine.watch.tensor(cta, lanes, columns, write=True)
        low = np.uint32(0xFFFF) if unpack else np.uint32(0xFFFFFFFF)
        cta.tensor.write(lanes, columns, values & low, shadow & low, "tcgen05.st")
        if unpack:  # the upper halves of unpacked cells are not documented: written as zero
            cta.tensor.write(lanes, columns + 1, values >> np.uint32(16), shadow >> np.uint32(16), "tcgen05.st")
        warp.machine.progress()
        warp.machine.wake(("tcgen05.st", warp.number))

    pending = warp.extra.setdefault("tcgen05_st", [])
    pending.append(
        warp.machine.asynchronous.issue(AsyncOp(("tcgen05.st", warp.number), run, warp.site(warp.group.pc), "tcgen05.st"))
    )
    return None


@machine("tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32 [a], b:u32", shape=SHAPES, num=NUMBERS, section="9.7.16.8 tcgen05.st",
         extra={"tracked": ("b",)}, not_modelled="upper halves of the cells of .unpack::16b (written as zero)")  # fmt: skip
def st(
    warp: Warp, bits: int, a: np.ndarray, b: Any, *, shape: str, num: str, unpack_16b: bool = False
) -> Outcome | None:
    """A fragment of tensor memory = b; complete at wait::st."""
    return _st(warp, bits, a, b, shape, num, unpack_16b)


@machine(
    "tcgen05.st.sync.aligned.16x32bx2.num{.unpack::16b}.b32 [a], c:u32, b:u32",
    num=NUMBERS,
    section="9.7.16.8 tcgen05.st",
    extra={"tracked": ("b",)},
)
def st_split(
    warp: Warp, bits: int, a: np.ndarray, c: np.ndarray, b: Any, *, num: str, unpack_16b: bool = False
) -> Outcome | None:
    """Two fragments of 16 lanes = b, the second c columns further."""
    return _st(warp, bits, a, b, "16x32bx2", num, unpack_16b, int(c[0]))


@machine("tcgen05.wait::ld.sync.aligned", section="9.7.16.8 tcgen05.wait")
def wait_ld(warp: Warp, bits: int) -> Outcome | None:
    """Wait until the thread's tcgen05.ld are complete."""
    if not whole_warp(warp, bits, "tcgen05.wait::ld"):
        return Outcome.BLOCKED
    warp.settle_all()
    return None


@machine("tcgen05.wait::st.sync.aligned", section="9.7.16.8 tcgen05.wait")
def wait_st(warp: Warp, bits: int) -> Outcome | None:
    """Wait until the thread's tcgen05.st are complete."""
    if not whole_warp(warp, bits, "tcgen05.wait::st"):
        return Outcome.BLOCKED
    if any(not op.done for op in warp.extra.get("tcgen05_st", ())):
        return warp.block(("tcgen05.st", warp.number), "tcgen05.wait::st: stores are pending")
    for op in warp.extra.pop("tcgen05_st", ()):
        warp.machine.watch.waited(op)
    return None


# -- the tensor pipe: cp, shift, commit, fence ------------------------------------------------------------------------


@machine(
    "tcgen05.place",
    place=("fence::before_thread_sync", "fence::after_thread_sync"),
    section="9.7.16.11 tcgen05.fence",
    not_modelled="ordering: it changes nothing here",
)
def fence(warp: Warp, bits: int, *, place: str) -> None:
    """Order tcgen05 instructions against those of other threads."""
    warp.machine.watch.fence(f"tcgen05.{place}")


@machine(
    "tcgen05.commit.group.mbarrier::arrive::one{.ss}.b64 [a]",
    group=GROUPS,
    ss=("shared::cluster",),
    section="9.7.16.12 tcgen05.commit",
)
def commit(warp: Warp, bits: int, a: np.ndarray, *, group: str, ss: str | None = None) -> None:
    """One arrival on [a] when the prior tcgen05.mma, cp and shift of the thread are complete."""
    _commit(warp, bits, a, None, group, ss)


@machine(
    "tcgen05.commit.group.mbarrier::arrive::one{.ss}.multicast::cluster.b64 [a], b:u16",
    group=GROUPS,
    ss=("shared::cluster",),
    section="9.7.16.12 tcgen05.commit",
)
def commit_multicast(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, group: str, ss: str | None = None) -> None:
    """As commit, with an arrival at the same offset in every CTA of mask b."""
    _commit(warp, bits, a, b, group, ss)


def _commit(warp: Warp, bits: int, a: np.ndarray, mask: np.ndarray | None, group: str, ss: str | None) -> None:
    same_group(warp, group)
    site, by = warp.site(warp.group.pc), mbarriers.who(warp)
    for lane in indices_of(bits):
        cta, offset = access.shared_word(warp, "shared::cluster", int(a[lane]), 8, "mbarrier")
        ctas = [cta] if mask is None else masked_ctas(warp, int(mask[lane]))

        def run(ctas: list[CTA] = ctas, offset: int = offset) -> None:
            for target in ctas:
                mbarriers.change(target, offset, lambda m: m.arrive(), f"{by} (tcgen05.commit)")

        warp.machine.asynchronous.issue(AsyncOp(tensor_pipe(warp, group), run, site, "tcgen05.commit"))


def masked_ctas(warp: Warp, mask: int) -> list[CTA]:
    """The CTAs of a multicast mask, bit = rank in the cluster."""
    ctas = warp.cta.cluster.ctas
    if mask >> len(ctas) or not mask:
        raise IllegalOperation(
            f"multicast mask {mask:#x}: the cluster has CTAs 0 to {len(ctas) - 1}, and at least one is needed"
        )
    return [cta for cta in ctas if mask >> cta.rank & 1]


COPY_FORMS = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")
DECOMPRESSED_BITS = {"b8x16.b4x16_p64": 4, "b8x16.b6x16_p32": 6}  # bits of an element in shared memory


@machine("tcgen05.cp.group.form{.unpack} [a], b:b64", group=GROUPS, form=COPY_FORMS, unpack=tuple(DECOMPRESSED_BITS),
         section="9.7.16.9 tcgen05.cp", confidence="inferred")  # fmt: skip
def cp(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, group: str, form: str, unpack: str | None = None) -> None:
    """Copy rows of shared memory, described by b, to tensor memory at [a]; with cta_group::2 in both CTAs of the pair, each from its own.

    Unpacking: groups of 16 elements of 4 or 6 bits in 16 bytes become 16 bytes; a 4-bit element goes to bits 5:2 of its
    byte, a 6-bit one to bits 5:0 (inferred).
    """
    same_group(warp, group)
    element_bits = 0 if unpack is None else DECOMPRESSED_BITS[unpack]
    shape, _, multicast = form.partition(".")
    site = warp.site(warp.group.pc)
    for lane in indices_of(bits):
        source = descriptor(int(b[lane]), "tcgen05.cp")
        if not element_bits:
            rows, row_bytes = tmem.COPY_SHAPES[shape]
            warp.machine.evaluator.copied(int(b[lane]), form, operand_addresses(source, rows, row_bytes, 4, False))
        address = int(a[lane])

        def run(source: MatrixDescriptor = source, address: int = address) -> None:
            for cta in the_pair(warp.cta, group):
                _copy_rows(cta, source, address, shape, multicast, element_bits)
            warp.machine.progress()

        warp.machine.asynchronous.issue(AsyncOp(tensor_pipe(warp, group), run, site, "tcgen05.cp"))


def _copy_rows(
    cta: CTA, source: MatrixDescriptor, address: int, shape: str, multicast: str, element_bits: int
) -> None:
    rows, row_bytes = tmem.COPY_SHAPES[shape]
    where = operand_addresses(source, rows, row_bytes, 4, False)
    cta.shared.check(where.reshape(-1).astype(np.uint64), 4, "tcgen05.cp")
    words, shadow = cta.shared.words.load(where, 4)
    lane, column = tmem.split_address(address)
    lanes = tmem.copy_lanes(shape, multicast) + lane
    columns = np.arange(row_bytes // 4) + column
    poison = np.zeros_like(words) if shadow is None else shadow
    if element_bits:
        words, poison = _unpacked(words, element_bits), _unpacked_poison(poison, element_bits)
    cta.machine.watch.shared(cta, where.reshape(-1), 4, write=False)
    for copy in lanes:
        cta.machine.watch.tensor(cta, copy[:, None] + 0 * columns, columns + 0 * copy[:, None], write=True)
        cta.tensor.write(copy[:, None] + 0 * columns, columns + 0 * copy[:, None], words, poison, "tcgen05.cp")
    cta.machine.count_bytes("tensor store", words.nbytes * len(lanes))
    cta.machine.count_bytes("shared load", words.nbytes)


def _unpacked(words: np.ndarray, element_bits: int) -> np.ndarray:
    """Words of 8-bit containers from words of padded groups, (rows, words)."""
    codes = padded_codes(np.ascontiguousarray(words).view(np.uint8), element_bits)
    return (codes << 2 if element_bits == 4 else codes).view(np.uint32)


def _unpacked_poison(shadow: np.ndarray, element_bits: int) -> np.ndarray:
    """A group with poison among its data bytes is poison as a whole; what its padding holds does not matter."""
    groups = np.ascontiguousarray(shadow).view(np.uint8).reshape(shadow.shape[0], -1, 16)
    poisoned = groups[:, :, : 2 * element_bits].any(axis=-1)
    return np.repeat(poisoned.astype(np.uint32) * np.uint32(0xFFFFFFFF), 4, axis=1)


@machine("tcgen05.shift.group.down [a]", group=GROUPS, section="9.7.16.9 tcgen05.shift", confidence="inferred")
def shift(warp: Warp, bits: int, a: np.ndarray, *, group: str) -> None:
    """Move 32-byte rows of tensor memory down by one lane, from the lane of [a] (a multiple of 32) on."""
    same_group(warp, group)
    lane, column = tmem.split_address(uniform(bits, a, "the address of tcgen05.shift"))
    if lane % tmem.PARTITION_LANES:
        raise IllegalOperation(f"tcgen05.shift at lane {lane}: a multiple of 32 is needed")
    columns = np.arange(column, column + 8)

    def run() -> None:
        for cta in the_pair(warp.cta, group):
            target, source = np.arange(lane, lane + 31)[:, None], np.arange(lane + 1, lane + 32)[:, None]
            cta.machine.watch.tensor(cta, target + 0 * columns, columns + 0 * target, write=True)
            values, shadow = cta.tensor.read(source + 0 * columns, columns + 0 * source, "tcgen05.shift")
            cta.tensor.write(target + 0 * columns, columns + 0 * target, values, shadow, "tcgen05.shift")
        warp.machine.progress()

    warp.machine.asynchronous.issue(AsyncOp(tensor_pipe(warp, group), run, warp.site(warp.group.pc), "tcgen05.shift"))
