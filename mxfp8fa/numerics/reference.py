"""Exact attention, forward and backward, in float64: what every MXFP8 result is graded against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.problem import AttentionProblem, Sequence, as_float_array, make_problem

Float64 = NDArray[np.float64]

# Query rows handled at once: at 16,384 keys one float64 score block is 32 MiB, so a head stays far below 1 GB.
ROW_BLOCK = 256


def attention_reference(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
) -> tuple[Float64, Float64]:
    """O = softmax(softmax_scale * Q K^T) V and its log-sum-exp, in float64.

    Args:
        q: (B, Sq, Hq, D), or (Tq, Hq, D) with cu_seqlens; float16, bfloat16, float32 or float64.
        k: (B, Sk, Hkv, D) or (Tk, Hkv, D); Hkv divides Hq.
        v: the shape of k.
        softmax_scale: finite and above 0; 1 / sqrt(D) if None.
        causal: query i sees key j when j <= i + Sk - Sq (bottom-right aligned).
        cu_seqlens_q: (B + 1,) token offsets of jagged sequences, zero-length ones included.
        cu_seqlens_k: the same for the keys.

    Returns:
        O, the shape of q, and lse, (B, Hq, Sq) or (Hq, Tq), natural log. A query that sees no key has O = 0 and
        lse = -inf. A NaN in K or V reaches every query that may see it, and may reach others (0 * NaN).

    Raises:
        ValueError: shapes, dtypes, offsets or softmax_scale that are not allowed.
    """
    problem, (q64, k64, v64) = _prepare(q, k, v, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k)
    o = np.zeros_like(q64)
    lse = np.full((problem.num_heads_q, len(q64)), -np.inf)
    with np.errstate(all="ignore"):
        for block in _row_blocks(problem):
            s = _scores(problem, block, q64, k64)  # (rows, keys)
            p, lse[block.head, block.rows] = _softmax(s)
            o[block.rows, block.head] = p @ v64[block.keys, block.kv_head]
    return problem.unflatten(o, "q"), problem.unflatten_lse(lse)


def attention_reference_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dO: ArrayLike,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
) -> tuple[Float64, Float64, Float64]:
    """Gradients of sum(O * dO) with respect to Q, K and V, in float64.

    Args:
        q: as in `attention_reference`.
        k: as in `attention_reference`.
        v: as in `attention_reference`.
        dO: the shape of q.
        softmax_scale: as in `attention_reference`.
        causal: as in `attention_reference`.
        cu_seqlens_q: as in `attention_reference`.
        cu_seqlens_k: as in `attention_reference`.

    Returns:
        dQ, dK, dV with the shapes of q, k, v. Queries that see no key contribute nothing.

    Raises:
        ValueError: as `attention_reference`, and dO of another shape than q.
    """
    problem, (q64, k64, v64) = _prepare(q, k, v, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k)
    do = as_float_array(dO, "dO", allow_float64=True)
    if do.shape != np.shape(q):
        raise ValueError(f"dO has shape {do.shape} and q {np.shape(q)}; they must be equal")
    do64 = do.reshape(q64.shape).astype(np.float64)
    dq, dk, dv = (np.zeros_like(x) for x in (q64, k64, v64))
    with np.errstate(all="ignore"):
        for block in _row_blocks(problem):
            rows, keys, head, kv_head = block.rows, block.keys, block.head, block.kv_head
            p, _ = _softmax(_scores(problem, block, q64, k64))  # (rows, keys)
            do_rows = do64[rows, head]  # (rows, D)
            dv[keys, kv_head] += p.T @ do_rows
            dp = do_rows @ v64[keys, kv_head].T  # (rows, keys)
            delta = (p * dp).sum(axis=1, keepdims=True)  # = rowsum(dO * O)
            ds = problem.softmax_scale * p * (dp - delta)
            dq[rows, head] = ds @ k64[keys, kv_head]
            dk[keys, kv_head] += ds.T @ q64[rows, head]
    return problem.unflatten(dq, "q"), problem.unflatten(dk, "k"), problem.unflatten(dv, "k")


@dataclass(frozen=True)
class _RowBlock:
    """Some query rows of one head, and the keys at least one of them sees."""

    sequence: Sequence
    queries: range  # within the sequence
    rows: slice  # the same in the flattened token axis
    keys: slice
    head: int
    kv_head: int


def _row_blocks(problem: AttentionProblem) -> list[_RowBlock]:
    blocks = []
    for sequence in problem.sequences():
        for start in range(0, sequence.seqlen_q, ROW_BLOCK):
            queries = range(start, min(start + ROW_BLOCK, sequence.seqlen_q))
            seen = sequence.keys_seen(queries.stop - 1)
            if seen == 0:
                continue
            rows = slice(sequence.q_start + queries.start, sequence.q_start + queries.stop)
            keys = slice(sequence.k_start, sequence.k_start + seen)
            for head in range(problem.num_heads_q):
                blocks.append(_RowBlock(sequence, queries, rows, keys, head, head // problem.group_size))
    return blocks


def _prepare(
    q: Any, k: Any, v: Any, softmax_scale: float | None, causal: bool, cu_seqlens_q: Any, cu_seqlens_k: Any
) -> tuple[AttentionProblem, list[Float64]]:
    arrays = [as_float_array(x, name, allow_float64=True) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    problem = make_problem(
        *(x.shape for x in arrays),
        softmax_scale=softmax_scale,
        causal=causal,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )
    return problem, [x.astype(np.float64).reshape(-1, *x.shape[-2:]) for x in arrays]


def _scores(problem: AttentionProblem, block: _RowBlock, q: Float64, k: Float64) -> Float64:
    """softmax_scale * Q K^T of one row block, -inf where a query does not see a key."""
    s = problem.softmax_scale * (q[block.rows, block.head] @ k[block.keys, block.kv_head].T)
    keys = range(s.shape[1])
    if block.sequence.needs_mask(block.queries, keys):
        s[~block.sequence.visible(block.queries, keys)] = -np.inf
    return s


def _softmax(s: Float64) -> tuple[Float64, Float64]:
    """Rows of exp(s) divided by their sums (0 where a row is all -inf), and the natural log of the sums."""
    row_max = s.max(axis=1, keepdims=True)
    row_max = np.where(row_max == -np.inf, 0.0, row_max)
    p = np.exp(s - row_max)
    row_sum = p.sum(axis=1, keepdims=True)
    lse = (row_max + np.log(row_sum))[:, 0]
    return p / np.where(row_sum == 0, 1.0, row_sum), lse
