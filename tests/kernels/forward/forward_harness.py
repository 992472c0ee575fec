"""Data, model and checks of the forward kernel's tests."""

import numpy as np
import torch

from mxfp8fa import emulator
from mxfp8fa.kernels import MXOperand
from mxfp8fa.kernels.forward import forward_arguments
from mxfp8fa.kernels.forward.names import names
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, quantize

SCALE = 0.11
FILLING = 0x7FABCDEF  # a NaN that no arithmetic makes: an element never written shows


def values(batch, seqlen, heads, head_dim, seed, *, along="d"):
    """Normal values whose 32-blocks have powers of two of their own; one block is zero, one at the edge of its scale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, seqlen, heads, head_dim)).astype(np.float32)
    index = np.arange(head_dim) // 32 if along == "d" else np.arange(seqlen)[:, None, None] // 32
    x *= (2.0 ** ((index + np.arange(heads)[:, None] + 3 * np.arange(seqlen)[:, None, None]) % 7 - 3)).astype(np.float32)
    x[0, seqlen // 2, 0, :32] = 0
    x[0, seqlen // 3, 0, 32:64] = 448 * 2.0**-9
    return x


def operands(batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, *, square=False):
    """Quantized Q, K, V."""
    tensors = [
        values(batch, seqlen_q, heads_q, head_dim, 1),
        values(batch, seqlen_k, heads_kv, head_dim, 2),
        values(batch, seqlen_k, heads_kv, head_dim, 3, along="tokens"),
    ]
    axes = ((1, 3),) * 3 if square else (3, 3, 1)
    return [quantize(x, axes=a, tail="partial") for x, a in zip(tensors, axes, strict=True)]


def run(
    q, k, v, *, softmax_scale=SCALE, causal=False, options=None, out_dtype=torch.float32, ctas=2, interleave=True, **emulate
):  # fmt: skip
    """O, lse and the report, with everything switched on that can object. Operands are MXTensors or MXOperands."""
    q, k, v = (x if isinstance(x, MXOperand) else MXOperand.from_mx_tensor(x) for x in (q, k, v))
    options = options or AttentionOptions()
    compiled, arguments, call = forward_arguments(
        q, k, v, softmax_scale=softmax_scale, causal=causal, options=options, out_dtype=out_dtype, ctas=ctas,
        interleave=interleave,
    )  # fmt: skip
    for x in (call.o, call.lse):
        x.view(torch.int32 if x.dtype == torch.float32 else torch.int16).fill_(FILLING & (-1 if x.itemsize == 4 else 0x7FFF))
    emulate = {"check": "races", "wait_ld": "required", "accumulate": options.accumulate, **emulate}
    report = emulator.run(compiled, *arguments, names=names(q.shape[-1]), **emulate)
    assert report.races == []
    return call.o, call.lse, report


def model(q, k, v, *, softmax_scale=SCALE, causal=False, options=None, out_dtype=torch.float32, on_tile=None):
    """O rounded to `out_dtype`, and lse, of `attention_mxfp8`."""
    q, k, v = (x.to_mx_tensor() if isinstance(x, MXOperand) else x for x in (q, k, v))
    o, lse = attention_mxfp8(
        q, k, v, softmax_scale=softmax_scale, causal=causal, options=options or AttentionOptions(), on_tile=on_tile
    )
    return torch.from_numpy(o).to(out_dtype), torch.from_numpy(lse)


def assert_same_bits(got, expected):
    """Bit for bit the same; any NaN equals any NaN, but not the filling."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    bits = torch.int32 if got.dtype == torch.float32 else torch.int16
    a, b = got.contiguous().view(bits), expected.contiguous().view(bits)
    if bits == torch.int32:
        assert not (a == FILLING).any(), "some elements were never written"
    differ = (a != b) & ~(got.isnan() & expected.isnan())
    if differ.any():
        at = tuple(differ.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(differ.sum())} of {differ.numel()} differ; first at {at}: {got[at].item()!r}, expected "
            f"{expected[at].item()!r}"
        )


def check(q, k, v, *, schedule=None, **keywords):
    """Run, and compare with the model; returns O, lse and the report."""
    emulate = {name: keywords.pop(name) for name in list(keywords) if name in ("ctas", "interleave", "trace")}
    o, lse, report = run(q, k, v, **keywords, **emulate, **(schedule or {}))
    expected_o, expected_lse = model(q, k, v, **keywords)
    assert_same_bits(lse, expected_lse)
    assert_same_bits(o, expected_o)
    return o, lse, report
