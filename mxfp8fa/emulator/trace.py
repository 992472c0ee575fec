"""A recording of a run: what each warp did and waited for, what the asynchronous agents did, what lived in tensor memory.

    report = run(compiled, ..., trace=Trace())    # then plots.pipeline draws it, and to_perfetto() writes it for a viewer

Time is counted in steps of the emulation: one per executed warp-instruction and one per completed asynchronous operation.
It orders events and measures nothing: cycles come from the timing model. The "lazy" and "random" schedules spread
asynchronous work over time; under "eager" it completes where it was issued.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.emulator.names import Buffer, Names, agent_name

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.warp import Wait, Warp


@dataclass(frozen=True)
class Span:
    """Something that lasted.

    Attributes:
        actor: "CTA (0, 0, 0) warp 3", "TMA", "tensor core", ...
        what: "runs", "waits: ...", or the operation.
        start, end: steps.
        ptx_line: of the instruction.
    """

    actor: str
    what: str
    start: int
    end: int
    ptx_line: int


@dataclass(frozen=True)
class TensorAccess:
    """Columns of tensor memory that one instruction touched."""

    step: int
    cta: tuple[int, int, int]
    actor: str
    write: bool
    first_column: int
    last_column: int
    ptx_line: int


@dataclass(frozen=True)
class SharedAccess:
    """Bytes of shared memory that one instruction or asynchronous operation touched, from the first to the last.

    Attributes:
        issued: the step in which an asynchronous operation was issued; `step` for others.
    """

    step: int
    issued: int
    cta: tuple[int, int, int]
    actor: str
    write: bool
    start: int
    stop: int
    ptx_line: int


@dataclass(frozen=True)
class Stay:
    """A tile's time in a buffer of shared memory.

    Attributes:
        buffer: its name, or the range of its bytes.
        start, stop: shared offsets.
        issued, filled, last_read: steps; last_read is `filled` if nobody read it.
    """

    buffer: str
    start: int
    stop: int
    issued: int
    filled: int
    last_read: int


@dataclass(frozen=True)
class BarrierEvent:
    """Something that happened to a barrier: "arrive", "complete" or "pass" (a wait that was satisfied)."""

    step: int
    barrier: str
    actor: str
    what: str


@dataclass
class Trace(Watch):
    """Records what a launch does. Give barriers and roles names to see them in pictures.

    Attributes:
        roles: warp index -> name ("load", "mma", ...); others are called by their number.
        barriers: shared offset of an mbarrier -> name; others are called by their offset.
        columns: name -> first and last column of tensor memory.
        buffers: name -> `Buffer`, or first shared offset and the one after the last.
        spans, tensor_accesses, shared_accesses, barrier_events: what was recorded.
    """

    roles: Mapping[int, str] = field(default_factory=dict)
    barriers: Mapping[int, str] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    buffers: Mapping[str, Buffer | tuple[int, int]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    tensor_accesses: list[TensorAccess] = field(default_factory=list)
    shared_accesses: list[SharedAccess] = field(default_factory=list)
    barrier_events: list[BarrierEvent] = field(default_factory=list)
    _machine: Machine | None = None
    _current: str = ""
    _line: int = 0
    _since: int = 0
    _operations: int = 0
    _waiting: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    _stack: list[tuple[str, int]] = field(default_factory=list)
    _warp: Warp | None = None
    _op: AsyncOp | None = None

    watching = True

    @classmethod
    def named(cls, names: Names) -> Trace:
        """A trace that uses the names a kernel declares."""
        return cls(roles=names.roles, barriers=names.barriers, columns=names.columns, buffers=names.buffers)

    @property
    def step(self) -> int:
        """Now."""
        running = self._warp.executed if self._warp is not None else 0
        return (self._machine.instructions if self._machine else 0) + running + self._operations

    def warp_name(self, warp: Warp) -> str:
        """The role of a warp, with its CTA when there are several."""
        name = self.roles.get(warp.index, f"warp {warp.index}")
        return (
            name
            if len(warp.machine.resident) == 1 and len(warp.cta.cluster.ctas) == 1
            else f"{name}, CTA {warp.cta.index}"
        )

    # -- who acts -----------------------------------------------------------------------------------------------------

    def run_warp(self, warp: Warp) -> None:
        """A turn of a warp begins; what it waited for ends."""
        self._machine, self._warp = warp.machine, warp
        self._current, self._since = self.warp_name(warp), self.step
        start, reason, line = self._waiting.pop(warp.number, (0, "", 0))
        if reason:
            self.spans.append(Span(self._current, f"waits: {reason}", start, self._since, line))
        self._line = warp.program.instructions[min(warp.group.pc, len(warp.program.instructions) - 1)].ptx_line

    def ran_warp(self, warp: Warp) -> None:
        """A turn of a warp ends."""
        end = self.step
        if end > self._since:
            self.spans.append(Span(self._current, "runs", self._since, end, self._line))
        for group in warp.groups:
            if group.wait is not None:
                line = warp.program.instructions[group.pc].ptx_line
                self._waiting[warp.number] = (end, self._waits_for(group.wait), line)
        self._warp = None

    def _waits_for(self, wait: Wait) -> str:
        key = wait.key
        known = isinstance(key, tuple) and key[0] in ("mbarrier", "barrier", "barrier.cluster")
        return self.barrier_name(key) if known else wait.reason

    def issued(self, op: AsyncOp) -> None:
        """An operation starts."""
        op.issued_step = self.step

    def begin(self, op: AsyncOp) -> None:
        """An operation is carried out."""
        self._stack.append((self._current, self._line))
        self._current, self._line, self._op = agent_name(op.queue), op.site.ptx_line, op

    def end(self, op: AsyncOp) -> None:
        """An operation is complete: it lasted from issue to here."""
        self._operations += 1
        self.spans.append(Span(self._current, op.what, op.issued_step, self.step, op.site.ptx_line))
        self._current, self._line = self._stack.pop()
        self._op = None

    # -- what happens -------------------------------------------------------------------------------------------------

    def tensor(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, *, write: bool) -> None:
        """Columns read or written."""
        line = self._site_line()
        first, last = int(columns.min()), int(columns.max())
        self.tensor_accesses.append(TensorAccess(self.step, cta.index, self._current, write, first, last, line))

    def shared(
        self, cta: CTA, offsets: np.ndarray | slice, size_bytes: int, *, write: bool, atomic: bool = False
    ) -> None:
        """Bytes read or written."""
        if isinstance(offsets, slice):
            start, stop = int(offsets.start), int(offsets.stop)
        else:
            start, stop = int(offsets.min(initial=1 << 30)), int(offsets.max(initial=0)) + size_bytes
        issued = self._op.issued_step if self._op is not None else self.step
        who, line = self._current, self._site_line()
        self.shared_accesses.append(SharedAccess(self.step, issued, cta.index, who, write, start, stop, line))

    def release(self, key: Hashable, *, relaxed: bool = False) -> None:
        """An arrival."""
        self._barrier(key, "arrive")

    def publish(self, key: Hashable) -> None:
        """A phase completes."""
        self._barrier(key, "complete")

    def acquire(self, key: Hashable) -> None:
        """A wait is satisfied."""
        self._barrier(key, "pass")

    def _barrier(self, key: Hashable, what: str) -> None:
        if isinstance(key, tuple) and key[0] in ("mbarrier", "barrier", "barrier.cluster"):
            self.barrier_events.append(BarrierEvent(self.step, self.barrier_name(key), self._current, what))

    def barrier_name(self, key: Sequence[Any]) -> str:
        """The name of a barrier: as given, else what and where it is."""
        return Names(barriers=self.barriers).barrier(key)

    def _site_line(self) -> int:
        if self._stack or self._warp is None:
            return self._line
        return self._warp.program.instructions[self._warp.group.pc].ptx_line

    # -- views --------------------------------------------------------------------------------------------------------

    def barrier_graph(self) -> dict[str, tuple[list[str], list[str]]]:
        """Barrier -> (who arrives on it, who waits for it), as observed."""
        graph: dict[str, tuple[list[str], list[str]]] = {}
        for event in self.barrier_events:
            producers, consumers = graph.setdefault(event.barrier, ([], []))
            side = producers if event.what == "arrive" else consumers
            if event.what != "complete" and event.actor not in side:
                side.append(event.actor)
        return graph

    def stays(self) -> list[Stay]:
        """What TMA brought into shared memory, buffer by buffer in the order of their addresses.

        A buffer is a range of bytes that a copy filled. Reads count from its filling to the next one.
        """
        fills = [a for a in self.shared_accesses if a.write and a.actor == "TMA"]
        stays = []
        for start, stop in sorted({(a.start, a.stop) for a in fills}):
            mine = [a for a in fills if (a.start, a.stop) == (start, stop)]
            reads = [a for a in self.shared_accesses if not a.write and a.start < stop and start < a.stop]
            for fill, after in zip(mine, [*mine[1:], None], strict=True):
                end = after.step if after is not None else self.step + 1
                last = max((a.step for a in reads if fill.step <= a.step < end), default=fill.step)
                stays.append(Stay(self.buffer_name(start, stop), start, stop, fill.issued, fill.step, last))
        return stays

    def buffer_name(self, start: int, stop: int) -> str:
        """The name of a range of shared memory: as given, else its first and last byte."""
        for name, (first, end, *_) in self.buffers.items():
            if first <= start and stop <= end:
                return name if (first, end) == (start, stop) else f"{name} + {start - first:#x}"
        return f"{start:#x}-{stop - 1:#x}"

    def to_perfetto(self) -> str:
        """The spans as a Chrome trace (JSON), one step drawn as one microsecond."""
        threads = {name: i for i, name in enumerate(dict.fromkeys(span.actor for span in self.spans))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": name}}
            for name, i in threads.items()
        ]
        events += [
            {
                "ph": "X", "name": span.what, "pid": 1, "tid": threads[span.actor], "ts": span.start,
                "dur": max(span.end - span.start, 1), "args": {"ptx_line": span.ptx_line},
            }
            for span in self.spans
        ]  # fmt: skip
        return json.dumps({"traceEvents": events, "otherData": {"time": "steps of the emulation, not cycles"}})


class Watches(Watch):
    """Several observers at once."""

    watching = True

    def __init__(self, watches: Sequence[Watch]):
        self._watches = list(watches)

    def findings(self) -> list[Any]:
        """What any of them found."""
        return [finding for watch in self._watches for finding in watch.findings()]


def _to_all(name: str) -> Any:
    def call(self: Watches, *args: Any, **keywords: Any) -> None:
        for watch in self._watches:
            getattr(watch, name)(*args, **keywords)

    return call


for _name in (
    "run_warp", "ran_warp", "issued", "begin", "end", "waited", "shared", "memory", "tensor", "tensor_pending", "release",
    "publish", "acquire", "fence", "barrier_initialised", "barrier_used", "barrier_split", "barrier_missed", "cta_done",
):  # fmt: skip
    setattr(Watches, _name, _to_all(_name))
