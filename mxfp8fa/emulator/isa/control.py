"""Control flow and miscellaneous instructions, PTX ISA sections 9.7.12 and 9.7.19, and griddepcontrol.

Control definitions build their step themselves: f(instruction, program, **modifiers) -> step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import IllegalOperation, PoisonError, Trap, UnsupportedInstruction
from mxfp8fa.emulator.isa.barrier import uniform
from mxfp8fa.emulator.isa.registry import define, machine
from mxfp8fa.emulator.machine.binding import Step, guard_bits, reader
from mxfp8fa.emulator.machine.warp import Outcome, Warp, bits_of, indices_of, lanes_of
from mxfp8fa.emulator.ptx import syntax


@define("control", "bra{.uni} a", section="9.7.12 bra")
def bra(instruction: syntax.Instruction, program: Any, *, uni: bool = False) -> Step:
    """Go to a; with a guard, the threads in which it holds."""
    (label,) = instruction.operands
    if not isinstance(label, syntax.Label):
        raise UnsupportedInstruction(f"{instruction}: the target is not a label")
    target, guard = label.index, instruction.guard
    if guard is None:
        return lambda warp, bits: warp.branch(bits, target)

    def step(warp: Warp, bits: int) -> Outcome:
        taken = guard_bits(warp, bits, guard)
        if uni and taken not in (0, bits):
            raise IllegalOperation("bra.uni, but the threads of the warp disagree")
        return warp.branch(taken, target)

    return step


@define("control", "brx.idx{.uni} a, b", section="9.7.12 brx.idx")
def brx(instruction: syntax.Instruction, program: Any, *, uni: bool = False) -> Step:
    """Go to the a-th label of list b."""
    index, targets = instruction.operands
    if not isinstance(targets, syntax.BranchTargets):
        raise UnsupportedInstruction(f"{instruction}: the second operand is not a .branchtargets list")
    read, guard, labels = reader(index, "u32", program), instruction.guard, targets.labels

    def step(warp: Warp, bits: int) -> Outcome | None:
        active = bits if guard is None else guard_bits(warp, bits, guard)
        if not active:
            return None
        value, shadow = read(warp)
        if shadow is not None and shadow[lanes_of(active)].any():
            raise PoisonError("a value that was never written decides a branch", lane=int(indices_of(active)[0]))
        chosen = value[lanes_of(active)]
        if (chosen >= len(labels)).any():
            raise IllegalOperation(f"brx.idx with index {int(chosen.max())}: there are {len(labels)} targets")
        parts = [(labels[i].index, active & bits_of(value == i)) for i in np.unique(chosen)]
        return warp.scatter(parts, bits & ~active)

    return step


@define("control", "ret{.uni}", section="9.7.12 ret")
@define("control", "exit", section="9.7.12 exit")
def leave(instruction: syntax.Instruction, program: Any, *, uni: bool = False) -> Step:
    """The threads end (calls are not supported, so ret ends the kernel)."""
    guard = instruction.guard

    def step(warp: Warp, bits: int) -> Outcome | None:
        active = bits if guard is None else guard_bits(warp, bits, guard)
        return warp.retire(active) if active else None

    return step


@machine("trap", section="9.7.19 trap")
def trap(warp: Warp, bits: int) -> None:
    """Abort the kernel."""
    raise Trap(
        "the kernel executed trap (an assertion, or a path the compiler thinks impossible)",
        lane=int(indices_of(bits)[0]),
    )


@machine("brkpt", section="9.7.19 brkpt", not_modelled="debuggers")
@machine("pmevent{.mask} a", section="9.7.19 pmevent", not_modelled="performance counters")
def ignore(warp: Warp, bits: int, a: Any = None, *, mask: bool = False) -> None:
    """Nothing a program can see."""


@machine("nanosleep.u32 a", section="9.7.13 nanosleep", not_modelled="time: other warps run first, however long a is")
def nanosleep(warp: Warp, bits: int, a: np.ndarray) -> Outcome:
    """Let other warps run."""
    return Outcome.YIELD


@machine(
    "setmaxnreg.op.sync.aligned.u32 a",
    op=("inc", "dec"),
    section="9.7.19.5 setmaxnreg",
    not_modelled="the register pool: an increase never waits",
)
def setmaxnreg(warp: Warp, bits: int, a: np.ndarray, *, op: str) -> Outcome | None:
    """Change the registers per thread to a, a multiple of 8 from 24 to 256."""
    if not warp.converged(warp.live, "setmaxnreg"):
        return Outcome.BLOCKED
    count = uniform(bits, a, "the register count of setmaxnreg")
    if not 24 <= count <= 256 or count % 8:
        raise IllegalOperation(f"setmaxnreg to {count}: allowed are multiples of 8 from 24 to 256")
    return None


@machine(
    "griddepcontrol.op",
    op=("launch_dependents", "wait"),
    section="9.7.13 griddepcontrol",
    not_modelled="overlap of launches: each launch starts when the one before has ended",
)
def griddepcontrol(warp: Warp, bits: int, *, op: str) -> None:
    """Programmatic dependent launch."""
    if op == "wait":
        warp.machine.watch.fence("griddepcontrol.wait")
