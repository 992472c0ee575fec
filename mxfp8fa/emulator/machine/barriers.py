"""Named barriers of a CTA (bar, barrier.cta) and the cluster barrier (barrier.cluster)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.errors import BarrierError
from mxfp8fa.emulator.machine.warp import WARP_LANES, Warp

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA, Cluster


ARRIVAL_WARP_SHIFT = 32


def arrival_mark(warp_index: int, following: int) -> int:
    """A word that says who arrived: warp index + 1 above, following instruction below."""
    return (warp_index + 1) << ARRIVAL_WARP_SHIFT | following


def arrival_of(mark: int) -> tuple[int, int]:
    """(warp index, instruction) of a mark; both are -1 for no mark."""
    return (mark >> ARRIVAL_WARP_SHIFT) - 1, (mark & ((1 << ARRIVAL_WARP_SHIFT) - 1)) - 1


@dataclass
class Reduction:
    """What barrier.red collects: how many threads had the predicate true, and how many took part."""

    true: int = 0
    seen: int = 0


class BarrierWord(IntEnum):
    """Words of a named barrier, in memory that compiled code shares (`CTA.barrier_words`)."""

    EXPECTED = 0  # threads of the present phase; ALL of the CTA; 0 before the first arrival
    ARRIVED = 1  # threads so far
    GENERATION = 2  # completed phases
    PARTIAL = 3  # warps of which only a part has arrived
    LAST = 4  # who arrived last (`cta.arrival_mark`)
    REDUCES = 5  # 1: predicates are collected


ALL = -1
LIVE_ROW = 16  # the row of words after those of the barriers: its first word is the threads of warps that have not exited


class NamedBarrier:
    """One of a CTA's 16 barriers. Arrivals count whole warps (PTX ISA, "bar, barrier").

    Attributes:
        partial: per warp index, lanes that have arrived while others of the warp have not.
        reduction, finished: what barrier.red collects in this phase, and what it delivers from the last.
    """

    def __init__(self, cta: CTA, number: int):
        self.cta = cta
        self.number = number
        self.partial: dict[int, int] = {}
        self.reduction = Reduction()
        self.finished = Reduction()
        self._words = cta.barrier_words[number].data

    @property
    def generation(self) -> int:
        """Completed phases."""
        return self._words[BarrierWord.GENERATION]

    @property
    def key(self) -> Any:
        """What waiters block on."""
        return ("barrier", self.cta.number, self.number)

    def arrive(self, warp: Warp, bits: int, count: int | None, predicate: np.ndarray | None = None) -> int:
        """Threads `bits` of a warp arrive; returns the generation whose completion they wait for."""
        self._expect(count)
        generation = self.generation
        seen = self.partial.get(warp.index, 0) | bits
        self.cta.machine.watch.release(self.key)
        if predicate is not None:
            self.reduction.true += int(predicate.sum())
            self.reduction.seen += bits.bit_count()
            self._words[BarrierWord.REDUCES] = 1
        self._words[BarrierWord.LAST] = arrival_mark(warp.index, warp.group.pc + 1)
        self.partial[warp.index] = seen
        self.check()
        return generation

    def _expect(self, count: int | None) -> None:
        if count is not None and (count <= 0 or count % WARP_LANES or count > self.cta.threads_rounded):
            raise BarrierError(
                f"barrier {self.number} with {count} threads: allowed are multiples of {WARP_LANES} up to the CTA's "
                f"{self.cta.threads_rounded}"
            )
        given, expected = ALL if count is None else count, self._words[BarrierWord.EXPECTED]
        if expected == 0:
            self._words[BarrierWord.EXPECTED] = given
        elif given != expected:
            mine, theirs = ("all threads" if n == ALL else f"{n} threads" for n in (given, expected))
            raise BarrierError(f"barrier {self.number} awaits {theirs} in this phase, but here it is used with {mine}")

    @property
    def _target(self) -> int:
        expected = self._words[BarrierWord.EXPECTED]
        return self.cta.live_threads if expected == ALL else expected

    def check(self) -> None:
        """Complete the phase if everybody is there; called again when threads exit."""
        words = self._words
        if words[BarrierWord.EXPECTED] == 0:
            return
        self._count_whole_warps()
        arrived, target = words[BarrierWord.ARRIVED], self._target
        if arrived > target and words[BarrierWord.EXPECTED] != ALL:
            raise BarrierError(f"barrier {self.number}: {arrived} threads arrived where {target} are expected")
        if arrived >= target and not self.partial:
            words[BarrierWord.EXPECTED] = words[BarrierWord.ARRIVED] = words[BarrierWord.REDUCES] = 0
            words[BarrierWord.GENERATION] += 1
            self.finished, self.reduction = self.reduction, Reduction()
            self.cta.machine.progress()
            self.cta.machine.watch.publish(self.key)
            self.cta.machine.wake(self.key)

    def _count_whole_warps(self) -> None:
        """A warp counts once those of its threads that have not exited have arrived."""
        for index, seen in list(self.partial.items()):
            live = self.cta.warps[index].live
            if seen & live == live:
                del self.partial[index]
                self._words[BarrierWord.ARRIVED] += WARP_LANES
        self._words[BarrierWord.PARTIAL] = len(self.partial)

    def __str__(self) -> str:
        warp, pc = arrival_of(self._words[BarrierWord.LAST])
        last = "nobody" if pc < 0 else f"warp {warp} at PTX line {self.cta.machine.program.instructions[pc].ptx_line}"
        arrived = self._words[BarrierWord.ARRIVED]
        return f"barrier {self.number}: {arrived} of {self._target} threads arrived, last {last}"


class ClusterBarrier:
    """barrier.cluster: all threads of the cluster that have not exited (PTX ISA, "barrier.cluster")."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.phase = 0
        self.arrived = 0
        self.last_arrival = ""

    @property
    def key(self) -> Any:
        """What waiters block on."""
        return ("barrier.cluster", self.cluster.number)

    def arrive(self, warp: Warp, bits: int, *, relaxed: bool = False) -> None:
        """Threads arrive; each remembers the phase it arrived in."""
        phases = warp.extra.setdefault("cluster_phase", [None] * WARP_LANES)
        for lane in range(WARP_LANES):
            if bits >> lane & 1:
                if phases[lane] is not None:
                    raise BarrierError("barrier.cluster.arrive twice without a wait in between", lane=lane)
                phases[lane] = self.phase
        self.arrived += bits.bit_count()
        self.cluster.machine.watch.release(self.key, relaxed=relaxed)
        self.last_arrival = f"CTA {warp.cta.index} warp {warp.index}"
        self.check()

    def waiting(self, warp: Warp, bits: int) -> bool:
        """Whether some of these threads must still wait; clears their phase when none must."""
        phases = warp.extra.get("cluster_phase", [None] * WARP_LANES)
        mine = [lane for lane in range(WARP_LANES) if bits >> lane & 1]
        for lane in mine:
            if phases[lane] is None:
                raise BarrierError("barrier.cluster.wait without an arrive before it", lane=lane)
        if any(phases[lane] == self.phase for lane in mine):
            return True
        for lane in mine:
            phases[lane] = None
        return False

    def exited(self, warp: Warp, bits: int) -> None:
        """Threads that arrived and exit before the phase ends no longer count on either side."""
        phases = warp.extra.get("cluster_phase")
        if phases:
            gone = [lane for lane in range(WARP_LANES) if bits >> lane & 1 and phases[lane] == self.phase]
            self.arrived -= len(gone)
        self.check()

    def check(self) -> None:
        """Complete the phase if every live thread has arrived."""
        live = self.cluster.live_threads
        if live and self.arrived >= live:
            self.arrived = 0
            self.phase += 1
            self.cluster.machine.progress()
            self.cluster.machine.watch.publish(self.key)
            self.cluster.machine.wake(self.key)

    def __str__(self) -> str:
        return (
            f"cluster barrier: {self.arrived} of {self.cluster.live_threads} threads arrived, "
            f"last {self.last_arrival or 'nobody'}"
        )
