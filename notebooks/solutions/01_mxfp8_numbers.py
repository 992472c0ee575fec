"""Solutions to the exercises of 01_mxfp8_numbers.ipynb."""

import math

from mxfp8fa.numerics import decode_scalar


def value_of(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * 2.0**-6 * mantissa / 8
    return sign * 2.0 ** (exponent - 7) * (1 + mantissa / 8)


def rceil(bits):
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    if exponent == 255:
        return 0xFF
    return max(exponent - 8 + (mantissa > 0x600000), 0)


def dequantize(code, scale_e8m0):
    if scale_e8m0 == 0xFF:
        return math.nan
    return decode_scalar(code, "e4m3") * 2.0 ** (scale_e8m0 - 127)


def safe_ratio():
    # Just above 224 = 1.75 * 2^7 the scale steps up to 1, where 448 would still fit; the smallest normal is 2^-6.
    return 224 * 2**6
