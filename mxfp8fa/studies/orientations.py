"""One matrix, contracted along either axis: what 1x32 blocks along each of them store, and what squares store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics import E8M0, MXTensor, quantize

# Way of blocking -> axes of a (tokens, D) matrix.
WAYS = {"1x32 along d": (1,), "1x32 along tokens": (0,), "square": (0, 1)}


@dataclass(frozen=True)
class Orientations:
    """A (tokens, D) matrix blocked in three ways.

    Attributes:
        tensors: way -> the quantized matrix.
        scale_log2: way -> (tokens, D) log2 of the scale that each element shares.
        parameters: in words, for captions.
    """

    tensors: Mapping[str, MXTensor]
    scale_log2: Mapping[str, NDArray[np.int64]]
    parameters: str

    def differing_codes(self) -> float:
        """Share of the elements whose codes differ between 1x32 along d and 1x32 along tokens."""
        along_d, along_tokens = (self.tensors[way].codes for way in ("1x32 along d", "1x32 along tokens"))
        return float(np.mean(along_d != along_tokens))


def orientations(values: ArrayLike, label: str) -> Orientations:
    """Quantize a matrix along d, along tokens and in squares.

    Args:
        values: (tokens, D) float32, both multiples of 32.
        label: what the matrix is, for captions.
    """
    matrix = np.asarray(values, np.float32)
    tensors = {way: quantize(matrix, axes=axes) for way, axes in WAYS.items()}
    log2 = {}
    for way, tensor in tensors.items():
        spread = tensor.scale_e8m0.astype(np.int64) - E8M0.bias
        for axis in tensor.axes:
            spread = spread.repeat(32, axis=axis)
        log2[way] = spread
    return Orientations(tensors, log2, f"{label}; E4M3, rule rceil")
