"""cp.async and its groups, st.async, red.async, PTX ISA sections 9.7.9.25 and 9.7.9.12. Truly asynchronous: `machine.asynchronous`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation
from mxfp8fa.emulator.isa import mbarriers
from mxfp8fa.emulator.isa.memory import PREFETCH, words_of
from mxfp8fa.emulator.isa.registry import machine
from mxfp8fa.emulator.isa.trace import lane_function
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.cluster import CTA
from mxfp8fa.emulator.machine.groups import GroupTracker
from mxfp8fa.emulator.machine.warp import Outcome, Warp, indices_of, lanes_of
from mxfp8fa.emulator.values import BITS, value_type


def _queue(warp: Warp) -> Hashable:
    return ("cp.async", warp.number)


def _tracker(warp: Warp) -> GroupTracker:
    return warp.extra.setdefault("cp_async_groups", GroupTracker())


def _done(op: AsyncOp) -> bool:
    return op.done


def _copy(warp: Warp, bits: int, to: np.ndarray, source: np.ndarray, size: int, read_bytes: np.ndarray) -> None:
    """Queue one copy of `size` bytes per thread, of which read_bytes come from global memory and the rest is zero."""
    if size not in (4, 8, 16):
        raise IllegalOperation(f"cp.async of {size} bytes: allowed are 4, 8, 16")
    lanes = indices_of(bits)
    too_long = read_bytes[lanes] > size
    if too_long.any():
        raise IllegalOperation(
            f"cp.async with src-size above cp-size {size}", lane=int(lanes[np.nonzero(too_long)[0][0]])
        )
    machine, site = warp.machine, warp.site(warp.group.pc)
    destination = [access.shared_word(warp, "shared::cta", int(to[i]), size, "cp.async") for i in lanes]
    for i in lanes:
        if read_bytes[i]:
            machine.memory.check(source[i : i + 1], 1, "cp.async", write=False)
            machine.memory.check(source[i : i + 1] + np.uint64(int(read_bytes[i]) - 1), 1, "cp.async", write=False)

    def run() -> None:
        for i, (cta, offset) in zip(lanes, destination, strict=True):
            data = np.zeros(size, np.uint8)
            n = int(read_bytes[i])
            if n:
                machine.watch.memory(source[i : i + 1], n, write=False)
            data[:n] = machine.memory.bytes(int(source[i]), n) if n else 0
            machine.watch.shared(cta, slice(offset, offset + size), size, write=True)
            cta.shared.words.write_bytes(offset, data)
        machine.count_bytes("global load", int(read_bytes[lanes].sum()))
        machine.count_bytes("shared store", size * lanes.size)
        machine.progress()
        machine.wake(("cp.async", warp.number))

    op = AsyncOp(_queue(warp), run, site, "cp.async")
    _tracker(warp).add(bits, op)
    machine.asynchronous.issue(op)


_CP = "cp.async.cop.ss.global{.L2::cache_hint}{.size} [d], [a], b"
_CP_MODS: dict[str, Any] = {
    "cop": ("ca", "cg"),
    "ss": ("shared", "shared::cta"),
    "size": PREFETCH,
    "section": "9.7.9.25 cp.async",
}


@machine(_CP, **_CP_MODS, not_modelled="caches; cp.async operations of one thread complete in order")
def cp_async(warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, **_: Any) -> None:
    """Copy b (4, 8 or 16) bytes from global [a] to shared [d], asynchronously."""
    size = int(b[0])
    _copy(warp, bits, d, a, size, np.full(32, size))


@machine(_CP + ", c", **_CP_MODS, not_modelled="caches; cp.async operations of one thread complete in order")
def cp_async_size(warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, **_: Any) -> None:
    """As cp.async, but only c bytes are read and the rest is zero."""
    _copy(warp, bits, d, a, int(b[0]), c.astype(np.int64))


@machine(_CP + ", c:pred", **_CP_MODS, not_modelled="caches; cp.async operations of one thread complete in order")
def cp_async_ignore(
    warp: Warp, bits: int, d: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, **_: Any
) -> None:
    """As cp.async, but zeros are written where c (ignore-src) holds."""
    size = int(b[0])
    _copy(warp, bits, d, a, size, np.where(c, 0, size))


@machine("cp.async.commit_group", section="9.7.9.25 cp.async.commit_group")
def commit_group(warp: Warp, bits: int) -> None:
    """The thread's cp.async operations since the last commit become a group."""
    _tracker(warp).commit(bits)


@machine("cp.async.wait_group a", section="9.7.9.25 cp.async.wait_group")
def wait_group(warp: Warp, bits: int, a: np.ndarray) -> Outcome | None:
    """Wait until at most the a newest groups of the thread are pending."""
    if _tracker(warp).unfinished(bits, int(a[0]), _done):
        return warp.block(("cp.async", warp.number), f"cp.async.wait_group {int(a[0])}: copies are pending")
    _known(warp, _tracker(warp).due(bits, int(a[0])))
    return None


