"""Choices of the backward as experiments in NumPy: formats of dQ, which payload recomputes S, row sums, orders of scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, attention_reference_backward, quantize, sqnr_db
from mxfp8fa.numerics.backward import BackwardTile, attention_mxfp8_backward
from mxfp8fa.numerics.backward_inputs import SecondPayloads
from mxfp8fa.numerics.formats import decode
from mxfp8fa.numerics.inputs import AttentionInputs, synthetic_llm
from mxfp8fa.numerics.quantize import MXTensor

TILE = 128
SQUARES = TILE // 32
OUTLIER = 2.0**16


@dataclass(frozen=True)
class DqFormat:
    """dQ added up in one format.

    Attributes:
        dtype: "float32" or "float16".
        tile_bytes: what one step of the main kernel adds to global memory.
        total_bytes: of a whole backward: cleared once, added to once per tile of keys, read once.
        sqnr_db: of dQ against float64.
    """

    dtype: str
    tile_bytes: int
    total_bytes: int
    sqnr_db: float


def dq_formats(*, tokens: int = 1024, head_dim: int = 128, heads: int = 1) -> list[DqFormat]:
    """Both formats on Gaussian tensors; the bytes are those of `heads` heads of `tokens` queries and keys."""
    x = synthetic_llm(seqlen_q=tokens, seqlen_k=tokens, num_heads_q=heads, head_dim=head_dim, seed=1)
    exact = attention_reference_backward(x.q, x.k, x.v, x.do)[0]
    found = []
    for dtype, size in (("float32", 4), ("float16", 2)):
        options = AttentionOptions(dq_accumulate=dtype)  # type: ignore[arg-type]
        dq = _dq(x, options)
        whole = tokens * head_dim * heads * size
        passes = -(-tokens // TILE) + 2
        found.append(DqFormat(dtype, TILE * head_dim * size, passes * whole, sqnr_db(dq, exact)))
    return found


def payloads_of_s(seed: int = 4) -> dict[str, dict[str, float]]:
    """SQNR of dQ, dK and dV, causal, by the payload of Q and K that S is recomputed from.

    Every 32nd token of K is large in a channel that Q does not use: in a square block its neighbours lose their last bits.
    """
    x = synthetic_llm(seqlen_q=256, seqlen_k=256, num_heads_q=1, head_dim=64, logit_std=2.0, seed=seed)
    q, k = x.q.copy(), x.k.copy()
    q[..., 5], k[:, 7::32, :, 5] = 0, OUTLIER
    x = replace(x, q=q, k=k)
    exact = attention_reference_backward(x.q, x.k, x.v, x.do, causal=True)

    def payload(t: NDArray, axes: tuple[int, ...]) -> MXTensor:
        return quantize(t, axes=axes, tail="partial")

    rows, squares = ([payload(t, axes) for t in (x.q, x.k)] for axes in ((3,), (1, 3)))
    v, v_second = payload(x.v, (1,)), payload(x.v, (3,))
    found = {}
    for name, forward, backward in (
        ("1x32 in both, squares for dK and dQ", rows, rows),
        ("squares under the lse of 1x32", rows, squares),
        ("squares in both", squares, squares),
    ):
        o, lse = attention_mxfp8(forward[0], forward[1], v, causal=True)
        second = SecondPayloads(q=squares[0], k=squares[1], v=v_second)
        gradients = attention_mxfp8_backward(backward[0], backward[1], v, x.do, o, lse, causal=True, second=second)
        found[name] = {t: sqnr_db(a, b) for t, a, b in zip(("dQ", "dK", "dV"), gradients, exact, strict=True)}
    return found


def row_sums(exp: str, logit_std: float, tokens: int = 512) -> NDArray[np.float64]:
    """Sum over the keys of P as dV reads it, recomputed from lse and rounded, (tokens,): 1 but for rounding."""
    x = synthetic_llm(seqlen_q=tokens, seqlen_k=tokens, num_heads_q=1, head_dim=64, logit_std=logit_std, seed=1)
    options = AttentionOptions(exp="direct", row_sum="rounded") if exp == "direct" else AttentionOptions()
    sums = np.zeros(tokens)

    def add(tile: BackwardTile) -> None:
        p = decode(tile.p_codes, "e4m3").astype(np.float64) * 2.0**-options.p_offset  # (keys, queries)
        sums[tile.q_tile * TILE : (tile.q_tile + 1) * TILE] += p.sum(axis=0)

    o, lse = attention_mxfp8(x.q, x.k, x.v, options=options)
    attention_mxfp8_backward(x.q, x.k, x.v, x.do, o, lse, options=options, on_tile=add)
    return sums


def scale_atoms() -> dict[str, NDArray[np.int64]]:
    """Which square block each byte of the two scale atoms of dS belongs to.

    Returns:
        "dK" and "dQ": (128, 4), by row of the atom and byte of its word: 4 * block of keys + block of queries.
    """
    keys, queries = np.divmod(np.arange(SQUARES**2).reshape(SQUARES, SQUARES), SQUARES)
    number = SQUARES * keys + queries  # (blocks of keys, blocks of queries)
    return {"dK": number.repeat(32, axis=0), "dQ": number.T.repeat(32, axis=0)}


def _dq(x: AttentionInputs, options: AttentionOptions) -> NDArray:
    o, lse = attention_mxfp8(x.q, x.k, x.v, options=options)
    dq = attention_mxfp8_backward(x.q, x.k, x.v, x.do, o, lse, options=options).dQ
    assert isinstance(dq, np.ndarray)  # options.gradients is "float32"
    return dq
