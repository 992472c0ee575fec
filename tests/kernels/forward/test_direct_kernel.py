"""The forward kernel with direct codes equals its model bit for bit: shares, sums, masks, NaN, infinities, huge scores."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from forward_harness import check, operands  # noqa: E402

from mxfp8fa.numerics import AttentionOptions, MXTensor  # noqa: E402

HALF = {"exp": "direct", "row_sum": "rounded", "sum_format": "float16"}
OPTIONS = {
    "integer": AttentionOptions(**HALF),
    "subnormal": AttentionOptions(**HALF, direct_codes="subnormal"),
    "float32 sum": AttentionOptions(exp="direct", row_sum="rounded"),
    "a quarter, and a quarter by polynomial": AttentionOptions(**HALF, direct_share=0.25, exp2=0.25),
    "half, offset 4": AttentionOptions(**HALF, direct_share=0.5, p_offset=4, rescale_threshold=4.0),
    "three quarters, bias 0": AttentionOptions(**HALF, direct_share=0.75, direct_bias=0.0),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_shares_and_sums(name):
    check(*operands(1, 40, 290, 1, 1, 64), options=OPTIONS[name], causal=True)


def with_scales(x, **scales):
    """An MXTensor with the scale codes of some tokens replaced; "t5=200" is token 5."""
    changed = x.scale_e8m0.copy()
    for token, code in scales.items():
        changed[0, int(token[1:]), 0] = code
    return MXTensor(x.codes, changed, x.fmt, x.axes)


@pytest.mark.parametrize("name", ["integer", "subnormal", "a quarter, and a quarter by polynomial"])
def test_special_scores(name):
    """A NaN key reaches the rows that see it, a NaN query its own; scores of 1e9 and beyond float32 keep to their rows."""
    q, k, v = operands(1, 150, 200, 1, 1, 64)
    q = with_scales(q, t3=255, t40=155, t41=250, t149=99)
    k = with_scales(k, t7=250, t190=255)
    o, _, _ = check(q, k, v, options=OPTIONS[name], causal=True)
    seen = torch.arange(150) + 200 - 150 >= 190  # causal: these rows see the NaN key
    rows = o[0, :, 0].isnan().any(-1)
    assert rows[seen].all() and rows[3] and not rows.all()  # token 7 of K makes infinities of some others


def test_v_of_ones_is_one():
    """Rows are normalised by the sum of what was multiplied; x * (1 / x) may be one unit of float32 below 1."""
    q, k, v = operands(1, 64, 160, 1, 1, 64)
    ones = MXTensor(np.full_like(v.codes, 0x38), np.full_like(v.scale_e8m0, 127), v.fmt, v.axes)
    o, _, _ = check(q, k, ones, options=OPTIONS["integer"])
    assert (o - 1).abs().max() < 2e-3  # the float16 sum
    o, _, _ = check(q, k, ones, options=OPTIONS["float32 sum"])
    assert (o - 1).abs().max() <= 2.0**-24
