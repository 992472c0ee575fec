"""Ways to keep training with MXFP8 attention stable: each is one option, with its source and what it does to the signal.

What each did to a model in training comes from the runs of `mxfp8fa train-demo --task module`, by the same names; there are
`bf16_head` too, a key head in higher precision (`MXAttention(bf16_heads=...)`), and `dq16_raw`, FP16 sums of dQ without a scale.

Where they come from:

    SageAttention3 and SageBwd (arXiv 2505.11594 and what followed it) train with 8-bit attention: dS is what errors hurt
    most, one product (dO V^T) stays in 16 bits, centring K is needed, centring Q is not, QK-norm tames outliers, and noise of
    rounding hides behind that of the gradient as long as a step has few tokens (equal at 260 thousand tokens a step, behind
    at 2.1 million).
    "Why low-precision transformer training fails" (arXiv 2510.04212): rounding that is biased the same way step after step,
    along similar low-rank directions, adds up until the loss explodes; there in BF16 with rows whose P is 1 several times.
    "Recipes for pre-training LLMs with MXFP8" (arXiv 2506.08027): scales rounded up, E4M3 for gradients too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from mxfp8fa.numerics.inputs import synthetic_llm
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.sqnr import sqnr_db
from mxfp8fa.studies.attention import TENSORS, Case, standard_case
from mxfp8fa.studies.choices import leak
from mxfp8fa.studies.training import ATTENTIONS, CONTROLS, compare, gradient_signal, shipped_runs, with_error


@dataclass(frozen=True)
class Remedy:
    """One option away from the defaults.

    Attributes:
        name: as in `train-demo --attention` where it was trained with.
        about: what it does and why.
        options: all of them.
    """

    name: str
    about: str
    options: AttentionOptions


REMEDIES = (
    Remedy("defaults", "RCEIL, P at 2^8, exact exponential, delta from dequantized dO", AttentionOptions()),
    Remedy("k_mean", "K less its mean over the tokens, which the softmax does not see", AttentionOptions(k_mean=True)),
    Remedy("rounded", "rows divided by the sum of what was multiplied: no common bias", AttentionOptions(row_sum="rounded")),
    Remedy(
        "direct", "codes of P straight from the scores, their own sum", AttentionOptions(exp="direct", row_sum="rounded")
    ),
    Remedy("delta", "delta from dO before quantization: rows of dS do not sum to 0", AttentionOptions(delta="unquantized_dO")),
    Remedy("sum_P_dP", "delta as the sum of P dP: a pass more, rows sum to 0", AttentionOptions(delta="sum_P_dP")),
    Remedy(
        "dq16", "dQ added up in FP16 under a scale that cannot overflow",
        AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto"),
    ),
    Remedy("square", "square blocks also under a causal mask: leak", AttentionOptions(qk_blocks="square", v_blocks="square")),
    Remedy("1x32", "1x32 blocks everywhere", AttentionOptions(
        qk_blocks="1x32", do_blocks="1x32", grad_qk_blocks="1x32", grad_v_blocks="1x32")),
    Remedy(
        "coarse", "a control made to be bad: floor, P unscaled, delta from unquantized dO",
        AttentionOptions(rule="floor", p_offset=0, delta="unquantized_dO"),
    ),
)  # fmt: skip
COPYING = "copying-d64-causal"
CASES = ("gaussian-d64-causal", "llm-d128-causal", "minilm-layer0", COPYING)


@cache
def copying(seed: int = 0) -> Case:
    """Attention that copies: every query is 1.4 times the key of one token before it, plus noise; 256 tokens, causal.

    Nearly all of P lies on that key, where dS = P (dP - delta) is the small difference of two large numbers.
    """
    inputs = synthetic_llm(seqlen_q=256, head_dim=64, seed=seed)
    rng = np.random.default_rng(seed + 1)
    k = rng.standard_normal(inputs.k.shape, np.float32)
    found = rng.integers(0, np.arange(1, 257))
    q = np.float32(1.4) * k[:, found] + np.float32(0.7) * rng.standard_normal(k.shape, np.float32)
    return Case(replace(inputs, name=COPYING, q=q, k=k, origin="synthetic: each query finds one key"), causal=True)


def ablation(case: str) -> dict[str, dict[str, float]]:
    """SQNR in dB of O, dQ, dK and dV against float64, by remedy, on a configuration of `mxfp8fa sqnr` or on `copying`.

    Raises:
        KeyError: no configuration has that name.
    """
    problem = copying() if case == COPYING else standard_case(case)
    return {remedy.name: {entry.tensor: entry.db for entry in problem.sqnr(remedy.options)} for remedy in REMEDIES}


def in_training() -> list[tuple[str, str, str, str]]:
    """What each option did to a decoder in training (measured, as it ships): its words, the validation and the training loss at
    the end less BF16's in nats per byte, and the SQNR of Q's gradient in dB.
    """
    runs = shipped_runs("module")
    return [
        (ATTENTIONS[each.attention], with_error(each.differences), with_error(each.training), f"{signal:.1f}")
        for each in compare(runs)
        if each.attention not in CONTROLS
        for signal in [gradient_signal(runs, each.attention)["q_proj"]]
    ]


def leaks() -> dict[str, float]:
    """How much of earlier rows of O a later token's outlier changes through shared scales, causal, by remedy: see
    `choices.leak`; 0 is what a causal mask promises.
    """
    return {remedy.name: leak(remedy.options) for remedy in REMEDIES}


DQ_SCALES: dict[str, int | Literal["auto"]] = {"none": 0, "2^12, the default": 12, "auto": "auto"}
DO_SIZES_LOG2 = (8, 0, -8, -16, -24)


def dq_scales(case: str = "gaussian-d64-causal") -> dict[str, dict[int, float | None]]:
    """SQNR in dB of dQ added up in FP16, by scale and by log2 of a factor on dO; None where the sum overflows."""
    problem = standard_case(case)
    found: dict[str, dict[int, float | None]] = {}
    for name, scale in DQ_SCALES.items():
        options = AttentionOptions(dq_accumulate="float16", dq_scale_log2=scale)
        found[name] = {size: _dq_sqnr(problem, options, 2.0**size) for size in DO_SIZES_LOG2}
    return found


def _dq_sqnr(problem: Case, options: AttentionOptions, size: float) -> float | None:
    """With dO times a power of two, by which the exact dQ grows too."""
    smaller = replace(problem, inputs=replace(problem.inputs, do=problem.inputs.do * np.float32(size)))
    with np.errstate(over="ignore", invalid="ignore"):
        dq = smaller.mxfp8(options)["dQ"].astype(np.float64)
    return sqnr_db(dq / size, problem.reference["dQ"]) if np.isfinite(dq).all() else None


def lines(case: str) -> list[tuple[str, ...]]:
    """The table: remedy, what the defaults have or how far from them it is, what it is."""
    found = ablation(case)
    base = found["defaults"]
    return [
        (
            remedy.name,
            *(f"{found[remedy.name][t]:.2f}" if i == 0 else f"{found[remedy.name][t] - base[t]:+.2f}" for t in TENSORS),
            remedy.about,
        )
        for i, remedy in enumerate(REMEDIES)
    ]
