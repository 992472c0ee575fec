"""Step 5: one attention tile."""

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
)
from step_harness import assert_same_bits, empty, tables_of  # noqa: E402

from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.kernels.steps import step5_attention_tile as step  # noqa: E402
from mxfp8fa.numerics import quantize  # noqa: E402
from mxfp8fa.numerics.softmax import REFERENCE_LIMIT_LOG2  # noqa: E402
from mxfp8fa.studies.scale_way import WRONG_PLACES  # noqa: E402

SCALE = 0.11


@pytest.fixture(params=[64, 128])
def head_dim(request):
    return request.param


@pytest.fixture(scope="module")
def kernel():
    """The compiled kernel of each head_dim."""
    return compile_attention(step, step.attention_tile, SCALE)


@pytest.fixture
def compiled(kernel, head_dim):
    return kernel(head_dim)


def mx(head_dim=64, *, tokens=128, **options):
    return MXOperand.from_mx_tensor(quantize(np.ones((tokens, head_dim), np.float32), **options))


def test_equals_the_model_bit_for_bit(compiled, head_dim, schedule, accumulate):
    q, k, v = operands(128, 128, head_dim)
    o, lse, _ = check_attention(step, compiled, q, k, v, SCALE, accumulate=accumulate, **schedule)
    nan_rows, nan_columns = torch.isnan(lse), torch.isnan(o).all(0)
    assert nan_rows.nonzero().tolist() == [[5]] and nan_columns.nonzero().tolist() == [[5]]
    assert torch.isfinite(o).sum() == 127 * (head_dim - 1)
    assert (lse.abs() * np.log2(np.e) > REFERENCE_LIMIT_LOG2).sum() == 1  # row 4: the branch of huge maxima


def test_square_blocks(compiled, head_dim):
    check_attention(step, compiled, *operands(128, 128, head_dim, square=True), SCALE, schedule="lazy")


def test_a_nan_in_k_is_in_every_row(compiled, head_dim):
    o, lse, _ = check_attention(step, compiled, *operands(128, 128, head_dim, nan_in_k=True), SCALE)
    assert torch.isnan(lse).all() and torch.isnan(o).all()


def test_plain_cases(compiled, head_dim):
    """Equal scores average V; V = 1 gives 1 but for the rounding of P, at most 2^-4 of it."""
    zeros = quantize(np.zeros((128, head_dim), np.float32), axes=1)
    values = quantize(np.repeat(np.arange(128.0, dtype=np.float32)[:, None] // 32, head_dim, axis=1), axes=0)
    o, lse, _ = check_attention(step, compiled, zeros, zeros, values, SCALE)
    np.testing.assert_array_equal(o, 1.5)
    np.testing.assert_allclose(lse, np.log(128), rtol=2**-23)
    q, k, _ = operands(128, 128, head_dim)
    ones = quantize(np.ones((128, head_dim), np.float32), axes=0)
    o, _, _ = check_attention(step, compiled, q, k, ones, SCALE)
    finite = torch.isfinite(o).all(1)
    assert finite.sum() == 127 and (o[finite] - 1).abs().max() <= 2**-4


@pytest.mark.parametrize("scores", [-500.0, 500.0, 1e9])
def test_extreme_scores(compiled, head_dim, scores):
    """All scores of that size, a little apart: softmax_scale * S = scores * (1 + small)."""
    q = np.full((128, head_dim), 1.0, np.float32)
    k = np.sign(scores) * (1 + blocks(128, head_dim, 7, nan=False, huge=False) / 2**6)
    v = quantize(blocks(head_dim, 128, 3, nan=False, huge=False).T.copy(), axes=0)
    size = abs(scores) / head_dim
    o, lse, _ = check_attention(step, compiled, quantize(q), quantize(k.astype(np.float32)), v, size)
    assert torch.isfinite(o).all()
    np.testing.assert_allclose(lse, scores, rtol=0.5)


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("way", [w for w in WRONG_PLACES if "tiles" not in w])
def test_a_wrong_placement_of_scales_is_noticed(kernel, way, which):
    """The result is not the model's, and is what the model gives for exactly those scales."""
    tensors = dict(zip("qkv", operands(128, 128, 128), strict=True))
    wrong, wrong_model = misplaced(tensors[which], "head_dim" if which == "v" else "tokens", way)
    o, lse, _ = run_attention(step, kernel(128), *(tensors | {which: wrong}).values(), SCALE)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(o, model(*tensors.values(), SCALE)[0])
    wrong_o, wrong_lse = model(*(tensors | {which: wrong_model}).values(), SCALE)
    assert_same_bits(o, wrong_o)
    assert_same_bits(lse, wrong_lse)


def test_instructions(compiled, head_dim):
    """128 exponentials, 64 packed fmas, 63 packed additions in the row sum, head_dim / 32 + 4 products."""
    ptx = ptx_of(compiled)
    assert ptx.count("ex2.approx.ftz.f32") == 128 and ptx.count("fma.rn.f32x2") == 64
    assert ptx.count("add.f32x2") + ptx.count("add.rn.f32x2") == 63
    assert ptx.count("max.NaN.f32") == 64 + 2
    assert ptx.count("tcgen05.mma.cta_group::1.kind::mxf8f6f4") == head_dim // 32 + 4


def test_the_tables_in_the_docstring_are_the_records():
    tmem, barriers, docstring = tables_of(step)
    assert tmem in docstring and barriers in docstring
    assert step.TMEM.allocation == 512 and "512 columns allocated" in docstring


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": mx(96)}, r"q has head_dim 96; allowed: \(64, 128\)"),
        ({"q": mx(axes=0)}, r"q is e4m3 in blocks along axes \(0,\); allowed: e4m3, axes \(1,\) or \(0, 1\)"),
        ({"k": mx(fmt="e5m2")}, "k is e5m2"),
        ({"v": mx(axes=1)}, r"v is e4m3 in blocks along axes \(1,\); allowed: e4m3, axes \(0,\) or \(0, 1\)"),
        ({"k": mx(128)}, r"k.codes is torch.uint8 \(128, 128\); allowed: torch.uint8 \(128, 64\)"),
        ({"q": mx(tokens=64)}, r"q.codes is torch.uint8 \(64, 64\); allowed: torch.uint8 \(128, 64\)"),
        ({"v": mx(tokens=256, axes=0)}, r"v.codes is torch.uint8 \(256, 64\); allowed: torch.uint8 \(128, 64\)"),
        ({"o": empty(128, 128)}, r"o is torch.float32 \(128, 128\); allowed: torch.float32 \(128, 64\)"),
        ({"lse": empty(64)}, r"lse is torch.float32 \(64,\); allowed: torch.float32 \(128\)"),
        ({"softmax_scale": 0.0}, "softmax_scale = 0.0; allowed: finite numbers above 0"),
        ({"softmax_scale": float("inf")}, "softmax_scale = inf"),
        ({"softmax_scale": float("nan")}, "softmax_scale = nan"),
    ],
)
def test_bad_arguments(change, message):
    given = {"q": mx(), "k": mx(), "v": mx(axes=0), "o": empty(128, 64), "lse": empty(128), "softmax_scale": 0.125}
    with pytest.raises(ValueError, match=message):
        step.arguments(**(given | change))
