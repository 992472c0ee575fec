"""A parsed module back to PTX text: flat bodies, every name unique.

What it prints parses to the same instructions, and ptxas makes the same machine code from it as from the original: the
test that parsing loses nothing. Line information and debug sections are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from mxfp8fa.emulator.ptx.module import Function, Kernel, Module
from mxfp8fa.emulator.ptx.syntax import (
    Address,
    Arguments,
    BranchTargets,
    Guard,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Part,
    Register,
    Relocation,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
)


def print_module(module: Module) -> str:
    """The module as PTX text.

    Raises:
        ValueError: it contains calls through a prototype or register parameters, which this printer does not write.
    """
    lines = [
        f".version {module.version[0]}.{module.version[1]}",
        f".target {', '.join(module.target)}",
        f".address_size {module.address_size}",
    ]
    functions = list(module.functions.values())
    lines += [f"{_header(function)};" for function in functions]
    lines += [_variable(variable, variable.name) for variable in module.variables.values()]
    for function in (*functions, *module.kernels.values()):
        if function.has_body:
            lines += [_header(function), "{", *_Body(function, module).lines(), "}"]
    lines += [f".alias {name}, {meant};" for name, meant in module.aliases.items()]
    return "\n".join(lines) + "\n"


def _header(function: Function) -> str:
    """Everything before the body."""
    if function.register_params:
        raise ValueError(f"function {function.name} has register parameters, which are not printed")
    results = f" ({_parameters(function.results)})" if function.results else ""
    kind = ".entry" if isinstance(function, Kernel) else ".func"
    directives = "".join(f"\n.{name} {', '.join(map(str, n))}".rstrip() for name, n in function.directives.items())
    directives += "".join(f"\n{_pragma(text)}" for index, text in function.pragmas if index < 0)
    linkage = f".{function.linkage} " if function.linkage else ""
    return f"{linkage}{kind}{results} {function.name}({_parameters(function.params)}){directives}"


def _parameters(params: Iterable[Variable]) -> str:
    """A parameter list without its parentheses."""
    found = []
    for param in params:
        pointer = ""
        if param.pointer:
            space = f".{param.pointer.space} " if param.pointer.space else ""
            pointer = f".ptr {space}.align {param.pointer.alignment_bytes} "
        align = f".align {param.alignment_bytes} "
        found.append(f".param {align}.{param.type} {pointer}{param.name}{_shape(param)}")
    return ", ".join(found)


def _shape(variable: Variable) -> str:
    """`[2][3]`; a dimension left open is empty."""
    return "".join(f"[{size or ''}]" for size in variable.shape)


def _variable(variable: Variable, name: str) -> str:
    """The declaration of a variable, under a name of our choice."""
    linkage = f".{variable.linkage} " if variable.linkage else ""
    space = "param" if variable.space == "callparam" else variable.space
    attributes = "".join(f".attribute({text}) " for text in variable.attributes)
    vector = f".v{variable.vector} " if variable.vector > 1 else ""
    value = "" if variable.initial is None else f" = {_initial_value(variable)}"
    align = f".align {variable.alignment_bytes} "
    return f"{linkage}.{space} {attributes}{align}{vector}.{variable.type} {name}{_shape(variable)}{value};"


def _initial_value(variable: Variable) -> str:
    """The initial value, nested like the array."""
    size = variable.element_bytes
    data = variable.initial or b""
    addresses = {r.offset_bytes: r for r in variable.relocations}

    def element(offset: int) -> str:
        if offset in addresses:
            return _address(addresses[offset])
        bits = int.from_bytes(data[offset : offset + size], "little")
        if variable.type[0] != "f":
            return str(bits)
        return f"0f{bits:08X}" if size == 4 else f"0d{bits:016X}"

    def nest(shape: tuple[int, ...], offset: int) -> str:
        if not shape:
            return element(offset)
        stride = size * prod(shape[1:])
        given = range(offset, min(offset + shape[0] * stride, len(data)), stride)
        return "{" + ", ".join(nest(shape[1:], at) for at in given) + "}"

    return nest(variable.shape, 0)


def _address(relocation: Relocation) -> str:
    """An address in an initial value."""
    name = f"generic({relocation.symbol})" if relocation.generic else relocation.symbol
    if relocation.size_bytes == 1:
        name = f"{0xFF << relocation.shift_bits:#x}({relocation.symbol})"
    return f"{name}+{relocation.addend}" if relocation.addend else name


def _pragma(text: str) -> str:
    """`.pragma "text";`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'.pragma "{escaped}";'


