"""Pictures of MXFP8 attention: SQNR by configuration and length, the scale of P, codes without exponentials, leaks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.numerics.sqnr import BORDERLINE_DB, PASS_DB, StrictSummary
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.published import BY_KEY
from mxfp8fa.studies.choices import CodesOfP, Leak, ScaleOfP, Sweep

WAY_COLORS = (style.BLUE, style.SKY, style.ORANGE, style.VERMILION)


def _published_band(ax: Axes, *, vertical: bool) -> None:
    """The published SQNR range as a band, and the thresholds of our verdicts as lines."""
    low, high = BY_KEY["sqnr"].values
    (ax.axvspan if vertical else ax.axhspan)(low, high, color=style.LIGHT, alpha=0.5, zorder=0, linewidth=0)
    for threshold in (PASS_DB, BORDERLINE_DB):
        (ax.axvline if vertical else ax.axhline)(threshold, color=style.GREY, linewidth=1, linestyle="dotted", zorder=1)


@style.styled
def fig_sqnr(data: StrictSummary, *, options: str = "rule rceil", ax: Ax = None) -> Figure:
    """SQNR of O, dQ, dK and dV by configuration, against the published range. One axes.

    Args:
        data: the grades.
        options: with which they were made, in words, for the caption.
        ax: where to draw.
    """
    names = list(dict.fromkeys(entry.configuration for entry in data.entries))
    (one,) = axes = style.panels(1, ax, size=(9.0, 1.6 + 0.5 * len(names)))
    _published_band(one, vertical=True)
    for marker, (tensor, color) in zip(style.MARKERS, style.TENSOR_COLORS.items(), strict=False):
        entries = [entry for entry in data.entries if entry.tensor == tensor]
        rows = [names.index(entry.configuration) for entry in entries]
        one.scatter([entry.db for entry in entries], rows, s=52, color=color, marker=marker, label=tensor, zorder=3)
    one.set_yticks(range(len(names)), names)
    one.set_ylim(len(names) - 0.5, -0.9)
    one.set_xlabel("SQNR against float64, dB")
    low, high = BY_KEY["sqnr"].values
    one.text((low + high) / 2, -0.6, f"published: {BY_KEY['sqnr'].text()}", ha="center", va="center", fontsize=9)
    one.text(BORDERLINE_DB, -0.6, " borderline", va="center", fontsize=8, color=style.GREY)
    one.text(PASS_DB, len(names) - 0.6, " pass", va="center", fontsize=8, color=style.GREY)
    one.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ours = ", ".join(f"{data.count(grade)} {grade}" for grade in ("pass", "borderline", "fail"))
    lowest = min(data.entries, key=lambda entry: entry.db)
    return style.finish(
        axes,
        ax,
        f"{ours}; lowest: {lowest.tensor} of {lowest.configuration}, {lowest.db:.1f} dB",
        "emulated",
        f"MXFP8 attention in NumPy, forward and backward, {options}, float32 accumulation. Published on B200: "
        f"{BY_KEY['strict_summary'].text()}; its shapes and thresholds are not stated, ours are {PASS_DB:g} and "
        f"{BORDERLINE_DB:g} dB",
    )


@style.styled
def fig_lengths(data: Mapping[str, Sweep], *, ax: Ax = None) -> Figure:
    """SQNR by number of keys, one axes per entry of `data` (label -> sweep)."""
    axes = style.panels(len(data), ax, size=(1.0 + 4.2 * len(data), 4.2), sharey=True)
    for one, (label, sweep) in zip(axes, data.items(), strict=True):
        _published_band(one, vertical=False)
        for marker, (tensor, db) in zip(style.MARKERS, sweep.db.items(), strict=False):
            one.plot(sweep.x, db, marker=marker, color=style.TENSOR_COLORS[tensor], label=tensor)
        one.set_xscale("log", base=2)
        one.set_xticks(sweep.x, [f"{length:g}" for length in sweep.x])
        one.set_title(label)
        one.set_xlabel("keys")
    axes[0].set_ylabel("SQNR against float64, dB")
    axes[0].set_ylim(14, 29)
    axes[0].legend(loc="lower left", ncols=4)
    return style.finish(
        axes,
        ax,
        "Length costs next to nothing; wide logits cost 4 to 5 dB",
        "emulated",
        f"{next(iter(data.values())).parameters}; grey band: the published range",
    )


@style.styled
def fig_p_scale(data: Mapping[str, ScaleOfP], *, ax: Ax = None) -> Figure:
    """SQNR of O and dV by the constant scale of P, one axes per entry of `data` (label -> study)."""
    axes = style.panels(len(data), ax, size=(1.0 + 4.2 * len(data), 4.2), sharey=True)
    for one, (label, study) in zip(axes, data.items(), strict=True):
        for marker, tensor in zip(style.MARKERS, ("O", "dV"), strict=False):
            color = style.TENSOR_COLORS[tensor]
            one.plot(study.offset_log2, study.db[tensor], marker=marker, color=color, label=f"{tensor}, constant scale")
        last, dynamic = study.offset_log2[-1] + 1, study.dynamic_db["O"]
        one.plot([last], [dynamic], "o", mfc="white", color=style.TENSOR_COLORS["O"], label="O, dynamic scale")
        labels = [f"$2^{offset}$" for offset in study.offset_log2]
        one.set_xticks([*study.offset_log2, last], [*labels, "dynamic"])
        one.set_title(label)
        one.set_xlabel("factor on stored P")
    axes[0].set_ylabel("SQNR against float64, dB")
    axes[-1].legend(loc="lower right")
    return style.finish(
        axes,
        ax,
        "Unscaled P ruins dV; a constant factor of 2⁸ does as well as a dynamic scale",
        "emulated",
        next(iter(data.values())).parameters,
    )


@style.styled
def fig_codes(data: CodesOfP, *, ax: Ax = None) -> Figure:
    """Exact and direct E4M3 codes of P, their relative error, and the SQNR of O that follows. Three axes."""
    steps, error, sqnr = axes = style.panels(3, ax, size=(12.0, 4.4), width_ratios=(1, 1.2, 1))
    near = data.log2_p >= -2.0
    for way, color in (("exact", style.BLUE), ("direct", style.VERMILION)):
        steps.step(data.log2_p[near], data.codes[way][near], color=color, linewidth=1.4, label=way)
        error.plot(data.log2_p, 100 * data.relative_error[way], color=color, linewidth=0.9, label=way)
    steps.set_ylabel("E4M3 code of $2^8 P$")
    steps.legend(loc="upper left")
    error.set_ylabel("error of stored P, %")
    error.set_xlim(-4, 0)
    for one in (steps, error):
        one.set_xlabel(r"$\log_2 P$")
    for marker, color, (way, db) in zip(style.MARKERS, WAY_COLORS, data.sqnr.db.items(), strict=False):
        sqnr.plot(data.sqnr.x, db, marker=marker, color=color, label=way)
        sqnr.plot(data.p_only.x, data.p_only.db[way], marker=marker, color=color, linestyle="dashed", mfc="white")
    sqnr.text(data.p_only.x[-1], 37, "only P\napproximate", ha="right", fontsize=8, color=style.GREY)
    sqnr.text(data.sqnr.x[-1], 23, "Q, K, V in\nMXFP8 too", ha="right", fontsize=8, color=style.GREY)
    sqnr.set_xscale("log", base=2)
    sqnr.set_xticks(data.sqnr.x, [f"{x:g}" for x in data.sqnr.x])
    sqnr.set_xlabel("standard deviation of the logits")
    sqnr.set_ylabel("SQNR of O, dB")
    sqnr.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    last = {way: db[0] for way, db in data.sqnr.db.items()}
    cost = last["exact, unrounded sum"] - last["direct, rounded sum"]
    return style.finish(
        axes,
        ax,
        f"A code is a logarithm: skipping the exponential costs {cost:.1f} dB at logit std 1 and less beyond",
        "emulated",
        data.parameters,
    )


@style.styled
def fig_leak(data: Leak, *, ax: Ax = None) -> Figure:
    """Change of earlier rows of O against the gain on token 31, causal mask on. One axes."""
    (one,) = axes = style.panels(1, ax, size=(8.4, 4.4))
    # Exact zeros have no place on a logarithmic axis: they are drawn on a line of their own at the bottom.
    zero = 1e-9
    colors = (style.PURPLE, style.VERMILION, style.ORANGE, style.BLUE, style.SKY)
    for marker, color, (way, change) in zip(style.MARKERS, colors, data.change.items(), strict=False):
        size = 9 if not change.any() and marker == "D" else 5
        one.plot(data.gain, np.maximum(change, zero), marker=marker, markersize=size, color=color, label=way)
    one.set_xscale("log", base=2)
    one.set_yscale("log")
    one.set_ylim(zero / 2, 1)
    ticks = [10.0**n for n in range(-8, 1, 2)]
    one.set_yticks([zero, *ticks], ["exactly 0", *(f"$10^{{{n}}}$" for n in range(-8, 1, 2))])
    one.minorticks_off()
    one.set_xlabel("factor on token 31")
    one.set_ylabel("largest change of O, rows 0 to 30")
    one.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.finish(
        axes,
        ax,
        "Blocks over tokens let an outlier reach earlier rows; 1x32 along d leaks exactly nothing",
        "emulated",
        data.parameters,
    )
