"""The shape of one attention call, checked once: batch or jagged sequences, heads, mask and scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import as_array

Side = Literal["q", "k"]


@dataclass(frozen=True)
class Sequence:
    """The tokens of one sequence of a batch, as ranges in the flattened token axis.

    Attributes:
        index: position in the batch.
        q_start: first query token.
        seqlen_q: number of query tokens.
        k_start: first key token.
        seqlen_k: number of key tokens.
        causal: whether query i sees only keys j <= i + seqlen_k - seqlen_q (bottom-right aligned).
    """

    index: int
    q_start: int
    seqlen_q: int
    k_start: int
    seqlen_k: int
    causal: bool

    @property
    def q_tokens(self) -> slice:
        """Query tokens in the flattened axis."""
        return slice(self.q_start, self.q_start + self.seqlen_q)

    @property
    def k_tokens(self) -> slice:
        """Key tokens in the flattened axis."""
        return slice(self.k_start, self.k_start + self.seqlen_k)

    def keys_seen(self, query: int) -> int:
        """How many keys, from the first, query number `query` of this sequence sees; 0 if none."""
        if not self.causal:
            return self.seqlen_k
        return min(max(query + 1 + self.seqlen_k - self.seqlen_q, 0), self.seqlen_k)

    def first_query(self, key: int) -> int:
        """The first query that sees key number `key`; seqlen_q if none does."""
        if not self.causal:
            return 0
        return min(max(key - self.seqlen_k + self.seqlen_q, 0), self.seqlen_q)

    def visible(self, queries: range, keys: range) -> NDArray[np.bool_]:
        """(len(queries), len(keys)): whether a query sees a key. Keys past the sequence's end are never seen."""
        i = np.arange(queries.start, queries.stop)[:, None]
        j = np.arange(keys.start, keys.stop)[None, :]
        seen = np.broadcast_to(j < self.seqlen_k, (len(queries), len(keys)))
        return seen & (j <= i + self.seqlen_k - self.seqlen_q) if self.causal else seen

    def needs_mask(self, queries: range, keys: range) -> bool:
        """Whether some query of the tile does not see some key of the tile."""
        return keys.stop > self.keys_seen(queries.start)


