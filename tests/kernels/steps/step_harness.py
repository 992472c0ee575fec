"""Running a step and comparing it with its model."""

import re

import numpy as np
import torch

from mxfp8fa import emulator


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
