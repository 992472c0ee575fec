"""What a step of a kernel's main loop is made of: cycles of each unit, and what its warps wait for.

Numbers of one step are differences of two runs, divided by the steps between them: prologue and epilogue cancel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mxfp8fa.timing.costs import SCHEDULER_PIPES, Pipe
from mxfp8fa.timing.estimate import Kernel, Run
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.simulate import SCHEDULERS, Timeline

_NAMES = {
    Pipe.FMA: "FMA", Pipe.ALU: "ALU", Pipe.CONVERT: "convert", Pipe.UNIFORM: "uniform", Pipe.MUFU: "MUFU",
    Pipe.TMEM_LOAD: "TMEM loads", Pipe.TMEM_STORE: "TMEM stores",
}  # fmt: skip


@dataclass(frozen=True)
class Resource:
    """A unit in one step.

    Attributes:
        name: of the unit.
        cycles: for which it is occupied.
        share: of the step.
    """

    name: str
    cycles: float
    share: float


@dataclass(frozen=True)
class WaitShare:
    """What a role waits for in one step.

    Attributes:
        who: role.
        why: reason.
        cycles: of a step, on average over its warps.
    """

    who: str
    why: str
    cycles: float


def step_resources(kernel: Kernel, rates: Rates | None = None) -> list[Resource]:
    """Occupation of each unit in one step, fullest first; the mean over the SM's schedulers and the cluster's SMs."""
    chosen = rates or Rates()
    short, longer = (run.timeline(chosen) for run in kernel.runs[:2])
    steps = kernel.runs[1].steps - kernel.runs[0].steps
    length = (longer.cycles - short.cycles) / steps
    used = {name: (amount - _totals(kernel.runs[0], short, chosen)[name]) / steps
            for name, amount in _totals(kernel.runs[1], longer, chosen).items()}  # fmt: skip
    return [Resource(n, c, c / length) for n, c in sorted(used.items(), key=lambda item: -item[1]) if c > 0]


def _totals(run: Run, line: Timeline, rates: Rates) -> dict[str, float]:
    """Cycles of every unit in a run, per SM or per scheduler."""
    mine = run.members
    members = len(mine)
    totals: dict[str, float] = {"issue slots": sum(line.issued.values()) / SCHEDULERS / members}
    for pipe, name in _NAMES.items():
        cycles = sum(c for (_, _, p), c in line.occupied.items() if p is pipe)
        totals[name] = cycles / (SCHEDULERS if pipe < SCHEDULER_PIPES else 1) / members
    totals["tensor core"] = sum(b.end - b.start for b in line.tensor if b.actor.startswith("tensor core")) / members
    totals["TMA"] = sum(b.end - b.start for b in line.tensor if b.actor.startswith("TMA")) / members
    operations = run.replay.record.operations
    port = sum(size for o in operations for cta, size in o.shared_bytes.items() if cta in mine) / rates["smem"]
    port += sum(c for (_, _, p), c in line.occupied.items() if p is Pipe.SMEM)
    totals["shared memory port"] = port / members
    return totals


def longest_waits(kernel: Kernel, rates: Rates | None = None, count: int = 10) -> list[WaitShare]:
    """The longest waits of the roles in one step."""
    short, longer = (_waits(run, run.timeline(rates)) for run in kernel.runs[:2])
    steps = kernel.runs[1].steps - kernel.runs[0].steps
    found = [WaitShare(who, why, (c - short.get((who, why), 0.0)) / steps) for (who, why), c in longer.items()]
    return sorted(found, key=lambda w: -w.cycles)[:count]


def _waits(run: Run, line: Timeline) -> dict[tuple[str, str], float]:
    """Cycles by role and reason, per warp of the role."""
    members = len(run.members)
    warps = {p.warp.index for p in run.replay.paths}
    sizes: dict[str, int] = defaultdict(int)
    for index in warps:
        sizes[role(run, index)] += members
    waits: dict[tuple[str, str], float] = defaultdict(float)
    for (index, reason), cycles in line.stalls.cycles.items():
        who = role(run, index)
        waits[who, reason_name(run, reason)] += cycles / sizes[who]
    return dict(waits)


def role(run: Run, index: int) -> str:
    """Role of a warp."""
    return run.names.roles.get(index, f"warp {index}")


def reason_name(run: Run, reason: str) -> str:
    """A reason with the kernel's own name of the barrier."""
    head, _, offset = reason.partition("mbarrier ")
    return head + run.names.barrier(("mbarrier", 0, int(offset, 0))) if offset else reason

