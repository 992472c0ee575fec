"""What one outlier does to the other 31 elements of its block, in floating-point and in integer elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import quantize
from mxfp8fa.numerics.sqnr import sqnr_db

INT8_MAX = 127


@dataclass(frozen=True)
class OutlierSweep:
    """SQNR of the ordinary elements of blocks with one outlier.

    Attributes:
        gain_log2: (N,) log2 of the outlier, in standard deviations of the other elements.
        db: element format -> (N,) SQNR in dB of the other 31 elements.
        parameters: in words, for captions.
    """

    gain_log2: NDArray[np.int64]
    db: Mapping[str, NDArray[np.float64]]
    parameters: str


def outlier_sweep(*, gains_log2: Sequence[int] = range(0, 23), blocks: int = 2048, seed: int = 0) -> OutlierSweep:
    """Standard normal blocks whose element 0 is 2^gain, quantized to E4M3, E5M2 and INT8 with a power-of-two scale."""
    x = np.random.default_rng(seed).standard_normal((blocks, 32)).astype(np.float32)
    db: dict[str, list[float]] = {"E4M3": [], "E5M2": [], "INT8": []}
    for gain in gains_log2:
        x[:, 0] = np.float32(2.0**gain)
        stored = {"E4M3": quantize(x).dequantize(), "E5M2": quantize(x, fmt="e5m2").dequantize(), "INT8": as_int8(x)}
        for name, values in stored.items():
            db[name].append(sqnr_db(values[:, 1:], x[:, 1:]))
    parameters = (
        f"{blocks} blocks of 32 standard normals, element 0 replaced; smallest power-of-two scale at which the block "
        "fits (rule rceil; for INT8 within -127 to 127)"
    )
    return OutlierSweep(np.array(gains_log2), {name: np.array(values) for name, values in db.items()}, parameters)


def as_int8(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rows as integers from -127 to 127 times the smallest power of two at which they fit."""
    amax = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    significand, exponent = np.frexp(amax / INT8_MAX)  # significand in [0.5, 1)
    scale = np.ldexp(1.0, exponent - (significand == 0.5))
    return np.rint(x / scale) * scale
