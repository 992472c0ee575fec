"""The quantizing kernel: code for code the NumPy quantizer, for every layout of blocks, tokens and memory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from mxfp8fa.kernels.execution import emulation  # noqa: E402
from mxfp8fa.kernels.producers import quantize  # noqa: E402
from mxfp8fa.layouts import cu_tiles, pack_scales  # noqa: E402
from mxfp8fa.numerics import quantize as quantize_numpy  # noqa: E402
from mxfp8fa.numerics.scale_rules import SCALE_RULES  # noqa: E402

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def hard(shape, dtype=torch.float32, seed=0):
    """Every block with its own power of two; some of zeros, some with NaN or infinities, some of subnormals."""
    rng = np.random.default_rng(seed)
    tokens, columns = int(np.prod(shape[:-1])), shape[-1]
    x = rng.standard_normal((tokens, columns)) * 2.0 ** rng.integers(-12, 12, (tokens, columns))
    x = x * 2.0 ** ((np.arange(tokens) // 7 % 7)[:, None] - 3 + (np.arange(columns) // 32 % 5)[None])
    wide = 2.0 ** rng.integers(-140, 118, (tokens, 1)) if dtype != torch.float16 else 2.0 ** rng.integers(-16, 8, (tokens, 1))
    x = np.where(rng.random((tokens, 1)) < 0.3, x * wide, x)
    x[: tokens // 3, :32] = -0.0
    with np.errstate(over="ignore"):
        x = torch.from_numpy(x.astype(np.float32)).to(dtype).reshape(shape)
    flat = x.view(-1)
    flat[flat.numel() // 2] = float("nan")
    flat[-3] = float("-inf")
    return x


def as_numpy(x):
    return (x if x.dtype == torch.float16 else x.float()).numpy()


def assert_equals_numpy(operand, x, **options):
    """Codes, scales and the padding of atoms; of packed sequences also the tiles that were there in case."""
    lengths = options.pop("cu_seqlens", None)
    lengths = None if lengths is None else lengths.numpy()
    expected = quantize_numpy(as_numpy(x), tail="partial", cu_seqlens=lengths, **options)
    np.testing.assert_array_equal(operand.codes.numpy(), expected.codes)
    for rows, packed in operand.scales.items():
        if lengths is not None:
            tiles, axis = int(cu_tiles(lengths)[-1]), -3 if rows == "tokens" else -2
            assert (packed.narrow(axis, tiles, packed.shape[axis] - tiles) == 0).all()
            packed = packed.narrow(axis, 0, tiles)
        np.testing.assert_array_equal(packed.numpy(), pack_scales(expected, rows=rows), err_msg=rows)
    assert operand.axes == expected.axes and operand.fmt == expected.fmt


def check(x, **options):
    with emulation(check="races", wait_ld="required") as report:
        operand = quantize(x, **options)
    assert report.races == [] and len(report.launches) == 1
    assert_equals_numpy(operand, x, **options)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_matrix(axes, dtype):
    check(hard((128, 128), dtype), axes=axes)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("shape", [(1, 32), (33, 96), (150, 160)], ids=str)
def test_tails(shape, axes):
    check(hard(shape, torch.bfloat16), axes=axes)


@pytest.mark.parametrize("axes", [(1,), (3,), (1, 3)], ids=str)
def test_batch_of_heads(axes):
    check(hard((2, 70, 2, 64), torch.bfloat16), axes=axes)


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2)], ids=str)
def test_packed_sequences(axes):
    lengths = torch.tensor([0, 5, 5, 140, 172], dtype=torch.int32)
    check(hard((172, 2, 32), torch.bfloat16), axes=axes, cu_seqlens=lengths)


def test_lengths_in_64_bits():
    check(hard((40, 2, 32)), axes=(2,), cu_seqlens=torch.tensor([0, 5, 40], dtype=torch.int64))


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_rules_and_formats(rule, fmt):
    check(hard((64, 64)), axes=(1,), rule=rule, fmt=fmt)


def test_all_bfloat16_in_one_block_each():
    """Every bit pattern meets a block whose maximum is 448."""
    x = torch.zeros(64, 1024, dtype=torch.bfloat16)
    x.view(torch.int16).copy_(torch.arange(-(2**15), 2**15).to(torch.int16).view(64, 1024))
    check(x, axes=(1,))
    check(x, axes=(0,))


def strided(make):
    base = hard((96, 256), torch.bfloat16)
    return {
        "rows apart": lambda: base[:, :128],
        "every third row": lambda: base[::3],
        "rows at odd addresses": lambda: base[:, 1:97],
        "transposed": lambda: base.T[:96],
        "heads first": lambda: hard((1, 2, 40, 32), torch.bfloat16).transpose(1, 2),
    }[make]()


@pytest.mark.parametrize("make", ["rows apart", "every third row", "rows at odd addresses", "transposed", "heads first"])
def test_strides(make):
    x = strided(make)
    assert not x.is_contiguous()
    check(x, axes=(x.ndim - 1,))


def test_no_tokens():
    operand = quantize(torch.zeros(0, 64), axes=(0, 1))
    assert operand.codes.shape == (0, 64) and operand.scales["tokens"].shape == (0, 1, 512)
    packed = quantize(torch.zeros(0, 2, 64), axes=(2,), cu_seqlens=torch.zeros(3, dtype=torch.int32))
    assert packed.codes.shape == (0, 2, 64)


def test_gradients_do_not_flow():
    x = torch.ones(32, 32, requires_grad=True)
    assert not quantize(x, axes=(1,)).codes.requires_grad


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(32, 40), {}, r"x has 40 columns; allowed: positive multiples of 32"),
        (torch.zeros(32, 32, dtype=torch.int32), {}, r"x is torch.int32 \(32, 32\); allowed: a tensor of torch.bfloat16"),
        (torch.zeros(32), {}, r"x is torch.float32 \(32,\); allowed: a tensor of .* of rank 2 or 3 or 4"),
        (torch.zeros(2, 32, 2, 32), {"axes": (2,)}, r"axes = \(2,\); allowed for shape \(2, 32, 2, 32\): 1, 3 or both"),
        (torch.zeros(32, 2, 32), {"axes": (2,)}, r"rank 3 is packed sequences and needs cu_seqlens"),
        (torch.zeros(33, 32), {"axes": (0,), "tail": "error"}, r"axis 0 has length 33, not a multiple"),
        (torch.zeros(32, 32), {"rule": "up"}, r"rule = 'up' is not a scale rule"),
        (torch.zeros(32, 32), {"fmt": "e3m4"}, r"fmt = 'e3m4' is not an MXFP8 element format"),
        (torch.zeros(32, 32), {"tail": "pad"}, r"tail = 'pad'; allowed: error, partial"),
        (torch.zeros(32, 32, device="meta"), {}, r"tensors are on meta; allowed: CUDA devices"),
    ],
)
def test_bad_arguments(x, options, message):
    with pytest.raises(ValueError, match=message):
        quantize(x, **{"axes": (1,), **options})
