"""wait_ld="required": registers of tcgen05.ld before and after tcgen05.wait::ld."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor.kernels import run, tensor_in, tensor_out

SOURCE = np.arange(128 * 8, dtype=np.uint32).reshape(128, 8)
LOAD = " shl.b32 %b0, %warp, 21; add.u32 %b0, %b0, %r5; tcgen05.ld.sync.aligned.32x32b.x2.b32 {%b2, %b3}, [%b0];\n"
WAIT = " tcgen05.wait::ld.sync.aligned;\n"
OUT = " mul.wide.u32 %x0, %r1, 8; add.u64 %x0, %x0, %rd1; st.global.v2.b32 [%x0], {%b4, %b5};\n"


def result(between: str, after: str = "", schedule: str = "lazy") -> np.ndarray:
    out = np.zeros((128, 2), np.uint32)
    body = tensor_in(0, 8) + LOAD + between + WAIT + after + OUT
    run(body, out, SOURCE, columns=32, wait_ld="required", schedule=schedule)
    return out


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_moves_may_come_before_the_wait(schedule):
    """Compilers pack the registers into pairs there; nothing is computed from them yet."""
    out = result("mov.b64 %x1, {%b2, %b3}; mov.b64 %x2, %x1;", "mov.b64 {%b4, %b5}, %x2;", schedule)
    np.testing.assert_array_equal(out, SOURCE[:, :2])


def test_arithmetic_may_not():
    with pytest.raises(em.EmulationError, match=r"never written"):
        result("add.u32 %b4, %b2, 1; add.u32 %b5, %b3, 1;")


def test_the_address_is_no_late_register():
    """The base address of a load serves the next instruction, here a store into the same columns."""
    out = np.zeros((128, 8), np.uint32)
    store = " tcgen05.st.sync.aligned.32x32b.x2.b32 [%b0], {%b3, %b2}; tcgen05.wait::st.sync.aligned;\n"
    run(tensor_in(0, 8) + LOAD + WAIT + store + tensor_out(8), out, SOURCE, columns=32, wait_ld="required")
    np.testing.assert_array_equal(out, SOURCE[:, [1, 0, 2, 3, 4, 5, 6, 7]])
