"""Pictures of ways to P: accuracy by logit spread and length, polynomial degrees, and cycles of a step by resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies import step_costs
from mxfp8fa.studies.exponential import WAYS, Accuracy, Degree
from mxfp8fa.studies.step_costs import LoopCosts

WAY_STYLES = {
    "exact": (style.BLACK, "-"),
    "exact, rounded sum": (style.BLUE, "-"),
    "exact, dynamic scale": (style.SKY, "dashed"),
    "25 % polynomial": (style.GREEN, "dashed"),
    "25 % direct": (style.YELLOW, "-"),
    "50 % direct": (style.ORANGE, "-"),
    "direct": (style.VERMILION, "-"),
    "direct, float16 sum": (style.PURPLE, "dashed"),
}


@style.styled
def fig_ways(data: Mapping[str, Sequence[Accuracy]], *, ax: Ax = None) -> Figure:
    """SQNR of O and dQ by logit spread, of O where P alone is approximate, its bias, and O by length. Five axes.

    Args:
        data: `studies.exponential.GROUPS` -> accuracy of each case and way.
        ax: where to draw.
    """
    axes = style.panels(5, ax, size=(14.0, 4.4))
    everything, alone, lengths, _ = data.values()
    _lines(axes[0], everything, lambda a: a.db["O"], "O, all in MXFP8: SQNR, dB")
    _lines(axes[1], everything, lambda a: a.db["dQ"], "dQ, all in MXFP8: SQNR, dB")
    _lines(axes[2], alone, lambda a: a.db["O"], "O, only P approximate: SQNR, dB")
    _lines(axes[3], alone, lambda a: 100 * a.bias, "O, only P approximate: bias, %")
    _lines(axes[4], lengths, lambda a: a.db["O"], "O, logit std 2: SQNR, dB")
    for one in axes[:4]:
        one.set_xlabel("logit std")
    axes[4].set_xlabel("keys")
    axes[0].legend(loc="lower left", fontsize=7)
    db = {way: [a.db["O"] for a in everything if a.way == way] for way in ("exact", "direct")}
    lost = max(exact - direct for exact, direct in zip(db["exact"], db["direct"], strict=True))
    return style.finish(
        axes,
        ax,
        f"Without exponentials O loses at most {lost:.1f} dB; dividing by the rounded sum takes the bias away",
        "emulated",
        "Gaussian, head_dim 128, one head, 256 queries, 512 keys (by length: 32 queries), not causal; P alone: Q, K, V "
        "representable, V with mean 1; bias is along the exact O",
    )


def _lines(ax: Axes, data: Sequence[Accuracy], value: Callable[[Accuracy], float], label: str) -> None:
    """One curve per way; the number of a case, the last word that is one, is x."""
    for way in WAYS:
        mine = [a for a in data if a.way == way]
        x = [next(float(word) for word in a.case.split() if word.replace(".", "").isdigit()) for a in mine]
        color, line = WAY_STYLES[way]
        y = [value(a) for a in mine]
        ax.plot(x, y, color=color, linestyle=line, marker="o", markersize=3, linewidth=1.4, label=way)
        ax.set_xscale("log", base=2)
        ax.set_xticks(x, [f"{each:g}" for each in x])
    ax.set_title(label, fontsize=9)


@style.styled
def fig_degrees(data: Sequence[Degree], exact: Degree, *, ax: Ax = None) -> Figure:
    """SQNR of O lost by polynomials of each degree, and the share of codes that change. Two axes.

    Args:
        data: degrees, ascending.
        exact: what they are compared with.
        ax: where to draw.
    """
    loss, codes = axes = style.panels(2, ax, size=(9.0, 3.8))
    degrees = [d.degree for d in data]
    floor = 1e-4
    for label, color, lost in (
        ("only P approximate", style.VERMILION, [exact.p_only_db - d.p_only_db for d in data]),
        ("all in MXFP8", style.BLUE, [exact.db - d.db for d in data]),
    ):
        loss.semilogy(degrees, np.maximum(lost, floor), marker="o", color=color, label=label)
    loss.axhline(0.01, color=style.GREY, linestyle="dotted", linewidth=1)
    loss.text(degrees[-1], 0.0115, "0.01 dB", ha="right", fontsize=8, color=style.GREY)
    loss.set_ylabel("SQNR of O lost, dB")
    loss.legend()
    codes.semilogy(degrees, [d.codes_changed for d in data], marker="o", color=style.BLUE, label="codes of P that change")
    codes.semilogy(
        degrees, [d.largest_error for d in data], marker="s", color=style.ORANGE, label="largest relative error"
    )
    codes.axhline(2.0**-4, color=style.GREY, linestyle="dotted", linewidth=1)
    codes.text(degrees[-1], 2.0**-4 * 1.15, "half a step of E4M3", ha="right", fontsize=8, color=style.GREY)
    codes.legend()
    for one in axes:
        one.set_xticks(degrees)
        one.set_xlabel("degree of the polynomial")
    enough = next(d.degree for d in data if exact.p_only_db - d.p_only_db < 0.01)
    return style.finish(
        axes,
        ax,
        f"Degree {enough} is enough: E4M3 keeps three mantissa bits of P",
        "emulated",
        "Gaussian, head_dim 128, logit std 2, 512 tokens, one head; minimax polynomials for 2^f on [0, 1) in float32; losses "
        f"below {floor:g} dB are drawn there",
    )


SOFTMAX_COLORS = {
    "MUFU": style.VERMILION, "FMA": style.BLUE, "ALU": style.GREEN, "conversions": style.ORANGE, "issue": style.GREY,
    "TMEM loads": style.MEMORY_COLORS["TMEM"], "TMEM stores": style.PURPLE,
}  # fmt: skip


@style.styled
def fig_step_cycles(data: Sequence[LoopCosts], *, ax: Ax = None) -> Figure:
    """Cycles of one KV step by resource for every kernel and way, tensor core and shared memory as lines. One axes.

    Args:
        data: counts of steady loops.
        ax: where to draw.
    """
    (one,) = axes = style.panels(1, ax, size=(11.0, 1.8 + 0.62 * len(data)))
    low, high = step_costs.published_cycles()
    one.axvspan(low, high, color=style.LIGHT, alpha=0.6, linewidth=0)
    one.text((low + high) / 2, -0.95, "published speed", ha="center", fontsize=8, color=style.GREY)
    lines = (
        (step_costs.tensor_cycles(), "tensor core", "solid", style.BLACK),
        (step_costs.shared_memory_cycles(pair=False), "shared memory, one CTA", "dashed", style.MEMORY_COLORS["SMEM"]),
        (step_costs.shared_memory_cycles(pair=True), "shared memory, pair", "dotted", style.MEMORY_COLORS["SMEM"]),
    )
    for cycles, label, line, color in lines:
        one.axvline(cycles, color=color, linestyle=line, linewidth=1.6, label=label, zorder=1)
    names = [*SOFTMAX_COLORS]
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        rows = np.arange(len(data)) - 0.4 + (number + 0.5) * height
        if name == "issue":
            one.barh(rows, [each.issue() for each in data], height, color=SOFTMAX_COLORS[name], label="issue slots")
            continue
        used = [each.step(name) for each in data]
        value = np.array([u.value for u in used])
        errors = np.array([value - [u.low for u in used], [u.high for u in used] - value])
        one.barh(
            rows, value, height, xerr=errors, color=SOFTMAX_COLORS[name], label=name,
            error_kw={"linewidth": 0.8, "capsize": 1.5},
        )  # fmt: skip
    one.set_yticks(range(len(data)), [each.name for each in data])
    one.set_ylim(len(data) - 0.4, -1.2)
    one.set_xlabel("cycles of one KV step: 2 x 128 queries, 128 keys, head_dim 128")
    one.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    direct = next(each for each in data if each.name == "direct")
    busiest = max(direct.issue(), *(direct.step(name).value for name in step_costs.PIPES.values()))
    share = next(each for each in data if each.name == "exact").step("MUFU").value
    return style.finish(
        axes,
        ax,
        f"With exponentials the special function unit bounds a step at {share:.0f} cycles; direct codes leave "
        f"{max(busiest, step_costs.tensor_cycles()):.0f}",
        "modelled",
        "SASS of the steady loop, counted in compiled kernels, times third-party rates; whiskers: all uncertain rates at "
        "either end. Bars are lower bounds, not times: nothing is said about how well they overlap. Lines are those of eight-bit "
        "operands; flash-attn-4 is BF16. Published: 2.82 to "
        f"2.85 PF at {step_costs.CLOCKS_GHZ[0]} to {step_costs.CLOCKS_GHZ[1]} GHz",
    )
