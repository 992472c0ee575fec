"""Packed sequences on a device: the host looks at no number that only the device knows, since it would have to wait.

On a GPU torch itself objects (`set_sync_debug_mode`). Without one, the same code runs on CPU tensors by the rules for a GPU:
memory by the bound, and nobody may read a value.
"""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import mxfp8fa.emulator  # noqa: E402
import mxfp8fa.kernels.launch  # noqa: E402
from mxfp8fa.attention import estimate, flash_attn_varlen_func, quantize, varlen  # noqa: E402
from mxfp8fa.attention.payloads import backward_payloads, payloads  # noqa: E402
from mxfp8fa.kernels import MXOperand, execution, jagged, operands, producers  # noqa: E402
from mxfp8fa.kernels import backward as backward_kernels  # noqa: E402
from mxfp8fa.kernels import forward as forward_kernels  # noqa: E402
from mxfp8fa.kernels.jagged import Jagged, tile_bound  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8  # noqa: E402
from mxfp8fa.numerics import quantize as quantize_numpy  # noqa: E402

LENGTHS, KEYS = (0, 0, 40, 1, 0, 130, 0), (5, 0, 0, 70, 1, 130, 0)
READERS = ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero", "equal")
WAITING = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2", "repeat_interleave"}


def cumulative(lengths, dtype=torch.int32):
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=dtype)


class NoWaiting(TorchDispatchMode):
    """Refuses operators whose result, or its shape, the host has to read from a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        indices = args[1] if func.overloadpacket.__name__ in ("index", "index_put", "index_put_") else ()
        masked = any(x is not None and x.dtype == torch.bool for x in indices)
        assert func.overloadpacket.__name__ not in WAITING and not masked, f"the host waits for {func}"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def unseen(monkeypatch):
    """CPU tensors as if they lay on a GPU, to everyone but the emulator, which is the GPU."""
    watching = [True]

    def refuse(name, read):
        def wrapped(self, *args, **keywords):
            assert not watching[0], f"the host waits for Tensor.{name}"
            return read(self, *args, **keywords)

        return wrapped

    def unwatched(function):
        def wrapped(*args, **keywords):
            watching[0] = False
            try:
                return function(*args, **keywords)
            finally:
                watching[0] = True

        return wrapped

    for name in READERS:
        monkeypatch.setattr(torch.Tensor, name, refuse(name, getattr(torch.Tensor, name)))
    for module in (jagged, operands, varlen):
        monkeypatch.setattr(module, "host_may_look", lambda device: False)
    of_the_emulator = (mxfp8fa.emulator, "run"), (mxfp8fa.kernels.launch, "compile_kernel"), (estimate, "warp_instructions")
    for module, name in of_the_emulator:
        monkeypatch.setattr(module, name, unwatched(getattr(module, name)))

    @contextlib.contextmanager
    def look():
        watching[0] = False
        yield
        watching[0] = True

    return look


def test_reading_is_refused(unseen):
    """The fixture can fail."""
    for read in (torch.Tensor.cpu, torch.Tensor.tolist, lambda x: x[0].item(), lambda x: int(x[0]), lambda x: bool(x[0])):
        with pytest.raises(AssertionError, match="the host waits"):
            read(cumulative(LENGTHS))
    with NoWaiting(), pytest.raises(AssertionError, match="the host waits for aten"):
        _ = torch.ones(3)[torch.ones(3) > 0]


def assert_equals_numpy(operand, x, axes, lengths):
    expected = MXOperand.from_mx_tensor(quantize_numpy(x.numpy(), axes=axes, tail="partial", cu_seqlens=lengths))
    assert torch.equal(operand.codes, expected.codes)
    for rows, packed in expected.scales.items():
        axis = -3 if rows == "tokens" else -2
        given, bound = operand.scales[rows], tile_bound(len(x), len(lengths) - 1)
        assert given.shape[axis] == bound > packed.shape[axis]
        assert torch.equal(given.narrow(axis, 0, packed.shape[axis]), packed)
        assert (given.narrow(axis, packed.shape[axis], bound - packed.shape[axis]) == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2)], ids=str)
@pytest.mark.parametrize("how", [quantize, producers.quantize], ids=["torch", "kernel"])
def test_quantizing(unseen, how, axes, dtype):
    x = torch.randn(sum(LENGTHS), 1, 32, generator=torch.Generator().manual_seed(0))
    cu_seqlens = cumulative(LENGTHS, dtype)
    with NoWaiting():
        operand = how(x, axes=axes, tail="partial", cu_seqlens=cu_seqlens)
    with unseen():
        assert_equals_numpy(operand, x, axes, cu_seqlens.numpy())
        back = MXOperand(operand.codes, operand.scales, operand.axes, operand.fmt, operand.cu_seqlens).to_mx_tensor()
        np.testing.assert_array_equal(back.codes, operand.codes.numpy())


def test_other_producers(unseen):
    generator, cu_seqlens = torch.Generator().manual_seed(0), cumulative(LENGTHS)
    h = torch.randint(-4, 5, (sum(LENGTHS), 32), generator=generator).bfloat16()
    weight = torch.randint(-4, 5, (64, 32), generator=generator).bfloat16()
    with NoWaiting():
        projected = producers.gemm_quantize(h, weight, head_dim=64, axes=(0, 2), cu_seqlens=cu_seqlens)
        heads = h.float().unsqueeze(1)
        normal = producers.rmsnorm_quantize(heads, torch.ones(32), axes=(0, 2), cu_seqlens=cu_seqlens, return_y=True)
    with unseen():
        assert_equals_numpy(projected, (h.float() @ weight.float().T).unsqueeze(1), (0, 2), cu_seqlens.numpy())
        assert_equals_numpy(normal.operand, normal.y, (0, 2), cu_seqlens.numpy())


def attention_inputs():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(sum(n), 1, 64, generator=generator) for n in (LENGTHS, KEYS, KEYS))
    return q, k, v, cumulative(LENGTHS), cumulative(KEYS), max(LENGTHS), max(KEYS)


@pytest.mark.slow
def test_attention(unseen):
    """Floats in, the forward kernel's O out, through the operator."""
    arguments = attention_inputs()
    o, lse = flash_attn_varlen_func(*arguments, return_lse=True)
    with unseen():
        arrays, offsets = [x.numpy() for x in arguments[:3]], [x.numpy() for x in arguments[3:5]]
        expected, expected_lse = attention_mxfp8(*arrays, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1])
        np.testing.assert_array_equal(o.numpy(), expected)
        np.testing.assert_array_equal(lse.numpy(), expected_lse)


