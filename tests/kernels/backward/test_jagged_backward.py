"""Packed sequences in the backward kernels: every sequence as if it were alone, whatever lies beside it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from backward_harness import SQUARE, assert_same, uneven  # noqa: E402

from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.kernels.backward.call import backward  # noqa: E402
from mxfp8fa.kernels.execution import emulation  # noqa: E402
from mxfp8fa.kernels.jagged import Jagged  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, quantize  # noqa: E402
from mxfp8fa.numerics.backward import attention_mxfp8_backward  # noqa: E402
from mxfp8fa.numerics.backward_inputs import SecondPayloads  # noqa: E402

SCALE = 0.07


def cumulative(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def data(queries, keys, heads_q=1, heads_kv=1, head_dim=64):
    """q, k, v and do by name, (T, H, D), and both cu_seqlens."""
    cu = cumulative(queries), cumulative(keys)
    of = (("q", cu[0], heads_q), ("k", cu[1], heads_kv), ("v", cu[1], heads_kv), ("do", cu[0], heads_q))
    return {n: uneven((1, int(c[-1]), h, head_dim), seed)[0] for seed, (n, c, h) in enumerate(of)}, cu


def model(x, cu, *, causal=False, options=SQUARE, on_tile=None):
    """Operands for `backward`, and what NumPy makes of them."""
    square = options.resolved_qk_blocks(causal) == "square"
    axes = (0, 2) if square else 2
    q, k = (quantize(x[n], axes=axes, tail="partial", cu_seqlens=c) for n, c in zip("qk", cu, strict=True))
    v, v_second = (quantize(x["v"], axes=axis, tail="partial", cu_seqlens=cu[1]) for axis in (0, 2))
    second = {
        n: None if square else quantize(x[n], axes=(0, 2), tail="partial", cu_seqlens=c)
        for n, c in zip("qk", cu, strict=True)
    }
    call = {"softmax_scale": SCALE, "causal": causal, "options": options}
    offsets = {"cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1]}
    o, lse = attention_mxfp8(q, k, v, **call, **offsets)
    expected = attention_mxfp8_backward(
        q,
        k,
        v,
        x["do"],
        o,
        lse,
        **call,
        **offsets,
        second=SecondPayloads(q=second["q"], k=second["k"], v=v_second),
        on_tile=on_tile,
    )
    to = MXOperand.from_mx_tensor
    operands = {"q": to(q), "k": to(k), "v": to(v_second), "o": torch.from_numpy(o), "lse": torch.from_numpy(lse)}
    operands |= {f"{n}_second": to(s) for n, s in second.items() if s is not None}
    return operands | {"do": torch.from_numpy(x["do"]), **call}, expected


def run(operands, sequences, **emulate):
    """The gradients, with everything switched on that can object."""
    with emulation(**{"check": "races", "wait_ld": "required"} | emulate) as report:
        gradients = backward(**operands, sequences=sequences)
    assert report.races == []
    return gradients


def jagged(cu, exact=True):
    cu_q, cu_k = map(torch.from_numpy, cu)
    return Jagged(cu_q, cu_k, int(cu_q[-1]), int(cu_k[-1]), exact=exact)


def assert_equal(gradients, expected):
    for name in ("dV", "dK", "dQ"):  # dQ: with eager copies tiles of keys arrive in order
        assert_same(getattr(gradients, name), getattr(expected, name))


def test_all_hard_lengths_in_one_batch():
    """Keys without queries get zeros, and so do queries without keys; memory by the bound."""
    x, cu = data((0, 0, 5, 129, 1, 0), (0, 7, 0, 130, 127, 20))
    operands, expected = model(x, cu)
    gradients = run(operands, jagged(cu, exact=False))
    assert (gradients.dK[:7] == 0).all() and (gradients.dV[-20:] == 0).all() and (gradients.dQ[:5] == 0).all()
    for name in ("dV", "dK"):
        assert_same(getattr(gradients, name), getattr(expected, name))
    # Longest first: the two tiles of keys of the long sequence arrive in their order all the same.
    assert_same(gradients.dQ, expected.dQ)


def test_causal_grouped_heads_with_second_payloads():
    x, cu = data((140, 0, 3), (150, 30, 5), 2, 1)
    operands, expected = model(x, cu, causal=True, options=AttentionOptions(qk_blocks="1x32"))
    assert_equal(run(operands, jagged(cu)), expected)


def test_nan_beside_a_sequence_never_reaches_it():
    x, cu = data((30, 40, 20), (20, 50, 30))
    for name, (first, last) in {"q": (30, 70), "do": (30, 70), "k": (20, 70), "v": (20, 70)}.items():
        x[name][:first], x[name][last:] = np.nan, np.nan
    operands, expected = model(x, cu)
    gradients = run(operands, jagged(cu))
    assert_equal(gradients, expected)
    assert gradients.dQ[30:70].isfinite().all() and gradients.dK[20:70].isfinite().all()
    assert gradients.dQ[:30].isnan().all() and gradients.dV[70:].isnan().all()


@pytest.mark.parametrize("dq_accumulate", ["float32", "float16"])
def test_gradient_of_shared_queries_is_summed_in_fp32(dq_accumulate):
    """Three tiles of dQ are added: off by at most half a unit of the sum of magnitudes each, and one for the scale."""
    keys = (40, 0, 130)
    x, _ = data((70,), keys)
    x["do"] = np.random.default_rng(9).standard_normal((210, 1, 64)).astype(np.float32)
    tiles = []
    copies, offsets = x | {"q": np.tile(x["q"], (3, 1, 1))}, (cumulative((70,) * 3), cumulative(keys))
    operands, expected = model(copies, offsets, on_tile=lambda t: tiles.append(t.dq[:70].astype(np.float64)))
    shared = quantize(x["q"], axes=(0, 2), tail="partial", cu_seqlens=np.array([0, 70]))
    options = AttentionOptions(qk_blocks="square", dq_accumulate=dq_accumulate)
    operands |= {"q": MXOperand.from_mx_tensor(shared), "options": options}
    gradients = run(operands, Jagged(None, torch.from_numpy(offsets[1]), 70, 170, exact=True))
    for name in ("dV", "dK"):
        assert_same(getattr(gradients, name), getattr(expected, name))
    assert gradients.dQ.shape == (70, 1, 64) and gradients.dq_overflows is None and len(tiles) == 3
    scale = float(np.float32(SCALE))
    error = np.abs(gradients.dQ[:, 0].numpy() - scale * sum(tiles))
    assert (error <= 2.0**-24 * 1.01 * 3 * scale * sum(map(np.abs, tiles))).all()
