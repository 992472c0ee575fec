"""attention_reference and its backward: from the definition, against torch in float64, and at every edge."""

import math

import numpy as np
import pytest

from mxfp8fa.numerics import attention_reference, attention_reference_backward
from mxfp8fa.numerics import reference as reference_module


def random_qkv(shape_q, shape_k, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(s).astype(dtype) for s in (shape_q, shape_k, shape_k))


def by_definition(q, k, v, scale, causal):
    """One head, (Sq, D) and (Sk, D), with Python floats only."""
    seqlen_q, seqlen_k, head_dim = len(q), len(k), q.shape[1]
    o, lse = np.zeros((seqlen_q, head_dim)), np.full(seqlen_q, -math.inf)
    for i in range(seqlen_q):
        seen = [j for j in range(seqlen_k) if not causal or j <= i + seqlen_k - seqlen_q]
        scores = [scale * math.fsum(q[i, c] * k[j, c] for c in range(head_dim)) for j in seen]
        if not seen:
            continue
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        total = math.fsum(weights)
        lse[i] = top + math.log(total)
        for c in range(head_dim):
            o[i, c] = math.fsum(w / total * v[j, c] for w, j in zip(weights, seen, strict=True))
    return o, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seqlens", [(1, 1), (1, 5), (5, 1), (4, 4), (3, 6), (6, 3)])
def test_matches_the_definition(seqlens, causal):
    q, k, v = random_qkv((1, seqlens[0], 1, 3), (1, seqlens[1], 1, 3))
    o, lse = attention_reference(q, k, v, causal=causal, softmax_scale=0.7)
    o_expected, lse_expected = by_definition(q[0, :, 0], k[0, :, 0], v[0, :, 0], 0.7, causal)
    # Sums of at most 6 terms of size 1: a few float64 units in the last place.
    np.testing.assert_allclose(o[0, :, 0], o_expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse[0, 0], lse_expected, rtol=0, atol=1e-14)


