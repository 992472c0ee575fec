"""What a kernel declares of its tensor memory and of its barriers: records that its code uses and that print as tables.

The tables at the top of a kernel's file are these records printed; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mxfp8fa.layouts.tmem import ALLOCATION_COLUMNS, COLUMNS


@dataclass(frozen=True)
class Columns:
    """A range of tensor memory columns, all 128 lanes of it.

    Attributes:
        name: what the kernel calls it.
        start: first column, relative to the allocation.
        count: number of columns.
        writer: the instruction that fills it.
        reader: the instruction that reads it.
        holds: what lies there, and where.
        over: name of the range whose dead columns it reuses, or "".
    """

    name: str
    start: int
    count: int
    writer: str
    reader: str
    holds: str
    over: str = ""

    @property
    def stop(self) -> int:
        """The column after the last."""
        return self.start + self.count


class TmemMap:
    """Who owns which columns of a kernel's tensor memory. `map["D"]` is a range, `str(map)` the table.

    Raises:
        ValueError: a range outside of tensor memory, a name used twice, or two ranges that overlap without saying so.
    """

    def __init__(self, *ranges: Columns):
        self.ranges = ranges
        self._by_name = {r.name: r for r in ranges}
        if len(self._by_name) != len(ranges):
            raise ValueError(f"ranges {[r.name for r in ranges]}: a name is used twice")
        for i, r in enumerate(ranges):
            if r.start < 0 or r.count < 1 or r.stop > COLUMNS:
                raise ValueError(f"{r.name} takes columns {r.start} to {r.stop - 1}; there are 0 to {COLUMNS - 1}")
            for other in ranges[:i]:
                overlap = r.start < other.stop and other.start < r.stop
                if overlap and r.over != other.name and other.over != r.name:
                    raise ValueError(f"{r.name} and {other.name} overlap; one of them has to say over={other.name!r}")

    def __getitem__(self, name: str) -> Columns:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Columns]:
        return iter(self.ranges)

    @property
    def allocation(self) -> int:
        """Columns to allocate: a power of two from 32 (PTX ISA, "tcgen05.alloc")."""
        needed = max(r.stop for r in self.ranges)
        return next(size for size in ALLOCATION_COLUMNS if size >= needed)

    def __str__(self) -> str:
        rows = [(f"{r.start}-{r.stop - 1}", r.name, r.writer, r.reader, _holds(r)) for r in self.ranges]
        return _table(("columns", "name", "written by", "read by", "holds"), rows)


def _holds(r: Columns) -> str:
    return f"{r.holds} (over {r.over})" if r.over else r.holds


@dataclass(frozen=True)
class Barrier:
    """An mbarrier, or one per stage of a ring.

    Attributes:
        name: what the kernel calls it.
        count: arrivals that complete a phase, the argument of mbarrier.init.
        producer: who arrives, and with what.
        consumer: who waits.
        means: what is true when a phase completes.
        stages: number of such barriers.
    """

    name: str
    count: int
    producer: str
    consumer: str
    means: str
    stages: int = 1


class Barriers:
    """All mbarriers of a kernel. `barriers["full"]` is one, `str(barriers)` the table.

    Raises:
        ValueError: a name used twice.
    """

    def __init__(self, *barriers: Barrier):
        self.barriers = barriers
        self._by_name = {b.name: b for b in barriers}
        if len(self._by_name) != len(barriers):
            raise ValueError(f"barriers {[b.name for b in barriers]}: a name is used twice")

    def __getitem__(self, name: str) -> Barrier:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Barrier]:
        return iter(self.barriers)

    def __str__(self) -> str:
        rows = [
            (b.name if b.stages == 1 else f"{b.name}[{b.stages}]", str(b.count), b.producer, b.consumer, b.means)
            for b in self.barriers
        ]
        return _table(("barrier", "count", "arrives", "waits", "means"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)
