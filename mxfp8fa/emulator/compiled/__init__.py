"""The compiled evaluator: the definitions of `isa/` as machine code, for the instructions that a kernel repeats.

Nothing is defined twice. `translate` joins the graphs of a run of instructions into one, `emit` writes it as LLVM IR,
`region` makes it a function of the warp's registers, `jit` compiles and loads it, `engine` decides what is worth it, and
`runtime` runs a warp from one compiled function to the next. Whatever has no compiled form is executed by its Python
step, on the same registers; so is everything that is about to fail, so that errors are the same.
"""

from __future__ import annotations

from mxfp8fa.emulator.compiled.jit import available
from mxfp8fa.emulator.machine.evaluator import Evaluator


def evaluator_for(engine: str) -> Evaluator:
    """The evaluator of a launch: with machine code where `engine` is "compiled" and it can be made here."""
    if engine == "numpy" or not available():
        return Evaluator()
    from mxfp8fa.emulator.compiled.evaluator import CompiledEvaluator

    return CompiledEvaluator()


__all__ = ["available", "evaluator_for"]
