"""exp2 is correctly rounded: the hardest inputs of all, samples everywhere against mpmath, and the special values."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxfp8fa.numerics import exp2
from mxfp8fa.numerics.exp2 import EXCEPTIONS, exp2_float64, exp2_polynomial

ROOT = Path(__file__).parents[2]

# All float32 inputs whose float64 result lies within four units of its last place of a float32 rounding boundary, and
# the correctly rounded results: what scripts/prove_exp2.py finds among 2,264,924,160 inputs.
HARDEST = {
    0x33B8AA3B: 0x3F800001,
    0xB52D1F9A: 0x3F7FFFF8,
    0x36879CF7: 0x3F800018,
    0xB8D3D026: 0x3F7FFB69,
    0x3A07857C: 0x3F800BBE,
    0xBAEC2B40: 0x3F7FAE34,
    0x3B429D37: 0x3F804385,
    0x3C02A9AD: 0x3F80B5A3,
    0xBCF3A937: 0x3F7AC6B1,
    0xBE1F29DE: 0x3F65DA56,
    0xC3160000: 0x00000000,
}


def float32(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def exact_bits(x):
    """2^x rounded to float32, nearest even, in 300-bit arithmetic."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(300):
        exponent = max(int(mpmath.floor(x)), -126)
        if exponent > 127:
            return 0x7F800000
        return (exponent + 126 << 23) + int(mpmath.nint(mpmath.power(2, x) / mpmath.mpf(2) ** (exponent - 23)))


def test_hardest_inputs():
    got = exp2(float32(list(HARDEST))).view(np.uint32)
    np.testing.assert_array_equal(got, list(HARDEST.values()))


def test_hardest_results_are_those_of_arbitrary_precision():
    assert {bits: exact_bits(float(float32(bits))) for bits in HARDEST} == HARDEST


def test_exceptions_are_needed():
    """The nearest float64 of 2^x is the midpoint of two float32 there, so that rounding twice goes wrong."""
    assert len(EXCEPTIONS) == 2
    for x, result in EXCEPTIONS:
        assert float32(HARDEST[int(x.view(np.uint32))]) == result
        mpmath = pytest.importorskip("mpmath")
        with mpmath.workprec(300):
            nearest = float(mpmath.power(2, float(x)))
        assert np.float32(nearest) != result


@pytest.mark.parametrize("low, high", [(-151, -126), (-126, -1), (-1, 1), (1, 128)])
def test_samples_equal_arbitrary_precision(low, high):
    rng = np.random.default_rng(abs(low))
    x = rng.uniform(low, high, 1500).astype(np.float32)
    np.testing.assert_array_equal(exp2(x).view(np.uint32), [exact_bits(float(v)) for v in x])


def test_small_arguments_of_every_exponent():
    powers = (2.0 ** np.arange(-149, 1)).astype(np.float32)
    x = np.concatenate([powers, np.nextafter(powers, np.float32(2)), np.nextafter(powers, np.float32(0))])
    x = np.concatenate([x, -x])
    np.testing.assert_array_equal(exp2(x).view(np.uint32), [exact_bits(float(v)) for v in x])


def test_the_polynomial_is_accurate_to_one_float64_unit():
    """What makes the list of hardest inputs short; units of the last place, 2^-53 below 1 and 2^-52 above."""
    mpmath = pytest.importorskip("mpmath")
    x = np.linspace(-0.5, 0.5, 2001).astype(np.float32)
    with mpmath.workprec(200):
        pairs = zip(x.tolist(), exp2_float64(x).tolist(), strict=True)
        error = [float(y - mpmath.power(2, v)) for v, y in pairs]
    assert np.abs(error / np.where(x < 0, 2.0**-53, 2.0**-52)).max() < 1.25


def test_the_short_polynomial():
    """Every stretch between two integers has the same error; integers have none."""
    x = np.linspace(-126, 9, 1_000_003).astype(np.float32)
    exact = exp2_float64(x).copy()
    assert 2.0**-9 < np.abs(exp2_polynomial(x) / exact - 1).max() < 2.0**-8.99
    n = np.arange(-126, 128, dtype=np.float32)
    np.testing.assert_array_equal(exp2_polynomial(n), exp2(n))


def test_where_the_short_polynomial_ends():
    """Masked scores are 0, and what is below the normal range stays below it."""
    nothing = np.array([-127, np.nextafter(np.float32(-127), np.float32(-200)), -1e30, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(exp2_polynomial(nothing).view(np.int32), 0)
    small = exp2_polynomial(np.linspace(-127, -126, 100_003).astype(np.float32))
    assert (small >= 0).all() and (small <= 2.0**-125).all()


def test_integers_are_exact():
    n = np.arange(-149, 128)
    np.testing.assert_array_equal(exp2(n.astype(np.float32)), (2.0**n).astype(np.float32))


def test_where_results_begin_to_vanish_and_to_overflow():
    tie = np.float32(-150)
    x = [np.nextafter(tie, np.float32(0)), tie, np.nextafter(tie, np.float32(-200)), -1e30, 128, 1e30]
    x = np.array([*x, np.nextafter(np.float32(128), np.float32(0))], np.float32)
    expected = [2.0**-149, 0, 0, 0, np.inf, np.inf, float32(exact_bits(float(x[-1])))]
    np.testing.assert_array_equal(exp2(x), np.float32(expected))
    assert np.isfinite(expected[-1])


def test_specials():
    signalling_nan = float32(0x7FA00000)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, signalling_nan], np.float32)
    y = exp2(x)
    np.testing.assert_array_equal(y[:4].view(np.uint32), np.float32([1, 1, np.inf, 0]).view(np.uint32))
    assert np.isnan(y[4:]).all()


def test_shapes_chunks_and_in_place():
    x = np.random.default_rng(0).uniform(-20, 20, (3, 5000)).astype(np.float32)
    expected = np.stack([exp2(row) for row in x])
    np.testing.assert_array_equal(exp2(x), expected)
    np.testing.assert_array_equal(exp2(np.asfortranarray(x)), expected)
    np.testing.assert_array_equal(exp2(x[:, ::-3]), expected[:, ::-3])
    assert exp2(x[0, 0]).shape == ()
    assert exp2(x[:0]).shape == (0, 5000)
    np.testing.assert_array_equal(exp2(x.astype(np.float16)), exp2(x.astype(np.float16).astype(np.float32)))
    x[0, :2] = [argument for argument, _ in EXCEPTIONS]
    expected[0, :2] = [result for _, result in EXCEPTIONS]
    out = np.zeros((5000, 3), np.float32).T
    assert exp2(x, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert exp2(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: exp2(0.5), ["float64", "float32, float16, bfloat16"]),
        (lambda: exp2(np.arange(3)), ["int64", "float32"]),
        (lambda: exp2(np.zeros(3, np.float32), out=np.zeros(2, np.float32)), ["(2,)", "(3,)"]),
        (lambda: exp2(np.zeros(3, np.float32), out=np.zeros(3)), ["float64", "float32"]),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, said):
    with pytest.raises(ValueError) as error:
        call()
    for part in said:
        assert part in str(error.value)


@pytest.mark.slow
def test_every_input():
    script = [sys.executable, str(ROOT / "scripts" / "prove_exp2.py")]
    done = subprocess.run(script, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout
    assert f"{len(HARDEST)} near a rounding boundary" in done.stdout
