"""MXFP8 attention in torch against NumPy: equal bit for bit where every sum of a product is exact, else within rounding."""

import numpy as np
import pytest
import torch
from devices import DEVICES

from mxfp8fa.nn import mx_attention
from mxfp8fa.nn.softmax import RowState, softmax_step
from mxfp8fa.numerics import AttentionOptions, MXTensor, attention_mxfp8, attention_mxfp8_backward, sqnr_db
from mxfp8fa.numerics.softmax import OnlineSoftmax

# One option away from the defaults each, and some that have to work together.
OPTIONS = {
    "default": AttentionOptions(),
    "tiles of 64, ascending": AttentionOptions(tile_n=64, kv_order="ascending", rescale_threshold=0.0),
    "rounded sum": AttentionOptions(row_sum="rounded"),
    "exp2 by polynomial": AttentionOptions(exp2=0.25),
    "direct": AttentionOptions(exp="direct", row_sum="rounded"),
    "quarter direct": AttentionOptions(exp="direct", row_sum="rounded", direct_share=0.25),
    "direct by subnormals, float16 sum": AttentionOptions(
        exp="direct", row_sum="rounded", sum_format="float16", direct_codes="subnormal"
    ),
    "dynamic": AttentionOptions(p_scale="dynamic", rescale_threshold=8.0),
    "square everywhere": AttentionOptions(qk_blocks="square", v_blocks="square"),
    "1x32 everywhere": AttentionOptions(qk_blocks="1x32", do_blocks="1x32", grad_qk_blocks="1x32", grad_v_blocks="1x32"),
    "delta from P": AttentionOptions(delta="sum_P_dP"),
    "delta from unquantized dO": AttentionOptions(delta="unquantized_dO"),
    "float16 dQ": AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto", tile_n=64),
    "float16 dQ, descending": AttentionOptions(dq_accumulate="float16", dq_order="descending"),
    "floor, P at 2^4": AttentionOptions(rule="floor", p_offset=4),
}


def small_integers(shape_q, shape_k, seed=0):
    """Inputs of which every product sums exactly in float32: integers, Q and K with few of them not zero."""
    rng = np.random.default_rng(seed)
    q, k = (rng.integers(-2, 3, s) * (rng.random(s) < 0.3) for s in (shape_q, shape_k))
    v, do = rng.integers(-3, 4, shape_k), rng.integers(-3, 4, shape_q)
    return [x.astype(np.float32) for x in (q, k, v, do)]


def numpy_attention(q, k, v, do, options, **call):
    o, lse = attention_mxfp8(q, k, v, options=options, **call)
    gradients = attention_mxfp8_backward(q, k, v, do, o, lse, options=options, **call)
    return [o, *(x.dequantize() if isinstance(x, MXTensor) else x for x in gradients)]


def torch_attention(q, k, v, do, options, device="cpu", compiled=False, **call):
    leaves = [torch.from_numpy(x).to(device).requires_grad_() for x in (q, k, v)]
    o = mx_attention(*leaves, options=options, compiled=compiled, **call)
    o.backward(torch.from_numpy(do).to(device))
    return [x.detach().cpu().numpy() for x in (o, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_within_rounding_of_numpy(name, causal, device):
    """One code of P or dS that differs would show: a code is worth 2^-4 of its element, the bound is 2^-18 of the whole.

    With inputs that differ in their last bits (sums in another order) a code at a rounding boundary may still tip: dS has
    some, so the bound for gradients leaves room for a few out of 40,000.
    """
    rng = np.random.default_rng(1)
    q, k, v, do = (rng.standard_normal((1, s, h, 64)).astype(np.float32) for s, h in ((150, 4), (200, 2), (200, 2), (150, 4)))
    expected = numpy_attention(q, k, v, do, OPTIONS[name], causal=causal)
    found = torch_attention(q, k, v, do, OPTIONS[name], device, causal=causal)
    limits = [108.0, 55.0, 55.0, 80.0]  # a tipped code moves one row of O by 2^-4 of one P in about a hundred
    for x, reference, limit in zip(found, expected, limits, strict=True):
        assert sqnr_db(x, reference) > limit


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["default", "direct", "dynamic", "square everywhere", "delta from P"])
def test_equal_to_numpy_where_sums_are_exact(name, device):
    """Scores, O before its division, dP and everything that follows from them to the last bit."""
    shape_q, shape_k = (1, 64, 2, 32), (1, 96, 2, 32)
    q, k, v, do = small_integers(shape_q, shape_k)
    options = OPTIONS[name]
    expected = numpy_attention(q, k, v, do, options, causal=True, softmax_scale=0.5)
    found = torch_attention(q, k, v, do, options, device, causal=True, softmax_scale=0.5)
    np.testing.assert_array_equal(found[0], expected[0])
    for x, reference in zip(found[1:], expected[1:], strict=True):
        assert sqnr_db(x, reference) > 130  # sums of dS times K need more than 24 bits


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [n for n in OPTIONS if "dQ" not in n and "delta" not in n and "everywhere" not in n])
def test_a_softmax_step_is_numpys(name, device):
    """Codes, scales, maxima, sums and factors over masked, NaN, infinite and huge scores, tile after tile."""
    options, scale_log2, rng = OPTIONS[name], np.float32(0.127), np.random.default_rng(2)
    softmax = OnlineSoftmax(64, scale_log2, options)
    state = RowState.empty((64,), torch.device(device))
    for tile in range(4):
        s = (rng.standard_normal((64, 128)) * 40 + tile * 3).astype(np.float32)
        s[rng.random(s.shape) < 0.2] = -np.inf
        s[0], s[1, :] = -np.inf, s[1, :] * np.float32(1e9)
        s[2, 5 + tile] = np.nan if tile == 2 else 1e9
        s[3, 7] = np.inf if tile == 1 else 0.0
        s[4, 32:64] = -np.inf
        with np.errstate(all="ignore"):
            expected = softmax.step(s)
        codes, scale, factor, state = softmax_step(torch.from_numpy(s).to(device), state, float(scale_log2), options)
        np.testing.assert_array_equal(codes.cpu().numpy(), expected.codes)
        np.testing.assert_array_equal(scale.cpu().numpy(), expected.scale_e8m0)
        np.testing.assert_array_equal(factor.cpu().numpy(), expected.acc_scale)
        np.testing.assert_array_equal(state.row_max.cpu().numpy(), softmax.row_max)
        np.testing.assert_array_equal(state.row_sum.cpu().numpy(), softmax.row_sum)


