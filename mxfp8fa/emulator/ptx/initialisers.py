"""Initial values of variables: `= 5`, `= {1, 2}`, `= {{1, 2}, {3}}`, `= {symbol, generic(symbol)+8, 0xFF00(symbol)}`.

PTX ISA, "Initializers": lists nest as deep as the array has dimensions; what is left out is zero.
"""

from __future__ import annotations

from math import prod

from mxfp8fa.emulator.ptx.cursor import Cursor, describe, is_name
from mxfp8fa.emulator.ptx.expressions import constant, integer, starts_constant
from mxfp8fa.emulator.ptx.syntax import Relocation
from mxfp8fa.emulator.ptx.types import TYPE_BITS

_MOST_BYTES = 1 << 26  # of an initial value that is written out


def read_initial_value(
    cursor: Cursor, element_type: str, vector: int, shape: tuple[int, ...] | None
) -> tuple[bytes, tuple[Relocation, ...], tuple[int, ...] | None]:
    """Reads what follows `=`.

    Returns:
        The first bytes of the value (the rest is zero), the addresses in it, and the shape, whose first dimension is
        counted here if it was left open.

    Raises:
        PTXSyntaxError: a list that is too long or too deep, or a value of the wrong kind.
    """
    if element_type not in TYPE_BITS or element_type in ("f16", "f16x2", "pred") or vector > 1:
        kind = f".v{vector} .{element_type}" if vector > 1 else f".{element_type}"
        raise cursor.error(f"a variable of type {kind} takes no initial value")
    reader = _Reader(cursor, element_type)
    if shape is None:
        reader.element(0)
        return bytes(reader.data), tuple(reader.relocations), None
    count = reader.list(shape, 0)
    if shape[0] == 0:
        shape = (count, *shape[1:])
    return bytes(reader.data), tuple(reader.relocations), shape


class _Reader:
    """Collects the bytes of one initial value."""

    def __init__(self, cursor: Cursor, element_type: str) -> None:
        self.cursor = cursor
        self.type = element_type
        self.element_bytes = TYPE_BITS[element_type] // 8
        self.data = bytearray()
        self.relocations: list[Relocation] = []

    def list(self, shape: tuple[int, ...], offset: int) -> int:
        """One `{...}` for an array of this shape at byte `offset`; returns how many elements were given."""
        cursor = self.cursor
        cursor.expect("{", "before the initial values of an array")
        stride = self.element_bytes * prod(shape[1:])
        count = 0
        while not cursor.accept("}"):
            if shape[0] and count == shape[0]:
                raise cursor.error(f"too many initial values: this dimension has {shape[0]}")
            if len(shape) > 1:
                self.list(shape[1:], offset + count * stride)
            else:
                self.element(offset + count * stride)
            count += 1
            if not cursor.accept(","):
                cursor.expect("}", "after the initial values")
                break
        return count

    def element(self, offset: int) -> None:
        """One number or address, stored at byte `offset`."""
        if offset + self.element_bytes > _MOST_BYTES:
            raise self.cursor.error(f"an initial value longer than {_MOST_BYTES} bytes")
        token = self.cursor.peek()
        masked = self.cursor.peek(1) == "(" and token[:2] in ("0x", "0X")
        if masked or is_name(token):
            self._put(offset, 0)
            self.relocations.append(self._address(offset, masked))
        elif starts_constant(token) or token == "!":
            self._put(offset, self._number())
        else:
            raise self.cursor.error(f"expected an initial value, found {describe(token)}")

    def _number(self) -> int:
        """A constant as the bits of the element type."""
        start = self.cursor.position
        found = constant(self.cursor)
        width = self.element_bytes * 8
        try:
            return found.float_bits(width) if self.type in ("f32", "f64") else found.integer_bits(width)
        except ValueError as error:
            raise self.cursor.error(f"{error} in a .{self.type} variable", start) from None

    def _put(self, offset: int, bits: int) -> None:
        """Stores one element, little endian."""
        self.data.extend(bytes(offset + self.element_bytes - len(self.data)))
        self.data[offset : offset + self.element_bytes] = bits.to_bytes(self.element_bytes, "little")

    def _address(self, offset: int, masked: bool) -> Relocation:
        """`symbol+8`, `generic(symbol)+8` or `0xFF00(symbol)`."""
        cursor = self.cursor
        start = cursor.position
        shift = self._mask() if masked else 0
        generic = not masked and cursor.peek() == "generic" and cursor.peek(1) == "("
        cursor.position += generic
        if masked or generic:
            cursor.expect("(", "before the symbol")
        name = cursor.name("a variable or function whose address is the initial value")
        if masked or generic:
            cursor.expect(")", "after the symbol")
        if self.type[0] == "f" or (not masked and self.element_bytes < 4):
            raise cursor.error(f"a .{self.type} element cannot hold an address", start)
        addend = 0
        if cursor.peek() in ("+", "-"):
            addend = integer(cursor, "an address offset", least=-(1 << 63))
        return Relocation(offset, self.element_bytes, name, addend, generic, shift)

    def _mask(self) -> int:
        """`0xFF00` of `0xFF00(symbol)`: by how many bits the byte lies above the lowest."""
        start = self.cursor.position
        mask = int(self.cursor.next().rstrip("U"), 16) if len(self.cursor.peek()) < 24 else 0
        shift = (mask & -mask).bit_length() - 1
        if mask == 0 or shift % 8 or mask >> shift != 0xFF:
            raise self.cursor.error("the mask before a symbol must select one byte: 0xFF, 0xFF00, 0xFF0000, ...", start)
        return shift
