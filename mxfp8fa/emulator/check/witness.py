"""Which other edges order what a synchronisation instruction would order.

The witness runs the unbroken kernel, but one instruction teaches nothing: a wait still waits, and its warp learns nothing
by it. If the checker is silent all the same, the happens-before relation does not need the instruction for this input;
and for every conflicting pair that it would have ordered, the witness names the edge that did.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from mxfp8fa.emulator.check.checker import Checker
from mxfp8fa.emulator.check.clocks import Actor, Knowledge, Meetings, fit
from mxfp8fa.emulator.check.findings import Finding
from mxfp8fa.emulator.check.shadow import Access, Cells, Conflict, Shadow

_SHOWN_EDGES = 3


class Witness(Checker):
    """A checker for which the instruction at `pc` teaches nothing.

    Args:
        pc: index of the instruction.
        names: key of a synchronisation object -> its name.
        **options: as for `Checker`.
    """

    def __init__(self, pc: int, names: Callable[[Any], str], **options: Any):
        super().__init__(**options)
        self._pc = pc
        self._names_of = names
        self._ignored: dict[Actor, np.ndarray] = {}  # actor -> clocks that the instruction would have taught it
        self._unmuted = Meetings()  # what the instruction would have given
        self._lessons: dict[Actor, list[tuple[str, np.ndarray]]] = {}
        self._issuers: dict[int, Actor] = {}
        self._edges: dict[str, int] = {}
        self.executions = 0
        self.fresh = 0

    # -- the instruction teaches nothing ------------------------------------------------------------------------------

    def _muted(self) -> bool:
        return self._warp is not None and self._warp.group.pc == self._pc

    def acquire(self, key: Hashable) -> None:
        """Learn, unless this is the instruction."""
        if self._muted():
            published = self._unmuted[key].published
            self.executions += 1
            self.fresh += not published.vector.any()
            self._would_learn(published)
            self._protocol.passed_by(key, self._current)
        else:
            before = self._current.known
            super().acquire(key)
            self._lesson(before, self._names_of(key))

    def waited(self, op: Any) -> None:
        """Likewise for what is waited for by group."""
        if op.done and op.clock is not None and self._muted():
            self.executions += 1
            self._would_learn(op.clock)
        else:
            before = self._current.known
            super().waited(op)
            self._lesson(before, "the wait for its group")

    def fence(self, kind: str) -> None:
        """Likewise for fences."""
        if self._muted():
            self.executions += 1
        else:
            super().fence(kind)

    def release(self, key: Hashable, *, relaxed: bool = False) -> None:
        """An arrival that gives nothing still counts."""
        meeting = self._unmuted[key]
        meeting.gathering = meeting.gathering.join(self._current.known)
        if self._muted():
            self._current.advance()
            self._protocol.arrived(key)
        else:
            super().release(key, relaxed=relaxed)

    def publish(self, key: Hashable) -> None:
        """A phase ends."""
        self._unmuted[key].publish()
        super().publish(key)

    def _would_learn(self, knowledge: Knowledge) -> None:
        old = self._ignored.get(self._current, np.zeros(1, np.int32))
        size = max(old.size, knowledge.vector.size)
        self._ignored[self._current] = np.maximum(fit(old, size), fit(knowledge.vector, size))

    def _lesson(self, before: Knowledge, edge: str) -> None:
        if self._warp is not None and self._current.known is not before:
            line = self._warp.program.instructions[self._warp.group.pc].ptx_line
            log = self._lessons.setdefault(self._current, [])
            log.append((f"{edge} at PTX line {line}", self._current.known.vector))

    def issued(self, op: Any) -> None:
        """What a warp has asynchronous units do is ordered by what the warp knew."""
        self._issuers[id(op)] = (
            self._issuers.get(id(self._op), self._current) if self._op is not None else self._current
        )
        super().issued(op)

    # -- pairs that it would have ordered -----------------------------------------------------------------------------

    def _conflicts(self, shadow: Shadow, cells: Cells, access: Access) -> Iterator[Conflict]:
        source = self._current if self._op is None else self._issuers.get(id(self._op), self._current)
        ignored = self._ignored.get(source)
        if ignored is not None:
            for earlier in shadow.accesses(cells, write=access.write):
                if earlier.actor != source.number and earlier.clock <= int(fit(ignored, earlier.actor + 1)[earlier.actor]):
                    self._name_edge(source, earlier)
        yield from super()._conflicts(shadow, cells, access)

    def _name_edge(self, actor: Actor, earlier: Conflict) -> None:
        for edge, known in self._lessons.get(actor, ()):
            if int(fit(known, earlier.actor + 1)[earlier.actor]) >= earlier.clock:
                text = f"{actor.name} after {self._sites[earlier.site][0]}: {edge}"
                self._edges[text] = self._edges.get(text, 0) + 1
                break

    def argument(self, benign: frozenset[tuple[str, int]] = frozenset()) -> str:
        """Why the instruction is superfluous, or "" if the checker was not silent.

        benign: findings of the unbroken kernel, as (kind, PTX line of the later side).
        """
        if any((f.kind, _line(f)) not in benign for f in self.findings()):
            return ""
        if self.executions and self.fresh == self.executions:
            return "it always finds a fresh barrier, so it never waits"
        if not self._edges:
            return "no later access of its warp, or of what the warp issues, conflicts with one that it would order"
        edges = sorted(self._edges, key=lambda edge: -self._edges[edge])
        more = f"; and {len(edges) - _SHOWN_EDGES} more" if len(edges) > _SHOWN_EDGES else ""
        return "also ordered by " + "; ".join(edges[:_SHOWN_EDGES]) + more


def _line(finding: Finding) -> int:
    side = finding.second or finding.first
    return side[1].ptx_line if side is not None else 0
