"""Adding up the dQ tiles of the key tiles: order, format, and what overflow does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.forward import visited_kv_tiles
from mxfp8fa.numerics.operands import accumulator_dtype, padded_length
from mxfp8fa.numerics.options import DQ_SCALE_LOG2_RANGE, AttentionOptions
from mxfp8fa.numerics.problem import AttentionProblem, Sequence
from mxfp8fa.numerics.quantize import MXTensor

TileOrder = Mapping[tuple[int, int, int], SequenceOf[int]]

FLOAT16_MAX = 65504.0
# Room for what the bound below leaves out: E4M3 rounding of dS (1/16) and rows of P that sum to a little more than 1.
AUTO_SCALE_MARGIN = 1.125


def dq_scale_log2(options: AttentionOptions, do: MXTensor, v: MXTensor, k: MXTensor) -> int:
    """log2 of the static factor on the dQ sum; 0 when it is float32.

    "auto" takes the largest power of two that keeps float16 finite, from |dS_ij| <= P_ij * 2 max||dO|| max||V|| and
    sum_j P_ij = 1: |dQ| / softmax_scale <= 2 max||dO|| max||V|| max|K|.
    """
    if options.dq_accumulate == "float32":
        return 0
    if options.dq_scale_log2 != "auto":
        return int(options.dq_scale_log2)
    with np.errstate(all="ignore"):
        do_norm, v_norm = (np.sqrt(np.square(x.dequantize(np.float64)).sum(axis=-1)).max(initial=0.0) for x in (do, v))
        bound = float(2 * AUTO_SCALE_MARGIN * do_norm * v_norm * np.abs(k.dequantize(np.float64)).max(initial=0.0))
    if not (math.isfinite(bound) and bound > 0):
        return 0
    low, high = DQ_SCALE_LOG2_RANGE
    return min(max(math.floor(math.log2(FLOAT16_MAX / bound)), low), high)


class DqAccumulator:
    """dQ / softmax_scale of the query heads that share one key head, in one sequence.

    float32 adds like cp.reduce.async.bulk.add.f32, which keeps subnormals, as measured on an H200 (docs/silicon.md); the PTX
    ISA says that it flushes them, and what a B200 does is not known: there sums below 2^-126 may be 0. float16 converts each
    tile times 2^dq_scale_log2 without saturation and adds like cp.reduce.async.bulk.add.noftz.f16.

    Attributes:
        overflow_count: elements whose float16 sum became infinite although every tile was finite.
    """

    def __init__(
        self,
        options: AttentionOptions,
        scale_log2: int,
        order: TileOrder | None,
        sequence: Sequence,
        heads: range,
        head_dim: int,
    ) -> None:
        self.options = options
        self.scale = np.float32(2.0**scale_log2)
        self.sequence = sequence
        self.order = order
        dtype: type[np.floating] = np.float16 if options.dq_accumulate == "float16" else accumulator_dtype(options)
        padded = padded_length(sequence.seqlen_q, options.tile_m)
        self.sums: dict[int, NDArray[Any]] = {head: np.zeros((padded, head_dim), dtype) for head in heads}
        self._overflowed = {head: np.zeros((padded, head_dim), bool) for head in heads}
        self._waiting: dict[tuple[int, int], dict[int, NDArray[Any]]] = {}

    def add(self, head: int, q_tile: int, kv_tile: int, tile: NDArray[Any]) -> None:
        """Take one (tile_m, D) tile, either at once or, where a special order was given, at the end."""
        if self.order is not None and (self.sequence.index, head, q_tile) in self.order:
            self._waiting.setdefault((head, q_tile), {})[kv_tile] = tile
        else:
            self._add_now(head, q_tile, tile)

    def finish(self) -> None:
        """Add the tiles that waited for their order."""
        for (head, q_tile), tiles in self._waiting.items():
            assert self.order is not None
            for kv_tile in self.order[self.sequence.index, head, q_tile]:
                self._add_now(head, q_tile, tiles[kv_tile])

    def total(self, head: int) -> NDArray[Any]:
        """(Sq, D) dQ / softmax_scale, the static factor taken out again."""
        rows = self.sums[head][: self.sequence.seqlen_q]
        return rows.astype(np.float32) / self.scale if rows.dtype == np.float16 else rows

    @property
    def overflow_count(self) -> int:
        """Elements of dQ whose float16 sum overflowed although every tile was finite."""
        rows = self.sequence.seqlen_q
        return sum(int(overflowed[:rows].sum()) for overflowed in self._overflowed.values())

    def _add_now(self, head: int, q_tile: int, tile: NDArray[Any]) -> None:
        rows = slice(q_tile * self.options.tile_m, (q_tile + 1) * self.options.tile_m)
        total = self.sums[head][rows]
        if total.dtype == np.float16:
            addend = (tile * self.scale).astype(np.float16)
            new = total + addend
            self._overflowed[head][rows] |= np.isfinite(tile) & (np.isfinite(total) & ~np.isfinite(new))
            total[:] = new
        else:
            total += tile


def check_order(order: TileOrder | None, problem: AttentionProblem, options: AttentionOptions) -> None:
    """Refuse an order that is not a permutation of the key tiles that a query tile visits.

    Raises:
        ValueError: names the query tile, its order and the key tiles it visits.
    """
    if order is None:
        return
    if not isinstance(order, Mapping) or any(not isinstance(key, tuple) or len(key) != 3 for key in order):
        raise ValueError("dq_tile_order must be a dict {(sequence, query head, query tile): [key tile, ...]}")
    sequences = list(problem.sequences())
    for (batch, head, q_tile), kv_tiles in order.items():
        visited: list[int] | None = None
        if 0 <= batch < len(sequences) and 0 <= head < problem.num_heads_q:
            count = padded_length(sequences[batch].seqlen_q, options.tile_m) // options.tile_m
            visited = sorted(visited_kv_tiles(sequences[batch], q_tile, options)) if 0 <= q_tile < count else None
        if visited is None:
            raise ValueError(f"dq_tile_order has the key ({batch}, {head}, {q_tile}); there is no such query tile")
        if not isinstance(kv_tiles, SequenceOf | np.ndarray) or sorted(kv_tiles) != visited:
            raise ValueError(
                f"dq_tile_order[{batch}, {head}, {q_tile}] = {kv_tiles} is no order of the key tiles that this "
                f"query tile visits, {visited}"
            )
