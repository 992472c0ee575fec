"""Ways to P and what each costs in accuracy: exact, by polynomial, direct, with dynamic scales, with rounded sums.

SQNR, bias and worst row by logit standard deviation, by length and on real tensors, forward and backward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import MXTensor, decode, encode, quantize
from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.inputs import AttentionInputs, load_real, synthetic_llm
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.softmax import exp2_ftz, softmax_scale_log2
from mxfp8fa.numerics.sqnr import sqnr_db, worst_row_sqnr_db
from mxfp8fa.studies.attention import TENSORS, Case
from mxfp8fa.studies.choices import as_representable

SHIPPED = "exponential_accuracy.json"
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def _direct(share: float, **more: str) -> AttentionOptions:
    return AttentionOptions(exp="direct", row_sum="rounded", direct_share=share, **more)  # type: ignore[arg-type]


WAYS: dict[str, AttentionOptions] = {
    "exact": AttentionOptions(),
    "exact, rounded sum": AttentionOptions(row_sum="rounded"),
    "exact, dynamic scale": AttentionOptions(p_scale="dynamic"),
    "25 % polynomial": AttentionOptions(exp2=0.25),
    "25 % direct": _direct(0.25),
    "50 % direct": _direct(0.5),
    "direct": _direct(1.0),
    "direct, float16 sum": _direct(1.0, sum_format="float16"),
}


@dataclass(frozen=True)
class Accuracy:
    """One way on one case.

    Attributes:
        way: a key of `WAYS`.
        case: what it ran on, in words.
        db: tensor -> SQNR in dB, O, dQ, dK, dV; O alone where the backward did not run.
        worst_row_db: SQNR of the worst row of O.
        bias: how much longer O is than the exact one along the exact one, <O, O_exact> / <O_exact, O_exact> - 1.
    """

    way: str
    case: str
    db: Mapping[str, float]
    worst_row_db: float
    bias: float


def accuracy(way: str, case: Case, about: str, *, backward: bool = True) -> Accuracy:
    """Run one way, forward and, if wanted, backward with the same options."""
    found = case.mxfp8(WAYS[way]) if backward else {"O": case.forward(WAYS[way])}
    db = {tensor: sqnr_db(found[tensor], case.reference[tensor]) for tensor in TENSORS if tensor in found}
    o, exact = (x.astype(np.float64) for x in (found["O"], case.reference["O"]))
    return Accuracy(way, about, db, worst_row_sqnr_db(o, exact)[0], float((o * exact).sum() / (exact * exact).sum() - 1))


def by_logit_std(
    stds: Sequence[float] = (1, 2, 4, 8), *, seqlen: int = 512, seed: int = 0
) -> dict[float, list[Accuracy]]:
    """Every way on Gaussian tensors by standard deviation of the logits; head_dim 128, one head, half as many queries."""
    found = {}
    for std in stds:
        case = Case(synthetic_llm(seqlen_q=seqlen // 2, seqlen_k=seqlen, num_heads_q=1, logit_std=std, seed=seed))
        found[std] = [accuracy(way, case, f"logit std {std:g}") for way in WAYS]
    return found


def p_alone(
    stds: Sequence[float] = (1, 2, 4, 8), *, v_mean: float = 1.0, seqlen: int = 512, seed: int = 0
) -> dict[float, list[Accuracy]]:
    """The forward with Q, K and V exactly representable, so that P is all that is approximate; V has a mean."""
    found = {}
    for std in stds:
        shape = {"seqlen_q": seqlen // 2, "seqlen_k": seqlen, "num_heads_q": 1}
        inputs = as_representable(synthetic_llm(**shape, logit_std=std, v_mean=v_mean, seed=seed))
        found[std] = [accuracy(way, Case(inputs), f"logit std {std:g}", backward=False) for way in WAYS]
    return found


def by_length(
    lengths: Sequence[int] = (256, 1024, 4096, 16384), *, logit_std: float = 2.0, seed: int = 0
) -> dict[int, list[Accuracy]]:
    """Every way by number of keys, 32 queries."""
    found = {}
    for length in lengths:
        case = Case(synthetic_llm(seqlen_q=32, seqlen_k=length, num_heads_q=1, logit_std=logit_std, seed=seed))
        found[length] = [accuracy(way, case, f"{length} keys") for way in WAYS]
    return found


def on_real_tensors(queries: int = 128) -> dict[str, list[Accuracy]]:
    """Every way on two layers of all-MiniLM-L6-v2: their first queries, all 512 keys."""
    found = {}
    for name, x in load_real().items():
        case = Case(replace(x, q=x.q[:, :queries], do=x.do[:, :queries]))
        found[name] = [accuracy(way, case, name) for way in WAYS]
    return found


GROUPS = ("by logit std", "P alone", "by length", "real tensors")


def measure_groups() -> dict[str, list[Accuracy]]:
    """Everything above in one list per group; minutes."""
    made = (by_logit_std().values(), p_alone().values(), by_length().values(), on_real_tensors().values())
    return {name: [a for case in cases for a in case] for name, cases in zip(GROUPS, made, strict=True)}


def shipped_groups() -> dict[str, list[Accuracy]]:
    """What `mxfp8fa exponential accuracy --json` printed, from the package."""
    text = (resources.files("mxfp8fa.studies") / "data" / SHIPPED).read_text()
    return {name: [Accuracy(**record) for record in records] for name, records in json.loads(text).items()}


@dataclass(frozen=True)
class Degree:
    """exp2 by a polynomial of one degree on [0, 1), before P is rounded to E4M3.

    Attributes:
        degree: of the polynomial.
        largest_error: largest relative error of the polynomial.
        codes_changed: share of the codes of P that differ from those by exact exp2.
        db: SQNR of O in dB with MXFP8 operands.
        p_only_db: the same with Q, K and V exactly representable.
    """

    degree: int
    largest_error: float
    codes_changed: float
    db: float
    p_only_db: float


@cache
def coefficients(degree: int) -> tuple[float, ...]:
    """Of 2^f on [0, 1], lowest power first, float32 numbers: least largest relative error, by Remez' exchange.

    The relative error e(f) = p(f) / 2^f - 1 of the best polynomial has degree + 2 extrema of one size and alternating
    sign; every round solves for that on the points of the round before and moves them to the extrema of what it got.
    """
    grid = np.linspace(0, 1, 20_001)
    points = (1 - np.cos(np.pi * np.arange(degree + 2) / (degree + 1))) / 2
    signs = (-1.0) ** np.arange(degree + 2)
    c: NDArray = np.zeros(degree + 1)
    for _ in range(12):
        matrix = np.column_stack([points[:, None] ** np.arange(degree + 1) / np.exp2(points)[:, None], signs])
        c = np.linalg.solve(matrix, np.ones(degree + 2))[:-1]
        error = np.polynomial.polynomial.polyval(grid, c) / np.exp2(grid) - 1
        edges = np.flatnonzero(np.diff(np.sign(error))) + 1
        pieces = np.split(np.arange(len(grid)), edges)
        points = np.array([grid[piece[np.argmax(np.abs(error[piece]))]] for piece in pieces])
        if len(points) != degree + 2:
            raise ArithmeticError(f"degree {degree}: {len(points)} extrema instead of {degree + 2}")
    return tuple(float(np.float32(x)) for x in c)


def exp2_polynomial(x: Float32, degree: int) -> Float32:
    """2^x for x <= 0 or little above, as kernels emulate it: 2^floor(x) by exponent bits, the fraction by Horner's fma."""
    low = np.maximum(x, np.float32(-127))
    whole = np.floor(low)
    fraction = low - whole
    c = coefficients(degree)
    p = np.full_like(fraction, c[-1])
    for coefficient in c[-2::-1]:
        p = fma(p, fraction, np.float32(coefficient))
    return np.ldexp(p, whole.astype(np.int32)).astype(np.float32)


