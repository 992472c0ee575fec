"""One step of the Blackwell tensor core, as published models describe it, bit for bit.

For each output element, all products of the step and the accumulator C are added in one fused sum:

    1. A product is exact: significands are multiplied without normalising (a value in [1, 4) for normal factors, less
       for subnormal ones, which keep the format's minimum exponent), its exponent is the sum of the factors' exponents
       and of both block-scale exponents.
    2. E is the largest exponent among the products and C.
    3. Every term, C included, is truncated toward zero to a multiple of 2^(E - 25).
    4. The truncated terms are added exactly.
    5. The sum is truncated toward zero to float32; subnormal results are kept. An f16 accumulator is rounded to nearest
       even instead, and takes part in the maximum with at least 2^-14.

Sources: MMA-Sim (arXiv 2511.10909) and the tensor-core models of arXiv 2512.07004, both of which report bit-exact
agreement with B200 in random tests. Where they differ or are silent, this is MMA-Sim's arithmetic:

    * a product with a zero factor does not take part in the maximum; C takes part with an exponent of at least -126,
      zero or not. (The other model bounds E at -133. They differ only where every product is below about 2^-126.)
    * a sum of exactly zero is +0; a nonzero sum that truncates to zero keeps its sign.
    * truncation stops at the largest float32; a magnitude of 2^128 or more becomes infinity.
    * NaN in A, B, C or a scale, infinity times zero, and infinity minus infinity give NaN 0x7FFFFFFF.

mxf4 and mxf4nvf4 add up differently: `tensor_core_fp4`. Not modelled: the scaling of C by `scale-input-d`, `.ws`. Whether
the order of the terms can ever show on hardware is not known; neither model needs one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import Format

FRACTION_BITS = 25
C_MIN_EXPONENT = -126
HALF_C_MIN_EXPONENT = -14
# Exponent of operands that must never win the maximum; a sum of two still fits int16.
_NEVER = np.int16(-4096)
_FLOAT64_BIAS, _FLOAT64_MANTISSA_BITS = 1023, 52
_NAN_BITS = np.int32(0x7FFFFFFF)
_ROWS = 64  # rows of C at a time: work arrays of 64 KB for 128 columns


@dataclass(frozen=True)
class TensorCoreOperand:
    """An operand as the multiplier sees it, K first: (K, rows).

    Attributes:
        values: element times scale, exact in float64; infinities and NaN replaced by zero.
        exponents: int16 exponent of the element, at least its format's minimum, plus that of its scale.
        specials: the values with infinities and NaN still in place, or None if there are none.
    """

    values: NDArray[np.float64]
    exponents: NDArray[np.int16]
    specials: NDArray[np.float64] | None

    @classmethod
    def split(
        cls,
        name: str,
        elements: NDArray[np.float32],
        scaled: NDArray[np.float64],
        scale_exponent: NDArray[np.int16],
        fmt: Format,
    ) -> TensorCoreOperand:
        """Make one from element values (rows, K) of format `fmt` and the same values scaled.

        Raises:
            ValueError: an element that is not a value of `fmt`.
        """
        exponent = np.maximum(np.frexp(elements)[1] - 1, fmt.min_exponent)
        units = np.ldexp(elements.astype(np.float64), fmt.mantissa_bits - exponent)
        finite = np.isfinite(elements)
        with np.errstate(invalid="ignore"):
            wrong = np.where(finite, (units != np.rint(units)) | (np.abs(elements) > fmt.max_value), False)
        wrong |= np.isinf(elements) & (not fmt.has_infinity) | np.isnan(elements) & (fmt.nan_code is None)
        if wrong.any():
            raise ValueError(f"{name} holds {elements[wrong][0]!r}, which is not a value of {fmt.name}")
        exponent = np.where((elements == 0) | ~finite, _NEVER, exponent + scale_exponent)
        special = not np.isfinite(scaled).all()
        values = np.where(np.isfinite(scaled), scaled, 0.0) if special else scaled
        return cls(
            np.ascontiguousarray(values.T),
            np.ascontiguousarray(exponent.T.astype(np.int16)),
            np.ascontiguousarray(scaled.T) if special else None,
        )

    def columns(self, part: slice) -> TensorCoreOperand:
        """The operand restricted to a slice of K."""
        specials = None if self.specials is None else self.specials[part]
        return TensorCoreOperand(self.values[part], self.exponents[part], specials)

    def rows(self, part: slice) -> TensorCoreOperand:
        """The operand restricted to some of its rows (M or N)."""
        specials = None if self.specials is None else self.specials[:, part]
        return TensorCoreOperand(self.values[:, part], self.exponents[:, part], specials)


def tensor_core_step(
    a: TensorCoreOperand, b: TensorCoreOperand, c: NDArray[np.float32], *, half: bool = False
) -> NDArray[np.float32]:
    """C plus the sum of products of one step, (M, N) float32, from operands (K, M) and (K, N).

    half: the accumulator is f16; C and the result hold values of float16.
    """
    result = np.empty_like(c)
    for start in range(0, c.shape[0], _ROWS):
        rows = slice(start, start + _ROWS)
        result[rows] = _step_rows(a.rows(rows), b, c[rows], half)
    return result


def _step_rows(a: TensorCoreOperand, b: TensorCoreOperand, c: NDArray[np.float32], half: bool) -> NDArray[np.float32]:
    c_finite = np.isfinite(c)
    special = a.specials is not None or b.specials is not None or not c_finite.all()
    c_values = np.where(c_finite, c, np.float32(0)).astype(np.float64)
    exponent = _max_exponent(a.exponents, b.exponents, c_values, HALF_C_MIN_EXPONENT if half else C_MIN_EXPONENT)
    to_units, from_units = _power_of_two(FRACTION_BITS - exponent), _power_of_two(exponent - FRACTION_BITS)
    # The sum is an integer below 2^53 in units of 2^(E - 25), so float64 holds it exactly.
    total = np.trunc(c_values * to_units)
    term = np.empty_like(total)
    for a_column, b_column in zip(a.values, b.values, strict=True):
        np.multiply(a_column[:, None], b_column, out=term)
        np.multiply(term, to_units, out=term)
        np.trunc(term, out=term)
        np.add(total, term, out=total)
    exact = total * from_units + 0.0
    result = _to_half(exact) if half else round_toward_zero(exact)
    if special:
        _place_specials(a, b, c, result)
    return result


def _max_exponent(
    a: NDArray[np.int16], b: NDArray[np.int16], c_values: NDArray[np.float64], c_min_exponent: int
) -> NDArray[np.int64]:
    """The largest exponent among the products and C, (M, N); that of a zero C is C_MIN_EXPONENT."""
    exponent = np.maximum(np.frexp(c_values)[1] - 1, c_min_exponent)
    largest = np.where(c_values == 0, C_MIN_EXPONENT, exponent).astype(np.int16)
    product = np.empty_like(largest)
    for a_column, b_column in zip(a, b, strict=True):
        np.add(a_column[:, None], b_column, out=product)
        np.maximum(largest, product, out=largest)
    return largest.astype(np.int64)


def _power_of_two(exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    return ((exponent + _FLOAT64_BIAS) << _FLOAT64_MANTISSA_BITS).view(np.float64)


def round_toward_zero(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """float64 truncated to float32, subnormals kept; 2^128 and more become infinity."""
    with np.errstate(over="ignore", under="ignore"):
        nearest = x.astype(np.float32)
    away = (np.abs(nearest) > np.abs(x)) & (np.abs(x) < 2.0**128)
    # Magnitudes are ordered as integers, whatever the sign bit: one less is the next value toward zero.
    return (nearest.view(np.int32) - away).view(np.float32)


def _to_half(x: NDArray[np.float64]) -> NDArray[np.float32]:
    """float64 rounded once to float16, to nearest even, as float32."""
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(np.float16).astype(np.float32)


def _place_specials(
    a: TensorCoreOperand, b: TensorCoreOperand, c: NDArray[np.float32], result: NDArray[np.float32]
) -> None:
    """Overwrite the elements that IEEE arithmetic makes infinite or NaN."""
    total = c.astype(np.float64)
    a_values = a.values if a.specials is None else a.specials
    b_values = b.values if b.specials is None else b.specials
    with np.errstate(invalid="ignore"):
        for a_column, b_column in zip(a_values, b_values, strict=True):
            total += a_column[:, None] * b_column
    infinite, nan = np.isinf(total), np.isnan(total)
    result[infinite] = total[infinite]
    result.view(np.int32)[nan] = _NAN_BITS
