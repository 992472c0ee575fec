"""Every pure instruction form of the registry as a small PTX kernel, so that it can be run on a GPU and compared.

`forms()` spells out what the patterns allow: each alternative of each qualifier, with and without each option. `kernel`
writes one form as an entry point: thread i loads element i of each input array, executes the instruction once and
stores the raw results.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mxfp8fa.emulator.isa.registry import REGISTRY, Definition
from mxfp8fa.emulator.values import BITS

BLOCK_THREADS = 128
IMMEDIATES = {("lop3", "e"): tuple(range(256))}  # operands that must be constants: one instruction for each value
INTERNAL = ("inc", "dec")  # shared arithmetic of the atomics, not instructions of their own
POSITION_DEPENDENT = ("cvta", "isspacep", "mapa", "getctarank", "createpolicy")  # results are addresses, not values


@dataclass(frozen=True)
class Operand:
    """One operand as the kernel sees it: `type` is its value type, `ptx_type` what the pattern calls it."""

    name: str
    type: str
    ptx_type: str


CARRY_IN, CARRY_OUT = Operand("carry_in", "pred", "pred"), Operand("carry_out", "pred", "pred")


@dataclass(frozen=True)
class Form:
    """One spelling of a pure instruction.

    Attributes:
        mnemonic: opcode and qualifiers.
        definition, modifiers: what it means.
        inputs, outputs: the operands, a pair ``d|p`` as two outputs; a carry flag that is written is the last output.
        immediate: name of the operand that must be a constant, or "".
    """

    mnemonic: str
    definition: Definition
    modifiers: dict[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    immediate: str = ""

    @property
    def key(self) -> str:
        """Name of the form: mnemonic and number of inputs."""
        return f"{self.mnemonic}/{len(self.inputs)}"

    @property
    def constants(self) -> tuple[int, ...]:
        """Values of the immediate operand; (0,) if there is none."""
        return IMMEDIATES[(self.definition.opcode, self.immediate)] if self.immediate else (0,)

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The inputs that come from memory; a carry flag that is read is the last."""
        named = tuple(o for o in self.inputs if o.name != self.immediate)
        return (*named, CARRY_IN) if self.definition.extra.get("carry_in") else named

    @property
    def collective(self) -> bool:
        """Whether lanes exchange values: the results depend on which lanes take part."""
        return "membermask" in self.definition.extra or not self.inputs

    def __str__(self) -> str:
        return self.key


def qualifier_choices(definition: Definition) -> list[list[str]]:
    """For each qualifier of a pattern, the texts it may have ("" where it may be absent)."""
    mnemonic = definition.pattern.partition(" ")[0]
    found = []
    for optional, plain in re.findall(r"\{\.([^}]+)\}|\.([\w:]+)", mnemonic):
        name = optional or plain
        texts = [
            f".{c}" for c in definition.choices.get(re.sub(r"\W+", "_", name), definition.choices.get(name, (name,)))
        ]
        found.append(["", *texts] if optional else texts)
    return found


def _operands(
    definition: Definition, modifiers: dict[str, Any], *, optional: bool
) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    inputs: list[Operand] = []
    outputs: list[Operand] = []
    for spec in definition.operands:
        if spec.optional and not optional:
            continue
        written = Operand(
            spec.name, definition.operand_type(spec.type, modifiers), modifiers.get(spec.type) or spec.type
        )
        (outputs if spec.output else inputs).append(written)
        if spec.pair:
            outputs.append(Operand(spec.pair, definition.operand_type(spec.pair_type, modifiers), spec.pair_type))
    return tuple(inputs), (*outputs, CARRY_OUT) if definition.extra.get("carry_out") else tuple(outputs)


def forms_of(definition: Definition) -> Iterator[Form]:
    """The forms of one pure definition (each with and without its optional operands)."""
    for texts in itertools.product(*qualifier_choices(definition)):
        modifiers = definition.modifiers("".join(texts))
        if modifiers is None:
            raise ValueError(f"pattern {definition.pattern!r} does not accept its own spelling {''.join(texts)!r}")
        for with_optional in (False, True) if any(s.optional for s in definition.operands) else (True,):
            inputs, outputs = _operands(definition, modifiers, optional=with_optional)
            immediate = next((o.name for o in inputs if (definition.opcode, o.name) in IMMEDIATES), "")
            yield Form(definition.opcode + "".join(texts), definition, modifiers, inputs, outputs, immediate)


def forms() -> list[Form]:
    """Every form of every pure definition whose result depends on its operands only, in registry order."""
    import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)

    found = []
    for opcode, definitions in REGISTRY.items():
        if opcode not in INTERNAL + POSITION_DEPENDENT:
            found += [f for d in definitions if d.kind == "pure" for f in forms_of(d)]
    return found


# -- PTX --------------------------------------------------------------------------------------------------------------


def register_class(operand: Operand) -> str:
    """The untyped register that holds an operand."""
    return "pred" if operand.type == "pred" else f"b{BITS[operand.type]}"


