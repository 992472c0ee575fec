"""A kernel at a shape: record short runs, replay and simulate them, extrapolate to the shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from mxfp8fa.emulator import active
from mxfp8fa.emulator.machine.program import load_program
from mxfp8fa.emulator.names import Names
from mxfp8fa.timing.binary import Binary, binaries_of
from mxfp8fa.timing.chip import ChipTime, Increments, on_chip
from mxfp8fa.timing.compilations import compilations
from mxfp8fa.timing.paths import Replay, replay
from mxfp8fa.timing.programs import Program, Source, Tiling
from mxfp8fa.timing.rates import Rates, uncertain
from mxfp8fa.timing.record import LaunchRecord, Recorder
from mxfp8fa.timing.shapes import AttentionShape
from mxfp8fa.timing.simulate import Timeline, simulate

CHECKED_OPCODES = ("MUFU.EX2", "F2FP", "LDTM", "STTM", "UTCHMMA", "UTCQMMA")
SHORT, LONG = 4, 8  # steps of the short runs: the rings of the kernels here are full after three


@dataclass(frozen=True)
class Run:
    """One short run of one cluster.

    Attributes:
        tiles, steps: of the cluster, over all tiles.
        replay: its SASS.
        names: what the kernel declares.
        cluster: number of the cluster that is timed.
    """

    tiles: int
    steps: int
    replay: Replay
    names: Names
    cluster: int

    @property
    def members(self) -> list[int]:
        """Numbers of the CTAs of the cluster."""
        return self.replay.record.ctas[self.cluster]

    def timeline(self, rates: Rates | None = None) -> Timeline:
        """Its cycles."""
        return simulate(self.replay, rates, self.cluster)


@dataclass(frozen=True)
class Attribution:
    """How well an emulated run and the kernel's SASS fit together.

    Attributes:
        instructions: SASS instructions of the kernel.
        without_line: those for which the compiler's line table names no PTX line.
        replayed: SASS instructions that warps were made to issue.
        replayed_without_line: those of them without a PTX line.
        anchors: effects (arrivals, waits, asynchronous operations) that the emulator saw.
        lost: those for which no path through the SASS was found.
        differing: opcodes in which the SASS differs from the binary that ships; 0 when it is that binary.
    """

    instructions: int
    without_line: int
    replayed: int
    replayed_without_line: int
    anchors: int
    lost: int
    differing: int

    def __str__(self) -> str:
        source = f"a twin with {self.differing} other opcodes" if self.differing else "the binary that ships"
        return (
            f"{self.instructions:,} instructions of {source}, {_percent(self.without_line, self.instructions)} without a PTX "
            f"line; replayed {self.replayed:,}, {_percent(self.replayed_without_line, self.replayed)} of them without one; "
            f"{self.lost} of {self.anchors:,} effects without a path"
        )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


@dataclass(frozen=True)
class Kernel:
    """What the short runs of a kernel gave.

    Attributes:
        name: as the user knows it.
        tiling: how it cuts the work.
        runs: one tile of SHORT steps, one of LONG, and two tiles of SHORT steps if CTAs are persistent.
        differing: see `Attribution`.
    """

    name: str
    tiling: Tiling
    runs: tuple[Run, ...]
    differing: int

    def increments(self, rates: Rates | None = None) -> Increments:
        """Cycles per cluster, tile and step."""
        points = [(run.steps, run.timeline(rates).cycles) for run in self.runs]
        return Increments.fit(points[0], points[1], points[2] if len(points) > 2 else None)

    def attribution(self) -> Attribution:
        """Of the longer run."""
        found = self.runs[1].replay
        code, executed = found.function.instructions, found.executed()
        return Attribution(
            len(code), sum(not i.ptx_line for i in code),
            executed.total(), sum(n for at, n in executed.items() if not code[at].ptx_line),
            sum(len(p.warp.anchors) for p in found.paths), sum(p.lost for p in found.paths), self.differing,
        )  # fmt: skip

    def coverage(self) -> dict[str, str]:
        """Opcode -> replayed and emulated executions in the longer run, for opcodes that compilers neither merge nor drop."""
        found = {}
        for opcode in CHECKED_OPCODES:
            replayed, emulated = self.runs[1].replay.coverage((opcode,))
            if emulated:
                found[opcode] = f"{replayed} of {emulated}"
        return found

    def at(self, shape: AttentionShape, rates: Rates | None = None) -> ChipTime:
        """On the chip, at a shape."""
        chosen = rates or Rates()
        return on_chip(shape, self.tiling, self.increments(chosen), chosen)

    def sensitivity(self, shape: AttentionShape) -> dict[str, tuple[float, float]]:
        """Uncertain constant -> relative change of the cycles when it takes its low and its high value."""
        base = self.at(shape).cycles
        return {
            name: (
                self.at(shape, Rates({name: constant.low})).cycles / base - 1,
                self.at(shape, Rates({name: constant.high})).cycles / base - 1,
            )
            for name, constant in uncertain()
        }


def spread(changes: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Relative range of a result: the uncertainties of its constants, taken as independent and added in squares."""
    down = sum(min(0.0, *pair) ** 2 for pair in changes.values()) ** 0.5
    up = sum(max(0.0, *pair) ** 2 for pair in changes.values()) ** 0.5
    return -down, up


