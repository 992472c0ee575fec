"""What runs before and after the main kernel, bit for bit."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from backward_harness import assert_same, never_written, run_kernel, uneven  # noqa: E402
from cutlass import Float32, Int32  # noqa: E402

from mxfp8fa.kernels import compile_kernel  # noqa: E402
from mxfp8fa.kernels.backward.postprocess import postprocess  # noqa: E402
from mxfp8fa.kernels.backward.preprocess import preprocess  # noqa: E402
from mxfp8fa.kernels.forward.tensors import rows  # noqa: E402
from mxfp8fa.kernels.steps.step3_block_scaled import E4M3  # noqa: E402
from mxfp8fa.layouts import pack_scales  # noqa: E402
from mxfp8fa.numerics import quantize  # noqa: E402
from mxfp8fa.numerics.backward_inputs import row_dot  # noqa: E402
from mxfp8fa.numerics.softmax import LOG2_E  # noqa: E402


def run_preprocess(do, o, lse, *, dlse=None, rule="rceil", dequantized=True, work=torch.float32):
    """Outputs of the preprocess kernel."""
    (batch, _, heads, head_dim), tiles = do.shape, -(-do.shape[1] // 128)
    codes = torch.zeros(do.shape, dtype=torch.uint8)
    scales = never_written((2, batch, heads, tiles, 128), torch.int32)
    terms = never_written((batch, heads, tiles, 256))
    dq = never_written((batch, heads, tiles, 128 * head_dim), work)
    arguments = (
        *map(rows, (do, o)),
        *(None if x is None else rows(x.unsqueeze(-1)) for x in (lse, dlse)),
        rows(codes, E4M3),
        *map(rows, (scales, terms, dq)),
        None,  # no work table: not packed
        *map(Int32, (batch, do.shape[1], heads)),
    )
    run_kernel(compile_kernel(preprocess, *arguments, 8, rule, dequantized), arguments)
    return codes.numpy(), scales.numpy().view(np.uint8), terms.numpy(), dq


@pytest.mark.parametrize(
    ("shape", "dtype", "rule", "dequantized"),
    [
        ((1, 130, 2, 64), torch.float32, "rceil", True),
        ((2, 64, 1, 128), torch.bfloat16, "even", False),
        ((1, 257, 1, 128), torch.float16, "rceil", True),
        ((1, 1, 1, 64), torch.float32, "floor", True),
    ],
)
def test_preprocess(shape, dtype, rule, dequantized):
    batch, seqlen, heads, _ = shape
    do, o = (torch.from_numpy(uneven(shape, seed)).to(dtype) for seed in (1, 2))
    do[0, 0, 0, :32] *= 2.0**-100
    if seqlen > 40:
        do[0, 40, 0, 5], do[-1, 8, -1, 33] = float("nan"), float("inf")
        do[0, 32:64, 0, 32:64] = 0
    lse, dlse = torch.randn(batch, heads, seqlen), torch.randn(batch, heads, seqlen)
    lse[0, 0, seqlen // 2] = -torch.inf
    codes, scales, terms, dq = run_preprocess(do, o, lse, dlse=dlse, rule=rule, dequantized=dequantized)

    x = quantize(do.float().numpy(), axes=(1, 3), rule=rule, tail="partial")
    assert np.array_equal(codes, x.codes)
    for packed, side in zip(scales, ("tokens", "head_dim"), strict=True):
        assert np.array_equal(packed.reshape(-1), pack_scales(x, rows=side).reshape(-1)), side
    with np.errstate(invalid="ignore"):
        delta = row_dot(x.dequantize() if dequantized else do.float().numpy(), o.float().numpy()).transpose(0, 2, 1)
    unseen = lse.numpy() == -np.inf
    delta = np.where(unseen, np.float32(0), delta - dlse.numpy())
    addend = np.where(unseen, -np.float32(np.inf), np.float32(8) - lse.numpy() * LOG2_E)
    flat = terms.reshape(batch, heads, -1, 2, 128).transpose(3, 0, 1, 2, 4).reshape(2, batch, heads, -1)
    assert_same(flat[0, ..., :seqlen], addend)
    assert_same(flat[1, ..., :seqlen], delta)
    assert (flat[0, ..., seqlen:] == -np.inf).all() and (flat[1, ..., seqlen:] == 0).all()
    assert (dq == 0).all()


@pytest.mark.parametrize(
    ("shape", "work", "dtype"),
    [
        ((2, 130, 2, 64), torch.float32, torch.float32),
        ((1, 64, 1, 128), torch.float32, torch.bfloat16),
        ((1, 129, 1, 128), torch.float16, torch.float16),
    ],
)
def test_postprocess(shape, work, dtype):
    batch, seqlen, heads, head_dim = shape
    tiles, vector = -(-seqlen // 128), 4 if work == torch.float32 else 8
    sums = torch.randn(batch, heads, tiles, 4, head_dim // vector, 32, vector).to(work)
    sums[0, 0, 0, 0, :, 0, 0], sums[-1, -1, -1, 0, 1, 0, 1] = torch.inf, torch.nan
    dq, infinities = never_written(shape, dtype), torch.full((1, 1), 5, dtype=torch.int32)
    unscale = 1.0 if work == torch.float32 else 2.0**-12
    arguments = (
        rows(sums.reshape(batch, heads, tiles, -1)),
        rows(dq),
        rows(torch.full((1, 1), 1 / unscale)),
        rows(infinities),
        None,
        *map(Int32, (batch, seqlen, heads)),
        Float32(0.3),
    )
    run_kernel(compile_kernel(postprocess, *arguments), arguments)
    ordered = sums.permute(0, 2, 3, 5, 1, 4, 6).reshape(batch, tiles * 128, heads, head_dim)[:, :seqlen].float()
    assert_same(dq.float(), (ordered * unscale * torch.tensor(0.3)).to(dtype).float())
    assert infinities.item() == 5 + (work == torch.float16) * torch.isinf(ordered).sum()
