"""flash_attn_func with its kernel, in the emulator: properties that attention has to have, seen from outside.

Compiling takes longer than running here, so tests share four kinds of calls: (head_dim 64, causal, BF16), (64, FP32), (64,
FP32, rounded sum) and (128, causal, FP32).
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")

from mxfp8fa.attention import AttentionOptions, emulation, flash_attn_func, quantize  # noqa: E402
from mxfp8fa.numerics import attention_mxfp8, attention_reference, row_sqnr_db, sqnr_db  # noqa: E402
from mxfp8fa.numerics.formats import round_values  # noqa: E402
from mxfp8fa.numerics.inputs import synthetic_llm  # noqa: E402
from mxfp8fa.studies.choices import LEAK_WAYS, causal_leak  # noqa: E402

FLOAT32 = AttentionOptions(out_dtype="float32")
ROUNDED = AttentionOptions(out_dtype="float32", row_sum="rounded")


def randn(*shape, seed=0, std=1.0):
    return std * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(seqlen_q, seqlen_k, head_dim=64, heads=(1, 1), std=1.0, seed=0):
    """Q and K of standard deviation sqrt(std): scores times 1 / sqrt(D) have standard deviation `std`."""
    q = randn(1, seqlen_q, heads[0], head_dim, seed=seed, std=std**0.5)
    k = randn(1, seqlen_k, heads[1], head_dim, seed=seed + 1, std=std**0.5)
    return q, k, randn(1, seqlen_k, heads[1], head_dim, seed=seed + 2)


def arrays(*tensors):
    return [x.float().numpy() for x in tensors]


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_bit_for_bit_the_numpy_model(causal):
    dtype = "bfloat16" if causal else "float32"
    tensors = [x.to(getattr(torch, dtype)) for x in qkv(70, 150, heads=(2, 1))]
    with emulation(check="races") as report:
        o, lse = flash_attn_func(*tensors, causal=causal, return_lse=True)
    expected, expected_lse = attention_mxfp8(*arrays(*tensors), causal=causal)
    np.testing.assert_array_equal(o.float().numpy(), round_values(expected, dtype))
    np.testing.assert_array_equal(lse.numpy(), expected_lse)
    assert report.races == [] and len(report.launches) == 1 and o.dtype == getattr(torch, dtype)


def test_v_of_ones_gives_ones():
    """Exactly, when the row is divided by the sum of what was multiplied; else to the rounding of P.

    P in E4M3 is off by at most 2^-4 of itself, and so is a weighted mean of ones; over 150 keys errors average out.
    """
    q, k, v = qkv(40, 150)
    ones = torch.ones_like(v)
    exact = flash_attn_func(q, k, ones, options=ROUNDED)
    assert (exact - 1).abs().max() <= 2.0**-22  # a few roundings of float32 sums
    unrounded = flash_attn_func(q, k, ones, options=FLOAT32)
    assert 2.0**-16 < (unrounded - 1).abs().max() < 2.0**-6


@pytest.mark.parametrize("blocks", ["1x32", "square"])
def test_permuting_queries_permutes_rows(blocks):
    """Any permutation with 1x32 blocks; inside a block of 32 rows with square ones, which share a scale."""
    q, k, v = qkv(96, 70)
    q = q * 2.0 ** torch.arange(96).remainder(7)[None, :, None, None]
    generator = torch.Generator().manual_seed(3)
    if blocks == "1x32":
        order = torch.randperm(96, generator=generator)
    else:
        order = torch.cat([32 * i + torch.randperm(32, generator=generator) for i in range(3)])
    options = AttentionOptions(qk_blocks=blocks, out_dtype="float32")
    o, lse = flash_attn_func(q, k, v, return_lse=True, options=options)
    moved, moved_lse = flash_attn_func(q[:, order], k, v, return_lse=True, options=options)
    assert torch.equal(moved, o[:, order]) and torch.equal(moved_lse, lse[:, :, order])


# What was multiplied by 2048 -> largest change of O in rows 0 to 30, of its largest element there.
LEAKS = {
    "1x32": {"Q, 1x32 along d": 0.0, "K, 1x32 along d": 0.0, "V, 1x32 along keys": 0.0057},
    "square": {"Q, square": 0.0213, "K, square": 0.0157},
}


@pytest.mark.parametrize("blocks", ["1x32", "square"])
def test_what_an_outlier_tells_earlier_rows(blocks):
    """Rows before token 31 can know of it only through a scale they share with it: as much as in NumPy, to the last bit.

    One call, with a batch of the unchanged tensors, and for each way of one with token 31 times 8 and one times 2048. By 8
    only subnormal numbers notice; where no scale is shared, nothing notices anything.
    """
    x = synthetic_llm(seqlen_q=64, num_heads_q=1, seed=0)
    batch = [(x.q, x.k, x.v)]
    for way in LEAKS[blocks]:
        for gain in (8, 2048):
            changed = {name: getattr(x, name).copy() for name in "qkv"}
            changed[LEAK_WAYS[way][0]][:, 31] *= np.float32(gain)
            batch.append(tuple(changed.values()))
    tensors = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*batch, strict=True))
    o = flash_attn_func(*tensors, causal=True, options=AttentionOptions(qk_blocks=blocks)).numpy()
    assert (o[1:, 31:] != o[:1, 31:]).any(axis=(1, 2, 3)).all()
    changes = np.abs(o[1:, :31] - o[:1, :31]).max(axis=(1, 2, 3)) / np.abs(o[0, :31]).max()
    study = causal_leak(gains=(8, 2048))
    for (way, stated), change in zip(LEAKS[blocks].items(), changes.reshape(-1, 2), strict=True):
        np.testing.assert_array_equal(change, study.change[way])
        assert change[0] < 2e-6 and change[1] == pytest.approx(stated, rel=0.01)


@pytest.mark.parametrize("size", [-500.0, 500.0, 1e9])
def test_huge_scores(size):
    """All scores near `size` nats, with and without one key that stands out: finite, and the weights are right."""
    head_dim = 64
    q = torch.full((1, 5, 1, head_dim), 1.0)
    k = torch.full((1, 40, 1, head_dim), size / head_dim)
    v = randn(1, 40, 1, head_dim)
    o, lse = flash_attn_func(q, k, v, softmax_scale=1.0, return_lse=True, options=FLOAT32)
    score = quantize(k, axes=(1, 3), tail="partial").to_mx_tensor().dequantize()[0, 0, 0].sum(dtype=np.float64)
    np.testing.assert_allclose(lse.numpy(), score + np.log(40), rtol=2.0**-22)
    stored = quantize(v, axes=1, tail="partial").to_mx_tensor().dequantize()
    np.testing.assert_allclose(o.numpy()[:, 0], stored.mean(axis=1), atol=1e-6)
    k[:, 7] += abs(k[0, 0, 0, 0])
    o, _ = flash_attn_func(q, k, v, softmax_scale=1.0, return_lse=True, options=FLOAT32)
    np.testing.assert_array_equal(o.numpy()[0, :, 0], np.broadcast_to(stored[0, 7, 0], (5, head_dim)))


def test_wide_logits_keep_their_sqnr():
    """Standard deviation 4: no worse than at 1, and that of the model to the last bit."""
    found = {}
    for std in (1.0, 4.0):
        q, k, v = qkv(64, 200, std=std)
        o = flash_attn_func(q, k, v, options=FLOAT32).numpy()
        exact, _ = attention_reference(*arrays(q, k, v))
        found[std] = sqnr_db(o, exact)
        np.testing.assert_array_equal(o, attention_mxfp8(*arrays(q, k, v))[0])
        assert row_sqnr_db(o, exact).min() > 8
    assert found[4.0] > 20 and found[1.0] > 20


def test_rows_that_see_no_key():
    """More queries than keys under the causal mask: the first rows see nothing."""
    o, lse = flash_attn_func(*(x.bfloat16() for x in qkv(50, 20)), causal=True, return_lse=True)
    assert torch.equal(o[:, :30], torch.zeros_like(o[:, :30])) and torch.isneginf(lse[..., :30]).all()
    assert torch.isfinite(lse[..., 30:]).all() and (o[:, 30:] != 0).any(-1).all()


def test_torch_compile_runs_the_kernel():
    q, k, v = (x.bfloat16() for x in qkv(33, 40))
    compiled = torch.compile(lambda *x: flash_attn_func(*x, causal=True).sum(-1), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), flash_attn_func(q, k, v, causal=True).sum(-1))
