"""Lines that say how far a run is."""

from __future__ import annotations

import numpy as np

import mxfp8fa.emulator as em
import mxfp8fa.emulator.api as api

from .kernels import kernel


def test_progress_goes_to_a_function_or_to_stderr(monkeypatch, capsys):
    monkeypatch.setattr(api, "_PROGRESS_EVERY_SECONDS", 0.0)
    out, lines = np.zeros(32, np.uint32), []
    keywords = {"grid": 3, "block": 32, "params": [out, out]}
    em.run_ptx(kernel(""), "k", progress=lines.append, **keywords)
    assert lines and lines[0].startswith("k: 0 of 3 CTAs, 0 warp-instructions")
    assert any(line.startswith("k: 2 of 3 CTAs") for line in lines)
    em.run_ptx(kernel(""), "k", progress=True, **keywords)
    assert "of 3 CTAs" in capsys.readouterr().err
    em.run_ptx(kernel(""), "k", **keywords)
    assert capsys.readouterr().err == ""
