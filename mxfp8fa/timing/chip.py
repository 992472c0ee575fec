"""From one cluster to the chip: increments per tile and per step, and how tiles are dealt to SMs.

    cycles of a cluster = start + tiles * tile + steps * step

The three numbers come from short runs (one tile of n and of 2n steps, and two tiles where a CTA takes several), so that a
long problem needs no long emulation. tests/timing and bench/results/timing.md compare the prediction for a longer run with
that run.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from mxfp8fa.timing.programs import Tiling
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.shapes import AttentionShape


@dataclass(frozen=True)
class Increments:
    """Cycles of a cluster: once, per tile, and per step of the main loop."""

    start: float
    tile: float
    step: float

    @classmethod
    def fit(cls, one: tuple[int, float], longer: tuple[int, float], two: tuple[int, float] | None) -> Increments:
        """From (steps, cycles) of one tile, of a longer tile, and of two tiles (all their steps), if a CTA can take two."""
        step = (longer[1] - one[1]) / (longer[0] - one[0])
        rest = one[1] - one[0] * step
        if two is None:
            return cls(rest, 0.0, step)
        tile = two[1] - two[0] * step - rest
        return cls(rest - tile, tile, step)

    def cycles(self, tiles: int, steps: int) -> float:
        """Of a cluster with so many tiles that have so many steps together."""
        return self.start + tiles * self.tile + steps * self.step


@dataclass(frozen=True)
class ChipTime:
    """A kernel on the chip.

    Attributes:
        cycles: from the first CTA's start to the last one's end.
        rounds: tiles of the busiest SM.
        steps: steps of the busiest SM.
        balance: mean work over the busiest SM's work.
        around_us: microseconds of the kernels beside the main one.
    """

    cycles: float
    rounds: int
    steps: int
    balance: float
    around_us: float = 0.0

    def microseconds(self, clock_ghz: float, rates: Rates) -> float:
        """Time with the launch and the kernels beside it, at a clock."""
        return self.cycles / clock_ghz / 1000 + rates["launch_us"] + self.around_us


def on_chip(shape: AttentionShape, tiling: Tiling, increments: Increments, rates: Rates) -> ChipTime:
    """Deal the tiles of a problem to the SMs."""
    work = tiling.steps(shape)
    places = int(rates["sm_count"]) // tiling.cluster
    if tiling.persistent:
        shares = [work[i::places] for i in range(min(places, len(work)))]
        ends = [increments.cycles(len(share), sum(share)) for share in shares]
        longest = max(range(len(shares)), key=lambda i: ends[i])
        rounds, steps = len(shares[longest]), sum(shares[longest])
        busy = sum(ends)
    else:
        free = [(0.0, 0, 0)] * min(places, len(work))
        busy = 0.0
        for steps in work:
            time, taken, done = heapq.heappop(free)
            cost = increments.cycles(1, steps) + rates["cta_start"]
            busy += cost
            heapq.heappush(free, (time + cost, taken + 1, done + steps))
        ends = [end for end, _, _ in free]
        _, rounds, steps = max(free)
    return ChipTime(max(ends), rounds, steps, busy / max(ends) / places, around_us(shape, tiling, rates))


def around_us(shape: AttentionShape, tiling: Tiling, rates: Rates) -> float:
    """Microseconds of the kernels beside the main one, by bandwidth and a launch each."""
    elements = shape.batch * shape.num_heads_q * shape.seqlen_q * shape.head_dim
    return elements * tiling.around_bytes / rates["hbm"] / 1e6 + tiling.around_launches * rates["launch_us"]


def product_cycles(m: int, n: int, k: int, element_bytes: float, rates: Rates) -> float:
    """Cycles of a dense product (m, k) x (k, n), by the tensor core alone.

    A pair of SMs takes a tile of 256 x 256 at 128 cycles per 32 bytes of k, one tile after another.
    """
    tile = 256
    waves = math.ceil(math.ceil(m / tile) * math.ceil(n / tile) / (rates["sm_count"] // 2))
    return waves * math.ceil(k * element_bytes / 32) * tile * rates["mma_columns"]


def bandwidth_us(shape: AttentionShape, element_bytes: float, output_bytes: float, rates: Rates) -> float:
    """Microseconds in which global memory can deliver the operands once and take the result: no kernel is faster."""
    q = shape.batch * shape.num_heads_q * shape.seqlen_q * shape.head_dim
    kv = 2 * shape.batch * shape.num_heads_kv * shape.seqlen_k * shape.head_dim
    return ((q + kv) * element_bytes + q * output_bytes) / rates["hbm"] / 1e6


def petaflops(flops: float, microseconds: float) -> float:
    """1e15 floating-point operations per second."""
    return flops / microseconds / 1e9 if microseconds else math.nan