@dataclass(frozen=True)
class AttentionProblem:
    """Shapes and meaning of one attention call.

    Dense arrays are (B, S, H, D), jagged ones (T, H, D) with int offsets `cu_seqlens` (B + 1,). Inside, both are
    (T, H, D): a dense batch is B sequences of equal length.

    Attributes:
        cu_seqlens_q: (B + 1,) offsets of the sequences in the flattened query axis.
        cu_seqlens_k: the same for the keys.
        num_heads_q: Hq.
        num_heads_kv: Hkv, a divisor of Hq; query head h reads key head h // (Hq / Hkv).
        head_dim: D.
        softmax_scale: factor on the scores, 1 / sqrt(D) by default.
        causal: bottom-right aligned causal mask.
        dense_lengths: (Sq, Sk) of a dense batch; None if the caller's arrays are (T, H, D).
    """

    cu_seqlens_q: NDArray[np.int64]
    cu_seqlens_k: NDArray[np.int64]
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    softmax_scale: float
    causal: bool
    dense_lengths: tuple[int, int] | None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.cu_seqlens_q) - 1

    @property
    def group_size(self) -> int:
        """Query heads per key head."""
        return self.num_heads_q // self.num_heads_kv

    def sequences(self) -> Iterator[Sequence]:
        """The sequences of the batch in order, empty ones included."""
        for b in range(self.batch):
            (q0, q1), (k0, k1) = self.cu_seqlens_q[b : b + 2].tolist(), self.cu_seqlens_k[b : b + 2].tolist()
            yield Sequence(b, q0, q1 - q0, k0, k1 - k0, self.causal)

    def query_heads(self, kv_head: int) -> range:
        """The query heads that read key head `kv_head`."""
        return range(kv_head * self.group_size, (kv_head + 1) * self.group_size)

    @property
    def jagged(self) -> bool:
        """Whether the caller's arrays are (T, H, D)."""
        return self.dense_lengths is None

    def unflatten(self, x: NDArray[Any], side: Side, *, tokens_per_row: int = 1) -> NDArray[Any]:
        """(T, H, D) back to the caller's shape; scales of token blocks have 32 tokens per row."""
        if self.dense_lengths is None:
            return x
        length = self.dense_lengths[0 if side == "q" else 1]
        return x.reshape(self.batch, -(-length // tokens_per_row), *x.shape[1:])

    def unflatten_lse(self, lse: NDArray[Any]) -> NDArray[Any]:
        """(H, T) to (B, H, Sq), or unchanged when jagged."""
        if self.dense_lengths is None:
            return lse
        shape = (self.num_heads_q, self.batch, self.dense_lengths[0])
        return np.ascontiguousarray(lse.reshape(shape).transpose(1, 0, 2))

    def flatten_lse(self, lse: NDArray[Any]) -> NDArray[Any]:
        """The inverse of `unflatten_lse`."""
        return lse if self.jagged else lse.transpose(1, 0, 2).reshape(self.num_heads_q, -1)


def make_problem(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    v_shape: tuple[int, ...],
    *,
    softmax_scale: float | None,
    causal: bool,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
) -> AttentionProblem:
    """Check the shapes and arguments of an attention call.

    Raises:
        ValueError: shapes that do not fit together, Hq not a multiple of Hkv, softmax_scale not finite or <= 0, bad
            offsets. The message says what was given and what is allowed.
    """
    jagged = cu_seqlens_q is not None or cu_seqlens_k is not None
    if jagged and (cu_seqlens_q is None or cu_seqlens_k is None):
        missing = "cu_seqlens_q" if cu_seqlens_q is None else "cu_seqlens_k"
        raise ValueError(f"{missing} is missing: jagged attention needs both cu_seqlens_q and cu_seqlens_k")
    check_shapes(q_shape, k_shape, v_shape, jagged)
    num_heads_q, head_dim = q_shape[-2:]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    check_scale_and_mask(softmax_scale, causal)
    if jagged:
        cu_q = _check_offsets("cu_seqlens_q", cu_seqlens_q, q_shape[0])
        cu_k = _check_offsets("cu_seqlens_k", cu_seqlens_k, k_shape[0])
        if len(cu_q) != len(cu_k):
            raise ValueError(
                f"cu_seqlens_q describes {len(cu_q) - 1} sequences, cu_seqlens_k {len(cu_k) - 1}; they must be as many"
            )
    else:
        cu_q, cu_k = (np.arange(shape[0] + 1, dtype=np.int64) * shape[1] for shape in (q_shape, k_shape))
    lengths = None if jagged else (q_shape[1], k_shape[1])
    return AttentionProblem(cu_q, cu_k, num_heads_q, k_shape[-2], head_dim, float(softmax_scale), bool(causal), lengths)


def check_scale_and_mask(softmax_scale: Any, causal: Any) -> None:
    """Refuse what is no scale and what is no choice of a mask.

    Raises:
        ValueError: softmax_scale is not a finite number above 0, or causal neither True nor False.
    """
    if isinstance(softmax_scale, bool) or not _is_positive_finite(softmax_scale):
        raise ValueError(f"softmax_scale = {softmax_scale!r} must be a finite number above 0")
    if not isinstance(causal, bool | np.bool_):
        raise ValueError(f"causal = {causal!r} must be True or False")


def _is_positive_finite(x: Any) -> bool:
    try:
        return math.isfinite(x) and x > 0
    except (TypeError, OverflowError):
        return False


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], jagged: bool = False) -> None:
    """Refuse shapes that do not fit together.

    Raises:
        ValueError: another rank than 4, or 3 when jagged; k and v, or head_dim, or batch that differ; no head; Hq not a
            multiple of Hkv.
    """
    ndim, layout = (3, "(T, H, D)") if jagged else (4, "(B, S, H, D)")
    for name, shape in {"q": q, "k": k, "v": v}.items():
        if len(shape) != ndim:
            given = "with" if jagged else "without"
            raise ValueError(f"{name} has shape {shape}; {given} cu_seqlens it must be {layout}")
    if k != v:
        raise ValueError(f"k has shape {k} and v {v}; they must be equal")
    if q[-1] != k[-1]:
        raise ValueError(f"q has head_dim {q[-1]} and k {k[-1]}; they must be equal")
    if q[-1] < 1 or k[-2] < 1 or q[-2] < 1:
        raise ValueError(f"q has shape {q} and k {k}; there must be at least one head and head_dim >= 1")
    if q[-2] % k[-2]:
        raise ValueError(f"Hq = {q[-2]} is not a multiple of Hkv = {k[-2]}")
    if not jagged and q[0] != k[0]:
        raise ValueError(f"q has batch {q[0]} and k {k[0]}; they must be equal")


def _check_offsets(name: str, offsets: Any, total: int) -> NDArray[np.int64]:
    array = as_array(offsets, name)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 1:
        raise ValueError(
            f"{name} has shape {array.shape} and dtype {array.dtype}; it must be a 1-D integer array (B + 1,)"
        )
    array = array.astype(np.int64)
    if array[0] != 0 or array[-1] != total or (np.diff(array) < 0).any():
        raise ValueError(
            f"{name} = {np.array2string(array, threshold=8)} must start at 0, never fall and end at the number of "
            f"tokens, {total}"
        )
    return array


def as_float_array(x: Any, name: str, *, allow_float64: bool) -> NDArray[Any]:
    """X as a NumPy array of a floating dtype (float16, bfloat16, float32, and float64 where allowed).

    bfloat16 is NumPy's extension dtype of that name, as packages such as ml_dtypes define it.

    Raises:
        ValueError: another dtype.
    """
    array = as_array(x, name)
    allowed = ["float16", "bfloat16", "float32"] + (["float64"] if allow_float64 else [])
    if array.dtype.name not in allowed:
        raise ValueError(f"{name} has dtype {array.dtype}; allowed are {', '.join(allowed)}")
    return array
