"""What a parsed kernel is made of: variables, operands, instructions. Plain frozen data; `str()` gives PTX back."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

from mxfp8fa.emulator.ptx.types import OPAQUE_TYPES, TYPE_BITS


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A place in the kernel's source, from `.loc` (PTX ISA, "Debugging Directives: .loc").

    Attributes:
        file: path from the `.file` table, or "" when the table does not have the index.
        line: line number from 1; 0 for code the compiler made up.
        column: column from 1; 0 when unknown (the CuTe DSL marks compiler-made code so).
        function: name after `function_name` (a label of the debug string section), or "".
        inlined_at: where the function that contains this place was called, when it was inlined.
    """

    file: str
    line: int
    column: int
    function: str = ""
    inlined_at: SourceLocation | None = None

    def __str__(self) -> str:
        return f"{self.file or '?'}:{self.line}"


@dataclass(frozen=True, slots=True)
class Relocation:
    """An element of an initial value that is an address and is known only once variables have been placed.

    Attributes:
        offset_bytes, size_bytes: the bytes of the variable that hold it.
        symbol: name of the variable or function whose address it is.
        addend: constant added to the address.
        generic: whether the generic address is meant (`generic(symbol)`), not the one in its state space.
        shift_bits: the address is shifted right by this much first (`0xFF00(symbol)` takes one byte of it: 8).
    """

    offset_bytes: int
    size_bytes: int
    symbol: str
    addend: int = 0
    generic: bool = False
    shift_bits: int = 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """What `.ptr` promises about a parameter: the state space it points to ("" = generic) and the alignment there."""

    space: str
    alignment_bytes: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter in memory.

    Attributes:
        name: as written; nested scopes of one function may use a name twice.
        space: `global`, `const`, `shared`, `local`, `param` (a parameter of the kernel or function) or `callparam` (a
            `.param` variable inside a body, which carries the arguments or the result of a call).
        type: element type without its dot.
        alignment_bytes: declared, or natural (PTX ISA: the size of the element, times the vector length).
        size_bytes: whole size; 0 for an array without a size (`.extern`).
        shape: array dimensions, outermost first; () for a scalar.
        vector: elements of a vector type (`.v4`: 4), else 1.
        offset_bytes: place in the parameter block, in the static shared memory or in the local memory of the kernel;
            None where the loader decides (global, const) and for `.extern .shared` arrays, which all begin at the
            kernel's `dynamic_shared_offset_bytes`.
        initial: first bytes of the initial value, the rest is zero; None when none is given.
        relocations: addresses inside the initial value.
        linkage: "", `extern`, `visible`, `weak` or `common`.
        attributes: texts of `.attribute(...)`.
        pointer: what `.ptr` says, for parameters.
        line: PTX line of the declaration.
    """

    name: str
    space: str
    type: str
    alignment_bytes: int
    size_bytes: int
    shape: tuple[int, ...] = ()
    vector: int = 1
    offset_bytes: int | None = None
    initial: bytes | None = None
    relocations: tuple[Relocation, ...] = ()
    linkage: str = ""
    attributes: tuple[str, ...] = ()
    pointer: Pointer | None = None
    line: int = field(default=0, compare=False)

    @property
    def element_bytes(self) -> int:
        """Size of one array element (a whole vector, for a vector type)."""
        return (TYPE_BITS | OPAQUE_TYPES)[self.type] // 8 * self.vector


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register.

    Attributes:
        name: as written (elements of a vector register: `v.x`). Scopes reuse names, `id` tells registers apart.
        type: declared type without its dot: `pred`, `b32`, `f32`, ... Instructions may use it as another type.
        id: 0, 1, 2, ... in the order of first use in the kernel, without gaps.
    """

    name: str
    type: str
    id: int

    @property
    def bits(self) -> int:
        """Width; 1 for a predicate."""
        return TYPE_BITS[self.type]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant.

    Attributes:
        value: the number. Integers are those of PTX's 64-bit constant expressions, -2**63 .. 2**64 - 1; an instruction
            takes them modulo its own width.
        kind: `int`; `f32` for `0f...`; `f64` for `0d...` and decimal constants (which an f32 instruction rounds).
        bits: `value` modulo 2**64, or the IEEE 754 encoding that belongs to `kind` (NaN payloads are kept).
        text: as written, for messages.
    """

    value: int | float = field(compare=False)
    kind: Literal["int", "f32", "f64"]
    bits: int
    text: str = field(default="", compare=False)

    def integer_bits(self, width: int) -> int:
        """The low `width` bits of an integer, or the encoding of a float whose kind has that width.

        Raises:
            ValueError: a float constant where its kind does not fit (PTX has no such conversion).
        """
        if self.kind != "int" and self.kind != f"f{width}":
            raise ValueError(f"the {self.kind} constant {self} cannot be a {width}-bit pattern")
        return self.bits & ((1 << width) - 1)

    def float_bits(self, width: int) -> int:
        """The constant as an IEEE 754 number of 32 or 64 bits; an f64 constant rounds to the nearest float32.

        Raises:
            ValueError: an integer (PTX takes none for a floating-point operand), or another width.
        """
        if self.kind == "int" or width not in (32, 64):
            raise ValueError(f"the {self.kind} constant {self} cannot be a {width}-bit float")
        if self.kind == f"f{width}":
            return self.bits
        return float_encoding(self.value, width)

    def __str__(self) -> str:
        if self.kind == "int":
            return self.text or str(self.value)
        return f"0f{self.bits:08X}" if self.kind == "f32" else f"0d{self.bits:016X}"


def float_encoding(value: float, width: int) -> int:
    """IEEE 754 encoding of `value` in 32 or 64 bits, rounded to nearest even."""
    if width == 64:
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:  # rounds beyond the largest float32
        return 0x7F800000 if value > 0 else 0xFF800000


def float_value(bits: int, width: int) -> float:
    """The number that IEEE 754 encodes in `bits`."""
    return float(struct.unpack("<d" if width == 64 else "<f", bits.to_bytes(width // 8, "little"))[0])


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: the result is not wanted, or (in a call prototype) the name does not matter."""

    def __str__(self) -> str:
        return "_"


