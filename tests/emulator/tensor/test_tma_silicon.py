"""TMA at the edges of its description against a real GPU (an H200; see docs/silicon_tma.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tma_h200 import table
from tma_h200.programs import all_programs

ROOT = Path(__file__).parents[3]
ABOUT, MEASURED = table.load(ROOT / "bench/results/tma_h200.npz")


def test_every_kernel_was_measured():
    assert set(all_programs()) == set(MEASURED) and ABOUT["device"] == "NVIDIA H200"


@pytest.mark.parametrize("name", all_programs())
def test_results_are_those_of_the_gpu(name):
    """Bit for bit; where the GPU faults, the emulator refuses."""
    found = table.compare(name, MEASURED[name])
    assert found["agrees"], found


@pytest.mark.parametrize("name", [n for n in all_programs() if n.startswith(("multicast", "remote", "edit.address"))])
@pytest.mark.parametrize("options", [{"schedule": "lazy"}, {"schedule": "random", "seed": 1}], ids=str)
def test_results_do_not_depend_on_the_schedule(name, options):
    np.testing.assert_array_equal(table.emulated(name, **options), MEASURED[name])


def test_the_committed_table_is_current(tmp_path):
    table.write(ROOT / "bench/results/tma_h200.npz", tmp_path / "r.json", tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text() == (ROOT / "docs/silicon_tma.md").read_text()
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(
        (ROOT / "bench/results/tma_h200.json").read_text()
    )
