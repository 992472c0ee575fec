"""What packed sequences cost: bytes, by arithmetic, and time, by the timing model's cycles of a tile and of a step.

Published for jagged keys: 2.54 PF at lengths up to 16,384, the distribution not stated. Ours: 256 sequences whose keys go in
even steps from 1 to 16,384, or all have 16,384; each has 256 queries of its own, 4 heads, head_dim 128, no mask.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.layouts import ATOM_BYTES, TILE_TOKENS
from mxfp8fa.published import BY_KEY, attention_flops
from mxfp8fa.studies.speeds import at_llm
from mxfp8fa.timing.chip import Increments, petaflops
from mxfp8fa.timing.rates import Rates

LONGEST, BATCH, HEAD_DIM = 16_384, 256, 128
QUERIES, HEADS = 256, 4  # queries of a sequence: a work tile of the forward, two steps of the backward
CLOCKS_GHZ = (1.58, 1.965)
# Moved per element of Q by the kernels beside the backward: dO and O read, codes of dO written (not in BF16), dQ cleared, read,
# converted.
AROUND_BYTES = {
    "backward": 2 + 2 + 1 + 4 + 4 + 2, "backward-fp16": 2 + 2 + 1 + 2 + 2 + 2, "flash-attn-4-backward": 2 + 2 + 4 + 4 + 2,
}  # fmt: skip
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


def ends_forward(
    work: NDArray[np.int64], increments: Increments, ctas: int, *, back_and_forth: bool
) -> NDArray[np.float64]:
    """Cycles at which every CTA ends: CTA c takes work tiles c, c + n, ..., or every other round from the other side.

    Args:
        work: steps of every work tile, in order.
        increments: cycles of a tile and a step.
        ctas: n.
        back_and_forth: as `kernels.forward.scheduler.JaggedScheduler` does.
    """
    rounds = np.pad(work, (0, -len(work) % ctas)).reshape(-1, ctas)
    if back_and_forth:
        rounds[1::2] = rounds[1::2, ::-1].copy()
    return increments.start + increments.tile * (rounds > 0).sum(0) + increments.step * rounds.sum(0)


def ends_backward(work: NDArray[np.int64], increments: Increments, rates: Rates) -> NDArray[np.float64]:
    """Cycles at which every SM ends: each work tile is a CTA, and starts where one has ended."""
    free = [0.0] * int(rates["sm_count"])
    for steps in work:
        heapq.heapreplace(free, free[0] + increments.cycles(1, int(steps)) + rates["cta_start"])
    return np.array(free)


@dataclass(frozen=True)
class JaggedSpeed:
    """One kernel on one distribution of lengths, modelled.

    Attributes:
        what: for labels.
        key: of the published figure that it stands beside.
        ends: cycles at which every SM ends.
        petaflops: at 1.58 and at 1.965 GHz; launches included.
    """

    what: str
    key: str
    ends: NDArray[np.float64]
    petaflops: tuple[float, float]

    @property
    def published(self) -> float:
        """PF."""
        return BY_KEY[self.key].values[0]


@dataclass(frozen=True)
class JaggedTail:
    """SMs at the end of a launch, and speeds.

    Queries that all sequences share ("broadcast Q") make the same work as 256 of its own for each: the same ends. That all
    CTAs of the backward then add to one dQ is not modelled as slower.

    Attributes:
        ends: order of work -> cycles at which every SM ends in the forward, the first to the last.
        backward_ends: likewise in the backward, long tiles first.
        speeds: of forward and backward.
        parameters: for the caption.
    """

    ends: dict[str, NDArray[np.float64]]
    backward_ends: NDArray[np.float64]
    speeds: tuple[JaggedSpeed, ...]
    parameters: str


def key_lengths(*, jagged: bool) -> NDArray[np.int64]:
    """Keys of the 256 sequences, shuffled, as they lie."""
    lengths = np.linspace(1, LONGEST, BATCH).astype(np.int64) if jagged else np.full(BATCH, LONGEST)
    return np.random.default_rng(0).permutation(lengths)


def modelled_increments(kernel: str) -> Increments:
    """Cycles of a kernel's tile and step, from short emulated runs; what a work table costs is not in them."""
    entry = at_llm(kernel)
    return Increments(entry["start"], entry["tile"], entry["step"])


