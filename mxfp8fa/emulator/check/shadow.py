"""Who touched a memory cell last: the latest write and, per actor, the latest read, with their clocks and sites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mxfp8fa.emulator.check.clocks import ORDER, Actor, Vector, fit

Cells = np.ndarray | slice


@dataclass(frozen=True)
class Conflict:
    """An earlier access that the present one is not ordered after.

    Attributes:
        cell: index of the first such cell.
        actor, site: numbers of who did it and where.
        wrote: whether it was a write.
        visible_only: ordered in time, but not made visible to the asynchronous proxy.
    """

    cell: int
    actor: int
    site: int
    wrote: bool
    visible_only: bool = False


class Shadow:
    """The history of `count` cells."""

    def __init__(self, count: int):
        self.count = count
        self.write_actor = np.zeros(count, np.int32)
        self.write_clock = np.zeros(count, np.int32)
        self.write_site = np.zeros(count, np.int32)
        self.write_asynchronous = np.zeros(count, bool)
        self.write_atomic = np.zeros(count, bool)
        self.reads: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def conflicts(
        self, cells: Cells, actor: Actor, *, write: bool, atomic: bool, order: int = ORDER, visible: int | None = None
    ) -> Iterator[Conflict]:
        """Earlier accesses of these cells that an access by `actor` conflicts with.

        Args:
            cells: the cells.
            actor: who accesses them.
            write, atomic: how.
            order: the row of the actor's knowledge that says what is ordered before.
            visible: the row that says what of it the asynchronous proxy sees; None: nothing is hidden from it.
        """
        writer, clock = self.write_actor[cells], self.write_clock[cells]
        rows = fit(actor.known.rows, int(writer.max(initial=0)) + 1)
        unordered = (clock > rows[order][writer]) & (writer != actor.number)
        if atomic:
            unordered &= ~self.write_atomic[cells]
        if unordered.any():
            yield self._first(cells, unordered, wrote=True)
        elif actor.asynchronous and not write and visible is not None:
            hidden = (clock > rows[visible][writer]) & ~self.write_asynchronous[cells]
            if hidden.any():
                yield self._first(cells, hidden, wrote=True, visible_only=True)
        if write:
            yield from self._read_conflicts(cells, actor, rows[order], atomic=atomic)

    def _read_conflicts(self, cells: Cells, actor: Actor, vector: Vector, *, atomic: bool) -> Iterator[Conflict]:
        for reader, (clocks, sites, atomics) in self.reads.items():
            if reader != actor.number:
                known = vector[reader] if reader < vector.size else 0
                unordered = clocks[cells] > known
                if atomic:
                    unordered &= ~atomics[cells]
                if unordered.any():
                    at = int(np.argmax(unordered))
                    yield Conflict(self._cell(cells, at), reader, int(sites[cells][at]), False)

    def _first(self, cells: Cells, where: np.ndarray, *, wrote: bool, visible_only: bool = False) -> Conflict:
        at = int(np.argmax(where))
        return Conflict(
            self._cell(cells, at),
            int(self.write_actor[cells][at]),
            int(self.write_site[cells][at]),
            wrote,
            visible_only,
        )

    @staticmethod
    def _cell(cells: Cells, at: int) -> int:
        return (cells.start or 0) + at if isinstance(cells, slice) else int(cells[at])

    def finish_read(self, cells: Cells, actor: Actor) -> None:
        """A read that was pending is over now."""
        self.reads[actor.number][0][cells] = actor.clock

    def clock_of(self, conflict: Conflict) -> int:
        """The clock of the earlier access."""
        if conflict.wrote:
            return int(self.write_clock[conflict.cell])
        return int(self.reads[conflict.actor][0][conflict.cell])

    def by(self, actor: Actor) -> Shadow:
        """The same history, as if `actor` had done all of it at its present time."""
        other = Shadow(self.count)
        written = self.write_actor > 0
        other.write_actor[written], other.write_clock[written] = actor.number, actor.clock
        other.write_site[:], other.write_asynchronous[:] = self.write_site, True
        clocks, sites = np.zeros(self.count, np.int32), np.zeros(self.count, np.int32)
        for read, site, _ in self.reads.values():
            clocks[read > 0], sites[read > 0] = actor.clock, site[read > 0]
        other.reads[actor.number] = (clocks, sites, np.zeros(self.count, bool))
        return other

    def record(self, cells: Cells, actor: Actor, site: int, clock: int, *, write: bool, atomic: bool) -> None:
        """Remember an access."""
        if write:
            self.write_actor[cells] = actor.number
            self.write_clock[cells] = clock
            self.write_site[cells] = site
            self.write_asynchronous[cells] = actor.asynchronous
            self.write_atomic[cells] = atomic
            return
        if actor.number not in self.reads:
            clocks, sites = np.zeros(self.count, np.int32), np.zeros(self.count, np.int32)
            self.reads[actor.number] = (clocks, sites, np.zeros(self.count, bool))
        clocks, sites, atomics = self.reads[actor.number]
        clocks[cells] = clock
        sites[cells] = site
        atomics[cells] = atomic
