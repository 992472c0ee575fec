"""What a kernel's binary says without running: registers, spills, and what its steady loop costs per score.

The steady loop of an attention kernel is the loop of its softmax warps over key tiles: it loads scores from tensor memory,
converts probabilities, and stores them to tensor memory. A thread holds a row, so SASS instructions of one turn divided by
the scores that a thread turns into probabilities in it is warp-instructions per score element and lane: what a scheduler
has to issue, whatever the tile.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mxfp8fa.timing.binary import Binary, Resources
from mxfp8fa.timing.flow import Graph, Loop
from mxfp8fa.timing.sass import Instruction
from mxfp8fa.timing.units import Unit, unit_of

_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_PTX_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_DSL_FOLDER = "nvidia_cutlass_dsl"
_VALUES_PER_PACK = 2  # F2FP converts two values


@dataclass(frozen=True)
class LoopFacts:
    """One loop, without the loops inside it and without what a branch can skip in a turn: masks, rare cases.

    Attributes:
        address: of its first instruction.
        source: line of Python at which it starts, "" without line information.
        by_unit: instructions of one turn.
        by_opcode: likewise, by mnemonic.
        by_source: likewise, by line of Python.
        exponentials: MUFU.EX2 among them.
        conversions: packed conversions among them (two values each).
        columns: tensor memory columns that it loads, per thread.
        stores: tensor memory stores among them.
    """

    address: int
    source: str
    by_unit: Counter[Unit]
    by_opcode: Counter[str]
    by_source: Counter[str]
    exponentials: int
    conversions: int
    columns: int
    stores: int

    @property
    def instructions(self) -> int:
        """All of them."""
        return self.by_unit.total()

    @property
    def scores(self) -> int:
        """Scores that a thread turns into probabilities in one turn."""
        return _VALUES_PER_PACK * self.conversions

    @property
    def is_softmax(self) -> bool:
        """Scores in, probabilities out."""
        return bool(self.columns and self.stores and self.conversions)

    def per_score(self, unit: Unit | None = None) -> float:
        """Instructions per score, of one unit or of all."""
        return (self.instructions if unit is None else self.by_unit[unit]) / self.scores


@dataclass(frozen=True)
class KernelFacts:
    """One kernel.

    Attributes:
        kernel: name of the entry point.
        resources: registers and memory at launch.
        budgets: registers per thread that roles ask for (setmaxnreg), in the order of the code.
        spills: loads from and stores to local memory.
        instructions: all its SASS.
        loops: by address.
        files: Python files with code in it, and their lines.
    """

    kernel: str
    resources: Resources
    budgets: tuple[int, ...]
    spills: int
    instructions: int
    loops: tuple[LoopFacts, ...]
    files: dict[str, int]

    @property
    def steady(self) -> LoopFacts | None:
        """The softmax loop that needs fewest instructions per score: the one without masks. None: there is no loop."""
        candidates = [loop for loop in self.loops if loop.is_softmax]
        return min(candidates, key=lambda loop: loop.per_score()) if candidates else None

    @property
    def source_lines(self) -> int:
        """Lines of the Python files with code in it."""
        return sum(self.files.values())


def facts_of(binary: Binary) -> KernelFacts:
    """Read a kernel's facts off its binary."""
    code, graph = binary.function.instructions, Graph.of(binary.function)
    sources = PtxSources(binary.ptx)
    return KernelFacts(
        binary.kernel,
        binary.resources,
        tuple(int(i.operands.split()[-1], 0) for i in code if i.mnemonic == "USETMAXREG"),
        sum(i.mnemonic in ("LDL", "STL") for i in code),
        sum(i.mnemonic != "NOP" for i in code),
        tuple(_loop_facts(graph, loop, sources) for loop in graph.loops),
        sources.lines_of_files(),
    )


def _loop_facts(graph: Graph, loop: Loop, sources: PtxSources) -> LoopFacts:
    own = [i for i in graph.shortest_turn(loop) if i.mnemonic != "NOP"]
    start = graph.blocks[loop.header].instructions[0].address
    places = (sources.at(i.ptx_line) for i in own if i.address >= start)
    return LoopFacts(
        start,
        next((place for place in places if place), ""),
        Counter(unit_of(i) for i in own),
        Counter(i.mnemonic for i in own),
        Counter(sources.at(i.ptx_line) or "no line" for i in own),
        sum(i.opcode == "MUFU.EX2" for i in own),
        sum(i.mnemonic == "F2FP" for i in own),
        sum(columns_of(i) for i in own if i.mnemonic == "LDTM"),
        sum(i.mnemonic == "STTM" for i in own),
    )


def columns_of(instruction: Instruction) -> int:
    """Columns of tensor memory that an LDTM or STTM moves: its repetition count (registers per thread)."""
    counts = [int(m[1:]) for m in instruction.modifiers if re.fullmatch(r"x\d+", m)]
    return counts[0] if counts else 1


class PtxSources:
    """Which line of Python each PTX line was made from, by the .loc directives of a PTX text."""

    def __init__(self, ptx: str):
        self._files = {int(number): name for number, name in _PTX_FILE.findall(ptx)}
        self._lines: list[tuple[int, int]] = []
        here = (0, 0)
        for row in ptx.splitlines():
            if (place := _PTX_LOCATION.match(row)) is not None:
                here = (int(place[1]), int(place[2]))
            self._lines.append(here)

    def at(self, ptx_line: int) -> str:
        """File name and line, or ""."""
        if not 1 <= ptx_line <= len(self._lines):
            return ""
        number, line = self._lines[ptx_line - 1]
        return f"{Path(self._files[number]).name}:{line}" if number in self._files and line else ""

    def lines_of_files(self) -> dict[str, int]:
        """Readable Python files outside the DSL that code comes from, and how many lines they have."""
        used = {number for number, _ in self._lines}
        paths = [Path(name) for number, name in self._files.items() if number in used and _DSL_FOLDER not in name]
        return {path.name: len(path.read_text().splitlines()) for path in paths if path.is_file()}
