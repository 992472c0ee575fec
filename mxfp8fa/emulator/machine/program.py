"""A kernel ready to run: every instruction bound, every symbol placed, checked as a whole before the first one runs."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from mxfp8fa.emulator import isa  # noqa: F401  (fills the registry)
from mxfp8fa.emulator.errors import LaunchError, Site, UnsupportedInstruction
from mxfp8fa.emulator.machine.binding import Step, bind, branch_targets, register_dtype, register_only, registers_of
from mxfp8fa.emulator.machine.memory import LOCAL_WINDOW, SHARED_BASE, Range, array_range
from mxfp8fa.emulator.machine.warp import Outcome, Warp
from mxfp8fa.emulator.ptx import syntax
from mxfp8fa.emulator.ptx.module import Kernel, Module, align_up

_REPORTED_ERRORS = 8


class ModuleVariables:
    """A module's variables in global and constant memory: all its kernels share them, and launches follow one another.

    Attributes:
        memory: bytes by name.
    """

    def __init__(self, module: Module):
        self._declared = {name: v for name, v in module.variables.items() if v.space != "shared"}
        self.memory = {name: _aligned(v.size_bytes, 128) for name, v in self._declared.items()}
        self.reset()

    def reset(self) -> None:
        """Give every variable its initial value, as loading the module does."""
        for name, memory in self.memory.items():
            variable = self._declared[name]
            memory[:] = 0
            if variable.initial:
                memory[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
            for r in variable.relocations:
                if r.symbol not in self.memory:
                    raise UnsupportedInstruction(
                        f"variable {name} holds the address of {r.symbol}, which is not supported"
                    )
                value = (self.memory[r.symbol].ctypes.data + r.addend) >> r.shift_bits
                memory[r.offset_bytes : r.offset_bytes + r.size_bytes] = np.frombuffer(
                    value.to_bytes(8, "little"), np.uint8
                )[: r.size_bytes]


class Program:
    """A bound kernel.

    Attributes:
        variables: of its module.
        steps: one function per instruction.
        counts: executions per instruction, of the current launch.
        interior: per instruction, whether no turn may end before it.
        parameters: the parameter block (real memory, so that its address can be taken).
    """

    def __init__(self, module: Module, kernel: Kernel, variables: ModuleVariables | None = None):
        self.module = module
        self.kernel = kernel
        self.instructions = kernel.instructions
        self.static_shared_bytes = kernel.dynamic_shared_offset_bytes
        self._call_params, self.local_bytes = _place_call_params(kernel)
        self.parameters = _aligned(max(kernel.param_bytes, 1), 128)
        self.variables = ModuleVariables(module) if variables is None else variables
        self._texts: dict[int, tuple[int, str, str]] = {}
        self._named: dict[int, frozenset[int]] = {}
        self.carry_register = len(kernel.registers)  # the condition code CC.CF, which instructions do not name
        self.blank_registers = [*(_blank(r) for r in kernel.registers), np.zeros(32, np.bool_)]
        self.blank_shadow: list[np.ndarray | None] = [~b for b in self.blank_registers]
        self.steps: list[Step] = self._bind()
        self.counts = [0] * len(self.steps)
        self.interior = self._find_interior()
        self.engine: Any = None  # compiled code, see `emulator.compiled`

    def _find_interior(self) -> list[bool]:
        """Instructions before which no turn ends: this one and the one before only move and compute registers."""
        inside = [register_only(i) for i in self.instructions]
        found = [False, *(a and b for a, b in pairwise(inside)), False, False]
        for target in branch_targets(self.instructions):
            found[target] = False
        return found

    def _bind(self) -> list[Step]:
        """Bind all instructions; report the first few that cannot be."""
        steps, problems = [], []
        for instruction in self.instructions:
            try:
                steps.append(bind(instruction, self))
            except UnsupportedInstruction as error:
                problems.append(f"PTX line {instruction.ptx_line}: {error.message}")
        if problems:
            more = f"\n  and {len(problems) - _REPORTED_ERRORS} more" if len(problems) > _REPORTED_ERRORS else ""
            text = "\n  ".join(problems[:_REPORTED_ERRORS])
            raise UnsupportedInstruction(f"kernel {self.kernel.name} cannot be emulated:\n  {text}{more}")
        steps.append(_run_off_the_end)
        return steps

    def registers_named(self, pc: int) -> frozenset[int]:
        """Ids of the registers that instruction pc reads or writes."""
        if pc not in self._named:
            self._named[pc] = (
                frozenset(registers_of(self.instructions[pc])) if pc < len(self.instructions) else frozenset()
            )
        return self._named[pc]

    # -- memory -------------------------------------------------------------------------------------------------------

    def ranges(self) -> list[Range]:
        """Global memory that belongs to the kernel itself: its parameters and its module's variables."""
        own = [array_range(self.parameters, "the kernel's parameters")]
        return own + [array_range(m, f"variable {name}") for name, m in self.variables.memory.items()]

    def address_of(self, symbol: syntax.Symbol) -> int:
        """The address a symbol stands for, in its own state space."""
        variable = symbol.variable
        if variable is None:
            raise UnsupportedInstruction(f"the address of {symbol} ({symbol.space}) is not supported")
        if variable.space == "param":
            return self.parameters.ctypes.data + (variable.offset_bytes or 0) + symbol.addend
        if variable.space == "shared":
            place = (
                variable.offset_bytes if variable.offset_bytes is not None else self.kernel.dynamic_shared_offset_bytes
            )
            return SHARED_BASE + place + symbol.addend  # in the CTA of rank 0; readers add the rank
        if variable.space == "local":
            return (variable.offset_bytes or 0) + symbol.addend
        if variable.space == "callparam":
            return LOCAL_WINDOW + self._call_params[id(variable)] + symbol.addend
        if variable.name in self.variables.memory:
            return self.variables.memory[variable.name].ctypes.data + symbol.addend
        raise UnsupportedInstruction(f"the address of {symbol} ({symbol.space}) is not supported")

    def begin(self, params: bytes) -> None:
        """Prepare a launch: fill the parameter block, forget the counts of the last launch."""
        self.counts = [0] * len(self.steps)
        if len(params) != self.kernel.param_bytes:
            raise LaunchError(
                f"kernel {self.kernel.name} takes {self.kernel.param_bytes} bytes of parameters, {len(params)} were given"
            )
        if params:
            self.parameters[: len(params)] = np.frombuffer(params, np.uint8)

    def collect_counts(self) -> None:
        """Add what compiled code executed to the counts."""
        if self.engine is not None:
            self.engine.add_counts(self.counts)

    # -- reports ------------------------------------------------------------------------------------------------------

    def opcode_counts(self) -> Counter[str]:
        """Warp-instructions executed, by mnemonic."""
        counts: Counter[str] = Counter()
        for instruction, n in zip(self.instructions, self.counts, strict=False):
            if n:
                counts[instruction.mnemonic] += n
        return counts

    def site(self, pc: int, cta: tuple[int, int, int], warp: int, lane: int | None) -> Site:
        """Where instruction pc stands."""
        if pc >= len(self.instructions):
            return Site(self.kernel.name, cta, warp, lane, self.kernel.line, "(end of the kernel)")
        if pc not in self._texts:
            i = self.instructions[pc]
            self._texts[pc] = i.ptx_line, str(i), "" if i.source is None or not i.source.line else str(i.source)
        line, text, source = self._texts[pc]
        return Site(self.kernel.name, cta, warp, lane, line, text, source)


