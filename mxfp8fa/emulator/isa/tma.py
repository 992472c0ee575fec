"""TMA: tensor and bulk copies, reductions, their groups, and tensor-map instructions, PTX ISA section 9.7.9.25 to 9.7.9.27.

Every copy is asynchronous: addresses, sizes and the tensor map are taken at issue, data moves at completion.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, OutOfBounds, PoisonError
from mxfp8fa.emulator.isa import mbarriers
from mxfp8fa.emulator.isa.bulk_reductions import Combine, of_tensor, of_type
from mxfp8fa.emulator.isa.registry import machine, refuse
from mxfp8fa.emulator.isa.tcgen05_memory import masked_ctas
from mxfp8fa.emulator.machine import access, tensor_map
from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.cluster import CTA
from mxfp8fa.emulator.machine.groups import GroupTracker
from mxfp8fa.emulator.machine.tensor_map import TensorMap
from mxfp8fa.emulator.machine.warp import Outcome, Warp, indices_of

DIMS = tuple(f"{n}d" for n in range(1, 6))
GROUPS = ("cta_group::1", "cta_group::2")
OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
SHARED = ("shared::cta", "shared::cluster")
COMPLETE = "mbarrier::complete_tx::bytes"
MULTICAST = ("multicast::cluster",)
TENSOR = "9.7.9.27 cp.async.bulk.tensor"
BULK = "9.7.9.25 cp.async.bulk"
refuse(r"cp\.(reduce\.)?async\.bulk\..*\.im2col", "im2col modes are not supported by the emulator")
_SHARED_ALIGNMENT_BYTES = 128  # of the shared address of a tensor copy
_BULK_ALIGNMENT_BYTES = 16


# -- tensor loads -----------------------------------------------------------------------------------------------------


_TENSOR_LOAD = {"dim": DIMS, "dst": SHARED, "mode": ("tile", "tile::gather4"), "group": GROUPS, "late_group": GROUPS,
                "section": TENSOR, "not_modelled": "im2col modes; cache hints"}  # fmt: skip


@machine(
    f"cp.async.bulk.tensor.dim.dst.global{{.mode}}.{COMPLETE}.multicast{{.group}}{{.L2::cache_hint}}{{.late_group}} "
    "[d], [a], [m], b:b16{, c:b64}", multicast=MULTICAST, **_TENSOR_LOAD,
)  # fmt: skip
@machine(
    f"cp.async.bulk.tensor.dim.dst.global{{.mode}}.{COMPLETE}{{.group}}{{.L2::cache_hint}}{{.late_group}} "
    "[d], [a], [m]{, b:b64}", **_TENSOR_LOAD,
)  # fmt: skip
def load(
    warp: Warp, bits: int, d: np.ndarray, a: list[np.ndarray], m: np.ndarray, b: Any = None, c: Any = None, *, dim: str, dst: str, mode: str = "tile",
    multicast: str | None = None, group: str | None = None, late_group: str | None = None, **_: Any,
) -> None:  # fmt: skip
    """Copy a box of a tensor to shared memory [d], or to that of the CTAs of mask b, then complete its bytes on mbarrier [m]."""
    for lane in indices_of(bits):
        tensor, coordinates, rows = _tensor_operand(warp, a, int(lane), dim, mode)
        tensor_map.check_coordinates(tensor, coordinates, write=False)
        box = tensor_map.box_of(tensor, coordinates, rows)
        tensor_map.check_box(box, tensor, warp.machine.memory, "TMA load", write=False)
        home, offset = _shared_place(
            warp,
            int(d[lane]),
            tensor_map.shared_bytes(tensor, box),
            "the destination of a TMA load",
            _SHARED_ALIGNMENT_BYTES,
        )
        barrier_cta, barrier = access.shared_word(warp, "shared::cluster", int(m[lane]), 8, "mbarrier")
        pair = (group or late_group) == "cta_group::2"
        ctas = masked_ctas(warp, int(b[lane])) if multicast else [home]
        for cta in ctas:
            signalled = _signalled(cta, barrier_cta, pair=pair, multicast=bool(multicast))
            _queue_load(warp, tensor, box, cta, offset, signalled, barrier)
        if rows is None:
            warp.machine.evaluator.loaded(int(a[0][lane]), tensor, box)


def _signalled(cta: CTA, barrier_cta: CTA, *, pair: bool, multicast: bool) -> CTA:
    """Whose mbarrier a load into `cta` completes on: its own; with cta_group::2 that of the barrier's parity in its pair."""
    if pair:
        return cta.cluster.ctas[cta.rank // 2 * 2 + barrier_cta.rank % 2]
    if not multicast and cta is not barrier_cta:
        raise IllegalOperation(
            f"TMA load into {cta} with an mbarrier of {barrier_cta}: they must be in one CTA (or use .cta_group::2)"
        )
    return cta


def _queue_load(
    warp: Warp, tensor: TensorMap, box: tensor_map.Box, cta: CTA, offset: int, signalled: CTA, barrier: int
) -> None:
    by, site, m = mbarriers.who(warp), warp.site(warp.group.pc), warp.machine
    size = tensor_map.counted_bytes(tensor, box)

    def run() -> None:
        if m.watch.watching:
            m.watch.memory(box.addresses[box.inside].astype(np.uint64), tensor.element_bytes, write=False)
            m.watch.shared(cta, slice(offset, offset + tensor_map.shared_bytes(tensor, box)), 4, write=True)
        chunks = tensor_map.chunks_of(tensor, offset) if box.whole else None
        if chunks is not None:
            source, target = chunks
            origin = np.uint64(box.addresses.reshape(-1)[0])
            cta.shared.words.store_chunks(target, m.memory.load(source.astype(np.uint64) + origin, 16))
        else:
            _write_shared(cta, tensor, box, offset, tensor_map.read_box(box, tensor, m.memory))
        m.count_bytes("global load", size)
        m.count_bytes("shared store", size)
        mbarriers.change(signalled, barrier, lambda x: x.complete_tx(size), f"{by} (TMA load)")

    m.asynchronous.issue(
        AsyncOp(("tma load", m.next_number()), run, site, "cp.async.bulk.tensor", agent=_agent(signalled, barrier))
    )


def _agent(signalled: CTA, barrier: int) -> Hashable:
    """Copies that complete on one mbarrier are one agent to an observer."""
    return ("TMA", signalled.index, barrier)


def _write_shared(cta: CTA, tensor: TensorMap, box: tensor_map.Box, offset: int, data: np.ndarray) -> None:
    """Place dense elements; padding of 4- and 6-bit groups stays as it is."""
    offsets = tensor_map.shared_offsets(tensor, offset, box)
    size = tensor.element_bytes
    if size in (1, 2, 4, 8):
        cta.shared.words.store(offsets, size, np.ascontiguousarray(data).view(f"u{size}")[:, 0], None)
    else:
        for i in range(size):
            cta.shared.words.store(offsets + i, 1, data[:, i], None)


def _tensor_operand(
    warp: Warp, a: Any, lane: int, dim: str, mode: str
) -> tuple[TensorMap, tuple[int, ...], tuple[int, ...] | None]:
    """Map, coordinates and, for gather4 and scatter4, the four rows."""
    if not isinstance(a, list):
        raise IllegalOperation("a tensor copy needs [tensor map, {coordinates}]")
    address = int(a[0][lane])
    where = np.array([address], np.uint64)
    warp.machine.memory.check(where, 64, "tensor map", write=False)
    tensor = tensor_map.decode(warp.machine.memory.bytes(address, tensor_map.DECODED_BYTES).tobytes())
    coordinates = tuple(int(x.view(np.int32)[lane]) for x in a[1:])
    if int(dim[0]) != tensor.rank:
        raise IllegalOperation(f".{dim} copy with a tensor map of rank {tensor.rank}")
    if mode in ("tile::gather4", "tile::scatter4"):
        if tensor.rank != 2 or len(coordinates) != 5:
            raise IllegalOperation(
                f".{mode} needs a tensor map of rank 2 and 5 coordinates, not {tensor.rank} and {len(coordinates)}"
            )
        return tensor, (coordinates[0], 0), coordinates[1:]
    return tensor, coordinates, None


def _shared_place(
    warp: Warp, address: int, size: int, what: str, alignment: int, *, own: bool = False
) -> tuple[CTA, int]:
    """CTA and offset of `size` bytes of shared memory, checked; `own`: they must be the warp's own CTA's."""
    cta, offset = access.shared_word(warp, "shared::cta" if own else "shared::cluster", address, 1, what)
    if offset % alignment:
        raise IllegalOperation(f"{what} at shared offset {offset:#x}: a multiple of {alignment} is needed")
    cta.shared.check(np.array([offset + size - 1], np.uint64), 1, what)
    return cta, offset


# -- tensor stores and reductions -------------------------------------------------------------------------------------


@machine("cp.async.bulk.tensor.dim.global.shared::cta{.mode}.bulk_group{.L2::cache_hint} [a], [d]{, c:b64}", dim=DIMS, mode=("tile", "tile::scatter4"), section=TENSOR,
         not_modelled="im2col modes; cache hints")  # fmt: skip
def store(
    warp: Warp, bits: int, a: list[np.ndarray], d: np.ndarray, c: Any = None, *, dim: str, mode: str = "tile", **_: Any
) -> None:
    """Copy a box from shared memory [d] to a tensor; elements outside the tensor are dropped."""
    _store(warp, bits, a, d, dim, mode, None)


@machine("cp.reduce.async.bulk.tensor.dim.global.shared::cta.op{.mode}.bulk_group{.L2::cache_hint} [a], [d]{, c:b64}", dim=DIMS, op=OPS, mode=("tile",), section="9.7.9.27 cp.reduce.async.bulk.tensor",
         not_modelled="im2col modes; cache hints")  # fmt: skip
def reduce(
    warp: Warp,
    bits: int,
    a: list[np.ndarray],
    d: np.ndarray,
    c: Any = None,
    *,
    dim: str,
    op: str,
    mode: str = "tile",
    **_: Any,
) -> None:
    """Combine a box of shared memory [d] into a tensor, element by element; outside elements are dropped."""
    _store(warp, bits, a, d, dim, mode, op)


def _store(warp: Warp, bits: int, a: Any, d: np.ndarray, dim: str, mode: str, op: str | None) -> None:
    if not isinstance(a, list):
        raise IllegalOperation("a tensor copy needs [tensor map, {coordinates}]")
    for lane, same in _alike(bits, [*a, d], apart=op is not None):
        tensor, coordinates, rows = _tensor_operand(warp, a, lane, dim, mode)
        tensor_map.check_coordinates(tensor, coordinates + (rows or ()), write=True)
        whole = tensor_map.box_of(tensor, coordinates, rows)
        box = tensor_map.Box(whole.addresses, tensor_map.stored(tensor, whole))
        tensor_map.check_box(box, tensor, warp.machine.memory, "TMA store", write=True)
        if tensor.padded_bytes:
            raise IllegalOperation(f"TMA store of {tensor.type}: padded types can only be loaded")
        size = tensor_map.shared_bytes(tensor, box)
        cta, offset = _shared_place(
            warp, int(d[lane]), size, "the source of a TMA store", _SHARED_ALIGNMENT_BYTES, own=True
        )
        combine = None if op is None else of_tensor(op, tensor)
        where, addresses, word_bytes = _stored_words(warp, tensor, box, offset, copied=combine is None and whole.whole)
        _queue_store(warp, same, cta, where, addresses, word_bytes, combine, "cp.async.bulk.tensor")


def _stored_words(
    warp: Warp, tensor: TensorMap, box: tensor_map.Box, offset: int, *, copied: bool
) -> tuple[np.ndarray, np.ndarray, int]:
    """(offsets in shared memory, global addresses, bytes) of what a store moves: elements, or words of 8 bytes if it copies."""
    chunks = tensor_map.chunks_of(tensor, offset) if copied and not warp.machine.watch.watching else None
    if chunks is None:
        where = tensor_map.shared_offsets(tensor, offset, box)[box.inside.reshape(-1)]
        return where, box.addresses[box.inside].astype(np.uint64), tensor.element_bytes
    halves = np.array([0, 8])
    source = box.addresses.reshape(-1)[0] + chunks[0]
    target = chunks[1] * tensor_map.CHUNK_BYTES
    return (target[:, None] + halves).reshape(-1), (source[:, None] + halves).reshape(-1).astype(np.uint64), 8


def _alike(bits: int, operands: list[np.ndarray], *, apart: bool) -> list[tuple[int, int]]:
    """(lane, threads) of stores to do: threads with the same operands store the same bytes to the same place, once.

    apart: every thread for itself (reductions add up).
    """
    groups: dict[tuple[int, ...], tuple[int, int]] = {}
    for lane in indices_of(bits).tolist():
        key = (lane,) if apart else tuple(int(x[lane]) for x in operands)
        first, same = groups.get(key, (lane, 0))
        groups[key] = (first, same | 1 << lane)
    return list(groups.values())


def _queue_store(
    warp: Warp, threads: int, cta: CTA, where: np.ndarray, addresses: np.ndarray, size: int, combine: Combine | None, what: str
) -> None:  # fmt: skip
    """Two operations: read shared memory (what wait_group.read waits for), then write global memory.

    A thread's reads follow one another, and so do its writes; a later read need not wait for an earlier write.
    """
    m, site = warp.machine, warp.site(warp.group.pc)
    queue = ("bulk store", warp.number, threads & -threads)
    agent = ("bulk store", warp.cta.index, warp.index)
    data: list[np.ndarray] = []

    def read() -> None:
        m.watch.shared(cta, where, size, write=False)
        values, shadow = cta.shared.words.load(where, size)
        if shadow is not None:
            raise PoisonError(
                f"{what}: "
                f"shared memory at offset {int(where[shadow != 0][0]):#x} was never written and goes to global memory"
            )
        data.append(values)
        m.count_bytes("shared load", values.nbytes)
        m.wake(("bulk", warp.number))

    def write() -> None:
        m.asynchronous.finish(reading)
        m.watch.memory(addresses, size, write=True, atomic=combine is not None)
        new = data[0] if combine is None else combine(m.memory.load(addresses, size), data[0])
        m.memory.store(addresses, size, new)
        m.count_bytes("global store", new.nbytes)
        m.progress()
        m.wake(("bulk", warp.number))

    reading = AsyncOp((*queue, "read"), read, site, f"{what} (read)", agent=agent)
    writing = AsyncOp((*queue, "write"), write, site, what, after=reading, agent=agent)
    _tracker(warp).add(threads, writing)
    m.asynchronous.issue(reading)
    m.asynchronous.issue(writing)


def _tracker(warp: Warp) -> GroupTracker:
    return warp.extra.setdefault("bulk_groups", GroupTracker())


# -- bulk copies ------------------------------------------------------------------------------------------------------


def _size(value: int, what: str) -> int:
    if value % _BULK_ALIGNMENT_BYTES or value <= 0:
        raise IllegalOperation(f"{what} of {value} bytes: a positive multiple of {_BULK_ALIGNMENT_BYTES} is needed")
    return value


def _check_global(warp: Warp, address: int, size: int, *, write: bool) -> None:
    """Every 16-byte chunk of global memory that a bulk copy touches must be valid."""
    if address + size > 1 << 64:
        raise OutOfBounds(
            f"cp.async.bulk of {size} bytes at global address {address:#x}: it ends beyond the address space"
        )
    memory, at, end = warp.machine.memory, address, address + size
    while at < end:  # from range to range: a size of 4 GiB must not make 4 GiB of addresses
        memory.check(np.array([at], np.uint64), _BULK_ALIGNMENT_BYTES, "cp.async.bulk", write=write)
        assert memory.last is not None, "check has just found it"
        at += (min(memory.last.end, end) - at) // _BULK_ALIGNMENT_BYTES * _BULK_ALIGNMENT_BYTES


@machine(
    f"cp.async.bulk.dst.global.{COMPLETE}.multicast{{.L2::cache_hint}} [d], [a], b, [m], c:b16{{, e:b64}}",
    dst=SHARED, multicast=MULTICAST, section=BULK, not_modelled="cache hints",
)  # fmt: skip
@machine(
    f"cp.async.bulk.dst.global.{COMPLETE}{{.L2::cache_hint}} [d], [a], b, [m]{{, c:b64}}",
    dst=SHARED, section=BULK, not_modelled="cache hints",
)  # fmt: skip
def bulk_load(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, m: np.ndarray, c: Any = None, e: Any = None, *, dst: str,
    multicast: str | None = None, **_: Any,
) -> None:  # fmt: skip
    """Copy b bytes of global [a] to shared [d], or to that of the CTAs of mask c, then complete them on mbarrier [m]."""
    for lane in indices_of(bits):
        size = _size(int(b[lane]), "cp.async.bulk")
        _check_global(warp, int(a[lane]), size, write=False)
        home, offset = _shared_place(
            warp, int(d[lane]), size, "the destination of cp.async.bulk", _BULK_ALIGNMENT_BYTES
        )
        barrier_cta, barrier = access.shared_word(warp, "shared::cluster", int(m[lane]), 8, "mbarrier")
        for cta in masked_ctas(warp, int(c[lane])) if multicast else [home]:
            signalled = _signalled(cta, barrier_cta, pair=False, multicast=bool(multicast))
            _queue_bulk_load(warp, int(a[lane]), size, cta, offset, signalled, barrier)


def _queue_bulk_load(warp: Warp, address: int, size: int, cta: CTA, offset: int, signalled: CTA, barrier: int) -> None:
    by, m = mbarriers.who(warp), warp.machine

    def run() -> None:
        m.watch.memory(np.arange(address, address + size, 4, dtype=np.uint64), 4, write=False)
        m.watch.shared(cta, slice(offset, offset + size), size, write=True)
        cta.shared.words.write_bytes(offset, m.memory.bytes(address, size).copy())
        m.count_bytes("global load", size)
        m.count_bytes("shared store", size)
        mbarriers.change(signalled, barrier, lambda x: x.complete_tx(size), f"{by} (cp.async.bulk)")

    m.asynchronous.issue(
        AsyncOp(
            ("bulk load", m.next_number()),
            run,
            warp.site(warp.group.pc),
            "cp.async.bulk",
            agent=_agent(signalled, barrier),
        )
    )


@machine(f"cp.async.bulk.shared::cluster.shared::cta.{COMPLETE} [d], [a], b, [m]", section=BULK)
def bulk_peer(warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, m: np.ndarray) -> None:
    """Copy b bytes of shared [a] to shared [d] of a CTA of the cluster, then complete them on that CTA's mbarrier [m]."""
    _peer(warp, bits, d, a, b, m, None)


@machine(
    f"cp.reduce.async.bulk.shared::cluster.shared::cta.{COMPLETE}.op.type [d], [a], b:u32, [m]",
    op=OPS,
    type=("s32", "u32", "u64", "s64", "b32", "b64"),
    section="9.7.9.25 cp.reduce.async.bulk",
)
def bulk_peer_reduce(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, m: np.ndarray, *, op: str, type: str
) -> None:
    """Combine b bytes of shared [a] into shared [d] of a CTA of the cluster, then complete them on that CTA's mbarrier [m]."""
    _peer(warp, bits, d, a, b, m, of_type(op, type))


def _peer(
    warp: Warp,
    bits: int,
    d: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    m: np.ndarray,
    reduction: tuple[int, Combine] | None,
) -> None:
    by, site, machine_ = mbarriers.who(warp), warp.site(warp.group.pc), warp.machine
    for lane in indices_of(bits):
        size = _size(int(b[lane]), "cp.async.bulk")
        source, start = _shared_place(
            warp, int(a[lane]), size, "the source of cp.async.bulk", _BULK_ALIGNMENT_BYTES, own=True
        )
        target, offset = _shared_place(
            warp, int(d[lane]), size, "the destination of cp.async.bulk", _BULK_ALIGNMENT_BYTES
        )
        barrier_cta, barrier = access.shared_word(warp, "shared::cluster", int(m[lane]), 8, "mbarrier")
        if barrier_cta is not target:
            raise IllegalOperation(
                f"cp.async.bulk to {target} with an mbarrier of {barrier_cta}: they must be in one CTA"
            )

        def run(
            size: int = size,
            source: CTA = source,
            start: int = start,
            target: CTA = target,
            offset: int = offset,
            barrier: int = barrier,
        ) -> None:
            machine_.watch.shared(source, slice(start, start + size), size, write=False)
            machine_.watch.shared(target, slice(offset, offset + size), size, write=True, atomic=reduction is not None)
            data, shadow = source.shared.words.read_bytes(start, size)
            if reduction is not None:
                width, combine = reduction
                old, _ = target.shared.words.read_bytes(offset, size)
                data = combine(old.view(f"u{width}"), data.view(f"u{width}")).view(np.uint8)
            target.shared.words.write_bytes(offset, data, shadow)
            machine_.count_bytes("shared load", size)
            machine_.count_bytes("shared store", size)
            mbarriers.change(target, barrier, lambda x: x.complete_tx(size), f"{by} (cp.async.bulk)")

        machine_.asynchronous.issue(
            AsyncOp(("bulk peer", machine_.next_number()), run, site, "cp.async.bulk", agent=_agent(target, barrier))
        )


@machine(
    "cp.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint} [d], [a], b{, c:b64}",
    section=BULK, not_modelled="cache hints",
)  # fmt: skip
@machine(
    "cp.async.bulk.global.shared::cta.bulk_group.masked [d], [a], b, c:b16",
    masked=("cp_mask",), section=BULK,
)  # fmt: skip
@machine(
    "cp.async.bulk.global.shared::cta.bulk_group.hint.masked [d], [a], b, c:b64, e:b16",
    hint=("L2::cache_hint",), masked=("cp_mask",), section=BULK, not_modelled="cache hints",
)  # fmt: skip
def bulk_store(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, c: Any = None, e: Any = None, *,
    masked: str | None = None, hint: str | None = None, **_: Any,
) -> None:  # fmt: skip
    """Copy b bytes of shared [a] to global [d]; with .cp_mask only the bytes of each 16 whose bit is set."""
    mask = None if not masked else (e if hint else c)
    _bulk_store(warp, bits, d, a, b, 1, None, mask)


@machine("cp.reduce.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}.op{.noftz}.type [d], [a], b:u32{, c:b64}", op=OPS,
         type=("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"), section="9.7.9.25 cp.reduce.async.bulk", not_modelled="cache hints")  # fmt: skip
def bulk_reduce(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, c: Any = None, *, op: str, type: str, **_: Any
) -> None:
    """Combine b bytes of shared [a] into global [d], element by element."""
    size, combine = of_type(op, type)
    _bulk_store(warp, bits, d, a, b, size, combine, None)


def _bulk_store(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, width: int, combine: Combine | None, mask: Any
) -> None:
    for lane, same in _alike(bits, [d, a, b], apart=combine is not None or mask is not None):
        size = _size(int(b[lane]), "cp.async.bulk")
        cta, offset = _shared_place(
            warp, int(a[lane]), size, "the source of cp.async.bulk", _BULK_ALIGNMENT_BYTES, own=True
        )
        _check_global(warp, int(d[lane]), size, write=True)
        target = np.array([d[lane]], np.uint64)
        step = np.arange(0, size, width, dtype=np.int64)
        if mask is not None:
            step = step[(int(mask[lane]) >> (step % 16) & 1).astype(bool)]
        _queue_store(warp, same, cta, offset + step, target + step.astype(np.uint64), width, combine, "cp.async.bulk")


@machine(
    "cp.async.bulk.prefetch.L2.global{.L2::cache_hint} [a], b{, c:b64}",
    section=BULK,
    not_modelled="caches: a prefetch does nothing",
)
@machine(
    "cp.async.bulk.prefetch.tensor.dim.L2.global{.mode}{.L2::cache_hint} [a]{, c:b64}",
    dim=DIMS,
    mode=("tile", "tile::gather4"),
    section=TENSOR,
    not_modelled="caches: a prefetch does nothing",
)
def prefetch(warp: Warp, bits: int, *_: Any, **__: Any) -> None:
    """A cache hint."""


@machine("cp.async.bulk.commit_group", section=BULK)
def commit_group(warp: Warp, bits: int) -> None:
    """The thread's bulk stores and reductions since the last commit become a group."""
    _tracker(warp).commit(bits)


@machine("cp.async.bulk.wait_group{.read} a", section=BULK)
def wait_group(warp: Warp, bits: int, a: np.ndarray, *, read: bool = False) -> Outcome | None:
    """Wait until at most the a newest groups are pending; with .read until their shared memory has been read."""

    def finished(op: AsyncOp) -> bool:
        return op.done or (read and op.after is not None and op.after.done)

    newest = int(a[indices_of(bits)[0]])
    if _tracker(warp).unfinished(bits, newest, finished):
        return warp.block(
            ("bulk", warp.number), f"cp.async.bulk.wait_group{'.read' if read else ''}: copies are pending"
        )
    for op in _tracker(warp).due(bits, newest):
        warp.machine.watch.waited(op.after if read and op.after is not None else op)
    return None