def polynomial_degrees(
    degrees: Sequence[int] = (1, 2, 3, 4), *, logit_std: float = 2.0, seqlen: int = 512, seed: int = 0
) -> tuple[list[Degree], Degree]:
    """Polynomials by degree, and exact exp2 as degree 0; rows divided by the sum of unrounded P."""
    inputs = synthetic_llm(seqlen_q=seqlen, num_heads_q=1, logit_std=logit_std, seed=seed)
    exact = _degree(inputs, 0)
    return [_degree(inputs, degree) for degree in degrees], exact


def _degree(inputs: AttentionInputs, degree: int) -> Degree:
    """One degree; 0 is the exact exp2."""
    q, k, v = (x[0, :, 0] for x in (inputs.q, inputs.k, inputs.v))
    stored = [quantize(q, axes=1), quantize(k, axes=1), quantize(v, axes=0)]
    x = _exponents(stored[0], stored[1], inputs.softmax_scale)  # log2 of 2^8 P
    largest = 0.0
    if degree:
        grid = np.linspace(-1, 0, 100_001, dtype=np.float32)[:-1]
        largest = float(np.abs(exp2_polynomial(grid, degree) / np.exp2(grid.astype(np.float64)) - 1).max())
    p = exp2_polynomial(x, degree) if degree else exp2_ftz(x)
    codes = encode(p, "e4m3")
    changed = float(np.mean(codes != encode(exp2_ftz(x), "e4m3")))
    q_values, k_values, v_values = (t.dequantize(np.float64) for t in stored)
    o = decode(codes, "e4m3").astype(np.float64) @ v_values / p.sum(axis=1, dtype=np.float64)[:, None]
    exact, p_alone = _attention(q, k, v, inputs), _attention(q_values, k_values, v_values, inputs)
    return Degree(degree, largest, changed, sqnr_db(o, exact), sqnr_db(o, p_alone))


def _exponents(q: MXTensor, k: MXTensor, softmax_scale: float) -> Float32:
    """log2 of 2^8 P, (Sq, Sk): from the row maximum, one fma a score."""
    s = (q.dequantize(np.float64) @ k.dequantize(np.float64).T).astype(np.float32)
    scale = softmax_scale_log2(softmax_scale)
    return fma(s, scale, fma(-s.max(axis=1, keepdims=True), scale, np.float32(8)))


def _attention(q: NDArray, k: NDArray, v: NDArray, inputs: AttentionInputs) -> Float64:
    s = inputs.softmax_scale * (q.astype(np.float64) @ k.astype(np.float64).T)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p @ v.astype(np.float64) / p.sum(axis=1, keepdims=True)
