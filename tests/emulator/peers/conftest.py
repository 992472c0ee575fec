"""Other people's packages for the emulator to run, and where each test leaves its line of the results table."""

import importlib.util
import os
import sys
import types

import pytest

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("QUACK_CACHE_ENABLED", "0")  # functions from a disk cache have no PTX


def pytest_collection_modifyitems(items):
    """Everything in this folder needs the extra `peers`."""
    for item in items:
        if __file__.rpartition("/")[0] in str(item.path):
            item.add_marker(pytest.mark.peers)


@pytest.fixture(scope="session")
def quack():
    """quack, without triton (which it needs for benchmarks only) where that is missing."""
    for needed in ("llvmlite", "torch", "cutlass.cute"):
        pytest.importorskip(needed)
    if importlib.util.find_spec("quack") is None:
        pytest.skip("needs quack-kernels")
    import mxfp8fa.emulator.host  # noqa: F401  (from here on compiled functions keep their PTX)

    stub = None
    if importlib.util.find_spec("triton") is None:
        import torch._inductor.compile_fx
        import torch._inductor.runtime.triton_compat  # noqa: F401  (torch's compiler would take the stub for triton)

        stub = types.ModuleType("triton")
        stub.runtime = types.SimpleNamespace(cache=types.SimpleNamespace(FileCacheManager=object))
        sys.modules["triton"] = stub
    import quack
    import quack.cache

    quack.cache.CACHE_ENABLED = False
    yield quack
    if stub is not None:
        del sys.modules["triton"]


@pytest.fixture(scope="session")
def flash_attn(quack):
    """flash_attn.cute, which imports quack."""
    return pytest.importorskip("flash_attn.cute")


@pytest.fixture(scope="session")
def cudnn(quack):
    """cudnn with its disk cache off: functions from it have no PTX."""
    patch = pytest.MonkeyPatch()
    patch.setenv("CUDNN_FRONTEND_DISABLE_COMPILED_CACHE", "1")
    yield pytest.importorskip("cudnn")
    patch.undo()


@pytest.fixture
def peer(request):
    """A function that runs a peer under every schedule of the test, checks it and records the line of the table."""
    from peer_check import check

    def run(kernel, shape, run, expected, *, schedules, **options):
        line = check(run, expected, schedules=schedules, **options)
        request.node.user_properties.append(("peer", {"kernel": kernel, "shape": shape, **line}))
        return line

    return run