SINK = Sink()


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """`%tid.x`: name `tid`, component `x`. The component is "" for a scalar, or for a vector read as a whole."""

    name: str
    component: str = ""

    def __str__(self) -> str:
        return f"%{self.name}.{self.component}" if self.component else f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that stands for an address, plus a constant.

    Attributes:
        name: as written.
        space: state space of the variable; `function` for a function or kernel; `prototype` for a `.callprototype` and
            `calltargets` for a `.calltargets` list (both only in calls).
        variable: the variable meant; None for a function, prototype or target list.
        addend: constant added to the address.
    """

    name: str
    space: str
    variable: Variable | None = None
    addend: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.addend}" if self.addend else self.name


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target: the name, and the index of the instruction it stands before.

    The index equals the number of instructions for a label at the very end of a body.
    """

    name: str
    index: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """The `.branchtargets` list that a `brx.idx` chooses from."""

    name: str
    labels: tuple[Label, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, _}`."""

    elements: tuple[Register | Immediate | Sink | SpecialRegister | Symbol, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.elements)) + "}"


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two destinations, the second a predicate (`elect.sync _|p`, `setp ... p|q`)."""

    first: Register | Sink
    second: Register | Sink

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p` as a source operand."""

    register: Register

    def __str__(self) -> str:
        return f"!{self.register}"


@dataclass(frozen=True, slots=True)
class Part:
    """`r.b0`, `r.h1`: a byte or half-word of a 32-bit register, in video instructions."""

    register: Register
    selector: str

    def __str__(self) -> str:
        return f"{self.register}.{self.selector}"


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`. The base is a register, a symbol (its addend is 0) or None for an absolute address."""

    base: Register | Symbol | None
    offset: int = 0

    def __str__(self) -> str:
        if self.base is None:
            return f"[{self.offset}]"
        return f"[{self.base}+{self.offset}]" if self.offset else f"[{self.base}]"


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[map, {c0, c1}]`: a tensor map (or texture, then perhaps a sampler) and coordinates.

    Attributes:
        address: of the tensor map.
        items: what follows: the vector or scalar of coordinates, for a texture after the sampler if there is one.
    """

    address: Address
    items: tuple[Vector | Register | Immediate | Symbol, ...]

    @property
    def coordinates(self) -> tuple[Register | Immediate | Sink | SpecialRegister | Symbol, ...]:
        """The coordinates, innermost dimension first."""
        last = self.items[-1]
        return last.elements if isinstance(last, Vector) else (last,)

    def __str__(self) -> str:
        return f"{str(self.address)[:-1]}, {', '.join(map(str, self.items))}]"


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)` in a call: the results, or the arguments."""

    items: tuple[Operand, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Operand = (
    Register | Immediate | Sink | SpecialRegister | Symbol | Label | BranchTargets | Vector | Pair | Negated | Part
    | Address | TensorAddress | Arguments
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p`: the instruction is executed by the lanes in which the predicate is true, or false."""

    register: Register
    negated: bool = False

    def __str__(self) -> str:
        return f"@!{self.register}" if self.negated else f"@{self.register}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        index: position in the kernel's list of instructions.
        opcode: first component of the mnemonic: `mbarrier`.
        qualifiers: the others: `("try_wait", "parity", "shared::cta", "b64")`.
        mnemonic: all of it as one text.
        operands: in the order written.
        guard: the predicate it depends on, or None.
        ptx_line: line of the mnemonic in the PTX text.
        source: where the source says it comes from, or None without line information.
    """

    index: int
    opcode: str
    qualifiers: tuple[str, ...]
    mnemonic: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    ptx_line: int
    source: SourceLocation | None = None

    def __str__(self) -> str:
        guard = f"{self.guard} " if self.guard else ""
        operands = ", ".join(map(str, self.operands))
        return f"{guard}{self.mnemonic} {operands};" if operands else f"{guard}{self.mnemonic};"
