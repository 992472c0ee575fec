"""Hand-written kernels in the machine against a real GPU (an H200; see docs/silicon.md)."""

from __future__ import annotations

import numpy as np
import pytest
from measured import kept, results
from silicon.emulated import run_program
from silicon.programs import all_programs
from silicon.sample import program_entry

from mxfp8fa.emulator.errors import EmulationError, UnsupportedInstruction

PROGRAMS = kept()[1]
FAULTS = results()["faults"]


def _known(name: str) -> str:
    """Why a program is known to differ, or ""."""
    return results()["programs"][name].get("explanation", "")


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_results_are_those_of_the_gpu(name: str) -> None:
    """Every result, by checksum; a program that is known to differ may."""
    silicon = PROGRAMS[name]
    try:
        found = program_entry(all_programs()[name], run_program(all_programs()[name]))
    except UnsupportedInstruction:
        found = None
    if _known(name) and (found is None or found.checksum != silicon.checksum):
        pytest.skip(f"known difference: {_known(name)}")
    assert found is not None
    np.testing.assert_array_equal(found.words, silicon.words, err_msg=f"result number {silicon.index}")
    assert found.checksum == silicon.checksum, "the kept results agree, others do not"


@pytest.mark.parametrize("schedule", ["lazy", "random"])
@pytest.mark.parametrize(
    "name", [n for n in sorted(PROGRAMS) if n.startswith(("cp_async", "st_async", "red_async", "mbarrier"))]
)
def test_results_do_not_depend_on_the_schedule(name: str, schedule: str) -> None:
    if _known(name):
        pytest.skip(f"known difference: {_known(name)}")
    found = program_entry(all_programs()[name], run_program(all_programs()[name], schedule=schedule, seed=3))
    assert found.checksum == PROGRAMS[name].checksum


@pytest.mark.parametrize("name", sorted(n for n, f in FAULTS.items() if f["gpu"] != "no fault"))
def test_what_faults_on_the_gpu_is_refused(name: str) -> None:
    try:
        run_program(all_programs()[name])
    except EmulationError:
        return
    if FAULTS[name].get("explanation"):
        pytest.skip(f"known difference: {FAULTS[name]['explanation']}")
    pytest.fail("the GPU faults, the emulator goes on")


def test_every_difference_is_explained() -> None:
    for name, p in results()["programs"].items():
        assert p.get("mismatches") == 0 or p.get("explanation"), name
