"""Pictures of modelled time: what is busy when, what a step is made of, and predictions beside what others measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots.style import BLACK, BLUE, GREY, LIGHT, ROLE_COLORS, VERMILION, finish, panels, styled

_AGENTS = {"TMA": "#332288", "tensor core": "#882255"}
_OTHER = "#999999"
_ORDER = ("tensor core", "TMA", "softmax0", "softmax1", "correction", "mma", "load", "epilogue")


@styled
def fig_modelled_timeline(spans: Sequence[Any], *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """One row per agent and role: filled where it is busy, hatched where it waits for a barrier.

    Args:
        spans: with actor, what, start and end (cycles), as from `timing.resources.activity`.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    present = list(dict.fromkeys(span.actor for span in spans))
    names = [n for n in _ORDER if n in present] + [n for n in present if n not in _ORDER]
    axes = panels(1, ax, size=(9.0, 1.2 + 0.34 * len(names)))
    for row, name in enumerate(names):
        mine = [span for span in spans if span.actor == name]
        waits = [(s.start, s.end - s.start) for s in mine if s.what.startswith("waits")]
        runs = [(s.start, s.end - s.start) for s in mine if not s.what.startswith("waits")]
        axes[0].broken_barh(waits, (row - 0.14, 0.28), facecolors=LIGHT, edgecolors=GREY, linewidth=0, hatch="////")
        color = ROLE_COLORS.get(name) or _AGENTS.get(name) or _OTHER
        axes[0].broken_barh(runs, (row - 0.35, 0.7), facecolors=color, linewidth=0.2, edgecolors="white")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("cycles (modelled)")
    axes[0].grid(axis="y", visible=False)
    return finish(axes, ax, finding, "modelled", f"{parameters}; filled: busy, hatched: waits for a barrier")


@styled
def fig_step_roofline(
    kernels: Sequence[tuple[str, float, Sequence[Any]]], *, finding: str, parameters: str, ax: Sequence[Axes] | None = None
) -> Figure:
    """Cycles of one step of the main loop by unit, against the length of the step.

    Args:
        kernels: name, cycles of a step, and resources with name and cycles, as from `timing.resources.step_resources`.
        finding: the title.
        parameters: for the caption.
        ax: one axes per kernel; None for a new figure.
    """
    axes = panels(len(kernels), ax, size=(4.4 * len(kernels), 3.6), sharex=True)
    for panel, (name, cycles, resources) in zip(axes, kernels, strict=True):
        shown = [r for r in resources if r.cycles >= 0.01 * cycles]
        panel.barh([r.name for r in shown], [r.cycles for r in shown], color=BLUE)
        panel.axvline(cycles, color=VERMILION)
        panel.text(cycles, len(shown) - 0.4, f"{cycles:.0f} ", color=VERMILION, ha="right", va="top")
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
    return finish(axes, ax, finding, "published", parameters)
