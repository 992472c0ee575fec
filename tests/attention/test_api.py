"""flash_attn_func without its kernel: what it passes on, what it returns, and how torch sees it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from mxfp8fa.attention import AttentionOptions, MXOperand, flash_attn_func, quantize  # noqa: E402
from mxfp8fa.attention.operators import attention_forward  # noqa: E402
from mxfp8fa.numerics import attention_mxfp8, sqnr_db  # noqa: E402
from mxfp8fa.numerics.formats import round_values  # noqa: E402


def tensors(seqlen_q=40, seqlen_k=70, head_dim=64, *, heads=(4, 2), batch=2, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, seqlen_q, heads[0], head_dim)] + 2 * [(batch, seqlen_k, heads[1], head_dim)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def model(q, k, v, dtype="float32", **keywords):
    """O of the NumPy model, rounded as the kernel stores it, and lse."""
    o, lse = attention_mxfp8(*(x.float().numpy() for x in (q, k, v)), **keywords)
    return round_values(o, dtype), lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_is_the_model_of_the_quantized_tensors(stand_in, dtype, causal):
    q, k, v = tensors(dtype=getattr(torch, dtype))
    o, lse = flash_attn_func(q, k, v, causal=causal, return_lse=True)
    expected, expected_lse = model(q, k, v, dtype, causal=causal)
    np.testing.assert_array_equal(o.float().numpy(), expected)
    np.testing.assert_array_equal(lse.numpy(), expected_lse)
    assert o.dtype == getattr(torch, dtype) and lse.dtype == torch.float32 and o.is_contiguous()


def test_positional_arguments_in_the_order_of_flash_attn(stand_in):
    q, k, v = tensors()
    o = flash_attn_func(q, k, v, 0.3, True)
    assert isinstance(o, torch.Tensor) and stand_in.calls[0][3:5] == (0.3, True)
    np.testing.assert_array_equal(o.numpy(), model(q, k, v, softmax_scale=0.3, causal=True)[0])


def test_the_default_scale(stand_in):
    flash_attn_func(*tensors(head_dim=128))
    assert stand_in.calls[0][3] == 1 / np.sqrt(128)


def test_blocks_follow_mask_and_options(stand_in):
    for causal, options, qk, v in [
        (False, {}, (1, 3), (1,)),
        (True, {}, (3,), (1,)),
        (False, {"qk_blocks": "1x32", "v_blocks": "square"}, (3,), (1, 3)),
        (True, {"qk_blocks": "square"}, (1, 3), (1,)),
    ]:
        flash_attn_func(*tensors(), causal=causal, options=AttentionOptions(**options))
        assert [x.axes for x in stand_in.calls[-1][:3]] == [qk, qk, v]


@pytest.mark.parametrize("rule", ["floor", "even"])
def test_the_scale_rule_is_passed_on(stand_in, rule):
    q, k, v = tensors()
    options = AttentionOptions(rule=rule)
    np.testing.assert_array_equal(flash_attn_func(q, k, v, options=options).numpy(), model(q, k, v, options=options)[0])


def test_quantized_operands_equal_floats(stand_in):
    """All three, and each alone: a cache of quantized K and V with a fresh Q is an ordinary case."""
    q, k, v = tensors()
    expected = flash_attn_func(q, k, v)
    axes = ((1, 3), (1, 3), (1,))
    given = [quantize(x, axes=a, tail="partial") for x, a in zip((q, k, v), axes, strict=True)]
    for mix in ([0, 1, 2], [1, 2], [0], [2]):
        mixed = [given[i] if i in mix else x for i, x in enumerate((q, k, v))]
        o = flash_attn_func(*mixed, options=AttentionOptions(out_dtype="float32"))
        assert torch.equal(o, expected), mix
    assert flash_attn_func(*given).dtype == torch.bfloat16


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
def test_out_dtype(stand_in, out_dtype):
    o = flash_attn_func(*tensors(dtype=torch.bfloat16), options=AttentionOptions(out_dtype=out_dtype))
    assert o.dtype == getattr(torch, out_dtype) == stand_in.calls[0][6]


def test_views(stand_in):
    """Slices of a packed projection, transposed heads, expanded batches, reversed memory: floats of any strides."""
    packed = torch.randn(2, 40, 3, 4, 64)
    views = packed.unbind(2)
    assert not views[0].is_contiguous()
    np.testing.assert_array_equal(
        flash_attn_func(*views).numpy(), flash_attn_func(*(x.clone(memory_format=torch.contiguous_format) for x in views)).numpy()
    )
    heads_first = torch.randn(3, 2, 4, 40, 64).transpose(2, 3)
    expanded = torch.randn(1, 40, 4, 128)[..., ::2].expand(2, -1, -1, -1)
    o = flash_attn_func(heads_first[0], expanded, heads_first[2])
    np.testing.assert_array_equal(o.numpy(), flash_attn_func(*(x.contiguous() for x in (heads_first[0], expanded, heads_first[2]))))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 0, 0)])
def test_nothing_in_gives_nothing_or_zeros_out(stand_in, shape, causal):
    batch, seqlen_q, seqlen_k = shape
    q, k, v = torch.randn(batch, seqlen_q, 4, 64), *torch.randn(2, batch, seqlen_k, 2, 64)
    o, lse = flash_attn_func(q, k, v, causal=causal, return_lse=True)
    assert o.shape == q.shape and lse.shape == (batch, 4, seqlen_q) and lse.dtype == torch.float32
    assert torch.equal(o, torch.zeros_like(q)) and torch.equal(lse, torch.full_like(lse, -torch.inf))
    assert stand_in.calls == []
    given = [quantize(x, axes=(1, 3), tail="partial") for x in (q, k, v)]
    assert flash_attn_func(*given, causal=causal).shape == q.shape


def test_k_mean(stand_in):
    """O and lse are those of the K that was given: only the rounding changes, here for the better."""
    q, k, v = tensors(dtype=torch.float32)
    k = k + 30 * torch.randn(64)
    exact = attention_mxfp8(*(x.numpy() for x in (q, k, v)), options=AttentionOptions(accumulate="exact", k_mean=True))
    o, lse = flash_attn_func(q, k, v, return_lse=True, options=AttentionOptions(k_mean=True))
    assert sqnr_db(o.numpy(), exact[0]) > 60 and np.abs(lse.numpy() - exact[1]).max() < 1e-3
    quantized_q = quantize(q, axes=(1, 3), tail="partial")
    options = AttentionOptions(k_mean=True, out_dtype="float32")
    again, same_lse = flash_attn_func(quantized_q, k, v, return_lse=True, options=options)
    assert torch.equal(again, o) and torch.equal(same_lse, lse)


def test_fake_tensors_know_the_shapes():
    with FakeTensorMode():
        q, k, v = (torch.empty(2, s, h, 128, dtype=torch.bfloat16) for s, h in ((300, 8), (500, 2), (500, 2)))
        o, lse = flash_attn_func(q, k, v, return_lse=True)
        assert o.shape == (2, 300, 8, 128) and o.dtype == torch.bfloat16
        assert lse.shape == (2, 8, 300) and lse.dtype == torch.float32
        with pytest.raises(ValueError, match="Hq = 8 is not a multiple of Hkv = 3"):
            flash_attn_func(q, *torch.empty(2, 2, 500, 3, 128, dtype=torch.bfloat16))
    meta = [torch.empty(1, 5, 2, 64, device="meta") for _ in range(3)]
    assert flash_attn_func(*meta).device.type == "meta"


def test_torch_compile_takes_it_whole(stand_in):
    q, k, v = tensors()
    options = AttentionOptions(rule="even", out_dtype="float16")

    def block(q, k, v):
        o, lse = flash_attn_func(2 * q, k, v, causal=True, return_lse=True, options=options)
        return o + 1, lse

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for ours, eager in zip(compiled(q, k, v), block(q, k, v), strict=True):
        assert torch.equal(ours, eager)


def test_torch_compile_takes_operands(stand_in):
    given = [quantize(x, axes=(1, 3), tail="partial") for x in tensors()]
    compiled = torch.compile(lambda *x: flash_attn_func(*x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), flash_attn_func(*given))


def test_torch_compile_with_lengths_left_open(stand_in):
    compiled = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager", dynamic=True)
    for seqlen in (33, 40, 65):
        q, k, v = tensors(seqlen_q=seqlen)
        assert torch.equal(compiled(q, k, v), flash_attn_func(q, k, v))


def test_the_operator_keeps_torchs_rules(stand_in):
    """Schema, fake implementation, and autograd registration, as torch itself checks them."""
    q, k, v = tensors(batch=1)
    axes = ((1, 3), (1, 3), (1,))
    text = AttentionOptions().text
    torch.library.opcheck(attention_forward, (q, k, v, [], [], [], [], [], [], 0.1, True, text), test_utils=UTILS)
    given = [quantize(x, axes=a, tail="partial") for x, a in zip((q, k, v), axes, strict=True)]
    scales = [[x.scales[rows] for rows in sorted(x.scales)] for x in given]
    arguments = (*(x.codes for x in given), *scales, *map(list, axes), None, False, text)
    torch.library.opcheck(attention_forward, arguments, test_utils=UTILS)


UTILS = ("test_schema", "test_autograd_registration", "test_faketensor")


def test_an_operand_of_another_orientation_is_put_together_again(stand_in):
    """Squares carry two packed scales; which is which must survive the operator."""
    x = tensors()[1]
    square = quantize(x, axes=(1, 3), tail="partial")
    flash_attn_func(x[:, :, :2], square, square)
    for given in stand_in.calls[0][1:3]:
        assert isinstance(given, MXOperand) and given.axes == (1, 3)
        assert all(torch.equal(given.scales[rows], square.scales[rows]) for rows in ("tokens", "head_dim"))