def _place_call_params(kernel: Kernel) -> tuple[dict[int, int], int]:
    """Offsets in local memory of the variables that carry arguments of calls, and the local bytes of a thread with them."""
    end, places = kernel.local_bytes, {}
    for variable in kernel.variables:
        if variable.space == "callparam":
            end = align_up(end, variable.alignment_bytes)
            places[id(variable)] = end
            end += variable.size_bytes
    return places, end


def _run_off_the_end(warp: Warp, bits: int) -> Outcome:
    return warp.retire(bits)


def _blank(register: syntax.Register) -> np.ndarray:
    dtype = register_dtype(register)
    return np.zeros((32, 2) if register.type == "b128" else 32, dtype)


def _aligned(size_bytes: int, alignment: int) -> np.ndarray:
    """A zeroed byte array whose address is a multiple of `alignment`."""
    raw = np.zeros(size_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size_bytes]


@lru_cache(maxsize=64)
def load_program(ptx: str, kernel: str) -> Program:
    """Parse and bind a kernel of a PTX text; the last 64 are kept."""
    module, variables = _load_module(ptx)
    if kernel not in module.kernels:
        raise LaunchError(f"there is no kernel {kernel!r} in this PTX; it has {', '.join(module.kernels) or 'none'}")
    return Program(module, module.kernels[kernel], variables)


@lru_cache(maxsize=64)
def _load_module(ptx: str) -> tuple[Module, ModuleVariables]:
    """Parse a PTX text, once for all its kernels."""
    from mxfp8fa.emulator.ptx import parse

    module = parse(ptx)
    return module, ModuleVariables(module)
