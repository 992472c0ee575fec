"""A kernel at a shape: record short runs, replay and simulate them, extrapolate to the shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from mxfp8fa.emulator import active
from mxfp8fa.emulator.machine.program import load_program
from mxfp8fa.emulator.names import Names
from mxfp8fa.timing.binary import binaries_of
from mxfp8fa.timing.chip import ChipTime, Increments, on_chip
from mxfp8fa.timing.compilations import compilations
from mxfp8fa.timing.paths import Replay, replay
from mxfp8fa.timing.programs import Program, Source, Tiling
from mxfp8fa.timing.rates import Rates, uncertain
from mxfp8fa.timing.record import LaunchRecord, Recorder
from mxfp8fa.timing.sass import Function
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
    """

    tiles: int
    steps: int
    replay: Replay
    names: Names

    def timeline(self, rates: Rates | None = None) -> Timeline:
        """Its cycles."""
        return simulate(self.replay, rates)


@dataclass(frozen=True)
class Kernel:
    """What the short runs of a kernel gave.

    Attributes:
        name: as the user knows it.
        tiling: how it cuts the work.
        runs: one tile of SHORT steps, one of LONG, and two tiles of SHORT steps if CTAs are persistent.
    """

    name: str
    tiling: Tiling
    runs: tuple[Run, ...]

    def increments(self, rates: Rates | None = None) -> Increments:
        """Cycles per cluster, tile and step."""
        points = [(run.steps, run.timeline(rates).cycles) for run in self.runs]
        return Increments.fit(points[0], points[1], points[2] if len(points) > 2 else None)

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

    _functions: ClassVar[dict[tuple[str, int], Function]] = {}

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
                self._functions[name, len(load_program(binary.ptx, name).instructions)] = binary.function
        return program, recorder.finish()

    def replay(self, launch: LaunchRecord) -> Replay:
        """A launch as SASS."""
        return replay(self._functions[launch.kernel, launch.ptx_instructions], launch)


def main_launch(launches: list[LaunchRecord]) -> LaunchRecord:
    """The last launch that uses the tensor core."""
    products = [launch for launch in launches if any(o.what == "tcgen05.mma" for o in launch.operations)]
    return (products or launches)[-1]


def short_shape(shape: AttentionShape, tiling: Tiling, *, steps: int, tiles: int) -> AttentionShape:
    """`tiles` heads with one tile of `steps` steps each (the last one of a causal problem)."""
    outer, inner = tiling.rows, steps * tiling.columns
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
    if shape.causal and tiling is not None and tiling.backward:
        raise ValueError("a causal backward cannot be extrapolated: its short problems have no tile with several steps")
    if tiling is None:
        raise ValueError(f"it is not known how {source.name} cuts attention into tiles")
    plan = [(1, SHORT), (1, LONG), (2, SHORT)] if tiling.persistent else [(1, SHORT), (1, LONG)]
    runs = []
    for tiles, steps in plan:
        short = short_shape(shape, tiling, steps=steps, tiles=tiles)
        program, launches = library.record(partial(source.load, short), tiling.cluster)
        runs.append(Run(tiles, tiles * steps, library.replay(main_launch(launches)), program.names))
    return Kernel(source.name, tiling, tuple(runs))
