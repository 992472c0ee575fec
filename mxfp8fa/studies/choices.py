"""Choices inside MXFP8 attention and what each costs: length, the scale of P, exact or direct codes, causal leaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import decode, encode, quantize
from mxfp8fa.numerics.forward import attention_mxfp8
from mxfp8fa.numerics.inputs import AttentionInputs, synthetic_llm
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.softmax import direct_codes
from mxfp8fa.studies.attention import TENSORS, Case


@dataclass(frozen=True)
class Sweep:
    """SQNR along one parameter.

    Attributes:
        x: (N,) the parameter.
        db: curve name -> (N,) SQNR in dB.
        parameters: in words, for captions.
    """

    x: NDArray[np.float64]
    db: Mapping[str, NDArray[np.float64]]
    parameters: str


def sqnr_by_length(
    lengths: Sequence[int] = (128, 256, 512, 1024, 2048, 4096, 8192), *, logit_std: float = 1.0, seed: int = 0
) -> Sweep:
    """SQNR of O, dQ, dK and dV by number of keys; 256 queries, one head, head_dim 128, not causal."""
    columns: dict[str, list[float]] = {tensor: [] for tensor in TENSORS}
    for length in lengths:
        inputs = synthetic_llm(seqlen_q=256, seqlen_k=length, num_heads_q=1, logit_std=logit_std, seed=seed)
        for entry in Case(inputs).sqnr(AttentionOptions()):
            columns[entry.tensor].append(entry.db)
    parameters = "Gaussian, head_dim 128, 256 queries, one head, not causal, default options"
    return Sweep(np.array(lengths, np.float64), {t: np.array(db) for t, db in columns.items()}, parameters)


@dataclass(frozen=True)
class ScaleOfP:
    """SQNR by the constant scale of P.

    Attributes:
        offset_log2: (N,) log2 of the factor on stored P.
        db: tensor -> (N,) SQNR in dB.
        dynamic_db: tensor -> SQNR in dB with one scale per 32 of P, taken from block maxima of S.
        parameters: in words, for captions.
    """

    offset_log2: NDArray[np.int64]
    db: Mapping[str, NDArray[np.float64]]
    dynamic_db: Mapping[str, float]
    parameters: str


def scale_of_p(*, seqlen: int = 1024, logit_std: float = 1.0, seed: int = 0) -> ScaleOfP:
    """SQNR with P stored as 2^offset P and with dynamic scales; one head, head_dim 128."""
    case = Case(synthetic_llm(seqlen_q=seqlen, num_heads_q=1, logit_std=logit_std, seed=seed))
    offsets = (0, 1, 2, 3, 4, 6, 8)
    runs = [case.sqnr(AttentionOptions(p_offset=offset)) for offset in offsets]
    db = {t: np.array([run[i].db for run in runs]) for i, t in enumerate(TENSORS)}
    dynamic = {entry.tensor: entry.db for entry in case.sqnr(AttentionOptions(p_scale="dynamic"))}
    parameters = f"Gaussian, head_dim 128, {seqlen} tokens, one head, not causal; other options at their defaults"
    return ScaleOfP(np.array(offsets), db, dynamic, parameters)


@dataclass(frozen=True)
class CodesOfP:
    """E4M3 codes of P by exponential and rounding, and directly from the score.

    Attributes:
        log2_p: (N,) log2 P, from -10 to 0.
        codes: "exact" and "direct" -> (N,) codes of 2^8 P.
        relative_error: the same names -> (N,) stored P over P, less 1.
        sqnr: by logit standard deviation, one curve per way of making O, operands quantized as in the real case.
        p_only: the same with Q, K and V exactly representable, so that only P is approximate.
        parameters: in words, for captions.
    """

    log2_p: NDArray[np.float64]
    codes: Mapping[str, NDArray[np.uint8]]
    relative_error: Mapping[str, NDArray[np.float64]]
    sqnr: Sweep
    p_only: Sweep
    parameters: str


# Curve name -> options; the direct share is the part of the columns that skip the exponential.
WAYS_TO_P = {
    "exact, unrounded sum": AttentionOptions(),
    "exact, rounded sum": AttentionOptions(row_sum="rounded"),
    "half direct, rounded sum": AttentionOptions(exp="direct", row_sum="rounded", direct_share=0.5),
    "direct, rounded sum": AttentionOptions(exp="direct", row_sum="rounded"),
}


def codes_of_p(*, logit_stds: Sequence[float] = (1, 2, 4, 8), seqlen: int = 512, seed: int = 0) -> CodesOfP:
    """Both kinds of codes over ten binades of P, and the SQNR of O by logit std; one head, head_dim 128."""
    log2_p = np.linspace(-10.0, 0.0, 2001)
    bias = AttentionOptions().direct_bias
    codes = {
        "exact": encode(np.exp2(log2_p + 8), "e4m3"),
        "direct": direct_codes((8 * (log2_p + 8 + 7 + bias)).astype(np.float32)),
    }
    error = {way: decode(code, "e4m3") / np.exp2(log2_p + 8) - 1 for way, code in codes.items()}
    real, p_only = ([_ways(logit_std, seqlen, seed, exact) for logit_std in logit_stds] for exact in (False, True))
    x = np.asarray(logit_stds, np.float64)
    about = f"Gaussian, head_dim 128, {seqlen} tokens, one head, not causal"
    sqnr, only = (Sweep(x, _columns(rows), about) for rows in (real, p_only))
    parameters = f"direct code = round(8 (log2 P + 15 + c)), c = {bias:g}; {about}"
    return CodesOfP(log2_p, codes, error, sqnr, only, parameters)


def _ways(logit_std: float, seqlen: int, seed: int, representable: bool) -> dict[str, float]:
    """SQNR of O for each way to P."""
    inputs = synthetic_llm(seqlen_q=seqlen, num_heads_q=1, logit_std=logit_std, seed=seed)
    case = Case(as_representable(inputs) if representable else inputs)
    return {way: case.forward_sqnr(options) for way, options in WAYS_TO_P.items()}


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def as_representable(inputs: AttentionInputs) -> AttentionInputs:
    """The inputs rounded to MXFP8 in the forward's blocks, so that the forward's own quantization changes nothing."""
    q, k = (quantize(x, axes=(1, 3)).dequantize() for x in (inputs.q, inputs.k))
    return replace(inputs, q=q, k=k, v=quantize(inputs.v, axes=1).dequantize())


@dataclass(frozen=True)
class Leak:
    """How much earlier rows of O change when the last token of a 32-token block becomes an outlier, causal mask on.

    Attributes:
        gain: (N,) factor on token 31.
        change: what was multiplied, and its blocks -> (N,) largest change of O over rows 0 to 30, relative to the
            largest element of O there. Zero is what a causal mask promises.
        parameters: in words, for captions.
    """

    gain: NDArray[np.float64]
    change: Mapping[str, NDArray[np.float64]]
    parameters: str


LEAK_WAYS = {
    "V, 1x32 along keys": ("v", AttentionOptions()),
    "K, square": ("k", AttentionOptions(qk_blocks="square")),
    "Q, square": ("q", AttentionOptions(qk_blocks="square")),
    "K, 1x32 along d": ("k", AttentionOptions(qk_blocks="1x32")),
    "Q, 1x32 along d": ("q", AttentionOptions(qk_blocks="1x32")),
}


LEAK_GAINS = [2.0**n for n in range(17)]


def causal_leak(gains: Sequence[float] = LEAK_GAINS, *, seed: int = 0) -> Leak:
    """Multiply token 31 of Q, K or V of a 64-token causal head by each gain and compare rows 0 to 30 of O."""
    inputs = synthetic_llm(seqlen_q=64, num_heads_q=1, seed=seed)
    change: dict[str, list[float]] = {}
    for way, (name, options) in LEAK_WAYS.items():
        before = _early_rows(inputs, options)
        change[way] = [_leaked(inputs, name, gain, before, options) for gain in gains]
    parameters = "causal, Gaussian, head_dim 128, 64 tokens, rule rceil; relative to the largest element of these rows"
    return Leak(np.asarray(gains, np.float64), {way: np.array(v) for way, v in change.items()}, parameters)


def leak(options: AttentionOptions, gain: float = 2.0**8, *, seed: int = 0) -> float:
    """The largest change of `causal_leak` when token 31 of Q, of K or of V is multiplied by the gain."""
    inputs = synthetic_llm(seqlen_q=64, num_heads_q=1, seed=seed)
    before = _early_rows(inputs, options)
    return max(_leaked(inputs, name, gain, before, options) for name in "qkv")


def _leaked(
    inputs: AttentionInputs, name: str, gain: float, before: NDArray[np.float32], options: AttentionOptions
) -> float:
    """Change of rows 0 to 30 when token 31 of one operand is multiplied by the gain."""
    x = getattr(inputs, name).copy()
    x[:, 31] *= np.float32(gain)
    after = _early_rows(replace(inputs, **{name: x}), options)
    return float(np.abs(after - before).max() / np.abs(before).max())


def _early_rows(inputs: AttentionInputs, options: AttentionOptions) -> NDArray[np.float32]:
    """O of tokens 0 to 30, which no causal attention lets token 31 touch."""
    return attention_mxfp8(inputs.q, inputs.k, inputs.v, causal=True, options=options)[0][:, :31]
