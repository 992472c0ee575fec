"""Cycles of one KV step by resource: two tiles of 128 queries against 128 keys at head_dim 128, per SM.

What the softmax warps need is counted in the steady loop of the compiled kernel and multiplied by the rates of
`mxfp8fa.timing.rates`, whose ranges are carried through; what tensor core and shared memory need is arithmetic. Modelled:
a resource's number is a lower bound of a step's time, and nothing says that a kernel reaches it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from importlib import resources
from typing import Any

from mxfp8fa.published import BY_KEY
from mxfp8fa.timing.binary import Binary, main_kernel
from mxfp8fa.timing.costs import Pipe, cost_of
from mxfp8fa.timing.facts import columns_of
from mxfp8fa.timing.flow import Graph, Loop
from mxfp8fa.timing.rates import CONSTANTS, Rates
from mxfp8fa.timing.sass import Instruction
from mxfp8fa.timing.units import Unit, unit_of

SHIPPED = "exponential_sass.json"
TILE, HEAD_DIM, Q_TILES = 128, 128, 2
K_SLICE = 32  # bytes of K that one tcgen05.mma contracts
ROWS_PER_WARP, SCHEDULERS = 32, 4
WARPS_PER_SCHEDULER = Q_TILES * TILE // ROWS_PER_WARP // SCHEDULERS
CLOCKS_GHZ = (1.58, 1.965)  # under sustained load, and the highest: FlashInfer PR 2899; device query
PIPES = {
    Pipe.MUFU: "MUFU", Pipe.FMA: "FMA", Pipe.ALU: "ALU", Pipe.CONVERT: "conversions", Pipe.TMEM_LOAD: "TMEM loads",
    Pipe.TMEM_STORE: "TMEM stores",
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """A modelled number of cycles with the range that uncertain rates give it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LoopCosts:
    """The steady softmax loop of one kernel, per thread and turn.

    Attributes:
        name: of the kernel or way.
        scores: scores that a thread loads in one turn.
        opcodes: SASS opcode with its modifiers -> how many.
        units: execution unit -> how many instructions.
        pipes: pipe -> cycles for which one warp occupies it, for one turn.
    """

    name: str
    scores: int
    opcodes: Mapping[str, int]
    units: Mapping[str, int]
    pipes: Mapping[str, Range]

    @property
    def per_score(self) -> float:
        """SASS instructions per score."""
        return sum(self.opcodes.values()) / self.scores

    def step(self, pipe: str) -> Range:
        """Cycles of a scheduler's pipe in one KV step."""
        turns = WARPS_PER_SCHEDULER * TILE / self.scores
        used = self.pipes.get(pipe, Range(0, 0, 0))
        return Range(used.value * turns, used.low * turns, used.high * turns)

    def issue(self) -> float:
        """Issue slots of a scheduler in one KV step."""
        return WARPS_PER_SCHEDULER * TILE * self.per_score


def loop_costs(name: str, binaries: Sequence[Binary]) -> LoopCosts:
    """Read the steady loop off a compiled kernel.

    Raises:
        ValueError: it has no loop that loads from tensor memory, converts and stores there.
    """
    graph = Graph.of(main_kernel(binaries).function)
    turns = [[i for i in cheapest_turn(graph, loop) if i.mnemonic != "NOP"] for loop in graph.loops]
    softmax = [turn for turn in turns if _is_softmax(turn)]
    if not softmax:
        raise ValueError(f"{name} has no loop that turns scores into probabilities")
    code = min(softmax, key=lambda turn: len(turn) / _scores(turn))
    opcodes, units = Counter(i.opcode for i in code), Counter(unit_of(i).value for i in code)
    return LoopCosts(name, _scores(code), dict(opcodes), dict(units), _pipes(code))


