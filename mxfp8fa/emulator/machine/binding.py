"""Binding: an instruction of the syntax tree and its definition become one Python function step(warp, bits).

`bits` are the threads that execute the instruction (guard applied). A step returns None to go on, or an `Outcome`.
Operands are resolved here, once: registers to indices, immediates to arrays, symbols to addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.errors import PoisonError, UnsupportedInstruction
from mxfp8fa.emulator.isa import trace
from mxfp8fa.emulator.isa.registry import REGISTRY, Definition, OperandSpec, why_refused
from mxfp8fa.emulator.lanes import LANES, raw_dtype
from mxfp8fa.emulator.machine.memory import SHARED_RANK_SHIFT
from mxfp8fa.emulator.machine.poison import propagation
from mxfp8fa.emulator.machine.special import special_register
from mxfp8fa.emulator.machine.warp import FULL, Outcome, Warp, bits_of, indices_of, lanes_of
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.values import BITS, is_float, is_signed

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.program import Program

Tracked = tuple[np.ndarray, np.ndarray | None]
Reader = Callable[[Warp], Tracked]
Step = Callable[[Warp, int], Outcome | None]


class BindError(Exception):
    """An operand does not fit its definition; the message says why."""


def register_dtype(register: syntax.Register) -> type:
    """dtype of a register's lanes (b128 registers have two u64 words per lane)."""
    return np.bool_ if register.type == "pred" else raw_dtype(f"u{min(register.bits, 64)}")


# -- reading ----------------------------------------------------------------------------------------------------------


def reader(operand: Any, value_type: str, program: Program) -> Reader:
    """A function that reads an operand as raw bits of value_type, with its poison."""
    if value_type == "b128":
        raise BindError("128-bit registers are supported by mov and clusterlaunchcontrol only")
    dtype = raw_dtype(value_type)
    if isinstance(operand, syntax.Negated):
        index = operand.register.id
        if operand.register.type != "pred" or value_type != "pred":
            raise BindError(f"operand {operand}: only predicates are negated, and only where predicates are read")
        return lambda w: (~w.regs[index], w.shadow[index])
    if isinstance(operand, syntax.Register):
        return _register_reader(operand, dtype, value_type)
    if isinstance(operand, syntax.Immediate):
        constant: np.ndarray = np.full(LANES, immediate_bits(operand, value_type), dtype)
        return lambda w: (constant, None)
    if isinstance(operand, syntax.SpecialRegister):
        read = special_register(operand)
        return lambda w: (_resize(read(w), dtype), None)
    if isinstance(operand, syntax.Symbol):
        address: np.ndarray = np.full(LANES, program.address_of(operand) & ((1 << BITS[value_type]) - 1), dtype)
        if operand.space == "shared":
            return lambda w: (address + dtype(w.cta.rank << SHARED_RANK_SHIFT), None)
        return lambda w: (address, None)
    raise BindError(f"operand {operand} cannot be read as {value_type}")


def _register_reader(register: syntax.Register, dtype: type, value_type: str) -> Reader:
    index = register.id
    if register.bits > 64:
        raise BindError(f"register {register} has {register.bits} bits, but the instruction reads {BITS[value_type]}")
    if (register.type == "pred") != (value_type == "pred"):
        raise BindError(f"register {register} is {register.type}, but {value_type} is needed")
    if register.bits < BITS[value_type]:  # ld, st and cvt may use wider registers, and nothing may use narrower ones
        raise BindError(f"register {register} has {register.bits} bits, but the instruction reads {BITS[value_type]}")
    if register_dtype(register) is dtype:
        return lambda w: (w.regs[index], w.shadow[index])

    def resized(w: Warp) -> Tracked:
        shadow = w.shadow[index]
        return w.regs[index].astype(dtype), None if shadow is None else shadow.astype(dtype)

    return resized


def immediate_bits(operand: syntax.Immediate, value_type: str) -> int:
    if value_type == "pred":
        return operand.integer_bits(1)
    width = BITS[value_type]
    try:
        if is_float(value_type) and width > 16 and operand.kind != "int":
            return operand.float_bits(width)
        return operand.integer_bits(width)
    except ValueError as error:
        raise BindError(str(error)) from None


def _resize(value: np.ndarray, dtype: type) -> np.ndarray:
    return value if value.dtype == dtype else value.astype(dtype)


