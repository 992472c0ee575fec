"""figures/ holds what `mxfp8fa figures` draws, no more and no less."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from mxfp8fa.cli import figure_registry, main

FOLDER = Path(__file__).resolve().parents[1] / "figures"
# Drawn within a second each; the others are drawn by `make demo`.
CHEAP = ["formats", "block", "scale_rules"]


def test_no_figure_is_missing_and_none_left_over():
    present = {path.name for path in FOLDER.iterdir() if not path.name.startswith(".")}
    expected = {f"{name}.png" for name in figure_registry.FIGURES}
    assert not expected - present, "missing: run `mxfp8fa figures` and commit"
    assert not present - expected, "left over: delete, or register in mxfp8fa/cli/figure_registry.py"


def test_every_figure_says_what_it_shows():
    assert all(function.__doc__ for function in figure_registry.FIGURES.values())


def test_figures_are_the_same_bytes_in_another_process(tmp_path):
    assert main(["figures", "--only", *CHEAP, "--output", str(tmp_path / "here")]) == 0
    command = [sys.executable, "-m", "mxfp8fa", "figures", "--only", *CHEAP, "--output", str(tmp_path / "there")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    for name in CHEAP:
        here, there = ((tmp_path / side / f"{name}.png").read_bytes() for side in ("here", "there"))
        assert here == there, name
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(f"{name}.png" for name in CHEAP)
