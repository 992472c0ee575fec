"""MXAttention: the plain module with its weights, one switch, gradients, packed sequences, the kernels, and what it refuses."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mxfp8fa.nn import MXAttention, mx_attention, set_precision
from mxfp8fa.numerics import AttentionOptions, sqnr_db

KINDS = {
    "plain": {},
    "causal": {"causal": True},
    "rope": {"causal": True, "rope_base": 1e4},
    "qk_norm": {"qk_norm": True},
    "both": {"qk_norm": True, "rope_base": 1e4, "causal": True},
    "a head in bf16": {"bf16_heads": (1,), "causal": True},
    "bias": {"bias": True, "qk_norm": True},
    "qkv bias": {"bias": "qkv", "rope_base": 1e4, "causal": True, "bf16_heads": (0,)},
    "k_mean, direct": {"options": AttentionOptions(k_mean=True, exp="direct", row_sum="rounded")},
}


class Plain(nn.Module):
    """What one writes without this package."""

    def __init__(self, width, heads, heads_kv, head_dim, bias=False, width_kv=None):
        super().__init__()
        self.shape = heads, heads_kv, head_dim
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.q_proj = nn.Linear(width, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(width_kv or width, heads_kv * head_dim, bias=bias)
        self.v_proj = nn.Linear(width_kv or width, heads_kv * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=bias)

    def forward(self, x, context=None):
        h = self.norm(x)
        pairs = (self.q_proj, h), *((p, h if context is None else context) for p in (self.k_proj, self.v_proj))
        q, k, v = (p(y).unflatten(-1, (-1, self.shape[2])).transpose(1, 2) for p, y in pairs)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=context is None, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).flatten(-2))


def layer(width=64, heads=4, heads_kv=2, head_dim=32, **options):
    torch.manual_seed(0)
    return MXAttention(width, heads, heads_kv, head_dim, **options)


def hidden(*shape):
    """Tokens whose sizes differ by powers of two; the norm takes them back, the gradient does not."""
    generator = torch.Generator().manual_seed(1)
    size = 2.0 ** torch.randint(-3, 4, (*shape[:-1], 1), generator=generator)
    return torch.randn(shape, generator=generator) * size


def results(module, x, *args, **options):
    """Output, gradient of x, gradients of the weights."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x, *args, **options)
    (y * torch.linspace(-1, 1, y.shape[-1])).sum().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("kind", KINDS)
def test_signal_against_exact_attention(kind):
    """Same weights, one switch. E4M3 leaves about 25 dB of a Gaussian attention, BF16 over 40."""
    module, x = layer(**KINDS[kind]), hidden(2, 70, 64)
    found = {}
    for precision in ("float32", "bf16", "mxfp8"):
        assert set_precision(nn.Sequential(module), precision) == 1
        found[precision] = results(module, x)
    for bf16, mxfp8, exact in zip(found["bf16"], found["mxfp8"], found["float32"], strict=True):
        assert sqnr_db(bf16.numpy(), exact.numpy()) > 36
        if not torch.equal(mxfp8, exact):  # as of the output projection's bias, which attention has no part in
            assert 19 < sqnr_db(mxfp8.numpy(), exact.numpy()) < 48


