"""What packed sequences cost in bytes: split addressing against a gather into padded memory. Arithmetic, nothing measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.layouts import ATOM_BYTES, TILE_TOKENS

LONGEST, BATCH, HEAD_DIM = 16_384, 256, 128
WAYS = ("split addressing", "gather, padded to 128", "gather, padded to the longest")


@dataclass(frozen=True)
class JaggedBytes:
    """Bytes of K and V, codes and scales, that a forward call of one head moves.

    Attributes:
        spread: r: lengths are even steps from (1 - r) * longest to longest.
        moved: by way, of each spread: bytes over those of the compact codes and scales.
        length: mean of lengths that are even steps from 1 to twice as much.
        padding: of each, the share of scale bytes that are padding.
        parameters: for the caption.
    """

    spread: NDArray[np.float64]
    moved: dict[str, NDArray[np.float64]]
    length: NDArray[np.int64]
    padding: NDArray[np.float64]
    parameters: str


def scale_padding(lengths: NDArray[np.int64]) -> float:
    """The share of scale bytes that are padding when every sequence has whole atoms of its own."""
    return 1 - lengths.sum() / (TILE_TOKENS * np.sum(-(-lengths // TILE_TOKENS)))


def bytes_moved(lengths: NDArray[np.int64]) -> dict[str, int]:
    """Bytes of K and V by way: a gather reads what is compact, writes what is padded, and the kernel reads that."""
    row, tokens, tiles = 2 * HEAD_DIM, int(lengths.sum()), int(np.sum(-(-lengths // TILE_TOKENS)))
    longest = len(lengths) * -(-int(lengths.max()) // TILE_TOKENS)
    scales = 2 * ATOM_BYTES
    gathered = [row * tokens + 2 * row * TILE_TOKENS * n + scales * n for n in (tiles, longest)]
    return dict(zip(WAYS, (row * tokens + scales * tiles, *gathered), strict=True))


def jagged_bytes() -> JaggedBytes:
    """By raggedness, and padding by length."""
    spread = np.linspace(0, 1, 21)
    batches = [np.linspace((1 - r) * LONGEST, LONGEST, BATCH).astype(np.int64).clip(min=1) for r in spread]
    moved = [bytes_moved(lengths) for lengths in batches]
    compact = np.array([(2 * HEAD_DIM + 2 * ATOM_BYTES / TILE_TOKENS) * lengths.sum() for lengths in batches])
    length = 2 ** np.arange(4, 14)
    padding = np.array([scale_padding(np.arange(1, 2 * n)) for n in length])
    parameters = f"{BATCH} sequences, longest {LONGEST:,}; K and V of a head of {HEAD_DIM}; arithmetic; right: lengths 1 to 2 n - 1"
    ways = {way: np.array([m[way] for m in moved]) / compact for way in WAYS}
    return JaggedBytes(spread, ways, length, padding, parameters)
