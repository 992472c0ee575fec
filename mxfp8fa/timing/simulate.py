"""Cycles of one cluster: the replayed SASS of its warps, event by event, against the table of rates.

A scheduler issues one warp-instruction a cycle, of the warp that has waited longest among those that can go on. A warp can
go on when the stall count of its last instruction has passed, the scoreboards it names are released, and what its last
anchor waits for has happened. Fixed-latency units (FMA, ALU, conversions, uniform) must be free; MUFU, tensor memory and
shared memory take work into a queue. Asynchronous operations run as `timing.agents` says. Waits are for the phases for
which the emulated warp waited, and a phase is complete when all arrivals that the emulator saw have happened.

Not modelled: register ports and banks, instruction caches, bank conflicts of shared memory, replays, clock changes.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from mxfp8fa.timing.agents import Agents, Busy
from mxfp8fa.timing.costs import QUEUE_CYCLES, QUEUED, SCHEDULER_PIPES, SHARED_ACCESSES, Cost, Pipe, cost_of
from mxfp8fa.timing.paths import Replay, WarpPath
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.record import Anchor, Phase

SCHEDULERS = 4


@dataclass
class Stalls:
    """Cycles that warps waited between instructions, by warp index and reason."""

    cycles: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    places: dict[tuple[int, int, str], float] = field(default_factory=lambda: defaultdict(float))  # and by SASS position


@dataclass
class Timeline:
    """What the model says of one cluster.

    Attributes:
        cycles: from the first instruction to the last one and the last asynchronous operation.
        ends: warp number -> cycle of its last instruction.
        phases: barrier phase -> cycle in which it was complete.
        issued: instructions, by (CTA, scheduler).
        occupied: cycles of each unit, by (CTA, scheduler, unit); scheduler -1: units of the SM.
        tensor: spans of the tensor core and of TMA.
        waits: spans in which warps waited for a phase.
        stalls: see there.
        work: (CTA, unit, start, cycles) of every instruction on its units; unit None: the issue slot. Only where it was
            asked for.
    """

    cycles: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    phases: dict[Phase, float] = field(default_factory=dict)
    issued: Counter[tuple[int, int]] = field(default_factory=Counter)
    occupied: dict[tuple[int, int, Pipe], float] = field(default_factory=lambda: defaultdict(float))
    tensor: list[Busy] = field(default_factory=list)
    waits: list[Busy] = field(default_factory=list)
    stalls: Stalls = field(default_factory=Stalls)
    work: list[tuple[int, Pipe | None, float, float]] | None = None


class _Warp:
    """A warp on its path."""

    def __init__(self, path: WarpPath, scheduler: tuple[int, int]):
        self.record, self.code, self.anchors = path.warp, path.code, path.anchors
        self.scheduler = scheduler
        self.at = 0
        self.boards = [0.0] * 6
        self.ready = 0.0
        self.last = 0.0
        self.reason = "stall count"  # why it is not ready before `ready`
        self.crowded = "issue slot"  # what it waits for when it is ready
        self.pending: list[Phase] = []
        self.parked_since = -1.0


class _Schedulers:
    """Free times of units: one list per scheduler, and shared memory once per CTA."""

    def __init__(self) -> None:
        self.free: dict[tuple[int, int], list[float]] = {}
        self.issue: dict[tuple[int, int], float] = {}

    def of(self, key: tuple[int, int]) -> list[float]:
        return self.free.setdefault(key, [0.0] * SCHEDULER_PIPES)


class Simulation:
    """One cluster of a replay."""

    def __init__(self, replay: Replay, rates: Rates, cluster: int):
        self.rates, self.line = rates, Timeline()
        self.costs = self._costs(replay, rates)
        self.members = replay.record.ctas[cluster]
        paths = [p for p in replay.paths if p.warp.cta in self.members and p.code]
        self.agents = Agents(replay.record, rates, self.members, self._arrive, self.line.tensor)
        self.warps = [_Warp(p, (p.warp.cta, p.warp.index % SCHEDULERS)) for p in paths]
        self.needed = self._arrivals(replay, paths)
        self.latest: dict[Phase, float] = {}
        self.parked: dict[Phase, list[int]] = {}
        self.units = _Schedulers()
        self.port: dict[int, float] = {}
        self.queue: list[tuple[float, float, int]] = [(0.0, 0.0, i) for i in range(len(self.warps))]

    def _costs(self, replay: Replay, rates: Rates) -> list[Cost]:
        """Of every instruction; what an access to shared memory took in the emulated run is shared by its line's SASS."""
        code = replay.function.instructions
        copies = Counter(i.ptx_line for i in code if i.mnemonic in SHARED_ACCESSES)
        seen = replay.record.wavefronts
        costs = []
        for i in code:
            done, cycles = seen.get(i.ptx_line, (0, 0))
            costs.append(cost_of(i, rates, cycles / done if done and copies[i.ptx_line] else None))
        return costs

    def _arrivals(self, replay: Replay, paths: list[WarpPath]) -> Counter[Phase]:
        """How many arrivals complete each phase."""
        mine = {p.warp.number for p in paths}
        needed: Counter[Phase] = Counter()
        for path in paths:
            for anchor in path.warp.anchors:
                needed.update(anchor.arrives)
        for operation in replay.record.operations:
            if operation.warp in mine:
                needed.update(operation.arrives)
        return needed

    def run(self) -> Timeline:
        """To the end.

        Raises:
            RuntimeError: a warp waits for a phase that nobody completes: record and replay do not fit together.
        """
        while self.queue:
            time, _, number = heapq.heappop(self.queue)
            warp = self.warps[number]
            cost = self.costs[warp.code[warp.at]]
            start, reason = self._possible(warp, cost, time)
            if start > time:
                warp.crowded = reason
                heapq.heappush(self.queue, (start, warp.last, number))
            else:
                self._issue(number, warp, cost, time)
        stuck = [phase for phase, numbers in self.parked.items() if numbers]
        if stuck:
            raise RuntimeError(f"nobody completes phase {stuck[0][1]} of {stuck[0][0]}: record and replay do not fit together")
        self.line.cycles = max([*self.line.ends.values(), self.agents.last])
        return self.line

    def _possible(self, warp: _Warp, cost: Cost, time: float) -> tuple[float, str]:
        """When the warp's next instruction can issue, and what it waits for if that is later."""
        start, reason = time, "issue slot"
        free = self.units.issue.get(warp.scheduler, 0.0)
        if free > start:
            start = free
        pipes = self.units.of(warp.scheduler)
        for pipe, _ in cost.pipes:
            if pipe is Pipe.SMEM:
                ready = self.port.get(warp.scheduler[0], 0.0) - QUEUE_CYCLES
            elif pipe in QUEUED:
                ready = pipes[pipe] - QUEUE_CYCLES
            else:
                ready = pipes[pipe]
            if ready > start:
                start, reason = ready, f"{pipe.name} unit"
        return start, reason

    def _issue(self, number: int, warp: _Warp, cost: Cost, time: float) -> None:
        line, at = self.line, warp.at
        own = min(warp.ready, time) - warp.last - 1
        for reason, cycles in ((warp.reason, own), (warp.crowded, time - max(warp.ready, warp.last + 1))):
            if cycles > 0 and warp.at:
                line.stalls.cycles[warp.record.index, reason] += cycles
                line.stalls.places[warp.record.index, warp.code[at], reason] += cycles
        line.issued[warp.scheduler] += 1
        self.units.issue[warp.scheduler] = time + 1
        if line.work is not None:
            line.work.append((warp.scheduler[0], None, time, 1.0))
        result = self._occupy(warp, cost, time) + cost.latency
        if cost.write < 6:
            warp.boards[cost.write] = max(warp.boards[cost.write], result)
        if cost.read < 6:
            warp.boards[cost.read] = max(warp.boards[cost.read], time + cost.read_latency)
        warp.last = time
        line.ends[warp.record.number] = time
        warp.ready, warp.reason, warp.crowded = time + cost.stall, "stall count", "issue slot"
        if cost.jumps and at + 1 < len(warp.code) and warp.code[at + 1] != warp.code[at] + 1:
            warp.ready += self.rates["branch"]
        for anchor in warp.anchors.get(at, ()):
            self._effects(warp, anchor, time, result)
        warp.at += 1
        if warp.at < len(warp.code):
            self._go_on(number, warp)

    def _occupy(self, warp: _Warp, cost: Cost, time: float) -> float:
        """Put an instruction on its units; returns when it leaves them."""
        leaves, pipes = time, self.units.of(warp.scheduler)
        cta, scheduler = warp.scheduler
        for pipe, cycles in cost.pipes:
            if pipe is Pipe.SMEM:
                begins = max(time, self.port.get(cta, 0.0))
                self.port[cta] = begins + cycles
                self.agents.disturb(cta, cycles)
                self.line.occupied[cta, -1, pipe] += cycles
            else:
                begins = max(time, pipes[pipe])
                pipes[pipe] = begins + cycles
                self.line.occupied[cta, scheduler, pipe] += cycles
            if self.line.work is not None:
                self.line.work.append((cta, pipe, begins, cycles))
            if pipe in QUEUED:
                leaves = max(leaves, begins + cycles)
        return leaves

    # -- what others see --------------------------------------------------------------------------------------------------

    def _effects(self, warp: _Warp, anchor: Anchor, time: float, result: float) -> None:
        for operation in anchor.operations:
            self.agents.start(operation, time, result)
        for phase in anchor.arrives:
            self._arrive(phase, time + (self.rates["arrive"] if phase[0][0] == "mbarrier" else 0))
        for number in anchor.waits_for:
            done = self.agents.done.get(number, time)
            if done > warp.ready:
                warp.ready, warp.reason = done, "asynchronous operation"
        if anchor.waits:
            warp.ready = max(warp.ready, time + self._poll(anchor.waits[0]))
            warp.pending = list(anchor.waits)

    def _poll(self, phase: Phase) -> float:
        """Cycles of a wait for a phase that is complete."""
        return self.rates["try_wait"] if phase[0][0] == "mbarrier" else self._wake(phase)

    def _wake(self, phase: Phase) -> float:
        """Cycles from a phase's completion to the next instruction of who waits for it."""
        return self.rates[{"mbarrier": "wake", "barrier": "bar"}.get(phase[0][0], "cluster_bar")]

    def _arrive(self, phase: Phase, time: float) -> None:
        self.needed[phase] -= 1
        self.latest[phase] = max(self.latest.get(phase, 0.0), time)
        if self.needed[phase] == 0:
            self.line.phases[phase] = self.latest[phase]
            for number in self.parked.pop(phase, ()):
                self._go_on(number, self.warps[number])

    def _go_on(self, number: int, warp: _Warp) -> None:
        """Queue the warp's next instruction, or park it at a phase that is not complete."""
        while warp.pending:
            phase = warp.pending[0]
            done = self.line.phases.get(phase)
            if done is None and self.needed[phase] > 0:
                self.parked.setdefault(phase, []).append(number)
                return
            warp.pending.pop(0)
            if done is not None and done + self._wake(phase) > warp.ready:
                warp.ready, warp.reason = done + self._wake(phase), f"waits: {barrier_label(phase)}"
                self.line.waits.append(Busy(f"warp {warp.record.number}", barrier_label(phase), warp.last, warp.ready))
        mask = self.costs[warp.code[warp.at]].wait
        ready = warp.ready
        if mask:
            for board in range(6):
                if mask >> board & 1 and warp.boards[board] > ready:
                    ready, warp.reason = warp.boards[board], "scoreboard"
        warp.ready = ready
        heapq.heappush(self.queue, (ready, warp.last, number))


def barrier_label(phase: Phase) -> str:
    """A barrier as messages call it."""
    key = phase[0]
    return f"mbarrier {key[2]:#x}" if key[0] == "mbarrier" else f"barrier {key[2]}" if key[0] == "barrier" else "cluster barrier"


def simulate(
    replay: Replay, rates: Rates | None = None, cluster: int | None = None, *, keep_work: bool = False
) -> Timeline:
    """The timeline of one cluster (the first one started, by default); `keep_work` fills its `work`."""
    chosen = next(iter(replay.record.ctas)) if cluster is None else cluster
    simulation = Simulation(replay, rates or Rates(), chosen)
    if keep_work:
        simulation.line.work = []
    return simulation.run()
