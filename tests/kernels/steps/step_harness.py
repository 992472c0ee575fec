"""Running a step and comparing it with its model."""

import re

import numpy as np
import torch

from mxfp8fa import emulator
from mxfp8fa.emulator.host import ptx_of


def run_step(compiled, arguments, **options):
    """Run in the emulator with everything switched on that can object, and expect it to be silent."""
    report = emulator.run(compiled, *arguments, wait_ld="required", check="races", **options)
    assert report.races == []
    return report


def empty(*shape):
    """Memory for a result: NaN with a payload that no arithmetic makes, so that an element never written shows."""
    return torch.from_numpy(np.full(shape, 0x7FABCDEF, np.uint32).view(np.float32))


def assert_same_bits(result, expected):
    """Bit for bit the same; any NaN equals any NaN, but not the filling of `empty`."""
    got, want = (np.ascontiguousarray(x, np.float32) for x in (result, expected))
    assert got.shape == want.shape
    assert not (got.view(np.uint32) == 0x7FABCDEF).any(), "some elements were never written"
    differ = (got.view(np.uint32) != want.view(np.uint32)) & ~(np.isnan(got) & np.isnan(want))
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{differ.sum()} of {differ.size} differ; first at {at}: {got[at]!r}, expected {want[at]!r}"
        )


def tables_of(step):
    """The tables that the step's records print, and the docstring of its file without its indentation."""
    return str(step.TMEM), str(step.BARRIERS), re.sub(r"(?m)^    ", "", step.__doc__)


def assert_columns_as_declared(step, compiled, arguments):
    """Every access to tensor memory is one that the step's map declares, and every declared one happens.

    An access belongs to the range that holds all of its columns; tcgen05.mma may read what it wrote (it accumulates).
    """
    lines = ptx_of(compiled).splitlines()
    trace = emulator.Trace()
    emulator.run(compiled, *arguments, trace=trace, wait_ld="required")
    seen = set()
    for access in trace.tensor_accesses:
        (instruction,) = re.findall(r"tcgen05\.(?:wait::)?[a-z]+", lines[access.ptx_line - 1])[:1]
        instruction = instruction.replace("wait::", "")  # where a load completes
        (home,) = [r for r in step.TMEM if r.start <= access.first_column and access.last_column < r.stop]
        declared = home.writer if access.write else f"{home.reader}, {home.writer}"
        assert instruction in declared.split(", "), f"{instruction} {access} is not in the map:\n{step.TMEM}"
        seen.add((home.name, instruction, access.write))
    for r in step.TMEM:
        for instruction in r.writer.split(", "):
            assert (r.name, instruction, True) in seen, f"{r.name} is never written by {instruction}"
        for instruction in r.reader.split(", "):
            assert (r.name, instruction, False) in seen, f"{r.name} is never read by {instruction}"
