"""fma, exp2 and the sums in torch against NumPy, bit for bit."""

import numpy as np
import pytest
import torch
from devices import DEVICES

from mxfp8fa.nn.elementary import exp2, fma, half_sum, lane_sum, row_dot
from mxfp8fa.numerics.backward_inputs import row_dot as numpy_row_dot
from mxfp8fa.numerics.exp2 import EXCEPTIONS
from mxfp8fa.numerics.fma import fma as numpy_fma
from mxfp8fa.numerics.formats import decode as numpy_decode
from mxfp8fa.numerics.softmax import exp2_ftz
from mxfp8fa.numerics.softmax import half_sum as numpy_half_sum
from mxfp8fa.numerics.softmax import lane_sum as numpy_lane_sum


def same_bits(found, expected):
    found = found.cpu().numpy()
    assert found.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.int32), expected[~nan].view(np.int32))


def random_bits(count, seed):
    """float32 numbers of every kind, NaN and infinities included."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_fma(device):
    a, b, c = (random_bits(200_000, seed) for seed in range(3))
    near = np.random.default_rng(3).standard_normal((2, 200_000)).astype(np.float32)
    a, b = np.concatenate([a, near[0]]), np.concatenate([b, near[1]])
    # A product that all but cancels, and one that a sum leaves half way between two numbers.
    c = np.concatenate([c, np.where(np.arange(200_000) % 2 == 0, -near[0] * near[1], np.float32(2.0**24) * near[0])])
    found = fma(*(torch.from_numpy(x).to(device) for x in (a, b, c)))
    with np.errstate(all="ignore"):
        same_bits(found, numpy_fma(a, b, c))


def test_fma_rounds_once():
    """a * b + c lies a little above the midpoint of two float32 numbers; by way of float64 it would round to even."""
    a, b, c = np.float32(1 + 2.0**-12), np.float32(2.0**-24 * (1 + 2.0**-12)), np.float32(1.0)
    twice = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    found = fma(*(torch.tensor(x) for x in (a, b, c))).item()
    assert found == float(numpy_fma(a, b, c)) == float(np.nextafter(np.float32(1), np.float32(2)))
    assert found == twice  # here float64 is wide enough
    tiny = np.float32(2.0**-60)
    assert fma(torch.tensor(tiny), torch.tensor(tiny), torch.tensor(c)).item() == 1.0


@pytest.mark.parametrize("device", DEVICES)
def test_exp2(device):
    x = np.concatenate(
        [
            np.linspace(-160, 130, 300_001, dtype=np.float32),
            random_bits(100_000, 4),
            np.array([argument for argument, _ in EXCEPTIONS], np.float32),
            np.array([np.nan, np.inf, -np.inf, -126, -126.00001, -149, -150, 127.99999, 128, 0, -0.0], np.float32),
        ]
    )
    with np.errstate(all="ignore"):
        same_bits(exp2(torch.from_numpy(x).to(device)), exp2_ftz(x))


@pytest.mark.parametrize("device", DEVICES)
def test_sums_in_the_order_of_the_kernel(device):
    rng = np.random.default_rng(5)
    p, start = rng.random((50, 128), np.float32), rng.random(50, np.float32)
    same_bits(lane_sum(*(torch.from_numpy(x).to(device) for x in (p, start))), numpy_lane_sum(p, start))
    values = numpy_decode(rng.integers(0, 127, (50, 256), dtype=np.uint8), "e4m3")
    same_bits(half_sum(torch.from_numpy(values).to(device)), numpy_half_sum(values))
    a, b = rng.standard_normal((2, 50, 96)).astype(np.float32)
    same_bits(row_dot(*(torch.from_numpy(x).to(device) for x in (a, b))), numpy_row_dot(a, b))
