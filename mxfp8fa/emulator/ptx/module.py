"""The parsed module: functions and kernels with their memory, and the containers around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mxfp8fa.emulator.ptx.syntax import Instruction, Label, Register, Variable


@dataclass(frozen=True, slots=True)
class Function:
    """A function (`.func`), or what it shares with a kernel.

    Sizes and offsets cover what the function itself uses; shared variables of functions it calls are not included.

    Attributes:
        name: symbol name.
        linkage: "", `extern`, `visible` or `weak`.
        line: PTX line of the header.
        params: parameters in order; `offset_bytes` is the place in the parameter block (PTX ABI: each at the next
            multiple of its alignment).
        results: result parameters, for a `.func`.
        register_params: parameters and results of old-style functions that are registers, in order of declaration.
        directives: `.reqntid 128, 1, 1` is `directives["reqntid"] == (128, 1, 1)`; () for one without numbers.
        pragmas: strings of `.pragma`, each with the index of the instruction it stands before; -1 for the header.
        variables: variables of the function (space `shared`, `local`, `callparam`), and module variables in shared
            memory that it names; in order of placement.
        registers: the registers it uses; `registers[i].id == i`.
        instructions: the body, flat.
        labels: all labels in order; names repeat when scopes reuse them.
        has_body: False for a declaration without a body.
    """

    name: str
    linkage: str
    line: int
    params: tuple[Variable, ...]
    results: tuple[Variable, ...]
    register_params: tuple[Register, ...]
    directives: Mapping[str, tuple[int, ...]]
    pragmas: tuple[tuple[int, str], ...]
    variables: tuple[Variable, ...]
    registers: tuple[Register, ...]
    instructions: tuple[Instruction, ...]
    labels: tuple[Label, ...]
    has_body: bool = True

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block."""
        return max((_end(v) for v in self.params), default=0)

    @property
    def local_bytes(self) -> int:
        """Bytes of `.local` variables a thread needs."""
        return max((_end(v) for v in self.variables if v.space == "local"), default=0)

    @property
    def static_shared_bytes(self) -> int:
        """Bytes of `.shared` variables with a size."""
        return max((_end(v) for v in self.variables if v.space == "shared" and v.offset_bytes is not None), default=0)

    @property
    def dynamic_shared_offset_bytes(self) -> int:
        """Where the dynamic shared memory (all `.extern .shared` arrays) begins, counted like the static variables."""
        dynamic = [v.alignment_bytes for v in self.variables if v.space == "shared" and v.offset_bytes is None]
        return align_up(self.static_shared_bytes, max(dynamic, default=1))

    @property
    def shared_alignment_bytes(self) -> int:
        """The largest alignment a shared variable asks for: shared memory must start at a multiple of it."""
        return max((v.alignment_bytes for v in self.variables if v.space == "shared"), default=1)


@dataclass(frozen=True, slots=True)
class Kernel(Function):
    """An entry point (`.entry`)."""

    @property
    def required_block(self) -> tuple[int, int, int] | None:
        """Block shape that `.reqntid` insists on, or None."""
        return _dim3(self.directives.get("reqntid"))

    @property
    def max_threads(self) -> int | None:
        """Most threads of a block by `.maxntid` (or exactly, by `.reqntid`), or None."""
        shape = _dim3(self.directives.get("maxntid") or self.directives.get("reqntid"))
        return None if shape is None else shape[0] * shape[1] * shape[2]

    @property
    def required_cluster(self) -> tuple[int, int, int] | None:
        """Cluster shape that `.reqnctapercluster` insists on, or None."""
        return _dim3(self.directives.get("reqnctapercluster"))


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX text.

    Attributes:
        version: PTX ISA version, (9, 0) for 9.0.
        target: `.target` names, the architecture first: ("sm_100a", "texmode_unified").
        address_size: 32 or 64.
        files: `.file` table, index to path.
        variables: module-level variables by name (space `global`, `const`, `shared`).
        kernels: entry points by name.
        functions: `.func` by name, with or without a body.
        aliases: `.alias` name to the function it stands for.
    """

    version: tuple[int, int]
    target: tuple[str, ...]
    address_size: int
    files: Mapping[int, str]
    variables: Mapping[str, Variable]
    kernels: Mapping[str, Kernel]
    functions: Mapping[str, Function]
    aliases: Mapping[str, str]


def align_up(offset: int, alignment: int) -> int:
    """The next multiple of `alignment` at or after `offset`."""
    return -(-offset // alignment) * alignment


def _end(variable: Variable) -> int:
    """First byte after a placed variable."""
    return (variable.offset_bytes or 0) + variable.size_bytes


def _dim3(numbers: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    """Up to three numbers as a shape; missing ones are 1."""
    if numbers is None:
        return None
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