def address_reader(operand: Any, program: Program) -> Reader:
    """A function that reads the address in `[base + offset]` as u64 lanes."""
    if not isinstance(operand, syntax.Address):
        raise BindError(f"operand {operand} is not an address")
    if operand.base is None:
        constant = np.full(LANES, operand.offset, np.uint64)
        return lambda w: (constant, None)
    narrow = isinstance(operand.base, syntax.Register) and operand.base.bits == 32
    base = _widened(reader(operand.base, "u32", program)) if narrow else reader(operand.base, "u64", program)
    if operand.offset == 0:
        return base
    offset = np.uint64(operand.offset & (2**64 - 1))

    def read(w: Warp) -> Tracked:
        value, shadow = base(w)
        value = value + offset
        return (value & np.uint64(0xFFFFFFFF) if narrow else value), shadow

    return read


def _widened(read: Reader) -> Reader:
    """An address of 32 bits as one of 64."""

    def widened(w: Warp) -> Tracked:
        value, shadow = read(w)
        return value.astype(np.uint64), None if shadow is None else shadow.astype(np.uint64)

    return widened


# -- writing ----------------------------------------------------------------------------------------------------------


def writer(operand: Any, value_type: str) -> Callable[[Warp, int, np.ndarray, np.ndarray | None], None]:
    """A function that writes raw bits of value_type, extended to the register's width."""
    if isinstance(operand, syntax.Sink):
        return lambda w, bits, value, shadow: None
    if not isinstance(operand, syntax.Register):
        raise BindError(f"operand {operand} cannot be written")
    index, dtype = operand.id, register_dtype(operand)
    if operand.bits > 64:
        raise BindError(f"register {operand} has {operand.bits} bits, but the result has {BITS[value_type]}")
    if (operand.type == "pred") != (value_type == "pred"):
        raise BindError(f"register {operand} is {operand.type}, but the result is {value_type}")
    if dtype is raw_dtype(value_type):
        return lambda w, bits, value, shadow: w.write(index, value, bits, shadow)
    if operand.bits < BITS[value_type]:
        raise BindError(f"register {operand} has {operand.bits} bits, but the result has {BITS[value_type]}")
    signed = getattr(np, f"int{BITS[value_type]}") if is_signed(value_type) else None

    def extended(w: Warp, bits: int, value: np.ndarray, shadow: np.ndarray | None) -> None:
        wide = value.astype(dtype) if signed is None else value.view(signed).astype(dtype)
        w.write(index, wide, bits, None if shadow is None else shadow.astype(dtype))

    return extended


# -- definitions ------------------------------------------------------------------------------------------------------


def match(instruction: syntax.Instruction) -> tuple[Definition, dict[str, Any]] | None:
    """The definition whose qualifiers, number and kinds of operands fit an instruction.

    Qualifiers are first read in the order of the ISA's syntax, then in any order.
    """
    key = (instruction.opcode, instruction.qualifiers, tuple(map(_kind, instruction.operands)))
    if key not in _MATCHED:
        _MATCHED[key] = _match(instruction)
    return _MATCHED[key]


_MATCHED: dict[Any, tuple[Definition, dict[str, Any]] | None] = {}


def _kind(operand: Any) -> tuple[type, bool]:
    """What `_fits` looks at."""
    register = operand.register if isinstance(operand, syntax.Negated) else operand
    return type(operand), isinstance(register, syntax.Register) and register.type == "pred"


def _match(instruction: syntax.Instruction) -> tuple[Definition, dict[str, Any]] | None:
    text = "".join(f".{q}" for q in instruction.qualifiers)
    fitting = [d for d in REGISTRY.get(instruction.opcode, ()) if _operands_fit(d, instruction)]
    for definition in fitting:
        modifiers = definition.modifiers(text)
        if modifiers is not None:
            return definition, modifiers
    for definition in fitting:
        modifiers = definition.modifiers_in_any_order(instruction.qualifiers)
        if modifiers is not None:
            return definition, modifiers
    return None


def _operands_fit(definition: Definition, instruction: syntax.Instruction) -> bool:
    specs = definition.operands
    count = len(instruction.operands)
    return sum(not s.optional for s in specs) <= count <= len(specs) and all(map(_fits, specs, instruction.operands))


def _fits(spec: OperandSpec, operand: Any) -> bool:
    if spec.kind == "address":
        return isinstance(operand, syntax.Address | syntax.TensorAddress)
    if isinstance(operand, syntax.Pair):
        return bool(spec.pair)
    register = operand.register if isinstance(operand, syntax.Negated) else operand
    if isinstance(register, syntax.Register) and spec.type in ("pred", "u32", "b32", "u64", "b64"):
        return (register.type == "pred") == (spec.type == "pred")
    return not isinstance(operand, syntax.Address)


