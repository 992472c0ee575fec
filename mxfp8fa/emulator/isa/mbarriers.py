"""mbarrier instructions, PTX ISA section 9.7.13.15. The object itself: `machine.mbarrier`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import BarrierError, EmulationError, PoisonError
from mxfp8fa.emulator.isa.registry import machine
from mxfp8fa.emulator.machine import access
from mxfp8fa.emulator.machine.cluster import CTA
from mxfp8fa.emulator.machine.mbarrier import MBarrier
from mxfp8fa.emulator.machine.warp import Warp, indices_of

SPACE = ("shared", "shared::cta", "shared::cluster")
SEM = ("release", "relaxed", "acquire")
SCOPE = ("cta", "cluster")
MODS: dict[str, Any] = {"sem": SEM, "scope": SCOPE, "ss": SPACE}


def read(cta: CTA, offset: int) -> MBarrier:
    """The mbarrier at an offset of a CTA's shared memory."""
    word, poison = cta.shared.words.load_word(offset)
    if poison:
        raise PoisonError(f"the mbarrier at shared offset {offset:#x} of {cta} was never initialised")
    try:
        return MBarrier.decode(word)
    except BarrierError as error:
        raise BarrierError(f"shared offset {offset:#x} of {cta}: {error.message}") from None


def change(
    cta: CTA, offset: int, operation: Callable[[MBarrier], bool | None], who: str, *, signals: bool = True
) -> None:
    """Apply an operation to an mbarrier and wake its waiters if a phase completed.

    `signals`: whether what the actor did before becomes known to those who wait (arrivals and completions, not
    expect_tx).
    """
    watch = cta.machine.watch
    watch.barrier_used(cta, offset)
    barrier = read(cta, offset)
    try:
        completed = operation(barrier)
    except BarrierError as error:
        last = cta.last_arrival(offset)
        raise BarrierError(
            f"mbarrier at shared offset {offset:#x} of {cta}: {error.message} (last arrival: {last})"
        ) from None
    cta.shared.words.store_word(offset, barrier.encode())
    cta.arrived(offset, who)
    cta.machine.progress()
    if signals:
        watch.release(key(cta, offset))
    if completed:
        watch.publish(key(cta, offset))
        cta.machine.wake(key(cta, offset))


def key(cta: CTA, offset: int) -> Any:
    """What waiters on an mbarrier block on."""
    return ("mbarrier", cta.number, offset)


def who(warp: Warp) -> str:
    """The running instruction of a warp, for reports."""
    return warp.describe(warp.group.pc)


def each(
    warp: Warp, bits: int, space: str | None, addresses: np.ndarray, operation: Callable[[MBarrier, int], bool | None],
    *, signals: bool = True,
) -> np.ndarray:  # fmt: skip
    """Apply operation(barrier, lane) for every active lane, in lane order; returns the states before, per lane."""
    tokens = np.zeros(32, np.uint64)
    by = who(warp)
    lanes = indices_of(bits).tolist()
    for address in dict.fromkeys(int(addresses[lane]) for lane in lanes):
        same = [lane for lane in lanes if int(addresses[lane]) == address]
        _each_lane(warp, space, address, same, operation, tokens, by, signals)
    return tokens


def _each_lane(
    warp: Warp, space: str | None, address: int, lanes: list[int], operation: Callable[[MBarrier, int], bool | None],
    tokens: np.ndarray, by: str, signals: bool,
) -> None:  # fmt: skip
    """The lanes that use one barrier, in order."""
    lane, split = lanes[0], False

    def all_lanes(barrier: MBarrier) -> bool:
        nonlocal lane, split
        completed = False
        for lane in lanes:
            tokens[lane] = barrier.encode()
            split |= completed
            completed |= bool(operation(barrier, lane))
        return completed

    try:
        cta, offset = access.shared_word(warp, space or "shared::cluster", address, 8, "mbarrier")
        change(cta, offset, all_lanes, by, signals=signals)
        if split:
            cta.machine.watch.barrier_split(cta, offset)
    except EmulationError as error:
        error.lane = lane if error.lane is None else error.lane
        raise


