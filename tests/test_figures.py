"""figures/ holds what `mxfp8fa figures` draws, no more and no less."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from mxfp8fa.cli import figure_registry, figures, main

FOLDER = Path(__file__).resolve().parents[1] / "figures"
# Drawn within a second or two each; the others are drawn by `make demo`.
CHEAP = [
    name
    for name in ("formats", "block", "scale_rules", "timeline", "tensor_memory")
    if not figure_registry.why_not(name)
]


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
    for name in CHEAP:  # those from kernels are runs of the emulator: same seed, same picture
        here, there = ((tmp_path / side / f"{name}.png").read_bytes() for side in ("here", "there"))
        assert here == there, name
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(f"{name}.png" for name in CHEAP)


@pytest.fixture
def without_kernels(monkeypatch):
    """A machine on which the extra `kernels` is not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cutlass" else found(name))


def test_figures_from_kernels_are_skipped_with_a_reason_where_there_are_none(
    without_kernels, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(figures, "render", lambda name: name.encode())
    assert main(["figures", "--output", str(tmp_path)]) == 0
    drawn = {path.stem for path in tmp_path.iterdir()}
    assert drawn == set(figure_registry.FIGURES) - set(figure_registry.FROM_KERNELS)
    error = capsys.readouterr().err
    for name in figure_registry.FROM_KERNELS:
        assert f"skipped: {name} is drawn from a run of a compiled kernel and needs cutlass: pip install" in error
    assert f"[{len(drawn):2d}/{len(drawn)}]" in error


def test_asking_for_one_that_cannot_be_drawn_is_an_error(without_kernels, tmp_path, capsys):
    assert main(["figures", "--only", "formats", "timeline", "--output", str(tmp_path)]) == 2
    assert "error: timeline is drawn from a run" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_every_figure_from_kernels_is_a_figure():
    assert set(figure_registry.FROM_KERNELS) <= set(figure_registry.FIGURES)
