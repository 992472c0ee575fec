"""Asynchronous work: what an instruction started and the machine completes later.

Every asynchronous operation is an `AsyncOp` in an ordered queue (one queue per agent that works in order). The schedule
decides when it completes: "eager" at issue, "lazy" only when no warp can run, "random" at seeded moments. Operands are
captured at issue; memory is read and written at completion, so a buffer that is reused too early shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Any

from mxfp8fa.emulator.errors import EmulationError, Site
from mxfp8fa.emulator.machine.watch import Watch

SCHEDULES = ("eager", "lazy", "random")


@dataclass(eq=False)
class AsyncOp:
    """One pending operation.

    Attributes:
        queue: the agent; operations of one queue complete in order.
        run: performs it (and whatever its completion signals).
        site: where it was issued.
        what: name for reports.
        agent: who does it, for an observer, where that is not the queue (TMA: one agent per mbarrier).
        after: the operation of the same copy that came before it (a store's read of shared memory), or None.
        clock, issued_step: observers' notes.
        done: whether it completed.
    """

    queue: Hashable
    run: Callable[[], None]
    site: Site
    what: str
    after: AsyncOp | None = None
    agent: Hashable = None
    clock: Any = None
    issued_step: int = 0
    done: bool = False


class AsyncEngine:
    """The pending operations of one launch."""

    def __init__(self, schedule: str, rng: Random, watch: Watch):
        self._watch = watch
        self._eager = schedule == "eager"
        self._rng = rng
        self._queues: dict[Hashable, deque[AsyncOp]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def issue(self, op: AsyncOp) -> AsyncOp:
        """Start an operation; under "eager" it completes at once (after older ones of its queue)."""
        self._watch.issued(op)
        self._queues.setdefault(op.queue, deque()).append(op)
        if self._eager:
            self.drain(op.queue)
        return op

    def drain(self, queue: Hashable) -> None:
        """Complete every operation of a queue."""
        while queue in self._queues:
            self._complete(queue)

    def finish(self, op: AsyncOp) -> None:
        """Complete an operation now, after what comes before it in its queue."""
        while not op.done:
            self._complete(op.queue)

    def complete_one(self, *, at_random: bool) -> None:
        """Complete the head of one queue: the oldest queue's, or a random one's."""
        keys = list(self._queues)
        self._complete(self._rng.choice(keys) if at_random else keys[0])

    def _complete(self, key: Hashable) -> None:
        queue = self._queues[key]
        op = queue.popleft()
        if not queue:
            del self._queues[key]
        self._watch.begin(op)
        try:
            op.run()
        except EmulationError as error:
            error.site = error.site or op.site
            raise
        op.done = True
        self._watch.end(op)

    def pending(self) -> list[AsyncOp]:
        """Everything outstanding, oldest queue first."""
        return [op for queue in self._queues.values() for op in queue]
