"""Vector clocks: who knows what of whom.

Every warp and every asynchronous agent (TMA per mbarrier, tensor pipe, store queues) is an actor with a clock of its own.
An access carries the pair (actor, its clock); a later access is ordered after it if its actor's vector knows that clock.
A second vector, `visible`, knows only what a fence.proxy.async has made visible to the asynchronous proxy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

Vector = np.ndarray
PENDING = np.int32(2**31 - 1)  # the clock of an access that is not over yet: nobody knows it


def fit(vector: Vector, size: int) -> Vector:
    """The vector, extended with zeros."""
    return vector if vector.size >= size else np.concatenate([vector, np.zeros(size - vector.size, np.int32)])


def join(a: Vector, b: Vector) -> Vector:
    """What either knows."""
    size = max(a.size, b.size)
    return np.maximum(fit(a, size), fit(b, size))


@dataclass(frozen=True)
class Knowledge:
    """A snapshot of what an actor knows, and of what of it the asynchronous proxy sees."""

    vector: Vector
    visible: Vector

    def join(self, other: Knowledge) -> Knowledge:
        """What either knows."""
        return Knowledge(join(self.vector, other.vector), join(self.visible, other.visible))


NOTHING = Knowledge(np.zeros(1, np.int32), np.zeros(1, np.int32))


@dataclass(eq=False)
class Actor:
    """A warp or an asynchronous agent.

    Attributes:
        number: index of its own entry in every vector; 0 means nobody.
        name: for reports.
        asynchronous: whether it accesses shared memory through the asynchronous proxy.
        known: what it knows; its own entry is its clock.
        fenced: what it knew at its latest fence.
    """

    number: int
    name: str
    asynchronous: bool
    known: Knowledge = NOTHING
    fenced: Knowledge = NOTHING

    @property
    def clock(self) -> int:
        """The actor's own time."""
        return int(self.known.vector[self.number])

    def advance(self) -> None:
        """The actor's time goes on: what it does from here is not known to those who learnt of it before."""
        vector = fit(self.known.vector, self.number + 1).copy()
        vector[self.number] += 1
        visible = fit(self.known.visible, self.number + 1)
        if self.asynchronous:  # what the asynchronous proxy does itself, it sees
            visible = visible.copy()
            visible[self.number] = vector[self.number]
        self.known = Knowledge(vector, visible)

    def learn(self, other: Knowledge) -> None:
        """Acquire."""
        self.known = self.known.join(other)


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
    """All synchronisation objects of a launch."""

    by_key: dict[Hashable, Meeting] = field(default_factory=dict)

    def __getitem__(self, key: Hashable) -> Meeting:
        return self.by_key.setdefault(key, Meeting())
