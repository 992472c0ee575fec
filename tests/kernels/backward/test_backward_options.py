"""Payloads of their own for dK and dQ, formats of sums and results, NaN, empty sequences, and what is refused."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from backward_harness import SQUARE, assert_same, check_call, make_call, run_call  # noqa: E402

from mxfp8fa.kernels.backward.call import backward  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, quantize  # noqa: E402


@pytest.mark.parametrize(
    ("shape", "causal"), [((1, 160, 100, 1, 1, 128), False), ((1, 150, 150, 2, 1, 64), True)]
)
def test_second_payloads(shape, causal):
    """S from the forward's 1x32 payload, dK and dQ from square ones: other numbers than the squares alone would give."""
    call = make_call(shape, causal=causal, options=AttentionOptions(qk_blocks="1x32"))
    q, second = call.operands["q"], call.operands["q_second"]
    assert not torch.equal(q.codes, second.codes)
    check_call(call)


@pytest.mark.parametrize("scale_log2", [12, 0])
def test_float16_sums(scale_log2):
    """dO is small enough for the factor; without it, sums reach down to subnormal numbers."""

    def shrink(x):
        x["do"] *= 2.0**-14

    options = replace(SQUARE, dq_accumulate="float16", dq_scale_log2=scale_log2)
    call = make_call((1, 100, 250, 1, 1, 128), options=options, dtype=torch.bfloat16, edit=shrink)
    gradients = check_call(call)
    assert gradients.dq_overflows.item() == 0 == call.expected.dq_overflow_count
    assert gradients.dQ.any()


def test_float16_sums_that_overflow_are_counted():
    options = replace(SQUARE, dq_accumulate="float16", dq_scale_log2=20)
    call = make_call((1, 100, 130, 1, 1, 64), options=options)
    counter = torch.full((1,), 7, dtype=torch.int32)
    gradients = check_call(call, dq_overflows=counter)
    infinite = int(torch.isinf(gradients.dQ).sum())
    assert 0 < infinite < gradients.dQ.numel() and counter.item() == 7 + infinite
    assert gradients.dq_overflows is counter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    """Inputs and outputs of 16 bits: each gradient is that of FP32, rounded once."""
    options = replace(SQUARE, row_sum="rounded", p_offset=6, delta="unquantized_dO", rule="even")
    call = make_call((1, 40, 140, 1, 1, 64), options=options, dtype=dtype)
    gradients, _ = run_call(call, dtype=dtype)
    for got, exact in zip(gradients, call.expected, strict=True):
        assert got.dtype == dtype
        assert_same(got.float(), torch.from_numpy(exact).to(dtype).float())


@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
def test_nan_reaches_what_it_meets_and_no_more(name):
    """Two tiles each of queries and keys under a causal mask, where the first queries do not meet the last keys.

    A NaN in the first query reaches the first tile of everything. One in the last keys reaches lse or O of the queries
    that meet them, and from there all keys, but not the first queries.
    """
    of_query = name in ("q", "do")

    def put(x):
        x[name][0, 3 if of_query else 130, 0, 5] = np.nan

    call = make_call((1, 140, 140, 2, 2, 64), causal=True, edit=put)
    gradients = check_call(call)
    (dq, dk, dv), finite = gradients, torch.isfinite
    assert all(finite(x[:, :, 1]).all() for x in gradients), "the other head"
    assert finite(dq[0, 128:, 0]).all() == of_query and finite(dq[0, :128, 0]).all() == (not of_query)
    assert finite(dk[0, 128:, 0]).all() == of_query and not finite(dk[0, :128, 0]).all()
    assert finite(dv[0, 128:, 0]).all() == (of_query or name == "v")
    assert finite(dv[0, :128, 0]).all() == (name == "v"), "dV does not depend on V"


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(0, 40), (40, 0), (0, 0)])
def test_empty_sequences(seqlen_q, seqlen_k):
    gradients, report = run_call(make_call((1, seqlen_q, seqlen_k, 1, 1, 64)))
    assert report.launches == []
    assert [tuple(x.shape) for x in gradients] == [(1, seqlen_q, 1, 64), *[(1, seqlen_k, 1, 64)] * 2]
    assert not any(x.any() for x in gradients)


def test_keys_that_no_query_sees():
    """Causal, fewer queries than tiles of keys would need: the last key tiles of a longer Q are visited by none."""
    call = make_call((1, 300, 20, 1, 1, 64), causal=True)
    gradients = check_call(call)
    assert not gradients.dQ[0, : 300 - 20].any(), "queries before the first key see nothing"


def operands(**changes):
    """A small correct call with something changed."""
    call = make_call((1, 32, 32, 1, 1, 64))
    return {**call.operands, **changes}


def quantized(shape, axes):
    from mxfp8fa.kernels import MXOperand

    return MXOperand.from_mx_tensor(quantize(np.ones(shape, np.float32), axes=axes))


WRONG = {
    "k has shape": {"q": quantized((1, 32, 1, 32), (1, 3)), "k": quantized((1, 32, 1, 64), (1, 3))},
    "v has blocks along axes": {"v": quantized((1, 32, 1, 64), 1)},
    "q has blocks along axes": {"q": quantized((1, 32, 1, 64), 3)},
    "give both or none": {"q_second": quantized((1, 32, 1, 64), 1)},
    "Hq = 3 is not a multiple of Hkv = 2": {
        "q": quantized((1, 32, 3, 64), (1, 3)),
        **{n: quantized((1, 32, 2, 64), (1, 3)) for n in "kv"},
    },
    "head_dim 32": {n: quantized((1, 32, 1, 32), (1, 3)) for n in "qkv"},
    "lse is torch.float64": {"lse": torch.zeros(1, 1, 32, dtype=torch.float64)},
    "do is torch.float32 .1, 32, 1, 32.": {"do": torch.zeros(1, 32, 1, 32)},
    "dtype = torch.float64": {"dtype": torch.float64},
    "options.exp = 'direct'": {"options": replace(SQUARE, exp="direct", row_sum="rounded")},
    "options.dq_scale_log2 = 'auto'": {"options": replace(SQUARE, dq_accumulate="float16", dq_scale_log2="auto")},
    "q is a Tensor": {"q": torch.zeros(1, 32, 1, 64)},
}


@pytest.mark.parametrize("message", WRONG)
def test_refused(message):
    with pytest.raises(ValueError, match=message):
        backward(**operands(**WRONG[message]))
