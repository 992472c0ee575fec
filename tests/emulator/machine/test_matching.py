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


@pytest.mark.parametrize(
    "spelling", ["add.s32.s32", "add.sat", "add.sat.sat.s32", "add.sat.f16x4", "cvt.f32.rn.bf16x2"]
)
def test_not_a_form(spelling):
    with pytest.raises(em.UnsupportedInstruction, match="unknown instruction, modifier or operand"):
        launch(f" {spelling} %r9, %r9, %r9;", np.zeros(32, np.uint32))


MISFITS = {
    " ld.global.v2.u32 {%r3, %r4, %r5}, [%rd4];": "3 elements, but 2",
    " ld.global.v4.u32 %r3, [%rd4];": "1 element, but 4",
    " st.global.u32 [%rd4], {%r1, %r1};": "2 elements, but 1",
    " red.global.add.v4.f32 [%rd4], {%r1, %r1};": "2 elements, but 4",
    " ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3}, [%r2];": "1 element, but 4",
    " stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {%r1};": "1 element, but 2",
    " tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r3, %r4}, [%r2];": "2 elements, but 4",
    " tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r3, %r4}, [%r2];": "2 elements, but 4",
    " tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r1};": "1 element, but 2",
    " bar.sync {%r1, %r2};": "vector of registers",
    " tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], {%r1, %r1};": "vector of registers",
    " ld.global.u32 %r3, [%rd4, {%r1, %r1}];": "coordinates",
    " add.u64 %rd5, %q1, 1;": "128 bits",
    " add.u64 %q1, %rd4, 1;": "128 bits",
    " mov.b64 %q1, %rd4;": "128 bits",
    " @%r1 add.u32 %r3, %r1, 1;": "no predicate",
    " @%r1 bra END; END:": "no predicate",
    " add.u32 %r3, !%r1, 1;": "only predicates",
}


@pytest.mark.parametrize("body", MISFITS)
def test_operands_that_do_not_fit_are_refused_before_anything_runs(body):
    with pytest.raises(em.UnsupportedInstruction, match=MISFITS[body]):
        launch(body, np.zeros(32, np.uint32))
