"""The producers on a GPU, Hopper or Blackwell, code for code like everywhere else; skipped, by name, where there is none.

Here only: the wgmma main loop, and shapes that would take the emulator hours.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")

from test_producer_quantize import FLOATS, assert_equals_numpy, hard  # noqa: E402
from test_rmsnorm import RSTD_BOUND  # noqa: E402

from mxfp8fa.attention.payloads import quantized  # noqa: E402
from mxfp8fa.kernels.producers import gemm, gemm_quantize, quantize, rmsnorm_quantize  # noqa: E402

CAPABILITIES = ((9, 0), (10, 0), (10, 3))
HERE = torch.cuda.is_available() and torch.cuda.get_device_capability() in CAPABILITIES
pytestmark = pytest.mark.skipif(not HERE, reason="runs on a Hopper or Blackwell GPU only (wgmma, tcgen05 on silicon)")

LENGTHS = [0, 1, 1, 130, 257, 300]
KINDS = {"matrix": (0, 1), "heads": (1, 3), "packed": (0, 2)}


def on_cpu(operand):
    moved = {rows: packed.cpu() for rows, packed in operand.scales.items()}
    lengths = None if operand.cu_seqlens is None else operand.cu_seqlens.cpu()
    return type(operand)(operand.codes.cpu(), moved, operand.axes, operand.fmt, lengths)


def data(kind, columns, dtype):
    shape = {"matrix": (300, columns), "heads": (2, 77, 3, columns), "packed": (300, 2, columns)}[kind]
    options = {"cu_seqlens": torch.tensor(LENGTHS, dtype=torch.int32)} if kind == "packed" else {}
    return hard(shape, dtype), options


def axes_of(kind):
    token, last = KINDS[kind]
    return (token,), (last,), (token, last)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_quantize(kind, dtype):
    for columns in (32, 160, 512):
        x, options = data(kind, columns, dtype)
        on_gpu = {name: value.cuda() for name, value in options.items()}
        for axes in axes_of(kind):
            assert_equals_numpy(on_cpu(quantize(x.cuda(), axes=axes, **on_gpu)), x, axes=axes, **options)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [32, 96, 1024, 1056, 2112, 4128, 4096, 8192])
def test_rmsnorm(columns, dtype):
    """Every size of cluster; more groups than clusters, so that all rings come around."""
    generator = torch.Generator().manual_seed(0)
    tokens = 40 * columns if columns < 100 else 32 * 132 * 3 + 5 if columns == 1024 else 6000
    x = torch.randn(tokens, columns, generator=generator) * 2.0 ** torch.randint(-6, 7, (tokens, 1), generator=generator)
    x, weight = x.to(dtype), torch.randn(columns, generator=generator).to(dtype)
    for axes in ((0,), (1,), (0, 1)):
        result = rmsnorm_quantize(x.cuda(), weight.cuda(), axes=axes, return_y=True)
        rstd = result.rstd.cpu()
        exact = 1 / torch.sqrt(x.double().square().mean(-1) + 1e-6)
        assert ((rstd - exact) / exact).abs().max() < RSTD_BOUND
        y = x.float() * rstd[:, None] * weight.float()
        np.testing.assert_array_equal(result.y.cpu().float().numpy(), y.to(dtype).float().numpy())
        assert_equals_numpy(on_cpu(result.operand), y, axes=axes)


def test_rmsnorm_of_packed_heads():
    x, options = data("packed", 128, torch.bfloat16)
    x = torch.nan_to_num(x.float(), 1, 1, 1).clamp(-8, 8).bfloat16()
    weight = torch.ones(128).bfloat16()
    for axes in axes_of("packed"):
        result = rmsnorm_quantize(x.cuda(), weight.cuda(), axes=axes, cu_seqlens=options["cu_seqlens"].cuda())
        y = x.float() * result.rstd.cpu()[..., None] * weight.float()
        assert_equals_numpy(on_cpu(result.operand), y, axes=axes, **options)


@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 32, 32), (300, 288, 96), (4000, 2048, 1024)])
def test_gemm_quantize(tokens, n, k):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(tokens, k, generator=generator) * 2.0 ** torch.randint(-6, 7, (tokens, 1), generator=generator)).bfloat16()
    weight = torch.randn(n, k, generator=generator).bfloat16()
    d = gemm(x.cuda(), weight.cuda(), dtype=torch.float32).cpu()
    bound = 2.0**-22 * (k + 16) * (x.abs().double() @ weight.abs().double().T)  # tensor cores truncate sums
    assert ((d - x.double() @ weight.double().T).abs() <= bound).all()
    kinds = ((0,), (1,), (0, 1))
    for operand, axes in zip(gemm_quantize(x.cuda(), weight.cuda(), axes=kinds), kinds, strict=True):
        assert_equals_numpy(on_cpu(operand), d, axes=axes)


def test_gemm_quantize_of_packed_heads():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(300, 128, generator=generator).bfloat16(), torch.randn(256, 128, generator=generator).bfloat16()
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    d = gemm(x.cuda(), weight.cuda(), dtype=torch.float32).cpu().view(300, 2, 128)
    operand = gemm_quantize(x.cuda(), weight.cuda(), head_dim=128, axes=(0, 2), cu_seqlens=lengths.cuda())
    assert_equals_numpy(on_cpu(operand), d, axes=(0, 2), cu_seqlens=lengths)


@pytest.mark.parametrize("axes", [(1,), (3,), (1, 3)], ids=str)
def test_attention_quantizes_with_the_kernel(axes):
    """D = 64 and 128 are all that it takes; heads that lie outside of tokens, as users' tensors do."""
    for head_dim in (64, 128):
        x = hard((2, 3, 77, head_dim), torch.bfloat16).transpose(1, 2)
        assert_equals_numpy(on_cpu(quantized(x.cuda(), axes=axes, rule="rceil")), x, axes=axes)
