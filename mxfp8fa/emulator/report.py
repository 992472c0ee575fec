"""What a run did. Counts are emulated; seconds are wall time of the emulation, not of a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mxfp8fa.emulator.check.findings import Finding

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import ModuleVariables

_SHOWN_OPCODES = 12


@dataclass(frozen=True)
class LaunchReport:
    """One launch.

    Attributes:
        kernel: its name.
        grid, block, cluster: shapes.
        smem_bytes: dynamic shared memory of a CTA.
        counts: warp-instructions executed, by mnemonic.
        bytes_moved: bytes by memory and direction ("global load", "shared store", ...).
        seconds: wall time of the emulation (binding included, compilation by the DSL not).
        schedule, seed: how it was scheduled.
        races: findings of the checker, when it ran.
        allowed: findings that are known to be benign; `Finding.allowed` says why.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    counts: Counter[str]
    bytes_moved: dict[str, int]
    seconds: float
    schedule: str
    seed: int
    races: list[Finding] = field(default_factory=list)
    allowed: list[Finding] = field(default_factory=list)

    @property
    def warp_instructions(self) -> int:
        """All warp-instructions executed."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        shape = f"grid {self.grid}, block {self.block}"
        shape += f", cluster {self.cluster}" if self.cluster != (1, 1, 1) else ""
        rate = self.warp_instructions / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.kernel}",
            f"  {shape}, {self.smem_bytes} bytes of dynamic shared memory, schedule {self.schedule}"
            + (f" (seed {self.seed})" if self.schedule == "random" else ""),
            f"  {self.warp_instructions:,} warp-instructions emulated in {self.seconds:.2f} s ({rate:,.0f} a second)",
            "  "
            + (", ".join(f"{kind} {n:,} B" for kind, n in sorted(self.bytes_moved.items())) or "no memory traffic"),
        ]
        common = self.counts.most_common(_SHOWN_OPCODES)
        lines += [f"    {n:>12,}  {mnemonic}" for mnemonic, n in common]
        rest = self.warp_instructions - sum(n for _, n in common)
        if rest:
            lines.append(f"    {rest:>12,}  {len(self.counts) - len(common)} other forms")
        lines += [f"  {finding}" for finding in self.races]
        return "\n".join(lines)


@dataclass
class Report:
    """All launches of one run, in order. Prints itself as a table.

    Attributes:
        launches: in order.
        modules: variables of the modules that the run has loaded; a run begins with their initial values.
    """

    launches: list[LaunchReport] = field(default_factory=list)
    modules: list[ModuleVariables] = field(default_factory=list, repr=False, compare=False)

    def load(self, variables: ModuleVariables) -> None:
        """The run uses a module: the first time, its variables get their initial values."""
        if variables not in self.modules:
            variables.reset()
            self.modules.append(variables)

    @property
    def warp_instructions(self) -> int:
        """All warp-instructions executed."""
        return sum(launch.warp_instructions for launch in self.launches)

    @property
    def seconds(self) -> float:
        """Wall time of all launches."""
        return sum(launch.seconds for launch in self.launches)

    @property
    def counts(self) -> Counter[str]:
        """Warp-instructions by mnemonic, over all launches."""
        return sum((launch.counts for launch in self.launches), Counter())

    @property
    def races(self) -> list[Finding]:
        """Findings of the checker, over all launches."""
        return [finding for launch in self.launches for finding in launch.races]

    @property
    def bytes_moved(self) -> dict[str, int]:
        """Bytes by memory and direction, over all launches."""
        return dict(sum((Counter(launch.bytes_moved) for launch in self.launches), Counter()))

    def __str__(self) -> str:
        if not self.launches:
            return "no kernel was launched"
        work = f"{self.warp_instructions:,} warp-instructions, {self.seconds:.2f} s"
        head = f"{len(self.launches)} launch(es), {work} (emulated on a CPU)"
        return "\n".join([head, *map(str, self.launches)])
