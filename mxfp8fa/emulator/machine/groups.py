"""Groups of asynchronous copies that a thread commits and waits for: cp.async groups and bulk async-groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mxfp8fa.emulator.machine.asynchronous import AsyncOp
from mxfp8fa.emulator.machine.warp import indices_of

Finished = Callable[[AsyncOp], bool]


@dataclass(eq=False)
class CopyGroup:
    """Operations that threads `bits` committed together."""

    bits: int
    ops: list[AsyncOp]


@dataclass
class GroupTracker:
    """One warp's groups of one kind.

    Attributes:
        open: operations not yet in a group, with the threads that issued them.
        groups: committed groups, oldest first.
    """

    open: list[tuple[int, AsyncOp]] = field(default_factory=list)
    groups: list[CopyGroup] = field(default_factory=list)

    def add(self, bits: int, op: AsyncOp) -> None:
        """An operation of threads `bits`."""
        self.open.append((bits, op))

    def commit(self, bits: int) -> None:
        """The threads' operations since their last commit become a group."""
        mine = [op for issued, op in self.open if issued & bits]
        self.open = [(issued & ~bits, op) for issued, op in self.open if issued & ~bits]
        self.groups.append(CopyGroup(bits, mine))

    def unfinished(self, bits: int, newest: int, finished: Finished) -> bool:
        """Whether some thread has an unfinished group older than its `newest` latest ones."""
        self._forget(finished)
        older = (g for lane in indices_of(bits) for g in self._older(int(lane), newest))
        return any(not finished(op) for g in older for op in g.ops)

    def _older(self, lane: int, newest: int) -> list[CopyGroup]:
        """A thread's groups but for its `newest` latest ones."""
        mine = [g for g in self.groups if g.bits >> lane & 1]
        return mine[: max(len(mine) - newest, 0)]

    def due(self, bits: int, newest: int) -> list[AsyncOp]:
        """Operations of the threads' groups older than the `newest` latest ones."""
        found: dict[int, AsyncOp] = {}
        for lane in indices_of(bits):
            found.update({id(op): op for g in self._older(int(lane), newest) for op in g.ops})
        return list(found.values())

    def loose(self, bits: int, finished: Finished) -> bool:
        """Whether the threads have unfinished operations outside any group."""
        return any(not finished(op) for issued, op in self.open if issued & bits)

    def _forget(self, finished: Finished) -> None:
        """Drop finished groups that are older than any unfinished one."""
        first = next(
            (i for i, g in enumerate(self.groups) if any(not (finished(op) and op.done) for op in g.ops)),
            len(self.groups),
        )
        if first > 64:  # keep some: a wait for the newest N counts finished groups too, which is harmless
            del self.groups[: first - 64]
