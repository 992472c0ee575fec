"""The modelled numbers in the package: complete, consistent with themselves, and those that README and published.py show."""

import pytest

from mxfp8fa.published import BY_KEY, OURS
from mxfp8fa.studies import speeds
from mxfp8fa.studies.step_costs import published_cycles

LLM_FLOPS = 4 * 128 * 8 * 16 * 2048 * 2048


def test_speeds_follow_from_microseconds():
    for entry in speeds.shipped()["at_llm"]:
        flops = LLM_FLOPS * (2.5 if "backward" in entry["kernel"] else 1)
        for us, pf in zip(entry["us"], entry["pf"], strict=True):
            assert pf == pytest.approx(flops / us / 1e9, abs=0.002)
        assert entry["us"][0] / entry["us"][1] == pytest.approx(1.965 / 1.58, rel=0.06)
        assert entry["resources"][0]["cycles"] == max(r["cycles"] for r in entry["resources"]) <= entry["step"]


def test_every_bar_has_a_kind():
    for bars in (speeds.forward_speeds(), speeds.backward_speeds(), speeds.producer_speeds()):
        assert all(bar.kind in ("published", "modelled", "measured") and 0 < bar.low <= bar.high for bar in bars)
    keys = ("forward_llm_mxfp8", "forward_llm_cudnn_mxfp8", "forward_llm_bf16")
    assert [bar.low for bar in speeds.forward_speeds()[:3]] == [BY_KEY[key].values[0] for key in keys]


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


@pytest.mark.parametrize("key", [key for key, ours in OURS.items() if ours.kind == "modelled"])
def test_published_py_quotes_the_modelled_value(key):
    assert OURS[key].value == speeds.modelled_value(key)