def torch_attention(torch, q, k, v, dO, mask, groups):
    tq, tk, tv = (torch.tensor(x.swapaxes(-3, -2), requires_grad=True) for x in (q, k, v))  # (B, H, S, D)
    o = torch.nn.functional.scaled_dot_product_attention(
        tq, tk.repeat_interleave(groups, dim=-3), tv.repeat_interleave(groups, dim=-3), attn_mask=mask
    )
    o.backward(torch.tensor(dO.swapaxes(-3, -2).copy()))
    return [x.detach().numpy().swapaxes(-3, -2) for x in (o, tq.grad, tk.grad, tv.grad)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(2, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize("seqlens", [(37, 37), (20, 53), (1, 300)])
def test_matches_torch_forward_and_autograd(seqlens, heads_q, heads_kv, causal):
    torch = pytest.importorskip("torch")
    (sq, sk), batch, head_dim = seqlens, 2, 24
    q, k, v = random_qkv((batch, sq, heads_q, head_dim), (batch, sk, heads_kv, head_dim))
    dO = np.random.default_rng(5).standard_normal(q.shape)
    mask = torch.ones(sq, sk, dtype=torch.bool).tril(sk - sq) if causal else None
    expected = torch_attention(torch, q, k, v, dO, mask, heads_q // heads_kv)
    o, _ = attention_reference(q, k, v, causal=causal)
    gradients = attention_reference_backward(q, k, v, dO, causal=causal)
    for got, want in zip((o, *gradients), expected, strict=True):
        # Both are float64 sums of at most 300 terms of size about 1.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_lse_matches_torch():
    torch = pytest.importorskip("torch")
    q, k, v = random_qkv((1, 40, 2, 16), (1, 50, 2, 16))
    _, lse = attention_reference(q, k, v, softmax_scale=0.3)
    scores = 0.3 * torch.tensor(q).permute(0, 2, 1, 3) @ torch.tensor(k).permute(0, 2, 3, 1)
    np.testing.assert_allclose(lse, torch.logsumexp(scores, dim=-1).numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_jagged_equals_each_sequence_alone(causal):
    """Zero-length sequences of either kind included, first, in the middle and last."""
    lengths_q, lengths_k = [0, 5, 3, 0, 7, 2, 0], [4, 5, 0, 0, 3, 9, 0]
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(x)]) for x in (lengths_q, lengths_k))
    q, k, v = random_qkv((cu_q[-1], 4, 8), (cu_k[-1], 2, 8))
    dO = np.random.default_rng(1).standard_normal(q.shape)
    call = {"causal": causal, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    o, lse = attention_reference(q, k, v, **call)
    gradients = attention_reference_backward(q, k, v, dO, **call)
    for b in range(len(lengths_q)):
        tq, tk = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        one = [x[None] for x in (q[tq], k[tk], v[tk], dO[tq])]
        o_one, lse_one = attention_reference(*one[:3], causal=causal)
        np.testing.assert_array_equal(o[tq], o_one[0])
        np.testing.assert_array_equal(lse[:, tq], lse_one[0])
        expected = attention_reference_backward(*one, causal=causal)
        for got, want, tokens in zip(gradients, expected, (tq, tk, tk), strict=True):
            np.testing.assert_array_equal(got[tokens], want[0])


def test_rows_that_see_nothing():
    q, k, v = random_qkv((1, 7, 1, 4), (1, 3, 1, 4))
    dO = np.ones_like(q)
    o, lse = attention_reference(q, k, v, causal=True)
    dq, dk, dv = attention_reference_backward(q, k, v, dO, causal=True)
    assert (o[0, :4] == 0).all() and (lse[0, 0, :4] == -np.inf).all() and (dq[0, :4] == 0).all()
    assert np.isfinite(lse[0, 0, 4:]).all()
    without = attention_reference_backward(q[:, 4:], k, v, dO[:, 4:], causal=True)
    np.testing.assert_array_equal(dk, without[1])
    np.testing.assert_array_equal(dv, without[2])


def test_row_blocks_do_not_change_the_result(monkeypatch):
    q, k, v = random_qkv((1, 50, 2, 8), (1, 61, 1, 8))
    call = {"causal": True}
    whole = (*attention_reference(q, k, v, **call), *attention_reference_backward(q, k, v, q, **call))
    monkeypatch.setattr(reference_module, "ROW_BLOCK", 7)
    blocks = (*attention_reference(q, k, v, **call), *attention_reference_backward(q, k, v, q, **call))
    for a, b in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("score", [-500.0, 500.0, 1e9])
def test_large_scores(score):
    """A common offset of all scores changes lse only; one score far above the others takes the row."""
    q = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    v = np.arange(6.0).reshape(1, 3, 1, 2)
    k = np.array([[score, 0.0]] * 3).reshape(1, 3, 1, 2)
    o, lse = attention_reference(q, k, v, softmax_scale=1.0)
    np.testing.assert_allclose(o[0, 0, 0], v[0, :, 0].mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(lse, score + np.log(3.0), rtol=1e-15)
    k[0, :2] = 0.0
    o, _ = attention_reference(q, k, v, softmax_scale=1.0)
    if score > 0:
        np.testing.assert_array_equal(o[0, 0, 0], v[0, 2, 0])


def test_shapes_dtypes_and_strides():
    q, k, v = random_qkv((2, 9, 4, 8), (2, 11, 2, 8), dtype=np.float32)
    o, lse = attention_reference(q, k, v)
    assert o.dtype == lse.dtype == np.float64 and o.shape == q.shape and lse.shape == (2, 4, 9)
    strided = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    np.testing.assert_array_equal(attention_reference(*strided)[0], o)
    half = [x.astype(np.float16) for x in (q, k, v)]
    widened = [x.astype(np.float64) for x in half]
    np.testing.assert_array_equal(attention_reference(*half)[0], attention_reference(*widened)[0])


@pytest.mark.parametrize(("shape_q", "shape_k"), [((0, 4, 2, 8), (0, 5, 2, 8)), ((2, 0, 2, 8), (2, 5, 2, 8))])
def test_empty(shape_q, shape_k):
    q, k, v = random_qkv(shape_q, shape_k)
    o, lse = attention_reference(q, k, v)
    assert o.shape == shape_q and lse.shape == (shape_q[0], shape_q[2], shape_q[1])
    gradients = attention_reference_backward(q, k, v, q)
    assert [g.shape for g in gradients] == [shape_q, shape_k, shape_k] and not any(g.any() for g in gradients)


def test_no_keys_at_all():
    q, k, v = random_qkv((2, 3, 1, 4), (2, 0, 1, 4))
    o, lse = attention_reference(q, k, v)
    assert (o == 0).all() and (lse == -np.inf).all()


Q, K = np.zeros((2, 5, 4, 8)), np.zeros((2, 6, 2, 8))
JAGGED_Q, JAGGED_K = np.zeros((5, 4, 8)), np.zeros((6, 2, 8))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((np.zeros((2, 5, 5, 8)), K, K), {}, r"Hq = 5 is not a multiple of Hkv = 2"),
        ((Q, K, K[:, :5]), {}, r"k has shape \(2, 6, 2, 8\) and v \(2, 5, 2, 8\)"),
        ((Q, K[..., :4], K[..., :4]), {}, r"q has head_dim 8 and k 4"),
        ((Q[:1], K, K), {}, r"q has batch 1 and k 2"),
        ((Q[0], K[0], K[0]), {}, r"without cu_seqlens it must be \(B, S, H, D\)"),
        ((Q, K, K), {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 6]}, r"with cu_seqlens it must be \(T, H, D\)"),
        ((Q, K, K), {"softmax_scale": 0.0}, r"softmax_scale = 0.0 must be a finite number above 0"),
        ((Q, K, K), {"softmax_scale": -1}, "softmax_scale = -1"),
        ((Q, K, K), {"softmax_scale": math.nan}, "softmax_scale = nan"),
        ((Q, K, K), {"softmax_scale": math.inf}, "softmax_scale = inf"),
        ((Q, K, K), {"softmax_scale": "1"}, "softmax_scale = '1'"),
        ((Q, K, K), {"causal": 1}, "causal = 1 must be True or False"),
        ((Q.astype(int), K, K), {}, "q has dtype int64; allowed are float16, bfloat16, float32, float64"),
        ((Q, K, K.astype(complex)), {}, "v has dtype complex128"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0, 5]}, "cu_seqlens_k is missing"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0, 4], "cu_seqlens_k": [0, 6]}, "number of tokens, 5"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [1, 6]}, "must start at 0"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0, 3, 2, 5], "cu_seqlens_k": [0, 6, 6, 6]}, "never fall"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0.0, 5.0], "cu_seqlens_k": [0, 6]}, "1-D integer"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [], "cu_seqlens_k": [0, 6]}, r"shape \(0,\)"),
        ((JAGGED_Q, JAGGED_K, JAGGED_K), {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 2, 6]}, "1 sequences.*2"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        attention_reference(*args, **kwargs)
    with pytest.raises(ValueError, match=message):
        attention_reference_backward(*args, args[0], **kwargs)


def test_dO_must_have_the_shape_of_q():
    with pytest.raises(ValueError, match=r"dO has shape \(2, 6, 2, 8\) and q \(2, 5, 4, 8\)"):
        attention_reference_backward(Q, K, K, K)
