"""Which definition an instruction gets: in the ISA's order of modifiers, in any other, or none."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.machine.kernels import launch


@pytest.mark.parametrize("spelling", ["add.sat.s32", "add.s32.sat"])
def test_modifiers_in_any_order(spelling):
    out = np.zeros(32, np.uint32)
    launch(f" mov.u32 %r9, 0x7FFFFFFF;\n {spelling} %r9, %r9, %r9;\n st.global.u32 [%rd4], %r9;", out)
    assert (out == 0x7FFFFFFF).all()


@pytest.mark.parametrize("spelling", ["add.s32.s32", "add.sat", "add.sat.sat.s32", "add.sat.f16x4", "cvt.f32.rn.bf16x2"])
def test_not_a_form(spelling):
    with pytest.raises(em.UnsupportedInstruction, match="unknown instruction, modifier or operand"):
        launch(f" {spelling} %r9, %r9, %r9;", np.zeros(32, np.uint32))
