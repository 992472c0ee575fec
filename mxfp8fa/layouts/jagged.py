"""Packed sequences of different lengths: compact codes, scales padded to whole tiles of 128 tokens.

Sequences lie end to end along the token axis, `cu_seqlens[i]` is where sequence i starts. Element codes are addressed
like that, without padding. Scale tensors cannot be, because a 128x4 atom is indivisible: every sequence gets
ceil(len / 128) atoms of its own, starting at tile `cu_tiles[i]`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import as_array
from mxfp8fa.numerics.mx_tensor import BLOCK

TILE_TOKENS = 128


def cu_tiles(cu_seqlens: ArrayLike, tile_tokens: int = TILE_TOKENS) -> NDArray[np.int32]:
    """First tile of every sequence, and the number of tiles: int32 (number of sequences + 1,).

    Raises:
        ValueError: `cu_seqlens` is not cumulative lengths, `tile_tokens` is not a positive integer, or there are more
            tiles than int32 can number.
    """
    if not isinstance(tile_tokens, int | np.integer) or tile_tokens < 1:
        raise ValueError(f"tile_tokens = {tile_tokens!r}; allowed: integers from 1")
    lengths = np.diff(_cumulative(cu_seqlens))
    tiles = np.concatenate([[0], np.cumsum(-(-lengths // tile_tokens))])
    if tiles[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"cu_seqlens makes {tiles[-1]} tiles of {tile_tokens} tokens; allowed: at most 2^31 - 1")
    return tiles.astype(np.int32)


def cu_blocks(cu_seqlens: ArrayLike) -> NDArray[np.int32]:
    """First scale block of every sequence when blocks of 32 tokens restart at each, and the number of blocks."""
    return cu_tiles(cu_seqlens, BLOCK)


def padded_index(cumulative: ArrayLike, tile: int) -> NDArray[np.int64]:
    """Slot of every unit (token or block) when every sequence is padded to whole tiles of `tile` units."""
    starts = _cumulative(cumulative)
    shift = cu_tiles(starts, tile)[:-1].astype(np.int64) * tile - starts[:-1]
    return np.arange(starts[-1]) + np.repeat(shift, np.diff(starts))


def block_starts(cu_seqlens: ArrayLike) -> NDArray[np.int64]:
    """First token of every block of 32, blocks restarting at every sequence."""
    starts = _cumulative(cu_seqlens)
    blocks = cu_blocks(starts).astype(np.int64)
    within = np.arange(blocks[-1]) - np.repeat(blocks[:-1], np.diff(blocks))
    return np.repeat(starts[:-1], np.diff(blocks)) + BLOCK * within


def _cumulative(values: ArrayLike) -> NDArray[np.int64]:
    array = as_array(values, "cu_seqlens")
    if array.ndim != 1 or array.size < 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"cu_seqlens has shape {array.shape} and dtype {array.dtype}; allowed: a non-empty 1-D integer array"
        )
    array = array.astype(np.int64)
    if array[0] != 0 or np.any(np.diff(array) < 0):
        raise ValueError(f"cu_seqlens = {array.tolist()} must start at 0 and never decrease")
    return array
