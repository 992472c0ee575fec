"""Programs that the model records: something to call inside the emulator, at a shape that may be chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mxfp8fa.emulator.names import Names
from mxfp8fa.timing.shapes import AttentionShape


@dataclass(frozen=True)
class Tiling:
    """How a kernel cuts attention into work for one cluster, and that into steps of its main loop.

    Attributes:
        rows: queries of one tile, per cluster (forward), or keys (backward).
        columns: keys of one step (forward), or queries (backward).
        backward: which of the two.
        persistent: a CTA works on tiles one after another; else every tile is a CTA of its own.
        cluster: CTAs of a cluster.
        grouped: a tile of keys takes the queries of all query heads that share them (backward).
        around_bytes: bytes of global memory that kernels beside the main one move, per element of Q.
        around_launches: how many such kernels there are.
    """

    rows: int
    columns: int = 128
    backward: bool = False
    persistent: bool = False
    cluster: int = 1
    grouped: bool = False
    around_bytes: float = 0.0
    around_launches: int = 0

    def steps(self, shape: AttentionShape) -> list[int]:
        """Steps of every tile, in the order in which kernels start them: longest first."""
        outer, inner = (shape.seqlen_k, shape.seqlen_q) if self.backward else (shape.seqlen_q, shape.seqlen_k)
        each = []
        for start in range(0, outer, self.rows):
            seen = inner
            if shape.causal and self.backward:  # queries from the diagonal on
                seen = inner - max(0, start - (shape.seqlen_k - shape.seqlen_q)) // self.columns * self.columns
            elif shape.causal:
                seen = min(inner, max(1, start + self.rows + shape.seqlen_k - shape.seqlen_q))
            each.append(-(-seen // self.columns))
        group = shape.num_heads_q // shape.num_heads_kv if self.grouped else 1
        heads = shape.batch * shape.num_heads_q // group
        return sorted([group * steps for steps in each] * heads, reverse=True)


@dataclass(frozen=True)
class Program:
    """Something to run inside `emulator.active()`.

    Attributes:
        call: compiles (the first time) and launches.
        memory: tensors whose addresses the program passes as numbers.
        names: what its kernel declares.
    """

    call: Callable[[], Any]
    memory: list[Any] = field(default_factory=list)
    names: Names = field(default_factory=Names)


@dataclass(frozen=True)
class Source:
    """Where programs of one kernel come from.

    Attributes:
        name: as the user gave it.
        load: a program for a shape.
        tiling: how its main kernel cuts attention, or None if it is not attention.
    """

    name: str
    load: Callable[[AttentionShape], Program]
    tiling: Tiling | None = None
