"""The published figures: internally consistent, complete, and printed as published."""

import pytest

from mxfp8fa import published
from mxfp8fa.published import BY_KEY, FIGURES, OURS


def value(key):
    (number,) = BY_KEY[key].values
    return number


def test_keys_are_unique_and_what_plus_shapes_too():
    assert len(BY_KEY) == len(FIGURES)
    assert len({(figure.what, figure.shapes) for figure in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_form_fits_the_number_of_values(figure):
    expected = {"range": 2, "counts": len(figure.unit.split(", "))}.get(figure.form, 1)
    assert len(figure.values) == expected
    assert list(figure.values) == sorted(figure.values) or figure.form == "counts"
    assert figure.source and figure.what and figure.shapes and figure.hardware == "NVIDIA B200"


@pytest.mark.parametrize(
    ("fast", "slow", "ratio"),
    [
        ("forward_llm_mxfp8", "forward_llm_bf16", "forward_llm_speedup"),
        ("backward_llm_fp32_dq", "backward_llm_bf16", "backward_llm_speedup_fp32_dq"),
        ("backward_llm_fp16_dq", "backward_llm_bf16", "backward_llm_speedup_fp16_dq"),
    ],
)
def test_speeds_and_their_ratios_agree(fast, slow, ratio):
    """Each number is rounded to two decimals, so the quotient may be off by the sum of the half steps."""
    quotient = value(fast) / value(slow)
    half_steps = 0.005 / value(fast) + 0.005 / value(slow) + 0.005 / value(ratio)
    assert quotient == pytest.approx(value(ratio), rel=half_steps)


def test_fused_projection_ratio_agrees_with_its_speeds():
    """0.91 / 0.20 to 0.98 / 0.20 is 4.55 to 4.9; 'about 0.20' (0.195 to 0.215) covers the published 4.4 to 4.7."""
    low, high = BY_KEY["projection_fused"].values
    ratio_low, ratio_high = BY_KEY["projection_speedup"].values
    for fused, ratio in ((low, ratio_low), (high, ratio_high)):
        assert 0.195 <= fused / ratio <= 0.215


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("forward_llm_mxfp8", "2.85 PF"),
        ("forward_llm_speedup", "1.43x"),
        ("backward_llm_bf16", "about 1.50 PF"),
        ("backward_recommendation_speedup", "up to 1.52x"),
        ("forward_jagged_vs_cudnn", "within 4 %"),
        ("projection_speedup", "4.4 to 4.7x"),
        ("rmsnorm_fused", "2.6 to 4.0 TB/s"),
        ("sqnr", "18.84 to 28.02 dB"),
        ("strict_summary", "23 pass, 1 borderline, 0 fail"),
        ("bandwidth_bound_below", "about 8 K tokens"),
    ],
)
def test_text_is_the_published_spelling(key, text):
    assert BY_KEY[key].text() == text


def test_every_claim_of_ours_belongs_to_a_figure():
    assert set(OURS) <= set(BY_KEY)
    assert all(ours.command.startswith("mxfp8fa ") for ours in OURS.values())


def test_state_table_has_a_row_for_every_figure():
    rows = published.state_table().splitlines()[2:]
    assert len(rows) == len(FIGURES)
    for figure, row in zip(FIGURES, rows, strict=True):
        assert figure.text() in row and figure.what in row
        assert (OURS[figure.key].kind if figure.key in OURS else "published only") in row


def test_flops_of_the_benchmark_shape():
    shape = published.BENCHMARK_SHAPE
    sum_sq_sk = shape["batch"] * shape["seqlen_q"] * shape["seqlen_k"]
    forward = published.attention_flops(sum_sq_sk, shape["num_heads"], shape["head_dim"])
    # 2 GEMMs of 2 * Sq * Sk * D flops for each of 8 * 16 heads.
    assert forward == 2 * 2 * 2048 * 2048 * 128 * 8 * 16
    assert published.attention_flops(sum_sq_sk, 16, 128, backward=True) * 2 == forward * 5
