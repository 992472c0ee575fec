"""The online softmax of one query tile, in the float32 operations of the kernel and in their order.

Everything here is bit for bit what one softmax thread does with its row. The operations, for a score s, the row maximum
m it is measured from, and softmax_scale_log2 = float32(softmax_scale * log2 e):

    x      = fma(s, softmax_scale_log2, fma(-m, softmax_scale_log2, p_offset))
    P      = exp2(x), subnormal results flushed to zero (PTX ISA, ex2.approx.ftz.f32); codes by cvt.rn.satfinite.e4m3
    y      = fma(s, 8 * softmax_scale_log2, fma(-m, 8 * softmax_scale_log2, 8 * (p_offset + (7 + c))))
    direct codes = clamp(rint(y), 0, 255)

Direct codes come out of either of two instruction sequences, options.direct_codes: "integer" converts y to an integer and
packs bytes with saturation (cvt.rni.s32.f32, cvt.pack.sat.u8.s32.b32); "subnormal" scales y by 2^-24, so that the bits of
the float16 subnormal that it rounds to are the code (cvt.rn.relu.f16x2.f32), and shifts of it by 7 are the float16 of
2^-8 P, ready to be summed. They differ in the code of a NaN only.

With dynamic scales, minus the exponent of the block's scale stands for p_offset. A maximum so large that the float32
number fma(-m, ...) has lost the fraction of x (|m * softmax_scale_log2| > 2^16) takes fma(s - m, softmax_scale_log2,
p_offset) instead: one more subtraction, in a branch that ordinary scores never take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.exp2 import exp2, exp2_polynomial
from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.formats import E8M0, decode, encode
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.quantize import BLOCK, SCALE_NAN

Float32 = NDArray[np.float32]

LOG2_E = np.float32(math.log2(math.e))
LN_2 = np.float32(math.log(2.0))
E8M0_BIAS = 127
E4M3_BIAS = 7
# At 2^16 a float32 number has 7 fraction bits: x is off by at most 2^-8, and a direct code by 2^-5, which still cannot
# lift it past 126 = rint(8 * (log2 448 + 7)) = rint(126.459).
REFERENCE_LIMIT_LOG2 = np.float32(2.0**16)
# A dynamic scale puts the largest P of a block into [2^7, 2^8): the largest power of two below 448 / 2.
DYNAMIC_TOP = 7
FLOAT32_MIN_NORMAL = np.float32(2.0**-126)
# Of cvt.rni.s32.f32; of the low byte of the NaN 0x7FFF that cvt.rn.relu.f16x2.f32 gives, an E4M3 NaN (PTX ISA, cvt).
DIRECT_CODE_OF_NAN = {"integer": 0, "subnormal": 0xFF}
# Packed f32x2 additions: four accumulators of two lanes.
SUM_LANES = 8


def softmax_scale_log2(softmax_scale: float) -> np.float32:
    """softmax_scale * log2(e), rounded once to float32: the kernel's argument."""
    return np.float32(softmax_scale * math.log2(math.e))


@dataclass(frozen=True)
class ProbabilityTile:
    """P of one tile, as the second GEMM reads it.

    Attributes:
        codes: (tile_m, tile_n) E4M3.
        scale_e8m0: (tile_m, tile_n / 32).
        acc_scale: (tile_m,) factor that O accumulated so far has to be multiplied by first.
    """

    codes: NDArray[np.uint8]
    scale_e8m0: NDArray[np.uint8]
    acc_scale: Float32


