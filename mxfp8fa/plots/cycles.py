"""Pictures of modelled time: what is busy when, what a step is made of, and predictions beside what others measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots.style import (
    BLACK,
    BLUE,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    ROLE_COLORS,
    SKY,
    VERMILION,
    finish,
    panels,
    styled,
)

_UNIT_COLORS = {
    "tensor core": "#882255", "MUFU": VERMILION, "FMA": BLUE, "ALU": SKY, "convert": ORANGE, "TMEM loads": PURPLE,
    "issue slots": GREY, "SMEM": "#DDCC77", "shared memory port": "#DDCC77", "TMA": "#332288",
}  # fmt: skip
_ORDER = ("softmax0", "softmax1", "correction", "compute", "reduce", "scales", "mma", "load", "epilogue")


@styled
def fig_modelled_timeline(
    units: Mapping[str, Sequence[float]],
    roles: Sequence[tuple[str, str, float, float]],
    *,
    bin_cycles: int,
    window: tuple[float, float],
    finding: str,
    parameters: str,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Above, how busy each unit is over time; below, what each role does: filled where it runs, hatched where it waits.

    Args:
        units: unit -> share of each `bin_cycles` cycles in which it is busy, from cycle 0 on.
        roles: role, "runs" or "waits: BARRIER", first and last cycle.
        bin_cycles: see units.
        window: first and last cycle shown.
        finding: the title.
        parameters: for the caption.
        ax: two axes; None for a new figure.
    """
    present = list(dict.fromkeys(name for name, *_ in roles if name != "idle"))
    names = [n for n in _ORDER if n in present] + [n for n in present if n not in _ORDER]
    sizes = {"height_ratios": (len(units), max(0.8 * len(names), 1))}
    height = 1.4 + 0.36 * (len(units) + 0.8 * len(names))
    upper, lower = axes = panels(2, ax, rows=2, size=(9.6, height), sharex=True, **sizes)
    for row, (name, shares) in enumerate(units.items()):
        edges = [bin_cycles * i for i in range(len(shares) + 1)]
        upper.stairs([row + 0.42 - 0.84 * s for s in shares], edges, baseline=row + 0.42, fill=True, color=_UNIT_COLORS[name])
        inside = [s for i, s in enumerate(shares) if window[0] <= bin_cycles * i < window[1]]
        upper.text(1.005, row, f"{100 * sum(inside) / max(len(inside), 1):.0f} %", transform=upper.get_yaxis_transform(),
                   va="center", fontsize=8)  # fmt: skip
    for row, name in enumerate(names):
        mine = [(what, start, end - start) for who, what, start, end in roles if who == name]
        waits = [(start, length) for what, start, length in mine if what != "runs"]
        lower.broken_barh(waits, (row - 0.14, 0.28), facecolors=LIGHT, edgecolors=GREY, linewidth=0, hatch="////")
        runs = [(start, length) for what, start, length in mine if what == "runs"]
        color = ROLE_COLORS.get(name, BLACK)
        lower.broken_barh(runs, (row - 0.35, 0.7), facecolors=color, linewidth=0.2, edgecolors="white")
    for panel, labels in ((upper, list(units)), (lower, names)):
        panel.set_yticks(range(len(labels)), labels)
        panel.set_ylim(len(labels) - 0.45, -0.55)
        panel.set_xlim(*window)
        panel.grid(axis="y", visible=False)
    lower.set_xlabel("cycles (modelled)")
    above = f"above: share of {bin_cycles} cycles in which a unit is busy, and its mean in the window"
    below = "below: first warp of each role, filled: runs, hatched: waits for a barrier"
    return finish(axes, ax, finding, "modelled", f"{parameters}; {above}; {below}")


