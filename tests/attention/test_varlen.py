"""flash_attn_varlen_func: what it takes, what it refuses, and with its kernel what it computes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.attention import AttentionOptions, emulation, flash_attn_func, flash_attn_varlen_func, quantize  # noqa: E402
from mxfp8fa.attention.varlen import attention_varlen_forward  # noqa: E402
from mxfp8fa.numerics import attention_mxfp8, attention_reference, sqnr_db  # noqa: E402
from mxfp8fa.numerics.backward import attention_mxfp8_backward  # noqa: E402
from mxfp8fa.numerics.formats import round_values  # noqa: E402
from mxfp8fa.numerics.reference import attention_reference_backward  # noqa: E402

QUERIES, KEYS = (0, 40, 3, 0), (5, 70, 0, 0)


def cumulative(lengths, dtype=torch.int32):
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=dtype)


def inputs(queries=QUERIES, keys=KEYS, dtype=torch.float32, heads=(2, 1), offsets=torch.int32):
    generator = torch.Generator().manual_seed(0)
    shapes = (sum(queries), heads[0], 64), (sum(keys), heads[1], 64), (sum(keys), heads[1], 64)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    cu = cumulative(queries, offsets), cumulative(keys, offsets)
    return *tensors, *cu, max(queries), max(keys)


def model(q, k, v, cu_q, cu_k, *_, **keywords):
    arrays = [x.float().numpy() for x in (q, k, v)]
    return attention_mxfp8(*arrays, cu_seqlens_q=cu_q.numpy(), cu_seqlens_k=cu_k.numpy(), **keywords)


@pytest.mark.parametrize("offsets", [torch.int32, torch.int64])
@pytest.mark.parametrize("causal", [False, True])
def test_payloads_are_those_of_the_model(stand_in, causal, offsets):
    arguments = inputs(offsets=offsets)
    o, lse = flash_attn_varlen_func(*arguments, causal=causal, return_lse=True)
    expected, expected_lse = model(*arguments, causal=causal)
    np.testing.assert_array_equal(o.numpy(), expected)
    np.testing.assert_array_equal(lse.numpy(), expected_lse)


def test_with_its_kernel_every_sequence_is_what_it_is_alone():
    """Bit for bit the dense function and the model; the checker silent; near float64."""
    pytest.importorskip("cutlass.cute")
    arguments = inputs((70, 0, 1), (150, 20, 129), dtype=torch.bfloat16)
    q, k, v, cu_q, cu_k, *_ = arguments
    with emulation(check="races") as report:
        o, lse = flash_attn_varlen_func(*arguments, return_lse=True)
    assert report.races == [] and len(report.launches) == 1 and o.dtype == torch.bfloat16
    expected, expected_lse = model(*arguments)
    np.testing.assert_array_equal(o.float().numpy(), round_values(expected, "bfloat16"))
    np.testing.assert_array_equal(lse.numpy(), expected_lse)
    for i in (0, 2):
        own, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        alone, alone_lse = flash_attn_func(q[None, own], k[None, keys], v[None, keys], return_lse=True)
        assert torch.equal(o[own], alone[0]) and torch.equal(lse[:, own], alone_lse[0])
        exact, _ = attention_reference(*(x.float().numpy() for x in (q[None, own], k[None, keys], v[None, keys])))
        assert sqnr_db(o[own].float().numpy(), exact[0]) > 20


def test_shared_queries():
    pytest.importorskip("cutlass.cute")
    q, k, v, _, cu_k, _, longest = inputs((40,), (30, 0, 50), torch.bfloat16)
    o, lse = flash_attn_varlen_func(q, k, v, None, cu_k, 40, longest, broadcast_q=True, return_lse=True)
    assert o.shape == (120, 2, 64) and lse.shape == (2, 120)
    copies = flash_attn_varlen_func(q.repeat(3, 1, 1), k, v, cumulative((40,) * 3), cu_k, 40, longest)
    assert torch.equal(o, copies)


def test_quantized_operands(stand_in):
    q, k, v, cu_q, cu_k, *longest = inputs()
    operands = [
        quantize(x, axes=axes, tail="partial", cu_seqlens=cu)
        for x, axes, cu in ((q, (0, 2), cu_q), (k, (0, 2), cu_k), (v, 0, cu_k))
    ]
    o = flash_attn_varlen_func(*operands, cu_q, cu_k, *longest, options=AttentionOptions(out_dtype="float32"))
    assert torch.equal(o, flash_attn_varlen_func(q, k, v, cu_q, cu_k, *longest))


@pytest.mark.parametrize(("queries", "keys"), [((), ()), ((0, 0), (0, 0)), ((0, 0), (3, 4)), ((3, 4), (0, 0))])
def test_nothing_to_do_needs_no_kernel(queries, keys):
    q, k, v, cu_q, cu_k, *_ = inputs(queries or (0,), keys or (0,))
    cu_q, cu_k = (x[: len(queries) + 1] for x in (cu_q, cu_k))
    o, lse = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 9, return_lse=True)
    assert o.shape == q.shape and (o == 0).all() and torch.isneginf(lse).all()


def change(index, value):
    def put(arguments):
        arguments[index] = value

    return put


WRONG = [
    (change(3, torch.tensor([1, 40, 40, 43, 43])), "cu_seqlens_q starts at 1; allowed: 0"),
    (change(4, torch.tensor([0, 5, 3, 75, 75])), "cu_seqlens_k falls from 5 to 3 at sequence 1"),
    (change(4, torch.tensor([0, 5, 75, 75, 76])), "cu_seqlens_k ends at 76; allowed: 75"),
    (change(3, torch.tensor([0, 40, 43])), "cu_seqlens_q has 3 elements and cu_seqlens_k 5"),
    (change(3, torch.tensor([0.0, 40.0])), "cu_seqlens_q is torch.float32"),
    (change(3, None), "cu_seqlens_q is None and broadcast_q = False"),
    (change(4, torch.tensor([0, 5, 80, 75, 75])), "cu_seqlens_k falls from 80 to 75 at sequence 2"),
    (change(4, torch.tensor([0, -5, 75, 75, 75])), "cu_seqlens_k falls from 0 to -5 at sequence 0"),
    (change(4, [0, 75]), "cu_seqlens_k is a list"),
    (change(5, 39), "max_seqlen_q = 39; the longest sequence has 40"),
    (change(6, 2.5), r"max_seqlen_k = 2.5; allowed: an integer"),
    (change(0, torch.zeros(43, 2, 96)), "they must be equal"),
    (change(0, torch.zeros(1, 43, 2, 64)), r"with cu_seqlens it must be \(T, H, D\)"),
]


@pytest.mark.parametrize(("put", "message"), WRONG)
def test_what_is_refused(put, message):
    arguments = list(inputs())
    put(arguments)
    with pytest.raises(ValueError, match=message):
        flash_attn_varlen_func(*arguments)


def test_operands_of_other_sequences_are_refused(stand_in):
    q, k, v, cu_q, cu_k, *longest = inputs()
    other = cumulative((6, 69, 0, 0))
    for name, wrong in (("k", (cu_q, other, cu_k)), ("v", (cu_q, cu_k, other)), ("q", (cumulative((39, 4, 0, 0)), cu_k, cu_k))):
        operands = [
            quantize(x, axes=axes, tail="partial", cu_seqlens=cu)
            for x, axes, cu in zip((q, k, v), ((0, 2), (0, 2), 0), wrong, strict=True)
        ]
        message = f"{name} is an MXOperand of 4 sequences and the call is about 4; cu_seqlens differ at 1; allowed: the same"
        with pytest.raises(ValueError, match=message):
            flash_attn_varlen_func(*operands, cu_q, cu_k, *longest)
    fewer = quantize(k, axes=(0, 2), tail="partial", cu_seqlens=cumulative((75,)))
    with pytest.raises(ValueError, match="k is an MXOperand of 1 sequences and the call is about 4"):
        flash_attn_varlen_func(q, fewer, v, cu_q, cu_k, *longest)


@pytest.mark.parametrize("broadcast_q", [False, True])
def test_k_mean(stand_in, broadcast_q):
    """K less the mean of each sequence; lse is that of the K that was given. Queries as floats or quantized before."""
    q, k, v, cu_q, cu_k, *_ = inputs()
    k = k + 30 * torch.randn(4, 1, 64, generator=torch.Generator().manual_seed(1)).repeat_interleave(torch.tensor(KEYS), 0)
    options = AttentionOptions(k_mean=True, out_dtype="float32")
    given_cu, copies, copies_cu = cu_q, q, cu_q
    if broadcast_q:
        given_cu, copies, copies_cu = None, q.repeat(4, 1, 1), cumulative((43,) * 4)
    exact = model(copies, k, v, copies_cu, cu_k, options=AttentionOptions(accumulate="exact", k_mean=True))
    call = given_cu, cu_k, 43, 70
    o, lse = flash_attn_varlen_func(q, k, v, *call, return_lse=True, broadcast_q=broadcast_q, options=options)
    seen = np.isfinite(exact[1])
    assert sqnr_db(o.numpy(), exact[0]) > 60 and (np.isfinite(lse.numpy()) == seen).all()
    assert np.abs(lse.numpy()[seen] - exact[1][seen]).max() < 1e-3
    own = torch.tensor([0, 43]) if broadcast_q else cu_q
    operand = quantize(q, axes=(0, 2), tail="partial", cu_seqlens=own)
    again, same = flash_attn_varlen_func(operand, k, v, *call, return_lse=True, broadcast_q=broadcast_q, options=options)
    assert torch.equal(again, o) and torch.equal(same, lse)


def test_the_operator_has_a_shape_without_data(stand_in):
    q, k, v, *rest = inputs()
    arguments = (q, k, v, [], [], [], [], [], [], [], *rest, 0.1, True, False, AttentionOptions().text)
    torch.library.opcheck(attention_varlen_forward, arguments, test_utils=("test_schema", "test_faketensor"))


SHAPES = {
    "uniform": ((64,) * 3, (96,) * 3, False),
    "jagged, causal": ((130, 0, 3, 40), (200, 7, 0, 41), True),
    "short queries": ((3, 1, 5), (150, 33, 260), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_are_near_float64(shape):
    """O and all gradients: 20 dB is a pass, as for the published checks (`mxfp8fa sqnr`)."""
    pytest.importorskip("cutlass.cute")
    queries, keys, causal = SHAPES[shape]
    q, k, v, cu_q, cu_k, *longest = inputs(queries, keys)
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(5))
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    o = flash_attn_varlen_func(*given, cu_q, cu_k, *longest, causal=causal)
    o.backward(do)
    arrays, call = [x.numpy() for x in (q, k, v)], {"causal": causal, "cu_seqlens_q": cu_q.numpy(), "cu_seqlens_k": cu_k.numpy()}
    exact = attention_reference(*arrays, **call)[0], *attention_reference_backward(*arrays, do.numpy(), **call)
    for found, expected in zip((o.detach(), *(x.grad for x in given)), exact, strict=True):
        assert sqnr_db(found.numpy(), expected) > 20


@pytest.mark.slow
@pytest.mark.parametrize("dq_accumulate", ["float32", "float16"])
def test_shared_queries_are_near_float64(dq_accumulate):
    """Their gradient is the sum over the sequences, in FP32 whatever the option says."""
    pytest.importorskip("cutlass.cute")
    q, k, v, _, cu_k, *_ = inputs((40,), (30, 0, 150, 64))
    do = torch.randn(160, 2, 64, generator=torch.Generator().manual_seed(5))
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    options = AttentionOptions(dq_accumulate=dq_accumulate)
    o = flash_attn_varlen_func(*given, None, cu_k, 40, 150, broadcast_q=True, options=options)
    o.backward(do)
    arrays = [x.numpy() for x in (q.repeat(4, 1, 1), k, v)]
    call = {"cu_seqlens_q": 40 * np.arange(5), "cu_seqlens_k": cu_k.numpy()}
    exact = attention_reference(*arrays, **call)[0], *attention_reference_backward(*arrays, do.numpy(), **call)
    exact = exact[0], exact[1].reshape(4, 40, 2, 64).sum(0), *exact[2:]
    for found, expected in zip((o.detach(), *(x.grad for x in given)), exact, strict=True):
        assert sqnr_db(found.numpy(), expected) > 20


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{"k_mean": True}, {"dq_accumulate": "float16", "dq_scale_log2": "auto"}], ids=str)
def test_gradients_with_what_looks_at_all_sequences(choice):
    """K less the means; a factor of dQ from the largest norms. Gradients are the model's, to the rounding of the means."""
    pytest.importorskip("cutlass.cute")
    options = AttentionOptions(**choice)
    q, k, v, cu_q, cu_k, *longest = inputs((40, 0, 3), (70, 5, 0))
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(5))
    given = [x.clone().requires_grad_() for x in (q, k, v)]
    o, lse = flash_attn_varlen_func(*given, cu_q, cu_k, *longest, return_lse=True, options=options)
    o.backward(do)
    offsets = {"cu_seqlens_q": cu_q.numpy(), "cu_seqlens_k": cu_k.numpy()}
    arrays = [x.numpy() for x in (q, k, v, do, o.detach(), lse.detach())]
    expected = attention_mxfp8_backward(*arrays, options=options, **offsets)
    for x, y in zip(given, expected, strict=True):
        assert sqnr_db(x.grad.numpy(), y) > 60


