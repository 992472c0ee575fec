"""P from the inside: how small it gets, a code as a logarithm, and the online softmax tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import E4M3, AttentionOptions, ForwardTile, attention_mxfp8, decode
from mxfp8fa.numerics.inputs import AttentionInputs
from mxfp8fa.numerics.softmax import softmax_scale_log2


@dataclass(frozen=True)
class RangeOfP:
    """How large P is where the forward and where the backward store it.

    Attributes:
        log2_p: "forward" (relative to the row maximum) and "backward" (normalized) -> (N,) log2 P.
        parameters: in words, for captions.
    """

    log2_p: Mapping[str, NDArray[np.float64]]
    parameters: str

    def lost(self, where: str, offset: int) -> float:
        """Share of the elements that become zero in E4M3 when stored as 2^offset P (at most half of 2^-9)."""
        return float(np.mean(self.log2_p[where] + offset <= np.log2(E4M3.min_subnormal) - 1))


def range_of_p(inputs: AttentionInputs, *, head: int = 0) -> RangeOfP:
    """log2 P of one head, exactly, in float64; no mask."""
    q, k = (x[0, :, head].astype(np.float64) for x in (inputs.q, inputs.k))
    s = inputs.softmax_scale * np.log2(np.e) * (q @ k.T)  # (Sq, Sk), base 2
    relative = s - s.max(axis=1, keepdims=True)
    normalized = relative - np.log2(np.exp2(relative).sum(axis=1, keepdims=True))
    about = f"{inputs.name}, head {head}, {s.shape[0]} x {s.shape[1]} probabilities in float64; {inputs.origin}"
    return RangeOfP({"forward": relative.ravel(), "backward": normalized.ravel()}, about)


@dataclass(frozen=True)
class CodeLogarithm:
    """E4M3 codes beside the logarithm of their values.

    Attributes:
        codes: (N,) positive finite codes with exponent field 1 and more, the normal numbers.
        log2_value: (N,) log2 of the value.
        line: (N,) 8 (log2 value + 7), what the code would be if it were an exact logarithm.
    """

    codes: NDArray[np.uint8]
    log2_value: NDArray[np.float64]
    line: NDArray[np.float64]


def code_logarithm() -> CodeLogarithm:
    """Every positive normal E4M3 number."""
    codes = np.arange(1 << E4M3.mantissa_bits, E4M3.max_code + 1, dtype=np.uint8)
    log2_value = np.log2(decode(codes, E4M3).astype(np.float64))
    return CodeLogarithm(codes, log2_value, 8 * (log2_value + E4M3.bias))


@dataclass(frozen=True)
class SoftmaxWalk:
    """The online softmax of one query tile, key tile by key tile; scores times softmax_scale_log2, so in log2 units.

    Attributes:
        kv_tiles: (T,) key tiles in the order they are visited.
        scores: (T, tile_n) scores of the row that is watched.
        running_max: (T,) its largest score so far.
        reference: (T,) what its P is measured from: lags behind running_max by up to rescale_threshold.
        acc_scale: (T,) factor on its O and row_sum before the step.
        row_sum: (T,) its row sum of 2^offset P after the step.
        rescaled: (T,) how many rows of the query tile have acc_scale other than 1; all of them in step 0.
        rows: rows of the query tile.
        threshold: rescale_threshold.
        parameters: in words, for captions.
    """

    kv_tiles: NDArray[np.int64]
    scores: NDArray[np.float64]
    running_max: NDArray[np.float64]
    reference: NDArray[np.float64]
    acc_scale: NDArray[np.float64]
    row_sum: NDArray[np.float64]
    rescaled: NDArray[np.int64]
    rows: int
    threshold: float
    parameters: str


def softmax_walk(
    inputs: AttentionInputs, *, row: int, head: int = 0, tile_n: int = 64, options: AttentionOptions | None = None
) -> SoftmaxWalk:
    """Watch query `row` of the first query tile of one head.

    Args:
        inputs: Q, K, V; the first sequence is taken.
        row: query of the first tile, below options.tile_m.
        head: query head; K and V must have as many.
        tile_n: keys of a tile.
        options: of the attention; tile_n is set to the given one.
    """
    options = replace(options or AttentionOptions(), tile_n=tile_n)
    tiles: list[ForwardTile] = []
    q, k, v = (x[:1, :, head : head + 1] for x in (inputs.q, inputs.k, inputs.v))
    attention_mxfp8(q[:, : options.tile_m], k, v, options=options, on_tile=tiles.append)
    scale_log2 = float(softmax_scale_log2(inputs.softmax_scale))
    scores = np.array([tile.s[row] for tile in tiles], np.float64) * scale_log2
    return SoftmaxWalk(
        kv_tiles=np.array([tile.kv_tile for tile in tiles]),
        scores=scores,
        running_max=np.maximum.accumulate(scores.max(axis=1)),
        reference=np.array([tile.row_max[row] for tile in tiles], np.float64) * scale_log2,
        acc_scale=np.array([tile.acc_scale[row] for tile in tiles], np.float64),
        row_sum=np.array([tile.row_sum[row] for tile in tiles], np.float64),
        rescaled=np.array([int((tile.acc_scale != 1).sum()) for tile in tiles]),
        rows=len(tiles[0].s),
        threshold=float(options.rescale_threshold),
        parameters=f"{inputs.name}, head {head}, query {row} of {len(tiles[0].s)}, tiles of {tile_n} keys, last first",
    )
