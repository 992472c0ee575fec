"""Other people's programs, unmodified: their own interfaces compile, and every launch arrives with their tensors."""

import importlib.util
import struct
import sys
import types

import pytest

from mxfp8fa.emulator.host import active, cuda_shims

pytestmark = [pytest.mark.peers, pytest.mark.slow]
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def quack(programs):
    """quack with its disk cache off, and without triton (which it needs for benchmarks only) where that is missing."""
    if importlib.util.find_spec("quack") is None:
        pytest.skip("needs quack-kernels")
    stub = None
    if importlib.util.find_spec("triton") is None:
        import torch._dynamo  # noqa: F401  (it would take the stub for triton)

        cache = types.SimpleNamespace(FileCacheManager=object)
        stub = types.ModuleType("triton")
        stub.runtime = types.SimpleNamespace(cache=cache)
        sys.modules["triton"] = stub
    import quack
    import quack.cache

    quack.cache.CACHE_ENABLED = False  # functions from the disk cache have no PTX
    yield quack
    if stub is not None:
        del sys.modules["triton"]


class Recorder:
    def __init__(self):
        self.names, self.launches, self.ranges = [], [], []

    def __call__(self, call):
        call.execute(self.launches.append)
        self.names.append(call.compiled.function_name)
        self.ranges.append({r.name: r.address for r in call.memory_ranges()})


def test_quack_rmsnorm_and_softmax(quack):
    from quack.rmsnorm import rmsnorm
    from quack.softmax import softmax

    recorder = Recorder()
    with cuda_shims(), active(recorder):
        x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(1024, device="cuda")
        normed, probabilities = rmsnorm(x, weight), softmax(x)
    assert ["RMSNorm" in recorder.names[0], "Softmax" in recorder.names[1]] == [True, True]
    for launch, ranges, out in zip(recorder.launches, recorder.ranges, (normed, probabilities), strict=True):
        pointers = [struct.unpack_from("<Q", p)[0] for p in launch.params if len(p) >= 8]
        assert x.data_ptr() in pointers and out.data_ptr() in pointers and out.shape == x.shape
        assert {x.data_ptr(), out.data_ptr()} <= set(ranges.values())


def test_flash_attention_4_forward_and_backward(quack):
    recorder = Recorder()
    with cuda_shims(sm_count=4), active(recorder):
        from flash_attn.cute import flash_attn_func

        q, k, v = (
            torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        out = flash_attn_func(q, k, v, causal=True)[0]
        out.sum().backward()
    kernels = [launch.kernel for launch in recorder.launches]
    parts = ["flash_fwd_sm100", "bwd_preprocess", "flash_bwd_sm100", "bwd_postprocess"]
    assert len(kernels) == 4 and all(part in kernel for part, kernel in zip(parts, kernels, strict=True))
    maps = [p for p in recorder.launches[0].params if len(p) == 128]
    addresses = {struct.unpack_from("<Q", m)[0] for m in maps}
    assert {q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()} <= addresses
    assert recorder.launches[2].cluster == (2, 1, 1)
    assert q.grad.shape == q.shape