def bind(instruction: syntax.Instruction, program: Program) -> Step:
    """The step function of an instruction.

    Raises:
        UnsupportedInstruction: no definition fits, or an operand does not.
    """
    found = match(instruction)
    if found is None:
        raise UnsupportedInstruction(_unknown(instruction))
    definition, modifiers = found
    if instruction.guard is not None and instruction.guard.register.type != "pred":
        raise UnsupportedInstruction(f"{instruction}: the guard {instruction.guard.register} is no predicate")
    try:
        if definition.kind == "control":
            return definition.function(instruction, program, **modifiers)
        step = (_bind_pure if definition.kind == "pure" else _bind_machine)(instruction, definition, modifiers, program)
    except BindError as error:
        raise UnsupportedInstruction(f"{instruction}: {error}") from None
    return step if instruction.guard is None else guarded(step, instruction.guard)


def _unknown(instruction: syntax.Instruction) -> str:
    refused = why_refused(instruction.mnemonic)
    if refused:
        return f"`{instruction}`: {refused}"
    known = REGISTRY.get(instruction.opcode, ())
    forms = "; ".join(d.pattern for d in known[:6])
    hint = f"known forms: {forms}" if known else f"no form of `{instruction.opcode}` is defined"
    return f"`{instruction}`: unknown instruction, modifier or operand; {hint}"


def guard_bits(warp: Warp, bits: int, guard: syntax.Guard) -> int:
    """The threads of bits in which a guard holds; a poisoned guard is an error."""
    index = guard.register.id
    shadow = warp.shadow[index]
    if shadow is not None:
        bad = np.nonzero(shadow & lanes_of(bits))[0]
        if bad.size:
            raise PoisonError(
                f"predicate {guard.register} was never written and decides what is executed", lane=int(bad[0])
            )
    found = bits_of(warp.regs[index])
    return bits & (~found if guard.negated else found)


def guarded(step: Step, guard: syntax.Guard) -> Step:
    """step for the threads in which the guard holds."""

    def run(warp: Warp, bits: int) -> Outcome | None:
        active = guard_bits(warp, bits, guard)
        return step(warp, active) if active else None

    return run


def flatten(
    instruction: syntax.Instruction, definition: Definition, modifiers: dict[str, Any], *, outputs: bool
) -> list[tuple[OperandSpec, Any, str]]:
    """(spec, operand, value type) of the outputs or of the inputs; a pair gives two outputs."""
    flat: list[tuple[OperandSpec, Any, str]] = []
    for spec, operand in zip(definition.operands, instruction.operands, strict=False):
        if spec.output != outputs:
            continue
        if isinstance(operand, syntax.Pair):
            flat.append((spec, operand.first, definition.operand_type(spec.type, modifiers)))
            flat.append((spec, operand.second, definition.operand_type(spec.pair_type, modifiers)))
        else:
            flat.append((spec, operand, definition.operand_type(spec.type, modifiers)))
    return flat


def _bind_pure(
    instruction: syntax.Instruction, definition: Definition, modifiers: dict[str, Any], program: Program
) -> Step:
    inputs = flatten(instruction, definition, modifiers, outputs=False)
    outputs = flatten(instruction, definition, modifiers, outputs=True)
    carry = (OperandSpec("carry", "pred"), syntax.Register("CC.CF", "pred", program.carry_register), "pred")
    inputs += [carry] if definition.extra.get("carry_in") else []
    outputs += [carry] if definition.extra.get("carry_out") else []
    nodes, _, result_types = trace.graph(definition, modifiers, len(inputs))
    evaluate = trace.compiled(definition, modifiers, len(inputs))
    readers = [reader(operand, t, program) for _, operand, t in inputs]
    writers = [writer(operand, t) for (_, operand, _), t in zip(outputs, result_types, strict=False)]
    propagate = propagation(definition, [s.name for s, _, _ in inputs], nodes, evaluate)
    member = _member_reader(definition, inputs, readers)
    sources = [_plain_source(operand, t) for _, operand, t in inputs]
    target = _plain_source(outputs[0][1], result_types[0]) if len(outputs) == 1 else None

    def step(warp: Warp, bits: int) -> Outcome | None:
        tracked = [read(warp) for read in readers]
        if member is not None and not warp.members_here(bits, member(warp)[0], instruction.mnemonic):
            return Outcome.BLOCKED
        mask = lanes_of(bits)
        results = evaluate(mask, *[t[0] for t in tracked])
        for t in tracked:
            if t[1] is not None:
                shadows = propagate(mask, tracked, results)
                break
        else:
            for write, result in zip(writers, results, strict=False):
                write(warp, bits, result, None)
            return None
        for write, result, shadow in zip(writers, results, shadows, strict=False):
            write(warp, bits, result, shadow)
        return None

    if member is None and isinstance(target, int) and all(x is not None for x in sources):
        return _fast_step(evaluate, sources, target, step)
    return step


