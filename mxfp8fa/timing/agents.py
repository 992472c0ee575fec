"""Asynchronous agents of the model: the tensor core, TMA, and tensor memory stores.

The tensor core works in order. An instruction takes max(columns / 2, shared memory bytes / 128) cycles: the published law
for 128 rows, where M = 64 takes as long as M = 128 and a pair with M = 128 has half as many columns per SM. Shared memory
traffic of others (LSU, TMA) takes cycles of the port away from the tensor core when the port is what it waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.record import LaunchRecord, Operation, Phase


class Busy(NamedTuple):
    """Something that lasted, in cycles; `port`: cycles of the shared memory port that it took in that time."""

    actor: str
    what: str
    start: float
    end: float
    port: float = 0.0


class Agents:
    """The agents of one cluster.

    Attributes:
        done: operation -> cycle in which it is complete.
        last: the latest of them.
    """

    def __init__(
        self, record: LaunchRecord, rates: Rates, members: list[int], arrive: Callable[[Phase, float], None], spans: list[Busy]
    ):
        self._operations, self._rates, self._members = record.operations, rates, members
        self._arrive, self._spans = arrive, spans
        self.done: dict[int, float] = {}
        self.last = 0.0
        self._tensor = dict.fromkeys(members, 0.0)
        self._link = dict.fromkeys(members, 0.0)
        self._disturbed = dict.fromkeys(members, 0.0)
        self._copies: dict[int, deque[tuple[float, float]]] = {cta: deque() for cta in members}

    def disturb(self, cta: int, cycles: float) -> None:
        """Somebody else uses the shared memory port."""
        self._disturbed[cta] += cycles

    def start(self, number: int, time: float, result: float) -> None:
        """An operation is issued; `result`: when its instruction leaves its unit."""
        operation = self._operations[number]
        kind = operation.what
        if kind in ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift"):
            done = self._multiply(operation, time)
        elif kind == "tcgen05.commit":
            done = max(time, *(self._tensor[c] for c in self._pipe(operation))) + self._rates["mma_commit"]
        elif kind == "tcgen05.st":
            done = result
        elif operation.shared_bytes and (operation.global_bytes or kind.startswith("cp.async.bulk")):
            done = self._copy(operation, time)
        elif operation.after >= 0:
            done = self.done.get(operation.after, time) + self._rates["tma_store"]
        else:
            done = time + self._rates["global_latency"]
        self.done[number] = done
        self.last = max(self.last, done)
        for phase in operation.arrives:
            self._arrive(phase, done)

    def _pipe(self, operation: Operation) -> list[int]:
        """The CTAs whose tensor cores an operation uses: its queue is ("tensor", cluster, group, rank)."""
        _, _, group, rank = cast(tuple[str, int, str, int], operation.queue)
        return self._members[rank : rank + (1 if group == "cta_group::1" else 2)]

    def _multiply(self, operation: Operation, time: float) -> float:
        ctas = self._pipe(operation)
        begins = max(time + self._rates["mma_start"], *(self._tensor[c] for c in ctas))
        if operation.what == "tcgen05.mma":
            cycles = max(self._product_cycles(operation, c, begins) for c in ctas)
        else:
            cycles = self._rates["utccp"]
        for c in ctas:
            self._tensor[c] = begins + cycles
            self._span(f"tensor core {c}", operation.what, begins, begins + cycles, operation.shared_bytes.get(c, 0))
        return begins + cycles

    def _product_cycles(self, operation: Operation, cta: int, begins: float) -> float:
        """The law, with the port shared."""
        columns = operation.columns.get(cta, 0) * self._rates["mma_columns"]
        port = operation.shared_bytes.get(cta, 0) / self._rates["smem"]
        idle = max(0.0, begins - self._tensor[cta])
        others = max(0.0, self._disturbed[cta] - idle)
        cycles = max(columns, port + others + self._copying(cta, begins, begins + max(columns, port)))
        self._disturbed[cta] = max(0.0, others - (cycles - port))
        return cycles

    def _copying(self, cta: int, start: float, end: float) -> float:
        """Cycles of the port that TMA takes between two cycles."""
        copies = self._copies[cta]
        while copies and copies[0][1] <= start:
            copies.popleft()
        share = self._rates["tma_bandwidth"] / self._rates["smem"]
        return sum(max(0.0, min(end, last) - max(start, first)) for first, last in copies) * share

    def _copy(self, operation: Operation, time: float) -> float:
        """A TMA copy between global memory and shared memory; its latency overlaps with others, its bytes do not."""
        loads = not operation.what.endswith("(read)")
        latest = time
        for cta, size in operation.shared_bytes.items():
            if cta not in self._link:
                continue
            begins = max(time + (self._rates["tma_latency"] if loads else 0), self._link[cta])
            ends = begins + size / self._rates["tma_bandwidth"]
            self._link[cta] = ends
            self._copies[cta].append((begins, ends))
            self._span(f"TMA {cta}", operation.what, begins, ends, size)
            latest = max(latest, ends)
        return latest

    def _span(self, actor: str, what: str, start: float, end: float, shared_bytes: int) -> None:
        self._spans.append(Busy(actor, what, start, end, shared_bytes / self._rates["smem"]))
