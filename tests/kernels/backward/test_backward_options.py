"""Payloads of their own for dK and dQ, formats of sums and results, NaN, empty sequences, and what is refused."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from backward_harness import SQUARE, assert_same, check_call, make_call, run_call  # noqa: E402

from mxfp8fa.kernels.backward.call import backward  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, attention_reference_backward, quantize, sqnr_db  # noqa: E402


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


def overflows(call, scale_log2):
    """Addends and sums of dQ that are infinite in FP16, and the sums that are NaN, from the model's tiles."""
    scaled = {place: (tile * np.float32(2.0**scale_log2)).astype(np.float16) for place, tile in call.tiles.items()}
    addends = sum(int(np.isinf(x).sum()) for x in scaled.values())
    sums = {place[:3]: np.float16(0) for place in scaled}
    for place, x in scaled.items():
        sums[place[:3]] = sums[place[:3]] + x
    return addends, *(sum(int(f(x).sum()) for x in sums.values()) for f in (np.isinf, np.isnan))


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_float16_sums_that_overflow_are_counted():
    """Two key tiles whose addends are too large: some sums are infinite, and where the signs differ NaN."""
    options = replace(SQUARE, dq_accumulate="float16", dq_scale_log2=20)
    call = make_call((1, 100, 130, 1, 1, 64), options=options)
    counter = torch.full((1,), 7, dtype=torch.int32)
    gradients = check_call(call, dq_overflows=counter)
    addends, sums, lost = overflows(call, 20)
    assert min(addends, sums, lost) > 0 and gradients.dQ.isinf().sum() == sums and gradients.dQ.isnan().sum() == lost
    assert counter.item() == 7 + addends + sums and gradients.dq_overflows is counter


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_finite_addends_may_add_up_to_infinity():
    """The same key four times over two tiles, and a factor under which one tile's part is just below the limit."""

    def twice(x):
        x["k"][0, 128:], x["v"][0, 128:] = x["k"][0, :128], x["v"][0, :128]

    call = make_call((1, 40, 256, 1, 1, 64), edit=twice)
    largest = max(float(np.abs(tile).max()) for tile in call.tiles.values())
    scale_log2 = int(np.floor(np.log2(65504 / largest)))
    options = replace(SQUARE, dq_accumulate="float16", dq_scale_log2=scale_log2)
    call = make_call((1, 40, 256, 1, 1, 64), edit=twice, options=options)
    addends, sums, lost = overflows(call, scale_log2)
    gradients = check_call(call)
    assert (addends, lost) == (0, 0) and gradients.dq_overflows.item() == sums > 0


def test_a_nan_of_the_inputs_is_no_overflow():
    def put(x):
        x["do"][0, 40, 0, 0] = np.nan

    call = make_call((1, 100, 130, 1, 1, 64), options=replace(SQUARE, dq_accumulate="float16", dq_scale_log2=0), edit=put)
    gradients = check_call(call)
    assert gradients.dQ.isnan().any() and not gradients.dQ.isinf().any() and gradients.dq_overflows.item() == 0


@pytest.mark.parametrize(("power", "seconds"), [(-30, "square"), (14, "1x32")])
def test_the_factor_from_the_maxima(power, seconds):
    """The model's, whether dO is small or large, and K in blocks along the tokens or square ones."""

    def change(x):
        x["do"] *= 2.0**power

    options = AttentionOptions(
        qk_blocks="1x32", grad_qk_blocks=seconds, dq_accumulate="float16", dq_scale_log2="auto", rule="even"
    )
    call = make_call((1, 40, 140, 1, 1, 64), options=options, edit=change)
    gradients = check_call(call)
    assert gradients.dq_factor.item() == 2.0**call.expected.dq_scale_log2 != 1
    assert gradients.dq_overflows.item() == 0 and gradients.dQ.any()


@pytest.mark.parametrize("zero", [True, False])
def test_the_factor_without_maxima(zero):
    """Nothing to bound, or no bound: a factor of 1."""

    def change(x):
        x["do"][:] = 0
        x["v"][0, 3, 0, 2] = 0 if zero else np.nan

    options = replace(SQUARE, dq_accumulate="float16", dq_scale_log2="auto")
    call = make_call((1, 40, 40, 1, 1, 64), options=options, edit=change)
    gradients, _ = run_call(call)
    assert gradients.dq_factor.item() == 1 == 2.0**call.expected.dq_scale_log2


