"""A Blackwell SM in Python: runs compiled PTX on a CPU, checks every access, and says exactly where a kernel goes wrong.

    run, active, run_ptx     run a compiled CuTe DSL function, a whole program, or a PTX text (`api`)
    as_cuda                  a CPU tensor that the CuTe DSL takes for a CUDA tensor
    errors                   what can be wrong with a kernel

The rooms: `ptx` reads the text, `host` runs the compiled function's own host code, `isa` says what each instruction
does, `machine` runs warps, `values` and `lanes` are the language the instructions are defined in.
"""

from __future__ import annotations

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
from mxfp8fa.emulator.host import HostError, as_cuda  # from here on compiled functions keep their PTX
from mxfp8fa.emulator.report import LaunchReport, Report
from mxfp8fa.emulator.trace import Trace

__all__ = [
    "BarrierError", "DeadlockError", "EmulationError", "HostError", "IllegalOperation", "LaunchError", "LaunchReport",
    "Misaligned", "OutOfBounds", "PoisonError", "Report", "Site", "SpinError", "Trace", "Trap", "UnsupportedInstruction",
    "active", "as_cuda", "run", "run_ptx",
]  # fmt: skip
