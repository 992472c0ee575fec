"""Quantization inside a kernel: exponent bits beside a logarithm, and what a constant scale costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import MXTensor, encode, quantize, scale_codes, sqnr_db
from mxfp8fa.numerics.inputs import synthetic_llm
from mxfp8fa.numerics.quantize import BLOCK

Float32 = NDArray[np.float32]
E4M3_MAX = np.float32(448)


def scale_by_logarithm(amax: Float32) -> NDArray[np.uint8]:
    """ceil(log2(amax / 448)) + 127 as a first attempt has it, every operation rounded to float32; amax positive, normal."""
    return (np.ceil(np.log2(amax / E4M3_MAX)) + np.float32(127)).clip(0, 254).astype(np.uint8)


def all_mantissas(exponent: int) -> Float32:
    """All float32 numbers from 2^exponent to just below 2^(exponent + 1)."""
    return ((exponent + 127 << 23) + np.arange(1 << 23, dtype=np.int32)).view(np.float32)


def disagreements(exponent: int) -> tuple[int, int]:
    """Of all float32 numbers with this exponent: for how many the logarithm gives another scale, and of these how many
    saturate under it.
    """
    amax = all_mantissas(exponent)
    wrong = scale_by_logarithm(amax) != scale_codes(amax)
    largest = amax[wrong] * np.exp2(127 - scale_by_logarithm(amax[wrong]).astype(np.float32))
    return int(wrong.sum()), int((largest > E4M3_MAX).sum())


@dataclass(frozen=True)
class ScaleSweep:
    """What one scale for all blocks does to some matrices, beside a scale per block.

    Attributes:
        codes: E8M0 codes of the constant scale.
        constant_db: name of the data -> SQNR that nine of ten blocks reach, under each of them.
        dynamic_db: name of the data -> the same with a scale per block, rule "rceil".
        parameters: in words, for captions.
    """

    codes: NDArray[np.int64]
    constant_db: Mapping[str, NDArray[np.float64]]
    dynamic_db: Mapping[str, float]
    parameters: str


def examples() -> dict[str, Float32]:
    """Two accumulators to quantize: scores whose blocks differ by powers of two, and the P of a softmax."""
    inputs = synthetic_llm(seqlen_q=128, num_heads_q=1, head_dim=128, logit_std=2.0)
    s = inputs.q[0, :, 0] @ inputs.k[0, :, 0].T * np.float32(inputs.softmax_scale)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    power = 2.0 ** (np.arange(128 * 4).reshape(128, 4) % 7 * 4 - 12)
    return {"scores": (s * power.repeat(BLOCK, axis=1)).astype(np.float32), "P": p.astype(np.float32)}


def constant_scale(x: Float32, code: int) -> MXTensor:
    """x under one scale, rounded to nearest and saturated."""
    with np.errstate(over="ignore"):
        codes = encode(x * np.float32(2.0 ** (127 - code)), "e4m3")
    return MXTensor(codes, np.full((len(x), x.shape[1] // BLOCK), code, np.uint8), axes=(1,))


def low_block_db(q: MXTensor, x: Float32) -> float:
    """SQNR in dB that nine of ten blocks reach; that of the whole matrix would only see its largest blocks."""
    error, signal = (
        np.square(a.astype(np.float64)).reshape(len(x), -1, BLOCK).sum(axis=2) for a in (q.dequantize() - x, x)
    )
    with np.errstate(divide="ignore"):
        return float(10 * np.quantile(np.log10(signal / np.maximum(error, 1e-300)), 0.1))


def scale_sweep(codes: range = range(104, 140)) -> ScaleSweep:
    """Both examples under every constant scale."""
    data = examples()
    constant = {
        name: np.array([low_block_db(constant_scale(x, code), x) for code in codes]) for name, x in data.items()
    }
    dynamic = {name: low_block_db(quantize(x), x) for name, x in data.items()}
    origin = "128 x 128 scores of synthetic_llm(logit_std=2), blocks times 2^-12 to 2^12, and their P"
    return ScaleSweep(np.arange(codes.start, codes.stop), constant, dynamic, origin)


def grades(x: Float32) -> dict[str, float]:
    """SQNR in dB of x quantized with a scale per block, by the way to that scale."""
    amax = np.abs(x).reshape(len(x), -1, BLOCK).max(axis=2)
    by_logarithm = scale_by_logarithm(amax)
    scaled = x * np.exp2(127 - by_logarithm.astype(np.float32)).repeat(BLOCK, axis=1)
    found = {
        f"bits, {rule}": sqnr_db(quantize(x, rule=rule).dequantize(), x) for rule in ("rceil", "ceil", "even", "floor")
    }
    return found | {"logarithm": sqnr_db(MXTensor(encode(scaled, "e4m3"), by_logarithm, axes=(1,)).dequantize(), x)}
