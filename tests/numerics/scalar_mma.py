"""Scalar twins of `mma`: one output element at a time in Python integers and fractions."""

import math
from fractions import Fraction

import numpy as np

from mxfp8fa.numerics import decode_scalar

NAN = 0x7FFFFFFF
INFINITY = 0x7F800000
SIGN = 0x80000000


def floor_log2(x):
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= x else exponent - 1


def float32_bits(x, rounding, negative_zero=False):
    """Bit pattern of a rational rounded to float32 by `rounding` (round: nearest even; math.trunc: toward zero)."""
    if x == 0:
        return SIGN if negative_zero else 0
    sign = SIGN if x < 0 else 0
    exponent = max(floor_log2(abs(x)), -126)
    units = rounding(abs(x) / Fraction(2) ** (exponent - 23))
    if abs(x) >= 2**128 or units * Fraction(2) ** (exponent - 23) >= 2**128:
        return sign | INFINITY
    return sign | ((exponent + 126 << 23) + units)


def special(factors, c):
    """NAN or a signed INFINITY if IEEE arithmetic makes the sum one, else None. `factors`: (a, b, scale a, scale b)."""
    signs = set()
    if math.isinf(c):
        signs.add(c > 0)
    if math.isnan(c):
        return NAN
    for a, b, *scales in factors:
        if any(math.isnan(v) for v in (a, b, *scales)):
            return NAN
        if math.isinf(a) or math.isinf(b):
            if a == 0 or b == 0:
                return NAN
            signs.add((a > 0) == (b > 0))
    if not signs:
        return None
    return NAN if len(signs) == 2 else INFINITY | (0 if signs.pop() else SIGN)


def exponent_of(value, fmt):
    return max(floor_log2(abs(Fraction(value))), fmt.min_exponent)


def blackwell_step(factors, c, a_fmt, b_fmt):
    """One step for one element; c is a float32 value as a Python float. Returns a bit pattern."""
    outcome = special(factors, c)
    if outcome is not None:
        return outcome
    terms = [(Fraction(c), max(floor_log2(abs(Fraction(c))), -126) if c else -126)]
    for a, b, a_scale, b_scale in factors:
        if a and b:
            product = Fraction(a) * Fraction(b) * Fraction(a_scale) * Fraction(b_scale)
            scale_exponent = floor_log2(Fraction(a_scale)) + floor_log2(Fraction(b_scale))
            terms.append((product, exponent_of(a, a_fmt) + exponent_of(b, b_fmt) + scale_exponent))
    unit = Fraction(2) ** (max(exponent for _, exponent in terms) - 25)
    total = sum(math.trunc(value / unit) for value, _ in terms)
    return float32_bits(total * unit, math.trunc)


def float32_step(factors, c, a_fmt, b_fmt):
    """One step of the "float32" model for one element."""
    outcome = special(factors, 0.0)
    if outcome is not None:
        return float_sum_bits(bits_to_float(outcome), c)
    dot = sum((math.prod(map(Fraction, f)) for f in factors), Fraction(0))
    return float_sum_bits(bits_to_float(float32_bits(dot, round)), c)


def float_sum_bits(x, y):
    """float32 sum of two float32 values (a double sum rounded again is right: 53 >= 2 * 24 + 2)."""
    with np.errstate(all="ignore"):
        return int((np.float32(x) + np.float32(y)).view(np.uint32))


def bits_to_float(bits):
    return float(np.uint32(bits).view(np.float32))


def scalar_mma(step, a, b, c, a_scale, b_scale, a_fmt, b_fmt, k_slice):
    """(M, N) bit patterns of D, element by element."""
    scales = [decode_scalar(code, "e8m0") for code in range(256)]
    result = np.empty(c.shape, np.uint32)
    for m, n in np.ndindex(*c.shape):
        acc = float(c[m, n])
        factors = [
            (
                float(a[m, k]),
                float(b[n, k]),
                1.0 if a_scale is None else scales[a_scale[m, k // 32]],
                1.0 if b_scale is None else scales[b_scale[n, k // 32]],
            )
            for k in range(a.shape[1])
        ]
        bits = int(np.float32(c[m, n]).view(np.uint32))
        for start in range(0, len(factors), k_slice):
            bits = step(factors[start : start + k_slice], acc, a_fmt, b_fmt)
            acc = bits_to_float(bits)
        result[m, n] = bits
    return result
