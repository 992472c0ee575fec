"""P in torch: the online softmax of `mxfp8fa.numerics.softmax`, all heads, sequences and rows at once.

Given equal scores, the codes and scales of P, row_max, row_sum and acc_scale are those of NumPy bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from mxfp8fa.nn.blocks import decode, decode_scale, encode
from mxfp8fa.nn.elementary import exp2, exp2_polynomial, float32, fma, half_sum, lane_sum
from mxfp8fa.numerics import softmax as model
from mxfp8fa.numerics.formats import E4M3
from mxfp8fa.numerics.mx_tensor import BLOCK
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.scale_rules import SCALE_NAN
from mxfp8fa.numerics.softmax import DIRECT_CODE_OF_NAN, DYNAMIC_TOP, E4M3_BIAS, E8M0_BIAS

SHARE_PERIOD = 16  # direct and exact columns alternate with this period
LN_2, REFERENCE_LIMIT_LOG2 = float(model.LN_2), float(model.REFERENCE_LIMIT_LOG2)
P_MAX = float(E4M3.max_value)


class RowState(NamedTuple):
    """What a row of scores has seen so far.

    Attributes:
        row_max: (..., Sq) the raw score each row is measured from.
        row_sum: (..., Sq) sum of 2^offset * P.
    """

    row_max: torch.Tensor
    row_sum: torch.Tensor

    @staticmethod
    def empty(shape: tuple[int, ...], device: torch.device) -> RowState:
        """Rows that have seen nothing."""
        return RowState(torch.full(shape, -math.inf, device=device), torch.zeros(shape, device=device))


def softmax_step(
    s: torch.Tensor, state: RowState, scale_log2: float, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, RowState]:
    """Take in one tile of masked scores.

    Args:
        s: (..., Sq, n) float32, n a multiple of 32.
        state: before the step.
        scale_log2: softmax_scale * log2(e), a float32 number.
        options: how P is made.

    Returns:
        codes (..., Sq, n) and scale_e8m0 (..., Sq, n / 32) of P, uint8; acc_scale (..., Sq); the state after the step.
    """
    row_max, acc_scale = _raise_row_max(s, state.row_max, scale_log2, options)
    reference = _reference(row_max)[..., None]
    offset = _offset(options)
    if options.p_scale == "dynamic":
        exponent, scale_e8m0 = _dynamic_scale(s, reference, scale_log2)
    else:
        exponent = torch.full_like(reference, -offset)
        scale_e8m0 = torch.full((*s.shape[:-1], s.shape[-1] // BLOCK), E8M0_BIAS - offset, device=s.device)

    def exponents(gain: int, addend: float) -> torch.Tensor:
        return _shifted(s, reference, scale_log2, float32(addend) - exponent, gain=gain)

    p, codes = probabilities(exponents, options, s.shape[-1], options.polynomial_columns)
    row_sum = _add_to_row_sum(p, scale_e8m0, state.row_sum * acc_scale, options)
    if options.direct_columns:
        row_sum = row_sum + (reference[..., 0] - reference[..., 0])
    return codes, scale_e8m0.to(torch.uint8), acc_scale, RowState(row_max, row_sum)


def finish(state: RowState, scale_log2: float, options: AttentionOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """(1 / row sum, lse), each (..., Sq): O is multiplied by the first. A row that saw nothing has 1 and -inf."""
    total = state.row_sum * 2.0 ** -_offset(options)
    log2_total = torch.log2(total.double()).float()
    lse = fma(_reference(state.row_max), scale_log2, log2_total) * LN_2
    return 1.0 / torch.where(total == 0, 1.0, total), lse


def probabilities(
    exponent: Callable[[int, float], torch.Tensor], options: AttentionOptions, keys: int, polynomial_columns: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """2^offset * P as the row sum and dS take it, and its codes: `mxfp8fa.numerics.softmax.probabilities`.

    Args:
        exponent: called with (gain, addend), gives gain * (log2(2^offset * P) + addend) of every score, (..., keys).
        options: exp, its share and bias, and row_sum.
        keys: length of the last axis, which starts at a multiple of 16.
        polynomial_columns: how many columns of every 16, the first ones, take exp2 by polynomial.
    """
    if options.direct_columns == 0:
        p = _exp2(exponent(1, 0.0), polynomial_columns)
        codes = _encode_p(p)
        return (decode(codes) if options.row_sum == "rounded" else p), codes
    codes = _direct_codes(exponent(8, E4M3_BIAS + options.direct_bias), DIRECT_CODE_OF_NAN[options.direct_codes])
    if options.direct_columns < SHARE_PERIOD:
        column = torch.arange(keys, device=codes.device) % SHARE_PERIOD
        exact = _encode_p(_exp2(exponent(1, 0.0), polynomial_columns))
        codes = torch.where(column >= SHARE_PERIOD - options.direct_columns, codes, exact)
    return decode(codes), codes


def _exp2(x: torch.Tensor, polynomial_columns: int) -> torch.Tensor:
    """2^x, of some columns by polynomial."""
    if polynomial_columns == 0:
        return exp2(x)
    column = torch.arange(x.shape[-1], device=x.device) % SHARE_PERIOD
    return torch.where(column < polynomial_columns, exp2_polynomial(x), exp2(x))


def dequantized(codes: torch.Tensor, scale_e8m0: torch.Tensor) -> torch.Tensor:
    """float32 P (..., Sq, n) from its codes and scales."""
    values = decode(codes).unflatten(-1, (-1, BLOCK)) * decode_scale(scale_e8m0.to(torch.int32))[..., None]
    return values.flatten(-2)


def _offset(options: AttentionOptions) -> int:
    return options.p_offset if options.p_scale == "constant" else 0


def _reference(row_max: torch.Tensor) -> torch.Tensor:
    """row_max, or 0 where a row has seen nothing."""
    return torch.where(row_max == -math.inf, 0.0, row_max)


def _raise_row_max(
    s: torch.Tensor, old: torch.Tensor, scale_log2: float, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row_max, acc_scale): raised where it grew by more than the threshold."""
    new = torch.maximum(old, s.amax(-1))
    growth_log2 = (old - _reference(new)) * scale_log2
    keep = growth_log2 >= -float32(options.rescale_threshold)
    return torch.where(keep, old, new), torch.where(keep, 1.0, exp2(growth_log2))


