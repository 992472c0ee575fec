"""Attention of one sequence in float64, forward and backward, with the errors a FlashAttention kernel may make.

Arrays are (tokens, heads, D) like the kernels' own; LSE is (heads, tokens). What a kernel does, and what each step may
cost (u: roundoff of the type that P, dS and the results are stored in; F32 = 2^-24):

    S = Q K^T          float32 sums of D products: D F32 |Q||K|^T; then scaled and the row's maximum subtracted: a few
                       roundings of numbers no larger than the row's largest |S|
    P = exp2(...)      EXP2 relative: flash-attn-4 and cuDNN evaluate part of the columns with a polynomial of degree 3
    P, dS stored       u relative; in E4M3 also half of the smallest step
    sums over tokens   float32: n F32 times the sum of magnitudes; one rescaling a tile; results stored with u

`bound` is the worst case; `rms` takes the roundings of P, dS and results as independent, u / sqrt(3) each at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from peer_check import BF16, F32, Expected


def polynomial_error(*coefficients: float) -> float:
    """Largest |p(x) / 2^x - 1| on [0, 1] of a polynomial, lowest power first."""
    x = np.linspace(0, 1, 10001)
    return float(np.abs(np.polynomial.Polynomial(coefficients)(x) / 2**x - 1).max())


EXP2 = polynomial_error(1, 0.695146143, 0.227564394, 0.077119090)  # 8.8e-5


@dataclass(frozen=True)
class Problem:
    """One sequence in float64: q (Sq, Hq, D), k (Sk, Hkv, D), v (Sk, Hkv, Dv), and which keys a row sees.

    Attributes:
        visible: (Sq, Sk) bool.
        scale: softmax_scale.
        p_roundoff: relative error of storing P and dS.
        p_floor: half of the smallest step of stored P, when the row's largest P is 1.
        roundoff: of storing the results.
        exp2: largest relative error of exp2.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    visible: np.ndarray
    scale: float
    p_roundoff: float = BF16
    p_floor: float = 0.0
    roundoff: float = BF16
    exp2: float = EXP2

    def per_head(self, x: np.ndarray) -> np.ndarray:
        """(tokens, H, D) as (Hq, tokens, D): a key head serves several query heads."""
        return np.repeat(x.transpose(1, 0, 2), self.q.shape[1] // x.shape[1], axis=0)

    def per_key_head(self, x: np.ndarray) -> np.ndarray:
        """(Hq, tokens, D) summed over the query heads of each key head, as (tokens, Hkv, D)."""
        heads = self.k.shape[1]
        return x.reshape(heads, -1, *x.shape[1:]).sum(axis=1).transpose(1, 0, 2)


def band(
    rows: int, columns: int, left: int | None = None, right: int | None = None, *, bottom: bool = True
) -> np.ndarray:
    """Keys from `left` before to `right` after the diagonal, which ends bottom right or starts top left."""
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None] - (columns - rows if bottom else 0)
    return (distance >= (-np.inf if left is None else -left)) & (distance <= (np.inf if right is None else right))


@dataclass(frozen=True)
class Softmax:
    """P (Hq, Sq, Sk), its relative error, the absolute one of storing it (Hq, Sq, 1), LSE (Hq, Sq)."""

    p: np.ndarray
    relative: np.ndarray
    floor: np.ndarray
    lse: np.ndarray


def softmax(problem: Problem) -> Softmax:
    """A row without keys has P = 0 and LSE = -inf."""
    q, k = problem.per_head(problem.q), problem.per_head(problem.k)
    s = np.where(problem.visible, problem.scale * q @ k.transpose(0, 2, 1), -np.inf)
    peak = np.nan_to_num(s.max(axis=-1, keepdims=True, initial=-np.inf), neginf=0.0)
    total = np.exp(s - peak).sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (peak + np.log(total))[..., 0]
    p = np.exp(s - peak) / np.where(total == 0, 1.0, total)
    magnitude = problem.scale * np.abs(q) @ np.abs(k).transpose(0, 2, 1)
    largest = np.abs(np.where(problem.visible, s, 0.0)).max(axis=-1, keepdims=True, initial=0.0)
    relative = q.shape[-1] * F32 * magnitude + 8 * F32 * largest + problem.exp2 + s.shape[-1] / 16 * F32
    return Softmax(p, relative, problem.p_floor / np.where(total == 0, np.inf, total), lse)


def root(variance: np.ndarray) -> float:
    """Root of the mean; 0 for nothing."""
    return float(np.sqrt(variance.mean())) if variance.size else 0.0