class OnlineSoftmax:
    """Running row maximum and row sum of the rows of one query tile.

    Attributes:
        row_max: (tile_m,) the raw score each row is measured from; it lags behind the true maximum by up to
            rescale_threshold.
        row_sum: (tile_m,) sum of 2^offset * P so far.
        offset: log2 of the factor on P: p_offset, or 0 with dynamic scales.
    """

    def __init__(self, tile_m: int, scale_log2: np.float32, options: AttentionOptions) -> None:
        self.scale_log2 = scale_log2
        self.options = options
        self.offset = options.p_offset if options.p_scale == "constant" else 0
        self.row_max = np.full(tile_m, -np.inf, np.float32)
        self.row_sum = np.zeros(tile_m, np.float32)

    def step(self, s: Float32) -> ProbabilityTile:
        """Take in one tile of masked scores (tile_m, tile_n)."""
        acc_scale = self._update_row_max(s)
        reference = self._reference()[:, None]  # (tile_m, 1)
        if self.options.p_scale == "dynamic":
            exponent, scale_e8m0 = self._dynamic_scale(s, reference)  # (tile_m, tile_n / 32)
        else:
            exponent = np.full((1, 1), -self.offset, np.float32)
            scale_e8m0 = np.full((len(s), s.shape[1] // BLOCK), E8M0_BIAS - self.offset, np.uint8)

        def exponents(gain: int, addend: float) -> Float32:
            return shifted(s, reference, self.scale_log2, np.float32(addend) - exponent, gain=gain)

        p, codes = probabilities(exponents, self.options, key_axis=1, exp2_of=self._exp2)
        self._add_to_row_sum(p, scale_e8m0, acc_scale)
        if self.options.direct_columns:
            self.row_sum += reference[:, 0] - reference[:, 0]  # a NaN score has direct code 0: let the sum carry it
        return ProbabilityTile(codes, scale_e8m0, acc_scale)

    def finish(self) -> tuple[Float32, Float32]:
        """(1 / row sum, lse), each (tile_m,): O is multiplied by the first. A row that saw nothing has 1 and -inf."""
        total = self.row_sum * np.float32(2.0**-self.offset)
        log2_total = np.log2(total.astype(np.float64)).astype(np.float32)
        lse = fma(self._reference(), self.scale_log2, log2_total) * LN_2
        inverse_sum: Float32 = np.reciprocal(np.where(total == 0, np.float32(1), total))
        return inverse_sum, lse

    def _exp2(self, x: Float32) -> Float32:
        """2^x, of some columns by polynomial."""
        p = exp2_ftz(x)
        columns = np.arange(x.shape[1]) % 16 < self.options.polynomial_columns
        if columns.any():
            p[:, columns] = exp2_polynomial(x[:, columns])
        return p

    def _reference(self) -> Float32:
        """row_max, or 0 where a row has seen nothing: -inf - (-inf) would be NaN."""
        return np.where(self.row_max == -np.inf, np.float32(0), self.row_max)

    def _update_row_max(self, s: Float32) -> Float32:
        """Raise row_max where it grew by more than the threshold; return acc_scale (tile_m,)."""
        row_max = np.maximum(self.row_max, s.max(axis=1))  # both propagate NaN, as max.NaN.f32 does
        safe = np.where(row_max == -np.inf, np.float32(0), row_max)
        growth_log2 = (self.row_max - safe) * self.scale_log2  # <= 0
        keep = growth_log2 >= np.float32(-self.options.rescale_threshold)
        self.row_max = np.where(keep, self.row_max, row_max)
        return np.where(keep, np.float32(1), exp2_ftz(growth_log2))

    def _dynamic_scale(self, s: Float32, reference: Float32) -> tuple[Float32, NDArray[np.uint8]]:
        """Exponent of each block's scale, and its code, from the block maxima of S.

        The largest P of a block is that of its largest score, so its logarithm is known before any exponential.
        """
        block_max = s.reshape(len(s), -1, BLOCK).max(axis=2)  # (tile_m, tile_n / 32)
        top = shifted(block_max, reference, self.scale_log2, np.zeros((1, 1), np.float32))
        exponent = np.clip(np.floor(top) - np.float32(DYNAMIC_TOP), -E8M0_BIAS, E8M0_BIAS)
        codes = np.where(np.isnan(top), SCALE_NAN, np.nan_to_num(exponent) + E8M0_BIAS).astype(np.uint8)
        return exponent, codes

    def _add_to_row_sum(self, p: Float32, scale_e8m0: NDArray[np.uint8], acc_scale: Float32) -> None:
        """row_sum = row_sum * acc_scale + sum of p; p is in units of 2^-offset, or of its dynamic block scale."""
        row_sum = self.row_sum * acc_scale
        if self.options.p_scale == "constant":
            half = self.options.sum_format == "float16"
            self.row_sum = row_sum + half_sum(p) if half else lane_sum(p, row_sum)
            return
        for block, scale in enumerate(decode(scale_e8m0, E8M0).T):  # (tile_m,)
            row_sum = fma(lane_sum(p[:, block * BLOCK : (block + 1) * BLOCK], np.float32(0)), scale, row_sum)
        self.row_sum = row_sum


def probabilities(
    exponent: Callable[[int, float], Float32],
    options: AttentionOptions,
    key_axis: int,
    exp2_of: Callable[[Float32], Float32] | None = None,
) -> tuple[Float32, NDArray[np.uint8]]:
    """2^offset * P as the row sum and dS take it (rounded to E4M3 or not, as options.row_sum says), and its codes.

    Args:
        exponent: called with (gain, addend), gives gain * (log2(2^offset * P) + addend) of every score in float32.
        options: exp, its share and bias, and row_sum.
        key_axis: axis of the scores along which the keys run; every 16 of them are shared out between the two ways.
        exp2_of: takes exponentials; `exp2_ftz` if None.
    """
    exp2_of = exp2_of or exp2_ftz
    if options.direct_columns == 0:
        p = exp2_of(exponent(1, 0.0))
        codes = encode(p, "e4m3")
        return (decode(codes, "e4m3") if options.row_sum == "rounded" else p), codes
    nan_code = DIRECT_CODE_OF_NAN[options.direct_codes]
    codes = direct_codes(exponent(8, E4M3_BIAS + options.direct_bias), nan_code=nan_code)
    if options.direct_columns < 16:
        is_direct = np.arange(codes.shape[key_axis]) % 16 >= 16 - options.direct_columns
        exact = encode(exp2_of(exponent(1, 0.0)), "e4m3")
        codes = np.where(is_direct if key_axis == 1 else is_direct[:, None], codes, exact)
    return decode(codes, "e4m3"), codes


def direct_codes(y: Float32, *, nan_code: int = 0) -> NDArray[np.uint8]:
    """E4M3 codes from y = 8 * (log2 P + 7 + c), without an exponential.

    A positive code is the integer 8 * (exponent + 7) + mantissa, that is 8 * (log2 P + 7) but for the curvature of 2^f
    against 1 + f, which c splits in two. The upper clamp is that of cvt.pack.sat.u8.s32.b32 (PTX ISA) and not reached, by
    the limit on p_offset + rescale_threshold.

    Args:
        y: any shape.
        nan_code: what a NaN becomes, see `DIRECT_CODE_OF_NAN`.
    """
    codes = np.minimum(np.rint(np.where(y > 0, y, np.float32(0))), np.float32(255)).astype(np.uint8)
    return np.where(np.isnan(y), np.uint8(nan_code), codes)


def shifted(s: Float32, reference: Float32, scale_log2: np.float32, addend: Any, *, gain: int = 1) -> Float32:
    """The numbers gain * (scale_log2 * (s - reference) + addend), by one fma per score; see the module's docstring.

    Args:
        s: (rows, n) scores.
        reference: (rows, 1).
        scale_log2: softmax_scale_log2.
        addend: (1, 1), or (rows, n / 32): one per 32 scores.
        gain: a power of two, folded into the constants.
    """
    slope, intercept = np.float32(gain) * scale_log2, np.float32(gain) * np.asarray(addend, np.float32)
    x = fma(s, slope, _per_score(fma(-reference, slope, intercept), s.shape[1]))
    far = np.abs(reference[:, 0] * scale_log2) > REFERENCE_LIMIT_LOG2
    if far.any():
        near = intercept[far] if len(intercept) > 1 else intercept
        x[far] = fma(s[far] - reference[far], slope, _per_score(near, s.shape[1]))
    return x


def _per_score(x: Float32, scores: int) -> Float32:
    """(rows, blocks) repeated for the scores of each block; one block is left to broadcast."""
    return x if x.shape[1] in (1, scores) else np.repeat(x, scores // x.shape[1], axis=1)


def exp2_ftz(x: Float32) -> Float32:
    """2^x correctly rounded to float32; results below the normal range become 0."""
    p = exp2(x)
    return np.where(p < FLOAT32_MIN_NORMAL, np.float32(0), p)


def lane_sum(p: Float32, start: Any) -> Float32:
    """Row sums in the kernel's order: (rows, n) -> (rows,).

    Eight lanes add up every eighth column in turn, the first beginning with `start`; `tree_sum` adds up the lanes.
    """
    groups = p.reshape(len(p), -1, SUM_LANES)
    lanes = groups[:, 0].copy()  # (rows, 8)
    lanes[:, 0] += start
    for group in range(1, groups.shape[1]):
        lanes += groups[:, group]
    return tree_sum(lanes)


def half_sum(p: Float32) -> Float32:
    """Row sums of E4M3 values in packed float16: (rows, n) -> (rows,) float32, n at most 256.

    The eight lanes of `lane_sum`, four pairs of float16, and the first two levels of its tree are added in float16; each
    half of what remains, at most 128 values of at most 448, fits float16 and is promoted.
    """
    groups = p.astype(np.float16).reshape(len(p), -1, SUM_LANES)  # exact: E4M3 has fewer bits and a smaller range
    lanes = groups[:, 0]  # (rows, 8)
    for group in range(1, groups.shape[1]):
        lanes = lanes + groups[:, group]
    pair = ((lanes[:, 0:2] + lanes[:, 2:4]) + (lanes[:, 4:6] + lanes[:, 6:8])).astype(np.float32)
    return pair[:, 0] + pair[:, 1]


def tree_sum(lanes: Float32) -> Float32:
    """(..., 8) -> (...,): lanes 0 and 1 are added to 2 and 3, 4 and 5 to 6 and 7, the pairs to each other, and last the
    even to the odd lane.
    """
    pair = (lanes[..., 0:2] + lanes[..., 2:4]) + (lanes[..., 4:6] + lanes[..., 6:8])
    return pair[..., 0] + pair[..., 1]
