"""Which instructions of a kernel have compiled code, and when it is made.

A kernel starts with its Python steps. Runs of register-to-register instructions that are executed again and again are
compiled, several at a time; short kernels never pay for a compiler. What is compiled stays with the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.compiled.analysis import Analysis
from mxfp8fa.emulator.compiled.direct import NO_REGISTER, Direct, direct_form
from mxfp8fa.emulator.compiled.emit import exp2_function, graph_function
from mxfp8fa.emulator.compiled.jit import the_jit
from mxfp8fa.emulator.compiled.layout import RegisterLayout
from mxfp8fa.emulator.compiled.multiply import Products
from mxfp8fa.emulator.compiled.region import POISON_FUNCTIONS, Function, Slots, collective_function, region_function
from mxfp8fa.emulator.compiled.runtime import address
from mxfp8fa.emulator.compiled.state import NODE_WORDS, NodeField
from mxfp8fa.emulator.compiled.translate import Form, NotCompiled, Translator, traits_of
from mxfp8fa.emulator.ptx import syntax

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import Program

PATIENCE_STEPS = 1000  # Python steps of a program before it is analysed
HOT, WARM = 12, 4  # executions after which a region is compiled, or joins others that are
LONGEST = 400  # instructions of a region; code generation takes more than linear time in its length


class Region:
    """A run of register-to-register instructions.

    Attributes:
        first, length: which.
        heat: executions by Python steps.
        address: of its code, 0 until it is compiled.
        slots: its registers, where it works across lanes.
    """

    def __init__(self, first: int, length: int):
        self.first, self.length = first, length
        self.heat = 0
        self.address = 0
        self.slots: Slots | None = None


class Engine:
    """Compiled code of one program.

    Attributes:
        layout: of a warp's registers.
        nodes: one row of NodeField words per instruction; FUNCTION is 0 where only the Python step exists.
        ready: per instruction, whether its node has a function.
        products: what the descriptors of tcgen05.mma mean.
        regions: by their first instruction; empty until the program has run for a while.
    """

    def __init__(self, program: Program):
        self.program = program
        self.layout = RegisterLayout(program.blank_registers)
        self.nodes = np.zeros((len(program.steps) + 1, NODE_WORDS), np.int64)
        self.ready = bytearray(len(program.steps) + 1)
        self.regions: dict[int, Region] = {}
        self.products = Products()
        self._analysis: Analysis | None = None
        self._bound = list(program.steps)
        self._changed: set[int] = set()
        self._direct: list[Direct | None] = []
        self._slots: dict[tuple[int, ...], np.ndarray] = {}
        self._named: dict[int, frozenset[int]] = {}
        self._steps = 0

    def begin(self) -> None:
        """Prepare a launch. Steps that were replaced since binding (mutation) keep their region in Python."""
        self.nodes[:, NodeField.RUNS] = 0
        changed = {pc for pc, (a, b) in enumerate(zip(self.program.steps, self._bound, strict=True)) if a is not b}
        if changed != self._changed:
            self._changed = changed
            if self._analysis is not None:
                self._install_all()

    def add_counts(self, counts: list[int]) -> None:
        """Add the executions by compiled code to the program's counts."""
        for pc in np.nonzero(self.nodes[:, NodeField.RUNS])[0].tolist():
            runs = int(self.nodes[pc, NodeField.RUNS])
            for i in range(pc, pc + int(self.nodes[pc, NodeField.COUNT])):
                counts[i] += runs
        self.nodes[:, NodeField.RUNS] = 0

    # -- analysis -----------------------------------------------------------------------------------------------------

    def stepped(self, count: int) -> None:
        """Python executed so many steps."""
        self._steps += count
        if self._analysis is None and self._steps > PATIENCE_STEPS:
            self._analysis = Analysis(self.program)
            self.regions = self._find_regions(self._analysis)
            self._direct = [
                direct_form(i, live, self.program, self.layout) if form is None else None
                for i, form, live in zip(
                    self.program.instructions, self._analysis.forms, self._analysis.live_after, strict=True
                )
            ]
            self._install_all()

    def _find_regions(self, analysis: Analysis) -> dict[int, Region]:
        """Cut the kernel at boundaries, at instructions without translation and at the longest length."""
        regions: dict[int, Region] = {}
        run: list[int] = []

        def close() -> None:
            if run:
                regions[run[0]] = Region(run[0], len(run))
                run.clear()

        for pc, form in enumerate(analysis.forms):
            if not self.program.interior[pc] or len(run) >= LONGEST:
                close()
            if form is None or not _translatable(form, self.program):
                close()
            elif traits_of(form).other_lanes:
                close()
                run.append(pc)
                close()
            else:
                run.append(pc)
        close()
        return regions

    def named_until_boundary(self, pc: int) -> frozenset[int]:
        """Registers named by the instructions from pc to the next place where a turn may end."""
        if pc not in self._named:
            end = pc + 1
            while self.program.interior[end]:
                end += 1
            self._named[pc] = frozenset().union(*(self.program.registers_named(i) for i in range(pc, end)))
        return self._named[pc]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _install_all(self) -> None:
        self.nodes[:, NodeField.FUNCTION] = 0
        self.ready[:] = bytes(len(self.ready))
        self.nodes[:-1, NodeField.TURN] = [not inside for inside in self.program.interior[: len(self.nodes) - 1]]
        for pc, instruction in enumerate(self.program.instructions):
            if pc in self._changed:
                continue
            if instruction.opcode == "bra":
                self._install_branch(pc, instruction)
            elif (direct := self._direct[pc]) is not None:
                self._install_direct(pc, direct, instruction.guard)
        for region in self.regions.values():
            self._install(region)

    def _node(self, pc: int, function: int, count: int) -> np.ndarray:
        node = self.nodes[pc]
        node[NodeField.FUNCTION], node[NodeField.COUNT], node[NodeField.NEXT] = function, count, pc + count
        self.ready[pc] = 1
        return node

    def _install_branch(self, pc: int, instruction: syntax.Instruction) -> None:
        (label,) = instruction.operands
        assert isinstance(label, syntax.Label)
        guard = instruction.guard
        node = self._node(pc, address("jump" if guard is None else "branch"), 1)
        node[NodeField.TARGET] = label.index
        if guard is not None:
            node[NodeField.GUARD] = guard.register.id
            node[NodeField.GUARD_ROW] = self.layout.offsets[guard.register.id]
            node[NodeField.NEGATED] = guard.negated

    def _install_direct(self, pc: int, direct: Direct, guard: syntax.Guard | None) -> None:
        node = self._node(pc, address(direct.function), 1)
        slots = self._slots.setdefault(direct.slots, np.array(direct.slots or (0,), np.int64))
        node[NodeField.LIST], node[NodeField.WORDS] = slots.ctypes.data, direct.words
        node[NodeField.OFFSET], node[NodeField.CONSTANT] = direct.offset, direct.constant
        node[NodeField.EXPECT] = direct.expect
        node[NodeField.GUARD_SLOT] = NO_REGISTER if guard is None else self.layout.slot(guard.register.id)
        node[NodeField.GUARD_NEGATED] = guard is not None and guard.negated

    def _install(self, region: Region) -> None:
        if region.address and not any(pc in self._changed for pc in range(region.first, region.first + region.length)):
            node = self._node(region.first, region.address, region.length)
            for i, register in enumerate(region.slots.registers if region.slots else ()):
                node[NodeField.SLOT + i] = self.layout.slot(register.id)

    # -- compilation --------------------------------------------------------------------------------------------------

    def heated(self, region: Region) -> None:
        """A region was executed by Python steps once more."""
        region.heat += 1
        if region.heat >= HOT and not region.address:
            self._compile([r for r in self.regions.values() if r.heat >= WARM and not r.address])

    def _compile(self, regions: Sequence[Region]) -> None:
        functions = []
        for region in regions:
            form = self._form(region.first)
            if traits_of(form).other_lanes:
                region.slots = Slots(form)
                region.address = the_collectives().address(region.slots, self.program)
                self._install(region)
            else:
                functions.append((region, self._function(region)))
        compiled = load_functions([f for _, f in functions])
        for (region, _), found in zip(functions, compiled, strict=True):
            region.address = found
            self._install(region)

    def _form(self, pc: int) -> Form:
        assert self._analysis is not None
        form = self._analysis.forms[pc]
        assert form is not None, "regions consist of instructions that have a form"
        return form

    def _function(self, region: Region) -> Function:
        assert self._analysis is not None
        last = region.first + region.length - 1
        forms = [self._form(pc) for pc in range(region.first, last + 1)]
        return region_function(Translator(self.program), forms, self._analysis.live_after[last], self.layout)


