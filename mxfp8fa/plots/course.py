"""Pictures of the course as a whole: its map, the published speeds it is about, and one tile of its running example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from mxfp8fa.numerics.sqnr import sqnr_db
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.published import PublishedFigure
from mxfp8fa.studies.course import Lesson
from mxfp8fa.studies.tile import AttentionTile


@dataclass(frozen=True)
class _Box:
    """A rectangle of the map: lower left corner, size, what it says, and the notebooks that explain it."""

    x: float
    y: float
    width: float
    height: float
    text: str
    lessons: tuple[int, ...]
    color: str
    bold: bool = False


# From hidden states (left) to gradients (right); what runs below it, and what is asked about all of it above.
_MAP = (
    _Box(0.0, 5.05, 14.4, 0.75, "a model that trains with it", (15,), style.PURPLE),
    _Box(2.3, 4.05, 12.1, 0.75, "sequences of all lengths in one tensor", (14,), style.PURPLE),
    _Box(0.0, 1.95, 2.0, 1.75, "producers:\nRMSNorm,\nprojection", (11,), style.ORANGE),
    _Box(2.3, 1.95, 2.0, 1.75, "Q, K, V:\ncodes\nand scales", (1,), style.BLUE),
    _Box(4.6, 1.95, 7.5, 1.75, "", (), style.VERMILION),
    _Box(4.8, 2.1, 1.75, 1.05, "S = QKᵀ", (5, 6), style.VERMILION),
    _Box(6.8, 2.1, 2.6, 1.05, "softmax,\nP to E4M3", (7, 10), style.VERMILION),
    _Box(9.65, 2.1, 2.25, 1.05, "O = PV in\na loop, TMEM", (8, 9), style.VERMILION),
    _Box(12.4, 1.95, 2.0, 1.75, "backward:\ndQ, dK, dV", (13,), style.VERMILION),
    _Box(0.0, 1.0, 14.4, 0.75, "a Blackwell SM in Python runs the compiled kernels", (3, 4), style.GREEN),
    _Box(0.0, 0.0, 14.4, 0.75, "a model in NumPy says what every step has to give, bit for bit", (2,), style.BLUE),
)


@style.styled
def fig_course(data: Sequence[Lesson], *, ax: Ax = None) -> Figure:
    """Where each notebook stands on the way from hidden states to gradients. One axes."""
    (one,) = axes = style.panels(1, ax, size=(11.0, 5.4))
    placed = [number for box in _MAP for number in box.lessons]
    for box in _MAP:
        _draw_box(one, box)
    one.text(4.8, 3.42, "forward kernel", va="center", fontsize=10, fontweight="bold")
    for start, stop in ((2.0, 2.3), (4.3, 4.6), (12.1, 12.4)):
        one.annotate("", (stop, 2.82), (start, 2.82), arrowprops={"arrowstyle": "-|>", "color": style.GREY})
    for start, stop in ((6.55, 6.8), (9.4, 9.65)):
        one.annotate("", (stop, 2.62), (start, 2.62), arrowprops={"arrowstyle": "-|>", "color": style.GREY})
    rest = [lesson for lesson in data if lesson.number not in placed]
    for position, lesson in enumerate(rest):
        _draw_badge(one, 0.35 + 7.2 * position, -0.55)
        one.text(0.35 + 7.2 * position, -0.55, f"{lesson.number:02d}", **_BADGE_TEXT)
        one.text(0.75 + 7.2 * position, -0.55, f"{lesson.title}: {lesson.question}", va="center", fontsize=9)
    one.set_xlim(-0.1, 14.5)
    one.set_ylim(-0.95, 5.95)
    one.axis("off")
    return style.finish(
        axes,
        ax,
        "Every step from hidden states to gradients has its notebook",
        "definition",
        "numbers in circles are notebooks; blue numbers, green machine, red kernels, orange producers, purple use",
    )


_BADGE_TEXT: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "color": "white",
    "fontsize": 8.5,
    "fontweight": "bold",
    "zorder": 6,
}


def _draw_badge(one: Axes, x: float, y: float) -> None:
    one.plot([x], [y], "o", markersize=17, color=style.BLACK, zorder=5)


def _draw_box(one: Axes, box: _Box) -> None:
    """The rectangle, its text, and its notebooks' numbers in the upper right corner or, in flat boxes, at the right."""
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.1", "linewidth": 1.5, "edgecolor": box.color}
    corner, size = (box.x, box.y), (box.width, box.height)
    one.add_patch(FancyBboxPatch(corner, *size, facecolor=(*to_rgb(box.color), 0.1), **look))
    flat = box.height < 1
    middle = box.y + box.height / 2
    if flat:
        one.text(box.x + box.width / 2, middle, box.text, ha="center", va="center", fontsize=10)
    else:
        one.text(box.x + 0.15, middle, box.text, ha="left", va="center", fontsize=9.5, linespacing=1.3)
    for position, number in enumerate(reversed(box.lessons)):
        x = box.x + box.width - 0.36 - 0.56 * position * flat
        y = middle if flat else box.y + box.height - 0.27 - 0.52 * (len(box.lessons) - 1 - position)
        _draw_badge(one, x, y)
        one.text(x, y, f"{number:02d}", **_BADGE_TEXT)