@pytest.mark.slow
def test_gradients_are_those_of_the_model():
    """Bit for bit, with the kernels; the checker silent; offsets in 64 bits."""
    pytest.importorskip("cutlass.cute")
    arguments = inputs((40, 0, 3), (70, 5, 0), offsets=torch.int64)
    q, k, v, cu_q, cu_k, *_ = arguments
    for x in (q, k, v):
        x.requires_grad_()
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(5))
    with emulation(check="races") as report:
        o, lse = flash_attn_varlen_func(*arguments, return_lse=True)
        o.backward(do)
    assert report.races == [] and len(report.launches) == 4
    arrays = [x.detach().numpy() for x in (q, k, v)]
    offsets = {"cu_seqlens_q": cu_q.numpy(), "cu_seqlens_k": cu_k.numpy()}
    expected = attention_mxfp8_backward(*arrays, do.numpy(), o.detach().numpy(), lse.detach().numpy(), **offsets)
    for x, y in zip((q, k, v), expected, strict=True):
        np.testing.assert_array_equal(x.grad.numpy(), y)


def test_the_gradient_under_fake_tensors_and_compile(stand_in):
    q, k, v, *rest = inputs()
    arguments = (q.requires_grad_(), k, v, [], [], [], [], [], [], [], *rest, 0.1, True, False, AttentionOptions().text)
    torch.library.opcheck(attention_varlen_forward, arguments, test_utils=("test_schema", "test_autograd_registration"))
    compiled = torch.compile(flash_attn_varlen_func, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v, *rest), flash_attn_varlen_func(q, k, v, *rest))