def memory_type(operand: Operand) -> str:
    """The type with which an operand is loaded and stored; predicates are bytes."""
    return f"u{max(BITS[operand.type], 8)}"


def _load(operand: Operand, register: str, address: str) -> list[str]:
    if operand.type == "pred":
        return [f"ld.global.u8 %byte, [{address}];", f"setp.ne.u16 {register}, %byte, 0;"]
    return [f"ld.global.{memory_type(operand).replace('u', 'b')} {register}, [{address}];"]


def _store(operand: Operand, register: str, address: str) -> list[str]:
    if operand.type == "pred":
        return [f"selp.b16 %byte, 1, 0, {register};", f"st.global.u8 [{address}], %byte;"]
    return [f"st.global.{memory_type(operand).replace('u', 'b')} [{address}], {register};"]


def _clear(operand: Operand, register: str) -> str:
    if operand.type == "pred":
        return f"setp.ne.u32 {register}, 0, 0;"
    return f"mov.b{BITS[operand.type]} {register}, 0;"


def _instruction(form: Form, names: dict[str, str], constant: int) -> str:
    """The instruction with register names filled in; pairs are joined with |."""
    texts = []
    given = {o.name for o in form.inputs + form.outputs}
    for spec in form.definition.operands:
        if spec.name in given:
            text = str(constant) if spec.name == form.immediate else names[spec.name]
            texts.append(f"{text}|{names[spec.pair]}" if spec.pair else text)
    return f"{form.mnemonic} {', '.join(texts)};"


def _set_carry(form: Form) -> list[str]:
    """CC.CF = %carry_in_: by a sum that overflows, for subtractions by a difference that borrows."""
    if CARRY_IN not in form.arrays:
        return []
    overflow = (
        "sub.cc.u32 %flag, 0, %flag;" if form.definition.opcode == "subc" else "add.cc.u32 %flag, %flag, 0xFFFFFFFF;"
    )
    return [f"selp.b32 %flag, 1, 0, %{CARRY_IN.name}_;", overflow]


def _get_carry(form: Form) -> list[str]:
    """%carry_out_ = CC.CF."""
    if CARRY_OUT not in form.outputs:
        return []
    operation = "subc" if form.definition.opcode.startswith("sub") else "addc"
    return [f"{operation}.u32 %flag, 0, 0;", f"setp.ne.u32 %{CARRY_OUT.name}_, %flag, 0;"]


def kernel(form: Form, name: str) -> str:
    """PTX of an entry point that executes `form` once per thread (for each constant, where one is needed).

    Parameters: one array per entry of `form.arrays`; for collectives a byte array that says which threads take part;
    one array per output, with the results for constant k at k * (number of threads); the number of threads (u32).
    """
    arrays = [*form.arrays, *([Operand("active", "pred", "pred")] if form.collective else [])]
    names = {o.name: f"%{o.name}_" for o in (*arrays, *form.outputs)}
    lines = [f"    .reg .{register_class(o)} {names[o.name]};" for o in (*arrays, *form.outputs)]
    parameters = [f".param .u64 p{i}" for i in range(len(arrays) + len(form.outputs))] + [".param .u32 threads"]
    body = ["ld.param.u32 %count, [threads];", "mov.u32 %i, %ctaid.x;", f"shl.b32 %i, %i, {BLOCK_THREADS.bit_length() - 1};",
            "mov.u32 %t, %tid.x;", "add.u32 %i, %i, %t;"]  # fmt: skip
    for i, operand in enumerate(arrays):
        body += _address(f"p{i}", "%i", operand) + _load(operand, names[operand.name], "%at")
    for k, constant in enumerate(form.constants):
        if form.collective:
            body += [_clear(o, names[o.name]) for o in form.outputs]
        guard = f"@{names['active']} " if form.collective else ""
        body += [*_set_carry(form), guard + _instruction(form, names, constant), *_get_carry(form)]
        for i, operand in enumerate(form.outputs):
            body += [f"mad.lo.u32 %where, %count, {k}, %i;", *_address(f"p{len(arrays) + i}", "%where", operand)]
            body += _store(operand, names[operand.name], "%at")
    body.append("ret;")
    head = [f".visible .entry {name}({', '.join(parameters)})", "{", *lines]
    head += [
        "    .reg .b64 %at;",
        "    .reg .b64 %off;",
        "    .reg .b32 %i, %t, %where, %count, %flag;",
        "    .reg .b16 %byte;",
    ]
    return "\n".join([*head, *(f"    {line}" for line in body), "}"])


def _address(parameter: str, index: str, operand: Operand) -> list[str]:
    size = max(BITS[operand.type], 8) // 8
    return [f"ld.param.u64 %at, [{parameter}];", f"mul.wide.u32 %off, {index}, {size};", "add.u64 %at, %at, %off;"]


def module(entries: Sequence[str], *, version: str, target: str) -> str:
    """A PTX module of entry points."""
    return "\n".join([f".version {version}", f".target {target}", ".address_size 64", "", *entries, ""])