def forward_speed(key: str, *, jagged: bool, kernel: str = "forward") -> JaggedSpeed:
    """A forward whose work tiles are 256 queries, longest first, back and forth."""
    rates, lengths = Rates(), key_lengths(jagged=jagged)
    work = np.repeat(np.sort(-(-lengths // TILE_TOKENS))[::-1], HEADS)
    ends = ends_forward(work, modelled_increments(kernel), int(rates["sm_count"]), back_and_forth=True)
    bound_us = HEADS * bytes_moved(lengths)[WAYS[0]] / rates["hbm"] / 1e6
    what = f"forward, {'jagged' if jagged else 'uniform'} keys"
    return JaggedSpeed(what, key, ends, _petaflops(lengths, ends.max(), rates, bound_us=bound_us))


def backward_speed(key: str, kernel: str, what: str) -> JaggedSpeed:
    """The backward on jagged keys, with the kernels before and after it."""
    rates, lengths = Rates(), key_lengths(jagged=True)
    tiles = HEADS * int(np.sum(-(-lengths // TILE_TOKENS)))
    ends = ends_backward(np.full(tiles, QUERIES // TILE_TOKENS), modelled_increments(kernel), rates)
    around_us = AROUND_BYTES[kernel] * BATCH * QUERIES * HEADS * HEAD_DIM / rates["hbm"] / 1e6 + 2 * rates["launch_us"]
    return JaggedSpeed(what, key, ends, _petaflops(lengths, ends.max(), rates, around_us=around_us, backward=True))


@cache
def speedups() -> dict[str, float]:
    """Key of a published ratio -> the same of ours over flash-attn-4's BF16 kernels (its cycles, our order of work), at one clock.

    Of the backward the better of both formats of dQ, since "up to" is published.
    """
    forward = {
        key: forward_speed(key, jagged=jagged).petaflops[0] / forward_speed(key, jagged=jagged, kernel="flash-attn-4").petaflops[0]
        for key, jagged in (("forward_jagged_speedup", True), ("forward_uniform_speedup", False))
    }
    key = "backward_recommendation_speedup"
    ours, half, bf16 = (
        backward_speed(key, kernel, "").petaflops[0] for kernel in ("backward", "backward-fp16", "flash-attn-4-backward")
    )
    return forward | {key: max(ours, half) / bf16}


def _petaflops(
    lengths: NDArray[np.int64],
    cycles: float,
    rates: Rates,
    *,
    bound_us: float = 0,
    around_us: float = 0,
    backward: bool = False,
) -> tuple[float, float]:
    """At both clocks; bound_us is what global memory needs."""
    flops = attention_flops(QUERIES * int(lengths.sum()), HEADS, HEAD_DIM, backward=backward)
    fixed = rates["launch_us"] + around_us
    slow, fast = (petaflops(flops, max(cycles / ghz / 1000, bound_us) + fixed) for ghz in CLOCKS_GHZ)
    return slow, fast


@cache
def jagged_tail() -> JaggedTail:
    """The forward's tail by order of work, and speeds beside the published ones."""
    rates, increments = Rates(), modelled_increments("forward")
    as_they_lie = np.repeat(-(-key_lengths(jagged=True) // TILE_TOKENS), HEADS)
    longest_first = np.sort(as_they_lie)[::-1]
    orders = {
        "as they lie": (as_they_lie, False),
        "longest first": (longest_first, False),
        "longest first, back and forth": (longest_first, True),
    }
    ends = {
        name: np.sort(ends_forward(work, increments, int(rates["sm_count"]), back_and_forth=turning))
        for name, (work, turning) in orders.items()
    }
    speeds = (
        forward_speed("forward_jagged_mxfp8", jagged=True),
        forward_speed("forward_uniform_mxfp8", jagged=False),
        backward_speed("backward_recommendation_fp32_dq", "backward", "backward, dQ in FP32"),
        backward_speed("backward_recommendation_fp16_dq", "backward-fp16", "backward, dQ in FP16"),
    )
    parameters = (
        f"B200, 148 SMs; {BATCH} sequences, keys in even steps from 1 to {LONGEST:,} (uniform: all {LONGEST:,}), {QUERIES} "
        f"queries each, {HEADS} heads, head_dim {HEAD_DIM}, no mask; 1.58 to 1.965 GHz; reading the work table is not "
        "modelled; published shapes are not stated beyond the longest. Queries that all sequences share make the same work. "
        "Over flash-attn-4's BF16 kernels, their cycles in our order of work: forward {:.2f}x jagged, {:.2f}x uniform, backward "
        "up to {:.2f}x (published, over other BF16 kernels: 1.59x, 1.51x, up to 1.52x)"
    ).format(*speedups().values())
    return JaggedTail(ends, np.sort(speeds[2].ends), speeds, parameters)
