"""Figures of ways to P draw their data, and what the text says of dynamic scales and of the polynomial holds."""

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from mxfp8fa.plots.exponential import SOFTMAX_COLORS, fig_degrees, fig_step_cycles, fig_ways  # noqa: E402
from mxfp8fa.plots.training import fig_training  # noqa: E402
from mxfp8fa.studies import exponential, step_costs  # noqa: E402
from mxfp8fa.studies.training import shipped_runs  # noqa: E402


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_bars_are_cycles_and_the_band_is_the_published_speed():
    loops = step_costs.shipped_costs()
    (one,) = fig_step_cycles(loops).axes
    assert [label.get_text() for label in one.get_yticklabels()] == [each.name for each in loops]
    bars = dict(zip(SOFTMAX_COLORS, (b for b in one.containers if hasattr(b, "patches")), strict=True))
    for name, drawn in bars.items():
        expected = [each.issue() if name == "issue" else each.step(name).value for each in loops]
        np.testing.assert_allclose([bar.get_width() for bar in drawn], expected)
    band = next(p for p in one.patches if p.get_height() == 1)  # of the whole height
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx(step_costs.published_cycles())
    lines = {line.get_label(): line.get_xdata()[0] for line in one.lines}
    assert lines["tensor core"] == 1024
    assert (lines["shared memory, one CTA"], lines["shared memory, pair"]) == (1064, 680)


def test_curves_of_ways_are_the_shipped_accuracy():
    groups = exponential.shipped_groups()
    axes = fig_ways(groups).axes
    for ax, group, value in ((axes[0], "by logit std", lambda a: a.db["O"]), (axes[3], "P alone", lambda a: 100 * a.bias)):
        drawn = {line.get_label(): line.get_ydata() for line in ax.lines}
        for way in exponential.WAYS:
            np.testing.assert_array_equal(drawn[way], [value(a) for a in groups[group] if a.way == way])


def test_degrees_title_names_the_first_that_is_enough():
    degrees, exact = exponential.polynomial_degrees((1, 2, 3))
    figure = fig_degrees(degrees, exact)
    codes = {line.get_label(): line.get_ydata() for line in figure.axes[1].lines}
    np.testing.assert_array_equal(codes["codes of P that change"], [d.codes_changed for d in degrees])
    assert "Degree 2 is enough" in figure.get_suptitle()


def test_training_curves_and_cells():
    """Three seeds of each of the four attentions, 3,000 steps each, all drawn."""
    runs = shipped_runs()
    cells = {(run.attention, run.seed) for run in runs}
    assert {(name, seed) for name in ("bf16", "exact", "rounded", "direct") for seed in (0, 1, 2)} <= cells
    assert all(run.steps[-1] >= 3000 and run.origin["schedule"]["steps"] >= 3000 for run in runs)
    assert fig_training(runs).axes[0].lines


def test_a_scale_for_every_block_gains_nothing_and_costs_a_quarter_of_an_instruction():
    for group in exponential.shipped_groups().values():
        found = {(a.case, a.way): a.db["O"] for a in group}
        for case in {a.case for a in group}:
            exact = found[case, "exact"]
            assert abs(found[case, "exact, dynamic scale"] - exact) < 0.01
            assert found[case, "25 % polynomial"] > exact - 0.01  # of degree 2
    loops = {each.name: each for each in step_costs.shipped_costs()}
    assert loops["exact"].per_score < loops["exact, dynamic scale"].per_score < loops["exact"].per_score + 0.3
    assert loops["exact"].per_score < loops["25 % polynomial"].per_score < 1.03 * loops["cudnn"].per_score