@pytest.mark.parametrize(("bias", "width_kv"), [(False, None), (True, None), (False, 96), (True, 96)])
def test_the_plain_module_s_weights_and_result(bias, width_kv):
    """With a context keys and values come from it. The bias of K is a constant that no softmax sees: its gradient is 0."""
    torch.manual_seed(0)
    plain = Plain(64, 4, 2, 32, bias, width_kv)
    module = layer(causal=width_kv is None, bias=bias, context_width=width_kv)
    module.load_state_dict(plain.state_dict())
    plain.load_state_dict(module.state_dict())
    x, context = hidden(2, 40, 64), {} if width_kv is None else {"context": hidden(2, 70, width_kv)}
    exact = results(plain, x, **context)
    names = ["y", "x", *(name for name, _ in module.named_parameters())]
    for precision, least in (("float32", 40), ("mxfp8", 19)):  # BF16 products against float32 ones
        module.precision = precision
        for name, found, expected in zip(names, results(module, x, **context), exact, strict=True):
            if name == "k_proj.bias":
                assert found.norm() < 0.2 * exact[names.index("q_proj.bias")].norm()
            else:
                assert sqnr_db(found.numpy(), expected.numpy()) > least, name


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
def test_packed_contexts_are_the_contexts_one_by_one(precision):
    """Empty sequences, empty contexts, and a context longer than its sequence: O is 0 where there are no keys."""
    module = layer(context_width=96, precision=precision, bias=True, qk_norm=True)
    lengths, lengths_context = [20, 0, 3, 9], [65, 4, 31, 0]
    x, context = hidden(32, 64), hidden(100, 96).requires_grad_()
    ends = [torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()]) for n in (lengths, lengths_context)]
    whole = results(module, x, ends[0], context=context, cu_seqlens_context=ends[1], max_seqlen_context=80)
    dcontext, context.grad = context.grad, None
    parts = []
    for part, of in zip(x.split(lengths), context.split(lengths_context), strict=True):
        parts.append(results(module, part[None], context=of[None]))
    assert sqnr_db(context.grad.numpy(), dcontext.numpy()) > 35
    for i, found in enumerate(whole):
        each = [part[i] for part in parts]
        joined = torch.cat(each, 1)[0] if i < 2 else torch.stack(each).sum(0)
        assert sqnr_db(found.numpy(), joined.numpy()) > 35
    assert torch.equal(whole[0][-9:], module.o_proj.bias.bfloat16().float().expand(9, -1))


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,)])
def test_no_tokens(shape, precision):
    """Nothing comes out, and every weight gets a gradient of zeros."""
    module, x = layer(precision=precision, qk_norm=True, rope_base=1e4), torch.zeros(*shape, 64, requires_grad=True)
    y = module(x, *([torch.tensor([0, 0])] if len(shape) == 1 else []))
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("precision", ["mxfp8", "bf16", "float32"])
def test_no_keys(precision):
    """Tokens with an empty context: O = 0."""
    module, x = layer(context_width=32, precision=precision), hidden(1, 3, 64)
    context = torch.zeros(1, 0, 32, requires_grad=True)
    y = module(x, context=context)
    y.sum().backward()
    assert not y.any() and context.grad.shape == context.shape


@pytest.mark.parametrize("kind", ["plain", "bias"])
def test_autocast_changes_nothing(kind):
    """Products round as they say, whatever torch.autocast would have them do; in BF16 also a backward called inside."""
    module, x = layer(**KINDS[kind]), hidden(1, 40, 64)
    expected = results(module, x)
    for dtype in (torch.bfloat16, torch.float16):
        module.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            y = module(x)
        (y * torch.linspace(-1, 1, 64)).sum().backward()
        assert y.dtype == torch.float32 and torch.equal(y, expected[0])
        for parameter, gradient in zip(module.parameters(), expected[2:], strict=True):
            assert torch.equal(parameter.grad, gradient)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(results(module, x), expected, strict=True))


def test_copies_and_files(tmp_path):
    module, x = layer(**KINDS["qkv bias"], options=AttentionOptions(k_mean=True)), hidden(1, 40, 64)
    expected = module(x)
    torch.save(module, tmp_path / "layer.pt")
    copies = copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(tmp_path / "layer.pt", weights_only=False)
    for other in copies:
        assert torch.equal(other(x), expected) and repr(other) == repr(module)
        other.precision = "bf16"
    assert module.precision == "mxfp8"


def test_modes_and_moves():
    """Nothing depends on train or eval, on gradients being wanted, or on strides; weights go where .to says."""
    module, x = layer(causal=True, bias=True), hidden(2, 40, 64)
    expected = module(x)
    with torch.inference_mode():
        assert torch.equal(module.eval()(x), expected) and not module.training
    assert torch.equal(module.train()(x.transpose(0, 1).contiguous().transpose(0, 1)), expected)
    again = checkpoint(module, x.clone().requires_grad_(), use_reentrant=False)
    assert torch.equal(again, expected) and again.grad_fn is not None
    assert all(p.is_meta for p in module.to("meta").parameters())
    assert module(torch.zeros(3, 7, 64, device="meta")).shape == (3, 7, 64)
    half = layer(causal=True, bias=True).half()
    assert half(x.clamp(-9, 9).half()).dtype == torch.float16


def test_frozen_weights_and_a_frozen_input():
    """As in tuning only a part: what wants no gradient gets none, the others are as they were."""
    module, x = layer(), hidden(1, 40, 64)
    module(x).sum().backward()
    expected = module.v_proj.weight.grad.clone()
    for parameter in (p for name, p in module.named_parameters() if name != "v_proj.weight"):
        parameter.requires_grad_(False).grad = None
    module.v_proj.weight.grad = None
    module(x).sum().backward()
    assert torch.equal(module.v_proj.weight.grad, expected) and module.q_proj.weight.grad is None


