"""Who touched a memory cell last: the latest write and, per actor, the latest read since, with their clocks and sites.

A cell is a word of four bytes until an access covers only part of one; then the memory's cells become single bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mxfp8fa.emulator.check.clocks import ORDER, PENDING, Actor, fit

Cells = np.ndarray | slice
WORD_BYTES = 4
FINISHED = 1  # the actor whose accesses nobody knows: all that are gone without having told anybody


@dataclass(frozen=True)
class Conflict:
    """An earlier access that the present one is not ordered after.

    Attributes:
        cell: index of the first such cell.
        actor, site: numbers of who did it and where.
        clock: of the earlier access.
        wrote: whether it was a write.
        visible_only: ordered in time, but not made visible across proxies.
    """

    cell: int
    actor: int
    site: int
    clock: int
    wrote: bool
    visible_only: bool = False


@dataclass(frozen=True)
class Access:
    """How the present access is made and judged.

    Attributes:
        write, atomic: what it does.
        order: the row of the actor's knowledge that says what is ordered before.
        visible: the row that says what of it the asynchronous proxy sees; None: nothing is hidden from it.
        reads_too: also a thread's read before an asynchronous write has to be made known to the proxy.
    """

    write: bool
    atomic: bool = False
    order: int = ORDER
    visible: int | None = None
    reads_too: bool = False


class Shadow:
    """The history of `words` words of memory, or of as many cells of another kind.

    Attributes:
        count: number of cells.
        per_word: cells of a word: 1, or 4 once bytes are told apart.
    """

    def __init__(self, words: int):
        self.count, self.per_word = words, 1
        self.write_actor = np.zeros(words, np.int32)
        self.write_clock = np.zeros(words, np.int32)
        self.write_site = np.zeros(words, np.int64)
        self.write_asynchronous = np.zeros(words, bool)
        self.write_atomic = np.zeros(words, bool)
        self.readers = np.zeros(0, np.int32)
        self._row: dict[int, int] = {}
        self._asynchronous = np.zeros(0, bool)
        self._clocks = np.zeros((0, words), np.int32)
        self._sites = np.zeros((0, words), np.int64)
        self._atomic = np.zeros((0, words), bool)

    # -- cells --------------------------------------------------------------------------------------------------------

    def cells(self, offsets: np.ndarray | slice, size_bytes: int) -> Cells:
        """The cells of an access of size_bytes at each offset (a slice: of all its bytes)."""
        if self.per_word == 1:
            words = _whole_words(offsets, size_bytes)
            if words is not None:
                return words
            self._split()
        if isinstance(offsets, slice):
            return slice(offsets.start, offsets.stop)
        return (offsets.reshape(-1).astype(np.int64)[:, None] + np.arange(size_bytes)).reshape(-1)

    def byte_of(self, cell: int) -> int:
        """The first byte of a cell."""
        return cell * WORD_BYTES // self.per_word

    def _split(self) -> None:
        """From now on a cell is a byte."""
        for name in ("write_actor", "write_clock", "write_site", "write_asynchronous", "write_atomic",
                     "_clocks", "_sites", "_atomic"):  # fmt: skip
            setattr(self, name, np.repeat(getattr(self, name), WORD_BYTES, axis=-1))
        self.count, self.per_word = self.count * WORD_BYTES, WORD_BYTES

    # -- conflicts ----------------------------------------------------------------------------------------------------

    def conflicts(self, cells: Cells, actor: Actor, access: Access) -> Iterator[Conflict]:
        """Earlier accesses of these cells that an access by `actor` conflicts with: one write, and one read per reader."""
        writer, clock = self.write_actor[cells], self.write_clock[cells]
        rows = fit(actor.known.rows, int(writer.max(initial=0)) + 1)
        unordered = (clock > rows[access.order][writer]) & (writer != actor.number)
        if access.atomic:
            unordered &= ~self.write_atomic[cells]
        if unordered.any():
            yield self._write_at(cells, int(np.argmax(unordered)))
        elif actor.asynchronous and access.visible is not None:
            hidden = (clock > rows[access.visible][writer]) & ~self.write_asynchronous[cells]
            if hidden.any():
                yield self._write_at(cells, int(np.argmax(hidden)), visible_only=True)
        if access.write and self.readers.size:
            yield from self._read_conflicts(cells, actor, access)

    def _write_at(self, cells: Cells, at: int, *, visible_only: bool = False) -> Conflict:
        cell = _cell(cells, at)
        who, when = int(self.write_actor[cell]), int(self.write_clock[cell])
        return Conflict(cell, who, int(self.write_site[cell]), when, True, visible_only)

    def _read_conflicts(self, cells: Cells, actor: Actor, access: Access) -> Iterator[Conflict]:
        clocks = self._clocks[: self.readers.size, cells]
        rows = fit(actor.known.rows, int(self.readers.max()) + 1)
        unordered = clocks > rows[access.order][self.readers][:, None]
        if access.atomic:
            unordered &= ~self._atomic[: self.readers.size, cells]
        unordered[self.readers == actor.number] = False
        yield from self._reads_at(cells, unordered)
        if access.reads_too and actor.asynchronous and access.visible is not None:
            hidden = clocks > rows[access.visible][self.readers][:, None]
            hidden[self._asynchronous | unordered.any(axis=1)] = False
            yield from self._reads_at(cells, hidden, visible_only=True)

    def _reads_at(self, cells: Cells, where: np.ndarray, *, visible_only: bool = False) -> Iterator[Conflict]:
        for row in np.flatnonzero(where.any(axis=1)):
            cell = _cell(cells, int(np.argmax(where[row])))
            who, when, site = int(self.readers[row]), int(self._clocks[row, cell]), int(self._sites[row, cell])
            yield Conflict(cell, who, site, when, False, visible_only)

    def unordered_sites(self, actor: Actor) -> dict[int, bool]:
        """Sites of all accesses that `actor` does not know of -> whether they wrote."""
        rows = fit(actor.known.rows, int(max(self.write_actor.max(initial=0), self.readers.max(initial=0))) + 1)[ORDER]
        writes = np.unique(self.write_site[self.write_clock > rows[self.write_actor]])
        reads = self._sites[: self.readers.size][self._clocks[: self.readers.size] > rows[self.readers][:, None]]
        return dict.fromkeys(np.unique(reads).tolist(), False) | dict.fromkeys(writes.tolist(), True)

    def accesses(self, cells: Cells, *, write: bool) -> Iterator[Conflict]:
        """Per actor its latest access of these cells that the present one, a write or not, conflicts with."""
        writers, clocks = self.write_actor[cells], self.write_clock[cells]
        for who in np.unique(writers[writers > 0]).tolist():
            yield self._write_at(cells, int(np.argmax(np.where(writers == who, clocks, 0))))
        for row in range(self.readers.size if write else 0):
            clocks = self._clocks[row, cells]
            if clocks.any():
                where = np.zeros((self.readers.size, clocks.size), bool)
                where[row, int(np.argmax(clocks))] = True
                yield from self._reads_at(cells, where)

    # -- history ------------------------------------------------------------------------------------------------------

    def record(self, cells: Cells, actor: Actor, site: int, clock: int, *, write: bool, atomic: bool) -> None:
        """Remember an access.

        A write makes superfluous the earlier reads that it is ordered after: who is ordered after it is ordered after them.
        """
        if write:
            self.write_actor[cells] = actor.number
            self.write_clock[cells] = clock
            self.write_site[cells] = site
            self.write_asynchronous[cells] = actor.asynchronous
            self.write_atomic[cells] = atomic
            if self.readers.size:
                clocks = self._clocks[: self.readers.size, cells]
                known = fit(actor.known.rows, int(self.readers.max()) + 1)[ORDER][self.readers]
                known[self.readers == actor.number] = PENDING
                self._clocks[: self.readers.size, cells] = np.where(clocks <= known[:, None], 0, clocks)
            return
        row = self._row_of(actor)
        self._clocks[row, cells] = clock
        self._sites[row, cells] = site
        self._atomic[row, cells] = atomic

    def finish_read(self, cells: Cells, actor: Actor) -> None:
        """A read that was pending is over now."""
        self._clocks[self._row_of(actor), cells] = actor.clock

    def _row_of(self, actor: Actor) -> int:
        number = actor.number
        if number not in self._row:
            row = self._row[number] = self.readers.size
            self.readers = np.append(self.readers, np.int32(number))
            self._asynchronous = np.append(self._asynchronous, actor.asynchronous)
            if row == len(self._clocks):
                more = max(1, row)
                for name in ("_clocks", "_sites", "_atomic"):
                    old = getattr(self, name)
                    setattr(self, name, np.concatenate([old, np.zeros((more, self.count), old.dtype)]))
        return self._row[number]

    # -- actors that are gone -----------------------------------------------------------------------------------------

    def by(self, actor: Actor) -> Shadow:
        """The same history, as if `actor` had done all of it at its present time."""
        other = Shadow(self.count // self.per_word)
        if self.per_word > 1:
            other._split()
        written = self.write_actor > 0
        other.write_actor[written], other.write_clock[written] = actor.number, actor.clock
        other.write_site[:], other.write_asynchronous[:] = self.write_site, True
        row = other._row_of(actor)
        for clocks, sites in zip(self._clocks, self._sites, strict=True):
            read = clocks > 0
            other._clocks[row, read], other._sites[row, read] = actor.clock, sites[read]
        return other

    def retire(self, number: int, told: int) -> bool:
        """An actor is gone, and nobody knows anything that it did after its clock `told`.

        Those accesses are unordered with everything to come, whoever did them: FINISHED takes them over.

        Returns:
            Whether accesses of the actor are left.
        """
        mine = self.write_actor == number
        secret = mine & (self.write_clock > told)
        self.write_actor[secret], self.write_clock[secret] = FINISHED, PENDING
        left = bool((mine & ~secret).any())
        if number in self._row:
            left |= self._retire_reader(number, told)
        return left

    def _retire_reader(self, number: int, told: int) -> bool:
        row = self._row[number]
        secret = self._clocks[row] > told
        if secret.any():
            of_all = self._row_of(_FINISHED)
            for name in ("_sites", "_atomic"):
                values = getattr(self, name)
                values[of_all, secret] = values[row, secret]
            self._clocks[of_all, secret] = PENDING
            self._clocks[row, secret] = 0
        if self._clocks[row].any():
            return True
        self._drop_row(row)
        return False

    def _drop_row(self, row: int) -> None:
        """The last row takes the place of this one."""
        last = self.readers.size - 1
        del self._row[int(self.readers[row])]
        if row != last:
            for values in (self.readers, self._asynchronous, self._clocks, self._sites, self._atomic):
                values[row] = values[last]
            self._row[int(self.readers[row])] = row
        self._clocks[last] = 0
        self.readers, self._asynchronous = self.readers[:last], self._asynchronous[:last]


_FINISHED = Actor(FINISHED, "a CTA that has finished", asynchronous=False)


def _cell(cells: Cells, at: int) -> int:
    return (cells.start or 0) + at if isinstance(cells, slice) else int(cells[at])


def _whole_words(offsets: np.ndarray | slice, size_bytes: int) -> Cells | None:
    """The words of an access, or None if it covers only part of one."""
    if isinstance(offsets, slice):
        if offsets.start % WORD_BYTES or offsets.stop % WORD_BYTES:
            return None
        return slice(offsets.start // WORD_BYTES, offsets.stop // WORD_BYTES)
    first = offsets.reshape(-1).astype(np.int64)
    if size_bytes >= WORD_BYTES:
        words = first // WORD_BYTES
        return words if size_bytes == WORD_BYTES else (words[:, None] + np.arange(size_bytes // WORD_BYTES)).reshape(-1)
    parts = WORD_BYTES // size_bytes
    starts = first[::parts]
    complete = first.size % parts == 0 and not (starts % WORD_BYTES).any()
    if complete and (first.reshape(-1, parts) == starts[:, None] + np.arange(parts) * size_bytes).all():
        return starts // WORD_BYTES
    return None
