"""The compiled evaluator: the definitions of `isa/` as machine code, for the instructions that a kernel repeats.

Nothing is defined twice. `translate` joins the graphs of a run of instructions into one, `emit` writes it as LLVM IR,
`region` makes it a function of the warp's registers, `jit` compiles and loads it, `engine` decides what is worth it, and
`runtime` runs a warp from one compiled function to the next. Whatever has no compiled form is executed by its Python
step, on the same registers; so is everything that is about to fail, so that errors are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxfp8fa.emulator.compiled.jit import available

if TYPE_CHECKING:
    from mxfp8fa.emulator.compiled.copies import Copies
    from mxfp8fa.emulator.compiled.turns import Turns
    from mxfp8fa.emulator.compiled.warp import CompiledWarp
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.program import Program


def prepare(program: Program) -> type[CompiledWarp]:
    """Get a program's compiled code ready for a launch; returns the class of its warps."""
    from mxfp8fa.emulator.compiled.engine import engine_of
    from mxfp8fa.emulator.compiled.warp import CompiledWarp

    engine_of(program).begin()
    return CompiledWarp


def eager(machine: Machine, quantum: int) -> tuple[Turns, Copies]:
    """What compiled code knows of a launch under the eager schedule: turns (of `quantum` instructions) and tensor maps."""
    from mxfp8fa.emulator.compiled.copies import Copies
    from mxfp8fa.emulator.compiled.turns import Turns

    return Turns(machine, quantum), Copies(machine.memory.ranges())


__all__ = ["available", "eager", "prepare"]
