"""A stand-in for the kernel, for what is tested here and has nothing to do with it: the NumPy model behind its interface."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.numerics import MXTensor, attention_mxfp8  # noqa: E402


class StandIn(ModuleType):
    """`mxfp8fa.kernels.forward` as far as the API knows it; `calls` are the arguments it was given."""

    def __init__(self):
        super().__init__("mxfp8fa.kernels.forward")
        self.calls = []

    def forward(self, q, k, v, *, softmax_scale, causal, options, out_dtype, sequences=None):
        self.calls.append((q, k, v, softmax_scale, causal, options, out_dtype))
        tensors = [x.to_mx_tensor() for x in (q, k, v)]
        options = replace(options, k_mean=False, out_dtype="auto")  # done by the API, and done below
        cu = {}
        if sequences is not None:
            cu = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), map(np.asarray, sequences.offsets()), strict=True))
            if sequences.cu_seqlens_q is None:
                tensors[0] = copies(tensors[0], cu["cu_seqlens_q"])
        o, lse = attention_mxfp8(*tensors, softmax_scale=softmax_scale, causal=causal, options=options, **cu)
        return torch.from_numpy(o.astype(np.float32)).to(out_dtype), torch.from_numpy(lse)


def copies(q, cu_seqlens):
    """The queries that all sequences share, once for each of them."""
    codes, scale = (np.tile(x, (len(cu_seqlens) - 1, 1, 1)) for x in (q.codes, q.scale_e8m0))
    return MXTensor(codes, scale, q.fmt, q.axes, cu_seqlens)


@pytest.fixture
def stand_in(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "mxfp8fa.kernels.forward", module)
    return module
