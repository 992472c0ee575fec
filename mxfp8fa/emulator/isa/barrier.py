"""Barriers of threads, PTX ISA section 9.7.13: bar, barrier, bar.warp.sync, barrier.cluster; and fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import BarrierError
from mxfp8fa.emulator.isa.registry import machine
from mxfp8fa.emulator.machine.barriers import NamedBarrier
from mxfp8fa.emulator.machine.warp import Outcome, Warp, lanes_of


def uniform(bits: int, values: np.ndarray, what: str) -> int:
    """The value that all active lanes share; BarrierError otherwise."""
    active = values[lanes_of(bits)]
    if (active != active[0]).any():
        raise BarrierError(f"{what} differs between the threads of the warp")
    return int(active[0])


def named(warp: Warp, bits: int, number: np.ndarray) -> NamedBarrier:
    """The barrier of a number operand."""
    i = uniform(bits, number, "the barrier number")
    if not 0 <= i < len(warp.cta.barriers):
        raise BarrierError(f"barrier {i}: allowed are 0 to {len(warp.cta.barriers) - 1}")
    return warp.cta.barriers[i]


def synchronise(
    warp: Warp,
    bits: int,
    barrier: NamedBarrier,
    count: np.ndarray | None,
    aligned: bool,
    predicate: np.ndarray | None = None,
) -> Outcome | None:
    """Arrive once, then block until the barrier's phase completes."""
    group = warp.group
    if group.token is None:
        if aligned and not warp.converged(warp.live, f"barrier {barrier.number} (.aligned)"):
            return Outcome.BLOCKED
        threads = None if count is None else uniform(bits, count, "the thread count of a barrier")
        group.token = barrier.arrive(warp, bits, threads, predicate)
    if barrier.generation == group.token:
        return warp.block(barrier.key, lambda: str(barrier))
    group.token = None
    warp.machine.watch.acquire(barrier.key)
    return None


@machine("bar{.cta}.sync a{, b}", section="9.7.13 bar")
@machine("barrier{.cta}.sync.aligned a{, b}", section="9.7.13 barrier")
def bar_sync(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray | None = None, *, cta: bool = False) -> Outcome | None:
    """Wait until b threads (default: all of the CTA) have arrived at barrier a."""
    return synchronise(warp, bits, named(warp, bits, a), b, True)


@machine("barrier{.cta}.sync a{, b}", section="9.7.13 barrier")
def barrier_sync(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray | None = None, *, cta: bool = False
) -> Outcome | None:
    """As bar.sync; the threads of a warp may arrive one by one."""
    return synchronise(warp, bits, named(warp, bits, a), b, False)


@machine("bar{.cta}.arrive a, b", section="9.7.13 bar")
@machine("barrier{.cta}.arrive.aligned a, b", section="9.7.13 barrier")
def bar_arrive(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, cta: bool = False) -> Outcome | None:
    """Arrive at barrier a of b threads, without waiting."""
    if not warp.converged(warp.live, "bar.arrive (.aligned)"):
        return Outcome.BLOCKED
    named(warp, bits, a).arrive(warp, bits, uniform(bits, b, "the thread count of a barrier"))
    return None


@machine("barrier{.cta}.arrive a, b", section="9.7.13 barrier")
def barrier_arrive(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, *, cta: bool = False) -> None:
    """As bar.arrive; the threads of a warp may arrive one by one."""
    named(warp, bits, a).arrive(warp, bits, uniform(bits, b, "the thread count of a barrier"))


def _reduce(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray | None, c: np.ndarray, aligned: bool
) -> Outcome | tuple[int, int]:
    barrier = named(warp, bits, a)
    outcome = synchronise(warp, bits, barrier, b, aligned, c & lanes_of(bits))
    return outcome if outcome is not None else (barrier.finished.true, barrier.finished.seen)


def _popc(found: Outcome | tuple[int, int]) -> Any:
    return found if isinstance(found, Outcome) else np.full(32, found[0], np.uint32)


def _all_any(found: Outcome | tuple[int, int], op: str) -> Any:
    if isinstance(found, Outcome):
        return found
    true, seen = found
    return np.full(32, true == seen if op == "and" else true > 0)


@machine("bar{.cta}.red.popc.u32 d, a, c:pred", section="9.7.13 bar")
@machine("barrier{.cta}.red.popc{.aligned}.u32 d, a, c:pred", section="9.7.13 barrier")
def bar_red_popc(warp: Warp, bits: int, a: np.ndarray, c: np.ndarray, *, aligned: bool = True, cta: bool = False) -> Any:
    """d = how many threads of the CTA have c true, after all have arrived."""
    return _popc(_reduce(warp, bits, a, None, c, aligned))


@machine("bar{.cta}.red.popc.u32 d, a, b, c:pred", section="9.7.13 bar")
@machine("barrier{.cta}.red.popc{.aligned}.u32 d, a, b, c:pred", section="9.7.13 barrier")
def bar_red_popc_count(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, aligned: bool = True, cta: bool = False) -> Any:
    """d = how many of the b threads have c true, after all have arrived."""
    return _popc(_reduce(warp, bits, a, b, c, aligned))


