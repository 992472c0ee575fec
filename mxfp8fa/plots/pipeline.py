"""Pictures of a recorded run: who did what when, what tensor memory was used for, which barrier joins whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots.style import GREY, LIGHT, ROLE_COLORS, VERMILION, finish, panels, styled

_AGENT_COLORS = {"TMA": "#332288", "tensor core": "#882255", "bulk store": "#DDCC77"}
_RUN = "#56B4E9"


def _color(actor: str) -> str:
    role = actor.split(",")[0]
    return ROLE_COLORS.get(role) or _AGENT_COLORS.get(role) or _RUN


def _rows(names: Sequence[str]) -> list[str]:
    """Warps in the order of their numbers, then agents."""
    agents = [n for n in names if n in _AGENT_COLORS or n.startswith(("tcgen05", "cp.", "st.", "red."))]
    return [n for n in sorted(names) if n not in agents] + agents


@styled
def fig_timeline(trace: Any, *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """One row per warp and asynchronous agent: filled where it runs, hatched where it waits.

    Args:
        trace: an `emulator.Trace` after a run.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    names = _rows(list(dict.fromkeys(span.actor for span in trace.spans)))
    axes = panels(1, ax, size=(9.0, 1.2 + 0.34 * len(names)))
    for span in trace.spans:
        row, width = names.index(span.actor), max(span.end - span.start, 1)
        if span.what.startswith("waits"):
            axes[0].barh(
                row, width, left=span.start, height=0.28, color=LIGHT, edgecolor=GREY, linewidth=0, hatch="////"
            )
        else:
            axes[0].barh(
                row, width, left=span.start, height=0.7, color=_color(span.actor), linewidth=0.2, edgecolor="white"
            )
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("steps of the emulation (an order, not cycles)")
    axes[0].grid(axis="y", visible=False)
    return finish(axes, ax, finding, "emulated", parameters)


@styled
def fig_tensor_memory(trace: Any, *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """Columns of tensor memory over time: who writes and who reads which.

    Args:
        trace: an `emulator.Trace` after a run.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    axes = panels(1, ax, size=(9.0, 4.6))
    accesses = trace.tensor_accesses
    last = max((a.step for a in accesses), default=1)
    width = max(last / 150, 1)
    labelled: set[tuple[str, bool]] = set()
    for a in accesses:
        key = (a.actor, a.write)
        label = None if key in labelled else f"{a.actor} {'writes' if a.write else 'reads'}"
        labelled.add(key)
        height = a.last_column - a.first_column + 1
        axes[0].bar(
            a.step, height, bottom=a.first_column, width=width, color=_color(a.actor), alpha=1.0 if a.write else 0.45,
            hatch=None if a.write else "....", edgecolor="white", linewidth=0.2, label=label,
        )  # fmt: skip
    axes[0].set_ylim(512, 0)
    axes[0].set_yticks(range(0, 513, 64))
    axes[0].set_ylabel("column of tensor memory")
    axes[0].set_xlabel("steps of the emulation (an order, not cycles)")
    axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return finish(axes, ax, finding, "emulated", parameters)


@styled
def fig_barriers(trace: Any, *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """Barriers in the middle, who arrives on the left, who waits on the right, as observed.

    Args:
        trace: an `emulator.Trace` after a run.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    graph = {
        name: sides
        for name, sides in trace.barrier_graph().items()
        if name.startswith("mbarrier") or name in trace.barriers.values()
    }
    producers = _rows(list(dict.fromkeys(n for sides in graph.values() for n in sides[0])))
    consumers = _rows(list(dict.fromkeys(n for sides in graph.values() for n in sides[1])))
    height = max(len(graph), len(producers), len(consumers), 1)
    axes = panels(1, ax, size=(9.0, 1.4 + 0.36 * height))
    columns = ((0.0, producers), (1.0, list(graph)), (2.0, consumers))
    place = {(x, name): (i + 0.5) * height / max(len(names), 1) for x, names in columns for i, name in enumerate(names)}
    for barrier, (arrive, wait) in graph.items():
        for name in arrive:
            _arrow(axes[0], (0.22, place[0.0, name]), (0.72, place[1.0, barrier]), _color(name))
        for name in wait:
            _arrow(axes[0], (1.28, place[1.0, barrier]), (1.78, place[2.0, name]), _color(name))
    for (x, name), y in place.items():
        color = VERMILION if x == 1.0 else _color(name)
        axes[0].text(
            x, y, name, ha="center", va="center", fontsize=8, bbox={"boxstyle": "round", "fc": "white", "ec": color}
        )
    axes[0].set_xlim(-0.35, 2.35)
    axes[0].set_ylim(height, 0)
    axes[0].set_xticks([0, 1, 2], ["arrives", "barrier", "waits"])
    axes[0].set_yticks([])
    axes[0].grid(visible=False)
    return finish(axes, ax, finding, "emulated", parameters)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": color, "lw": 1.0})