@machine("mbarrier.init{.ss}.b64 [a], b:u32", ss=SPACE, section="9.7.13.15 mbarrier.init")
def init(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, ss: str | None = None) -> None:
    """Make [a] a barrier that expects b arrivals a phase."""
    for lane in indices_of(bits):
        cta, offset = access.shared_word(warp, ss or "shared::cluster", int(a[lane]), 8, "mbarrier.init")
        cta.machine.watch.barrier_initialised(cta, offset)
        cta.shared.words.store_word(offset, MBarrier.init(int(b[lane])).encode())
        cta.arrived(offset, "")
    warp.machine.progress()


@machine("mbarrier.inval{.ss}.b64 [a]", ss=SPACE, section="9.7.13.15 mbarrier.inval")
def inval(warp: Warp, bits: int, a: np.ndarray, *, ss: str | None = None) -> None:
    """The barrier at [a] ends; its bytes become undefined."""
    for lane in indices_of(bits):
        cta, offset = access.shared_word(warp, ss or "shared::cluster", int(a[lane]), 8, "mbarrier.inval")
        read(cta, offset)
        cta.shared.words.write_bytes(offset, np.zeros(8, np.uint8), np.full(8, 0xFF, np.uint8))


@machine("mbarrier.expect_tx{.sem}{.scope}{.ss}.b64 [a], b:u32", section="9.7.13.15 mbarrier.expect_tx", **MODS)
def expect_tx(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, ss: str | None = None, **_: Any) -> None:
    """Raise the transaction count of [a] by b."""
    each(warp, bits, ss, a, lambda m, lane: m.expect_tx(int(b[lane])), signals=False)


@machine("mbarrier.complete_tx{.sem}{.scope}{.ss}.b64 [a], b:u32", section="9.7.13.15 mbarrier.complete_tx", **MODS)
def complete_tx(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, ss: str | None = None, **_: Any) -> None:
    """Lower the transaction count of [a] by b."""
    each(warp, bits, ss, a, lambda m, lane: m.complete_tx(int(b[lane])))


def _arrive(
    warp: Warp, bits: int, ss: str | None, a: np.ndarray, c: np.ndarray | None, drop: bool, no_complete: bool
) -> np.ndarray:
    def operation(m: MBarrier, lane: int) -> bool:
        count = 1 if c is None else int(c[lane])
        return (m.drop if drop else m.arrive)(count, no_complete=no_complete)

    return each(warp, bits, ss, a, operation)


@machine(
    "mbarrier.op{.sem}{.scope}{.ss}.b64 d, [a]{, c:u32}",
    op=("arrive", "arrive_drop"),
    section="9.7.13.15 mbarrier.arrive",
    **MODS,
)
def arrive(
    warp: Warp, bits: int, a: np.ndarray, c: Any = None, *, op: str, ss: str | None = None, **_: Any
) -> np.ndarray:
    """d = the state of [a]; then c (default 1) arrivals."""
    return _arrive(warp, bits, ss, a, c, op == "arrive_drop", False)


@machine(
    "mbarrier.op{.sem}{.scope}{.ss}.b64 [a]{, c:u32}",
    op=("arrive", "arrive_drop"),
    section="9.7.13.15 mbarrier.arrive",
    **MODS,
)
def arrive_sink(
    warp: Warp, bits: int, a: np.ndarray, c: Any = None, *, op: str, ss: str | None = None, **_: Any
) -> None:
    """c (default 1) arrivals on [a]."""
    _arrive(warp, bits, ss, a, c, op == "arrive_drop", False)


@machine(
    "mbarrier.op.noComplete{.sem}{.scope}{.ss}.b64 d, [a], c:u32",
    op=("arrive", "arrive_drop"),
    section="9.7.13.15 mbarrier.arrive",
    **MODS,
)
def arrive_no_complete(
    warp: Warp, bits: int, a: np.ndarray, c: np.ndarray, *, op: str, ss: str | None = None, **_: Any
) -> np.ndarray:
    """d = the state of [a]; then c arrivals, which must not complete the phase."""
    return _arrive(warp, bits, ss, a, c, op == "arrive_drop", True)


def _arrive_expect(warp: Warp, bits: int, ss: str | None, a: np.ndarray, b: np.ndarray, drop: bool) -> np.ndarray:
    def operation(m: MBarrier, lane: int) -> bool:
        m.expect_tx(int(b[lane]))
        return m.drop() if drop else m.arrive()

    return each(warp, bits, ss, a, operation)


