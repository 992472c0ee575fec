"""One compiled function per region: a run of register-to-register instructions without a branch into it.

A region reads the rows of its registers, computes, and writes those that are still needed. It starts only if no register
it reads is poison in an active lane; otherwise it returns REFUSED and the Python steps follow the poison bit by bit.

Instructions that work across lanes (shfl, vote, elect, redux) are regions by themselves. Their functions do not know the
registers, which the node names, so that all instructions of one form share one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mxfp8fa.emulator.compiled.emit import ELEMENT, WARP_LANES, Emitter
from mxfp8fa.emulator.compiled.graph import Node
from mxfp8fa.emulator.compiled.layout import RegisterLayout
from mxfp8fa.emulator.compiled.state import REFUSED, NodeField, State
from mxfp8fa.emulator.compiled.translate import Form, Translator
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.values import BITS, Value

LANES = 8  # lanes of a vector: 32 bits each fill a register of AVX2

# Whether registers are poison in an active lane, and that they are not any more; `list` holds their numbers.
POISON_FUNCTIONS = """
define internal i32 @poisoned(ptr %poison, ptr %list, i64 %count) noinline {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %total = phi i32 [ 0, %entry ], [ %total.next, %next ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %next, label %done
next:
  %at = getelementptr i32, ptr %list, i64 %k
  %register = load i32, ptr %at
  %index = zext i32 %register to i64
  %word.at = getelementptr i32, ptr %poison, i64 %index
  %word = load i32, ptr %word.at
  %total.next = or i32 %total, %word
  %k.next = add i64 %k, 1
  br label %loop
done:
  ret i32 %total
}
define internal void @cleanse(ptr %poison, ptr %list, i64 %count, i32 %mask) noinline {
entry:
  %others = xor i32 %mask, -1
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %next, label %done
next:
  %at = getelementptr i32, ptr %list, i64 %k
  %register = load i32, ptr %at
  %index = zext i32 %register to i64
  %word.at = getelementptr i32, ptr %poison, i64 %index
  %word = load i32, ptr %word.at
  %kept = and i32 %word, %others
  store i32 %kept, ptr %word.at
  %k.next = add i64 %k, 1
  br label %loop
done:
  ret void
}
"""


@dataclass(frozen=True)
class Function:
    """IR of a compiled region.

    Attributes:
        name: of the function.
        text: its definition.
        declarations: what it needs declared.
        calls: graphs whose functions it calls.
        lanes: of its vectors.
    """

    name: str
    text: str
    declarations: frozenset[str]
    calls: dict[int, tuple[Value, tuple[str, ...]]]
    lanes: int


def region_function(translator: Translator, forms: Sequence[Form], live: int, layout: RegisterLayout) -> Function:
    """The function of register-to-register instructions that stay within their lanes.

    Args:
        translator: a fresh one.
        forms: the instructions, in order.
        live: registers (a bit set) that are needed after them.
        layout: of the registers.
    """
    for form in forms:
        translator.add(form)
    first, last = forms[0].instruction.index, forms[-1].instruction.index
    written = {r: n for r, n in translator.now.items() if live >> r & 1}
    body = _Body(LANES, layout, translator)
    stores = body.compute(written)
    name = f"region_{first}"
    lines = [
        _list(f"{name}.reads", translator.before),
        _list(f"{name}.writes", written),
        f"define i64 @{name}(ptr %state, ptr %node) {{",
        "entry:",
        *_entry(f"@{name}.reads", len(translator.before)),
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %start ], [ %next, %end ]",
        "  %shift = trunc i64 %i to i32",
        "  %shifted = lshr i32 %mask, %shift",
        "  %active = trunc i32 %shifted to i8",
        "  %none = icmp eq i8 %active, 0",
        "  br i1 %none, label %end, label %body",
        "body:",
        f"  %lanes = bitcast i8 %active to <{LANES} x i1>",
        *[
            f"  %at{n} = mul i64 %i, {n}\n  %rows{n} = getelementptr i8, ptr %registers, i64 %at{n}"
            for n in (1, 2, 4, 8)
        ],
        *body.emitter.lines,
        *stores,
        "  br label %end",
        "end:",
        f"  %next = add i64 %i, {LANES}",
        f"  %done = icmp eq i64 %next, {WARP_LANES}",
        "  br i1 %done, label %finish, label %loop",
        "finish:",
        f"  call void @cleanse(ptr %poison, ptr @{name}.writes, i64 {len(written)}, i32 %mask)",
        f"  ret i64 {last + 1}",
        "}",
    ]
    return Function(name, "\n".join(lines), frozenset(body.emitter.intrinsics), translator.calls, LANES)


# -- across lanes -----------------------------------------------------------------------------------------------------


class Slots:
    """The registers of one instruction, numbered in the order in which it names them.

    Attributes:
        form: the instruction with these numbers in place of its registers'.
        registers: by slot.
        key: equal for instructions that can share a function.
    """

    def __init__(self, form: Form):
        self.registers: list[syntax.Register] = []
        guard = form.instruction.guard
        if guard is not None:
            guard = syntax.Guard(self._slot(guard.register), guard.negated)
        instruction = replace(form.instruction, guard=guard)
        inputs = tuple((self._renamed(operand), t) for operand, t in form.inputs)
        outputs = tuple((self._renamed(operand), t) for operand, t in form.outputs)
        self.form = replace(form, instruction=instruction, inputs=inputs, outputs=outputs)
        shape = [(str(o) if not isinstance(o, syntax.Register) else f"{o.type}{o.id}", t) for o, t in inputs + outputs]
        self.key = (instruction.mnemonic, str(guard and (guard.register.id, guard.negated)), tuple(shape))

    def _slot(self, register: syntax.Register) -> syntax.Register:
        known = [r.id for r in self.registers]
        if register.id not in known:
            self.registers.append(register)
            known.append(register.id)
        return syntax.Register(f"slot{known.index(register.id)}", register.type, known.index(register.id))

    def _renamed(self, operand: Any) -> Any:
        if isinstance(operand, syntax.Register):
            return self._slot(operand)
        if isinstance(operand, syntax.Negated):
            return syntax.Negated(self._slot(operand.register))
        return operand


def collective_function(name: str, translator: Translator, slots: Slots) -> Function:
    """The function of an instruction that works across the lanes of the warp.

    It runs only when every lane that its membermask names is here and all name the same lanes. The node holds, for each
    slot, the number of the register and the offset of its row.
    """
    form = slots.form
    guard = form.instruction.guard
    member = None if form.membermask is None else translator.read(*form.inputs[form.membermask])
    condition = None if guard is None else translator.predicate(guard)
    written = {o.id: n for o, n in translator.results(form) if isinstance(o, syntax.Register)}
    body = _Collective(translator, slots)
    e = body.emitter
    body.emit([n for n in (condition, member) if n is not None])
    word = "-1" if condition is None else e.put(f"bitcast <32 x i1> {body.names[condition.number]} to i32")
    e.lines.append(f"  %mask = and i32 %all, {word}")
    e.lines.append("  %idle = icmp eq i32 %mask, 0")
    e.lines.append(f"  br i1 %idle, label %skip, label %{'body' if member is None else 'check'}")
    if member is not None:
        e.lines.append("check:")
        _check_members(e, body.names[member.number])
    e.lines += ["body:", "  %lanes = bitcast i32 %mask to <32 x i1>"]
    stores = body.compute(written)
    next_ = [
        f"  %next.at = getelementptr i64, ptr %node, i64 {int(NodeField.NEXT)}",
        "  %next = load i64, ptr %next.at",
        "  ret i64 %next",
    ]
    reads, writes = sorted(translator.before), sorted(written)
    lines = [
        f"define i64 @{name}(ptr %state, ptr %node) {{",
        "entry:",
        *[f"  %scratch{n} = alloca [32 x i{8 * n}], align 64" for n in (1, 2, 4, 8)],
        *_pick("reads", reads),
        *_pick("writes", writes),
        *_entry("%reads", len(reads), "all"),
        *_slot_rows(len(slots.registers)),
        *e.lines,
        *stores,
        f"  call void @cleanse(ptr %poison, ptr %writes, i64 {len(writes)}, i32 %mask)",
        "  br label %skip",
        "skip:",
        *next_,
        "}",
    ]
    return Function(name, "\n".join(lines), frozenset(e.intrinsics), translator.calls, WARP_LANES)


def _pick(name: str, slots: Sequence[int]) -> list[str]:
    """The register numbers of some slots as a list on the stack."""
    lines = [f"  %{name} = alloca [{max(len(slots), 1)} x i32]"]
    for i, slot in enumerate(slots):
        lines += [
            f"  %{name}.{slot}.at = getelementptr i64, ptr %node, i64 {int(NodeField.SLOT) + slot}",
            f"  %{name}.{slot}.word = load i64, ptr %{name}.{slot}.at",
            f"  %{name}.{slot}.high = lshr i64 %{name}.{slot}.word, 32",
            f"  %{name}.{slot} = trunc i64 %{name}.{slot}.high to i32",
            f"  %{name}.{slot}.to = getelementptr i32, ptr %{name}, i64 {i}",
            f"  store i32 %{name}.{slot}, ptr %{name}.{slot}.to",
        ]
    return lines


def _slot_rows(count: int) -> list[str]:
    lines = []
    for slot in range(count):
        lines += [
            f"  %slot{slot}.at = getelementptr i64, ptr %node, i64 {int(NodeField.SLOT) + slot}",
            f"  %slot{slot}.word = load i64, ptr %slot{slot}.at",
            f"  %slot{slot}.offset = and i64 %slot{slot}.word, {0xFFFFFFFF}",
            f"  %slot{slot} = getelementptr i8, ptr %registers, i64 %slot{slot}.offset",
        ]
    return lines


def _check_members(e: Emitter, members: str) -> None:
    """Go on only if all active lanes have the same membermask, are in it, and no live lane in it is elsewhere."""
    e.intrinsics.add("declare i32 @llvm.cttz.i32(i32, i1)")
    e.lines += [
        "  %first = call i32 @llvm.cttz.i32(i32 %mask, i1 false)",
        f"  %members = extractelement <32 x i32> {members}, i32 %first",
        "  %members.one = insertelement <32 x i32> undef, i32 %members, i32 0",
        "  %members.all = shufflevector <32 x i32> %members.one, <32 x i32> undef, <32 x i32> zeroinitializer",
        f"  %same = icmp eq <32 x i32> {members}, %members.all",
        "  %same.word = bitcast <32 x i1> %same to i32",
        "  %both = and i32 %same.word, %members",
        "  %outside = xor i32 %both, -1",
        "  %wrong = and i32 %outside, %mask",
        f"  %live.at = getelementptr i64, ptr %state, i64 {int(State.LIVE)}",
        "  %live.word = load i64, ptr %live.at",
        "  %live = trunc i64 %live.word to i32",
        "  %away = xor i32 %all, -1",
        "  %named = and i32 %members, %live",
        "  %missing = and i32 %named, %away",
        "  %bad = or i32 %wrong, %missing",
        "  %fine = icmp eq i32 %bad, 0",
        "  br i1 %fine, label %body, label %refused",
    ]


# -- text -------------------------------------------------------------------------------------------------------------


def _list(name: str, registers: Iterable[int]) -> str:
    """A constant list of register numbers."""
    numbers = sorted(registers) or [0]
    return f"@{name} = internal constant [{len(numbers)} x i32] [{', '.join(f'i32 {r}' for r in numbers)}]"


def _entry(reads: str, count: int, mask: str = "mask") -> list[str]:
    """Load the state; refuse if a register that is read is poison in an active lane."""
    return [
        "  %registers = load ptr, ptr %state",
        f"  %poison.at = getelementptr i64, ptr %state, i64 {int(State.POISON)}",
        "  %poison = load ptr, ptr %poison.at",
        f"  %mask.at = getelementptr i64, ptr %state, i64 {int(State.MASK)}",
        "  %mask.word = load i64, ptr %mask.at",
        f"  %{mask} = trunc i64 %mask.word to i32",
        f"  %bad.lanes = call i32 @poisoned(ptr %poison, ptr {reads}, i64 {count})",
        f"  %bad.active = and i32 %bad.lanes, %{mask}",
        "  %clean = icmp eq i32 %bad.active, 0",
        "  br i1 %clean, label %start, label %refused",
        "refused:",
        f"  ret i64 {REFUSED}",
        "start:",
    ]


class _Body:
    """Emits nodes over vectors of `lanes` lanes.

    Attributes:
        names: of the nodes emitted, by number.
    """

    def __init__(self, lanes: int, layout: RegisterLayout | None, translator: Translator):
        self.emitter = Emitter(lanes)
        self.layout = layout
        self.translator = translator
        self.names: dict[int, str] = {}

    def compute(self, written: dict[int, Node]) -> list[str]:
        """Emit what the written registers need; returns the stores, which keep inactive lanes."""
        self.emit(written.values())
        mark = len(self.emitter.lines)
        for register, node in sorted(written.items()):
            self._store(register, node)
        stores = self.emitter.lines[mark:]
        del self.emitter.lines[mark:]
        return stores

    def emit(self, nodes: Iterable[Node]) -> None:
        """Emit nodes and what they need, in the order in which they were made."""
        needed: dict[int, Node] = {}
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node.number not in needed and node.number not in self.names:
                needed[node.number] = node
                waiting += node.args
        for number in sorted(needed):
            node = needed[number]
            operands = [self.names[a.number] for a in node.args]
            leaf = getattr(self, f"_{node.op}", None)
            self.names[number] = leaf(node, operands) if leaf else self.emitter.operation(node, operands)

    def _row(self, register: int) -> tuple[str, int]:
        """(pointer to the lanes of a register, bytes of a lane)."""
        assert self.layout is not None
        size = self.layout.dtypes[register].itemsize
        return self.emitter.put(f"getelementptr i8, ptr %rows{size}, i64 {self.layout.offsets[register]}"), size

    def _register(self, node: Node, operands: Sequence[str]) -> str:
        at, size = self._row(node.attr)
        e = self.emitter
        value = e.put(f"load {e.vector(f'i{8 * size}')}, ptr {at}, align {min(size * e.lanes, 64)}")
        return value if node.type != "pred" else e.put(f"icmp ne {e.vector('i8')} {value}, zeroinitializer")

    def _store(self, register: int, node: Node) -> None:
        e = self.emitter
        value = e.opaque(node, self.names[node.number])
        at, size = self._row(register)
        t, align = e.vector(f"i{8 * size}"), min(size * e.lanes, 64)
        if node.type == "pred":
            value = e.put(f"zext {e.vector('i1')} {value} to {t}")
        old = e.put(f"load {t}, ptr {at}, align {align}")
        kept = e.put(f"select {e.vector('i1')} %lanes, {t} {value}, {t} {old}")
        e.lines.append(f"  store {t} {kept}, ptr {at}, align {align}")

    def _rank(self, node: Node, operands: Sequence[str]) -> str:
        e = self.emitter
        at = e.put(f"getelementptr i64, ptr %state, i64 {int(State.RANK)}")
        return self._splat(e.put(f"trunc i64 {e.put(f'load i64, ptr {at}')} to i32"), "i32")

    def _splat(self, scalar: str, element: str) -> str:
        e = self.emitter
        t = e.vector(element)
        one = e.put(f"insertelement {t} undef, {element} {scalar}, i32 0")
        return e.put(f"shufflevector {t} {one}, {t} undef, <{e.lanes} x i32> zeroinitializer")

    def _lane(self, node: Node, operands: Sequence[str]) -> str:
        e = self.emitter
        first = f"<{', '.join(f'i32 {i}' for i in range(e.lanes))}>"
        if e.lanes == WARP_LANES:
            return first
        return e.put(f"add {e.vector('i32')} {self._splat('%shift', 'i32')}, {first}")


class _Collective(_Body):
    """Emits an instruction over all lanes of the warp; its registers are slots."""

    def __init__(self, translator: Translator, slots: Slots):
        super().__init__(WARP_LANES, None, translator)
        self._sizes = [1 if r.type == "pred" else r.bits // 8 for r in slots.registers]

    def _row(self, register: int) -> tuple[str, int]:
        return f"%slot{register}", self._sizes[register]

    def _ballot(self, node: Node, operands: Sequence[str]) -> str:
        e = self.emitter
        word = e.put(f"bitcast <32 x i1> {operands[0]} to i32")
        return self._splat(e.put(f"and i32 {word}, %mask"), "i32")

    def _gather(self, node: Node, operands: Sequence[str]) -> str:
        e, (source, index) = self.emitter, node.args
        element = ELEMENT[source.type]
        if index.op == "const":
            return self._splat(e.put(f"extractelement <32 x {element}> {operands[0]}, i32 {index.attr}"), element)
        value, size = operands[0], max(BITS[source.type] // 8, 1)
        if source.type == "pred":
            value, element = e.put(f"zext <32 x i1> {value} to <32 x i8>"), "i8"
        e.lines.append(f"  store <32 x {element}> {value}, ptr %scratch{size}, align 64")
        found = "undef"
        for i in range(WARP_LANES):
            at = e.put(f"extractelement <32 x i32> {operands[1]}, i32 {i}")
            inside = e.put(f"and i32 {at}, 31")
            place = e.put(f"getelementptr {element}, ptr %scratch{size}, i32 {inside}")
            one = e.put(f"load {element}, ptr {place}")
            found = e.put(f"insertelement <32 x {element}> {found}, {element} {one}, i32 {i}")
        return found if source.type != "pred" else e.put(f"trunc <32 x i8> {found} to <32 x i1>")
