"""MXAttention: the plain module with its weights, one switch, gradients, packed sequences, the kernels, and what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mxfp8fa.nn import MXAttention, mx_attention, set_precision
from mxfp8fa.numerics import AttentionOptions, sqnr_db

KINDS = {
    "plain": {},
    "causal": {"causal": True},
    "rope": {"causal": True, "rope_base": 1e4},
    "qk_norm": {"qk_norm": True},
    "both": {"qk_norm": True, "rope_base": 1e4, "causal": True},
    "a head in bf16": {"bf16_heads": (1,), "causal": True},
    "k_mean, direct": {"options": AttentionOptions(k_mean=True, exp="direct", row_sum="rounded")},
}


class Plain(nn.Module):
    """What one writes without this package."""

    def __init__(self, width, heads, heads_kv, head_dim):
        super().__init__()
        self.shape = heads, heads_kv, head_dim
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, heads_kv * head_dim, bias=False)
        self.v_proj = nn.Linear(width, heads_kv * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (
            p(h).unflatten(-1, (-1, self.shape[2])).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
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
        assert 19 < sqnr_db(mxfp8.numpy(), exact.numpy()) < 48


def test_the_plain_module_s_weights_and_result():
    torch.manual_seed(0)
    plain, module, x = Plain(64, 4, 2, 32), layer(causal=True), hidden(2, 40, 64)
    module.load_state_dict(plain.state_dict())
    plain.load_state_dict(module.state_dict())
    module.precision = "float32"
    for found, expected in zip(results(module, x), results(plain, x), strict=True):
        assert sqnr_db(found.numpy(), expected.numpy()) > 40  # BF16 products against float32 ones


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


@pytest.mark.parametrize("options", [{"rope_base": 1e4}, {"bf16_heads": (1,)}], ids=str)
def test_compiled_as_one_graph(options):
    """By the tracer of torch.compile, without its C++ compiler: what it traces is what runs."""
    module, x = layer(causal=True, **options), hidden(1, 40, 64)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for found, expected in zip(results(compiled, x), results(module, x), strict=True):
        assert sqnr_db(found.numpy(), expected.numpy()) > 60
    packed = torch.tensor([0, 10, 40])
    assert sqnr_db(compiled(x[0], packed, max_seqlen=30).detach().numpy(), module(x[0], packed).detach().numpy()) > 60


def test_dtypes_and_devices():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = layer(dtype=dtype)(hidden(1, 8, 64).clamp(-9, 9).to(dtype))
        assert y.dtype == dtype and y.isfinite().all()
    assert layer(device="meta").q_proj.weight.is_meta
    assert "4 heads over 2 key heads of 32, precision='mxfp8'" in repr(layer())


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
        (torch.zeros(1, 4, 64, device="meta"), None, {}, "x is on meta, weights on cpu; allowed: one device"),
    ],
)
def test_refuses_in_the_call(x, cu_seqlens, options, message):
    with pytest.raises(ValueError, match=message):
        layer()(x, cu_seqlens, **options)