@machine(
    "mbarrier.op.expect_tx{.sem}{.scope}{.ss}.b64 d, [a], b:u32",
    op=("arrive", "arrive_drop"),
    section="9.7.13.15 mbarrier.arrive",
    **MODS,
)
def arrive_expect(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, op: str, ss: str | None = None, **_: Any
) -> np.ndarray:
    """d = the state of [a]; raise its transaction count by b, then one arrival."""
    return _arrive_expect(warp, bits, ss, a, b, op == "arrive_drop")


@machine(
    "mbarrier.op.expect_tx{.sem}{.scope}{.ss}.b64 [a], b:u32",
    op=("arrive", "arrive_drop"),
    section="9.7.13.15 mbarrier.arrive",
    **MODS,
)
def arrive_expect_sink(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, op: str, ss: str | None = None, **_: Any
) -> None:
    """Raise the transaction count of [a] by b, then one arrival."""
    _arrive_expect(warp, bits, ss, a, b, op == "arrive_drop")


def _wait(
    warp: Warp,
    bits: int,
    ss: str | None,
    a: np.ndarray,
    passed: Callable[[MBarrier, np.ndarray], np.ndarray],
    what: str,
    blocking: bool,
) -> Any:
    result = np.zeros(32, bool)
    blocked: tuple[CTA, int] | None = None
    lanes = indices_of(bits)
    named = a[lanes]
    for address in dict.fromkeys(named.tolist()):
        cta, offset = access.shared_word(warp, ss or "shared::cta", address, 8, "mbarrier wait")
        cta.machine.watch.barrier_used(cta, offset)
        barrier = read(cta, offset)
        same = lanes[named == address]
        answers = result[same] = passed(barrier, same)
        if answers.any():
            cta.machine.watch.acquire(key(cta, offset))
        if not answers.all():
            cta.machine.watch.barrier_missed(cta, offset, 1 - barrier.phase)
            blocked = (cta, offset)
    if blocked is None or not blocking or warp.group.timed_out:
        warp.group.timed_out = False
        return result
    cta, offset = blocked
    return warp.block(key(cta, offset), lambda: waiting_text(cta, offset, what), may_time_out=True)


def waits_for_parity(parity: int) -> str:
    """What a thread does in mbarrier.try_wait.parity."""
    return f"waits for phase parity {parity}"


def waiting_text(cta: CTA, offset: int, what: str) -> str:
    """What a report says of a thread that waits on an mbarrier."""
    return f"{what} on the mbarrier at shared offset {offset:#x}: {read(cta, offset)}; last arrival: {cta.last_arrival(offset)}"


@machine(
    "mbarrier.op.parity{.sem}{.scope}{.ss}.b64 p:pred, [a], b:u32{, c:u32}",
    op=("test_wait", "try_wait"),
    section="9.7.13.15 mbarrier.test_wait",
    **MODS,
)
def wait_parity(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: Any = None, *, op: str, ss: str | None = None, **_: Any
) -> Any:
    """p = whether the phase of parity b of [a] has completed; try_wait may wait for it a while."""
    parity = int(b[indices_of(bits)[0]]) & 1
    return _wait(
        warp,
        bits,
        ss,
        a,
        lambda m, lanes: b[lanes] & 1 != m.phase,
        waits_for_parity(parity),
        op == "try_wait",
    )


@machine(
    "mbarrier.op{.sem}{.scope}{.ss}.b64 p:pred, [a], b{, c:u32}",
    op=("test_wait", "try_wait"),
    section="9.7.13.15 mbarrier.test_wait",
    **MODS,
)
def wait_state(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: Any = None, *, op: str, ss: str | None = None, **_: Any
) -> Any:
    """p = whether the phase that token b was taken in has completed; try_wait may wait for it a while."""

    def passed(m: MBarrier, lanes: np.ndarray) -> np.ndarray:
        return np.array([m.phase != MBarrier.decode(int(token)).phase for token in b[lanes]])

    return _wait(warp, bits, ss, a, passed, "waits for the phase of its token", op == "try_wait")


@machine("mbarrier.pending_count.b64 d:u32, a", section="9.7.13.15 mbarrier.pending_count")
def pending_count(warp: Warp, bits: int, a: np.ndarray) -> np.ndarray:
    """d = pending arrivals in the state token a."""
    out = np.zeros(32, np.uint32)
    for lane in indices_of(bits):
        out[lane] = MBarrier.decode(int(a[lane])).pending
    return out
