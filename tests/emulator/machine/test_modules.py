"""Variables of a module: every run starts with their initial values, the launches of a run share them."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from mxfp8fa.emulator.machine.program import load_program
from mxfp8fa.emulator.report import Report

PTX = """
.version 8.7
.target sm_100a
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry first(.param .u64 out) { .reg .b32 %r<2>; .reg .b64 %d<2>;
 ld.param.u64 %d0, [out]; mov.u64 %d1, counter; atom.global.add.u32 %r0, [%d1], 1; st.global.u32 [%d0], %r0; ret; }
.visible .entry second(.param .u64 out) { .reg .b32 %r<2>; .reg .b64 %d<2>;
 ld.param.u64 %d0, [out]; mov.u64 %d1, counter; ld.global.u32 %r0, [%d1]; st.global.u32 [%d0], %r0; ret; }
.visible .entry wrong() { .reg .b64 %d<2>; mov.u64 %d1, counter; st.global.u32 [%d1], 9; trap; }
"""


def test_the_same_run_twice():
    for _ in range(2):
        out = np.zeros(1, np.uint32)
        em.run_ptx(PTX, "first", grid=3, block=1, params=[out])
        assert out == 7


def test_an_aborted_run_leaves_no_state_behind():
    with pytest.raises(em.Trap):
        em.run_ptx(PTX, "wrong", grid=1, block=1)
    out = np.zeros(1, np.uint32)
    em.run_ptx(PTX, "second", grid=1, block=1, params=[out])
    assert out == 5


def test_kernels_of_a_run_share_them():
    first, second = load_program(PTX, "first"), load_program(PTX, "second")
    assert first.variables is second.variables
    report = Report()
    report.load(first.variables)
    first.variables.memory["counter"][0] = 77
    report.load(second.variables)  # loaded already
    assert second.variables.memory["counter"][0] == 77
    Report().load(second.variables)
    assert first.variables.memory["counter"][0] == 5
