"""Every pure instruction form against results of a real GPU (an H200; see docs/silicon.md)."""

from __future__ import annotations

import numpy as np
import pytest
from measured import kept, results
from silicon import forms as silicon_forms
from silicon.comparison import Outcome, approximate, compare
from silicon.emulated import run_form
from silicon.sample import Entry

from mxfp8fa.emulator.isa.snippets import BLOCK_THREADS

OPCODES = sorted(kept()[0])


def _outcome(entry: Entry) -> Outcome:
    form = silicon_forms.all_forms()[entry.key]
    emulator = silicon_forms.emulate(form, entry.arrays, entry.active)
    defined = silicon_forms.defined(form, entry.arrays, entry.active)
    return compare(form, entry.arrays, entry.outputs, emulator, defined)


@pytest.mark.parametrize("opcode", OPCODES)
def test_results_are_those_of_the_gpu(opcode: str) -> None:
    """Bit for bit; approximate functions within the distance that was measured on all inputs."""
    forms, measured = silicon_forms.all_forms(), results()
    for entry in kept()[0][opcode]:
        assert entry.key in forms, f"{entry.key} was measured on a GPU, but has no definition any more"
        outcome = _outcome(entry)
        if approximate(forms[entry.key]):
            bound = measured["approximate"][entry.key]
            assert outcome.mismatches == 0, outcome
            assert (outcome.max_ulp or 0) <= bound.get("max_ulp", 0), (entry.key, outcome)
            assert (outcome.max_absolute or 0) <= bound.get("max_absolute", 0), (entry.key, outcome)
        elif entry.key in measured["differ"]:
            assert measured["differ"][entry.key]["explanation"], f"{entry.key} differs from the GPU and nobody says why"
        else:
            assert outcome.mismatches == 0, (entry.key, outcome.examples)


def test_the_sample_covers_what_the_gpu_has() -> None:
    """Every form that exists on the GPU was measured, except those added since."""
    measured = {e.key for entries in kept()[0].values() for e in entries}
    absent = set(results()["not_on_device"])
    known = set(silicon_forms.all_forms())
    assert len(measured) > 5000
    assert not measured & absent
    assert len(known - measured - absent) < len(known) // 20, "many forms are new: measure again (docs/silicon.md)"


def _whole_blocks(entry: Entry) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Inputs repeated up to a multiple of the block size, and how many there were."""
    n = len(entry.active)
    index = np.arange(-(-n // BLOCK_THREADS) * BLOCK_THREADS) % n
    return [a[index] for a in entry.arrays], entry.active[index], n


@pytest.mark.parametrize("opcode", OPCODES)
def test_the_machine_gives_the_same_results(opcode: str) -> None:
    """The kernel that ran on the GPU, in the whole machine: front end, binding, warps, memory. First form of each opcode."""
    entry = kept()[0][opcode][0]
    form = silicon_forms.all_forms()[entry.key]
    arrays, active, n = _whole_blocks(entry)
    for machine, lanes in zip(run_form(form, arrays, active), silicon_forms.emulate(form, arrays, active), strict=True):
        np.testing.assert_array_equal(machine, lanes)
    assert n
