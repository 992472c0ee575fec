"""Step 7, all its warps and barriers, with both of the emulator's engines: not a bit, not a count differs."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

sys.path.insert(0, str(Path(__file__).parents[2] / "emulator" / "compiled"))

from attention_harness import check_attention, compile_attention, operands  # noqa: E402
from both_engines import both_engines  # noqa: E402

from mxfp8fa.kernels.steps import step7_warp_specialised as step  # noqa: E402


def test_step7_with_both_engines(schedule):
    kernel = compile_attention(step, step.warp_specialised, 0.11)(64)
    with both_engines() as programs:
        check_attention(step, kernel, *operands(64, 390, 64), 0.11, **schedule)
    assert programs
