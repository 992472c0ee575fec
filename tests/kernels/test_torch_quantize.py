"""The torch quantizer: code for code the NumPy one, for every rule, format, block, layout of memory and special value."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mxfp8fa.kernels.operands import MXOperand  # noqa: E402
from mxfp8fa.kernels.torch_quantize import dequantize, pack_scales, quantize, quantize_blocks  # noqa: E402
from mxfp8fa.layouts import pack_scales as pack_numpy  # noqa: E402
from mxfp8fa.numerics import quantize as quantize_numpy  # noqa: E402
from mxfp8fa.numerics.scale_rules import SCALE_RULES  # noqa: E402

FORMATS = ("e4m3", "e5m2")


def hard_values(shape, seed=0):
    """Any float32 bit patterns: subnormals, NaN and infinities included, and every exponent as often as any other."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)


def spread_values(shape, seed=0):
    """Blocks whose elements are within a few powers of two of each other, with a block of zeros and a NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    x = x * 2.0 ** rng.integers(-140, 118, (*shape[:-1], 1))
    x = x.astype(np.float32)
    x[:, :32] = -0.0
    x[-1, -1] = np.nan
    return x


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("make", [hard_values, spread_values])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_codes_and_scales_are_the_numpy_ones(axes, make, rule, fmt):
    x = make((256, 128))
    expected = quantize_numpy(x, axes=axes, rule=rule, fmt=fmt)
    codes, scale = quantize_blocks(torch.from_numpy(x), axes=axes, rule=rule, fmt=fmt)
    np.testing.assert_array_equal(codes.numpy(), expected.codes)
    np.testing.assert_array_equal(scale.numpy(), expected.scale_e8m0)


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_every_bfloat16(rule):
    """All 65,536 of them, each as the largest of its block."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    blocks = x[:, None] * torch.linspace(1, -1, 32).bfloat16()
    expected = quantize_numpy(blocks.float().numpy(), rule=rule)
    codes, scale = quantize_blocks(blocks, axes=-1, rule=rule)
    np.testing.assert_array_equal(codes.numpy(), expected.codes)
    np.testing.assert_array_equal(scale.numpy(), expected.scale_e8m0)


def test_every_float16():
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).reshape(-1, 32)
    expected = quantize_numpy(x.numpy())
    codes, scale = quantize_blocks(x, axes=1)
    np.testing.assert_array_equal(codes.numpy(), expected.codes)
    np.testing.assert_array_equal(scale.numpy(), expected.scale_e8m0)


LENGTHS = np.array([0, 70, 70, 71, 224], np.int32)
SHAPES = [
    ((1, 1), (0,), None), ((33, 70), (1,), None), ((33, 70), (0, 1), None), ((130, 64), (0,), None),
    ((2, 130, 3, 64), (3,), None), ((2, 130, 3, 64), (1,), None), ((2, 130, 3, 160), (1, 3), None),
    ((1, 7, 2, 64), (1, 3), None), ((2, 0, 3, 64), (1,), None), ((0, 5, 3, 64), (1, 3), None),
    ((224, 2, 64), (2,), LENGTHS), ((224, 2, 64), (0,), LENGTHS), ((224, 2, 160), (0, 2), LENGTHS),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes", "lengths"), SHAPES)
def test_the_operand_is_the_numpy_one(shape, axes, lengths):
    x = spread_values(shape) if 0 not in shape else np.zeros(shape, np.float32)
    expected = MXOperand.from_mx_tensor(quantize_numpy(x, axes=axes, tail="partial", cu_seqlens=lengths))
    cu_seqlens = None if lengths is None else torch.from_numpy(lengths)
    given = quantize(torch.from_numpy(x), axes=axes, tail="partial", cu_seqlens=cu_seqlens)
    assert torch.equal(given.codes, expected.codes) and given.codes.stride() == torch.empty(shape).stride()
    assert given.scales.keys() == expected.scales.keys()
    for rows, packed in expected.scales.items():
        assert torch.equal(given.scales[rows], packed), rows
        assert given.scales[rows].is_contiguous()
    assert (given.axes, given.fmt, given.shape) == (expected.axes, expected.fmt, expected.shape)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("shape", "axes", "lengths"), SHAPES)