@pytest.mark.parametrize(
    ("share", "how", "causal"), [(1.0, "integer", False), (1.0, "subnormal", True), (0.25, "integer", False)]
)
def test_direct_codes(share, how, causal):
    """P is the forward's: codes without an exponential, for a share of the keys."""
    options = AttentionOptions(
        exp="direct", row_sum="rounded", direct_share=share, direct_codes=how, qk_blocks="square", p_offset=7
    )
    call = make_call((1, 140, 150, 1, 1, 64), options=options, causal=causal)
    check_call(call)


def test_float32_sums_keep_subnormals():
    """As an H200's bulk reductions do (docs/silicon.md); the PTX ISA says otherwise, and of a B200 it is not known."""

    def shrink(x):
        x["do"] *= 2.0**-100
        x["k"] *= 2.0**-30

    call = make_call((1, 40, 140, 1, 1, 64), edit=shrink)
    gradients = check_call(call)
    assert 0 < gradients.dQ.abs().max() < 2.0**-126


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
    "options.delta = 'sum_P_dP'": {"options": replace(SQUARE, delta="sum_P_dP")},
    "options.do_blocks = '1x32'": {"options": replace(SQUARE, do_blocks="1x32")},
    "q is a Tensor": {"q": torch.zeros(1, 32, 1, 64)},
}


@pytest.mark.parametrize("message", WRONG)
def test_refused(message):
    with pytest.raises(ValueError, match=message):
        backward(**operands(**WRONG[message]))


def test_uneven_scales_of_v_give_the_right_dq_and_dk():
    """What a closed kernel was published to get wrong. Scales of V between 2^-6 and 2^6, a block each; against float64, and
    against what uniform or exchanged scales would give.
    """
    power = np.exp2(np.arange(8.0).reshape(1, 4, 1, 2) * 12 / 7 - 6).repeat(32, axis=1).repeat(32, axis=3)[:, :100]

    def change(x):
        rng = np.random.default_rng(0)
        for name in ("q", "k", "do"):
            x[name] = rng.standard_normal(x[name].shape).astype(np.float32)
        x["v"] = (rng.standard_normal(x["v"].shape) * power).astype(np.float32)
        exact.update(x)

    exact = {}
    call = make_call((1, 100, 100, 1, 1, 64), edit=change)
    scales = call.operands["v"].to_mx_tensor().scale_e8m0
    assert scales.max() - scales.min() >= 11
    gradients = check_call(call)
    reference = attention_reference_backward(*(exact[n] for n in ("q", "k", "v", "do")), softmax_scale=0.07)
    wrong = []
    for v in (exact["v"] / power, exact["v"] / power * power[..., ::-1]):
        wrong.append(attention_reference_backward(exact["q"], exact["k"], v, exact["do"], softmax_scale=0.07))
    for i, got in enumerate(gradients):
        assert sqnr_db(got.numpy(), reference[i]) > 20
        if i < 2:
            assert all(sqnr_db(other[i], reference[i]) < 5 for other in wrong)


def test_padding_never_reaches_a_gradient():
    """NaN in what lies behind the tensors' ends in memory: keys, queries and scales of the padding are not read as numbers."""
    call = make_call((1, 33, 70, 2, 1, 64))
    operands = dict(call.operands)
    for name in ("q", "k", "v"):
        x = operands[name]
        room = torch.full((x.codes.numel() + 256 * 64,), 0x7F, dtype=torch.uint8)
        codes = room[: x.codes.numel()].view(x.codes.shape).copy_(x.codes)
        operands[name] = replace(x, codes=codes)
    for name in ("o", "do"):
        x = operands[name]
        room = torch.full((x.numel() + 256 * 64,), torch.nan)
        operands[name] = room[: x.numel()].view(x.shape).copy_(x)
    check_call(replace(call, operands=operands))


def test_grouped_heads_add_up_in_the_key_head():
    """Three query heads on one key head: dK and dV are those of the sum, and heads of other groups are apart."""
    call = make_call((1, 40, 70, 6, 2, 64))
    gradients = check_call(call)
    only = replace(call, operands={**call.operands, "do": call.operands["do"].clone()})
    only.operands["do"][:, :, 3:] = 0
    again, _ = run_call(only)
    assert not again.dK[:, :, 1].any() and not again.dV[:, :, 1].any() and not again.dQ[:, :, 3:].any()
    assert torch.equal(again.dV[:, :, 0], gradients.dV[:, :, 0]) and torch.equal(again.dK[:, :, 0], gradients.dK[:, :, 0])