class _Body:
    """The inside of one function, with names made unique over all of its scopes."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function = function
        shared = module.variables
        self.own = [v for v in function.variables if v.name not in shared or shared[v.name].line != v.line]
        uses = Counter([r.name for r in function.registers] + [v.name for v in self.own])
        uses.update(label.name for label in function.labels)
        uses.update([*(v.name for v in function.params), *module.variables, *module.functions])
        taken = set(uses)
        self.registers = {r.id: self._unique(r.name, uses, taken) for r in function.registers}
        self.variables = {(v.space, v.line, v.name): self._unique(v.name, uses, taken) for v in self.own}
        self.labels = {(lb.name, lb.index): self._unique(lb.name, uses, taken) for lb in function.labels}
        self.targets = 0

    @staticmethod
    def _unique(name: str, uses: Counter[str], taken: set[str]) -> str:
        """The name itself if nothing else has it, or one made from it."""
        if uses[name] == 1 and "." not in name:
            return name
        number = 0
        while (fresh := f"{name.replace('.', '$')}${number}") in taken:
            number += 1
        taken.add(fresh)
        return fresh

    def lines(self) -> Iterator[str]:
        """Declarations, then labels and instructions."""
        for register in self.function.registers:
            yield f"\t.reg .{register.type} {self.registers[register.id]};"
        for variable in self.own:
            yield "\t" + _variable(variable, self.variables[variable.space, variable.line, variable.name])
        before: dict[int, list[str]] = {}
        for label in self.function.labels:
            before.setdefault(label.index, []).append(f"{self.labels[label.name, label.index]}:")
        for index, text in self.function.pragmas:
            before.setdefault(index, []).append(f"\t{_pragma(text)}")
        for instruction in self.function.instructions:
            yield from before.get(instruction.index, ())
            yield from self._instruction(instruction)
        yield from before.get(len(self.function.instructions), ())

    def _instruction(self, instruction: Instruction) -> Iterator[str]:
        """One instruction, after the list of branch targets it needs."""
        operands = []
        for operand in instruction.operands:
            if isinstance(operand, BranchTargets):
                self.targets += 1
                operand = replace(operand, name=f"$targets${self.targets}")
                names = ", ".join(self.labels[label.name, label.index] for label in operand.labels)
                yield f"{operand.name}: .branchtargets {names};"
            operands.append(self._renamed(operand))
        guard = instruction.guard
        if guard is not None:
            guard = Guard(self._register(guard.register), guard.negated)
        yield f"\t{replace(instruction, operands=tuple(operands), guard=guard)}"

    def _register(self, register: Register) -> Register:
        """The register under its unique name."""
        return replace(register, name=self.registers[register.id])

    def _renamed(self, operand: Operand) -> Operand:
        """The operand with unique names."""
        match operand:
            case Register():
                return self._register(operand)
            case Symbol(space="prototype" | "calltargets"):
                raise ValueError(f"a call through {operand.name} is not printed")
            case Symbol(variable=Variable(name=name, space=space, line=line)):
                return replace(operand, name=self.variables.get((space, line, name), name))
            case Label():
                return replace(operand, name=self.labels[operand.name, operand.index])
            case Negated(register) | Part(register):
                return replace(operand, register=self._register(register))
            case Vector(elements):
                return Vector(tuple(map(self._renamed, elements)))  # type: ignore[arg-type]
            case Pair(first, second):
                return Pair(self._renamed(first), self._renamed(second))  # type: ignore[arg-type]
            case Address(Register() | Symbol() as base, offset):
                return Address(self._renamed(base), offset)  # type: ignore[arg-type]
            case TensorAddress(address, items):
                return TensorAddress(self._renamed(address), tuple(map(self._renamed, items)))  # type: ignore[arg-type]
            case Arguments(items):
                return Arguments(tuple(map(self._renamed, items)))
            case _:
                return operand
