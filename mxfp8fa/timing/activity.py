"""What one SM does over time in a modelled run: how busy its units are, and what its roles wait for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.timing.agents import Busy
from mxfp8fa.timing.costs import Pipe
from mxfp8fa.timing.estimate import Run
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.resources import reason_name, role
from mxfp8fa.timing.simulate import SCHEDULERS, Timeline, simulate

BIN_CYCLES = 32
# Rows of a picture, and the units of the schedulers behind them.
_SCHEDULED: dict[str, Pipe | None] = {
    "MUFU": Pipe.MUFU, "FMA": Pipe.FMA, "ALU": Pipe.ALU, "convert": Pipe.CONVERT, "TMEM loads": Pipe.TMEM_LOAD,
    "issue slots": None,
}  # fmt: skip


@dataclass(frozen=True)
class Activity:
    """The first SM of a modelled run.

    Attributes:
        units: unit -> share of each `BIN_CYCLES` cycles in which it is busy, from cycle 0 on; schedulers averaged.
        roles: spans of the first warp of each role: "runs", or "waits: BARRIER".
        cycles: of the run.
    """

    units: dict[str, NDArray[np.float64]]
    roles: list[Busy]
    cycles: float


def activity(run: Run, rates: Rates | None = None) -> Activity:
    """Time a run once more, and keep what happened when."""
    chosen = rates or Rates()
    line = simulate(run.replay, chosen, run.cluster, keep_work=True)
    assert line.work is not None
    first = run.members[0]
    bins = int(line.cycles // BIN_CYCLES) + 1
    tensor, tma = ([b for b in line.tensor if b.actor == f"{name} {first}"] for name in ("tensor core", "TMA"))
    work = [(pipe, start, start + cycles) for cta, pipe, start, cycles in line.work if cta == first]
    units = {"tensor core": _shares(((b.start, b.end, 1.0) for b in tensor), bins)}
    for name, unit in _SCHEDULED.items():
        units[name] = _shares(((a, b, 1 / SCHEDULERS) for pipe, a, b in work if pipe is unit), bins)
    port = [(b.start, b.end, b.port / (b.end - b.start)) for b in [*tensor, *tma] if b.end > b.start]
    port += [(a, b, 1.0) for pipe, a, b in work if pipe is Pipe.SMEM]
    units["SMEM"] = _shares(port, bins)
    units["TMA"] = _shares(((b.start, b.end, 1.0) for b in tma), bins)
    return Activity(units, _roles(run, line, first), line.cycles)


def _shares(spans: Iterable[tuple[float, float, float]], bins: int) -> NDArray[np.float64]:
    """Spans with weights, as shares of bins.

    The model hands the shared memory port to its users in turn over a span, not cycle by cycle, so that a bin can hold
    more than it has cycles: at most all of it is shown.
    """
    busy = np.zeros(bins)
    for start, end, weight in spans:
        for i in range(int(start // BIN_CYCLES), min(int(end // BIN_CYCLES) + 1, bins)):
            busy[i] += weight * (min(end, (i + 1) * BIN_CYCLES) - max(start, i * BIN_CYCLES))
    return np.minimum(busy / BIN_CYCLES, 1.0)


def _roles(run: Run, line: Timeline, cta: int) -> list[Busy]:
    leaders: dict[str, int] = {}
    for path in run.replay.paths:
        if path.warp.cta == cta:
            leaders.setdefault(role(run, path.warp.index), path.warp.number)
    spans = []
    for name, number in leaders.items():
        at = 0.0
        for wait in (w for w in line.waits if w.actor == f"warp {number}"):
            spans.append(Busy(name, "runs", at, wait.start))
            spans.append(Busy(name, f"waits: {reason_name(run, wait.what)}", wait.start, wait.end))
            at = wait.end
        spans.append(Busy(name, "runs", at, line.ends.get(number, 0.0)))
    return [span for span in spans if span.end > span.start]
