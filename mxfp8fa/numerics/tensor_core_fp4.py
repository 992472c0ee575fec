"""One step of the Blackwell tensor core for mxf4 and mxf4nvf4 (K = 64), as a published model describes it, bit for bit.

These kinds multiply E2M1 elements whose scales cover 32 or 16 of them. The model does not align single products:

    1. The 64 products are added in four groups of 16, exactly. No group straddles a scale.
    2. A group's sum is multiplied by the significands of its two scales, exactly (1 for UE8M0), and has the sum of the
       scales' exponents as its exponent, however large the sum is.
    3. E is the largest exponent among the four groups and C; a zero sum, like a zero C, counts with 2^-126.
    4. Every term is truncated toward zero to a multiple of 2^(E - 35), the terms are added exactly, and the sum is
       truncated toward zero to float32.

Source: MMA-Sim (arXiv 2511.10909), which reports bit-exact agreement with a B200 in random tests. NaN in a scale or in C
gives NaN 0x7FFFFFFF; E2M1 itself has neither NaN nor infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import E4M3, E8M0, decode
from mxfp8fa.numerics.tensor_core import C_MIN_EXPONENT, round_toward_zero

FP4_K = 64
FP4_GROUP = 16
FP4_FRACTION_BITS = 35
_NAN_BITS = np.uint32(0x7FFFFFFF)


def scale_parts(codes: NDArray[np.uint8], scale_format: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Significands and exponents of scale codes.

    Args:
        codes: uint8 codes.
        scale_format: "ue8m0", or "ue4m3": the magnitude of E4M3, whose subnormals keep the exponent -6.
    """
    if scale_format == "ue8m0":
        values, least = decode(codes, E8M0).astype(np.float64), E8M0.min_exponent
    else:
        values, least = decode(codes & np.uint8(0x7F), E4M3).astype(np.float64), E4M3.min_exponent
    exponent = np.maximum(np.frexp(np.where(values > 0, values, 1.0))[1] - 1, least).astype(np.int64)
    return np.ldexp(values, -exponent), exponent


def fp4_step(
    a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32] | None, a_scale: NDArray[np.uint8],
    b_scale: NDArray[np.uint8], scale_format: str,
) -> NDArray[np.float32]:  # fmt: skip
    """C plus the scaled products of one instruction.

    Args:
        a: (M, 64) values of E2M1 elements.
        b: (N, 64), likewise.
        c: (M, N) float32 accumulator, or None for zeros.
        a_scale: (M, 2) or (M, 4) codes of the scales of 32 or 16 elements each.
        b_scale: (N, 2) or (N, 4), likewise.
        scale_format: "ue8m0" or "ue4m3".

    Returns:
        (M, N) float32.

    Raises:
        ValueError: shapes that do not fit, or an unknown scale format.
    """
    if scale_format not in ("ue8m0", "ue4m3"):
        raise ValueError(f"scale_format = {scale_format!r}; allowed: ue8m0, ue4m3")
    for name, x, scale in (("a", a, a_scale), ("b", b, b_scale)):
        if x.ndim != 2 or x.shape[1] != FP4_K or scale.shape not in ((x.shape[0], 2), (x.shape[0], 4)):
            raise ValueError(
                f"{name} {x.shape} with scales {scale.shape}; allowed: (rows, 64) with (rows, 2) or (rows, 4)"
            )
    start = np.zeros((a.shape[0], b.shape[0]), np.float32) if c is None else c
    terms, exponents = _groups(a, b, *scale_parts(a_scale, scale_format), *scale_parts(b_scale, scale_format))
    special = ~np.isfinite(terms).all(axis=0) | ~np.isfinite(start)
    total = _fused_sum(
        np.where(np.isfinite(terms), terms, 0.0), exponents, np.where(np.isfinite(start), start, 0.0).astype(np.float64)
    )
    result = round_toward_zero(total)
    if special.any():
        with np.errstate(invalid="ignore", over="ignore"):
            ieee = (start.astype(np.float64) + terms.sum(axis=0)).astype(np.float32)
        ieee.view(np.uint32)[np.isnan(ieee)] = _NAN_BITS
        result[special] = ieee[special]
    return result


def _groups(
    a: NDArray[np.float32], b: NDArray[np.float32], a_significand: NDArray[np.float64], a_exponent: NDArray[np.int64],
    b_significand: NDArray[np.float64], b_exponent: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:  # fmt: skip
    """(4, M, N) sums of groups times scale significands, exact; and the exponents they count with."""
    count = FP4_K // FP4_GROUP
    terms = np.empty((count, a.shape[0], b.shape[0]))
    exponents = np.empty(terms.shape, np.int64)
    for g in range(count):
        part = slice(g * FP4_GROUP, (g + 1) * FP4_GROUP)
        left, right = g * a_exponent.shape[1] // count, g * b_exponent.shape[1] // count
        terms[g] = a[:, part].astype(np.float64) @ b[:, part].astype(np.float64).T
        with np.errstate(invalid="ignore"):
            terms[g] *= a_significand[:, left, None] * b_significand[None, :, right]
        exponents[g] = a_exponent[:, left, None] + b_exponent[None, :, right]
    return terms, exponents


def _fused_sum(terms: NDArray[np.float64], exponents: NDArray[np.int64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """Terms and C truncated 35 bits below the largest exponent, and added; fits float64 exactly."""
    counted = np.where(terms == 0, C_MIN_EXPONENT, exponents)
    c_exponent = np.maximum(np.frexp(np.where(c == 0, 1.0, c))[1].astype(np.int64) - 1, C_MIN_EXPONENT)
    largest = np.maximum(counted.max(axis=0), np.where(c == 0, C_MIN_EXPONENT, c_exponent))
    total = np.trunc(np.ldexp(c, FP4_FRACTION_BITS - largest))
    for term, exponent in zip(terms, exponents, strict=True):
        total += np.trunc(np.ldexp(term, exponent - largest + FP4_FRACTION_BITS))
    return np.ldexp(total, largest - FP4_FRACTION_BITS) + 0.0