def _plain_source(operand: Any, t: str) -> int | np.ndarray | None:
    """A register's index, an immediate's lanes, or None for an operand that needs its reader."""
    if isinstance(operand, syntax.Register) and register_dtype(operand) is raw_dtype(t):
        return operand.id
    if isinstance(operand, syntax.Immediate):
        return np.full(LANES, immediate_bits(operand, t), raw_dtype(t))
    return None


def _fast_step(
    evaluate: Callable[..., tuple[np.ndarray, ...]], sources: Sequence[Any], target: int, careful: Step
) -> Step:
    """The step of a pure instruction on plain registers without poison; anything else goes to `careful`.

    Most executed instructions are of this kind, so it is written out as straight Python.
    """
    registers = [x for x in sources if isinstance(x, int)]
    clean = " and ".join(f"shadow[{i}] is None" for i in registers) or "True"
    arguments = ", ".join(f"regs[{x}]" if isinstance(x, int) else f"k{n}" for n, x in enumerate(sources))
    text = f"""
def step(warp, bits):
    regs, shadow = warp.regs, warp.shadow
    if not ({clean}):
        return careful(warp, bits)
    result = evaluate(lanes_of(bits), {arguments})[0]
    if bits == {FULL}:
        regs[{target}] = result
        shadow[{target}] = None
    else:
        warp.write({target}, result, bits)
"""
    scope: dict[str, Any] = {"evaluate": evaluate, "careful": careful, "lanes_of": lanes_of}
    scope |= {f"k{n}": x for n, x in enumerate(sources) if not isinstance(x, int)}
    exec(compile(text, "<fast step>", "exec"), scope)  # written above from register numbers only
    return scope["step"]


def _member_reader(
    definition: Definition, inputs: Sequence[tuple[OperandSpec, Any, str]], readers: Sequence[Reader]
) -> Reader | None:
    name = definition.extra.get("membermask")
    return None if name is None else readers[[s.name for s, _, _ in inputs].index(name)]


def _bind_machine(
    instruction: syntax.Instruction, definition: Definition, modifiers: dict[str, Any], program: Program
) -> Step:
    tracked_names = definition.extra.get("tracked", ())
    _require_registers(instruction, modifiers)
    inputs = [
        _input(spec, operand, t, program, instruction, keep=spec.name in tracked_names)
        for spec, operand, t in flatten(instruction, definition, modifiers, outputs=False)
    ]
    writers = [
        writer(o, t)
        for _, operand, t in flatten(instruction, definition, modifiers, outputs=True)
        for o in (operand.elements if isinstance(operand, syntax.Vector) else _words(operand))
    ]
    function = definition.function
    late = definition.extra.get("late", False)
    targets = frozenset(
        registers_in([operand for _, operand, _ in flatten(instruction, definition, modifiers, outputs=True)])
    )

    def deliver(warp: Warp, bits: int, result: Any) -> None:
        for write, item in zip(writers, result if isinstance(result, list) else [result], strict=True):
            value, shadow = item if isinstance(item, tuple) else (item, None)
            write(warp, bits, value, shadow)

    def step(warp: Warp, bits: int) -> Outcome | None:
        result = function(warp, bits, *[get(warp, bits) for get in inputs], **modifiers)
        if result is None or isinstance(result, Outcome):
            return result
        if late:
            warp.defer(targets, lambda: deliver(warp, bits, result.read()), result.done)
        else:
            deliver(warp, bits, result)
        return None

    return step


_DATA_OPERANDS = {"ld": (0,), "ldu": (0,), "st": (1,), "atom": (0, 2), "red": (1,), "ldmatrix": (0,), "stmatrix": (1,)}
_TAKES_VECTORS = (*_DATA_OPERANDS, "cp", "clusterlaunchcontrol", "call")
_FRAGMENT_REGISTERS = {"16x128b": 2, "16x256b": 4}  # of one repetition of a tcgen05.ld or .st; 1 for the other shapes


