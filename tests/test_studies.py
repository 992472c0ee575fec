"""The experiments say what they claim, and the findings in figure titles hold."""

import numpy as np
import pytest

from mxfp8fa.numerics import decode, encode, quantize
from mxfp8fa.numerics.inputs import synthetic_llm
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.studies import attention, blocks, choices


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_format_grid_rounds_as_encode_does(fmt):
    grid = blocks.format_grid(fmt)
    stored = decode(encode(grid.magnitudes, fmt), fmt).astype(np.float64)
    assert np.array_equal(grid.relative_error, np.abs(stored - grid.magnitudes) / grid.magnitudes)
    assert np.array_equal(grid.values, np.unique(grid.values))
    # Half a step of 2^-m at the bottom of a binade, relative to the value above it: 1 / (2^(m+2) + ... ) = 1/17, 1/9.
    normal = (grid.magnitudes >= 2.0**-6) & (grid.magnitudes <= 448)
    assert grid.relative_error[normal].max() == pytest.approx({"e4m3": 1 / 17, "e5m2": 1 / 9}[fmt], rel=0.02)


def test_block_example_wants_one_block():
    with pytest.raises(ValueError, match=r"values have shape \(31,\); a block is \(32,\)"):
        blocks.block_example(np.ones(31), "short")


def test_outliers_reach_the_others_only_beyond_14_binades():
    plain, mild, strong = blocks.outlier_examples()
    others = np.arange(32) != 7
    assert mild.scale == 2.0**5 * plain.scale
    assert np.array_equal(mild.dequantized[others], plain.dequantized[others])
    error = [np.abs(e.dequantized - e.values)[others].max() / np.abs(e.values[others]).max() for e in (plain, strong)]
    assert error[1] > 5 * error[0]


def test_scale_rules_at_the_thresholds():
    """amax from 1 to 4 in 1/512 binades: index 512 is 2; 1.75 lies between 413 and 414, 1.9375 between 488 and 489."""
    study = blocks.scale_rules(rows=8)
    log2 = {rule: np.log2(scale) for rule, scale in study.scale.items()}
    assert study.amax[413] < 1.75 < study.amax[414] and study.amax[488] < 1.9375 < study.amax[489]
    for rule, switch in {"floor": 512, "rceil": 414, "even": 489, "ceil": 1}.items():
        assert log2[rule][switch - 1] == -8 and log2[rule][switch] == -7, rule
    worst = {rule: error.min() for rule, error in study.amax_error.items()}
    assert worst["floor"] == pytest.approx(-0.125, abs=0.002) and worst["even"] == pytest.approx(-0.0968, abs=0.002)
    for rule in ("rceil", "ceil"):
        assert worst[rule] >= -1 / 17 - 1e-6


def test_scale_rules_rank_as_the_figure_says():
    db = blocks.scale_rules().gaussian_db
    assert db["floor"] < db["even"] - 0.3 < db["rceil"] - 0.5
    assert db["rceil"] == pytest.approx(db["ceil"], abs=0.01)


def test_scale_map_gives_every_element_the_scale_of_its_block():
    """Row i, column group j holds 2^(i mod 7 + j); squares of 32 rows take the largest, i mod 7 = 6."""
    i, j = np.arange(64)[:, None], np.arange(96)[None, :] // 32
    study = blocks.scale_map(2.0 ** (i % 7 + j), "powers of two")
    assert np.array_equal(study.scale_log2["1x32"], np.broadcast_to(i % 7 + j - 8, (64, 96)))
    assert np.array_equal(study.scale_log2["square"], np.broadcast_to(6 + j - 8, (64, 96)))
    assert study.scales == {"1x32": 64 * 3, "square": 2 * 3}


def test_row_spread_is_free_up_to_12_binades_and_ruinous_at_20():
    study = blocks.row_spread(spreads=(0, 6, 10), size=256)
    assert study.mean_db["square"][:2] == pytest.approx(study.mean_db["1x32"][:2], abs=0.05)
    assert study.worst_db["square"][2] < 3 < 29 < study.worst_db["1x32"][2]


