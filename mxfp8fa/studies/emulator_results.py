"""How fast the emulator is, as `bench/bench_emulator.py` measured it on a CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One launch: kernel, sequence length, heads, options; CTAs, warp-instructions, best wall and CPU seconds, peak memory.

    `memory_mib` is the peak of the whole process up to then.
    """

    kernel: str
    seqlen: int
    heads: int
    options: str
    ctas: int
    warp_instructions: int
    wall_s: float
    cpu_s: float
    memory_mib: float

    @property
    def rate(self) -> float:
        """Warp-instructions a second of wall time."""
        return self.warp_instructions / self.wall_s


def shipped() -> tuple[dict[str, Any], list[Launch]]:
    """Machine, versions and date of the committed measurement, and its launches."""
    record = json.loads((files("mxfp8fa.studies") / "data" / "emulator_speed.json").read_text())
    return record, [Launch(**launch) for launch in record.pop("launches")]


def growth(launches: list[Launch], kernel: str, *, heads: bool = False) -> list[Launch]:
    """Launches with default options by sequence length at one head, or by heads at the shortest length that has several."""
    plain = [x for x in launches if x.kernel == kernel and x.options == "default"]
    if not heads:
        return sorted((x for x in plain if x.heads == 1), key=lambda x: x.seqlen)
    seqlen = min(x.seqlen for x in plain if x.heads > 1)
    return sorted((x for x in plain if x.seqlen == seqlen), key=lambda x: x.heads)
