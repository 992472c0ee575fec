"""mov, PTX ISA section 9.7.9: between registers, from special registers and symbols, packing and unpacking.

Moves are a third of all instructions in compiled kernels, so they get steps of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import UnsupportedInstruction
from mxfp8fa.emulator.isa.registry import define
from mxfp8fa.emulator.lanes import LANES, raw_dtype
from mxfp8fa.emulator.machine.binding import BindError, Step, guarded, reader, register_dtype, writer
from mxfp8fa.emulator.machine.warp import Warp, lanes_of
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.values import BITS, value_type

TYPES = (
    "pred",
    "b8",
    "b16",
    "b32",
    "b64",
    "u16",
    "u32",
    "u64",
    "s16",
    "s32",
    "s64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "f16x2",
    "bf16x2",
)


@define("control", "mov.type d, a", type=TYPES, section="9.7.9 mov")
def mov(instruction: syntax.Instruction, program: Any, *, type: str) -> Step:
    """d = a; {d, ...} = the parts of a, lowest first; d = the parts {a, ...}, lowest first."""
    to, source = instruction.operands
    try:
        if isinstance(source, syntax.Vector):
            step = _pack(to, source, value_type(type), program)
        elif isinstance(to, syntax.Vector):
            step = _unpack(to, source, value_type(type), program)
        else:
            step = _copy(to, source, "pred" if type == "pred" else f"u{BITS[value_type(type)]}", program)
    except BindError as error:
        raise UnsupportedInstruction(f"{instruction}: {error}") from None
    return step if instruction.guard is None else guarded(step, instruction.guard)


def _copy(to: Any, source: Any, t: str, program: Any) -> Step:
    if (
        isinstance(to, syntax.Register)
        and isinstance(source, syntax.Register)
        and register_dtype(to) is register_dtype(source)
        and max(to.bits, source.bits) <= 64
    ):
        target, index = to.id, source.id

        def move(warp: Warp, bits: int) -> None:
            warp.write(target, warp.regs[index], bits, warp.shadow[index])

        return move
    read, write = reader(source, t, program), writer(to, t)

    def step(warp: Warp, bits: int) -> None:
        write(warp, bits, *read(warp))

    return step


def _part_type(whole: str, count: int) -> str:
    width = BITS[whole] // count
    if count not in (2, 4, 8) or width not in (8, 16, 32, 64):
        raise BindError(f"{count} parts of a {BITS[whole]}-bit value")
    return f"u{width}"


def _pack(to: Any, source: syntax.Vector, whole: str, program: Any) -> Step:
    part = _part_type(whole, len(source.elements))
    readers = [reader(e, part, program) for e in source.elements]
    write, dtype = writer(to, f"u{BITS[whole]}"), raw_dtype(f"u{BITS[whole]}")

    part_dtype, count = raw_dtype(part), len(readers)

    def join(parts: list[Any]) -> np.ndarray:
        whole_: np.ndarray = np.zeros((LANES, count), part_dtype)
        for i, x in enumerate(parts):
            if x is not None:
                whole_[:, i] = x
        return whole_.view(dtype)[:, 0]

    def step(warp: Warp, bits: int) -> None:
        found = [read(warp) for read in readers]
        shadows = [s for _, s in found]
        clean = all(s is None for s in shadows)
        write(warp, bits, join([v for v, _ in found]), None if clean else join(shadows))

    return step


def _unpack(to: syntax.Vector, source: Any, whole: str, program: Any) -> Step:
    part = _part_type(whole, len(to.elements))
    read, dtype, count = reader(source, f"u{BITS[whole]}", program), raw_dtype(part), len(to.elements)
    writers = [writer(e, part) for e in to.elements]

    def step(warp: Warp, bits: int) -> None:
        value, shadow = read(warp)
        parts: np.ndarray = value.view(dtype)
        poison: np.ndarray | None = None if shadow is None else shadow.view(dtype)
        for i, write in enumerate(writers):
            p = None if poison is None or not poison[i::count].any() else poison[i::count].copy()
            write(warp, bits, parts[i::count].copy(), p)

    return step


@define("control", "mov.b128 d, a", section="9.7.9 mov")
def mov128(instruction: syntax.Instruction, program: Any) -> Step:
    """d = {a0, a1}, {d0, d1} = a, or d = a, of 128 bits in two 64-bit words."""
    to, source = instruction.operands
    if isinstance(source, syntax.Vector) and isinstance(to, syntax.Register):
        readers, target = [reader(e, "u64", program) for e in source.elements], to.id

        def pack(warp: Warp, bits: int) -> None:
            found = [read(warp) for read in readers]
            shadow = np.stack([np.zeros_like(v) if s is None else s for v, s in found], axis=1)
            _write_wide(warp, target, bits, np.stack([v for v, _ in found], axis=1), shadow)

        step: Step = pack
    elif isinstance(to, syntax.Vector) and isinstance(source, syntax.Register):
        writers, index = [writer(e, "u64") for e in to.elements], source.id

        def unpack(warp: Warp, bits: int) -> None:
            value, shadow = warp.regs[index], warp.shadow[index]
            for i, write in enumerate(writers):
                write(
                    warp,
                    bits,
                    np.ascontiguousarray(value[:, i]),
                    None if shadow is None else np.ascontiguousarray(shadow[:, i]),
                )

        step = unpack
    elif isinstance(to, syntax.Register) and isinstance(source, syntax.Register):
        target, index = to.id, source.id

        def move(warp: Warp, bits: int) -> None:
            shadow = warp.shadow[index]
            _write_wide(
                warp, target, bits, warp.regs[index], np.zeros_like(warp.regs[index]) if shadow is None else shadow
            )

        step = move
    else:
        raise UnsupportedInstruction(f"{instruction}: mov.b128 needs a 128-bit register")
    return step if instruction.guard is None else guarded(step, instruction.guard)


def _write_wide(warp: Warp, register: int, bits: int, value: np.ndarray, shadow: np.ndarray) -> None:
    """Write lanes of a 128-bit register, an array of shape (32, 2)."""
    mask = lanes_of(bits)[:, None]
    old = warp.shadow[register]
    merged = np.where(mask, shadow, 0 if old is None else old)
    warp.regs[register] = np.where(mask, value, warp.regs[register])
    warp.shadow[register] = merged if merged.any() else None