class Collectives:
    """Functions of instructions that work across lanes, shared by all programs."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def address(self, slots: Slots, program: Program) -> int:
        """The function for an instruction's slots."""
        found = self._known.get(slots.key)
        if found is None:
            function = collective_function(f"collective_{len(self._known)}", Translator(program), slots)
            (found,) = load_functions([function])
            self._known[slots.key] = found
        return found


@cache
def the_collectives() -> Collectives:
    """Those of this process."""
    return Collectives()


def load_functions(functions: Sequence[Function]) -> list[int]:
    """Compile functions together; their addresses."""
    if not functions:
        return []
    texts, declarations = [POISON_FUNCTIONS], {d for f in functions for d in f.declarations}
    for lanes in {f.lanes for f in functions}:
        calls = {key: graph for f in functions if f.lanes == lanes for key, graph in f.calls.items()}
        parts = [exp2_function(lanes)] + [graph_function(key, *graph, lanes) for key, graph in calls.items()]
        texts += [text for text, _ in parts]
        declarations |= {d for _, needed in parts for d in needed}
    jit = the_jit()
    return jit.load(jit.compile([*texts, *(f.text for f in functions)], declarations), [f.name for f in functions])


def _translatable(form: Form, program: Program) -> bool:
    """Whether an instruction's graph and all of its operands have a translation."""
    if not traits_of(form).translatable:
        return False
    translator = Translator(program)
    try:
        for operand, t in form.inputs:
            for element in operand.elements if isinstance(operand, syntax.Vector) else [operand]:
                translator.read(element, t)
    except NotCompiled:
        return False
    named = [e for o, _ in form.outputs for e in (o.elements if isinstance(o, syntax.Vector) else [o])]
    return all(not isinstance(o, syntax.Register) or o.type == "pred" or o.bits <= 64 for o in named)


def engine_of(program: Program) -> Engine:
    """The engine of a program, made on first use."""
    if program.engine is None:
        program.engine = Engine(program)
    return program.engine
