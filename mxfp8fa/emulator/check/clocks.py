"""Vector clocks: who knows what of whom.

Every warp and every asynchronous agent (TMA per mbarrier, tensor pipe, store queues) is an actor with a clock of its own.
An access carries the pair (actor, its clock); a later access is ordered after it if its actor's vector knows that clock.
There are four vectors: what is ordered before; of that, what the asynchronous proxy sees in shared and in global memory
(fence.proxy.async); and what tcgen05 instructions are ordered after when tcgen05.fence is taken at its word.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

Vector = np.ndarray
PENDING = np.int32(2**31 - 1)  # the clock of an access that is not over yet: nobody knows it
ORDER, SHARED, GLOBAL, TENSOR = range(4)
ROWS = 4


def fit(vector: Vector, size: int) -> Vector:
    """The vectors (last axis), extended with zeros."""
    missing = size - vector.shape[-1]
    if missing <= 0:
        return vector
    return np.concatenate([vector, np.zeros((*vector.shape[:-1], missing), np.int32)], axis=-1)


@dataclass(frozen=True)
class Knowledge:
    """A snapshot of what an actor knows: rows ORDER, SHARED, GLOBAL and TENSOR, a column per actor."""

    rows: np.ndarray

    @property
    def vector(self) -> Vector:
        """What is ordered before."""
        return self.rows[ORDER]

    def join(self, other: Knowledge) -> Knowledge:
        """What either knows."""
        size = max(self.rows.shape[1], other.rows.shape[1])
        return Knowledge(np.maximum(fit(self.rows, size), fit(other.rows, size)))

    def entry(self, number: int, row: int = ORDER) -> int:
        """The clock of one actor."""
        return int(self.rows[row, number]) if number < self.rows.shape[1] else 0

    def raised(self, row: int, vector: Vector) -> Knowledge:
        """With one row raised to at least `vector`."""
        size = max(self.rows.shape[1], vector.size)
        rows = fit(self.rows, size).copy()
        np.maximum(rows[row], fit(vector, size), out=rows[row])
        return Knowledge(rows)

    def replaced(self, row: int, vector: Vector) -> Knowledge:
        """With another row."""
        size = max(self.rows.shape[1], vector.size)
        rows = fit(self.rows, size).copy()
        rows[row] = fit(vector, size)
        return Knowledge(rows)


NOTHING = Knowledge(np.zeros((ROWS, 1), np.int32))
NEVER: Vector = np.zeros(1, np.int32)


@dataclass(eq=False)
class Actor:
    """A warp or an asynchronous agent.

    Attributes:
        number: index of its own entry in every vector; 0 means nobody.
        name: for reports.
        asynchronous: whether it accesses memory through the asynchronous proxy.
        known: what it knows; its own entry is its clock.
        fenced: what it knew at its latest fence.
        before: what its latest tcgen05.fence::before_thread_sync lets others' tcgen05 instructions follow.
        after: what its next tcgen05.fence::after_thread_sync will let its own tcgen05 instructions follow.
        observed: what relaxed reads saw, which its next fence makes known to it.
        sites: number of the site of a warp's instruction 0.
        pages: pages of global memory that it accessed.
    """

    number: int
    name: str
    asynchronous: bool
    known: Knowledge = NOTHING
    fenced: Knowledge = NOTHING
    before: Vector = field(default_factory=lambda: NEVER)
    after: Vector = field(default_factory=lambda: NEVER)
    observed: Knowledge = NOTHING
    sites: int = 0
    pages: set[int] = field(default_factory=set)

    @property
    def clock(self) -> int:
        """The actor's own time."""
        return int(self.known.rows[ORDER, self.number])

    @property
    def own_rows(self) -> list[int]:
        """Where what it does itself counts at once: the asynchronous proxy sees what it does itself."""
        return [ORDER, SHARED, GLOBAL, TENSOR] if self.asynchronous else [ORDER, TENSOR]

    def advance(self) -> None:
        """The actor's time goes on: what it does from here is not known to those who learnt of it before."""
        rows = fit(self.known.rows, self.number + 1).copy()
        rows[self.own_rows, self.number] = rows[ORDER, self.number] + 1
        self.known = Knowledge(rows)

    def learn(self, other: Knowledge) -> None:
        """Acquire."""
        self.known = self.known.join(other)

    def forget_but(self, learnt: Knowledge) -> None:
        """Know only what is given, and the actor's own past."""
        rows = fit(learnt.rows, self.number + 1).copy()
        rows[self.own_rows, self.number] = self.clock
        self.known = Knowledge(rows)


@dataclass
class Meeting:
    """A synchronisation object: what was released in the running phase, and what the latest completed phase published."""

    gathering: Knowledge = NOTHING
    published: Knowledge = NOTHING

    def publish(self) -> None:
        """The phase is complete."""
        self.published, self.gathering = self.gathering, NOTHING


@dataclass
class Meetings:
    """The synchronisation objects of a launch, by the CTA or cluster that they end with (None: those of global memory)."""

    by_owner: dict[int | None, dict[Hashable, Meeting]] = field(default_factory=dict)

    def __getitem__(self, key: Hashable) -> Meeting:
        return self.by_owner.setdefault(owner_of(key), {}).setdefault(key, Meeting())

    def forget(self, owner: int) -> None:
        """A CTA or cluster is gone."""
        self.by_owner.pop(owner, None)


def owner_of(key: Hashable) -> int | None:
    """Number of the CTA or cluster that a synchronisation object belongs to; None for global memory."""
    kind = key[0] if isinstance(key, tuple) else None
    if isinstance(kind, tuple):  # an atomic's (space, address)
        return kind[1] if len(kind) > 1 else None
    return key[1] if kind in ("mbarrier", "barrier", "barrier.cluster") and isinstance(key, tuple) else None
