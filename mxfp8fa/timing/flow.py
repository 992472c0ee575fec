"""Control flow of SASS: basic blocks, and the loops that they form."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from functools import cached_property

from mxfp8fa.timing.sass import Function, Instruction


@dataclass(eq=False)
class Block:
    """Instructions that run one after another.

    Attributes:
        number: its place in the function.
        instructions: by address.
        successors, predecessors: numbers of blocks.
    """

    number: int
    instructions: list[Instruction]
    successors: list[int] = field(default_factory=list)
    predecessors: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        header: number of the block that every turn starts with.
        blocks: numbers of all its blocks, inner loops included.
    """

    header: int
    blocks: frozenset[int]


@dataclass
class Graph:
    """The blocks of a function."""

    blocks: list[Block]

    @classmethod
    def of(cls, function: Function) -> Graph:
        """Cut a function into blocks."""
        code = function.instructions
        starts = {code[0].address, *(t for i in code for t in i.targets)}
        for this, following in itertools.pairwise(code):
            if this.targets or not this.falls_through:
                starts.add(following.address)
        blocks: list[Block] = []
        for instruction in code:
            if instruction.address in starts:
                blocks.append(Block(len(blocks), []))
            blocks[-1].instructions.append(instruction)
        first = {block.instructions[0].address: block.number for block in blocks}
        for block in blocks:
            last = block.instructions[-1]
            if last.mnemonic != "CALL":
                block.successors += [first[t] for t in last.targets]
            if last.falls_through and block.number + 1 < len(blocks):
                block.successors.append(block.number + 1)
            for successor in block.successors:
                blocks[successor].predecessors.append(block.number)
        return cls(blocks)

    @cached_property
    def dominators(self) -> list[set[int]]:
        """For each block, the blocks that every path to it passes (itself included); empty if it cannot be reached."""
        order = self._reverse_postorder()
        everything = set(order)
        dominators = [everything if b.number in everything else set() for b in self.blocks]
        dominators[0] = {0}
        changed = True
        while changed:
            changed = False
            for number in order[1:]:
                before = [dominators[p] for p in self.blocks[number].predecessors if p in everything]
                new = set.intersection(*before) | {number}
                if new != dominators[number]:
                    dominators[number], changed = new, True
        return dominators

    def _reverse_postorder(self) -> list[int]:
        order: list[int] = []
        seen, stack = {0}, [(0, iter(self.blocks[0].successors))]
        while stack:
            number, rest = stack[-1]
            following = next((s for s in rest if s not in seen), None)
            if following is None:
                order.append(number)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.blocks[following].successors)))
        return order[::-1]

    @cached_property
    def loops(self) -> list[Loop]:
        """Natural loops, those with one header as one."""
        bodies: dict[int, set[int]] = {}
        for block in self.blocks:
            for header in block.successors:
                if header in self.dominators[block.number]:
                    bodies.setdefault(header, {header}).update(self._body(header, block.number))
        return [Loop(header, frozenset(body)) for header, body in sorted(bodies.items())]

    def _body(self, header: int, latch: int) -> set[int]:
        body, stack = {header}, [latch]
        while stack:
            number = stack.pop()
            if number not in body:
                body.add(number)
                stack += self.blocks[number].predecessors
        return body

    def inner(self, loop: Loop) -> list[Loop]:
        """The loops inside a loop."""
        return [other for other in self.loops if other.header != loop.header and other.blocks < loop.blocks]

    def shortest_turn(self, loop: Loop) -> list[Instruction]:
        """The instructions of a turn that takes no detour: masks and rare cases that a branch skips are not among them.

        Loops inside the loop are passed once and count nothing.
        """
        inside = {number for other in self.inner(loop) for number in other.blocks}
        cost = {n: 0 if n in inside else len(self.blocks[n].instructions) for n in loop.blocks}
        queue, reached = [(cost[loop.header], [loop.header])], set()
        while queue:
            total, path = heapq.heappop(queue)
            if loop.header in self.blocks[path[-1]].successors:
                turn = sorted(set(path) - inside)
                return [i for number in turn for i in self.blocks[number].instructions]
            if path[-1] not in reached:
                reached.add(path[-1])
                for following in set(self.blocks[path[-1]].successors) & loop.blocks - reached:
                    heapq.heappush(queue, (total + cost[following], [*path, following]))
        raise ValueError(f"no way back to block {loop.header} within its loop")
