"""MXAttention on the kernels, in the emulator, against the torch numerics: same weights, same roundings."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from mxfp8fa.kernels.forward import call as forward_call  # noqa: E402
from mxfp8fa.nn import MXAttention  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, sqnr_db  # noqa: E402

KINDS = {
    "causal": {"causal": True},
    "square": {},
    "rope": {"causal": True, "rope_base": 1e4},
    "qk_norm": {"qk_norm": True},
    "k_mean": {"causal": True, "options": AttentionOptions(k_mean=True)},
    "bias": {"bias": True},
}


def results(module, x, *args, **named):
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x, *args, **named)
    (y * torch.linspace(-1, 1, y.shape[-1])).sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def close(module, x, *args, **named):
    module.backend = "torch"
    expected = results(module, x, *args, **named)
    module.backend = "kernels"
    names = ["y", "x", *(name for name, _ in module.named_parameters())]
    for name, found, reference in zip(names, results(module, x, *args, **named), expected, strict=True):
        if name != "k_proj.bias":  # whose gradient is 0 but for rounding
            least = 36  # codes that tip at a rounding boundary, O rounded to BF16
            assert sqnr_db(found.numpy(), reference.numpy()) > least or torch.equal(found, reference), name


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_the_numerics(kind):
    torch.manual_seed(0)
    module = MXAttention(64, 2, 1, 64, **KINDS[kind])
    size = 2.0 ** torch.randint(-3, 4, (1, 40, 1))
    close(module, torch.randn(1, 40, 64) * size)


CU_SEQLENS = torch.tensor([0, 33, 33, 41], dtype=torch.int32)


@pytest.mark.parametrize("kind", ["causal", "rope", "k_mean"])
def test_packed_sequences(kind):
    torch.manual_seed(0)
    close(MXAttention(64, 1, 1, 64, **KINDS[kind]), torch.randn(41, 64), CU_SEQLENS)


@pytest.mark.parametrize("packed", [False, True])
def test_keys_and_values_of_a_context(packed):
    """Projections of two widths, as many queries as there are, keys of another sequence; packed, one context is empty."""
    torch.manual_seed(0)
    module = MXAttention(64, 1, 1, 64, context_width=96)
    x, context = torch.randn(1, 33, 64), torch.randn(1, 70, 96) * 2.0 ** torch.randint(-3, 4, (1, 70, 1))
    if not packed:
        close(module, x, context=context)
        return
    ends = torch.tensor([0, 20, 33]), torch.tensor([0, 70, 70])
    close(module, x[0], ends[0], context=context[0], cu_seqlens_context=ends[1])


def test_packed_sequences_are_what_each_is_alone():
    """Bit for bit forward, in one launch of every kernel; and the tracer sees one graph."""
    torch.manual_seed(0)
    module, x = MXAttention(64, 1, 1, 64, causal=True, qk_norm=True, backend="kernels"), torch.randn(41, 64)
    module.requires_grad_(False)
    calls, kernel = [], forward_call.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mxfp8fa.kernels.forward.forward", lambda *a, **named: calls.append(1) or kernel(*a, **named))
        packed = module(x, CU_SEQLENS, max_seqlen=33)
    assert len(calls) == 1
    assert torch.equal(packed, torch.cat([module(x[None, :33])[0], module(x[None, 33:])[0]]))
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, CU_SEQLENS, max_seqlen=33), packed)


def test_no_tokens():
    module = MXAttention(64, 1, 1, 64, backend="kernels")
    x = torch.zeros(0, 64, requires_grad=True)
    module(x, torch.tensor([0, 0])).sum().backward()
    assert x.grad.shape == (0, 64)


def test_what_kernels_do_not_do_is_refused():
    with pytest.raises(ValueError, match="head_dim = 32 is not supported by the kernels; allowed: 64 and 128"):
        MXAttention(64, 2, 2, 32, backend="kernels")(torch.zeros(1, 4, 64))


def test_compiled_as_one_graph():
    """By the tracer alone: shapes of the operators' results are those that the kernels give."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = MXAttention(64, 2, 1, 64, causal=True, backend="kernels")
    x = torch.randn(1, 40, 64)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for found, expected in zip(results(compiled, x), results(module, x), strict=True):
        assert sqnr_db(found.numpy(), expected.numpy()) > 60


def test_no_float_copy_of_what_the_epilogue_quantizes():
    """What is kept: h, weights, codes and scales, O and lse."""
    torch.manual_seed(0)
    module, kept = MXAttention(64, 2, 1, 64, causal=True, backend="kernels"), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module(torch.randn(1, 40, 64))
    heads = [t for t in kept if t.ndim == 4 and t.shape[-1] == 64]
    assert sorted(str(t.dtype) for t in heads) == ["torch.bfloat16"] + 6 * ["torch.uint8"]  # O; two payloads of Q, K, V