def _known(warp: Warp, ops: list[AsyncOp]) -> None:
    """The warp has waited for these operations."""
    for op in ops:
        warp.machine.watch.waited(op)


@machine("cp.async.wait_all", section="9.7.9.25 cp.async.wait_all")
def wait_all(warp: Warp, bits: int) -> Outcome | None:
    """Wait until all cp.async operations of the thread are complete."""
    if _tracker(warp).loose(bits, _done) or _tracker(warp).unfinished(bits, 0, _done):
        return warp.block(("cp.async", warp.number), "cp.async.wait_all: copies are pending")
    _known(warp, _tracker(warp).due(bits, 0) + [op for issued, op in _tracker(warp).open if issued & bits])
    return None


@machine(
    "cp.async.mbarrier.arrive{.noinc}{.ss}.b64 [a]",
    ss=("shared", "shared::cta"),
    section="9.7.13.15 cp.async.mbarrier.arrive",
)
def mbarrier_arrive(warp: Warp, bits: int, a: np.ndarray, *, noinc: bool = False, ss: str | None = None) -> None:
    """Arrive on [a] once the thread's prior cp.async operations are complete; without .noinc one more arrival is expected first."""
    by, site, machine = mbarriers.who(warp), warp.site(warp.group.pc), warp.machine
    targets = [access.shared_word(warp, "shared::cta", int(a[lane]), 8, "mbarrier") for lane in indices_of(bits)]
    if not noinc:
        for cta, offset in targets:
            mbarriers.change(cta, offset, lambda m: m.expect_one_more(), by)

    def run() -> None:
        for cta, offset in targets:
            mbarriers.change(cta, offset, lambda m: m.arrive(), by + " (cp.async)")

    machine.asynchronous.issue(AsyncOp(_queue(warp), run, site, "cp.async.mbarrier.arrive"))


_REMOTE = ("b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")


@machine(
    "st.async{.weak}{.ss}.mbarrier::complete_tx::bytes{.vec}.type [d], b, [c]",
    ss=("shared::cluster",),
    vec=("v2", "v4"),
    type=_REMOTE,
    section="9.7.9.12 st.async",
)
def st_async(
    warp: Warp, bits: int, d: np.ndarray, b: Any, c: np.ndarray, *, type: str, vec: str | None = None, **_: Any
) -> None:
    """[d] = b in a CTA of the cluster, asynchronously; then the mbarrier [c] of that CTA completes as many bytes."""
    words = b if isinstance(b, list) else [b]
    size = words_of(type, vec)[0] * len(words)
    _remote(
        warp,
        bits,
        d,
        c,
        size,
        lambda one: access.store(warp, one, "shared::cluster", d, [(w, None) for w in words]),
        "st.async",
    )


@machine(
    "red.async{.relaxed}{.scope}{.ss}.mbarrier::complete_tx::bytes.op.type [d], b, [c]",
    scope=("cluster",), ss=("shared::cluster",), op=("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    type=("u32", "s32", "u64", "b32"), section="9.7.13.7 red.async",
)  # fmt: skip
def red_async(
    warp: Warp, bits: int, d: np.ndarray, b: np.ndarray, c: np.ndarray, *, op: str, type: str, **_: Any
) -> None:
    """[d] = [d] op b in a CTA of the cluster, asynchronously; then the mbarrier [c] of that CTA completes as many bytes."""
    size = BITS[value_type(type)] // 8
    combine = lane_function(f"{op}.{type}")

    def one(lane: int) -> None:
        access.update(warp, lane, "shared::cluster", d, size, lambda now, old: combine(lanes_of(now), old, b)[0])

    _remote(warp, bits, d, c, size, one, "red.async")


def _remote(warp: Warp, bits: int, to: np.ndarray, barrier: np.ndarray, size: int, write: Any, what: str) -> None:
    """Queue, per thread, a write to another CTA and the completion of its bytes on that CTA's mbarrier."""
    site, by = warp.site(warp.group.pc), mbarriers.who(warp)
    for lane in indices_of(bits):
        access.shared_word(warp, "shared::cluster", int(to[lane]), size, what)
        target = access.shared_word(warp, "shared::cluster", int(barrier[lane]), 8, "mbarrier")

        def run(lane: int = int(lane), target: tuple[CTA, int] = target) -> None:
            write(1 << lane)
            mbarriers.change(target[0], target[1], lambda m: m.complete_tx(size), f"{by} ({what})")

        warp.machine.asynchronous.issue(AsyncOp((what, warp.number, int(lane)), run, site, what))
