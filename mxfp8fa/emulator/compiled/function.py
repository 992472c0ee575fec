"""A writer of fixed LLVM functions: loops and refusals, so that runtime functions read from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

from mxfp8fa.emulator.compiled.state import REFUSED, NodeField, State

SCALARS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}


class FunctionWriter:
    """Writes one function; every method appends instructions and returns the name of a value.

    Attributes:
        declarations: intrinsics used.
        body: the finished text.
    """

    def __init__(self, name: str, parameters: str = "ptr %state, ptr %node", attributes: str = ""):
        self._head = f"define i64 @{name}({parameters}) {attributes}{{"
        self._lines = ["entry:"]
        self._block = "entry"
        self._count = 0
        self.declarations: set[str] = set()
        self.body = ""
        self._may_idle = False

    # -- plain ---------------------------------------------------------------------------------------------------------

    def put(self, text: str) -> str:
        """An instruction with a result."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def at(self, base: str, offset: str | int, element: str = "i8") -> str:
        """base + offset, in units of element."""
        return self.put(f"getelementptr {element}, ptr {base}, i64 {offset}")

    def load(self, element: str, base: str, offset: str | int = 0, unit: str = "i8") -> str:
        """The element at base + offset (in units of `unit`), of any alignment."""
        return self.put(f"load {element}, ptr {self.at(base, offset, unit)}, align 1")

    def store(self, element: str, value: str, base: str, offset: str | int = 0, unit: str = "i8") -> None:
        """Store an element at base + offset."""
        self.do(f"store {element} {value}, ptr {self.at(base, offset, unit)}, align 1")

    def word(self, field: IntEnum, element: str = "i64") -> str:
        """A word of the state or of the node."""
        record = "%state" if isinstance(field, State) else "%node"
        return self.put(f"load {element}, ptr {self.at(record, int(field), 'i64')}")

    def set_word(self, field: State, value: str) -> None:
        """Write a word of the state."""
        self.do(f"store i64 {value}, ptr {self.at('%state', int(field), 'i64')}")

    def add_word(self, field: State, value: str) -> None:
        """Add to a word of the state."""
        self.set_word(field, self.put(f"add i64 {self.word(field)}, {value}"))

    def call(self, name: str, result: str, *operands: str) -> str:
        """An intrinsic; operands with their types."""
        types = ", ".join(o.split()[0] if not o.startswith("<") else o[: o.index(">") + 1] for o in operands)
        self.declarations.add(f"declare {result} @{name}({types})")
        return self.put(f"call {result} @{name}({', '.join(operands)})")

    # -- control -------------------------------------------------------------------------------------------------------

    def start(self, label: str) -> None:
        """Begin the block of a label."""
        self._lines.append(f"{label}:")
        self._block = label

    def label(self) -> str:
        """A fresh label."""
        self._count += 1
        return f"l{self._count}"

    @contextmanager
    def loop(self, count: str | int, *, step: int = 1) -> Iterator[str]:
        """For an index from 0 below count (at least 0)."""
        head, body, end = self.label(), self.label(), self.label()
        index, before = f"%{head}.i", self._block
        self.do(f"br label %{head}")
        mark = len(self._lines)
        self.start(head)
        self._lines.append("")  # the phi, when it is known where the body ends
        more = self.put(f"icmp slt i64 {index}, {count}")
        self.do(f"br i1 {more}, label %{body}, label %{end}")
        self.start(body)
        yield index
        following = self.put(f"add i64 {index}, {step}")
        self._lines[mark + 1] = f"  {index} = phi i64 [ 0, %{before} ], [ {following}, %{self._block} ]"
        self.do(f"br label %{head}")
        self.start(end)

    @contextmanager
    def accumulate(self, count: str, type_: str, start: Sequence[str]) -> Iterator[tuple[str, list[str], dict[int, str]]]:
        """A loop that carries values: yields the index, the values, and a dict for the body to put the next ones in."""
        head, body, end = self.label(), self.label(), self.label()
        before, values = self._block, [f"%{head}.x{i}" for i in range(len(start))]
        self.do(f"br label %{head}")
        mark = len(self._lines)
        self.start(head)
        self._lines += [""] * (len(start) + 1)
        more = self.put(f"icmp slt i64 %{head}.i, {count}")
        self.do(f"br i1 {more}, label %{body}, label %{end}")
        self.start(body)
        update: dict[int, str] = {}
        yield f"%{head}.i", values, update
        following = self.put(f"add i64 %{head}.i, 1")
        self._lines[mark + 1] = f"  %{head}.i = phi i64 [ 0, %{before} ], [ {following}, %{self._block} ]"
        for i, (value, first) in enumerate(zip(values, start, strict=True)):
            self._lines[mark + 2 + i] = f"  {value} = phi {type_} [ {first}, %{before} ], [ {update[i]}, %{self._block} ]"
        self.do(f"br label %{head}")
        self.start(end)

    @contextmanager
    def lanes(self, mask: str) -> Iterator[str]:
        """For the lanes of an i32 mask."""
        with self.loop(32) as lane:
            bit = self.put(f"lshr i32 {mask}, {self.put(f'trunc i64 {lane} to i32')}")
            with self.when(self.put(f"trunc i32 {bit} to i1")):
                yield lane

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Only if a condition holds."""
        body, end = self.label(), self.label()
        self.do(f"br i1 {condition}, label %{body}, label %{end}")
        self.start(body)
        yield
        self.do(f"br label %{end}")
        self.start(end)

    def require(self, condition: str) -> None:
        """Refuse unless a condition holds; nothing may have been written yet."""
        on = self.label()
        self.do(f"br i1 {condition}, label %{on}, label %refused")
        self.start(on)

    def leave_if(self, condition: str, value: int) -> None:
        """Return a value if a condition holds."""
        out, on = self.label(), self.label()
        self.do(f"br i1 {condition}, label %{out}, label %{on}")
        self.start(out)
        self.do(f"ret i64 {value}")
        self.start(on)

    def finish(self) -> str:
        """Go on with the node's next instruction; returns the text of the function."""
        self.do(f"ret i64 {self.word(NodeField.NEXT)}")
        if self._may_idle:
            self.start("idle")
            self.do(f"ret i64 {self.word(NodeField.NEXT)}")
        return "\n".join([self._head, *self._lines, "refused:", f"  ret i64 {REFUSED}", "}"])

    def leave(self, value: str) -> str:
        """Return a value; returns the text of the function, which has no refusals."""
        self.do(f"ret i64 {value}")
        return "\n".join([self._head, *self._lines, "}"])

    # -- the warp ------------------------------------------------------------------------------------------------------

    def mask(self) -> str:
        """The lanes that execute the instruction, as an i32; goes on with the next one if its guard leaves none."""
        active = self.put(f"trunc i64 {self.word(State.MASK)} to i32")
        slot, start = self.word(NodeField.GUARD_SLOT), self._block
        guarded, joined, some = self.label(), self.label(), self.label()
        self.do(f"br i1 {self.put(f'icmp eq i64 {slot}, -1')}, label %{joined}, label %{guarded}")
        self.start(guarded)
        self.require_clean([slot], active)
        true = self.put(f"icmp ne <32 x i8> {self.put(f'load <32 x i8>, ptr {self.row(slot)}, align 32')}, zeroinitializer")
        flip = self.put(f"sub i32 0, {self.put(f'trunc i64 {self.word(NodeField.GUARD_NEGATED)} to i32')}")
        holds = self.put(f"xor i32 {self.put(f'bitcast <32 x i1> {true} to i32')}, {flip}")
        chosen, last = self.put(f"and i32 {holds}, {active}"), self._block
        self.do(f"br label %{joined}")
        self.start(joined)
        mask = self.put(f"phi i32 [ {active}, %{start} ], [ {chosen}, %{last} ]")
        self.do(f"br i1 {self.put(f'icmp eq i32 {mask}, 0')}, label %idle, label %{some}")
        self.start(some)
        self._may_idle = True
        return mask

    def slot(self, index: str | int) -> str:
        """A word of the node's operand list: number of a register << 32 | offset of its row."""
        return self.load("i64", self.word(NodeField.LIST, "ptr"), index, "i64")

    def row(self, slot: str) -> str:
        """The row of a slot."""
        return self.at(self.word(State.REGISTERS, "ptr"), self.put(f"and i64 {slot}, {0xFFFFFFFF}"))

    def poison_at(self, slot: str) -> str:
        """The address of a slot's word of poisoned lanes."""
        return self.at(self.word(State.POISON, "ptr"), self.put(f"lshr i64 {slot}, 32"), "i32")

    def require_clean(self, slots: Sequence[str], mask: str) -> None:
        """Refuse if one of the slots' registers is poison in an active lane."""
        for slot in slots:
            bad = self.put(f"and i32 {self.put(f'load i32, ptr {self.poison_at(slot)}')}, {mask}")
            self.require(self.put(f"icmp eq i32 {bad}, 0"))

    def cleanse(self, slot: str, mask: str) -> None:
        """A slot's register is not poison any more in the active lanes."""
        at = self.poison_at(slot)
        others, old = self.put(f"xor i32 {mask}, -1"), self.put(f"load i32, ptr {at}")
        self.do(f"store i32 {self.put(f'and i32 {old}, {others}')}, ptr {at}")

    def lane_count(self, mask: str) -> str:
        """How many lanes are active, as an i64."""
        return self.put(f"zext i32 {self.call('llvm.ctpop.i32', 'i32', f'i32 {mask}')} to i64")

    def first_lane(self, mask: str) -> str:
        """The lowest active lane, as an i64."""
        return self.put(f"zext i32 {self.call('llvm.cttz.i32', 'i32', f'i32 {mask}', 'i1 false')} to i64")

    def operand(self, index: int, bits: int, lane: str, mask: str) -> str:
        """An operand of one lane as an i64, from a list of pairs of a slot and a constant to add; refuses poison."""
        slot, constant = self.slot(2 * index), self.slot(2 * index + 1)
        self.require_clean([slot], mask)
        value = self.load(f"i{bits}", self.row(slot), lane, f"i{bits}")
        if bits == 64:
            return self.put(f"add i64 {value}, {constant}")
        wide = self.put(f"zext i{bits} {value} to i64")
        return self.put(f"and i64 {self.put(f'add i64 {wide}, {constant}')}, {0xFFFFFFFF}")

    def uniform(self, row: str, bits: int, mask: str) -> str:
        """The value that all active lanes have, as an i64; refuses if they differ."""
        vector = f"<32 x i{bits}>"
        values = self.put(f"load {vector}, ptr {row}, align 64")
        first = self.call("llvm.cttz.i32", "i32", f"i32 {mask}", "i1 false")
        one = self.put(f"extractelement {vector} {values}, i32 {first}")
        start = self.put(f"insertelement {vector} undef, i{bits} {one}, i32 0")
        every = self.put(f"shufflevector {vector} {start}, {vector} undef, <32 x i32> zeroinitializer")
        same = self.put(f"bitcast <32 x i1> {self.put(f'icmp eq {vector} {values}, {every}')} to i32")
        differ = self.put(f"and i32 {self.put(f'xor i32 {same}, -1')}, {mask}")
        self.require(self.put(f"icmp eq i32 {differ}, 0"))
        return one if bits == 64 else self.put(f"zext i{bits} {one} to i64")
