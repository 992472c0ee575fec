"""From an instruction to the nodes of its results: operands as `machine.binding` reads them, the definition's own graph.

What cannot be expressed here (a special register, a function that is computed in decimal arithmetic) raises
`NotCompiled`; the machine then executes that instruction by its Python step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.compiled.graph import Graph, Node
from mxfp8fa.emulator.isa import trace
from mxfp8fa.emulator.isa.registry import Definition
from mxfp8fa.emulator.machine.binding import flatten, immediate_bits, match
from mxfp8fa.emulator.machine.memory import SHARED_RANK_SHIFT
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.values import BITS, Value, is_signed, value_type

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import Program

# Primitives without a translation: correctly rounded by way of decimal arithmetic, or of exact fractions.
PYTHON_ONLY = ("log2", "rsqrt", "tanh", "sin", "cos", "fma_sign")
OTHER_LANES = ("gather", "ballot")


class NotCompiled(Exception):
    """The instruction stays with its Python step."""


@dataclass(frozen=True)
class Form:
    """An instruction that only moves registers, understood.

    Attributes:
        instruction: it.
        definition, modifiers: None for a mov, which has no graph of its own.
        inputs, outputs: (operand, value type).
        membermask: position of the input that names the lanes taking part, or None.
    """

    instruction: syntax.Instruction
    definition: Definition | None
    modifiers: dict[str, Any]
    inputs: tuple[tuple[Any, str], ...]
    outputs: tuple[tuple[Any, str], ...]
    membermask: int | None = None


def form_of(instruction: syntax.Instruction, program: Program) -> Form | None:
    """The form of a register-to-register instruction; None for every other."""
    found = match(instruction)
    if found is None:
        return None
    definition, modifiers = found
    if definition.kind == "pure":
        inputs = flatten(instruction, definition, modifiers, outputs=False)
        outputs = flatten(instruction, definition, modifiers, outputs=True)
        name = definition.extra.get("membermask")
        position = None if name is None else [spec.name for spec, _, _ in inputs].index(name)
        carry = (syntax.Register("CC.CF", "pred", program.carry_register), "pred")
        reads = [(operand, t) for _, operand, t in inputs] + ([carry] if definition.extra.get("carry_in") else [])
        writes = [(operand, t) for _, operand, t in outputs] + ([carry] if definition.extra.get("carry_out") else [])
        return Form(instruction, definition, modifiers, tuple(reads), tuple(writes), position)
    if instruction.opcode == "mov" and "type" in modifiers:
        to, source = instruction.operands
        t = "pred" if modifiers["type"] == "pred" else f"u{BITS[value_type(modifiers['type'])]}"
        return Form(instruction, None, modifiers, ((source, t),), ((to, t),))
    return None


class Translator:
    """Translates the instructions of one region in order, keeping track of what each register holds.

    Attributes:
        graph: the region's nodes.
        now: what a register holds, where the region has written it.
        before: registers that are read before the region writes them, or kept where a guard fails.
        calls: graphs that are long enough for a function of their own, by the attr of the nodes that call them.
    """

    def __init__(self, program: Program):
        self.program = program
        self.graph = Graph()
        self.now: dict[int, Node] = {}
        self.before: set[int] = set()
        self.calls: dict[int, tuple[Value, tuple[str, ...]]] = {}

    def add(self, form: Form) -> None:
        """Execute an instruction symbolically."""
        guard = form.instruction.guard
        condition = None if guard is None else self.predicate(guard)
        for operand, value in self.results(form):
            if isinstance(operand, syntax.Sink):
                continue
            if condition is not None:
                value = self.graph.node("select", value.type, (condition, value, self.read_register(operand)))
            self.now[operand.id] = value

    def results(self, form: Form) -> list[tuple[Any, Node]]:
        """(operand, raw bits as wide as its register) of every output."""
        if form.definition is None:
            return self._moved(form)
        nodes, takes, types = trace.graph(form.definition, form.modifiers, len(form.inputs))
        arguments = [self.read(operand, t) for operand, t in form.inputs]
        if len(nodes) == 1 and is_long(nodes[0]):
            self.calls[id(nodes[0])] = nodes[0], tuple(map(raw_type, takes))
            values = [self.graph.node("call", raw_type(nodes[0].type), tuple(arguments), id(nodes[0]))]
        else:
            values = self.graph.apply(nodes, arguments)
        written = zip(form.outputs, values, types, strict=False)
        return [(operand, self._resized(operand, value, t)) for (operand, _), value, t in written]

    def _moved(self, form: Form) -> list[tuple[Any, Node]]:
        ((source, t),), ((to, _),) = form.inputs, form.outputs
        if isinstance(source, syntax.Vector):
            part = f"u{BITS[t] // len(source.elements)}"
            parts = [self.read(e, part) for e in source.elements]
            return [(to, self._resized(to, self.graph.join(t, parts), t))]
        whole = self.read(source, t)
        if isinstance(to, syntax.Vector):
            part = f"u{BITS[t] // len(to.elements)}"
            return [(e, self._resized(e, self.graph.part(whole, part, i), part)) for i, e in enumerate(to.elements)]
        return [(to, self._resized(to, whole, t))]

    def _resized(self, operand: Any, value: Node, t: str) -> Node:
        """A result extended to the width of its register, by the sign of its type."""
        if isinstance(operand, syntax.Sink) or operand.type == "pred" or operand.bits == BITS[t]:
            return value
        if is_signed(t):
            value = self.graph.node("to", f"s{operand.bits}", (self.graph.node("bits", t, (value,)),))
            return self.graph.raw(value)
        return self.graph.node("to", f"u{operand.bits}", (value,))

    def predicate(self, guard: syntax.Guard) -> Node:
        """Where a guard holds."""
        value = self.read_register(guard.register)
        return self.graph.node("not", "pred", (value,)) if guard.negated else value

    def read(self, operand: Any, t: str) -> Node:
        """An operand as raw bits of type t."""
        raw = raw_type(t)
        if isinstance(operand, syntax.Negated):
            return self.graph.node("not", "pred", (self.read_register(operand.register),))
        if isinstance(operand, syntax.Register):
            return (
                self.graph.node("to", raw, (self.read_register(operand),))
                if raw != "pred"
                else self.read_register(operand)
            )
        if isinstance(operand, syntax.Immediate):
            return self.graph.const(immediate_bits(operand, t), raw)
        if isinstance(operand, syntax.Symbol) and operand.space == "shared":
            place = self.graph.const(self.program.address_of(operand), raw)
            rank = self.graph.node("to", raw, (self.graph.node("rank", "u32"),))
            moved = self.graph.node("shl", raw, (rank, self.graph.const(SHARED_RANK_SHIFT, raw)))
            return self.graph.node("add", raw, (place, moved))
        raise NotCompiled(f"operand {operand}")

    def read_register(self, register: syntax.Register) -> Node:
        """What a register holds."""
        found = self.now.get(register.id)
        if found is not None:
            return found
        if register.bits > 64:
            raise NotCompiled("128-bit register")
        self.before.add(register.id)
        return self.graph.register(register.id, "pred" if register.type == "pred" else f"u{register.bits}")


def raw_type(t: str) -> str:
    """The type of a value's raw bits."""
    return t if t == "pred" else f"u{BITS[t]}"


