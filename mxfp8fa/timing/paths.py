"""The SASS that each warp executed: found between its anchors, by the PTX lines of the compiler's line table.

Loops are matched, not lines alone: from where a warp is, the path to the SASS copy of its next anchor is the shortest one
that passes no other anchor, and as little as possible that the emulator never or rarely executed; so each copy that
unrolling or peeling made is used when its turn comes. What the
emulator counted (exponentials, tensor memory loads, ...) checks the result: `Replay.coverage`.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import Counter
from dataclasses import dataclass, field

from mxfp8fa.timing.flow import Graph
from mxfp8fa.timing.record import Anchor, LaunchRecord, WarpRecord
from mxfp8fa.timing.sass import Function
from mxfp8fa.timing.units import Unit, unit_of

# SASS that carries an anchor; what else a PTX line was compiled to (addresses, predicates) does not.
_CARRIERS = {
    "SYNCS", "BAR", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCCP", "UTCBAR", "UTCSHIFT", "UTMALDG", "UTMASTG",
    "UTMAREDG", "UBLKCP", "UBLKRED", "UTMACMDFLUSH", "DEPBAR", "FENCE", "MEMBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "STTM",
    "ATOMS", "LDGSTS", "LDGDEPBAR", "STAS", "ARRIVES",
}  # fmt: skip


_RARE_COST = 1000  # of a branch rarely taken, and of SASS whose PTX line no warp executed (the compiler moves code)
_WALL_COST = 10_000_000  # more than the longest path
_SHORT_BLOCK = 4
_DETOUR = 8  # a way that is longer by less is not told apart
_PTX_PER_SASS = 1.3  # packing and unpacking moves, which the compiler drops
_PINNED = {Unit.LSU, Unit.TMEM, Unit.TENSOR}


@dataclass(frozen=True)
class Found:
    """A path, and how many instructions of other anchors it passes."""

    places: list[int]
    walls: int


@dataclass
class WarpPath:
    """The SASS of one warp, in order.

    Attributes:
        warp: whose.
        code: positions in the function's instructions.
        anchors: position in `code` -> what happens there.
        lost: anchors for which no path was found; they take place where the warp is.
        forced: instructions of other anchors that it passes.
    """

    warp: WarpRecord
    code: list[int] = field(default_factory=list)
    anchors: dict[int, list[Anchor]] = field(default_factory=dict)
    lost: int = 0
    forced: int = 0


@dataclass
class Replay:
    """A launch as SASS.

    Attributes:
        function: its SASS.
        record: of the emulated run.
        paths: one per warp.
    """

    function: Function
    record: LaunchRecord
    paths: list[WarpPath]

    @property
    def lost_share(self) -> float:
        """Anchors without a path, of all."""
        total = sum(len(p.warp.anchors) for p in self.paths)
        return sum(p.lost for p in self.paths) / max(total, 1)

    def executed(self) -> Counter[int]:
        """Position -> how often warps executed it."""
        counts: Counter[int] = Counter()
        for path in self.paths:
            counts.update(path.code)
        return counts

    def coverage(self, mnemonics: tuple[str, ...]) -> tuple[int, int]:
        """How often SASS of these opcodes was replayed, and how often the emulator executed its PTX lines.

        Only of PTX lines whose SASS is one such instruction, in whatever number of copies.
        """
        code = self.function.instructions
        lines = {i.ptx_line for i in code if i.opcode.startswith(mnemonics) and i.ptx_line}
        executed = self.executed()
        replayed = sum(n for at, n in executed.items() if code[at].opcode.startswith(mnemonics) and code[at].ptx_line in lines)
        return replayed, sum(self.record.ptx_counts.get(line, 0) for line in lines)


class _Finder:
    """Shortest paths between anchors, remembered.

    A path through another anchor's instruction is possible (the line table is not perfect) and very long.
    """

    def __init__(self, function: Function, record: LaunchRecord):
        reported = {anchor.ptx_line for warp in record.warps.values() for anchor in warp.anchors}
        self.code = function.instructions
        self.index = function.index
        self.graph = Graph.of(function)
        self.after: list[tuple[int, ...]] = [()] * len(self.code)
        for block in self.graph.blocks:
            places = [self.index[i.address] for i in block.instructions]
            for here, following in itertools.pairwise(places):
                self.after[here] = (following,)
            self.after[places[-1]] = tuple(self._first(s) for s in block.successors)
        self.lines = {i: x.ptx_line for i, x in enumerate(self.code) if x.mnemonic in _CARRIERS}
        self._join_retries()
        self.by_line: dict[int, set[int]] = {}
        for i, line in self.lines.items():
            self.by_line.setdefault(line, set()).add(i)
        self.walls = {i for i, line in self.lines.items() if line in reported and not self.code[i].guard}
        self.price = [
            1 if not x.ptx_line or record.ptx_counts.get(x.ptx_line) else _RARE_COST for x in function.instructions
        ]
        self.rare = self._rare_edges(record)
        self.shortcuts = self._shortcuts()
        self._known: dict[tuple[int, int], list[Found]] = {}

    def _rare_edges(self, record: LaunchRecord) -> set[tuple[int, int]]:
        """Branches that fewer than half of the warps took, as far as the emulator's counts of PTX lines tell."""
        counts = self._block_counts(record)
        rare = set()
        for block in self.graph.blocks:
            if len(block.successors) != 2 or not counts[block.number]:
                continue
            shares = [
                counts[s] / counts[block.number] if len(self.graph.blocks[s].predecessors) == 1 else None
                for s in block.successors
            ]
            for target, share, other in zip(block.successors, shares, shares[::-1], strict=True):
                likely = share if share is not None else 1 - other if other is not None else 1
                if likely < 0.5:
                    rare.add((self.index[block.instructions[-1].address], self._first(target)))
        return rare

    def _block_counts(self, record: LaunchRecord) -> list[float]:
        """How often warps ran each block: by its memory accesses, which compilers do not move out of it, where it has any."""
        counts: list[float] = []
        for block in self.graph.blocks:
            pinned = [i for i in block.instructions if unit_of(i) in _PINNED]
            lines = [i.ptx_line for i in pinned or block.instructions if i.ptx_line]
            executed = [n for line in lines if (n := record.ptx_counts.get(line, 0))]
            counts.append(statistics.median(executed or [0]))
        for block in self.graph.blocks:
            leads = set(block.successors)
            if block.number in self.retries or (leads and leads <= self.retries):
                counts[block.number] = 0  # the model's waits wait; they do not poll
        for block in reversed(self.graph.blocks):  # who enters a block has run the only one before it
            if len(block.predecessors) == 1 and block.predecessors[0] < block.number:
                before = block.predecessors[0]
                counts[before] = max(counts[before], counts[block.number])
        return counts

    def _first(self, block: int) -> int:
        return self.index[self.graph.blocks[block].instructions[0].address]

    def _join_retries(self) -> None:
        """A wait is tried once in line, and again in a loop elsewhere, of which only the latter has the right PTX line."""
        tries = {i for i in self.lines if "TRYWAIT" in self.code[i].opcode}
        retries = {}
        for block in self.graph.blocks:
            places = [self.index[i.address] for i in block.instructions]
            if block.number in block.successors and tries & set(places):
                retries[block.number] = next(i for i in places if i in tries)
        for block in self.graph.blocks:
            mine = [i for x in block.instructions if (i := self.index[x.address]) in tries]
            again = [retries[s] for s in self._ahead(block.number) if s in retries and s != block.number]
            if mine and again and block.number not in retries:
                self.lines[mine[-1]] = self.lines[again[0]]
        for i in retries.values():
            del self.lines[i]
        self.retries = set(retries)

    def _ahead(self, block: int) -> list[int]:
        """Blocks after a block, and those after short blocks of them."""
        near = self.graph.blocks[block].successors
        short = [s for s in near if len(self.graph.blocks[s].instructions) <= _SHORT_BLOCK]
        return near + [far for s in short for far in self.graph.blocks[s].successors]

    def _shortcuts(self) -> set[tuple[int, int]]:
        """Branches forward past a block that nobody else enters."""
        past = set()
        for block in self.graph.blocks:
            for side, other in itertools.permutations(block.successors, 2):
                if other > block.number and len(self.graph.blocks[side].predecessors) == 1 and side not in self.retries:
                    past.add((self.index[block.instructions[-1].address], self._first(other)))
        return past

    def paths(self, start: int, line: int) -> list[Found]:
        """Ways from `start` to the next carrier of a PTX line (0: to the end of the kernel).

        The usual one first, then the one with every detour.
        """
        key = (start, line)
        if key not in self._known:
            ways = [self._search(start, line, avoided) for avoided in (self.rare, self.shortcuts)]
            self._known[key] = [way for i, way in enumerate(ways) if way is not None and (i == 0 or way != ways[0])]
        return self._known[key]

    def _search(self, start: int, line: int, avoided: set[tuple[int, int]]) -> Found | None:
        goals = self.by_line.get(line, set()) if line else {i for i, x in enumerate(self.code) if x.mnemonic == "EXIT"}
        passable = {i for i in self.walls if start >= 0 and self.lines[i] == self.lines.get(start)}
        queue = [(1, s, -1) for s in (self.after[start] if start >= 0 else (0,))]
        came: dict[int, int] = {}
        while queue:
            cost, here, before = heapq.heappop(queue)
            if here in came:
                continue
            came[here] = before
            if here in goals:
                return Found(_back(here, came), cost // _WALL_COST)
            cost += _WALL_COST if here in self.walls and here not in passable else 0
            for following in self.after[here]:
                if following not in came:
                    extra = _RARE_COST if (here, following) in avoided else 0
                    heapq.heappush(queue, (cost + self.price[following] + extra, following, here))
        return None


def _back(here: int, came: dict[int, int]) -> list[int]:
    path = []
    while here != -1:
        path.append(here)
        here = came[here]
    return path[::-1]


def replay(function: Function, record: LaunchRecord) -> Replay:
    """Find the SASS path of every warp of a launch."""
    finder = _Finder(function, record)
    return Replay(function, record, [_walk(finder, warp) for warp in record.warps.values()])


def _walk(finder: _Finder, warp: WarpRecord) -> WarpPath:
    path, here, executed = WarpPath(warp), -1, 0
    for anchor in warp.anchors:
        if anchor.ptx_line in finder.by_line:
            way = _choose(finder.paths(here, anchor.ptx_line), anchor.executed - executed)
            executed = anchor.executed
            if way is not None:
                path.code += way.places
                path.forced += way.walls
                here = way.places[-1]
            else:
                path.lost += 1
        path.anchors.setdefault(max(len(path.code) - 1, 0), []).append(anchor)
    end = _choose(finder.paths(here, 0), 0)
    path.code += end.places if end is not None else []
    return path


def _choose(ways: list[Found], executed: int) -> Found | None:
    """The usual way, unless another one is closer in length to the PTX instructions that the warp executed.

    SASS has fewer instructions than PTX, and of two ways the emulator's count tells which was taken: by more than a branch.
    """
    if len(ways) < 2 or not executed:
        return ways[0] if ways else None
    usual, other = ways
    if other.walls > usual.walls or len(other.places) < len(usual.places) + _DETOUR:
        return usual
    return other if executed > (len(usual.places) + len(other.places)) / 2 * _PTX_PER_SASS else usual