def _require_registers(instruction: syntax.Instruction, modifiers: dict[str, Any]) -> None:
    """As many registers as the modifiers of a load, a store or an atomic say; vectors and coordinates only where they belong."""
    opcode, kind = instruction.opcode, instruction.qualifiers[0] if instruction.qualifiers else ""
    for i, operand in enumerate(instruction.operands):
        masks = (opcode, kind, i) == ("tcgen05", "mma", 4)  # tcgen05.mma [d], a, b, descriptor, {lanes}, ...
        fits = masks or opcode in _TAKES_VECTORS or (opcode == "tcgen05" and kind in ("ld", "st"))
        if isinstance(operand, syntax.Vector) and not fits:
            raise BindError(f"operand {operand} is a vector of registers, which {opcode} does not take there")
        if isinstance(operand, syntax.TensorAddress) and opcode != "cp":
            raise BindError(f"operand {operand} has coordinates, which {opcode} does not take")
    count, places = (
        int((modifiers.get("vec") or modifiers.get("num") or "x1")[1:]),
        _DATA_OPERANDS.get(instruction.opcode, ()),
    )
    if instruction.opcode == "tcgen05" and "num" in modifiers:
        count *= _FRAGMENT_REGISTERS.get(modifiers.get("shape", ""), 1)
        places = (0,) if instruction.qualifiers[0] == "ld" else (len(instruction.operands) - 1,)
    for i in places:
        operand = instruction.operands[i]
        given = len(operand.elements) if isinstance(operand, syntax.Vector) else 1
        if given != count and not isinstance(operand, syntax.Sink):
            raise BindError(f"operand {operand} has {given} element{'s' if given > 1 else ''}, but {count} are needed")


def register_only(instruction: syntax.Instruction) -> bool:
    """Whether an instruction only moves and computes registers of its own lane, and can neither wait nor fail."""
    if instruction.opcode == "mov":
        return True
    found = match(instruction)
    return found is not None and found[0].kind == "pure" and "membermask" not in found[0].extra


def branch_targets(instructions: Sequence[syntax.Instruction]) -> set[int]:
    """Instructions that some branch may go to."""
    operands = [operand for i in instructions for operand in i.operands]
    lists = [operand.labels for operand in operands if isinstance(operand, syntax.BranchTargets)]
    labels = [operand for operand in operands if isinstance(operand, syntax.Label)]
    return {label.index for label in [*labels, *(x for found in lists for x in found)]}


def registers_of(instruction: syntax.Instruction) -> Iterator[int]:
    """Ids of all registers an instruction names."""
    return registers_in([*instruction.operands, instruction.guard])


def registers_in(operands: Sequence[Any]) -> Iterator[int]:
    pending = list(operands)
    while pending:
        operand = pending.pop()
        if isinstance(operand, syntax.Register):
            yield operand.id
        elif isinstance(operand, syntax.Vector):
            pending += operand.elements
        elif isinstance(operand, syntax.Pair):
            pending += [operand.first, operand.second]
        elif isinstance(operand, syntax.Negated | syntax.Part | syntax.Guard):
            pending.append(operand.register)
        elif isinstance(operand, syntax.Address):
            pending.append(operand.base)
        elif isinstance(operand, syntax.TensorAddress):
            pending += [operand.address, *operand.items]
        elif isinstance(operand, syntax.Arguments):
            pending += operand.items


def _words(operand: Any) -> list[Any]:
    """A b128 register is written as two 64-bit words, any other operand as itself."""
    if isinstance(operand, syntax.Register) and operand.type == "b128":
        raise BindError("128-bit registers are supported by mov and clusterlaunchcontrol only")
    return [operand]


def _input(
    spec: OperandSpec, operand: Any, t: str, program: Program, instruction: syntax.Instruction, *, keep: bool
) -> Callable[[Warp, int], Any]:
    """How a machine definition receives an operand: an array, or a list for a vector; (array, shadow) pairs if `keep`."""
    vector = isinstance(operand, syntax.Vector | syntax.TensorAddress)
    if isinstance(operand, syntax.TensorAddress):
        readers = [address_reader(operand.address, program), *(reader(x, "u32", program) for x in operand.coordinates)]
    elif spec.kind == "address":
        readers = [address_reader(operand, program)]
    else:
        readers = [reader(o, t, program) for o in (operand.elements if vector else [operand])]
    what = "an address" if spec.kind == "address" else f"operand `{operand}`"

    def get(warp: Warp, bits: int) -> Any:
        found = [read(warp) for read in readers]
        if keep:
            return found
        for _, shadow in found:
            if shadow is not None:
                _refuse(shadow, bits, f"{what} of {instruction.mnemonic}")
        return [value for value, _ in found] if vector else found[0][0]

    return get


def _refuse(shadow: np.ndarray, bits: int, where: str) -> None:
    lanes = indices_of(bits)
    bad = np.nonzero(shadow[lanes])[0]
    if bad.size:
        raise PoisonError(f"a value that was never written reaches {where}", lane=int(lanes[bad[0]]))