def test_a_second_derivative_is_refused():
    module, x = layer(), hidden(1, 4, 64).requires_grad_()
    (gradient,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
def test_gradients_by_torch_func(kind, precision):
    """As `functional_call` and `torch.func.grad` take them: the same numbers as autograd's."""
    module, x = layer(**KINDS[kind], precision=precision), hidden(1, 20, 64)
    weights = dict(module.named_parameters())
    found = torch.func.grad(lambda w: torch.func.functional_call(module, w, (x,)).square().sum())(weights)
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert torch.equal(found[name], parameter.grad), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
def test_packed_sequences_are_the_sequences_one_by_one(kind, precision):
    """Lengths odd, empty, short and over a tile; a padding that is longer than needed changes nothing."""
    module, lengths = layer(**KINDS[kind], precision=precision), [37, 0, 1, 130]
    x, cu_seqlens = hidden(168, 64), torch.tensor([0, 37, 37, 38, 168], dtype=torch.int32)
    expected = [results(module, part[None]) for part in x.split(lengths) if len(part)]
    found = results(module, x, cu_seqlens, max_seqlen=150)
    for longer, tight in zip(found, results(module, x, cu_seqlens), strict=True):
        assert sqnr_db(longer.numpy(), tight.numpy()) > 40
    for i, whole in enumerate(found):
        parts = [e[i] for e in expected]
        joined = torch.cat(parts, 1)[0] if i < 2 else torch.stack(parts).sum(0)
        assert sqnr_db(whole.numpy(), joined.numpy()) > 35  # BLAS adds up other shapes in another order: some codes tip


def test_a_projection_s_epilogue_quantizes_its_float32_sums():
    """Not BF16 in between: the module's O is that of mx_attention on float32 Q, K and V, and its gradient straight through."""
    module, x = layer(norm=False, causal=True), hidden(1, 50, 64).bfloat16().float()
    weights = [p.weight.detach().bfloat16().float() for p in (module.q_proj, module.k_proj, module.v_proj)]
    q, k, v = ((x @ w.T).unflatten(-1, (-1, 32)).requires_grad_() for w in weights)
    o = mx_attention(q, k, v, causal=True, options=AttentionOptions(out_dtype="bfloat16"))
    y = functional.linear(o.flatten(-2), module.o_proj.weight.bfloat16()).float()
    assert torch.equal(module(x), y)
    module(x).sum().backward()
    y.sum().backward()
    for leaf, projection in ((q, module.q_proj), (k, module.k_proj), (v, module.v_proj)):
        expected = leaf.grad.bfloat16().flatten(2).flatten(0, 1).T @ x[0].bfloat16()
        assert torch.equal(projection.weight.grad, expected.float())


def test_a_later_token_reaches_no_earlier_one():
    module, x = layer(causal=True, rope_base=1e4, qk_norm=True), hidden(1, 64, 64)
    changed = x.clone()
    changed[0, 40] *= 3.0
    assert torch.equal(
        module(x)[0, :32], module(changed)[0, :32]
    )  # 32 keys of V share scales: rows from 32 on may see it


def test_all_heads_in_bf16_is_the_bf16_twin():
    x = hidden(1, 20, 64)
    assert torch.equal(layer(bf16_heads=(0, 1))(x), layer(precision="bf16")(x))


def test_compiled_as_one_graph():
    """By the tracer of torch.compile, without its C++ compiler: what it traces is what runs."""
    torch._dynamo.reset()  # it stops after eight compilations of one function, and other tests compile this one
    module, x = layer(causal=True, rope_base=1e4, bf16_heads=(1,), bias=True), hidden(1, 40, 64)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for found, expected in zip(results(compiled, x), results(module, x), strict=True):
        assert sqnr_db(found.numpy(), expected.numpy()) > 60
    packed = torch.tensor([0, 10, 40])
    with torch.no_grad():
        assert sqnr_db(compiled(x[0], packed, max_seqlen=30).numpy(), module(x[0], packed).numpy()) > 60


def test_dtypes_and_devices():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = layer(dtype=dtype)(hidden(1, 8, 64).clamp(-9, 9).to(dtype))
        assert y.dtype == dtype and y.isfinite().all()
    assert layer(device="meta").q_proj.weight.is_meta
    assert "4 heads over 2 key heads of 32, precision='mxfp8'" in repr(layer())
    assert "of 32, keys and values of a context of width 96, precision='bf16'" in repr(layer(context_width=96, precision="bf16"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads_kv": 3}, "num_heads_kv = 3 does not divide num_heads = 4"),
        ({"head_dim": 40}, "head_dim = 40"),
        ({"heads": 3, "heads_kv": 3, "head_dim": None}, "width = 64 is not a multiple of num_heads = 3"),
        ({"width": 0}, "width = 0; allowed: positive integers"),
        ({"bf16_heads": (2,)}, r"bf16_heads = \(2,\); allowed: different numbers of key heads, 0 to 1"),
        ({"precision": "fp8"}, "precision = 'fp8'; allowed: 'mxfp8', 'bf16', 'float32'"),
        ({"backend": "cudnn"}, "backend = 'cudnn'; allowed: 'auto', 'kernels', 'torch'"),
        ({"options": "exact"}, "options is a str; allowed: AttentionOptions or None"),
        ({"rope_base": 0.5}, "rope_base = 0.5; allowed"),
        ({"bias": "q"}, "bias = 'q'; allowed: False, True, 'qkv'"),
        ({"dropout": 0.1}, "dropout = 0.1; allowed: 0, MXFP8 attention drops no probabilities"),
        ({"context_width": 0}, "context_width = 0; allowed: a positive integer, or None"),
        ({"context_width": 64, "causal": True}, "context_width = 64 with causal = True .*; allowed: neither"),
        ({"context_width": 64, "rope_base": 1e4}, "rope_base = 10000.0; allowed: neither"),
    ],
)
def test_refuses_in_the_constructor(arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


@pytest.mark.parametrize(
    ("x", "cu_seqlens", "options", "message"),
    [
        (torch.zeros(2, 64), None, {}, r"x is \(2, 64\); allowed: \(B, S, 64\)"),
        (torch.zeros(1, 2, 64), torch.tensor([0, 2]), {}, r"allowed: \(T, 64\) with cu_seqlens"),
        (torch.zeros(1, 2, 32), None, {}, r"x is \(1, 2, 32\)"),
        (torch.zeros(1, 2, 64).double(), None, {}, "x is torch.float64; allowed: float32"),
        (torch.zeros(4, 64), torch.tensor([0, 3]), {}, r"from 0 to 4, not falling"),
        (torch.zeros(4, 64), torch.tensor([0, 3, 1, 4]), {}, r"not falling"),
        (torch.zeros(4, 64), torch.tensor([0.0, 4.0]), {}, r"cu_seqlens is torch.float32"),
        (torch.zeros(4, 64), torch.tensor([0, 4]), {"max_seqlen": 0}, "max_seqlen = 0; allowed"),
        (torch.zeros(4, 64), torch.tensor([0, 4]), {"max_seqlen": 4.0}, "max_seqlen = 4.0; allowed"),
        (torch.zeros(4, 64), torch.tensor([0, 3, 4]), {"max_seqlen": 2}, "max_seqlen = 2; allowed: at least 3"),
        (torch.zeros(4, 64), torch.tensor([0, 2, 5]), {"max_seqlen": 3}, r"cu_seqlens = \[0, 2, 5\]; allowed"),
        (torch.zeros(1, 4, 64, device="meta"), None, {}, "x is on meta, weights on cpu; allowed: one device"),
        (torch.zeros(1, 4, 64), None, {"attn_mask": torch.ones(4, 4)}, "attn_mask is given; allowed: None. causal=True hides"),
        (torch.zeros(1, 4, 64), None, {"context": torch.zeros(1, 4, 64)}, "a layer without context_width; allowed: none"),
    ],
)
def test_refuses_in_the_call(x, cu_seqlens, options, message):
    with pytest.raises(ValueError, match=message):
        layer()(x, cu_seqlens, **options)


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        (torch.zeros(1, 4, 64), {}, r"context is None; allowed: \(B, Sk, 96\), context_width says so"),
        (torch.zeros(1, 4, 64), {"context": torch.zeros(1, 4, 64)}, r"context is \(1, 4, 64\); allowed: \(B, S, 96\)"),
        (torch.zeros(1, 4, 64), {"context": torch.zeros(2, 4, 96)}, "1 sequences with 2 contexts; allowed: one for each"),
        (torch.zeros(1, 4, 64), {"context": torch.zeros(4, 96), "cu_seqlens_context": torch.tensor([0, 4])}, "both or neither"),
        (torch.zeros(4, 64), {"context": torch.zeros(1, 4, 96), "cu_seqlens": torch.tensor([0, 4])}, "both or neither"),
        (torch.zeros(4, 64), {"context": torch.zeros(4, 96), "cu_seqlens": torch.tensor([0, 4]),
                              "cu_seqlens_context": torch.tensor([0, 1, 4])}, "1 sequences with 2 contexts"),
        (torch.zeros(1, 4, 64), {"context": torch.zeros(1, 4, 96).long()}, "context is torch.int64; allowed: float32"),
    ],
)  # fmt: skip
def test_refuses_a_context(x, arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(context_width=96)(x, **arguments)
