"""Blocks in torch: code for code those of NumPy, for every rule, kind of block, and special value."""

import numpy as np
import pytest
import torch
from devices import DEVICES

from mxfp8fa.nn.blocks import AXES, decode, decode_scale, dequantize, encode, quantize
from mxfp8fa.numerics import quantize as numpy_quantize
from mxfp8fa.numerics.formats import decode as numpy_decode
from mxfp8fa.numerics.formats import encode as numpy_encode


def awkward(shape, seed=0):
    """Every magnitude float32 has, one zero block, and blocks with a NaN, an infinity and subnormals."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-40, 40, shape)
    x = x.astype(np.float32)
    rows = x.reshape(-1, shape[-2], shape[-1])
    rows[0, :32, :32] = 0.0
    rows[0, 0, 1] = -0.0
    rows[0, 40, 40] = np.nan
    rows[1, 3, 70] = np.inf
    rows[1, 32:64, :32] *= np.float32(2.0**-120)
    rows[1, 64:, :32] = np.float32(3e38)
    return x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
@pytest.mark.parametrize("blocks", ["along_d", "along_tokens", "square"])
def test_codes_and_scales_are_those_of_numpy(blocks, rule, device):
    x = awkward((2, 3, 100, 128))
    axes = tuple(4 + axis for axis in AXES[blocks])
    expected = numpy_quantize(x, axes=axes, rule=rule, tail="partial")
    found = quantize(torch.from_numpy(x).to(device), blocks, rule)
    np.testing.assert_array_equal(found.codes.cpu().numpy(), expected.codes)
    np.testing.assert_array_equal(found.scale_e8m0.cpu().numpy(), expected.scale_e8m0)
    np.testing.assert_array_equal(found.values.cpu().numpy(), expected.dequantize())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_widened(dtype):
    x = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for a, b in zip(quantize(x, "square"), quantize(x.float(), "square"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("blocks", ["along_d", "along_tokens", "square"])
def test_dequantize_inverts(blocks):
    x = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(1))
    payload = quantize(x, blocks)
    assert torch.equal(dequantize(payload.codes, payload.scale_e8m0, blocks), payload.values)


@pytest.mark.parametrize("device", DEVICES)
def test_every_code_and_scale(device):
    codes = np.arange(256, dtype=np.uint8)
    given = torch.from_numpy(codes).to(device)
    np.testing.assert_array_equal(decode(given).cpu().numpy(), numpy_decode(codes, "e4m3"))
    np.testing.assert_array_equal(decode_scale(given.int()).cpu().numpy(), numpy_decode(codes, "e8m0"))


@pytest.mark.parametrize("device", DEVICES)
def test_rounding_at_every_boundary(device):
    """Each E4M3 number, each midpoint of two, and the float32 numbers beside them."""
    positive = numpy_decode(np.arange(127, dtype=np.uint8), "e4m3")
    middles = (positive[1:] + positive[:-1]) / 2
    points = np.concatenate([positive, middles])
    points = np.concatenate([points, np.nextafter(points, np.float32(-np.inf)), np.nextafter(points, np.float32(448))])
    points = np.concatenate([points, -points, np.array([np.nan], np.float32)]).astype(np.float32)
    found = encode(torch.from_numpy(points).to(device)).cpu().numpy()
    np.testing.assert_array_equal(found, numpy_encode(points, "e4m3"))
