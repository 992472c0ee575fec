"""Operands of instructions: one function per form, chosen by the first token."""

from __future__ import annotations

from functools import lru_cache

from mxfp8fa.emulator.ptx.cursor import Cursor, describe, is_name, is_word
from mxfp8fa.emulator.ptx.expressions import constant, integer, literal, starts_constant
from mxfp8fa.emulator.ptx.scopes import Names
from mxfp8fa.emulator.ptx.syntax import (
    SINK,
    Address,
    Arguments,
    Immediate,
    Negated,
    Operand,
    Pair,
    Part,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    TensorAddress,
    Vector,
)
from mxfp8fa.emulator.ptx.types import SPECIAL_REGISTERS

_AFTER_OPERAND = frozenset({",", ";", "}", "]", ")"})
_literal = lru_cache(maxsize=4096)(literal)


class Operands:
    """Reads operands at the cursor, with names looked up in the scopes of one function."""

    __slots__ = ("cursor", "names")

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.cursor = cursor
        self.names = names

    def operand(self) -> Operand:
        """One operand of an instruction other than a branch or call.

        Raises:
            PTXSyntaxError: an undefined name, or no operand at all.
        """
        cursor = self.cursor
        token = cursor.values[cursor.position]
        known = self.names.found.get(token)
        if known.__class__ is Register:
            cursor.position += 1
            return known if cursor.values[cursor.position] != "|" else self._pair(known)
        if token == "[":
            return self.address()
        if token == "{":
            return self.vector()
        if token == "!" and is_word(cursor.peek(1)):
            return self._negated()
        if token == "_":
            cursor.position += 1
            return self._pair(SINK) if cursor.values[cursor.position] == "|" else SINK
        if starts_constant(token) or token == "!":
            return self._constant()
        if not is_word(token):
            raise cursor.error(f"expected an operand, found {describe(token)}")
        return self._named(token)

    def _named(self, token: str) -> Operand:
        """A word: register, symbol (with an index or a constant added), or special register."""
        cursor = self.cursor
        found = self.names.find(token)
        if found is None:
            return self._special(token)
        cursor.position += 1
        if isinstance(found, Register):
            return self._pair(found) if cursor.peek() == "|" else found
        if isinstance(found, Symbol) and found.variable is not None:
            if cursor.peek() == "[":
                return self._element(found)
            if cursor.peek() in ("+", "-"):
                return Symbol(found.name, found.space, found.variable, self._added())
        return found

    def _element(self, symbol: Symbol) -> Address:
        """`array[i]`: PTX ISA, "Arrays, Structures, and Unions"; ptxas counts elements, not bytes."""
        start = self.cursor.position
        self.cursor.position += 1
        token = self.cursor.peek()
        if isinstance(self.names.find(token) if is_word(token) else None, Register):
            raise self.cursor.error("an array index in a register is not supported; compute the address", start)
        index = integer(self.cursor, "an array index", least=-(1 << 32), most=1 << 32)
        self.cursor.expect("]", "after an array index")
        assert symbol.variable is not None
        return Address(symbol, index * symbol.variable.element_bytes)

    def _constant(self) -> Immediate:
        """A number, or a whole constant expression."""
        cursor = self.cursor
        if cursor.peek(1) in _AFTER_OPERAND and cursor.peek()[0] in "0123456789.":
            found = _literal(cursor.peek())
            if found is not None:
                cursor.position += 1
                return found
        return constant(cursor)

    def _special(self, token: str) -> SpecialRegister:
        """`%tid.x`, or the error for a name that nobody declared."""
        name, _, component = token[1:].partition(".")
        if token[0] != "%" or name not in SPECIAL_REGISTERS:
            kind = "register" if token[0] == "%" else "name"
            raise self.cursor.error(f"undefined {kind} {token!r}: expected a declared register, variable or function")
        allowed = ("", "x", "y", "z", "w") if SPECIAL_REGISTERS[name] else ("",)
        if component not in allowed:
            raise self.cursor.error(f"the special register %{name} has no component {component!r}")
        self.cursor.position += 1
        return SpecialRegister(name, component)

    def _pair(self, first: Register | Sink) -> Pair:
        """The rest of `d|p`."""
        self.cursor.position += 1
        token = self.cursor.peek()
        second = SINK if token == "_" else self.names.find(token) if is_word(token) else None
        if not isinstance(second, Register | Sink):
            raise self.cursor.error(f"expected a predicate register after |, found {describe(token)}")
        self.cursor.position += 1
        return Pair(first, second)

    def _negated(self) -> Negated:
        """`!p`."""
        self.cursor.position += 1
        return Negated(self.register("a predicate register after !"))

    def register(self, what: str) -> Register:
        """A register and nothing else; `what` says in an error what it is for."""
        token = self.cursor.peek()
        found = self.names.find(token) if is_word(token) else None
        if not isinstance(found, Register):
            missing = f"undefined register {token!r}: " if is_name(token) and found is None else ""
            raise self.cursor.error(f"{missing}expected {what}, found {describe(token)}")
        self.cursor.position += 1
        return found

    def vector(self) -> Vector:
        """`{a, b, _}`: registers, sinks, constants, special registers and symbols."""
        cursor, values, found = self.cursor, self.cursor.values, self.names.found
        elements = []
        while True:
            cursor.position += 1
            token = values[cursor.position]
            element: Operand | None = found.get(token)
            if element.__class__ is Register:
                cursor.position += 1
            elif token in ("{", "[", "!"):
                raise cursor.error(f"expected an element of a vector, found {describe(token)}")
            else:
                element = self.operand()
            if not isinstance(element, Register | Immediate | Sink | SpecialRegister | Symbol):
                raise cursor.error(f"{element} cannot be an element of a vector", cursor.position - 1)
            elements.append(element)
            if values[cursor.position] != ",":
                break
        cursor.expect("}", "after the elements of a vector")
        return Vector(tuple(elements))

    def address(self) -> Address | TensorAddress:
        """`[base + offset]`, and `[map, {coordinates}]`."""
        cursor = self.cursor
        cursor.position += 1
        address = self._base_and_offset()
        if cursor.accept("]"):
            return address
        items = []
        while cursor.accept(","):
            start = cursor.position
            if cursor.peek() in ("[", "!"):
                raise cursor.error(f"expected a sampler or coordinates, found {describe(cursor.peek())}")
            item = self.operand()
            if not isinstance(item, Vector | Register | Immediate | Symbol):
                raise cursor.error(f"expected a sampler or coordinates, found {item}", start)
            items.append(item)
        cursor.expect("]", "at the end of an address")
        return TensorAddress(address, tuple(items))

    def _base_and_offset(self) -> Address:
        """The inside of an address up to `]` or `,`."""
        cursor = self.cursor
        token = cursor.peek()
        if starts_constant(token):
            return Address(None, integer(cursor, "an absolute address", most=(1 << 64) - 1))
        if not is_word(token):
            raise cursor.error(f"expected the address inside [ ], found {describe(token)}")
        base = self.names.find(token)
        if base is None:
            self._special(token)
            raise cursor.error(f"a special register cannot be an address: {token}", cursor.position - 1)
        if isinstance(base, Part | Vector):
            raise cursor.error(f"expected a register or a symbol as an address, found {token}")
        cursor.position += 1
        return Address(base, self._added() if cursor.peek() in ("+", "-") else 0)

    def _added(self) -> int:
        """`+ constant` or `- constant` after a base."""
        cursor = self.cursor
        if cursor.peek() == "+":
            cursor.position += 1
            token = cursor.peek()
            if token.isdecimal() and token[0] != "0" and len(token) < 19 and cursor.peek(1) in _AFTER_OPERAND:
                cursor.position += 1
                return int(token)
            if is_word(token) and token != "WARP_SZ":
                raise cursor.error(f"expected a constant after + in an address, found {token!r}")
        return integer(cursor, "an address offset", least=-(1 << 63))

    def arguments(self) -> Arguments:
        """`(a, b)` of a call; the cursor is at the opening parenthesis."""
        self.cursor.position += 1
        items: list[Operand] = []
        if self.cursor.accept(")"):
            return Arguments(())
        while True:
            items.append(self.operand())
            if not self.cursor.accept(","):
                break
        self.cursor.expect(")", "after the arguments of a call")
        return Arguments(tuple(items))