def test_values_come_back(shape, axes, lengths, fmt):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * np.float32(2.0**-130)
    if x.size:
        x.flat[-1] = np.nan
    expected = quantize_numpy(x, axes=axes, tail="partial", cu_seqlens=lengths, fmt=fmt)
    values = dequantize(MXOperand.from_mx_tensor(expected))
    np.testing.assert_array_equal(values.numpy(), expected.dequantize(np.float64))


def test_any_strides():
    x = torch.randn(2, 3, 64, 70).transpose(1, 3)[:, ::2]  # (2, 35, 64, 3)
    assert not x.is_contiguous()
    ours, plain = quantize(x, axes=2 - 1, tail="partial"), quantize(x.contiguous(), axes=1, tail="partial")
    assert torch.equal(ours.codes, plain.codes) and torch.equal(ours.scales["head_dim"], plain.scales["head_dim"])


def test_no_gradient_flows():
    codes, scale = quantize_blocks(torch.randn(32, 32, requires_grad=True), axes=1)
    assert not codes.requires_grad and not scale.requires_grad


def test_it_can_be_traced_without_data():
    """FakeTensor and meta tensors, which `torch.compile` uses, have no values to look at."""
    given = quantize(torch.empty(2, 130, 3, 64, device="meta"), axes=(1, 3), tail="partial")
    assert tuple(given.scales["tokens"].shape) == (2, 3, 2, 1, 512) and given.codes.device.type == "meta"


def test_packing_is_the_numpy_one():
    x = quantize_numpy(spread_values((2, 200, 3, 96)), axes=(1, 3), tail="partial")
    for rows in ("tokens", "head_dim"):
        packed = pack_scales(torch.from_numpy(x.scale_e8m0), shape=x.shape, axes=x.axes, rows=rows)
        np.testing.assert_array_equal(packed.numpy(), pack_numpy(x, rows=rows))


@pytest.mark.parametrize(
    ("x", "keywords", "message"),
    [
        (torch.zeros(32, 32, dtype=torch.float64), {"axes": 1}, "torch.float64; allowed: a tensor of torch.float32"),
        (torch.zeros(32, 33), {"axes": 1}, "axis 1 has length 33, not a multiple of the block length 32"),
        (torch.zeros(32, 32), {"axes": 1, "tail": "pad"}, "tail = 'pad'; allowed: error, partial"),
        (torch.zeros(32, 32), {"axes": 1, "rule": "up"}, "rule = 'up' is not a scale rule"),
        (torch.zeros(32, 32), {"axes": 1, "fmt": "e2m1"}, "is not an MXFP8 element format"),
        (torch.zeros(32, 32), {"axes": 2}, "2 is no axis of an array of rank 2"),
        (torch.zeros(1, 32, 1, 32), {"axes": 2, "tail": "partial"}, "axes = (2,); allowed for shape (1, 32, 1, 32): 1, 3"),
        (torch.zeros(32, 1, 32), {"axes": 0}, "rank 3 is packed sequences and needs cu_seqlens"),
        (torch.zeros(32), {"axes": 0}, "rank 1"),
    ],
)  # fmt: skip
def test_what_is_not_allowed(x, keywords, message):
    with pytest.raises(ValueError) as error:
        quantize(x, **keywords)
    assert message in str(error.value)


def test_it_needs_neither_the_dsl_nor_the_emulator():
    """Producers, and attention in torch, run where the CuTe DSL does not exist."""
    script = (
        "import sys; sys.modules['cutlass'] = sys.modules['llvmlite'] = None\n"
        "from mxfp8fa.kernels import MXOperand, quantize\n"
        "print([m for m in sys.modules if m.startswith('mxfp8fa.emulator')])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "[]", run.stderr[-2000:]