@style.styled
def fig_published(data: Sequence[tuple[str, Sequence[PublishedFigure]]], *, ax: Ax = None) -> Figure:
    """Published speeds as bars, one axes per group (label, figures)."""
    rows = [len(figures) for _, figures in data]
    size = (9.0, 1.5 + 0.42 * sum(rows) + 0.3 * len(rows))
    axes = style.panels(len(data), ax, rows=len(data), size=size, sharex=True, height_ratios=rows)
    for one, (label, figures) in zip(axes, data, strict=True):
        for row, figure in enumerate(figures):
            eight_bits = "MXFP8" in figure.what
            color = style.BLUE if eight_bits else style.LIGHT
            one.barh(row, figure.values[0], color=color, height=0.7)
            one.text(figure.values[0] + 0.03, row, figure.text(), va="center", fontsize=9)
        one.set_yticks(range(len(figures)), [figure.what.split(", ", 1)[1] for figure in figures])
        one.set_ylim(len(figures) - 0.4, -0.6)
        one.grid(visible=False, axis="y")
        one.set_title(label)
    axes[-1].set_xlim(0, 3.3)
    axes[-1].set_xlabel("PF, 10¹⁵ floating-point operations a second")
    first = data[0][1][0]
    return style.finish(
        axes,
        ax,
        "Eight bits made attention about 1.4 times as fast forward and 1.2 to 1.3 times backward",
        "published",
        f"{first.source}; {first.shapes}; blue: MXFP8. Not measured here",
    )


@style.styled
def fig_tile(data: AttentionTile, *, ax: Ax = None) -> Figure:
    """Everything one tile of attention is made of, as images. Six axes."""
    axes = style.panels(6, ax, size=(12.0, 3.9), width_ratios=(0.55, 0.55, 1.35, 1.35, 0.55, 0.55))
    panels = {
        "Q": (data.q.dequantize(), "d", "query"),
        "K": (data.k.dequantize(), "d", "key"),
        "S = QKᵀ / √D": (data.s, "key", "query"),
        "P, E4M3 codes": (data.p_codes, "key", "query"),
        "V": (data.v.dequantize(), "d", "key"),
        "O": (data.o, "d", "query"),
    }
    for one, (title, (matrix, across, down)) in zip(axes, panels.items(), strict=True):
        signed = title != "P, E4M3 codes"
        limit = float(np.quantile(np.abs(matrix), 0.99))
        limits = (-limit, limit) if signed else (0, 126)
        cmap = "RdBu_r" if signed else "cividis"
        one.imshow(matrix, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
        one.set_title(title, fontsize=10)
        one.set_xlabel(across)
        one.set_ylabel(down, labelpad=1)
        one.set_xticks([0, matrix.shape[1] - 1])
        one.set_yticks([0, matrix.shape[0] - 1])
        one.tick_params(labelsize=8)
        one.grid(visible=False)
    return style.finish(
        axes,
        ax,
        f"One tile of real attention, every operand in eight bits; O is right to {sqnr_db(data.o, data.o_exact):.1f} dB",
        "emulated",
        f"{data.parameters}. Red positive, blue negative, full colour at the 99th percentile; codes from 0 (blue) to "
        "126 (yellow)",
    )