def _dynamic_scale(
    s: torch.Tensor, reference: torch.Tensor, scale_log2: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponent (..., Sq, n / 32) of each block's scale and its code, from the block maxima of S."""
    block_max = s.unflatten(-1, (-1, BLOCK)).amax(-1)
    top = _shifted(block_max, reference, scale_log2, torch.zeros_like(reference))
    exponent = (torch.floor(top) - DYNAMIC_TOP).clamp(-E8M0_BIAS, E8M0_BIAS)
    codes = torch.where(torch.isnan(top), float(SCALE_NAN), exponent + E8M0_BIAS)
    return exponent, codes.to(torch.int32)


def _shifted(
    s: torch.Tensor, reference: torch.Tensor, scale_log2: float, addend: torch.Tensor, *, gain: int = 1
) -> torch.Tensor:
    """The numbers gain * (scale_log2 * (s - reference) + addend), by one fma per score; addend is (..., Sq, 1 or n / 32)."""
    slope, intercept = gain * scale_log2, gain * addend
    far = (reference * scale_log2).abs() > REFERENCE_LIMIT_LOG2
    near = torch.where(far, intercept, fma(-reference, slope, intercept))
    if near.shape[-1] not in (1, s.shape[-1]):
        near = near.repeat_interleave(BLOCK, dim=-1)
    return fma(s - torch.where(far, reference, 0.0), slope, near)


def _encode_p(p: torch.Tensor) -> torch.Tensor:
    return encode(p.clamp(max=P_MAX))


def _direct_codes(y: torch.Tensor, nan_code: int) -> torch.Tensor:
    """E4M3 codes from y = 8 * (log2 P + 7 + c): rounded and clamped to 0..255."""
    codes = torch.where(y > 0, y, 0.0).round().clamp(max=255.0)
    return torch.where(torch.isnan(y), float(nan_code), codes).to(torch.uint8)


def _add_to_row_sum(
    p: torch.Tensor, scale_e8m0: torch.Tensor, row_sum: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """row_sum + the sum of p, which is in units of 2^-offset or of its dynamic block scale."""
    if options.p_scale == "constant":
        return row_sum + half_sum(p) if options.sum_format == "float16" else lane_sum(p, row_sum)
    scale = decode_scale(scale_e8m0)
    for block in range(scale.shape[-1]):
        part = lane_sum(p[..., block * BLOCK : (block + 1) * BLOCK], torch.zeros_like(row_sum))
        row_sum = fma(part, scale[..., block], row_sum)
    return row_sum
