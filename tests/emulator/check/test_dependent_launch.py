"""Programmatic dependent launch: what the launch before wrote is there after griddepcontrol.wait, not earlier."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llvmlite")
cutlass = pytest.importorskip("cutlass")

from cutlass import cute  # noqa: E402

from mxfp8fa import emulator  # noqa: E402
from mxfp8fa.kernels import compile_kernel, gmem  # noqa: E402


@cute.kernel
def produce(a: cute.Tensor) -> None:
    a[cute.arch.thread_idx()[0]] = 1.0


@cute.kernel
def consume(a: cute.Tensor, b: cute.Tensor, wait: cutlass.Constexpr[bool]) -> None:
    if cutlass.const_expr(wait):
        cute.arch.griddepcontrol_wait()
    b[cute.arch.thread_idx()[0]] = a[cute.arch.thread_idx()[0]]


@cute.jit
def both(a: cute.Tensor, b: cute.Tensor, wait: cutlass.Constexpr[bool], overlap: cutlass.Constexpr[bool]) -> None:
    produce(a).launch(grid=(1, 1, 1), block=(32, 1, 1))
    consume(a, b, wait).launch(grid=(1, 1, 1), block=(32, 1, 1), use_pdl=overlap)


@pytest.mark.parametrize(
    ("wait", "overlap", "silent"), [(True, True, True), (False, True, False), (False, False, True)]
)
def test_a_launch_that_may_overlap_the_one_before(wait, overlap, silent):
    a, b = torch.zeros(32), torch.zeros(32)
    args = gmem(a), gmem(b)
    report = emulator.run(compile_kernel(both, *args, wait, overlap), *args, check="races")
    assert (b == 1).all()
    assert (report.races == []) == silent
    if not silent:
        (found,) = report.races
        assert "griddepcontrol.wait is missing" in found.what and found.first[0] == "the launch before"
        assert found.first[1].text.startswith("st.") and "test_dependent_launch.py" in found.second[1].source
