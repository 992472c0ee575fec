"""Pictures of a recorded run: who did what when, what tensor memory was used for, which barrier joins whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mxfp8fa.plots.style import GREY, LIGHT, ROLE_COLORS, VERMILION, finish, panels, styled

_AGENT_COLORS = {"TMA": "#332288", "tensor core": "#882255", "bulk store": "#DDCC77"}
_OTHER = "#999999"  # warps without a named role


def _color(actor: str) -> str:
    role = actor.split(",")[0]
    return ROLE_COLORS.get(role) or _AGENT_COLORS.get(role) or _OTHER


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
    for name in names:
        row, mine = names.index(name), [span for span in trace.spans if span.actor == name]
        waits = [(x.start, max(x.end - x.start, 1)) for x in mine if x.what.startswith("waits")]
        runs = [(x.start, max(x.end - x.start, 1)) for x in mine if not x.what.startswith("waits")]
        axes[0].broken_barh(waits, (row - 0.14, 0.28), facecolors=LIGHT, edgecolors=GREY, linewidth=0, hatch="////")
        axes[0].broken_barh(runs, (row - 0.35, 0.7), facecolors=_color(name), linewidth=0.2, edgecolors="white")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("steps of the emulation (an order, not cycles)")
    axes[0].grid(axis="y", visible=False)
    return finish(axes, ax, finding, "emulated", f"{parameters}; filled: runs, hatched: waits")


@styled
def fig_tensor_memory(
    trace: Any,
    *,
    finding: str,
    parameters: str,
    names: Mapping[str, tuple[int, int]] | None = None,
    rows: Sequence[tuple[int, int]] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Columns of tensor memory over time: when they hold something, who writes them and who reads them.

    A row is shaded from a write to the last read before the next one.

    Args:
        trace: an `emulator.Trace` after a run.
        finding: the title.
        parameters: for the caption.
        names: what the kernel calls its columns: name -> first and last column; None: the trace's own names.
        rows: (first, last) column of each row; None: columns that are always used together share one.
        ax: where to draw; None for a new figure.
    """
    rows = _column_groups(trace.tensor_accesses) if rows is None else rows
    axes = panels(1, ax, size=(9.0, 1.7 + 0.42 * len(rows)))
    width = max(max((a.step for a in trace.tensor_accesses), default=1) / 220, 1)
    for row, (first, last) in enumerate(rows):
        mine = [a for a in trace.tensor_accesses if a.first_column <= last and first <= a.last_column]
        held = [(start, end - start + width) for start, end in _held(mine)]
        axes[0].broken_barh(held, (row - 0.43, 0.86), facecolors=LIGHT, zorder=1)
        for color, write in dict.fromkeys((_color(a.actor), a.write) for a in mine):  # above writes, below reads
            marks = [(a.step - width / 2, width) for a in mine if (_color(a.actor), a.write) == (color, write)]
            axes[0].broken_barh(marks, (row - (0.38 if write else -0.02), 0.36), facecolors=color, zorder=2)
    axes[0].set_yticks(range(len(rows)), [_column_label(row, names or trace.columns) for row in rows])
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    axes[0].set_xlim(min((a.step for a in trace.tensor_accesses), default=0) - 4 * width, None)
    axes[0].set_xlabel("steps of the emulation (an order, not cycles)")
    axes[0].set_ylabel("columns")
    axes[0].grid(axis="y", visible=False)
    actors = {_color(a.actor): a.actor for a in reversed(trace.tensor_accesses)}
    actors |= {_OTHER: "other warps"} if _OTHER in actors else {}
    handles = [Patch(color=LIGHT, label="holds data"), *(Patch(color=c, label=name) for c, name in actors.items())]
    axes[0].legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    caption = f"{parameters}; upper half of a row: written, lower half: read"
    return finish(axes, ax, finding, "emulated", caption)


def _column_groups(accesses: Sequence[Any]) -> list[tuple[int, int]]:
    """(first, last) of the columns between the borders of all accesses, those that were used."""
    borders = sorted({a.first_column for a in accesses} | {a.last_column + 1 for a in accesses})
    pieces = [(first, after - 1) for first, after in pairwise(borders)]
    return [p for p in pieces if any(a.first_column <= p[0] <= a.last_column for a in accesses)]


def _held(accesses: Sequence[Any]) -> list[tuple[int, int]]:
    """(start, end) of the times in which some columns hold what will be read: from a write to the last read of it."""
    spans: list[tuple[int, int]] = []
    start = end = None
    for a in sorted(accesses, key=lambda a: a.step):
        if a.write and end is not None and start is not None:
            spans.append((start, end))
            start = end = None
        if a.write and start is None:
            start = a.step
        if not a.write:
            end = a.step
    return spans if start is None else [*spans, (start, start if end is None else end)]


def _column_label(columns: tuple[int, int], names: Mapping[str, tuple[int, int]]) -> str:
    first, last = columns
    owners = [name for name, (low, high) in names.items() if low <= first <= high]
    span = f"{first}" if first == last else f"{first}-{last}"
    return f"{', '.join(owners)}  {span}" if owners else span


@styled
def fig_shared_ring(trace: Any, *, finding: str, parameters: str, ax: Axes | None = None) -> Figure:
    """Buffers of shared memory over time: hatched while a copy is under way, filled until the last read.

    Args:
        trace: an `emulator.Trace` after a run.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    stays = trace.stays()
    places = sorted({(stay.start, stay.stop) for stay in stays})
    names = {(stay.start, stay.stop): stay.buffer for stay in stays}
    axes = panels(1, ax, size=(9.0, 1.2 + 0.3 * max(len(places), 1)))
    for row, place in enumerate(places):
        mine = [stay for stay in stays if (stay.start, stay.stop) == place]
        coming = [(x.issued, max(x.filled - x.issued, 1)) for x in mine]
        held = [(x.filled, max(x.last_read - x.filled, 1)) for x in mine]
        axes[0].broken_barh(coming, (row - 0.15, 0.3), facecolors=LIGHT, edgecolors=GREY, linewidth=0, hatch="////")
        axes[0].broken_barh(held, (row - 0.35, 0.7), facecolors=_AGENT_COLORS["TMA"], linewidth=0.4, edgecolors="white")
    axes[0].set_yticks(range(len(places)), [names[place] for place in places])
    axes[0].invert_yaxis()
    axes[0].set_ylabel("buffer in shared memory")
    axes[0].set_xlabel("steps of the emulation (an order, not cycles)")
    axes[0].grid(axis="y", visible=False)
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
