"""Named barriers of a CTA (bar, barrier.cta) and the cluster barrier (barrier.cluster)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.errors import BarrierError
from mxfp8fa.emulator.machine.warp import WARP_LANES, Warp

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA, Cluster


@dataclass
class Reduction:
    """What barrier.red collects: how many threads had the predicate true, and how many took part."""

    true: int = 0
    seen: int = 0


@dataclass
class NamedBarrier:
    """One of a CTA's 16 barriers. Arrivals count whole warps (PTX ISA, "bar, barrier").

    Attributes:
        expected: threads of the current phase, 0 before the first arrival.
        arrived: threads so far.
        partial: per warp index, lanes that have arrived while others of the warp have not.
        generation: completed phases.
        result: per generation parity, what barrier.red delivers.
    """

    cta: CTA
    number: int
    expected: int = 0
    explicit: bool = False
    arrived: int = 0
    partial: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    reduction: Reduction = field(default_factory=Reduction)
    finished: Reduction = field(default_factory=Reduction)
    last_arrival: str = ""

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
        self.last_arrival = f"warp {warp.index} at PTX line {warp.program.instructions[warp.group.pc].ptx_line}"
        self.partial[warp.index] = seen
        self.check()
        return generation

    def _expect(self, count: int | None) -> None:
        if count is not None and (count <= 0 or count % WARP_LANES or count > self.cta.threads_rounded):
            raise BarrierError(
                f"barrier {self.number} with {count} threads: allowed are multiples of {WARP_LANES} up to the CTA's "
                f"{self.cta.threads_rounded}"
            )
        if self.expected == 0:
            self.explicit = count is not None
            self.expected = count if count is not None else -1
        elif (count is not None) != self.explicit or (count is not None and count != self.expected):
            mine = "all threads" if count is None else f"{count} threads"
            theirs = f"{self.expected} threads" if self.explicit else "all threads"
            raise BarrierError(f"barrier {self.number} awaits {theirs} in this phase, but here it is used with {mine}")

    def check(self) -> None:
        """Complete the phase if everybody is there; called again when threads exit."""
        if self.expected == 0:
            return
        self._count_whole_warps()
        target = self.expected if self.explicit else self.cta.live_warps * WARP_LANES
        if self.arrived > target and self.explicit:
            raise BarrierError(f"barrier {self.number}: {self.arrived} threads arrived where {target} are expected")
        if self.arrived >= target and not self.partial:
            self.expected = self.arrived = 0
            self.generation += 1
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
                self.arrived += WARP_LANES

    def __str__(self) -> str:
        target = self.expected if self.explicit else self.cta.live_warps * WARP_LANES
        return (
            f"barrier {self.number}: {self.arrived} of {target} threads arrived, last {self.last_arrival or 'nobody'}"
        )


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
