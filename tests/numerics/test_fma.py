"""fma against exact fractions: random numbers, halfway cases, subnormals, special values."""

from fractions import Fraction

import numpy as np

from mxfp8fa.numerics import fma

F32 = np.float32


def nearest_float32(value: Fraction) -> np.float32:
    """The float32 nearest to an exact value, ties to even, found among three neighbours."""
    guess = F32(float(value))
    if np.isinf(guess):
        return guess
    candidates = [np.nextafter(guess, F32(-np.inf)), guess, np.nextafter(guess, F32(np.inf))]
    finite = [c for c in candidates if np.isfinite(c)]
    return min(finite, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.int32)) & 1))


def check(a, b, c):
    got = fma(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        expected = nearest_float32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        assert result == expected, (x, y, z, result, expected)


def test_random_bits():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (3, 4000), dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        keep = np.isfinite(values).all(axis=0) & np.isfinite(values[0] * values[1])
    check(*values[:, keep])


def test_cancellation():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4000)).astype(F32)
    check(a, b, -(a * b))
    check(a, b, np.nextafter(-(a * b), F32(0)))


def test_sums_that_only_look_like_a_tie():
    """Next to c = 1, a * b = 2^-24 (1 +- 2^-23) lies just off a tie of float32."""
    a = np.array([1 + 2**-23, 1 - 2**-24], F32)
    for sign in (1, -1):
        b = np.full(2, sign * 2.0**-24, F32)
        check(a, b, np.ones(2, F32))
        check(a, b, np.full(2, 1 + 2**-23, F32))
    tiny = np.array([2.0**-80, -(2.0**-80), 0.0], F32)
    check(np.full(3, 1 + 2**-12, F32), np.full(3, 1 + 2**-12, F32), tiny)  # 1 + 2^-11 + 2^-24, a tie but for c


def test_subnormal_results():
    rng = np.random.default_rng(2)
    a = (rng.standard_normal(3000) * 2.0**-70).astype(F32)
    b = (rng.standard_normal(3000) * 2.0**-70).astype(F32)
    c = (rng.standard_normal(3000) * 2.0**-135).astype(F32)
    check(a, b, c)
    check(a, b, np.zeros_like(c))
    # a * b = 2^-150 (1 -+ 2^-46): with c an odd or even multiple of 2^-149 just off a tie of float32, on it in float64.
    a, b = np.full(4, (1 + 2.0**-23) * 2.0**-75, F32), np.full(4, (1 - 2.0**-23) * 2.0**-75, F32)
    check(a, b, (np.array([2**22, 2**22 + 1, -(2**22), -(2**22) - 1]) * 2.0**-149).astype(F32))


def test_special_values():
    inf, nan = F32(np.inf), F32(np.nan)
    assert fma(inf, F32(2), F32(1)) == inf
    assert fma(-inf, F32(2), F32(1)) == -inf
    for abc in ((inf, 1, -inf), (nan, 1, 1), (inf, 0, 1), (1, 1, nan)):
        assert np.isnan(fma(*abc))
    assert fma(F32(3e38), F32(10), -inf) == -inf  # the exact product is finite
    assert fma(F32(3e38), F32(10), F32(-3e38)) == inf
    assert fma(F32(3e38), F32(2), F32(-3e38)) == F32(3e38)
    assert fma(F32(1e-45), F32(0.25), F32(0)) == 0
    result = fma(F32(0), F32(-1), F32(-0.0))
    assert result == 0 and np.signbit(result)


def test_broadcasts_and_leaves_arguments_alone():
    a, b, c = np.ones((4, 1), F32), F32(2), np.arange(3, dtype=F32)
    got = fma(a, b, c)
    assert got.shape == (4, 3) and got.dtype == F32
    np.testing.assert_array_equal(got[2], [2, 3, 4])
    np.testing.assert_array_equal(c, [0, 1, 2])