CHOICES = [{"qk_blocks": "1x32", "grad_qk_blocks": "1x32"}, {"k_mean": True}]
CHOICES += [{"dq_accumulate": "float16", "dq_scale_log2": "auto"}]
choices = pytest.mark.parametrize("choice", CHOICES, ids=str)


@choices
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_everything_up_to_the_launches(unseen, broadcast_q, choice):
    """Of forward and backward, with an observer that sees every operator."""
    check_up_to_the_launches(NoWaiting, "cpu", broadcast_q, choice)


def check_up_to_the_launches(watch, device, broadcast_q, choice):
    q, k, v, cu_q, cu_k, *_ = (x.to(device) if isinstance(x, torch.Tensor) else x for x in attention_inputs())
    rows = len(q) * (len(cu_k) - 1) if broadcast_q else len(q)
    o, do, lse = (torch.ones(shape, device=device) for shape in ((rows, 1, 64), (rows, 1, 64), (1, rows)))
    options = AttentionOptions(**choice)
    with watch():
        call = varlen._call(((q, k, v), *varlen._FLOATS), None if broadcast_q else cu_q, cu_k, None, True, options.text)
        made, _ = payloads(call)
        forward_kernels.call.make_call(*made, softmax_scale=0.1, causal=True, sequences=call.sequences)
        made, _ = backward_payloads(call)
        _, launches = backward_kernels.call.make_call(
            **made, o=o, lse=lse, do=do, softmax_scale=0.1, causal=True, options=options, sequences=call.sequences
        )
    assert len(launches) == 3


HOPPER_OR_LATER = torch.cuda.is_available() and torch.cuda.get_device_capability() in ((9, 0), (10, 0), (10, 3))
on_gpu = pytest.mark.skipif(not HOPPER_OR_LATER, reason="runs on a Hopper or Blackwell GPU only")


