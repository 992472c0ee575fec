"""RMSNorm fused with quantization: rstd against float64, and given rstd, y and its codes bit for bit."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from test_producer_quantize import FLOATS, assert_equals_numpy  # noqa: E402

from mxfp8fa.kernels.execution import emulation  # noqa: E402
from mxfp8fa.kernels.producers import rmsnorm_quantize  # noqa: E402
from mxfp8fa.kernels.producers.rmsnorm_kernel import shape_for  # noqa: E402

# (D + 6) additions of squares in a tree no deeper than 8 + 3 + 16 + 8 levels, each within 2^-24; half of that relative
# error reaches the root; division, sum with eps and rsqrt (2^-22.9, PTX ISA) come on top.
RSTD_BOUND = 40 * 2.0**-24 / 2 + 2.0**-22.9 + 2 * 2.0**-24


def check(shape, axes, dtype=torch.bfloat16, schedule="eager", **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-6, 7, (*shape[:-1], 1), generator=generator)
    x, weight = x.to(dtype), torch.randn(shape[-1], generator=generator).to(dtype)
    with emulation(check="races", wait_ld="required", schedule=schedule, seed=1) as report:
        result = rmsnorm_quantize(x, weight, axes=axes, return_y=True, **options)
    assert report.races == [] and len(report.launches) == 1
    exact = 1 / torch.sqrt(x.double().square().mean(-1) + options.get("eps", 1e-6))
    assert ((result.rstd - exact) / exact).abs().max() < RSTD_BOUND
    y = x.float() * result.rstd[..., None] * weight.float()
    np.testing.assert_array_equal(result.y.float().numpy(), y.to(dtype).float().numpy())
    assert_equals_numpy(result.operand, y, axes=axes, **{k: v for k, v in options.items() if k == "cu_seqlens"})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_matrix(axes, dtype):
    check((40, 96), axes, dtype)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_clusters(schedule):
    """Two CTAs share 1,056 columns; both have room for more."""
    assert shape_for(1056, 2).cluster == 2
    check((33, 1056), (0, 1), schedule=schedule)


def test_packed_heads():
    check((140, 2, 64), (0, 2), cu_seqlens=torch.tensor([0, 5, 5, 140], dtype=torch.int32))


def test_batches():
    check((2, 33, 2, 32), (1,), eps=0.1)


def test_a_row_with_nan_is_nan():
    x = torch.ones(32, 64)
    x[3, 5] = torch.nan
    result = rmsnorm_quantize(x, torch.ones(64), axes=(1,))
    assert (result.operand.codes[3] == 0x7F).all() and (result.operand.codes[4] != 0x7F).all() and result.y is None


def test_no_tokens():
    result = rmsnorm_quantize(torch.zeros(0, 64), torch.ones(64), axes=(1,))
    assert result.operand.codes.shape == (0, 64) and result.rstd.shape == (0,)


@pytest.mark.parametrize(
    ("x", "weight", "options", "message"),
    [
        (torch.zeros(32, 8224), torch.ones(8224), {}, "x has 8224 columns; allowed: at most 8192"),
        (torch.zeros(32, 64), torch.ones(32), {}, r"weight is torch.float32 \(32,\); allowed: \(64,\)"),
        (torch.zeros(32, 64), torch.ones(64), {"eps": -1.0}, r"eps = -1.0; allowed: numbers from 0"),
        (torch.zeros(32, 64), torch.ones(64, device="meta"), {}, "weight is on meta; allowed: cpu, as x"),
    ],
)
def test_bad_arguments(x, weight, options, message):
    with pytest.raises(ValueError, match=message):
        rmsnorm_quantize(x, weight, axes=(1,), **options)
