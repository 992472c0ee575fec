"""MXFP8 attention, backward: five block-scaled GEMMs, rounding where a Blackwell kernel rounds.

Read from the top: `attention_mxfp8_backward` checks and quantizes, `_differentiate_kv_head` gathers the operands of one
key head, `_differentiate_kv_tile` is the loop of one CTA: one key tile against all query tiles that see it. Scores are
held transposed (rows are keys), so that P^T and dS^T are the left operands of dV and dK as they stand:

    S^T  = K Q^T          from the payload that made lse
    P^T  = exp2(S^T * softmax_scale_log2 - lse * log2 e)                       -> E4M3 under the scale 2^-p_offset
    dP^T = V dO^T         V along d
    dV  += P^T dO
    dS^T = P^T * (dP^T - delta)                                                -> E4M3, one scale per 32x32 square
    dK  += dS^T Q
    dQ  += dS K           one tile per key tile, added up in a given order
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.backward_inputs import BackwardInputs, SecondPayloads, prepare_backward
from mxfp8fa.numerics.dq import DqAccumulator, TileOrder, check_order, dq_scale_log2
from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.formats import decode
from mxfp8fa.numerics.operands import (
    Blocks,
    Operand,
    accumulator_dtype,
    head_operand,
    multiply,
    padded_length,
    quantize_payload,
    unflatten_payload,
)
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import AttentionProblem, Sequence, Side
from mxfp8fa.numerics.quantize import BLOCK, MXTensor, quantize
from mxfp8fa.numerics.softmax import E8M0_BIAS, LOG2_E, probabilities, softmax_scale_log2

Float32 = NDArray[np.float32]
Gradient = NDArray[Any] | MXTensor


@dataclass(frozen=True)
class AttentionGradients:
    """dQ, dK and dV, which is also what unpacking gives.

    Attributes:
        dQ: the shape of q; an array, or an `MXTensor` if options.gradients asks for one.
        dK: the shape of k, likewise.
        dV: the shape of v, likewise.
        dq_overflow_count: elements of dQ whose float16 sum overflowed although every dQ tile was finite.
        dq_scale_log2: log2 of the factor under which dQ was summed; 0 with float32.
    """

    dQ: Gradient
    dK: Gradient
    dV: Gradient
    dq_overflow_count: int = 0
    dq_scale_log2: int = 0

    def __iter__(self) -> Any:
        return iter((self.dQ, self.dK, self.dV))


@dataclass(frozen=True)
class BackwardTile:
    """What one step of the query loop made, for `on_tile`; all transposed: rows are keys.

    Attributes:
        batch: number of the sequence.
        head: query head.
        q_tile: number of the query tile.
        kv_tile: number of the key tile.
        p_codes: (tile_n, tile_m) E4M3 codes of P^T.
        ds_codes: (tile_n, tile_m) E4M3 codes of dS^T.
        ds_scale_e8m0: (tile_n / 32, tile_m / 32), one per square.
        dq: (tile_m, D) this key tile's part of dQ / softmax_scale.
    """

    batch: int
    head: int
    q_tile: int
    kv_tile: int
    p_codes: NDArray[np.uint8]
    ds_codes: NDArray[np.uint8]
    ds_scale_e8m0: NDArray[np.uint8]
    dq: NDArray[Any]


def attention_mxfp8_backward(
    q: ArrayLike | MXTensor,
    k: ArrayLike | MXTensor,
    v: ArrayLike | MXTensor,
    dO: ArrayLike | MXTensor,
    O: ArrayLike,
    lse: ArrayLike,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    options: AttentionOptions | None = None,
    second: SecondPayloads | None = None,
    dq_tile_order: TileOrder | None = None,
    on_tile: Callable[[BackwardTile], None] | None = None,
) -> AttentionGradients:
    """Gradients of sum(O * dO), from what the forward was given and what it returned.

    Args:
        q: as in `attention_mxfp8`, the same one.
        k: likewise.
        v: likewise.
        dO: the shape of q; floats, or an `MXTensor` in square blocks or along d.
        O: the forward's output, as it was stored.
        lse: the forward's.
        softmax_scale: as in the forward.
        causal: as in the forward.
        cu_seqlens_q: as in the forward.
        cu_seqlens_k: as in the forward.
        options: the forward's.
        second: payloads for the other orientation of `MXTensor`s whose blocks are not square.
        dq_tile_order: {(sequence, query head, query tile): its key tiles in the order in which dQ is added up}; query
            tiles that are missing follow options.dq_order. A GPU adds in order of arrival.
        on_tile: called after every step, for looking inside.

    Returns:
        The gradients. A query that sees no key has dQ = 0 and contributes nothing. A NaN spreads to its 32x32 square of
        dS, and through 0 * NaN to what the tile touches; with direct codes the P of a NaN score is 0, so that it reaches
        dQ and dK by way of delta but not dV.
        P is recomputed from lse, a float32 number: with L = |lse| log2(e) it is off by a factor of up to 2^(L * 2^-23),
        as in a kernel. The forward, which measures scores from their maximum, has no such limit.

    Raises:
        ValueError: as `attention_mxfp8`; O, lse or dO of other shapes; an `MXTensor` whose other orientation is
            missing; a dq_tile_order that is no order of the visited key tiles.
    """
    options = AttentionOptions() if options is None else options
    second = SecondPayloads() if second is None else second
    call: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal}
    call |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    tensors = {"q": q, "k": k, "v": v, "dO": dO}
    inputs = prepare_backward(tensors, O, lse, call, options, second)
    problem, scale = inputs.problem, np.float32(inputs.problem.softmax_scale)
    check_order(dq_tile_order, problem, options)
    scale_log2 = dq_scale_log2(options, inputs.do_d, inputs.v_d, inputs.k_tokens)
    dq, dk, dv = (np.zeros(x.shape, accumulator_dtype(options)) for x in (inputs.q_d, inputs.k_d, inputs.v_d))
    overflow_count = 0
    with np.errstate(all="ignore"):
        for sequence in problem.sequences():
            for kv_head in range(problem.num_heads_kv):
                group = _gather(inputs, sequence, kv_head, options)
                heads = problem.query_heads(kv_head)
                sums = DqAccumulator(options, scale_log2, dq_tile_order, sequence, heads, problem.head_dim)
                dk_head, dv_head = _differentiate_kv_head(group, sums, options, on_tile)
                dk[sequence.k_tokens, kv_head], dv[sequence.k_tokens, kv_head] = dk_head * scale, dv_head
                for head in heads:
                    dq[sequence.q_tokens, head] = sums.total(head) * scale
                overflow_count += sums.overflow_count
    return AttentionGradients(
        dQ=_output(dq, problem, "q", options),
        dK=_output(dk, problem, "k", options),
        dV=_output(dv, problem, "k", options),
        dq_overflow_count=overflow_count,
        dq_scale_log2=scale_log2,
    )


@dataclass(frozen=True)
class _QueryHead:
    """One query head as the backward reads it, padded to whole tiles; padding has lse +inf and delta 0, so P = 0."""

    head: int
    q: Operand  # (Sq, D), for S
    do: Operand  # (Sq, D), for dP
    q_t: Operand  # (D, Sq), for dK
    do_t: Operand  # (D, Sq), for dV
    lse_log2: Float32  # (Sq,)
    delta: Float32 | None  # (Sq,)


@dataclass(frozen=True)
class _Group:
    """One key head of one sequence, and the query heads that read it."""

    sequence: Sequence
    k: Operand  # (Sk, D), for S
    v: Operand  # (Sk, D), for dP
    k_t: Operand  # (D, Sk), for dQ
    query_heads: list[_QueryHead]
    scale_log2: np.float32


def _gather(inputs: BackwardInputs, sequence: Sequence, kv_head: int, options: AttentionOptions) -> _Group:
    """Operands of one key head and its query heads."""
    q_padded = padded_length(sequence.seqlen_q, options.tile_m)
    k_padded = padded_length(sequence.seqlen_k, options.tile_n)
    index, query_heads = sequence.index, []
    for head in inputs.problem.query_heads(kv_head):
        lse_log2 = np.full(q_padded, np.inf, np.float32)
        lse_log2[: sequence.seqlen_q] = inputs.lse[head, sequence.q_tokens] * LOG2_E
        delta = None if inputs.delta is None else np.zeros(q_padded, np.float32)
        if delta is not None and inputs.delta is not None:
            delta[: sequence.seqlen_q] = inputs.delta[head, sequence.q_tokens]
        q, do = (head_operand(x, index, head, "d", q_padded) for x in (inputs.q_d, inputs.do_d))
        q_t, do_t = (head_operand(x, index, head, "tokens", q_padded) for x in (inputs.q_tokens, inputs.do_tokens))
        query_heads.append(_QueryHead(head, q, do, q_t, do_t, lse_log2, delta))
    k, v = (head_operand(x, index, kv_head, "d", k_padded) for x in (inputs.k_d, inputs.v_d))
    k_t = head_operand(inputs.k_tokens, index, kv_head, "tokens", k_padded)
    return _Group(sequence, k, v, k_t, query_heads, softmax_scale_log2(inputs.problem.softmax_scale))


def _differentiate_kv_head(
    group: _Group, sums: DqAccumulator, options: AttentionOptions, on_tile: Callable[[BackwardTile], None] | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Compute dK / softmax_scale and dV, (Sk, D) each; dQ goes into `sums`."""
    if options.delta == "sum_P_dP":
        group = replace(group, query_heads=[_with_delta_from_p(group, head, options) for head in group.query_heads])
    k_tiles = range(len(group.k.values) // options.tile_n)
    dk, dv = np.zeros((2, *group.k.values.shape), accumulator_dtype(options))
    for kv_tile in k_tiles if options.dq_order == "ascending" else reversed(k_tiles):
        rows = slice(kv_tile * options.tile_n, (kv_tile + 1) * options.tile_n)
        dk[rows], dv[rows] = _differentiate_kv_tile(group, kv_tile, sums, options, on_tile)
    sums.finish()
    seqlen_k = group.sequence.seqlen_k
    return dk[:seqlen_k], dv[:seqlen_k]


def _differentiate_kv_tile(
    group: _Group,
    kv_tile: int,
    sums: DqAccumulator,
    options: AttentionOptions,
    on_tile: Callable[[BackwardTile], None] | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Compute dK / softmax_scale and dV of one key tile, (tile_n, D) each: the loop that a CTA runs."""
    tile_m, tile_n, accumulate = options.tile_m, options.tile_n, options.accumulate
    p_scale = np.full((tile_n, tile_m // BLOCK), E8M0_BIAS - options.p_offset, np.uint8)
    k_t = group.k_t.depth(kv_tile * tile_n, tile_n)  # (D, tile_n)
    dk: NDArray[Any] = np.zeros((tile_n, len(k_t.values)), np.float32)
    dv = dk
    for head in group.query_heads:
        for q_tile in visited_q_tiles(group.sequence, kv_tile, options):
            start = q_tile * tile_m
            p, p_codes, dp = _recompute(group, head, kv_tile, q_tile, options)  # (tile_n, tile_m) each
            do_t, q_t = head.do_t.depth(start, tile_m), head.q_t.depth(start, tile_m)  # (D, tile_m)
            dv = multiply(Operand(decode(p_codes, "e4m3"), p_scale), do_t, dv, accumulate)  # (tile_n, D)
            assert head.delta is not None
            ds = quantize(p * (dp - head.delta[start : start + tile_m]), axes=(0, 1), rule=options.rule)
            dk = multiply(_square_operand(ds), q_t, dk, accumulate)  # (tile_n, D)
            dq = multiply(_square_operand(ds.T), k_t, None, accumulate)  # (tile_m, D)
            sums.add(head.head, q_tile, kv_tile, dq)
            if on_tile is not None:
                place = (group.sequence.index, head.head, q_tile, kv_tile)
                on_tile(BackwardTile(*place, p_codes, ds.codes, ds.scale_e8m0, dq))
    return dk, dv


def _recompute(
    group: _Group, head: _QueryHead, kv_tile: int, q_tile: int, options: AttentionOptions
) -> tuple[Float32, NDArray[np.uint8], Float32]:
    """P^T in float32 (as options.row_sum has it), its E4M3 codes, and dP^T; (tile_n, tile_m) each."""
    tile_m, tile_n = options.tile_m, options.tile_n
    queries = range(q_tile * tile_m, (q_tile + 1) * tile_m)
    keys = range(kv_tile * tile_n, (kv_tile + 1) * tile_n)
    q, do = (x.rows(queries.start, tile_m) for x in (head.q, head.do))  # (tile_m, D)
    k, v = (x.rows(keys.start, tile_n) for x in (group.k, group.v))  # (tile_n, D)
    s = multiply(k, q, None, options.accumulate).astype(np.float32, copy=False)
    if group.sequence.needs_mask(queries, keys):
        s = np.where(group.sequence.visible(queries, keys).T, s, np.float32(-np.inf))
    offset = np.float32(options.p_offset)
    lse_log2 = head.lse_log2[queries.start : queries.stop]

    def exponents(gain: int, addend: float) -> Float32:
        intercept = np.float32(gain) * ((offset - lse_log2) + np.float32(addend))
        return fma(s, np.float32(gain) * group.scale_log2, intercept)

    p, codes = probabilities(exponents, options, key_axis=0)
    dp = multiply(v, do, None, options.accumulate).astype(np.float32, copy=False)
    return p * np.float32(2.0**-options.p_offset), codes, dp


def visited_q_tiles(sequence: Sequence, kv_tile: int, options: AttentionOptions) -> range:
    """The query tiles, ascending, in which some query sees a key of this key tile."""
    first = sequence.first_query(kv_tile * options.tile_n)
    return range(first // options.tile_m, padded_length(sequence.seqlen_q, options.tile_m) // options.tile_m)


def _with_delta_from_p(group: _Group, head: _QueryHead, options: AttentionOptions) -> _QueryHead:
    """The head with delta = sum over keys of P * dP, summed in float64 and rounded once."""
    delta = np.zeros(len(head.q.values))
    for kv_tile in range(len(group.k.values) // options.tile_n):
        for q_tile in visited_q_tiles(group.sequence, kv_tile, options):
            p, _, dp = _recompute(group, head, kv_tile, q_tile, options)
            rows = slice(q_tile * options.tile_m, (q_tile + 1) * options.tile_m)
            delta[rows] += (p.astype(np.float64) * dp).sum(axis=0)
    return replace(head, delta=delta.astype(np.float32))


def _square_operand(x: MXTensor) -> Operand:
    """A square-blocked tile as an operand: the scale of a square stands in each of its 32 rows."""
    return Operand(decode(x.codes, x.fmt), np.repeat(x.scale_e8m0, BLOCK, axis=0))


def _output(x: NDArray[Any], problem: AttentionProblem, side: Side, options: AttentionOptions) -> Gradient:
    """A flattened gradient in the form that options.gradients asks for."""
    if options.gradients == "float32":
        return problem.unflatten(x, side)
    cu_seqlens = problem.cu_seqlens_q if side == "q" else problem.cu_seqlens_k
    blocks: Blocks = "along_d" if options.gradients == "1x32" else "square"
    payload = quantize_payload(x.astype(np.float32, copy=False), blocks, cu_seqlens, options.rule)
    return unflatten_payload(payload, problem, side)
