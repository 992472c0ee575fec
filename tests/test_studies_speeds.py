"""The modelled numbers in the package: complete, consistent with themselves, and those that README and published.py show."""

from collections import Counter

import pytest

from mxfp8fa.published import FIGURES, OURS
from mxfp8fa.studies import speeds, speedups
from mxfp8fa.studies.step_costs import published_cycles

LLM_FLOPS = 4 * 128 * 8 * 16 * 2048 * 2048


def test_speeds_follow_from_microseconds():
    for entry in speeds.shipped()["at_llm"]:
        flops = LLM_FLOPS * (2.5 if "backward" in entry["kernel"] else 1)
        for us, pf in zip(entry["us"], entry["pf"], strict=True):
            assert pf == pytest.approx(flops / us / 1e9, abs=0.002)
        assert entry["us"][0] / entry["us"][1] == pytest.approx(1.965 / 1.58, rel=0.06)
        assert entry["resources"][0]["cycles"] == max(r["cycles"] for r in entry["resources"]) <= entry["step"]


GROUPS = {
    "PF": lambda: speedups.attention() + speedups.projections(),
    "x": speedups.ratios,
    "TB/s": speedups.norms,
}


@pytest.mark.parametrize("unit", GROUPS)
def test_every_published_speed_has_its_bar_and_every_bar_its_kind(unit):
    bars = GROUPS[unit]()
    assert all(bar.kind in ("published", "modelled", "measured") and 0 < bar.low <= bar.high for bar in bars)
    shown = Counter((bar.low, bar.high) for bar in bars if bar.kind == "published")
    assert shown == Counter((figure.values[0], figure.values[-1]) for figure in FIGURES if figure.unit == unit)


def test_units_of_what_is_no_bar():
    """A distance in per cent and a length; all else published that is not accuracy is on a bar."""
    left = {figure.key for figure in FIGURES if figure.unit not in GROUPS} - {"sqnr", "strict_summary"}
    assert left == {"forward_jagged_vs_cudnn", "bandwidth_bound_below"}


def test_alone_are_the_bars_that_the_table_calls_published_only():
    without = {figure.values[0] for figure in FIGURES if figure.unit in GROUPS and figure.key not in OURS}
    alone = {bar.low for bars in GROUPS.values() for bar in bars() if bar.what.endswith(speeds.ALONE)}
    assert alone == without


def test_quantizers_keep_to_the_bytes_and_small_norms_do_not():
    """As bench/results/timing.md says, of our measurements on an H200."""
    errors = speedups.errors_of_bytes()
    assert {key: len(found) for key, found in errors.items()} == dict.fromkeys(
        [(what, size) for what in ("quantize", "rmsnorm_quantize") for size in ("under 0.5 GB", "0.5 GB and more")], 12
    )
    assert all(abs(e) < 0.1 for size in ("under 0.5 GB", "0.5 GB and more") for e in errors["quantize", size])
    assert all(-0.22 < e < -0.1 for e in errors["rmsnorm_quantize", "under 0.5 GB"])
    assert all(-0.12 < e < 0 for e in errors["rmsnorm_quantize", "0.5 GB and more"])


def test_ranges_by_hand():
    """From the table of bench/results/producers.md."""
    assert speedups.projection_pf("eager") == pytest.approx((0.080, 0.276), abs=5e-4)
    assert speedups.projection_gain("torch.compile") == pytest.approx((0.93, 1.88), abs=5e-3)
    assert speedups.norm_tb("quack, then ours") == pytest.approx((0.88, 1.82), abs=5e-3)
    with pytest.raises(KeyError, match="gemm: by hand"):
        speedups.projection_pf("by hand")


def test_a_step_of_ours_is_longer_than_the_published_speed_allows():
    """If this fails the kernel got faster, or the model; then the text of notebook 12 is wrong."""
    assert speeds.at_llm("forward")["step"] > 1.3 * published_cycles()[1]


def test_what_was_not_modelled_is_named():
    with pytest.raises(KeyError, match="forward exp=fast"):
        speeds.at_llm("forward", "exp=fast")


def test_fitted_rows_are_left_out():
    tables = speeds.shipped()["tables"]
    assert len(speeds.predictions()) == sum(len(table["rows"]) - 1 for table in tables) >= 20
    for table in tables:
        assert table["rows"][0]["modelled_us"] == pytest.approx(table["rows"][0]["us"], rel=1e-3)


def test_the_largest_sensitivities_come_first():
    found = speeds.sensitivities()
    sizes = [max(abs(low), abs(high)) for _, low, high in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < 0.5


@pytest.mark.parametrize("key", [key for key, ours in OURS.items() if ours.kind != "emulated"])
def test_published_py_quotes_the_value(key):
    assert OURS[key].value == speedups.value(key)
