"""Which other edges order what a synchronisation instruction would order.

The witness runs the unbroken kernel, but one instruction teaches nothing: a wait still waits, and its warp learns nothing
by it. If the checker is silent all the same, the happens-before relation does not need the instruction for this input;
and for every conflicting pair that it would have ordered, the witness names the edge that did. The end of the CTA, where
nothing asynchronous may still run, counts as an access.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.check.checker import Checker
from mxfp8fa.emulator.check.clocks import Actor, Knowledge, Meetings, fit
from mxfp8fa.emulator.check.findings import Finding
from mxfp8fa.emulator.check.shadow import Access, Cells, Conflict, Shadow
from mxfp8fa.emulator.names import Names

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA

_SHOWN_EDGES = 3


class Witness(Checker):
    """A checker for which the instruction at `pc` teaches nothing.

    Args:
        pc: index of the instruction.
        names: roles and barriers.
        **options: as for `Checker`.
    """

    def __init__(self, pc: int, names: Names, **options: Any):
        super().__init__(names=names, **options)
        self._pc = pc
        self._names_of = names.barrier
        self._ignored: dict[Actor, np.ndarray] = {}  # actor -> clocks that the instruction would have taught it
        self._unmuted = Meetings()  # what the instruction would have given
        self._lessons: dict[Actor, list[tuple[str, np.ndarray]]] = {}
        self._issuers: dict[int, Actor] = {}
        self._edges: dict[str, int] = {}
        self._at_exit: dict[str, int] = {}
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
                if earlier.actor != source.number and earlier.clock <= int(
                    fit(ignored, earlier.actor + 1)[earlier.actor]
                ):
                    self._name_edge(source, earlier)
        yield from super()._conflicts(shadow, cells, access)

    def _name_edge(self, actor: Actor, earlier: Conflict) -> None:
        for edge, known in self._lessons.get(actor, ()):
            if int(fit(known, earlier.actor + 1)[earlier.actor]) >= earlier.clock:
                text = f"{actor.name} after {self._sites[earlier.site][0]}: {edge}"
                self._edges[text] = self._edges.get(text, 0) + 1
                break

    def cta_done(self, cta: CTA) -> None:
        """What asynchronous units did and the instruction would have told must be known by another edge now."""
        ended = [
            actor
            for key, actor in self._actors.by_key.items()
            if isinstance(key, tuple) and key[:2] == ("warp", cta.index)
        ]
        numbers = {actor.number: actor for actor in self._actors.by_key.values() if actor.asynchronous}
        for actor in ended:
            ignored = self._ignored.get(actor, np.zeros(0, np.int32))
            for number in np.flatnonzero(ignored).tolist():
                if number in numbers:
                    self._name_edge_at_exit(ended, numbers[number], int(ignored[number]))
        super().cta_done(cta)

    def _name_edge_at_exit(self, ended: list[Actor], agent: Actor, clock: int) -> None:
        for warp in ended:
            for edge, known in self._lessons.get(warp, ()):
                if int(fit(known, agent.number + 1)[agent.number]) >= clock:
                    text = f"{warp.name} after {agent.name}: {edge}"
                    self._at_exit[text] = self._at_exit.get(text, 0) + 1
                    return

    def argument(self, benign: frozenset[tuple[str, int]] = frozenset()) -> str:
        """Why the instruction is superfluous, or "" if the checker was not silent.

        benign: findings of the unbroken kernel, as (kind, PTX line of the later side).
        """
        if any((f.kind, _line(f)) not in benign for f in self.findings()):
            return ""
        if self.executions and self.fresh == self.executions:
            return "it always finds a fresh barrier, so it never waits"
        if self._edges:
            return f"also ordered by {_most(self._edges)}"
        nothing = "no later access of its warp, or of what the warp issues, conflicts with one that it would order"
        return f"{nothing}; before the CTA's exit also ordered by {_most(self._at_exit)}" if self._at_exit else nothing


def _most(edges: dict[str, int]) -> str:
    """Those that order most pairs."""
    first = sorted(edges, key=lambda edge: -edges[edge])
    more = f"; and {len(edges) - _SHOWN_EDGES} more" if len(edges) > _SHOWN_EDGES else ""
    return "; ".join(first[:_SHOWN_EDGES]) + more


def _line(finding: Finding) -> int:
    side = finding.second or finding.first
    return side[1].ptx_line if side is not None else 0
