"""The model of mxf4 and mxf4nvf4 against the same sums in Python fractions, and single cases worked out by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mxfp8fa.numerics import decode_scalar
from mxfp8fa.numerics.tensor_core_fp4 import fp4_step
from tests.numerics.scalar_mma import float32_bits, floor_log2

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def scale_exponent(value: Fraction, least: int) -> int:
    return max(floor_log2(value), least) if value else least


def scalar_step(a, b, c, a_scale, b_scale, scale_format):
    """One element: group sums, exponents of the scales only, truncation at 35 bits below the largest."""
    fmt, least = ("e8m0", -127) if scale_format == "ue8m0" else ("e4m3", -6)
    mask = 0xFF if scale_format == "ue8m0" else 0x7F
    terms = [(Fraction(c), max(floor_log2(abs(Fraction(c))), -126) if c else -126)]
    for g in range(4):
        sa, sb = (Fraction(decode_scalar(int(s[g * len(s) // 4]) & mask, fmt)) for s in (a_scale, b_scale))
        total = sum(
            (
                Fraction(float(x)) * Fraction(float(y))
                for x, y in zip(a[16 * g : 16 * g + 16], b[16 * g : 16 * g + 16], strict=True)
            ),
            Fraction(0),
        )
        value = total * sa * sb
        terms.append((value, scale_exponent(sa, least) + scale_exponent(sb, least) if value else -126))
    unit = Fraction(2) ** (max(e for _, e in terms) - 35)
    return float32_bits(sum(math.trunc(v / unit) for v, _ in terms) * unit, math.trunc)


@pytest.mark.parametrize(("scale_format", "scales"), [("ue8m0", 2), ("ue8m0", 4), ("ue4m3", 4)])
@pytest.mark.parametrize("spread", [3, 40])
def test_random(scale_format, scales, spread):
    rng = np.random.default_rng(spread + scales)
    a, b = rng.choice(VALUES, (6, 64)), rng.choice(VALUES, (5, 64))
    a[0] = 0
    if scale_format == "ue8m0":
        codes = [rng.integers(127 - spread, 127 + spread, (n, scales)).astype(np.uint8) for n in (6, 5)]
    else:
        codes = [
            rng.integers(0, 0x7F, (n, scales)).astype(np.uint8) | rng.integers(0, 2, (n, scales)).astype(np.uint8) << 7
            for n in (6, 5)
        ]
    c = (rng.standard_normal((6, 5)) * 2.0 ** rng.integers(-spread, spread, (6, 5))).astype(np.float32)
    c[1, 1] = 0
    found = fp4_step(a, b, c, *codes, scale_format).view(np.uint32)
    for m in range(6):
        for n in range(5):
            assert found[m, n] == scalar_step(a[m], b[n], float(c[m, n]), codes[0][m], codes[1][n], scale_format), (
                m,
                n,
            )


def one(values, scale=(127, 127, 127, 127)):
    """(1, 64) elements from one value for each group, and (1, 4) codes."""
    a = np.zeros((1, 64), np.float32)
    a[0, ::16] = values
    return a, np.array([scale], np.uint8)


def test_a_group_is_aligned_by_its_scales_not_by_its_sum():
    """36 = 6 x 6 counts as 2^0: a C of 2^-34 survives with two bits, in a sum that float32 then truncates."""
    a, sa = one([6, 0, 0, 0])
    b, sb = one([6, 0, 0, 0])
    assert fp4_step(a, b, np.full((1, 1), -(2.0**-35), np.float32), sa, sb, "ue8m0")[0, 0] == np.nextafter(
        np.float32(36), np.float32(0)
    )
    assert fp4_step(a, b, np.full((1, 1), -(2.0**-36), np.float32), sa, sb, "ue8m0")[0, 0] == 36  # truncated away


def test_groups_with_scales_far_apart():
    """2^0 + 2^-35 - 2^0: the small group survives at exactly 35 bits, not at 36."""
    b, sb = one([1, 1, 1, 0])
    for distance, wanted in ((35, 2.0**-35), (36, 0.0)):
        a, sa = one([1, 1, -1, 0], (127, 127 - distance, 127, 127))
        assert fp4_step(a, b, None, sa, sb, "ue8m0")[0, 0] == wanted


def test_truncation_toward_zero():
    """1 + 2^-24 is cut to 1, and so is its negative."""
    b, sb = one([1, 1, 0, 0])
    for sign in (1, -1):
        a, sa = one([sign, sign, 0, 0], (127, 127 - 24, 127, 127))
        assert fp4_step(a, b, None, sa, sb, "ue8m0")[0, 0] == sign


def test_nan_and_infinity():
    a, sa = one([0, 0, 0, 0], (127, 0xFF, 127, 127))
    b, sb = one([1, 1, 1, 1])
    assert fp4_step(a, b, None, sa, sb, "ue8m0").view(np.uint32)[0, 0] == 0x7FFFFFFF
    a, sa = one([1, 1, 1, 1], (0x38, 0xFF, 0x38, 0x38))
    assert fp4_step(a, b, None, sa, np.full((1, 4), 0x38, np.uint8), "ue4m3").view(np.uint32)[0, 0] == 0x7FFFFFFF
    a, sa = one([1, 1, 1, 1])
    assert fp4_step(a, b, np.full((1, 1), -np.inf, np.float32), sa, sb, "ue8m0")[0, 0] == -np.inf
    a, sa = one([6, 0, 0, 0], (254, 127, 127, 127))
    assert fp4_step(a, b, None, sa, np.full((1, 4), 254, np.uint8), "ue8m0")[0, 0] == np.inf


def test_an_exact_zero_is_positive():
    a, sa = one([1, -1, 0, 0])
    b, sb = one([1, 1, 0, 0])
    assert fp4_step(a, b, None, sa, sb, "ue8m0").view(np.uint32)[0, 0] == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a, s: fp4_step(a, a, None, s, s, "e8m0"), "scale_format = 'e8m0'; allowed: ue8m0, ue4m3"),
        (lambda a, s: fp4_step(a[:, :32], a, None, s, s, "ue8m0"), r"a \(1, 32\) with scales \(1, 4\)"),
        (lambda a, s: fp4_step(a, a, None, s, s[:, :1], "ue8m0"), r"b \(1, 64\) with scales \(1, 1\)"),
    ],
)
def test_errors(call, said):
    with pytest.raises(ValueError, match=said):
        call(*one([1, 1, 1, 1]))
