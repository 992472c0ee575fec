"""Quantization of one block in exact rational arithmetic: the definition, to read and to test against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mxfp8fa.numerics.formats import Format, encode_scalar
from mxfp8fa.numerics.mx_tensor import element_format
from mxfp8fa.numerics.scale_rules import SCALE_NAN, check_rule


def floor_log2(x: Fraction) -> int:
    """The largest k with 2^k <= x, for x > 0."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    return k if Fraction(2) ** k <= x else k - 1


def scale_code_scalar(amax: float, fmt: str | Format = "e4m3", rule: str = "rceil") -> int:
    """Scale code of a block whose largest magnitude is `amax`, by the definition of each rule.

    Raises:
        ValueError: unknown format or rule, or a negative `amax`.
    """
    fmt = element_format(fmt)
    check_rule(rule)
    if amax < 0:
        raise ValueError(f"amax = {amax} is negative; allowed: the largest magnitude")
    if not math.isfinite(amax):
        return SCALE_NAN
    if amax == 0:
        return 0
    exact = Fraction(float(amax))
    exponent = floor_log2(exact)
    if rule == "floor":
        k = exponent - fmt.max_exponent
    elif rule == "ceil":
        k = exponent - fmt.max_exponent + (exact > Fraction(2) ** exponent)
    elif rule == "even":
        unit = Fraction(2) ** (exponent - fmt.mantissa_bits)
        rounded = math.floor(exact / unit + Fraction(1, 2)) * unit
        k = floor_log2(rounded) - fmt.max_exponent
    else:
        k = exponent - fmt.max_exponent
        while exact > Fraction(fmt.max_value) * Fraction(2) ** k:
            k += 1
    return min(max(k + 127, 0), 254)


def quantize_block_scalar(
    block: Sequence[float], fmt: str | Format = "e4m3", rule: str = "rceil"
) -> tuple[int, list[int]]:
    """Scale code and element codes of one block of float32 values.

    Raises:
        ValueError: unknown format or rule.
    """
    fmt = element_format(fmt)
    values = [float(value) for value in block]  # float32 scalars would overflow in the division below
    amax = max(map(abs, values), default=0.0) if not any(map(math.isnan, values)) else math.nan
    scale = scale_code_scalar(amax, fmt, rule)
    if scale == SCALE_NAN:
        return scale, [0x7F] * len(values)
    # A double holds the quotient of a float32 and a power of two exactly.
    return scale, [encode_scalar(value / 2.0 ** (scale - 127), fmt) for value in values]
