"""One launch, by the evaluator that its options ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator import compiled
from mxfp8fa.emulator.errors import EmulationError
from mxfp8fa.emulator.machine.machine import Machine

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
    from mxfp8fa.emulator.machine.memory import GlobalMemory
    from mxfp8fa.emulator.machine.program import Program
    from mxfp8fa.emulator.machine.watch import Watch


def run_machine(
    program: Program,
    launch: LaunchSpec,
    memory: GlobalMemory,
    options: Options,
    tick: Any = None,
    watch: Watch | None = None,
) -> Machine:
    """Run a launch; an error leaves nothing behind but itself."""
    machine = Machine(program, launch, memory, options, compiled.evaluator_for(options.engine), watch)
    try:
        with np.errstate(all="ignore"):
            machine.run(tick)
    except EmulationError:
        machine.resident.clear()
        raise
    finally:
        program.collect_counts()
    return machine
