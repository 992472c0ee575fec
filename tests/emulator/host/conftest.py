"""Compiled programs shared by the host tests; everything that needs the CuTe DSL is skipped without it."""

import os

import pytest

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")  # without it a machine with a GPU compiles for that GPU


@pytest.fixture(scope="session")
def programs():
    """The module with the CuTe DSL programs."""
    pytest.importorskip("llvmlite")
    pytest.importorskip("torch")
    pytest.importorskip("cutlass.cute")
    import mxfp8fa.emulator.host  # noqa: F401  (from here on compiled functions keep their PTX)

    return pytest.importorskip("host_programs")


@pytest.fixture(scope="session")
def scale_add(programs):
    """scale_add compiled for vectors of any length, times = 3."""
    import torch
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    a, b, c = (from_dlpack(torch.zeros(256)).mark_layout_dynamic() for _ in range(3))
    return cute.compile(programs.scale_add, a, 3, b, c, 1.0)


@pytest.fixture(scope="session")
def three_launches(programs):
    """three_launches compiled for two vectors of 512 elements."""
    import torch
    from cuda.bindings.driver import CUstream
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    a, b = from_dlpack(torch.zeros(512)), from_dlpack(torch.zeros(512))
    return cute.compile(programs.three_launches, a, b, 0, CUstream(0))


@pytest.fixture
def launches():
    """A list and the function that appends each launch to it."""

    class Launches(list):
        def __call__(self, launch):
            self.append(launch)

    return Launches()
