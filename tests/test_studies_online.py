"""Studies and pictures of notebooks 07 and 08."""

import numpy as np
import pytest

from mxfp8fa.numerics import quantize, scale_codes, sqnr_db
from mxfp8fa.plots.online import fig_scale_sweep
from mxfp8fa.studies import online


def test_the_logarithm_agrees_but_next_to_448():
    """From the definition: the smallest power of two s with amax <= 448 s."""
    amax = np.array([1, 2, 447, 448, 449, 3.5, 3.75, 2.0**-100], np.float32)
    smallest = [int(np.ceil(np.log2(float(a) / 448))) + 127 for a in amax]
    assert online.scale_by_logarithm(amax).tolist() == smallest == scale_codes(amax).tolist()


def test_all_mantissas_is_one_binade():
    x = online.all_mantissas(3)
    assert x[0] == 8 and x[-1] == np.nextafter(np.float32(16), np.float32(0)) and len(x) == 2**23


def test_disagreements_are_counted_where_they_are():
    """448 * 2^20 and the few numbers after it: too small a scale, so they saturate."""
    amax = np.float32(448 * 2.0**20)
    above = np.nextafter(amax, np.float32(np.inf))
    assert online.scale_by_logarithm(above[None])[0] + 1 == scale_codes(above[None])[0]
    wrong, saturate = online.disagreements(28)
    assert 0 < saturate == wrong < 100


def test_a_constant_scale():
    x = np.array([[448.0, 1000.0, 2.0**-11] + [1.0] * 29], np.float32)
    q = online.constant_scale(x, 128)
    np.testing.assert_array_equal(q.dequantize()[0, :4], [448, 896, 0, 1])
    assert (q.scale_e8m0 == 128).all()


def test_sqnr_that_nine_of_ten_blocks_reach():
    """Ten blocks: nine exact, or one."""
    x = np.ones((10, 32), np.float32)
    y = x.copy()
    y[0] += 0.5
    exact = quantize(x)
    assert online.low_block_db(exact, x) > 1000
    assert online.low_block_db(exact, y) < online.low_block_db(exact, x)
    worse = x.copy()
    worse[1:] += 0.5
    assert online.low_block_db(exact, worse) == pytest.approx(10 * np.log10(1.5**2 / 0.25))


def test_grades_and_sweep_show_what_they_say():
    data = online.examples()
    assert data["P"].max() == 1 and data["P"].min() > 0
    grade = online.grades(data["P"])
    assert grade["logarithm"] == grade["bits, rceil"] == sqnr_db(quantize(data["P"]).dequantize(), data["P"])
    sweep = online.scale_sweep(range(118, 121))
    assert sweep.codes.tolist() == [118, 119, 120] and sweep.constant_db["P"].argmax() >= 1
    figure = fig_scale_sweep(sweep)
    assert len(figure.axes) == 1 and len(figure.axes[0].lines) == 4


def test_a_step_that_is_not_the_model_is_noticed():
    """What notebook 08 compares: bits, NaN included."""
    pytest.importorskip("cutlass.cute")
    runs = pytest.importorskip("mxfp8fa.studies.attention_runs")
    x = np.array([1.0, np.nan], np.float32)
    assert runs.same_bits(x, x.copy()) and not runs.same_bits(x, np.nextafter(x, np.float32(2)))
    assert not runs.same_bits(x, x[:1])