LONG = 10  # operations of a graph above which it becomes a function: generated once, and called


@dataclass(frozen=True)
class Traits:
    """What matters of a definition's graph: has it a translation, does it need other lanes, operations but for packing.

    Attributes:
        gathers: it reads values of other lanes, also of those that do not execute it.
    """

    translatable: bool
    other_lanes: bool
    operations: int
    gathers: bool = False


@cache
def _traits(nodes: tuple[Value, ...]) -> Traits:
    values = list(_all(nodes))
    return Traits(
        all(_has_translation(v) for v in values),
        any(v.op in OTHER_LANES for v in values),
        sum(not _only_moves(v) for v in values),
        any(v.op == "gather" for v in values),
    )


def _only_moves(value: Value) -> bool:
    """Whether an operation is likely to vanish in the region's graph: packing and unpacking."""
    return value.op in ("arg", "const", "bits", "shl", "shr", "or") or (value.op == "to" and value.type[0] == "u")


def traits_of(form: Form) -> Traits:
    """The traits of an instruction."""
    if form.definition is None:
        return Traits(True, False, 0)
    return _traits(tuple(trace.graph(form.definition, form.modifiers, len(form.inputs))[0]))


def is_long(node: Value) -> bool:
    """Whether a graph is worth a function of its own."""
    traits = _traits((node,))
    return traits.operations > LONG and not traits.other_lanes


def _has_translation(value: Value) -> bool:
    if value.op in PYTHON_ONLY:
        return False
    if value.op == "to" and {value.type, value.args[0].type} == {"f16", "f64"}:
        return False
    return value.type != "f16" or value.op in ("to", "bits", "const", "arg", "select")


def _all(nodes: Sequence[Value]) -> Iterator[Value]:
    seen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += value.args
