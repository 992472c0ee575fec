"""MXFP8 attention, forward, rounding where a Blackwell kernel rounds, tile by tile.

Read from the top: `attention_mxfp8` checks and quantizes, `_attend_head` cuts one head into query tiles,
`_attend_tile` is the loop over key tiles: S = Q K^T, one softmax step, O = P V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import decode, round_values
from mxfp8fa.numerics.operands import (
    SERVES,
    Blocks,
    Contraction,
    Operand,
    accumulator_dtype,
    check_head_dim,
    check_softmax_scale,
    flatten,
    flatten_payload,
    head_operand,
    multiply,
    padded_length,
    payload_blocks,
    quantize_payload,
    shape_and_array,
)
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import AttentionProblem, Sequence, make_problem
from mxfp8fa.numerics.quantize import MXTensor
from mxfp8fa.numerics.softmax import OnlineSoftmax, softmax_scale_log2

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class ForwardTile:
    """What one step of the key loop saw and made, for `on_tile`.

    Attributes:
        batch: number of the sequence.
        head: query head.
        q_tile: number of the query tile.
        kv_tile: number of the key tile.
        s: (tile_m, tile_n) float32 masked scores, before softmax_scale.
        p_codes: (tile_m, tile_n) E4M3 codes of P.
        p_scale_e8m0: (tile_m, tile_n / 32).
        acc_scale: (tile_m,) float32 factor applied to O before this step.
        row_max: (tile_m,) float32 raw score the row is measured from, after this step.
        row_sum: (tile_m,) float32 running row sum, after this step.
    """

    batch: int
    head: int
    q_tile: int
    kv_tile: int
    s: Float32
    p_codes: NDArray[np.uint8]
    p_scale_e8m0: NDArray[np.uint8]
    acc_scale: Float32
    row_max: Float32
    row_sum: Float32


def attention_mxfp8(
    q: ArrayLike | MXTensor,
    k: ArrayLike | MXTensor,
    v: ArrayLike | MXTensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    options: AttentionOptions | None = None,
    on_tile: Callable[[ForwardTile], None] | None = None,
) -> tuple[Float32, Float32]:
    """O = softmax(softmax_scale * Q K^T) V with block-scaled E4M3 operands, and the lse of the scores it computed.

    Args:
        q: (B, Sq, Hq, D), or (Tq, Hq, D) with cu_seqlens. Floats (float16, bfloat16, float32) are quantized as
            `options` says; an `MXTensor` is taken as it is: blocks along d, or square over tokens and d.
        k: (B, Sk, Hkv, D) or (Tk, Hkv, D), likewise; Hkv divides Hq.
        v: the shape of k; an `MXTensor` has blocks along the tokens, or square ones.
        softmax_scale: from 2^-126 to 2^123; 1 / sqrt(D) if None.
        causal: query i sees key j when j <= i + Sk - Sq (bottom-right aligned).
        cu_seqlens_q: (B + 1,) token offsets of jagged sequences, zero-length ones included.
        cu_seqlens_k: the same for the keys.
        options: `AttentionOptions()` if None.
        on_tile: called after every step of the key loop, for looking inside.

    Returns:
        O, float32 (float64 under accumulate="exact") in the shape of q, its values rounded to options.out_dtype; and
        lse, float32, (B, Hq, Sq) or (Hq, Tq), natural log. A query that sees no key has O = 0 and lse = -inf. A NaN
        (or scale code 0xFF) in Q gives NaN in the rows of its block; in K in every row that sees one of its keys; in V
        in every row of each query tile that visits its key tile (0 * NaN), in the columns of its block.

    Raises:
        ValueError: shapes, dtypes, blocks, offsets or softmax_scale that are not allowed, or head_dim not a multiple of
            32 up to 256.
    """
    options = AttentionOptions() if options is None else options
    inputs = prepare_forward(q, k, v, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k, options)
    problem, tile_m, tile_n = inputs.problem, options.tile_m, options.tile_n
    o = np.zeros(inputs.q.shape, accumulator_dtype(options))
    lse = np.full((problem.num_heads_q, len(o)), -np.inf, np.float32)
    with np.errstate(all="ignore"):
        for sequence in problem.sequences():
            q_padded, k_padded = padded_length(sequence.seqlen_q, tile_m), padded_length(sequence.seqlen_k, tile_n)
            for kv_head in range(problem.num_heads_kv):
                k_head = head_operand(inputs.k, sequence.index, kv_head, "d", k_padded)  # (Sk, D)
                v_head = head_operand(inputs.v, sequence.index, kv_head, "tokens", k_padded)  # (D, Sk)
                for head in problem.query_heads(kv_head):
                    q_head = head_operand(inputs.q, sequence.index, head, "d", q_padded)  # (Sq, D)
                    tile = _Head(sequence, head, q_head, k_head, v_head, softmax_scale_log2(problem.softmax_scale))
                    o_head, lse_head = _attend_head(tile, options, on_tile)
                    o[sequence.q_tokens, head], lse[head, sequence.q_tokens] = o_head, lse_head
        lse += inputs.lse_shift
    if options.out_dtype != "auto":
        o = round_values(o, options.out_dtype)
    return problem.unflatten(o, "q"), problem.unflatten_lse(lse)


@dataclass(frozen=True)
class _Head:
    """One query head of one sequence, quantized and padded to whole tiles."""

    sequence: Sequence
    head: int
    q: Operand  # (Sq, D)
    k: Operand  # (Sk, D)
    v: Operand  # (D, Sk)
    scale_log2: np.float32


def _attend_head(
    head: _Head, options: AttentionOptions, on_tile: Callable[[ForwardTile], None] | None
) -> tuple[NDArray[Any], Float32]:
    """O (Sq, D) and lse (Sq,) of one head."""
    seqlen_q, head_dim = head.sequence.seqlen_q, len(head.v.values)
    o = np.zeros((seqlen_q, head_dim), accumulator_dtype(options))
    lse = np.full(seqlen_q, -np.inf, np.float32)
    for q_tile, start in enumerate(range(0, seqlen_q, options.tile_m)):
        o_tile, lse_tile = _attend_tile(head, q_tile, options, on_tile)
        rows = min(options.tile_m, seqlen_q - start)
        o[start : start + rows], lse[start : start + rows] = o_tile[:rows], lse_tile[:rows]
    return o, lse


def _attend_tile(
    head: _Head, q_tile: int, options: AttentionOptions, on_tile: Callable[[ForwardTile], None] | None
) -> tuple[NDArray[Any], Float32]:
    """O (tile_m, D) and lse (tile_m,) of one query tile: the loop that a CTA runs."""
    tile_m, tile_n, accumulate = options.tile_m, options.tile_n, options.accumulate
    q = head.q.rows(q_tile * tile_m, tile_m)  # (tile_m, D)
    softmax = OnlineSoftmax(tile_m, head.scale_log2, options)
    o = np.zeros((tile_m, len(head.v.values)), np.float32)
    for kv_tile in visited_kv_tiles(head.sequence, q_tile, options):
        k = head.k.rows(kv_tile * tile_n, tile_n)  # (tile_n, D)
        s = multiply(q, k, None, accumulate)  # (tile_m, tile_n)
        s = mask_scores(s.astype(np.float32, copy=False), head.sequence, q_tile, kv_tile, options)
        p = softmax.step(s)
        v = head.v.depth(kv_tile * tile_n, tile_n)  # (D, tile_n)
        o = o * p.acc_scale[:, None]
        o = multiply(Operand(decode(p.codes, "e4m3"), p.scale_e8m0), v, o, accumulate)  # (tile_m, D)
        if on_tile is not None:
            step = (p.codes, p.scale_e8m0, p.acc_scale, softmax.row_max.copy(), softmax.row_sum.copy())
            on_tile(ForwardTile(head.sequence.index, head.head, q_tile, kv_tile, s, *step))
    inverse_sum, lse = softmax.finish()
    return o * inverse_sum[:, None], lse


def visited_kv_tiles(sequence: Sequence, q_tile: int, options: AttentionOptions) -> range:
    """The key tiles that a query tile visits, in order: those with a key that one of its queries sees."""
    last_query = (q_tile + 1) * options.tile_m - 1
    count = padded_length(sequence.keys_seen(last_query), options.tile_n) // options.tile_n
    return range(count) if options.kv_order == "ascending" else range(count - 1, -1, -1)


def mask_scores(s: Float32, sequence: Sequence, q_tile: int, kv_tile: int, options: AttentionOptions) -> Float32:
    """(tile_m, tile_n) scores with -inf where a query does not see a key; a NaN there disappears too."""
    queries = range(q_tile * options.tile_m, (q_tile + 1) * options.tile_m)
    keys = range(kv_tile * options.tile_n, (kv_tile + 1) * options.tile_n)
    if not sequence.needs_mask(queries, keys):
        return s
    return np.where(sequence.visible(queries, keys), s, np.float32(-np.inf))


@dataclass(frozen=True)
class ForwardInputs:
    """Checked and quantized inputs of one call.

    Attributes:
        problem: shapes, mask and scale.
        q: payload (Tq, Hq, D) whose blocks serve S = Q K^T.
        k: payload (Tk, Hkv, D), likewise.
        v: payload (Tk, Hkv, D) whose blocks serve O = P V.
        k_float: (Tk, Hkv, D) what k was quantized from (its mean removed if asked for); None if it came quantized.
        lse_shift: (Hq, Tq) what removing K's mean took from lse; 0 if nothing was removed.
    """

    problem: AttentionProblem
    q: MXTensor
    k: MXTensor
    v: MXTensor
    k_float: Float32 | None
    lse_shift: Float32 | np.float32


def prepare_forward(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None,
    causal: bool,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    options: AttentionOptions,
) -> ForwardInputs:
    """Check the arguments of a call and quantize what is not quantized yet.

    Raises:
        ValueError: see `attention_mxfp8`.
    """
    if not isinstance(options, AttentionOptions):
        raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
    arrays = [shape_and_array(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    problem = make_problem(
        *(shape for _, shape in arrays),
        softmax_scale=softmax_scale,
        causal=causal,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )
    check_head_dim(problem.head_dim)
    check_softmax_scale(problem.softmax_scale)
    (q, _), (k, _), (v, _) = arrays
    qk_blocks: Blocks = "along_d" if options.resolved_qk_blocks(problem.causal) == "1x32" else "square"
    v_blocks: Blocks = "along_tokens" if options.v_blocks == "1x32" else "square"
    q_payload = as_payload(q, "q", "d", qk_blocks, problem, options.rule)
    k_float = None if isinstance(k, MXTensor) else flatten(k)
    lse_shift: Float32 | np.float32 = np.float32(0)
    if options.k_mean:
        if k_float is None:
            raise ValueError("k_mean = True needs k as floats; k is an MXTensor (subtract the mean before quantizing)")
        k_float, lse_shift = _remove_k_mean(k_float, q_payload, problem)
    return ForwardInputs(
        problem,
        q_payload,
        as_payload(k if k_float is None else k_float, "k", "d", qk_blocks, problem, options.rule),
        as_payload(v, "v", "tokens", v_blocks, problem, options.rule),
        k_float,
        lse_shift,
    )


def as_payload(
    x: MXTensor | NDArray[Any],
    name: str,
    contraction: Contraction,
    blocks: Blocks,
    problem: AttentionProblem,
    rule: str,
) -> MXTensor:
    """The payload of x for GEMMs over `contraction`: floats quantized in `blocks`, an MXTensor as it is.

    Raises:
        ValueError: an MXTensor whose blocks do not run along the contraction.
    """
    cu_seqlens = problem.cu_seqlens_q if name in ("q", "dO") else problem.cu_seqlens_k
    if not isinstance(x, MXTensor):
        return quantize_payload(flatten(x), blocks, cu_seqlens, rule)
    payload = flatten_payload(x, name, problem, cu_seqlens)
    if payload_blocks(payload) not in SERVES[contraction]:
        raise ValueError(
            f"{name} has blocks {payload_blocks(payload)}, but is contracted along {contraction} here; allowed are "
            f"{' and '.join(SERVES[contraction])}"
        )
    return payload


def _remove_k_mean(k: Float32, q: MXTensor, problem: AttentionProblem) -> tuple[Float32, Float32]:
    """K less its mean over each sequence's tokens, and the lse that this takes away: softmax_scale * q . mean(K)."""
    k = k.copy()
    lse_shift = np.zeros((problem.num_heads_q, len(q.codes)), np.float32)
    q_values = q.dequantize()
    for sequence in problem.sequences():
        if sequence.seqlen_k == 0:
            continue
        mean = k[sequence.k_tokens].mean(axis=0, dtype=np.float64)  # (Hkv, D)
        k[sequence.k_tokens] -= mean.astype(np.float32)
        by_head = np.repeat(mean.astype(np.float32), problem.group_size, axis=0)  # (Hq, D)
        dots = np.einsum("shd,hd->hs", q_values[sequence.q_tokens], by_head, dtype=np.float64)
        lse_shift[:, sequence.q_tokens] = problem.softmax_scale * dots
    return k, lse_shift