@styled
def fig_step_roofline(
    kernels: Sequence[tuple[str, float, Sequence[tuple[str, float]]]],
    *,
    finding: str,
    parameters: str,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """Cycles of one step of the main loop by unit, against the length of the step.

    Args:
        kernels: name, cycles of a step, and (unit, cycles) fullest first.
        finding: the title.
        parameters: for the caption.
        ax: one axes per kernel; None for a new figure.
    """
    axes = panels(len(kernels), ax, size=(4.4 * len(kernels), 3.6), sharex=True)
    for panel, (name, cycles, resources) in zip(axes, kernels, strict=True):
        shown = [(unit, busy) for unit, busy in resources if busy >= 0.02 * cycles]
        panel.barh([unit for unit, _ in shown], [busy for _, busy in shown], color=[_UNIT_COLORS.get(u, LIGHT) for u, _ in shown])
        panel.axvline(cycles, color=VERMILION)
        panel.text(cycles, len(shown) - 1, f"a step: {cycles:.0f} ", color=VERMILION, ha="right", va="center", fontsize=9)
        panel.invert_yaxis()
        panel.set_title(name)
        panel.set_xlabel("cycles of a step")
        panel.grid(axis="y", visible=False)
    return finish(axes, ax, finding, "modelled", f"{parameters}; bars: the unit is occupied, line: length of the step")


@styled
def fig_predicted(rows: Sequence[tuple[str, float, float]], *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """Predicted over published time, one dot per row, grouped by table.

    Args:
        rows: table, published and predicted time.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    tables = list(dict.fromkeys(name for name, _, _ in rows))
    axes = panels(1, ax, size=(8.0, 3.8))
    for column, name in enumerate(tables):
        errors = [100 * (predicted / published - 1) for table, published, predicted in rows if table == name]
        offsets = [column + (i - (len(errors) - 1) / 2) * 0.8 / max(len(errors), 8) for i in range(len(errors))]
        axes[0].plot(offsets, errors, "o", color=BLUE)
    axes[0].axhspan(-10, 10, color=LIGHT, zorder=0)
    axes[0].axhline(0, color=BLACK, linewidth=0.8)
    axes[0].set_xticks(range(len(tables)), tables)
    axes[0].set_ylabel("predicted over published time, %")
    axes[0].grid(axis="x", visible=False)
    return finish(axes, ax, finding, "modelled", f"{parameters}; grey: within 10 %")


_KIND_COLORS = {"published": GREY, "modelled": BLUE, "measured": VERMILION, "emulated": "#117733"}


@styled
def fig_speeds(
    rows: Sequence[tuple[str, str, float, float]], *, unit: str, finding: str, parameters: str, ax: Axes | None = None
) -> Figure:
    """Speeds side by side, each bar with its kind.

    Args:
        rows: what, kind, low and high end (equal for one number).
        unit: of both ends.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    axes = panels(1, ax, size=(9.0, 1.4 + 0.32 * len(rows)))
    for place, (_, kind, low, high) in enumerate(rows):
        axes[0].barh(place, low, color=_KIND_COLORS[kind], height=0.7)
        axes[0].barh(place, high - low, left=low, color=_KIND_COLORS[kind], height=0.7, alpha=0.45)
        number = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        axes[0].text(high, place, f" {number} {unit}, {kind}", va="center", fontsize=8)
    axes[0].set_yticks(range(len(rows)), [what for what, *_ in rows], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlim(0, 1.35 * max(high for *_, high in rows))
    axes[0].set_xlabel(unit)
    axes[0].grid(axis="y", visible=False)
    return finish(axes, ax, finding, "published", f"and modelled or measured, as written on each bar: {parameters}")


@styled
def fig_sensitivity(
    changes: Sequence[tuple[str, float, float]], *, finding: str, parameters: str, ax: Axes | None = None
) -> Figure:
    """By how much a result moves when an uncertain constant takes either end of its range.

    Args:
        changes: constant, relative change at its low and at its high end.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    axes = panels(1, ax, size=(8.0, 1.4 + 0.3 * len(changes)))
    for place, (_, low, high) in enumerate(changes):
        axes[0].barh(place - 0.18, 100 * low, height=0.34, color=SKY, label="" if place else "at its low end")
        axes[0].barh(place + 0.18, 100 * high, height=0.34, color=VERMILION, label="" if place else "at its high end")
    axes[0].set_yticks(range(len(changes)), [name for name, *_ in changes])
    axes[0].invert_yaxis()
    axes[0].axvline(0, color=BLACK, linewidth=0.8)
    axes[0].set_xlabel("change of the cycles, %")
    axes[0].legend(loc="lower right")
    axes[0].grid(axis="y", visible=False)
    return finish(axes, ax, finding, "modelled", parameters)


@styled
def fig_speed_by_length(
    curves: Mapping[str, Sequence[tuple[int, float, float]]],
    lines: Mapping[str, float],
    *,
    finding: str,
    parameters: str,
    ax: Axes | None = None,
) -> Figure:
    """PF by sequence length, each as a band from one end of the clock to the other, and published speeds as lines.

    Args:
        curves: name -> (length, PF at the low clock, PF at the high one).
        lines: name -> published PF.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    axes = panels(1, ax, size=(8.0, 4.4))
    for color, (name, points) in zip((BLUE, ORANGE, PURPLE, SKY, BLACK), curves.items(), strict=False):
        lengths = [length for length, *_ in points]
        axes[0].fill_between(lengths, [p[1] for p in points], [p[2] for p in points], color=color, alpha=0.4, label=name)
    for name, value in lines.items():
        axes[0].axhline(value, color=GREY, linewidth=1.2, linestyle="--")
        axes[0].text(lengths[0], value, f"{name}, published {value:g} PF", va="bottom", fontsize=8, color=GREY)
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(lengths, [str(length) for length in lengths])
    axes[0].set_xlabel("queries and keys")
    axes[0].set_ylabel("PF")
    axes[0].set_ylim(0, None)
    axes[0].legend(loc="lower right", ncols=2)
    return finish(axes, ax, finding, "modelled", parameters)