def test_padded_sequences_are_jagged_ones():
    """Lengths of padded rows give what packed sequences give in NumPy; padding may hold anything, NaN too."""
    lengths_q, lengths_k, options = [37, 64, 1, 0], [50, 64, 33, 20], AttentionOptions(k_mean=True)
    rng = np.random.default_rng(3)
    q, k, v, do = (rng.standard_normal((4, 64, 2, 32)).astype(np.float32) for _ in range(4))
    cu = [np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (lengths_q, lengths_k)]
    packed = [
        np.concatenate([x[b, : lengths[b]] for b in range(4)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k), (do, lengths_q))
    ]
    call = {"causal": True, "cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1]}
    expected = numpy_attention(*packed, options, **call)
    for b in range(4):
        q[b, lengths_q[b] :], k[b, lengths_k[b] :], v[b, lengths_k[b] :] = np.nan, np.nan, np.inf
    tensors = {"lengths_q": torch.tensor(lengths_q), "lengths_k": torch.tensor(lengths_k)}
    found = torch_attention(q, k, v, do, options, causal=True, **tensors)
    for x, reference, lengths in zip(found, expected, (lengths_q, lengths_q, lengths_k, lengths_k), strict=True):
        x_packed = np.concatenate([x[b, : lengths[b]] for b in range(4)])
        assert sqnr_db(x_packed, reference) > 60
        assert all((x[b, lengths[b] :] == 0).all() for b in range(4))


def test_gradients_can_be_payloads():
    rng = np.random.default_rng(4)
    tensors = [rng.standard_normal((1, 64, 1, 32)).astype(np.float32) for _ in range(4)]
    for gradients in ("1x32", "square"):
        options = AttentionOptions(gradients=gradients)
        expected = numpy_attention(*tensors, options)
        for x, reference in zip(torch_attention(*tensors, options), expected, strict=True):
            assert sqnr_db(x, reference) > 60


def test_causal_attention_leaks_nothing_through_q_and_k():
    """Later tokens of Q and K of any size change no earlier row: their blocks run along d."""
    rng = np.random.default_rng(5)
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 64, 1, 32)).astype(np.float32)) for _ in range(3))
    before = mx_attention(q, k, v, causal=True)
    q[:, 40:], k[:, 40:] = 1e4, -1e4
    assert torch.equal(mx_attention(q, k, v, causal=True)[:, :40], before[:, :40])
    square = AttentionOptions(qk_blocks="square")
    assert not torch.equal(mx_attention(q, k, v, causal=True, options=square)[:, :40], before[:, :40])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["default", "direct"])
def test_compiled_is_eager(name):
    rng = np.random.default_rng(6)
    tensors = [rng.standard_normal((2, 256, 2, 128)).astype(np.float32) for _ in range(4)]
    eager = torch_attention(*tensors, OPTIONS[name], "cuda", causal=True)
    compiled = torch_attention(*tensors, OPTIONS[name], "cuda", compiled=True, causal=True)
    for x, reference in zip(compiled, eager, strict=True):
        assert sqnr_db(x, reference) > 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 32, 32)}, "q, k, v have shapes"),
        ({"q": torch.zeros(1, 32, 3, 32)}, "Hq = 3 is not a multiple of Hkv = 2"),
        ({"q": torch.zeros(1, 32, 2, 32, dtype=torch.float64)}, "allowed: one of float32"),
        ({"k": torch.zeros(1, 32, 2, 32).half()}, "torch.float16"),
        ({"options": AttentionOptions(accumulate="exact")}, "accumulate = 'exact'"),
        ({"softmax_scale": 0.0}, "softmax_scale = 0.0"),
    ],
)
def test_what_is_not_allowed_is_said(change, message):
    call = {name: torch.zeros(1, 32, 2, 32) for name in ("q", "k", "v")} | change
    with pytest.raises(ValueError, match=message):
        mx_attention(**call)