def test_quantized_tensors_count_subnormals():
    inputs = synthetic_llm(seqlen_q=64, num_heads_q=1, head_dim=64)
    inputs.q[:, 0, :, 0] = 2.0**14 * np.abs(inputs.q).max()  # one block of the row falls 14 binades below its maximum
    q = blocks.quantized_tensors([inputs])[0]
    assert (q.inputs, q.tensor) == ("synthetic-d64", "Q")
    assert q.subnormal_share["square"] > 10 * q.subnormal_share["1x32"] > 0
    assert q.db["1x32"] > 25


def test_gaussian_configuration_is_where_independent_work_found_it():
    """O 25.8, dQ 23.6, dK 23.6, dV 25.4 dB for Gaussian, head_dim 128, 1024 tokens, within 0.5 dB."""
    found = {entry.tensor: entry.db for entry in attention.run_configuration("gaussian-d128")}
    assert found == pytest.approx({"O": 25.8, "dQ": 23.6, "dK": 23.6, "dV": 25.4}, abs=0.5)


def test_extra_configurations_show_what_they_are_there_for():
    def db(name):
        return np.array([entry.db for entry in attention.run_configuration(name)])

    base = db("gaussian-d128")
    for same in ("qk-1x32", "v-square", "dynamic-p", "fp16-dq"):
        assert db(same) == pytest.approx(base, abs=0.05), same
    assert db("unscaled-p")[3] < 10 < 25 < base[3]
    assert (db("floor") < base).all()
    assert (db("k-mean-removed") > db("k-mean") + 5).all()


def test_every_configuration_is_named_once_and_explained():
    assert len(attention.CONFIGURATIONS) == len(attention.STANDARD) + len(attention.EXTRA)
    assert all(len(configuration.about) > 15 for configuration in attention.CONFIGURATIONS.values())


def test_packed_case_equals_its_sequences_one_by_one():
    inputs = synthetic_llm(seqlen_q=160, num_heads_q=1, seed=8)
    packed = attention.Case(inputs, cu_seqlens=(0, 64, 160)).reference
    for start, stop in ((0, 64), (64, 160)):
        arrays = (x[:, start:stop] for x in (inputs.q, inputs.k, inputs.v, inputs.do))
        alone = attention.Case(type(inputs)("part", *arrays, "")).reference
        for tensor in attention.TENSORS:
            assert packed[tensor][start:stop] == pytest.approx(alone[tensor][0], abs=1e-12)


def test_representable_inputs_are_not_changed_by_quantization():
    inputs = choices.as_representable(synthetic_llm(seqlen_q=64, num_heads_q=1))
    for x, axes in ((inputs.q, (1, 3)), (inputs.k, (1, 3)), (inputs.v, (1,))):
        assert np.array_equal(quantize(x, axes=axes).dequantize(), x)
    # Only P is rounded then, and better than the rest would allow.
    assert attention.Case(inputs).forward_sqnr(AttentionOptions()) > 30


def test_direct_codes_follow_the_exact_ones_within_one():
    study = choices.codes_of_p(logit_stds=(1,), seqlen=64)
    difference = study.codes["direct"].astype(int) - study.codes["exact"].astype(int)
    assert set(np.unique(difference)) == {-1, 0, 1}
    # Before rounding a direct code is off by 8 * (log2(1 + f) - f + c): from 8c = -0.4 at f = 0 to 8 * 0.0861 - 0.4.
    # Rounding adds 0.5, and one code is at most 1/8 of the value.
    assert np.abs(study.relative_error["direct"][study.log2_p > -8]).max() < 0.9 / 8


def test_length_costs_little():
    sweep = choices.sqnr_by_length((128, 2048))
    assert all(abs(db[0] - db[1]) < 1 for db in sweep.db.values())


def test_leak_is_exactly_zero_along_d_and_grows_over_tokens():
    study = choices.causal_leak(gains=(1, 2**6, 2**16))
    for way, change in study.change.items():
        assert change[0] == 0, "gain 1 changes nothing"
        if way.endswith("along d"):
            assert not change.any(), way
        else:
            assert 0 < change[1] < 1e-2 < change[2], way
