"""The frame around hand-written PTX, and that an assembler takes what notebook 03 runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mxfp8fa.emulator as emulator
from mxfp8fa.emulator.ptx import parse
from mxfp8fa.studies.ptx import error_of, kernel, masked, numbered, outcome, registers

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "03_a_blackwell_sm_in_python.ipynb"
STORE = kernel("mad.wide.u32 %out, %thread, 4, %out;\nst.global.u32 [%out], %n;", "out n:u32")


def test_parameters_arrive_in_the_registers_of_their_names():
    out = np.zeros(32, np.uint32)
    emulator.run_ptx(STORE, "kernel", grid=1, block=32, params=[out, 7])
    assert (out == 7).all()
    assert [(p.name, p.type) for p in parse(STORE).kernels["kernel"].params] == [("out", "u64"), ("n", "u32")]


def test_numbers_are_those_of_error_messages():
    line = next(i for i, text in enumerate(STORE.splitlines(), 1) if text.startswith("st.global"))
    message = error_of(lambda: emulator.run_ptx(STORE, "kernel", grid=1, block=32, params=[np.zeros(4, np.uint32), 7]))
    assert f"PTX line {line}: st.global" in message and message.startswith("OutOfBounds: ")
    assert numbered(STORE, [line]) == f"{line:3}  st.global.u32 [%out], %n;"
    assert len(numbered(STORE).splitlines()) == STORE.count("\n")


def test_registers():
    assert registers("d", 3) == "{%d0, %d1, %d2}" and registers("d", 2, first=4) == "{%d4, %d5}"


def test_only_global_addresses_are_masked():
    assert masked("at 0x7ffe12345678: 0x400, 0x06080010") == "at 0x...: 0x400, 0x06080010"
    assert masked("(address 0x5614d1c18040...)") == "(address 0x...)"


def test_an_error_is_wanted():
    with pytest.raises(ValueError, match="without an error"):
        error_of(lambda: None)


@pytest.mark.parametrize("right", [True, False])
def test_outcome_of_a_run(right):
    def run(**options):
        return emulator.run_ptx(STORE, "kernel", grid=1, block=64, params=[np.zeros(64, np.uint32), 7], **options)

    assert outcome(run, lambda: right) == ("right" if right else "wrong", [])
    same = kernel("st.global.u32 [%out], %thread;", "out")
    races = outcome(
        lambda: emulator.run_ptx(same, "kernel", grid=1, block=64, params=[np.zeros(1, np.uint32)], check="races"),
        lambda: right,
    )
    assert races == ("right" if right else "wrong", ["race"])
    short = lambda: emulator.run_ptx(STORE, "kernel", grid=1, block=64, params=[np.zeros(1, np.uint32), 7])  # noqa: E731
    assert outcome(short, lambda: right) == ("OutOfBounds", [])


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
def test_ptxas_takes_what_notebook_03_runs(monkeypatch, tmp_path):
    """What runs in the emulator has to be PTX for sm_100a, not a dialect of ours."""
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("matplotlib").use("Agg")
    run_ptx, texts = emulator.run_ptx, set()

    def remember(ptx, *args, **keywords):
        texts.add(ptx)
        return run_ptx(ptx, *args, **keywords)

    monkeypatch.setattr(emulator, "run_ptx", remember)
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and not cell.metadata.get("tags"):
            exec(cell.source, names)
    names["plt"].close("all")
    assert len(texts) >= 8
    for text in texts:
        (tmp_path / "kernel.ptx").write_text(text)
        command = ["ptxas", "-arch=sm_100a", "-o", str(tmp_path / "kernel.cubin"), str(tmp_path / "kernel.ptx")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}\n{numbered(text)}"
