"""Pictures of P: how small it gets, a code as a logarithm, and the online softmax tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.numerics import E4M3
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.probabilities import CodeLogarithm, RangeOfP, SoftmaxWalk

LOWEST_LOG2 = -24


@style.styled
def fig_range_of_p(data: Sequence[RangeOfP], *, offset: int = 8, ax: Ax = None) -> Figure:
    """Histograms of log2 P, forward and backward, over what E4M3 can say; a row of two axes per entry of `data`."""
    axes = style.panels(2 * len(data), ax, rows=len(data), size=(11.0, 0.9 + 2.9 * len(data)), sharex=True)
    for row, study in enumerate(data):
        label = study.parameters.split(",")[0]
        for one, (where, measured_from) in zip(
            axes[2 * row : 2 * row + 2], (("forward", "row maximum = 1"), ("backward", "row sum = 1")), strict=True
        ):
            _draw_histogram(one, study, where, offset)
            one.set_title(f"{label}, {where}: {measured_from}", fontsize=10)
    for one in axes[-2:]:
        one.set_xlabel(r"$\log_2 P$")
    for one in axes[::2]:
        one.set_ylabel("share of the elements")
    lost = " and ".join(f"{100 * study.lost('backward', 0):.0f} %" for study in data)
    return style.finish(
        axes,
        ax,
        f"The backward stores P with rows that sum to 1: unscaled, {lost} of it becomes zero",
        "emulated",
        "exact P in float64, one head each; strips: what E4M3 makes of P stored as it is and stored as "
        f"2^{offset} P; the first bar holds everything below 2^{LOWEST_LOG2}",
    )


def _draw_histogram(one: Axes, study: RangeOfP, where: str, offset: int) -> None:
    """One histogram, and above it a strip per way of storing P."""
    edges = np.arange(LOWEST_LOG2, 0.5, 0.5)
    counts, _ = np.histogram(np.clip(study.log2_p[where], LOWEST_LOG2, -1e-9), edges)
    share = counts / counts.sum()
    one.bar(edges[:-1], share, 0.5, align="edge", color=style.SKY, edgecolor="white", linewidth=0.4)
    top = float(share.max())
    for level, shift in ((1.12, 0), (1.40, offset)):
        _draw_strip(one, top * level, top * 0.2, shift, study.lost(where, shift))
    one.set_ylim(0, top * 1.72)
    one.set_xlim(LOWEST_LOG2, 0)
    one.set_yticks([])
    one.grid(visible=False)


def _draw_strip(one: Axes, bottom: float, height: float, offset: int, lost: float) -> None:
    """Zero, subnormal and normal range of 2^offset P, with the share that becomes zero."""
    zero_below = np.log2(E4M3.min_subnormal) - 1 - offset
    normal_from = E4M3.min_exponent - offset
    spans = ((LOWEST_LOG2, zero_below, style.VERMILION), (zero_below, normal_from, style.ORANGE))
    for start, stop, color in (*spans, (normal_from, 0, style.GREEN)):
        one.barh(bottom, stop - start, height, left=start, align="edge", color=color, alpha=0.45)
    text: dict[str, Any] = {"va": "center", "fontsize": 8.5}
    middle = bottom + height / 2
    name = "P" if offset == 0 else f"$2^{{{offset}}}P$"
    one.text(LOWEST_LOG2 + 0.2, middle, f"{name}: {100 * lost:.1f} % become 0", ha="left", **text)
    one.text((zero_below + normal_from) / 2, middle, "subnormal", ha="center", **text)
    one.text(normal_from / 2, middle, "normal", ha="center", **text)


@style.styled
def fig_code_logarithm(data: CodeLogarithm, *, bias: float = -0.05, ax: Ax = None) -> Figure:
    """Codes against the logarithm of their values, and how far they are from a line. Two axes."""
    whole, rest = axes = style.panels(2, ax, size=(10.5, 4.2), width_ratios=(1.2, 1))
    whole.plot(data.log2_value, data.line, color=style.LIGHT, linewidth=5, label=r"$8\,(\log_2 v + 7)$")
    whole.plot(data.log2_value, data.codes, ".", color=style.BLUE, markersize=4, label="E4M3 code of $v$")
    whole.set_xlabel(r"$\log_2 v$")
    whole.set_ylabel("code, read as an integer")
    whole.set_yticks(range(0, 129, 16))
    whole.legend(loc="upper left")
    fraction = np.linspace(0, 1, 257)
    gap = 8 * (np.log2(1 + fraction) - fraction)
    rest.axhspan(-0.5, 0.5, color=style.LIGHT, alpha=0.5, linewidth=0)
    rest.text(0.5, -0.45, "within half a code", ha="center", va="bottom", fontsize=9, color=style.GREY)
    rest.plot(fraction, gap, color=style.SKY, label="$8\\,(\\log_2 v + 7)$ minus the code")
    rest.plot(fraction, gap + 8 * bias, color=style.VERMILION, label=f"shifted by $8c$, $c$ = {bias:g}")
    rest.set_ylim(-0.75, 1.25)
    rest.set_xlabel("position of $v$ between two powers of two")
    rest.set_ylabel("codes")
    rest.legend(loc="upper right")
    return style.finish(
        axes,
        ax,
        f"An E4M3 code is a logarithm to within {gap.max():.2f} of a code; a shift splits what is left in two",
        "definition",
        "all positive normal E4M3 numbers; the curve is 8 (log2(1 + f) - f), f the mantissa as a fraction",
    )


@style.styled
def fig_softmax_walk(data: SoftmaxWalk, rescaled: Mapping[str, Sequence[int]], *, ax: Ax = None) -> Figure:
    """One row's scores with its running and its lagging maximum, and how many rows each step rescales. Two axes.

    Args:
        data: the walk of one row.
        rescaled: label -> rows rescaled per step, of the same walk under other thresholds.
        ax: where to draw.
    """
    scores, bars = axes = style.panels(2, ax, rows=2, size=(10.0, 6.2), sharex=True, height_ratios=(1.7, 1))
    steps, tile_n = data.scores.shape
    position = (np.arange(steps * tile_n) + 0.5) / tile_n
    scores.plot(position, data.scores.ravel(), ".", color=style.SKY, markersize=4, label="score of one key")
    edges = np.arange(steps + 1)
    stairs: dict[str, Any] = {"baseline": None, "linewidth": 2}
    scores.stairs(data.running_max, edges, color=style.BLACK, label="running maximum", linestyle="dashed", **stairs)
    scores.stairs(data.reference, edges, color=style.VERMILION, label="maximum P is measured from", **stairs)
    low, high = float(np.quantile(data.scores, 0.02)), float(data.running_max.max())
    for step in np.flatnonzero(data.acc_scale != 1):
        text = "start" if step == 0 else f"O × {data.acc_scale[step]:.3g}"
        scores.text(step + 0.06, high + 0.3, text, fontsize=9, color=style.VERMILION, va="bottom")
    scores.set_ylim(low - 0.5, high + 3.5)
    scores.set_ylabel("score, in log2 units")
    scores.legend(loc="upper center", ncols=3)
    for number, (label, counts) in enumerate(rescaled.items()):
        width = 0.8 / len(rescaled)
        place = np.arange(steps) + 0.1 + number * width
        color = (style.LIGHT, style.VERMILION, style.BLUE)[number % 3]
        bars.bar(place, counts, width, align="edge", color=color, label=label)
    bars.set_xticks(edges[:-1] + 0.5, [f"{tile}" for tile in data.kv_tiles])
    bars.set_xlim(0, steps)
    bars.set_xlabel(f"key tile, in the order of visits ({tile_n} keys each)")
    bars.set_ylabel(f"rows rescaled, of {data.rows}")
    bars.set_ylim(0, 1.25 * data.rows)
    bars.legend(loc="upper center", ncols=len(rescaled))
    for one in axes:
        one.grid(visible=False)
        one.vlines(edges[1:-1], 0, 1, transform=one.get_xaxis_transform(), color=style.LIGHT, linewidth=0.8, zorder=0)
    return style.finish(
        axes,
        ax,
        f"A row is rescaled only when its maximum grows by more than {data.threshold:g} binades",
        "emulated",
        f"{data.parameters}; every row is set up in the first step",
    )