def forward(problem: Problem) -> dict[str, Expected]:
    """O (Sq, Hq, Dv) and LSE (Hq, Sq)."""
    x, v, u, up = softmax(problem), problem.per_head(problem.v), problem.roundoff, problem.p_roundoff
    o, keys = x.p @ v, x.p.shape[-1]
    total = (x.p * x.relative).sum(axis=-1)  # relative error of the sum of P
    bound = (x.p * (x.relative + up + keys * F32)) @ np.abs(v) + x.floor * np.abs(v).sum(axis=1, keepdims=True)
    bound += (total[..., None] + u + 16 * F32) * np.abs(o)
    variance = (x.p**2 * (up**2 / 3 + x.relative**2)) @ v**2 + x.floor**2 / 3 * (v**2).sum(axis=1, keepdims=True)
    variance += (total[..., None] ** 2 + u**2 / 3) * o**2
    size = 1 + np.abs(np.nan_to_num(x.lse, neginf=0.0)) + np.log2(keys + 1)
    return {
        "O": Expected(o.transpose(1, 0, 2), bound.transpose(1, 0, 2), root(variance)),
        "LSE": Expected(x.lse, total + (keys + 8 * size) * F32),
    }


@dataclass(frozen=True)
class BlockScaled:
    """What differs when a backward's operands are block-scaled: one quantised along D, another along the tokens.

    Attributes:
        q, k, do: the values quantised along the tokens, for dK, dQ and dV; the others are used in S and dP.
        exact_do: dO in 16 bits, for delta.
        p_floor: half of the smallest step of stored P.
        ds_floor: that of stored dS, for a largest |dS| of 1.
        delta_roundoff: of each product O * dO before it is added up.
    """

    q: np.ndarray
    k: np.ndarray
    do: np.ndarray
    exact_do: np.ndarray
    p_floor: float = 0.0
    ds_floor: float = 0.0
    delta_roundoff: float = 0.0


def backward(
    problem: Problem, o: np.ndarray, do: np.ndarray, lse_error: float, scaled: BlockScaled | None = None
) -> dict[str, Expected]:
    """dQ, dK, dV from the stored O.

    Args:
        problem: inputs.
        o: (Sq, Hq, Dv) as the forward stored it; its rounding enters delta = rowsum(dO * O).
        do: (Sq, Hq, Dv).
        lse_error: largest error of the forward's LSE.
        scaled: second operands of a block-scaled backward.
    """
    x, u, up = softmax(problem), problem.roundoff, problem.p_roundoff
    second = scaled or BlockScaled(problem.q, problem.k, do, do)
    v, o, do, q_t, k_t, do_t, exact = (
        problem.per_head(t) for t in (problem.v, o, do, second.q, second.k, second.do, second.exact_do)
    )
    relative, turned = x.relative + lse_error, (0, 2, 1)
    rows, keys = x.p.shape[-2:]
    dp, delta = do @ v.transpose(turned), (o * exact).sum(axis=-1, keepdims=True)
    ds = x.p * (dp - delta)
    delta_size = np.abs(o * exact).sum(axis=-1, keepdims=True)
    size = np.abs(do) @ np.abs(v).transpose(turned) + delta_size
    ds_error = x.p * ((v.shape[-1] + 4) * F32 * size + second.delta_roundoff * delta_size)
    ds_error += np.abs(ds) * (relative + 4 * F32)
    ds_floor = second.ds_floor * np.abs(ds).max(initial=0.0) * (ds != 0)
    ds_worst = ds_error + up * np.abs(ds) + ds_floor
    ds_variance = ds_error**2 + (up**2 * ds**2 + ds_floor**2) / 3
    p_floor = second.p_floor * (x.p != 0)
    p_worst, p_variance = x.p * (relative + up) + p_floor, x.p**2 * (relative**2 + up**2 / 3) + p_floor**2 / 3

    def product(left, worst, variance, right, terms, scale, gather):
        value = gather(scale * left @ right)
        bound = gather(scale * (worst + terms * F32 * np.abs(left)) @ np.abs(right)) + (u + 8 * F32) * np.abs(value)
        return Expected(value, bound, root(gather(scale**2 * variance @ right**2) + u**2 / 3 * value**2))

    by_key, scale = problem.per_key_head, problem.scale
    terms = rows * (v.shape[0] // problem.k.shape[1])
    return {
        "dQ": product(ds, ds_worst, ds_variance, k_t, keys, scale, lambda t: t.transpose(1, 0, 2)),
        "dK": product(*(t.transpose(turned) for t in (ds, ds_worst, ds_variance)), q_t, terms, scale, by_key),
        "dV": product(*(t.transpose(turned) for t in (x.p, p_worst, p_variance)), do_t, terms, 1.0, by_key),
    }


def stack(
    parts: list[dict[str, Expected]], axes: dict[str, int] | None = None, *, new_axis: bool
) -> dict[str, Expected]:
    """The results of several sequences: a batch (new first axis) or packed (axes says where tokens are)."""
    result = {}
    for name in parts[0]:
        axis = 0 if new_axis or axes is None else axes.get(name, 0)
        join = np.stack if new_axis else np.concatenate
        of = [part[name] for part in parts]
        sizes = [max(np.size(e.reference), 1e-9) for e in of]
        rms = None
        if all(e.rms is not None for e in of):
            rms = float(np.sqrt(sum(n * e.rms**2 for n, e in zip(sizes, of, strict=True)) / sum(sizes)))
        result[name] = Expected(
            join([e.reference for e in of], axis=axis), join([e.bound for e in of], axis=axis), rms, of[0].any_order
        )
    return result