class Library:
    """Runs programs, and knows the SASS of what was compiled: a kernel compiles once and is run at several shapes.

    What one library has compiled all know, because libraries under test keep their compiled functions for a whole process.
    """

    _binaries: ClassVar[dict[tuple[str, int], Binary]] = {}

    def record(self, load: Callable[[], Program], sm_count: int) -> tuple[Program, list[LaunchRecord]]:
        """Run a program in the emulator."""
        from mxfp8fa.emulator import host

        recorder = Recorder()
        with compilations() as compiled, host.cuda_shims(sm_count=sm_count):
            program = load()
            with active(trace=recorder, allow=program.memory, sm_count=sm_count):
                program.call()
        for each in compiled:
            for name, binary in binaries_of(each.compiled).items():
                self._binaries[name, len(load_program(binary.ptx, name).instructions)] = binary
        return program, recorder.finish()

    def binary(self, launch: LaunchRecord) -> Binary:
        """What a launch ran."""
        return self._binaries[launch.kernel, launch.ptx_instructions]

    def replay(self, launch: LaunchRecord) -> Replay:
        """A launch as SASS."""
        return replay(self.binary(launch).function, launch)


def main_launch(launches: list[LaunchRecord]) -> LaunchRecord:
    """The last launch that uses the tensor core."""
    products = [launch for launch in launches if any(o.what == "tcgen05.mma" for o in launch.operations)]
    return (products or launches)[-1]


def longest_cluster(launch: LaunchRecord) -> int:
    """Number of the cluster with the most products; the first of them."""
    products: Counter[int] = Counter()
    for operation in launch.operations:
        if operation.what == "tcgen05.mma":
            products[launch.warps[operation.warp].cta] += 1
    return max(launch.ctas, key=lambda cluster: sum(products[cta] for cta in launch.ctas[cluster]))


def short_shape(shape: AttentionShape, tiling: Tiling, *, steps: int, tiles: int) -> AttentionShape:
    """`tiles` heads with one tile of `steps` steps each (the last one of a causal forward).

    Of a causal backward every tile of keys sees another number of queries, the first one all: `steps` steps.
    """
    outer, inner = tiling.rows, steps * tiling.columns
    if tiling.backward and shape.causal:
        outer = inner
    q, k = (inner, outer) if tiling.backward else (outer, inner)
    return replace(shape, batch=1, num_heads_q=tiles, num_heads_kv=tiles, seqlen_q=q, seqlen_k=k)


def kernel(source: Source, shape: AttentionShape, library: Library | None = None) -> Kernel:
    """Record the short runs of a kernel.

    Args:
        source: of its programs.
        shape: gives head_dim and causal.
        library: to share what was compiled.

    Raises:
        ValueError: it is not known how the kernel cuts the work.
    """
    tiling, library = source.tiling, library or Library()
    if tiling is None:
        raise ValueError(f"it is not known how {source.name} cuts attention into tiles")
    plan = [(1, SHORT), (1, LONG), (2, SHORT)] if tiling.persistent else [(1, SHORT), (1, LONG)]
    runs = []
    for tiles, steps in plan:
        short = short_shape(shape, tiling, steps=steps, tiles=tiles)
        program, launches = library.record(partial(source.load, short), tiling.cluster)
        launch = main_launch(launches)
        runs.append(Run(tiles, tiles * steps, library.replay(launch), program.names, longest_cluster(launch)))
    return Kernel(source.name, tiling, tuple(runs), library.binary(launch).differing)