def cheapest_turn(graph: Graph, loop: Loop) -> list[Instruction]:
    """The instructions on the way through a loop that has fewest: no masks, no waiting twice, nothing that is rare."""
    best: dict[int, tuple[int, list[int]]] = {}
    queue = [(len(graph.blocks[loop.header].instructions), loop.header, [loop.header])]
    while queue:
        length, number, way = heappop(queue)
        if number in best:
            continue
        best[number] = (length, way)
        for successor in graph.blocks[number].successors:
            if successor in loop.blocks and successor not in best:
                added = len(graph.blocks[successor].instructions)
                heappush(queue, (length + added, successor, [*way, successor]))
    latches = [n for n in best if loop.header in graph.blocks[n].successors]
    _, way = min((best[latch] for latch in latches), default=(0, []))
    return [i for number in way for i in graph.blocks[number].instructions]


def _scores(loop: Sequence[Instruction]) -> int:
    return sum(columns_of(i) for i in loop if i.mnemonic == "LDTM")


def _is_softmax(loop: Sequence[Instruction]) -> bool:
    units = {unit_of(i) for i in loop}
    stores = any(i.mnemonic == "STTM" for i in loop)
    return _scores(loop) >= ROWS_PER_WARP and stores and Unit.CONVERT in units


def _pipes(loop: Sequence[Instruction]) -> dict[str, Range]:
    """Cycles of each pipe with the rates as they are, and with all of them at either end of their ranges."""
    ends = [Rates(), *(Rates({n: getattr(c, end) for n, c in CONSTANTS.items()}) for end in ("low", "high"))]
    totals: list[dict[Pipe, float]] = []
    for rates in ends:
        used: dict[Pipe, float] = defaultdict(float)
        for instruction in loop:
            for pipe, cycles in cost_of(instruction, rates).pipes:
                used[pipe] += cycles
        totals.append(used)
    return {name: Range(*(used.get(pipe, 0.0) for used in totals)) for pipe, name in PIPES.items()}


def tensor_cycles() -> float:
    """S = Q K^T and O += P V of two query tiles: N / 2 cycles for every 32 bytes of K."""
    return 2 * Q_TILES * (HEAD_DIM // K_SLICE) * TILE * Rates()["mma_columns"]


def shared_memory_cycles(*, pair: bool) -> float:
    """The port of shared memory: operands that the tensor core reads, K and V written by TMA, scale factors.

    In a pair of CTAs each SM holds half of B, and TMA writes half of K and V. P comes from tensor memory.
    """
    slices, share = HEAD_DIM // K_SLICE, 2 if pair else 1
    qk_bytes = slices * K_SLICE * (TILE + TILE / share)
    pv_bytes = slices * K_SLICE * HEAD_DIM / share
    operands = Q_TILES * (qk_bytes + pv_bytes)
    tma = 2 * TILE * HEAD_DIM / share
    scales = 2 * Q_TILES * 2 * 512 + 2 * 512  # written to tensor memory from shared memory, and K's and V's by TMA
    return (operands + tma + scales) / Rates()["smem"]


def published_cycles() -> tuple[float, float]:
    """Cycles of a step at the published speeds, 2.82 to 2.85 PF, for either end of the clock."""
    speeds = [BY_KEY[key].values[0] for key in ("forward_llm_cudnn_mxfp8", "forward_llm_mxfp8")]
    operations = 4 * Q_TILES * TILE * TILE * HEAD_DIM * Rates()["sm_count"]
    seconds = [operations / (pf * 1e15) for pf in speeds]
    return min(seconds) * min(CLOCKS_GHZ) * 1e9, max(seconds) * max(CLOCKS_GHZ) * 1e9


def as_json(costs: Sequence[LoopCosts]) -> str:
    """What `shipped_costs` reads."""
    return json.dumps([asdict(each) for each in costs], indent=1) + "\n"


def from_json(text: str) -> tuple[LoopCosts, ...]:
    """The inverse of `as_json`."""
    return tuple(_loop(record) for record in json.loads(text))


def _loop(record: dict[str, Any]) -> LoopCosts:
    pipes = {name: Range(**values) for name, values in record["pipes"].items()}
    return LoopCosts(**(record | {"pipes": pipes}))


def shipped_costs() -> tuple[LoopCosts, ...]:
    """The counts in the package, of `mxfp8fa exponential sass --json`."""
    return from_json((resources.files("mxfp8fa.studies") / "data" / SHIPPED).read_text())
