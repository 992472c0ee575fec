"""Expression graphs of a whole region: the graphs of single instructions joined, with shared nodes and fewer moves.

A `Node` is a `values.Value` that exists once per region: equal operations on equal operands are the same object. Leaves
are registers as they were when the region began. Constructors simplify what packing and unpacking leaves behind, so a
pair of f32 that is packed, multiplied and unpacked again never touches a 64-bit register.
"""

from __future__ import annotations

from collections.abc import Sequence

from mxfp8fa.emulator.values import BITS, Value


class Node:
    """One operation of a region.

    Attributes:
        op: a primitive of `values`, or ``register`` (attr: its number), ``const`` (attr: raw bits), ``lane``, ``rank``
            (the CTA's rank, as u32), ``join`` (unsigned parts, lowest first, side by side).
        type: value type.
        args: operands.
        attr: see op.
        number: position in the order of creation; operands come before users.
    """

    __slots__ = ("args", "attr", "number", "op", "type")

    def __init__(self, op: str, type: str, args: tuple[Node, ...], attr: int, number: int):
        self.op, self.type, self.args, self.attr, self.number = op, type, args, attr, number


class Graph:
    """The nodes of one region."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, tuple[int, ...], int], Node] = {}

    def node(self, op: str, type: str, args: tuple[Node, ...] = (), attr: int = 0) -> Node:
        """The node of an operation, simplified where only bits move."""
        if op == "bits":
            return self._bits(type, args[0])
        if op == "to" and args[0].type[0] == "u" and type[0] == "u":
            return self._resize(type, args[0])
        if op == "or" and type in ("u32", "u64"):
            pair = self._as_join(type, args)
            if pair is not None:
                return pair
        if op == "select":
            if args[1] is args[2]:
                return args[1]
            if args[0].op == "const":
                return args[1] if args[0].attr else args[2]
        return self._intern(op, type, args, attr)

    def _intern(self, op: str, type: str, args: tuple[Node, ...] = (), attr: int = 0) -> Node:
        key = (op, type, tuple(a.number for a in args), attr)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(op, type, args, attr, len(self._known))
        return found

    def const(self, value: int, type: str) -> Node:
        """The constant with these raw bits."""
        return self._intern("const", type, (), value & ((1 << BITS[type]) - 1))

    def register(self, number: int, type: str) -> Node:
        """A register as it was when the region began."""
        return self._intern("register", type, (), number)

    def join(self, type: str, parts: Sequence[Node]) -> Node:
        """Unsigned parts side by side, lowest first."""
        first = parts[0]
        if first.op == "to" and first.args[0].type == type and all(
            self.part(first.args[0], first.type, i) is p for i, p in enumerate(parts)
        ):
            return first.args[0]
        return self._intern("join", type, tuple(parts))

    def part(self, whole: Node, type: str, index: int) -> Node:
        """The index-th part of an unsigned value, in units of type's width."""
        shift = index * BITS[type]
        moved = whole if shift == 0 else self.node("shr", whole.type, (whole, self.const(shift, whole.type)))
        return self.node("to", type, (moved,))

    def _bits(self, type: str, a: Node) -> Node:
        if a.op == "bits":
            a = a.args[0]
        if a.type == type:
            return a
        if a.op == "const":
            return self.const(a.attr, type)
        return self._intern("bits", type, (a,))

    def _resize(self, type: str, a: Node) -> Node:
        """Unsigned to unsigned: the part itself where a join is cut at its seams."""
        if a.type == type:
            return a
        if a.op == "const":
            return self.const(a.attr, type)
        width = BITS[type]
        if width < BITS[a.type]:
            source, shift = a, 0
            if a.op == "shr" and a.args[1].op == "const":
                source, shift = a.args[0], a.args[1].attr
            if source.op == "join":
                part_bits = BITS[source.args[0].type]
                first, within = divmod(shift, part_bits)
                if first < len(source.args) and within + width <= part_bits:
                    part = source.args[first]
                    if within:
                        part = self._intern("shr", part.type, (part, self.const(within, part.type)))
                    return self._resize(type, part)
            if shift == 0 and a.op == "to" and a.args[0].type[0] == "u":  # truncation of an extension or truncation
                inner = a.args[0]
                if BITS[inner.type] <= BITS[a.type] or width <= BITS[a.type]:
                    return self._resize(type, inner) if inner.type != type else inner
        return self._intern("to", type, (a,))

    def _as_join(self, type: str, args: tuple[Node, ...]) -> Node | None:
        """low | high << half, with both extended from half the width."""
        half = {"u32": "u16", "u64": "u32"}[type]
        for low, high in (args, args[::-1]):
            if high.op != "shl" or high.args[1].op != "const" or high.args[1].attr != BITS[half]:
                continue
            above = high.args[0]
            if all(x.op == "to" and x.args[0].type == half for x in (low, above)):
                return self.join(type, (low.args[0], above.args[0]))
        return None

    def apply(self, outputs: Sequence[Value], arguments: Sequence[Node]) -> list[Node]:
        """An instruction's graph with its arguments (raw bits) put in; results as raw bits."""
        made: dict[int, Node] = {}

        def build(value: Value) -> Node:
            found = made.get(id(value))
            if found is not None:
                return found
            if value.op == "arg":
                found = arguments[value.attr]
                if found.type != value.type:
                    found = self.node("bits", value.type, (found,))
            elif value.op == "const":
                found = self.const(value.attr, value.type)
            else:
                found = self.node(value.op, value.type, tuple(build(a) for a in value.args), value.attr)
            made[id(value)] = found
            return found

        return [self.raw(build(o)) for o in outputs]

    def raw(self, a: Node) -> Node:
        """The unsigned bits of a value; predicates stay what they are."""
        return a if a.type == "pred" or a.type[0] == "u" else self.node("bits", f"u{BITS[a.type]}", (a,))
