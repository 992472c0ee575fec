"""What a timing model needs of an emulated run: where each warp passed, who waited for what, and what ran asynchronously.

A `Recorder` is an observer of the emulator. It keeps the instructions with effects that others can see ("anchors"):
arrivals, waits, fences, asynchronous operations, in the order in which each warp executed them. What lies between two
anchors is straight code or a branch on data, which `timing.paths` finds in the SASS.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.machine.watch import Watch

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.warp import Warp

WORD_BYTES, BANKS = 4, 32
Key = Any  # of a barrier, as the machine names it: ("mbarrier", CTA, offset), ("barrier", CTA, number), ...
Phase = tuple[Key, int]  # a barrier, and the number of one of its phases


@dataclass
class Anchor:
    """One executed instruction with visible effects.

    Attributes:
        ptx_line: where it stands.
        arrives: phases that it counts towards.
        waits: phases that must be complete before it is.
        operations: numbers of the asynchronous operations that it starts.
        waits_for: numbers of operations that must be complete before it is.
        executed: PTX instructions that the warp had executed until here.
    """

    ptx_line: int
    executed: int = 0
    arrives: list[Phase] = field(default_factory=list)
    waits: list[Phase] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    _stamp: Any = None
    _missed: bool = False


@dataclass
class Operation:
    """One asynchronous operation.

    Attributes:
        number: in the order of issue.
        what: "tcgen05.mma", "cp.async.bulk.tensor", ...
        queue: operations of one queue run in order.
        warp: number of the warp that issued it.
        after: number of the operation that it continues, or -1.
        shared_bytes: bytes of shared memory read and written, by CTA.
        columns: columns of tensor memory written, by CTA.
        global_bytes: bytes of global memory read and written.
        arrives: phases that its completion counts towards.
    """

    number: int
    what: str
    queue: Hashable
    warp: int
    after: int = -1
    shared_bytes: dict[int, int] = field(default_factory=dict)
    columns: dict[int, int] = field(default_factory=dict)
    global_bytes: int = 0
    arrives: list[Phase] = field(default_factory=list)


@dataclass
class WarpRecord:
    """What one warp did.

    Attributes:
        number: of the warp, unique in the launch.
        cta: number of its CTA.
        index: in the CTA.
        anchors: in order.
    """

    number: int
    cta: int
    index: int
    anchors: list[Anchor] = field(default_factory=list)


@dataclass
class LaunchRecord:
    """One launch.

    Attributes:
        kernel: name of the entry point.
        ptx_instructions: of the kernel; tells kernels of one name apart.
        grid, block, cluster: shapes.
        smem_bytes: dynamic shared memory of a CTA.
        warps: by number.
        ctas: numbers of the CTAs of each cluster, in the order in which they started.
        operations: by number.
        ptx_counts: how often each PTX line was executed by a warp, at the end of the run.
        wavefronts: PTX line -> how many warp accesses to shared memory, and how many cycles of its port they need together:
            the most words that one bank holds of an access.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    ptx_instructions: int
    warps: dict[int, WarpRecord] = field(default_factory=dict)
    ctas: dict[int, list[int]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    ptx_counts: dict[int, int] = field(default_factory=dict)
    wavefronts: dict[int, tuple[int, int]] = field(default_factory=dict)


class Recorder(Watch):
    """Records every launch of a run.

    Attributes:
        launches: in order.
    """

    watching = True

    def __init__(self) -> None:
        self.launches: list[LaunchRecord] = []
        self._machine: Machine | None = None
        self._warp: Warp | None = None
        self._acting: list[Operation] = []
        self._numbers: dict[int, Operation] = {}
        self._kept: list[AsyncOp] = []  # so that the identity of an operation is not given to another one
        self._published: dict[Hashable, int] = {}
        self._words: list[np.ndarray] = []
        self._access_stamp: Any = None

    def finish(self) -> list[LaunchRecord]:
        """The launches, with the counts of the last one."""
        self._close()
        return self.launches

    def _open(self, machine: Machine) -> None:
        self._close()
        launch = machine.launch
        program = machine.program
        shapes = (launch.grid, launch.block, launch.cluster, launch.smem_bytes)
        self.launches.append(LaunchRecord(program.kernel.name, *shapes, len(program.instructions)))
        self._machine, self._numbers, self._kept, self._published = machine, {}, [], {}

    def _close(self) -> None:
        if self._machine is None:
            return
        self._count_access()
        counts = self.launches[-1].ptx_counts
        program = self._machine.program
        for instruction, n in zip(program.instructions, program.counts, strict=False):
            if n:
                counts[instruction.ptx_line] = counts.get(instruction.ptx_line, 0) + n
        self._machine = None

    # -- who acts -----------------------------------------------------------------------------------------------------

    def run_warp(self, warp: Warp) -> None:
        """A turn of a warp."""
        if warp.machine is not self._machine:
            self._open(warp.machine)
        launch = self.launches[-1]
        if warp.number not in launch.warps:
            launch.warps[warp.number] = WarpRecord(warp.number, warp.cta.number, warp.index)
            members = launch.ctas.setdefault(warp.cta.cluster.number, [c.number for c in warp.cta.cluster.ctas])
            assert warp.cta.number in members
        self._warp = warp

    def issued(self, op: AsyncOp) -> None:
        """An operation starts."""
        launch = self.launches[-1]
        warp = self._warp.number if self._warp is not None else -1
        after = self._numbers[id(op.after)].number if op.after is not None and id(op.after) in self._numbers else -1
        operation = Operation(len(launch.operations), op.what, op.queue, warp, after)
        launch.operations.append(operation)
        self._numbers[id(op)] = operation
        self._kept.append(op)
        if not self._acting:
            self._anchor().operations.append(operation.number)

    def begin(self, op: AsyncOp) -> None:
        """An operation acts."""
        self._acting.append(self._numbers[id(op)])

    def end(self, op: AsyncOp) -> None:
        """It is complete."""
        self._acting.pop()

    def waited(self, op: AsyncOp) -> None:
        """The warp needed the operation to be complete."""
        if not self._acting and id(op) in self._numbers:
            self._anchor().waits_for.append(self._numbers[id(op)].number)

    # -- what an operation touches --------------------------------------------------------------------------------------

    def shared(
        self, cta: CTA, offsets: np.ndarray | slice, size_bytes: int, *, write: bool, atomic: bool = False
    ) -> None:
        """Bytes of shared memory."""
        if self._acting:
            size = offsets.stop - offsets.start if isinstance(offsets, slice) else offsets.size * size_bytes
            touched = self._acting[-1].shared_bytes
            touched[cta.number] = touched.get(cta.number, 0) + int(size)
        elif self._warp is not None:
            self._access(self._warp, offsets, size_bytes)

    def _access(self, warp: Warp, offsets: np.ndarray | slice, size_bytes: int) -> None:
        """An access of a warp; one instruction may report several parts."""
        line = warp.program.instructions[warp.group.pc].ptx_line
        stamp = (warp.number, warp.instructions, warp.executed, line)
        if stamp != self._access_stamp:
            self._count_access()
            self._access_stamp = stamp
        if isinstance(offsets, slice):
            words = np.arange(offsets.start // WORD_BYTES, -(-offsets.stop // WORD_BYTES))
        else:
            parts = np.arange(-(-size_bytes // WORD_BYTES))
            words = (np.asarray(offsets, np.int64).ravel()[:, None] // WORD_BYTES + parts).ravel()
        self._words.append(words)

    def _count_access(self) -> None:
        if self._words:
            words = np.unique(np.concatenate(self._words))
            cycles = int(np.bincount(words % BANKS).max())
            _, _, _, line = self._access_stamp
            done, total = self.launches[-1].wavefronts.get(line, (0, 0))
            self.launches[-1].wavefronts[line] = (done + 1, total + cycles)
        self._words = []

    def memory(self, addresses: np.ndarray, size_bytes: int, *, write: bool, atomic: bool = False) -> None:
        """Bytes of global memory."""
        if self._acting:
            self._acting[-1].global_bytes += addresses.size * size_bytes

    def tensor(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, *, write: bool) -> None:
        """Columns of tensor memory."""
        if self._acting and write:
            width = int(columns.max()) - int(columns.min()) + 1
            self._acting[-1].columns[cta.number] = max(width, self._acting[-1].columns.get(cta.number, 0))

    # -- synchronisation ------------------------------------------------------------------------------------------------

    def release(self, key: Hashable, *, relaxed: bool = False) -> None:
        """An arrival on the phase that is under way."""
        phase = (key, self._published.get(key, 0))
        arrives = self._acting[-1].arrives if self._acting else self._anchor().arrives
        if phase not in arrives:
            arrives.append(phase)

    def publish(self, key: Hashable) -> None:
        """A phase is complete."""
        self._published[key] = self._published.get(key, 0) + 1

    def acquire(self, key: Hashable) -> None:
        """A wait for the latest complete phase is over."""
        done = self._published.get(key, 0)
        anchor = self._anchor(waited=key)
        if done and (key, done - 1) not in anchor.waits:
            anchor.waits.append((key, done - 1))

    def barrier_missed(self, cta: CTA, offset: int, parity: int) -> None:
        """A wait was executed and has to be executed again."""
        self._anchor(missed=True)

    def fence(self, kind: str) -> None:
        """A fence."""
        if not self._acting:
            self._anchor()

    def _anchor(self, *, waited: Hashable = None, missed: bool = False) -> Anchor:
        """The anchor of the instruction that runs now.

        A wait is executed once more when it is woken: that is still the same anchor.
        """
        assert self._warp is not None
        warp = self._warp
        anchors = self.launches[-1].warps[warp.number].anchors
        line = warp.program.instructions[warp.group.pc].ptx_line
        stamp = (warp.instructions, warp.executed, line)
        if anchors and anchors[-1].ptx_line == line:
            last = anchors[-1]
            arrived = any(key == waited for key, _ in last.arrives) and not last.waits
            if last._stamp == stamp or last._missed or (waited is not None and arrived):
                last._missed = last._missed and missed
                return last
        anchors.append(Anchor(line, warp.instructions + warp.executed, _stamp=stamp, _missed=missed))
        return anchors[-1]
