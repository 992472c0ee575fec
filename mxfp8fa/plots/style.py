"""One look for every figure: fonts, sizes, and colours that mean the same thing everywhere.

Colours are told apart under the common colour-vision deficiencies (a test simulates them): the categorical ones are
those of Okabe and Ito, "Color Universal Design" (2008); the memories use Paul Tol's "muted" set so that a memory is
never mistaken for a warp role.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
LIGHT = "#D9D9D9"

ROLE_COLORS = {
    "load": SKY,
    "mma": VERMILION,
    "softmax0": BLUE,
    "softmax1": GREEN,
    "correction": PURPLE,
    "epilogue": ORANGE,
}
MEMORY_COLORS = {"GMEM": "#332288", "SMEM": "#DDCC77", "TMEM": "#882255", "RMEM": "#88CCEE"}
TENSOR_COLORS = {"O": BLUE, "dQ": VERMILION, "dK": GREEN, "dV": PURPLE}
RULE_COLORS = {"rceil": BLUE, "floor": VERMILION, "ceil": GREEN, "even": ORANGE}
BLOCK_COLORS = {"1x32": BLUE, "square": VERMILION}
MARKERS = ("o", "s", "^", "D", "v", "P")

Kind = Literal["emulated", "modelled", "measured", "published", "definition"]

DPI = 144
_RC = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the bytes do not depend on installed fonts
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "mxfp8fa",
    "image.interpolation": "nearest",
}


P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Give everything that `function` draws the look above; nothing global changes."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(_RC):
            return function(*args, **kwargs)

    return wrapper


def panels(
    count: int, ax: Axes | Sequence[Axes] | None, *, rows: int = 1, size: tuple[float, float] = (8.0, 4.4), **more: Any
) -> list[Axes]:
    """The axes to draw in: those given, else those of a new pyplot figure, in reading order.

    Args:
        count: how many the figure needs.
        ax: the caller's axes, one or a sequence; None for a new figure.
        rows: of the new figure's grid; `count` is a multiple of it.
        size: of the whole new figure, inches.
        more: passed on to `pyplot.subplots`, for example width_ratios.

    Raises:
        ValueError: another number of axes than needed.
    """
    if ax is None:
        _, grid = plt.subplots(rows, count // rows, figsize=size, dpi=DPI, layout="constrained", squeeze=False, **more)
        return list(grid.flat)
    axes = [ax] if isinstance(ax, Axes) else list(ax)
    if len(axes) != count:
        raise ValueError(f"ax holds {len(axes)} axes; this figure needs {count}")
    return axes


def figure_of(ax: Axes) -> Figure:
    """The figure an axes belongs to.

    Raises:
        ValueError: it belongs to a part of a figure, or to none.
    """
    figure = ax.get_figure()
    if not isinstance(figure, Figure):
        raise ValueError(f"ax belongs to {type(figure).__name__}; it must belong to a Figure")
    return figure


def colorbar(image: Any, axes: Sequence[Axes], label: str) -> None:
    """One colour bar for all panels, ticks at powers of two (the image shows binades)."""
    bar = figure_of(axes[0]).colorbar(image, ax=list(axes), label=label, pad=0.02)
    low, high = (int(limit) for limit in image.get_clim())
    bar.set_ticks(list(range(low, high + 1)), labels=[f"$2^{{{n}}}$" for n in range(low, high + 1)])


def finish(axes: Sequence[Axes], ax: object, finding: str, kind: Kind, parameters: str) -> Figure:
    """Say above what the figure shows, and below of which kind its numbers are; returns the figure.

    In a figure of its own both belong to the whole figure. On the caller's axes they go to the first of them, so that
    several drawings can share one figure.

    Args:
        axes: what was drawn on.
        ax: what the caller passed as `ax`; None for a figure of its own.
        finding: the title, a finding rather than a subject.
        kind: "emulated", "modelled", "measured"; "published" for what others measured; "definition" for what follows
            from a format alone.
        parameters: with which the numbers were made.
    """
    label = "By definition" if kind == "definition" else kind.capitalize()
    caption = f"{label}: {parameters}"
    figure = figure_of(axes[0])
    if ax is None:
        heading = textwrap.fill(finding, int(figure.get_figwidth() * 10.5))
        figure.suptitle(heading, x=0.01, ha="left", fontsize=12, fontweight="bold")
        below = textwrap.fill(caption, int(figure.get_figwidth() * 16))
        figure.supxlabel(below, x=0.01, ha="left", fontsize=8, color=GREY)
    else:
        axes[0].set_title(finding)
        axes[0].annotate(
            textwrap.fill(caption, 80),
            (0, 0),
            (0, -36),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=GREY,
        )
    return figure


@styled
def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG; the same figure gives the same bytes (no date, no version in the file)."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
