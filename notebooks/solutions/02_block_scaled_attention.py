"""Solutions to the exercises of 02_block_scaled_attention.ipynb."""

import math


def blocked_axis(einsum):
    operands, result = einsum.split("->")
    return next(letter for letter in operands if letter not in "," + result)


def direct_code(log2_p):
    return max(round(8 * (log2_p + 8 + 7 - 0.05)), 0)


def step(m, l, scores):
    new = max(m, *scores)
    return new, l * 2.0 ** (m - new) + sum(2.0 ** (score - new) for score in scores)


def largest_threshold(p_offset):
    return math.log2(448) - p_offset
