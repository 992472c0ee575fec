"""Step 6: attention over any number of keys, in order."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from attention_harness import (  # noqa: E402
    blocks,
    check_attention,
    compile_attention,
    misplaced,
    model,
    operands,
    run_attention,
    with_heads,
)
from step_harness import assert_same_bits, empty, tables_of  # noqa: E402

from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.kernels.steps import step6_kv_loop as step  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, encode, quantize  # noqa: E402

SCALE = 0.11


@pytest.fixture(scope="module")
def kernel():
    """The compiled kernel of each head_dim, for all lengths."""
    return compile_attention(step, step.kv_loop, SCALE)


def test_equals_the_model_bit_for_bit(kernel, schedule, accumulate):
    """Three tiles of keys, the last one a part of a tile, as are the queries."""
    q, k, v = operands(96, 300, 64)
    o, lse, _ = check_attention(step, kernel(64), q, k, v, SCALE, accumulate=accumulate, **schedule)
    assert torch.isnan(lse).nonzero().tolist() == [[5]] and torch.isnan(o).all(0).nonzero().tolist() == [[5]]
    assert torch.isfinite(o).sum() == 95 * 63


def test_head_dim_128(kernel):
    check_attention(step, kernel(128), *operands(33, 256, 128), SCALE, accumulate="blackwell", schedule="lazy")


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k"),
    [(1, 1), (1, 31), (31, 32), (32, 33), (33, 127), (127, 128), (128, 129), (6, 512), (257, 2)],
)
def test_lengths(kernel, seqlen_q, seqlen_k):
    tensors = operands(seqlen_q, seqlen_k, 64)
    _, _, report = check_attention(step, kernel(64), *tensors, SCALE, schedule="random", seed=seqlen_k)
    assert report.launches[0].grid == (-(-seqlen_q // 128), 1, 1)


def test_square_blocks(kernel):
    check_attention(step, kernel(64), *operands(96, 160, 64, square=True), SCALE)


def test_a_nan_in_k_is_in_every_row(kernel):
    """In the tile that is visited last."""
    o, lse, _ = check_attention(step, kernel(64), *operands(40, 200, 64, nan_in_k=True), SCALE)
    assert torch.isnan(lse).all() and torch.isnan(o).all()


def test_what_lies_past_the_end_does_not_matter(kernel):
    """Queries, keys and values that are followed by NaN codes in memory."""
    tensors = operands(70, 140, 64)
    views = []
    for x in map(MXOperand.from_mx_tensor, tensors):
        longer = torch.full((x.shape[0] + 130, 64), 0x7F, dtype=torch.uint8)
        longer[: x.shape[0]] = x.codes
        views.append(MXOperand(longer[: x.shape[0]], x.scales, x.axes))
    o, lse, _ = run_attention(step, kernel(64), *views, SCALE)
    expected_o, expected_lse = model(*tensors, SCALE)
    assert_same_bits(o, expected_o)
    assert_same_bits(lse, expected_lse)


def rising(growth_log2):
    """Q and K whose scores are constant in a tile of keys and rise by `growth_log2` from the last tile to the first."""
    q = np.zeros((128, 64), np.float32)
    k = np.zeros((512, 64), np.float32)
    q[:, 0] = 1
    k[:, 0] = np.repeat([3, 2, 1, 0], 128)
    v = blocks(64, 512, 3, nan=False).T.copy()
    return quantize(q, axes=1), quantize(k, axes=1), quantize(v, axes=0), growth_log2 / np.log2(np.e)


@pytest.mark.parametrize(("growth_log2", "rescales"), [(0.25, 0), (0.3, 1), (0.79, 1), (0.81, 3), (5.0, 3)])
def test_o_is_rescaled_only_when_the_maximum_has_grown_enough(kernel, growth_log2, rescales):
    """A lag of up to 0.8: 3 x 0.25 is allowed, 0.3 + 0.3 + 0.3 is made up for once. Each rescale: four warps store O."""
    q, k, v, scale = rising(growth_log2)
    _, _, report = check_attention(step, kernel(64), q, k, v, scale)
    assert report.counts.get("tcgen05.st.sync.aligned.32x32b.x64.b32", 0) == 4 * rescales


def test_the_model_notices_eager_rescaling():
    """The threshold is in the bits: with 0 instead of 0.8 the same data gives another result."""
    tensors = [with_heads(x) for x in operands(64, 300, 64)]
    lazy, eager = (
        attention_mxfp8(*tensors, softmax_scale=SCALE, options=AttentionOptions(rescale_threshold=t))[0]
        for t in (0.8, 0.0)
    )
    assert np.nansum(lazy != eager) > 100


@pytest.mark.parametrize(
    ("which", "way"), [("q", "tiles of rows swapped"), ("k", "tiles of rows swapped"), ("v", "tiles of K swapped")]
)
def test_swapped_tiles_of_scales_are_noticed(kernel, which, way):
    """The result is not the model's, and is what the model gives for exactly those scales (within a tile: step 5)."""
    tensors = dict(zip("qkv", operands(256 if which == "q" else 64, 256, 64), strict=True))
    wrong, wrong_model = misplaced(tensors[which], "head_dim" if which == "v" else "tokens", way)
    o, lse, _ = run_attention(step, kernel(64), *(tensors | {which: wrong}).values(), SCALE)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(o, model(*tensors.values(), SCALE)[0])
    wrong_o, wrong_lse = model(*(tensors | {which: wrong_model}).values(), SCALE)
    assert_same_bits(o, wrong_o)
    assert_same_bits(lse, wrong_lse)


def test_largest_p_does_not_saturate():
    """A lag of just less than 0.8 makes P as large as 2^8.8, which E4M3 rounds to its largest number at most."""
    largest = np.float32(2.0 ** (8 + step.RESCALE_THRESHOLD))
    assert largest <= 448 and encode(largest, "e4m3", saturate=False) == 0x7E


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 512 and "512 columns allocated" in docstring


def test_bad_arguments():
    q, k, v = map(MXOperand.from_mx_tensor, operands(64, 32, 64))
    with pytest.raises(ValueError, match=r"v.codes is torch.uint8 \(32, 64\); allowed: torch.uint8 \(64, 64\)"):
        step.arguments(q, q, v, empty(64, 64), empty(64), 1.0)
    with pytest.raises(ValueError, match=r"o is torch.float32 \(32, 64\); allowed: torch.float32 \(64, 64\)"):
        step.arguments(q, k, v, empty(32, 64), empty(64), 1.0)