@contextlib.contextmanager
def nobody_waits():
    """torch raises where the host would wait for the GPU, and where it copies from memory that is not pinned."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
def test_torch_objects_on_a_gpu():
    offsets = cumulative(LENGTHS).cuda()
    with nobody_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        offsets.cpu()


@on_gpu
@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2)], ids=str)
@pytest.mark.parametrize("how", ["torch", "quantize", "rmsnorm_quantize", "gemm_quantize"])
def test_producers_on_a_gpu(how, axes):
    """From floats to an operand without waiting, with lengths and a kernel that were never seen before."""
    generator, lengths = torch.Generator().manual_seed(0), cumulative(LENGTHS)
    x = torch.randint(-4, 5, (sum(LENGTHS), 1, 64), generator=generator).float()
    weight = torch.eye(64, dtype=torch.bfloat16)
    on_gpu, offsets, factor, ones = x.cuda(), lengths.cuda(), weight.cuda(), torch.ones(64, device="cuda")
    projected = on_gpu[:, 0].bfloat16()
    torch.cuda.synchronize()
    with nobody_waits():
        if how == "torch":
            operand = quantize(on_gpu, axes=axes, tail="partial", cu_seqlens=offsets)
        elif how == "quantize":
            operand = producers.quantize(on_gpu, axes=axes, cu_seqlens=offsets)
        elif how == "rmsnorm_quantize":
            made = producers.rmsnorm_quantize(on_gpu, ones, axes=axes, cu_seqlens=offsets, return_y=True)
            operand, y = made.operand, made.y
        else:
            operand = producers.gemm_quantize(projected, factor, head_dim=64, axes=axes, cu_seqlens=offsets)
        operand = MXOperand(operand.codes, operand.scales, operand.axes, operand.fmt, operand.cu_seqlens)
    expected = y.cpu() if how == "rmsnorm_quantize" else x
    scales = {rows: packed.cpu() for rows, packed in operand.scales.items()}
    there = MXOperand(operand.codes.cpu(), scales, operand.axes, operand.fmt, operand.cu_seqlens.cpu())
    assert_equals_numpy(there, expected, axes, lengths.numpy())


@on_gpu
@choices
@pytest.mark.parametrize("broadcast_q", [False, True])
def test_everything_up_to_the_launches_on_a_gpu(broadcast_q, choice):
    """No Hopper can run attention, but it can do all that comes before."""
    check_up_to_the_launches(nobody_waits, "cuda", broadcast_q, choice)


@on_gpu
def test_values_on_a_gpu_are_looked_at_if_asked_for():
    x, wrong = torch.zeros(64, 1, 64, device="cuda"), torch.tensor([0, 40, 20, 64], dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="must start at 0, never decrease and end at 64"):
        producers.quantize(x, axes=(2,), cu_seqlens=wrong, validate=True)


def test_what_can_be_said_without_looking(unseen):
    """Kinds, and numbers of sequences, are refused on a device too."""
    x = torch.zeros(64, 1, 32)
    for wrong, message in (
        (torch.zeros(3), "cu_seqlens is torch.float32"),
        (torch.zeros(1, dtype=torch.int32), "cu_seqlens has 1 elements for 64 tokens"),
        ([0, 64], "cu_seqlens is list; allowed: a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            producers.quantize(x, axes=(2,), cu_seqlens=wrong)
    operand = quantize(x, axes=(2,), cu_seqlens=cumulative((60, 4)))
    for tiles in (0, 3):
        scales = {"tokens": torch.zeros(1, tiles, 1, 512, dtype=torch.uint8)}
        with pytest.raises(ValueError, match=r"need torch.uint8 \(1, [12], 1, 512\)"):
            MXOperand(operand.codes, scales, (2,), cu_seqlens=operand.cu_seqlens)


def test_only_validate_looks_at_the_offsets_of_a_call(unseen):
    """Kinds and numbers of sequences are refused on a device too; values if asked for, and that waits."""
    q, k, v, cu_q, cu_k, *longest = attention_inputs()
    with pytest.raises(AssertionError, match="the host waits for Tensor"):
        flash_attn_varlen_func(q, k, v, cu_q, cu_k, *longest, validate=True)
    with pytest.raises(ValueError, match="cu_seqlens are of 0 sequences, but q has 171 tokens"):
        flash_attn_varlen_func(q, k, v, cu_q[:1], cu_k[:1], *longest)
    operand = quantize(q, axes=(2,), cu_seqlens=cu_q[[0, -1]])
    with pytest.raises(ValueError, match="q is an MXOperand of 1 sequences and the call is about 7; allowed: the same"):
        flash_attn_varlen_func(operand, k, v, cu_q, cu_k, *longest)


@on_gpu
def test_validate_looks_at_the_offsets_of_a_call_on_a_gpu():
    q, k, v, cu_q, cu_k, *longest = (x.cuda() if isinstance(x, torch.Tensor) else x for x in attention_inputs())
    with pytest.raises(ValueError, match="cu_seqlens_k ends at 205; allowed: 206"):
        flash_attn_varlen_func(q, k, v, cu_q, (cu_k - 1).clamp(min=0), *longest, validate=True)


def test_jagged_is_by_the_bound_there(unseen):
    assert Jagged(None, cumulative(KEYS), 5, sum(KEYS)).work("k", 128, causal=False).shape[0] == 1 + tile_bound(sum(KEYS), 7)
    assert execution.EMULATED_TARGET == "sm_100a"
