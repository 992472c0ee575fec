"""The four rules that choose a block's scale from its largest magnitude, by integer arithmetic.

The scale comes from the largest magnitude of the block, `amax`, by its float32 bits: no logarithm, no division, so
nothing depends on a math library. With E the exponent field of amax and m its mantissa bits:

    rule     scale_e8m0 (E4M3; for E5M2 15 replaces 8)       where it comes from
    floor    E - 8                                           OCP MX v1.0, section 6.3; may clip the largest elements
    ceil     E - 8 + (m > 0)                                 never clips, wastes up to one bit
    even     (E, m rounded to the element's mantissa) - 8    floor after rounding amax like an element
    rceil    E - 8 + (m > 0x600000)                          smallest scale at which amax fits (448 is 1.75 * 2^8)

"rceil" is NVIDIA's rule (cuDNN and cuBLAS, block scaling), the names are those of torchao.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import (
    FLOAT32_ABS_MASK,
    FLOAT32_INF_BITS,
    FLOAT32_MANTISSA_BITS,
    Format,
    to_float32,
)
from mxfp8fa.numerics.mx_tensor import element_format

SCALE_RULES = ("floor", "ceil", "even", "rceil")
SCALE_NAN = 0xFF


def scale_codes(amax: ArrayLike, fmt: str | Format = "e4m3", rule: str = "rceil") -> NDArray[np.uint8]:
    """Scale codes of blocks whose largest magnitudes are `amax` (float32, float16 or bfloat16, any shape).

    Raises:
        ValueError: unknown format, rule or dtype, or a negative `amax`.
    """
    values = to_float32(amax)
    if np.any(values < 0):
        raise ValueError(f"amax = {values.min()} is negative; allowed: largest magnitudes")
    bits = np.atleast_1d(values).view(np.int32) & FLOAT32_ABS_MASK
    return scale_codes_of_bits(bits, element_format(fmt), rule).reshape(values.shape)


def scale_codes_of_bits(amax_bits: NDArray[np.int32], fmt: Format, rule: str) -> NDArray[np.uint8]:
    """Scale codes from the float32 bit patterns of amax."""
    carry = carry_of_rule(rule, fmt)
    # NaN and infinities overflow here, harmlessly; they are told apart afterwards. Nothing else exceeds code 247: the
    # clamp at 254 is the format's, float32 never needs it.
    codes = np.add(amax_bits, np.int32(carry))
    np.right_shift(codes, np.int32(FLOAT32_MANTISSA_BITS), out=codes)
    np.subtract(codes, np.int32(fmt.max_exponent), out=codes)
    np.maximum(codes, np.int32(0), out=codes)
    np.copyto(codes, np.int32(SCALE_NAN), where=amax_bits >= FLOAT32_INF_BITS)
    return codes.astype(np.uint8)


def carry_of_rule(rule: str, fmt: Format) -> int:
    """What a rule adds to the bit pattern of amax, so that a carry out of the mantissa bumps the exponent field.

    Nothing (floor), just less than one (ceil), half a unit of the element's last place (even), a quarter (rceil).

    Raises:
        ValueError: unknown rule.
    """
    check_rule(rule)
    one = 1 << FLOAT32_MANTISSA_BITS
    return {"floor": 0, "ceil": one - 1, "even": one >> (fmt.mantissa_bits + 1), "rceil": one // 4 - 1}[rule]


def check_rule(rule: str) -> None:
    if rule not in SCALE_RULES:
        raise ValueError(f"rule = {rule!r} is not a scale rule; allowed: {', '.join(SCALE_RULES)}")
