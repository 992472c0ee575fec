"""The actors of a launch, and what becomes of those whose cluster has ended.

A vector clock has an entry for every actor, and a memory cell a reader's entry for everyone who read it. So that neither
grows with the number of CTAs, the actors of a finished cluster retire: whatever they did that nobody outside of the cluster
was told of (by an atomic operation on global memory, the only way out) is unordered with everything to come and needs no
clock any more, and their numbers are given to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

import numpy as np

from mxfp8fa.emulator.check.clocks import NEVER, ROWS, Actor, Knowledge, Vector, fit
from mxfp8fa.emulator.check.shadow import FINISHED, Shadow


class Actors:
    """Who acts, by key; the numbers of actors; who may retire.

    An actor's number may have had other holders. Clocks of a number only grow, so what is known of an earlier holder says
    nothing of the present one.
    """

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Actor] = {}
        self._free: list[tuple[int, int]] = []  # (number, clock of its latest holder)
        self._next = FINISHED + 1
        self._told: Vector = NEVER  # actor -> latest clock of it that was made known through global memory
        self._clusters: dict[Hashable, int] = {}  # key -> number of the cluster that it belongs to
        self._of_cluster: dict[int, list[Hashable]] = {}
        self._pending: Counter[Hashable] = Counter()  # operations issued and not complete
        self._ended: set[int] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self.by_key

    def __getitem__(self, key: Hashable) -> Actor:
        return self.by_key[key]

    def begin(self, key: Hashable, name: str, *, asynchronous: bool, cluster: int | None = None) -> Actor:
        """A new actor; cluster: the one it belongs to, unless `issued` said so."""
        if self._free:
            number, clock = self._free.pop()
        else:
            number, clock = self._next, 0
            self._next += 1
        actor = Actor(number, name, asynchronous)
        rows = np.zeros((ROWS, self._next), np.int32)
        rows[actor.own_rows, number] = clock
        actor.known = Knowledge(rows)
        actor.advance()
        self.by_key[key] = actor
        owner = self._clusters.setdefault(key, cluster) if cluster is not None else self._clusters.get(key)
        if owner is not None and owner not in self._ended:
            self._of_cluster.setdefault(owner, []).append(key)
        return actor

    def cluster_of(self, key: Hashable) -> int | None:
        """The cluster that an actor belongs to."""
        return self._clusters.get(key)

    def issued(self, key: Hashable, cluster: int | None) -> None:
        """An operation of the agent was issued."""
        self._pending[key] += 1
        if cluster is not None:
            self._clusters.setdefault(key, cluster)

    def completed(self, key: Hashable) -> bool:
        """An operation of the agent is complete; whether the agent may retire now."""
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]
        return key not in self._pending and self._clusters.get(key) in self._ended

    def told(self, vector: Vector) -> None:
        """Somebody made this known through global memory."""
        size = max(self._told.size, vector.size)
        self._told = np.maximum(fit(self._told, size), fit(vector, size))

    def end_cluster(self, cluster: int) -> Iterator[Hashable]:
        """Keys of the actors that may retire: all of the cluster but those with operations pending."""
        self._ended.add(cluster)
        yield from [key for key in self._of_cluster.pop(cluster, []) if key not in self._pending]

    def retire(self, key: Hashable, pages: dict[int, Shadow]) -> Actor:
        """Forget an actor; its number is free if no access is left that somebody may know of."""
        actor = self.by_key.pop(key)
        self._clusters.pop(key, None)
        told = int(self._told[actor.number]) if actor.number < self._told.size else 0
        left = [page for page in actor.pages if pages[page].retire(actor.number, told)]
        if not left:
            self._free.append((actor.number, actor.clock))
        return actor
