"""Packed sequences: the two address spaces they lie in, and what they cost in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mxfp8fa.layouts import TILE_TOKENS
from mxfp8fa.plots import style
from mxfp8fa.studies.jagged import JaggedBytes, JaggedTail


@style.styled
def fig_jagged_bytes(data: JaggedBytes, *, ax: Any = None) -> Figure:
    """Bytes moved by raggedness and way, and the share of scale bytes that are padding. Two axes."""
    left, right = axes = style.panels(2, ax)
    for (way, ratio), color, marker in zip(
        data.moved.items(), (style.BLUE, style.ORANGE, style.VERMILION), style.MARKERS, strict=False
    ):
        left.plot(data.spread, ratio, marker=marker, color=color, label=way)
    left.set_xlabel("raggedness r: lengths from (1 - r) x longest to longest")
    left.set_ylabel("bytes moved / compact bytes")
    left.set_ylim(0)
    left.legend()
    right.plot(data.length, 100 * data.padding, "o-", color=style.BLUE)
    right.set_xscale("log", base=2)
    right.set_xlabel("mean length, tokens")
    right.set_ylabel("padding, % of scale bytes")
    right.set_ylim(0)
    finding = "A padded gather moves three to five times the bytes; split addressing pads scales only"
    return style.finish(axes, ax, finding, "definition", data.parameters)


@style.styled
def fig_address_spaces(lengths: Sequence[int], *, ax: Any = None) -> Figure:
    """Where the codes and the scales of each sequence lie; what is padding, grey.

    Args:
        lengths: of the sequences, in tokens.
        ax: where to draw; None for a new figure.
    """
    (axis,) = axes = style.panels(1, ax, size=(9.0, 3.4))
    tiles = -(-np.asarray(lengths) // TILE_TOKENS)
    starts, firsts = np.cumsum(lengths) - lengths, TILE_TOKENS * (np.cumsum(tiles) - tiles)
    colors = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY, style.VERMILION)
    for i, (length, start, first, count) in enumerate(zip(lengths, starts, firsts, tiles, strict=True)):
        color = colors[i % len(colors)]
        axis.barh(1, length, left=start, height=0.5, color=color)
        axis.barh(0, count * TILE_TOKENS, left=first, height=0.5, color=style.LIGHT)
        axis.barh(0, length, left=first, height=0.5, color=color)
        axis.plot([start, first], [0.75, 0.25], color=color, linewidth=1, linestyle="--")
        if length:
            axis.text(start + length / 2, 1.32, f"seq. {i}", ha="center", va="bottom", fontsize=9)
    for edge in TILE_TOKENS * np.arange(tiles.sum() + 1):
        axis.plot([edge, edge], [-0.25, 0.25], color=style.BLACK, linewidth=1)
    axis.set_yticks([1, 0], ["codes, compact", "scales, whole atoms"])
    axis.set_ylim(-0.5, 1.65)
    axis.set_xticks(TILE_TOKENS * np.arange(tiles.sum() + 1))
    axis.set_xlabel("place, in tokens (an atom of scales is 128 tokens of one head)")
    axis.grid(False)
    finding = "Codes lie end to end; every sequence has atoms of scales of its own"
    empty = [i for i, length in enumerate(lengths) if not length]
    parameters = f"lengths {', '.join(map(str, lengths))}; grey is padding"
    if empty:
        parameters += f"; sequences without tokens have no place in either: {', '.join(map(str, empty))}"
    return style.finish(axes, ax, finding, "definition", parameters)


@style.styled
def fig_jagged_tail(data: JaggedTail, *, ax: Any = None) -> Figure:
    """When each SM ends by order of work, and speeds beside the published ones. Two axes."""
    left, right = axes = style.panels(2, ax, size=(10.5, 4.4))
    for (order, ends), color in zip(data.ends.items(), (style.VERMILION, style.ORANGE, style.BLUE), strict=True):
        left.step(np.arange(1, len(ends) + 1), ends / ends.mean(), where="mid", color=color, label=f"forward, {order}")
    ends = data.backward_ends / data.backward_ends.mean()
    x = np.arange(1, len(ends) + 1)
    left.step(x, ends, where="mid", color=style.GREEN, linestyle="--", label="backward, longest first")
    left.set_xlabel("SMs, sorted by when they end")
    left.set_ylabel("end of an SM / mean of all SMs")
    left.set_ylim(0)
    left.legend(loc="lower right")
    for i, speed in enumerate(data.speeds):
        low, high = speed.petaflops
        right.barh(i, high - low, left=low, height=0.5, color=style.BLUE, label="ours, modelled" if not i else None)
        right.plot(speed.published, i, "D", color=style.VERMILION, label="published" if not i else None)
        right.text(low - 0.03, i, f"{low:.2f} to {high:.2f}", ha="right", va="center", fontsize=8)
    right.set_yticks(range(len(data.speeds)), [speed.what for speed in data.speeds])
    right.invert_yaxis()
    right.set_xlim(0)
    right.set_xlabel("PF")
    right.legend(loc="lower right")
    finding = "Longest first, back and forth, keeps SMs busy for 98 % of the time; our speeds stay below the published"
    return style.finish(axes, ax, finding, "modelled", data.parameters)
