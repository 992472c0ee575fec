"""What every instruction of a kernel reads and writes, which registers live on, and where turns may end.

Liveness is that of a single thread: a thread's registers lie in its own lane, so what another group of the warp still
needs is never in the way. Only shfl and its like read lanes that may be elsewhere or have exited, which the ISA leaves
undefined: what they read is kept everywhere, so that it is the same as without machine code. Whatever is not understood
counts as reading everything it names and replacing nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mxfp8fa.emulator.compiled.translate import Form, form_of, traits_of
from mxfp8fa.emulator.machine.binding import flatten, match, registers_in, registers_of
from mxfp8fa.emulator.ptx import syntax

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import Program


class Analysis:
    """The forms, the control flow and the live registers of a kernel.

    Attributes:
        forms: per instruction its form, None where it is not register-to-register.
        live_after: per instruction the registers (a bit set) that some continuation reads before it replaces them.
    """

    def __init__(self, program: Program):
        self.instructions = program.instructions
        self.forms: list[Form | None] = [form_of(i, program) for i in self.instructions]
        uses = [self._uses(i) for i in self.instructions]
        self.reads = [_bits(r) for r, _ in uses]
        self.replaces = [_bits(w) for _, w in uses]
        always = 1 << program.carry_register
        for form in self.forms:
            if form is not None and traits_of(form).gathers:
                always |= _bits(registers_in([operand for operand, _ in form.inputs]))
        self.live_after = self._liveness(always)

    def _uses(self, instruction: syntax.Instruction) -> tuple[set[int], set[int]]:
        """(registers read, registers replaced in every executing thread)."""
        found = match(instruction)
        named = set(registers_of(instruction))
        if found is None:
            return named, set()
        definition, modifiers = found
        if definition.kind == "control":
            if instruction.opcode != "mov":
                return named, set()
            outputs = set(registers_in(instruction.operands[:1]))
            inputs = set(registers_in(instruction.operands[1:]))
        else:
            outputs = set(registers_in([o for _, o, _ in flatten(instruction, definition, modifiers, outputs=True)]))
            inputs = set(registers_in([o for _, o, _ in flatten(instruction, definition, modifiers, outputs=False)]))
        if instruction.guard is None:
            return inputs, outputs
        return inputs | outputs | {instruction.guard.register.id}, set()

    def successors(self, pc: int) -> list[int]:
        """Instructions that may follow."""
        i = self.instructions[pc]
        next_ = [pc + 1]
        if i.opcode in ("ret", "exit", "trap"):
            return [] if i.guard is None else next_
        if i.opcode == "bra":
            target = [label.index for label in i.operands if isinstance(label, syntax.Label)]
            return target if i.guard is None else target + next_
        if i.opcode == "brx":
            lists = [b for b in i.operands if isinstance(b, syntax.BranchTargets)]
            return [label.index for b in lists for label in b.labels] + next_
        return next_

    def _liveness(self, always: int) -> list[int]:
        count = len(self.instructions)
        before = [always] * (count + 1)
        after = [always] * count
        predecessors: list[list[int]] = [[] for _ in range(count + 1)]
        for pc in range(count):
            for s in self.successors(pc):
                predecessors[s].append(pc)
        waiting = list(range(count))  # popped from the end: backwards through the kernel
        queued = [True] * count
        while waiting:
            pc = waiting.pop()
            queued[pc] = False
            live = always
            for s in self.successors(pc):
                live |= before[s]
            after[pc] = live
            new = live & ~self.replaces[pc] | self.reads[pc]
            if new != before[pc]:
                before[pc] = new
                for p in predecessors[pc]:
                    if not queued[p]:
                        queued[p] = True
                        waiting.append(p)
        return after


def _bits(registers: Iterable[int]) -> int:
    found = 0
    for r in registers:
        found |= 1 << r
    return found
