"""An error in a kernel compiled with line information names the line of Python that did it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

import torch
from cutlass import cute

from mxfp8fa.emulator import OutOfBounds, run
from mxfp8fa.kernels import compile_kernel, gmem


@cute.kernel
def copy_too_much(mX: cute.Tensor, mY: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    value = mX[thread]
    mY[thread + 1] = value  # the last thread writes behind the tensor


@cute.jit
def launch_it(mX: cute.Tensor, mY: cute.Tensor):
    copy_too_much(mX, mY).launch(grid=(1, 1, 1), block=(64, 1, 1))


def test_the_error_names_file_and_line():
    x, y = torch.zeros(64), torch.zeros(64)
    compiled = compile_kernel(launch_it, gmem(x), gmem(y))
    with pytest.raises(OutOfBounds) as error:
        run(compiled, gmem(x), gmem(y))
    text = Path(__file__).read_text().splitlines()
    line = next(n for n, line in enumerate(text, 1) if "behind the tensor" in line)
    site = error.value.site
    assert site is not None and (site.warp, site.lane) == (1, 31)
    assert site.source.endswith(f"{Path(__file__).name}:{line}")
    assert "mY" in str(error.value)