@machine("bar{.cta}.red.op.pred p, a:u32, c", op=("and", "or"), section="9.7.13 bar")
@machine("barrier{.cta}.red.op{.aligned}.pred p, a:u32, c", op=("and", "or"), section="9.7.13 barrier")
def bar_red(warp: Warp, bits: int, a: np.ndarray, c: np.ndarray, *, op: str, aligned: bool = True, cta: bool = False) -> Any:
    """p = c of all (and) or of any (or) thread of the CTA, after all have arrived."""
    return _all_any(_reduce(warp, bits, a, None, c, aligned), op)


@machine("bar{.cta}.red.op.pred p, a:u32, b:u32, c", op=("and", "or"), section="9.7.13 bar")
@machine("barrier{.cta}.red.op{.aligned}.pred p, a:u32, b:u32, c", op=("and", "or"), section="9.7.13 barrier")
def bar_red_count(
    warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, op: str, aligned: bool = True, cta: bool = False
) -> Any:
    """p = c of all (and) or of any (or) of the b threads, after all have arrived."""
    return _all_any(_reduce(warp, bits, a, b, c, aligned), op)


@machine("bar.warp.sync a", section="9.7.13 bar.warp.sync")
def bar_warp_sync(warp: Warp, bits: int, a: np.ndarray) -> Outcome | None:
    """Wait for the threads of the warp named in a.

    Every lane that executes it must be one of those that its mask names.
    """
    return None if warp.members_here(bits, a, "bar.warp.sync") else Outcome.BLOCKED


@machine("barrier.cluster.arrive{.sem}{.aligned}", sem=("release", "relaxed"), section="9.7.13 barrier.cluster")
def cluster_arrive(warp: Warp, bits: int, *, sem: str = "release", aligned: bool = False) -> Outcome | None:
    """Arrive at the cluster barrier, without waiting."""
    if aligned and not warp.converged(warp.live, "barrier.cluster.arrive.aligned"):
        return Outcome.BLOCKED
    warp.cta.cluster.barrier.arrive(warp, bits, relaxed=sem == "relaxed")
    return None


@machine("barrier.cluster.wait{.acquire}{.aligned}", section="9.7.13 barrier.cluster")
def cluster_wait(warp: Warp, bits: int, *, acquire: bool = False, aligned: bool = False) -> Outcome | None:
    """Wait until all threads of the cluster that have not exited have arrived."""
    if aligned and not warp.converged(warp.live, "barrier.cluster.wait.aligned"):
        return Outcome.BLOCKED
    barrier = warp.cta.cluster.barrier
    if barrier.waiting(warp, bits):
        return warp.block(barrier.key, lambda: str(barrier))
    warp.machine.watch.acquire(barrier.key)
    return None


_FENCE = "ordering: memory is sequentially consistent here, so a fence changes nothing"
_SCOPE = ("cta", "cluster", "gpu", "sys")


@machine(
    "fence{.sem}.scope",
    sem=("sc", "acq_rel", "acquire", "release"),
    scope=_SCOPE,
    section="9.7.13 fence",
    not_modelled=_FENCE,
)
@machine(
    "fence.sem.sync_restrict::place{.cluster}",
    sem=("acquire", "release"),
    place=("shared::cta", "shared::cluster"),
    section="9.7.13 fence",
    not_modelled=_FENCE,
)
@machine(
    "fence.op_restrict.release.cluster", op_restrict=("mbarrier_init",), section="9.7.13 fence", not_modelled=_FENCE
)
@machine(
    "fence.proxy.which",
    which=("alias", "async", "async.global", "async.shared::cta", "async.shared::cluster"),
    section="9.7.13 fence.proxy",
    not_modelled=_FENCE,
)
@machine(
    "fence.proxy.async::generic.sem.sync_restrict::place.cluster",
    sem=("acquire", "release"),
    place=("shared::cta", "shared::cluster"),
    section="9.7.13 fence.proxy",
    not_modelled=_FENCE,
)
@machine(
    "fence.proxy.tensormap::generic.release.scope", scope=_SCOPE, section="9.7.13 fence.proxy", not_modelled=_FENCE
)
@machine("membar.level", level=("cta", "gl", "sys"), section="9.7.13 membar", not_modelled=_FENCE)
@machine(
    "membar.proxy.which",
    which=("alias", "async", "async.global", "async.shared::cta", "async.shared::cluster"),
    section="9.7.13 membar",
    not_modelled=_FENCE,
)
def fence(warp: Warp, bits: int, *, which: str = "", op_restrict: str = "", **_: Any) -> None:
    """Order memory accesses."""
    if not which and "async::generic" in warp.program.instructions[warp.group.pc].qualifiers:
        which = "async.shared"
    warp.machine.watch.fence(f"proxy.{which}" if which else op_restrict or "threads")


@machine(
    "fence.proxy.tensormap::generic.acquire.scope [a], b",
    scope=_SCOPE,
    section="9.7.13 fence.proxy",
    not_modelled=_FENCE,
)
def fence_acquire(warp: Warp, bits: int, a: np.ndarray, b: np.ndarray, **_: Any) -> None:
    """Order accesses to a tensor map of b bytes at [a]."""
