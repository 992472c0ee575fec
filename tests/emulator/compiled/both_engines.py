"""Run every launch twice, by the Python steps and with compiled code, and hold memory, counts and errors together."""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np

from mxfp8fa.emulator import api
from mxfp8fa.emulator.errors import EmulationError


def memory_of(memory):
    """Copies of all valid global memory."""
    return [memory.bytes(r.address, r.size_bytes).copy() for r in memory._ranges]


def attempt(run, program, launch, *arguments):
    """(machine, error, executions per instruction) of one run."""
    program.begin(launch.params)
    try:
        return run(program, launch, *arguments), None, list(program.counts)
    except EmulationError as error:
        return None, error, list(program.counts)


@contextmanager
def both_engines():
    """While open, launches run with both engines; yields the programs that ran."""
    original, programs = api.run_machine, []

    def run(program, launch, memory, options, tick=None, watch=None):
        before = memory_of(memory)
        machine, error, counts = attempt(original, program, launch, memory, replace(options, engine="numpy"))
        expected = memory_of(memory)
        for r, data in zip(memory._ranges, before, strict=True):
            if r.writable:
                memory.bytes(r.address, r.size_bytes)[:] = data
        found = attempt(original, program, launch, memory, replace(options, engine="compiled"), tick, watch)
        programs.append(program)
        assert (str(error), type(error)) == (str(found[1]), type(found[1]))
        if error is not None:
            raise found[1]
        for r, want, got in zip(memory._ranges, expected, memory_of(memory), strict=True):
            assert np.array_equal(want, got), f"{r.name} differs"
        assert counts == found[2]
        assert machine.bytes_moved == found[0].bytes_moved
        assert machine.instructions == found[0].instructions
        return found[0]

    with mock.patch.object(api, "run_machine", run):
        yield programs
