"""AttentionOptions: defaults, every refusal, and the pair of p_offset and rescale_threshold."""

import dataclasses
import math

import numpy as np
import pytest

from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.options import P_HEADROOM_LOG2
from mxfp8fa.numerics.scale_rules import SCALE_RULES


def test_frozen_keyword_only_and_hashable():
    options = AttentionOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.rule = "floor"
    with pytest.raises(TypeError):
        AttentionOptions("square")
    assert options == AttentionOptions() and hash(options) == hash(AttentionOptions())
    assert dataclasses.replace(options, rule="floor").rule == "floor"


def test_options_survive_as_text():
    options = AttentionOptions(
        rule="floor", rescale_threshold=0.1 + 0.2, dq_scale_log2="auto", k_mean=True, p_offset=np.int8(7),
        tile_m=np.int64(64), direct_share=np.float32(0.5),
    )  # fmt: skip
    assert AttentionOptions.from_text(options.text) == options != AttentionOptions()
    assert AttentionOptions.from_text(AttentionOptions().text) == AttentionOptions()
    assert dataclasses.replace(options, rule="even").text != options.text


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_every_scale_rule_is_allowed(rule):
    assert AttentionOptions(rule=rule).rule == rule


@pytest.mark.parametrize(
    "name",
    [
        "qk_blocks", "v_blocks", "rule", "p_scale", "exp", "row_sum", "kv_order", "accumulate", "do_blocks",
        "grad_qk_blocks", "grad_v_blocks", "delta", "dq_accumulate", "dq_order", "gradients", "out_dtype",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["nonsense", "", None, 1, True])
def test_choices_are_refused_by_name_with_what_is_allowed(name, value):
    default = getattr(AttentionOptions(), name)
    with pytest.raises(ValueError, match=rf"{name} = {value!r} is not allowed; choose one of .*'{default}'"):
        AttentionOptions(**{name: value})


@pytest.mark.parametrize("name", ["tile_m", "tile_n"])
def test_tile_sizes(name):
    for size in (32, 64, 96, 128, 256, np.int64(128)):
        assert getattr(AttentionOptions(**{name: size}), name) == size
    for size in (0, -32, 100, 288, 128.0, True, None):
        with pytest.raises(ValueError, match=rf"{name} = {size!r} must be a multiple of 32 from 32 to 256"):
            AttentionOptions(**{name: size})


def test_offset_and_threshold_are_one_pair():
    assert math.isclose(P_HEADROOM_LOG2, 8.807354922057604, rel_tol=1e-15)
    AttentionOptions(p_offset=8, rescale_threshold=0.8073)
    AttentionOptions(p_offset=0, rescale_threshold=8.8)
    AttentionOptions(p_offset=4, rescale_threshold=4)
    for offset, threshold in ((8, 0.8074), (8, 4), (0, 8.81), (4, 5)):
        with pytest.raises(ValueError, match=rf"{offset} \+ {float(threshold)} is above log2 448 = 8.8074"):
            AttentionOptions(p_offset=offset, rescale_threshold=threshold)


def test_dynamic_scales_take_up_a_threshold_that_float32_sums_can_hold():
    for threshold in (8, 64):
        assert AttentionOptions(p_scale="dynamic", rescale_threshold=threshold).rescale_threshold == threshold
    for threshold in (64.1, 128, 1e300):
        with pytest.raises(ValueError, match=r"rescale_threshold = .* must be at most 64 with p_scale = 'dynamic'"):
            AttentionOptions(p_scale="dynamic", rescale_threshold=threshold)


@pytest.mark.parametrize("offset", [-1, 9, 8.0, 7.5, True, "8"])
def test_p_offset_refused(offset):
    with pytest.raises(ValueError, match=r"p_offset = .* must be an integer from 0 to 8"):
        AttentionOptions(p_offset=offset)


@pytest.mark.parametrize("threshold", [-0.1, math.nan, math.inf, "0", None, True])
def test_rescale_threshold_refused(threshold):
    with pytest.raises(ValueError, match="rescale_threshold = "):
        AttentionOptions(rescale_threshold=threshold)


@pytest.mark.parametrize("share", [0, 0.3, 1, 2, True, None, "polynomial", math.nan])
def test_share_of_the_polynomial_refused(share):
    with pytest.raises(ValueError, match="exp2"):
        AttentionOptions(exp2=share)


def test_share_of_the_polynomial():
    assert [AttentionOptions(exp2=x).polynomial_columns for x in ("mufu", 0.125, 0.25, 0.5)] == [0, 2, 4, 8]


def test_direct_codes():
    for share, columns in ((0, 0), (0.25, 4), (0.5, 8), (0.75, 12), (1, 16)):
        assert AttentionOptions(exp="direct", row_sum="rounded", direct_share=share).direct_columns == columns
    assert AttentionOptions(direct_share=1.0).direct_columns == 0  # exp="exact"
    with pytest.raises(ValueError, match="no unrounded P; allowed is row_sum='rounded'"):
        AttentionOptions(exp="direct")
    for share in (-0.25, 0.3, 1.25, math.nan, "1"):
        with pytest.raises(ValueError, match="direct_share = "):
            AttentionOptions(direct_share=share)
    AttentionOptions(direct_bias=0.0)
    AttentionOptions(direct_bias=-0.0624)
    for bias in (-1 / 16, -1.0, 0.01, math.nan):
        with pytest.raises(ValueError, match="direct_bias = "):
            AttentionOptions(direct_bias=bias)


def test_float16_sums_add_rounded_values_of_one_scale():
    AttentionOptions(row_sum="rounded", sum_format="float16")
    for other in ({}, {"row_sum": "rounded", "p_scale": "dynamic"}):
        with pytest.raises(ValueError, match="allowed are row_sum='rounded' and p_scale='constant'"):
            AttentionOptions(sum_format="float16", **other)


def test_dq_scale():
    for value in (-24, 0, 24, "auto"):
        assert AttentionOptions(dq_scale_log2=value).dq_scale_log2 == value
    for value in (25, -25, 1.5, "max", None):
        with pytest.raises(ValueError, match=r"dq_scale_log2 = .* must be an integer from -24 to 24 or 'auto'"):
            AttentionOptions(dq_scale_log2=value)


def test_k_mean_is_a_bool():
    with pytest.raises(ValueError, match="k_mean = 1 must be True or False"):
        AttentionOptions(k_mean=1)


def test_auto_choices():
    assert AttentionOptions().resolved_qk_blocks(causal=True) == "1x32"
    assert AttentionOptions().resolved_qk_blocks(causal=False) == "square"
    assert AttentionOptions(qk_blocks="square").resolved_qk_blocks(causal=True) == "square"
    assert AttentionOptions().resolved_grad_v_blocks == "1x32"
    assert AttentionOptions(v_blocks="square").resolved_grad_v_blocks == "square"
    assert AttentionOptions(v_blocks="square", grad_v_blocks="1x32").resolved_grad_v_blocks == "1x32"
