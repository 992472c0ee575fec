"""A Blackwell SM in Python: runs compiled PTX on a CPU, checks every access, and says exactly where a kernel goes wrong.

    run, active, run_ptx     run a compiled CuTe DSL function, a whole program, or a PTX text (`api`)
    as_cuda                  a CPU tensor that the CuTe DSL takes for a CUDA tensor
    errors                   what can be wrong with a kernel

The rooms: `ptx` reads the text, `host` runs the compiled function's own host code, `isa` says what each instruction
does, `machine` runs warps, `values` and `lanes` are the language the instructions are defined in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.api import active, run, run_ptx
from mxfp8fa.emulator.errors import (
    BarrierError,
    DeadlockError,
    EmulationError,
    IllegalOperation,
    LaunchError,
    Misaligned,
    OutOfBounds,
    PoisonError,
    Site,
    SpinError,
    Trap,
    UnsupportedInstruction,
)
from mxfp8fa.emulator.report import LaunchReport, Report

if TYPE_CHECKING:
    from mxfp8fa.emulator.host import as_cuda

__all__ = [
    "BarrierError", "DeadlockError", "EmulationError", "IllegalOperation", "LaunchError", "LaunchReport", "Misaligned",
    "OutOfBounds", "PoisonError", "Report", "Site", "SpinError", "Trap", "UnsupportedInstruction", "active", "as_cuda",
    "run", "run_ptx",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "as_cuda":  # the host side is imported on first use
        from mxfp8fa.emulator.host import as_cuda

        return as_cuda
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
