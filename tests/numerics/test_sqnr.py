"""sqnr_db and the strict summary: known ratios, and every way in which a ratio has no value."""

import math

import numpy as np
import pytest

from mxfp8fa.numerics import (
    StrictSummary,
    quantize,
    row_sqnr_db,
    sqnr_db,
    strict_summary,
    verdict,
    worst_row_sqnr_db,
)

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(("noise", "db"), [(1.0, 0.0), (0.1, 20.0), (0.01, 40.0), (10.0, -20.0)])
def test_known_ratios(noise, db):
    reference = np.array([3.0, -4.0, 0.0])
    error = noise * np.array([0.0, 3.0, -4.0])  # as long as the reference
    assert sqnr_db(reference + error, reference) == pytest.approx(db, abs=1e-12)


@pytest.mark.parametrize(
    ("x", "reference", "db"),
    [
        ([1.0, 2.0], [1.0, 2.0], INF),
        ([0.0, 0.0], [0.0, 0.0], INF),
        ([0.0, -0.0], [-0.0, 0.0], INF),
        ([], [], INF),
        ([0.0, 1e-30], [0.0, 0.0], -INF),
        ([0.0, 0.0], [1.0, 0.0], 0.0),
        ([NAN, 1.0], [NAN, 1.0], INF),
        ([INF, 1.0], [INF, 1.0], INF),
        ([NAN, 2.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [0.0, 1.0], -INF),
        ([0.0, 1.0], [NAN, 1.0], -INF),
        ([INF, 1.0], [-INF, 1.0], -INF),
        ([INF, 1.0], [3.0, 1.0], -INF),
        ([NAN, NAN], [NAN, NAN], INF),
    ],
)
def test_edges(x, reference, db):
    assert sqnr_db(x, reference) == db


def test_neither_tiny_nor_huge_numbers_over_or_underflow():
    for size in (1e-200, 1e-300, 1e200, 1e300):
        assert sqnr_db(size * np.array([1.1, 2.0]), size * np.array([1.0, 2.0])) == pytest.approx(10 * math.log10(500))


def test_dtypes_are_widened_first():
    x = np.array([1.0, 1.5], np.float16)
    assert sqnr_db(x, np.array([1.0, 1.25])) == pytest.approx(10 * math.log10(2.5625 / 0.0625))
    assert sqnr_db(np.full(100_000, 0.1, np.float32), np.full(100_000, np.float32(0.1))) == INF


def test_rows():
    reference = np.ones((2, 3, 4))
    x = reference.copy()
    x[0, 1] = 1.1
    x[1, 2, 0] = 3.0
    rows = row_sqnr_db(x, reference)
    assert rows.shape == (2, 3)
    assert rows[0, 1] == pytest.approx(20.0) and rows[1, 2] == pytest.approx(0.0)
    assert (rows[[0, 0, 1, 1], [0, 2, 0, 1]] == INF).all()
    assert worst_row_sqnr_db(x, reference) == (pytest.approx(0.0), (1, 2))
    x[1, 0, 3] = NAN
    assert worst_row_sqnr_db(x, reference) == (-INF, (1, 0))
    assert sqnr_db(x, reference) == -INF


def test_rows_of_empty_arrays():
    assert worst_row_sqnr_db(np.zeros((0, 4)), np.zeros((0, 4))) == (INF, ())
    assert worst_row_sqnr_db(np.zeros((2, 0)), np.zeros((2, 0))) == (INF, (0,))
    with pytest.raises(ValueError, match="at least one axis"):
        row_sqnr_db(1.0, 1.0)


def test_different_shapes_are_refused():
    for function in (sqnr_db, row_sqnr_db, worst_row_sqnr_db):
        with pytest.raises(ValueError, match=r"x has shape \(2,\) and reference \(3,\)"):
            function(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("x", [None, np.ones(2) * 1j, ["a"], [True], quantize(np.ones(32, np.float32))], ids=str)
def test_what_is_no_array_of_real_numbers_is_refused(x):
    for pair in ((x, x), (x, np.ones(np.shape(x))), (np.ones(np.shape(x)), x)):
        for function in (sqnr_db, worst_row_sqnr_db):
            with pytest.raises(ValueError, match=r"has dtype .*; allowed: real numbers \(an MXTensor: its dequantize"):
                function(*pair)


@pytest.mark.parametrize(
    ("db", "grade"),
    [
        (INF, "pass"), (20.0, "pass"), (19.999, "borderline"), (15.0, "borderline"), (14.999, "fail"), (-INF, "fail"),
        (NAN, "fail"),
    ],
)  # fmt: skip
def test_verdicts(db, grade):
    assert verdict(db) == grade


def with_db(db):
    reference = np.array([[1.0, 0.0]])
    return reference + np.array([[0.0, 10 ** (-db / 20)]]), reference


def test_summary():
    summary = strict_summary({"dense": {"O": with_db(25), "dQ": with_db(18)}, "causal": {"O": with_db(3)}})
    assert [(e.configuration, e.tensor, e.verdict) for e in summary.entries] == [
        ("dense", "O", "pass"), ("dense", "dQ", "borderline"), ("causal", "O", "fail"),
    ]  # fmt: skip
    assert [summary.count(g) for g in ("pass", "borderline", "fail")] == [1, 1, 1]
    assert summary.range_db == pytest.approx((3.0, 25.0))
    text = str(summary)
    assert "1 pass, 1 borderline, 1 fail (pass >= 20 dB, borderline >= 15 dB)" in text
    assert len(text.splitlines()) == 5 and "18.00" in text


def test_empty_summary():
    assert strict_summary({}) == StrictSummary(())
    assert "0 pass, 0 borderline, 0 fail" in str(StrictSummary(()))
