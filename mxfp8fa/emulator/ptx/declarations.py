"""Declarations of variables, parameters and registers (PTX ISA, "State Spaces, Types, and Variables")."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from mxfp8fa.emulator.ptx.cursor import Cursor, describe, is_name
from mxfp8fa.emulator.ptx.expressions import integer
from mxfp8fa.emulator.ptx.initialisers import read_initial_value
from mxfp8fa.emulator.ptx.module import align_up
from mxfp8fa.emulator.ptx.scopes import RegisterDeclaration
from mxfp8fa.emulator.ptx.syntax import Pointer, Relocation, Variable
from mxfp8fa.emulator.ptx.types import OPAQUE_TYPES, TYPE_BITS, VECTOR_LENGTHS

_MOST_REGISTERS = 1 << 31
_MOST_BYTES = 1 << 62
_MOST_DIMENSIONS = 32
_POINTER_SPACES = ("const", "global", "local", "shared")


class _Prefix:
    """What stands between the state space and the first name: alignment, vector length, type, attributes."""

    def __init__(self, cursor: Cursor) -> None:
        self.alignment_bytes = 0
        self.vector = 1
        self.type = ""
        self.attributes: list[str] = []
        self.pointer: Pointer | None = None
        while cursor.peek().startswith("."):
            self._read_one(cursor)
        if not self.type:
            raise cursor.error(f"expected a type such as .b32 in this declaration, found {describe(cursor.peek())}")

    def _read_one(self, cursor: Cursor) -> None:
        """One directive of the prefix."""
        word = cursor.peek()[1:]
        if word == "align":
            self.alignment_bytes = read_alignment(cursor)
        elif word in VECTOR_LENGTHS:
            cursor.next()
            self.vector = VECTOR_LENGTHS[word]
        elif word == "attribute":
            self.attributes.append(_attribute(cursor))
        elif word == "ptr":
            self.pointer = _pointer(cursor)
        elif (word in TYPE_BITS or word in OPAQUE_TYPES) and not self.type:
            cursor.next()
            self.type = word
        else:
            raise cursor.error(f"unknown type or directive .{word} in a declaration")

    @property
    def element_bytes(self) -> int:
        """Size of a scalar or vector of the type."""
        return (TYPE_BITS | OPAQUE_TYPES)[self.type] // 8 * self.vector


def read_alignment(cursor: Cursor) -> int:
    """`.align N`, the cursor being at `.align`: a power of two."""
    cursor.next()
    start = cursor.position
    alignment = integer(cursor, "an alignment", least=1, most=1 << 32)
    if alignment & (alignment - 1):
        raise cursor.error(f"an alignment must be a power of two, found {alignment}", start)
    return alignment


def _attribute(cursor: Cursor) -> str:
    """`.attribute(.managed, .unified(a, b))`: its text."""
    cursor.next()
    start = cursor.position
    cursor.expect("(", "after .attribute")
    depth = 1
    while depth:
        token = cursor.next()
        depth += (token == "(") - (token == ")")
        if not token or token in (";", "{", "}"):
            raise cursor.error("expected ')' at the end of .attribute", start)
    return "".join(cursor.values[start + 1 : cursor.position - 1])


def _pointer(cursor: Cursor) -> Pointer:
    """`.ptr .global .align 16`; both parts may be left out (alignment 4 then, PTX ISA ".ptr")."""
    cursor.next()
    space, alignment = "", 4
    if cursor.peek()[1:] in _POINTER_SPACES:
        space = cursor.next()[1:]
    if cursor.peek() == ".align":
        alignment = read_alignment(cursor)
    return Pointer(space, alignment)


def _shape(cursor: Cursor) -> tuple[int, ...] | None:
    """`[2][3]`; (0, 3) for `[][3]`; None for a scalar."""
    if cursor.peek() != "[":
        return None
    shape: list[int] = []
    while cursor.accept("["):
        if len(shape) == _MOST_DIMENSIONS:
            raise cursor.error(f"an array of more than {_MOST_DIMENSIONS} dimensions")
        if cursor.peek() == "]" and not shape:
            shape.append(0)
        else:
            shape.append(integer(cursor, "an array size", most=_MOST_BYTES))
        cursor.expect("]", "after an array size")
    return tuple(shape)


def read_registers(cursor: Cursor) -> Iterator[tuple[str, RegisterDeclaration, int]]:
    """`.reg .v2 .b32 a, b<8>, c;` with the cursor after `.reg`: names, what they are, and their tokens."""
    vector = 1
    while cursor.peek()[1:] in VECTOR_LENGTHS:
        vector = VECTOR_LENGTHS[cursor.next()[1:]]
    register_type = cursor.peek()[1:] if cursor.peek().startswith(".") else ""
    if register_type not in TYPE_BITS:
        raise cursor.error(f"expected a register type such as .b32 or .pred, found {describe(cursor.peek())}")
    cursor.next()
    while True:
        token = cursor.position
        name = cursor.name("the name of a register")
        count = None
        if cursor.accept("<"):
            if not cursor.peek()[:1].isdigit():
                raise cursor.error(f"expected the number of registers, found {describe(cursor.peek())}")
            count = _register_count(cursor)
            cursor.expect(">", "after the number of registers")
        yield name, RegisterDeclaration(register_type, vector, count), token
        if not cursor.accept(","):
            break
    cursor.expect(";", "after the declaration of registers")


def _register_count(cursor: Cursor) -> int:
    """The number in `name<N>`: a plain number, since `>` would otherwise be an operator."""
    start = cursor.position
    token = cursor.next()
    try:
        count = int(token, 0) if token.isalnum() and len(token) < 20 else -1
    except ValueError:
        count = -1
    if not 0 <= count <= _MOST_REGISTERS:
        raise cursor.error(f"expected a number of registers up to {_MOST_REGISTERS}, found {token!r}", start)
    return count


def read_variables(cursor: Cursor, space: str, linkage: str) -> Iterator[tuple[Variable, int]]:
    """`.global .align 8 .b8 a[16] = {...}, b;` with the cursor after the state space: variables and their tokens."""
    prefix = _Prefix(cursor)
    while True:
        token = cursor.position
        line = cursor.line()
        name = cursor.name("the name of a variable")
        shape = _shape(cursor)
        initial: bytes | None = None
        relocations: tuple[Relocation, ...] = ()
        if cursor.accept("="):
            initial, relocations, shape = read_initial_value(cursor, prefix.type, prefix.vector, shape)
        elif shape and shape[0] == 0 and linkage != "extern":
            raise cursor.error(f"the array {name!r} needs a size or an initial value", token)
        if prefix.type == "pred":
            raise cursor.error("a predicate cannot be a variable in memory", token)
        alignment = prefix.alignment_bytes or prefix.element_bytes
        size = _size(cursor, token, prefix.element_bytes, shape)
        variable = Variable(
            name, space, prefix.type, alignment, size, shape or (), prefix.vector, None,
            initial, relocations, linkage, tuple(prefix.attributes), line=line,
        )  # fmt: skip
        yield variable, token
        if not cursor.accept(","):
            break
    cursor.expect(";", "after the declaration of variables")


def _size(cursor: Cursor, token: int, element_bytes: int, shape: tuple[int, ...] | None) -> int:
    """Bytes of a scalar or array."""
    size = element_bytes * prod(shape or ())
    if size > _MOST_BYTES:
        raise cursor.error(f"a variable of {size} bytes is too large", token)
    return size


def read_parameters(cursor: Cursor) -> Iterator[tuple[Variable | tuple[str, RegisterDeclaration], int]]:
    """`(.param .u64 a, .param .align 8 .b8 b[16])` with the cursor at `(`: parameters with offsets, and their tokens.

    A `.reg` parameter of an old-style function comes as its name and declaration. In a prototype names may be `_`.
    """
    cursor.expect("(", "before the parameters")
    if cursor.accept(")"):
        return
    offset = 0
    while True:
        if cursor.accept(".reg"):
            yield _register_parameter(cursor)
        else:
            cursor.expect(".param", "at the start of a parameter")
            variable, token = _parameter(cursor, offset)
            offset = (variable.offset_bytes or 0) + variable.size_bytes
            yield variable, token
        if not cursor.accept(","):
            break
    cursor.expect(")", "after the parameters")


def _register_parameter(cursor: Cursor) -> tuple[tuple[str, RegisterDeclaration], int]:
    """`.reg .b32 a`, with the cursor after `.reg`."""
    register_type = cursor.peek()[1:]
    if not cursor.peek().startswith(".") or register_type not in TYPE_BITS:
        raise cursor.error(f"expected a register type such as .b32, found {describe(cursor.peek())}")
    cursor.next()
    token = cursor.position
    return (_parameter_name(cursor), RegisterDeclaration(register_type)), token


def _parameter(cursor: Cursor, offset: int) -> tuple[Variable, int]:
    """One `.param`, placed at the next multiple of its alignment (PTX ISA, "Kernel Function Parameters")."""
    prefix = _Prefix(cursor)
    token, line = cursor.position, cursor.line()
    name = _parameter_name(cursor)
    shape = _shape(cursor)
    if prefix.vector > 1 or (shape and len(shape) > 1) or prefix.type == "pred":
        raise cursor.error("a parameter is a scalar or a one-dimensional array", token)
    alignment = prefix.alignment_bytes or prefix.element_bytes
    size = _size(cursor, token, prefix.element_bytes, shape)
    variable = Variable(
        name, "param", prefix.type, alignment, size, shape or (), 1, align_up(offset, alignment),
        attributes=tuple(prefix.attributes), pointer=prefix.pointer, line=line,
    )  # fmt: skip
    return variable, token


def _parameter_name(cursor: Cursor) -> str:
    """The name of a parameter, or `_` in a prototype."""
    token = cursor.peek()
    if token != "_" and not is_name(token):
        raise cursor.error(f"expected the name of a parameter, found {describe(token)}")
    return cursor.next()
