"""The schedule as compiled code: turn after turn of the resident warps, until one of them needs Python.

Only under the eager schedule and while nobody observes. The order of turns is `Machine`'s own: whose turn it is depends
on which warps can run, and so does everything here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.compiled.runtime import Verdict, scheduler
from mxfp8fa.emulator.compiled.state import Blocked, Mode, Schedule, State
from mxfp8fa.emulator.machine.evaluator import Turn

if TYPE_CHECKING:
    from mxfp8fa.emulator.compiled.warp import CompiledWarp
    from mxfp8fa.emulator.machine.machine import Machine

TURNS = 256  # turns after which Python shows progress, and can be interrupted
KINDS = {"mbarrier": Blocked.MBARRIER, "barrier": Blocked.NAMED}


class Turns:
    """The schedule of one launch.

    Attributes:
        idle: whether no warp could run when it came back last.
    """

    def __init__(self, machine: Machine, quantum: int):
        self.machine = machine
        self.idle = False
        words = np.zeros(len(Schedule), np.int64)
        self._address, self._words = words.ctypes.data, words.data
        self._words[Schedule.QUANTUM] = quantum
        self._schedule = scheduler()
        self._warps: list[CompiledWarp] = []
        self._states = np.zeros(0, np.int64)
        self._uncertain: set[CompiledWarp] = set()  # whose mode may change without compiled code knowing
        self._by_cta: dict[int, list[CompiledWarp]] = {}

    def arrange(self) -> None:
        """Clusters came or went."""
        before = set(self._warps)
        self._warps = [w for cluster in self.machine.resident for w in cluster.warps]  # type: ignore[misc]
        self._states = np.array([w.state_address for w in self._warps], np.int64)
        self._words[Schedule.COUNT], self._words[Schedule.WARPS] = len(self._warps), self._states.ctypes.data
        self._by_cta = {}
        for warp in self._warps:
            warp.state[State.SCHEDULE] = self._address
            self._by_cta.setdefault(warp.cta.number, []).append(warp)
        self._uncertain = {w for w in self._warps if w in self._uncertain or w not in before}

    def enter(self) -> None:
        """Tell compiled code the machine's epoch, and whether some group waits in Python's records."""
        self._words[Schedule.EPOCH] = self.machine.epoch
        self._words[Schedule.WAITERS] = bool(self.machine.waiting)

    def wake(self, key: tuple[Any, ...]) -> None:
        """Wake warps that wait for this in compiled code."""
        kind = KINDS.get(key[0])
        if kind is not None:
            for warp in self._by_cta.get(key[1], ()):
                if warp.state[State.BLOCKED] == kind and warp.state[State.KEY] == key[2]:
                    warp.state[State.BLOCKED] = Blocked.NOTHING

    def ran(self, warp: CompiledWarp) -> None:
        """Python ran a warp."""
        self._uncertain.add(warp)

    def show_waits(self) -> None:
        """Let the groups of all warps say what they wait for, for Python to read and change."""
        for warp in self._warps:
            if warp.state[State.MODE] == Mode.READY:
                warp.show_wait()
        self._uncertain.update(self._warps)

    def run(self) -> Turn | None:
        """Give turns until one needs Python, nobody can run (then `idle` is set), or for a while."""
        machine, words = self.machine, self._words
        self._settle_modes()
        self.enter()
        words[Schedule.LIMIT] = TURNS
        verdict = self._schedule(self._address)
        machine.epoch = words[Schedule.EPOCH]
        machine.instructions += words[Schedule.INSTRUCTIONS]
        words[Schedule.INSTRUCTIONS] = 0
        self.idle = verdict == Verdict.IDLE
        if verdict < 0:
            return None
        warp = self._warps[words[Schedule.CURRENT]]
        if warp.state[State.MODE] == Mode.READY:
            warp.read_groups()
        warp.publish_woken()
        return Turn(warp, warp.state[State.LEFT], words[Schedule.BEFORE])

    def _settle_modes(self) -> None:
        """Who runs the warps that Python ran."""
        certain = []
        for warp in self._uncertain:
            warp.state[State.SPIN] = warp.spin_epoch if warp.spinning else -1
            mode = warp.state[State.MODE] = warp.mode()
            if mode == Mode.READY:
                certain.append(warp)
        self._uncertain.difference_update(certain)
