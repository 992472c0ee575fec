"""The gradient of flash_attn_func: through the kernels once, else with the NumPy model in their place."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.attention import AttentionOptions, flash_attn_func, quantize  # noqa: E402
from mxfp8fa.attention.operators import attention_backward  # noqa: E402
from mxfp8fa.numerics import attention_mxfp8  # noqa: E402
from mxfp8fa.numerics.backward import attention_mxfp8_backward  # noqa: E402
from mxfp8fa.numerics.backward_inputs import SecondPayloads  # noqa: E402


class StandIn(ModuleType):
    """`mxfp8fa.kernels.backward` as far as the API knows it."""

    def __init__(self):
        super().__init__("mxfp8fa.kernels.backward")
        self.calls = []

    def backward(self, *, q, k, v, o, lse, do, softmax_scale, causal, options, dtype, q_second=None, k_second=None, dlse):
        self.calls.append((q, k, v, q_second, k_second, dlse))
        second = {name: x and x.to_mx_tensor() for name, x in (("q", q_second), ("k", k_second), ("v", v))}
        forward_v = quantize(torch.zeros(v.shape), axes=(1, 3), tail="partial").to_mx_tensor()  # not read
        gradients = attention_mxfp8_backward(
            q.to_mx_tensor(), k.to_mx_tensor(), forward_v, do.float().numpy(), o.float().numpy(), lse.numpy(),
            softmax_scale=softmax_scale, causal=causal, options=replace(options, k_mean=False, out_dtype="auto"),
            second=SecondPayloads(**second),
        )  # fmt: skip
        return [torch.from_numpy(x).to(dtype) for x in gradients]


@pytest.fixture
def backward_stand_in(monkeypatch, stand_in):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "mxfp8fa.kernels.backward", module)
    return module


def tensors(dtype=torch.float32, *, seqlens=(40, 70), heads=(2, 1), head_dim=64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, seqlens[0], heads[0], head_dim)] + 2 * [(1, seqlens[1], heads[1], head_dim)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def model(q, k, v, do, dtype="float32", **keywords):
    """Gradients by NumPy, with O as the forward stores it."""
    arrays = [x.detach().float().numpy() for x in (q, k, v)]
    o, lse = attention_mxfp8(*arrays, **keywords)
    o = torch.from_numpy(o).to(getattr(torch, dtype)).float().numpy()
    return attention_mxfp8_backward(*arrays, do.float().numpy(), o, lse, **keywords)


OPTIONS = [
    (False, AttentionOptions()),
    (True, AttentionOptions()),
    (True, AttentionOptions(grad_qk_blocks="1x32", v_blocks="square", rule="even")),
    (False, AttentionOptions(k_mean=True, qk_blocks="1x32")),
]


@pytest.mark.parametrize(("causal", "options"), OPTIONS)
def test_it_is_the_model(backward_stand_in, causal, options):
    """The payloads passed on are those that the model makes of floats."""
    q, k, v = tensors()
    do = torch.randn(q.shape)
    flash_attn_func(q, k, v, causal=causal, options=options).backward(do)
    expected = model(q, k, v, do, causal=causal, options=options)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if options.k_mean else {"rtol": 0, "atol": 0}  # the mean is summed elsewhere
    for x, y in zip((q, k, v), expected, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), y, **tolerance)
    assert (backward_stand_in.calls[0][3] is None) == (options.resolved_qk_blocks(causal) == "square")


def test_dtypes_and_the_gradient_of_lse(backward_stand_in):
    q, k, v = tensors(torch.bfloat16)
    o, lse = flash_attn_func(q, k, v, return_lse=True)
    (o.float().sum() + 3 * lse.sum()).backward()
    assert all(x.grad.dtype == torch.bfloat16 and x.grad.shape == x.shape for x in (q, k, v))
    assert (backward_stand_in.calls[0][5] == 3).all()


def test_under_torch_compile(backward_stand_in):
    q, k, v = tensors()
    flash_attn_func(q, k, v).square().sum().backward()
    eager = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    compiled = torch.compile(lambda *x: flash_attn_func(*x).square().sum(), backend="aot_eager", fullgraph=True)
    compiled(q, k, v).backward()
    assert all(torch.equal(x.grad, y) for x, y in zip((q, k, v), eager, strict=True))


def test_torch_checks_the_operator(backward_stand_in):
    q, k, v = (x.detach() for x in tensors())
    o, lse = flash_attn_func(q, k, v, return_lse=True)
    arguments = (torch.randn(o.shape), torch.randn(lse.shape), q, k, v, o, lse, 0.2, False, AttentionOptions().text)
    torch.library.opcheck(attention_backward, arguments, test_utils=("test_schema", "test_faketensor"))


def test_empty(backward_stand_in):
    q, k, v = tensors(seqlens=(40, 0))
    flash_attn_func(q, k, v).sum().backward()
    assert not q.grad.any() and k.grad.shape == k.shape and backward_stand_in.calls == []


def test_refused(backward_stand_in):
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        (first,) = torch.autograd.grad(flash_attn_func(q, k, v).sum(), q, create_graph=True)
        torch.autograd.grad(first.sum(), q)
    quantized = quantize(k.detach(), axes=(1, 3), tail="partial")
    with pytest.raises(ValueError, match="cannot pass one through an MXOperand"):
        flash_attn_func(q, quantized, v)
    with pytest.raises(ValueError, match=r"options\.do_blocks = '1x32' is not in the backward kernel"):
        flash_attn_func(q, k, v, options=AttentionOptions(do_blocks="1x32"))


def test_through_the_kernels():
    """Forward and backward in the emulator, bit for bit; nothing in the middle but torch."""
    pytest.importorskip("cutlass.cute")
    pytest.importorskip("llvmlite")
    q, k, v = tensors(torch.bfloat16, seqlens=(33, 20))
    do = torch.randn(q.shape).bfloat16()
    flash_attn_func(q, k, v, causal=True).backward(do)
    expected = model(q, k, v, do, "bfloat16", causal=True)
    for x, y in zip((q, k, v), expected, strict=True):
        assert torch.equal(x.grad, torch.from_numpy(y).bfloat16())
