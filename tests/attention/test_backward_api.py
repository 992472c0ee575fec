"""`flash_attn_backward`: through the kernels, and what it refuses before it compiles anything."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.attention import (  # noqa: E402
    AttentionOptions,
    MXOperand,
    emulation,
    flash_attn_backward,
    flash_attn_func,
    quantize,
)
from mxfp8fa.numerics import attention_mxfp8  # noqa: E402
from mxfp8fa.numerics.backward import attention_mxfp8_backward  # noqa: E402
from mxfp8fa.numerics.backward_inputs import SecondPayloads  # noqa: E402

HEAD_DIM = 64


def operand(x, axes):
    return quantize(x, axes=axes, tail="partial")


def tensors(seqlens=(33, 20), heads=(2, 1)):
    """Q, K, V, dO with a power of two of their own per 32 columns."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, seqlens[i], heads[i], HEAD_DIM) for i in (0, 1, 1, 0)]
    power = torch.exp2(torch.tensor([-2.0, 1.0])).repeat_interleave(32)
    return [torch.randn(shape, generator=generator) * power for shape in shapes]


@pytest.mark.parametrize("gradients", ["float32", "1x32", pytest.param("square", marks=pytest.mark.slow)])
def test_through_the_kernels(gradients):
    """Blocks along D with second payloads, causal: the bits of the model, as floats or quantized from FP32."""
    pytest.importorskip("cutlass.cute")
    pytest.importorskip("llvmlite")
    x = dict(zip(("q", "k", "v", "do"), tensors(), strict=True))
    q, k = (operand(x[n], 3) for n in "qk")
    v, v_second = operand(x["v"], 1), operand(x["v"], 3)
    q_second, k_second = (operand(x[n], (1, 3)) for n in "qk")
    options = AttentionOptions(gradients=gradients)
    o, lse = attention_mxfp8(q.to_mx_tensor(), k.to_mx_tensor(), v.to_mx_tensor(), causal=True)
    second = SecondPayloads(**{n: y.to_mx_tensor() for n, y in (("q", q_second), ("k", k_second), ("v", v_second))})
    expected = attention_mxfp8_backward(
        q.to_mx_tensor(), k.to_mx_tensor(), v.to_mx_tensor(), x["do"].numpy(), o, lse, causal=True, second=second
    )
    with emulation(check="races") as report:
        found = flash_attn_backward(
            x["do"], q, k, v, torch.from_numpy(o), torch.from_numpy(lse), causal=True, options=options,
            q_second=q_second, k_second=k_second, v_second=v_second,
        )  # fmt: skip
    assert report.races == [] and found.dq_overflows is None
    for got, exact in zip(found, map(torch.from_numpy, expected), strict=True):
        if gradients == "float32":
            assert torch.equal(got, exact.bfloat16())
            continue
        want = operand(exact, (3,) if gradients == "1x32" else (1, 3))
        assert isinstance(got, MXOperand) and got.axes == want.axes and torch.equal(got.codes, want.codes)
        assert all(torch.equal(got.scales[rows], want.scales[rows]) for rows in want.scales)


def call(**changes):
    """A correct small call, square blocks everywhere, with something changed."""
    q, k, v, do = tensors()
    o, lse = torch.zeros(do.shape), torch.zeros(1, 2, 33)
    arguments = {"do": do, "q": operand(q, (1, 3)), "k": operand(k, (1, 3)), "v": operand(v, (1, 3)), "o": o, "lse": lse}
    return {**arguments, **changes}


def payload(seqlen, heads, axes, head_dim=HEAD_DIM):
    return operand(torch.ones(1, seqlen, heads, head_dim), axes)


WRONG = {
    r"v has blocks along axes \(1,\) .* do not serve dP .* allowed: \(1, 3\) for squares, or v_second": {
        "v": payload(20, 1, 1)
    },
    r"v has blocks along axes \(1,\); allowed": {"v": payload(20, 1, 1), "v_second": payload(20, 1, 1)},
    r"q is a Tensor; allowed: an MXOperand \(floats go to flash_attn_func\)": {"q": torch.ones(1, 33, 2, HEAD_DIM)},
    "do is a NoneType": {"do": None},
    "options.k_mean = True with an MXOperand": {"options": AttentionOptions(k_mean=True)},
    "options.do_blocks = '1x32' is not in the backward kernel": {"options": AttentionOptions(do_blocks="1x32")},
    "options is a dict": {"options": {}},
    "softmax_scale": {"softmax_scale": float("nan")},
    "q_second and k_second: give both or none": {"q_second": payload(33, 2, 1)},
    "q has blocks along axes": {"q": payload(33, 2, 3)},
    "lse has|lse is": {"lse": torch.zeros(1, 2, 32)},
    "dtype = torch.float64": {"dtype": torch.float64},
    "v has shape": {"v": payload(21, 1, (1, 3))},
}


@pytest.mark.parametrize("message", WRONG)
def test_refused_before_anything_is_compiled(message, monkeypatch):
    pytest.importorskip("cutlass.cute")
    from mxfp8fa.kernels import execution

    monkeypatch.setattr(execution, "compile_once", lambda *a, **k: pytest.fail("compiled"))
    with pytest.raises(ValueError, match=message):
        flash_attn_backward(**call(**WRONG[message]))


def test_codes_that_tma_cannot_take():
    """One byte off: a contiguous view into something longer."""
    x = payload(33, 2, (1, 3))
    codes = torch.empty(x.codes.numel() + 1, dtype=torch.uint8)[1:].view(x.codes.shape)
    with pytest.raises(ValueError, match="codes of q start at an address that is not a multiple of 16 bytes"):
        flash_attn_backward(**call(q=replace(x, codes=codes)))


def test_no_second_derivative():
    arguments = call()
    arguments["do"].requires_grad_()
    with pytest.raises(NotImplementedError, match=r"do requires a gradient.*allowed: detached tensors"):
        flash_attn_backward(**arguments)


def test_autograd_cannot_carry_quantized_gradients():
    q, k, v, _ = (x.requires_grad_() for x in tensors())
    with pytest.raises(ValueError, match=r"options\.gradients = '1x32': autograd cannot carry an MXOperand"):
        flash_attn_func(q, k, v, options=AttentionOptions(gradients="1x32"))


@pytest.mark.parametrize("gradients", ["float32", "1x32"])
def test_empty(gradients):
    """No keys: dQ is zero, dK and dV have no rows; nothing runs."""
    pytest.importorskip("cutlass.cute")
    empty = payload(0, 1, (1, 3))
    found = flash_attn_backward(**call(k=empty, v=empty, options=AttentionOptions(gradients=gradients)))
    if gradients == "float32":
        assert not found.dQ.any() and found.dK.shape == (1, 0, 1, HEAD_DIM)
    else:
        assert not found.dQ.codes.any() and found.dV.shape == (1, 0, 1, HEAD_DIM)



def test_the_model_agrees_on_what_is_asked_for():
    """`gradients` of the options means the same in NumPy."""
    q, k, v, do = (x.numpy() for x in tensors())
    o, lse = attention_mxfp8(q, k, v)
    found = attention_mxfp8_backward(q, k, v, do, o, lse, options=AttentionOptions(gradients="square"))
    assert found.dQ.axes == (1, 3) and np.isfinite(found.dQ.dequantize()).all()
