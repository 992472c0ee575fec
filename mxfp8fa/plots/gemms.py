"""Pictures of the six GEMMs: along which axis each operand's blocks run, and what a second orientation costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.gemms import Gemm
from mxfp8fa.studies.orientations import Orientations

OPERAND_COLORS = {
    "Q": style.BLUE,
    "K": style.GREEN,
    "V": style.PURPLE,
    "dO": "#444444",
    "P": style.ORANGE,
    "dS": style.VERMILION,
}
TILE = 4.0  # drawn side of a 128 x 128 tile: one unit is 32 elements
GAP = 0.45
LINES = 8  # rows drawn per tile, a block in each


@style.styled
def fig_gemms(data: Sequence[Gemm], *, ax: Ax = None) -> Figure:
    """Each GEMM as left operand, right operand above, result; the blocks of both operands as bars. An axes per GEMM."""
    axes = style.panels(len(data), ax, rows=2, size=(10.5, 7.7))
    for one, gemm in zip(axes, data, strict=True):
        _draw_gemm(one, gemm)
    return style.finish(
        axes,
        ax,
        "Blocks run along what is summed over, so all six operands are needed in two orientations",
        "definition",
        "128 x 128 tiles; every bar is a 1x32 block, 32 elements with one scale; the left operand lies left of the "
        "result, the right one above it; dotted: the summed axis",
    )


def _draw_gemm(one: Axes, gemm: Gemm) -> None:
    """Left operand in the lower left corner, right operand in the upper right one, the result between them."""
    left, right = (0.0, 0.0), (TILE + GAP, TILE + GAP)
    transposed = "ᵀ" if gemm.result in ("dV", "dK") else ""
    _draw_blocks(one, left, OPERAND_COLORS[gemm.left], horizontal=True)
    _draw_blocks(one, right, OPERAND_COLORS[gemm.right], horizontal=False)
    one.add_patch(Rectangle((TILE + GAP, 0), TILE, TILE, facecolor="white", edgecolor=style.GREY, linewidth=1.2))
    one.text(TILE + GAP + TILE / 2, TILE / 2, gemm.result, ha="center", va="center", fontsize=15, fontweight="bold")
    label: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 14, "fontweight": "bold"}
    halo: dict[str, Any] = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    middle = TILE / 2
    one.text(middle, middle, gemm.left + transposed, bbox=halo, color=OPERAND_COLORS[gemm.left], **label)
    other = gemm.right + ("ᵀ" if gemm.result in ("S", "dP") else "")
    one.text(right[0] + middle, right[1] + middle, other, bbox=halo, color=OPERAND_COLORS[gemm.right], **label)
    one.text(TILE / 2, TILE + 0.18, gemm.contracted, ha="center", va="bottom", fontsize=10, fontstyle="italic")
    one.text(-0.15, TILE / 2, gemm.rows, ha="right", va="center", rotation=90, fontsize=10, fontstyle="italic")
    top = 2 * TILE + GAP
    one.text(right[0] + middle, top + 0.12, gemm.columns, ha="center", va="bottom", fontsize=10, fontstyle="italic")
    across: dict[str, Any] = {"ha": "left", "va": "center", "rotation": 90, "fontsize": 10, "fontstyle": "italic"}
    one.text(right[0] + TILE + 0.12, right[1] + middle, gemm.contracted, **across)
    _draw_summed(one)
    where = "backward" if gemm.backward else "forward"
    centre = (TILE / 2 + 0.35, TILE + GAP + TILE / 2)
    one.text(centre[0], centre[1] + 0.35, gemm.formula, ha="center", va="center", fontsize=12, fontweight="bold")
    about = f"{where}:\nsums over {gemm.contracted}"
    one.text(centre[0], centre[1] - 0.6, about, ha="center", va="center", fontsize=9)
    one.set_xlim(-0.8, 2 * TILE + GAP + 0.7)
    one.set_ylim(-0.15, top + 0.6)
    one.set_aspect("equal")
    one.axis("off")


def _draw_blocks(one: Axes, corner: tuple[float, float], color: str, *, horizontal: bool) -> None:
    """A tile filled with bars of one block each: rows of four if horizontal, columns of four if not."""
    x, y = corner
    one.add_patch(Rectangle(corner, TILE, TILE, facecolor=color, alpha=0.07, edgecolor="none"))
    step = TILE / LINES
    for line in range(LINES):
        for block in range(4):
            along, across = block + 0.07, line * step + 0.14 * step
            length, thickness = 0.86, 0.72 * step
            place = (x + along, y + across) if horizontal else (x + across, y + along)
            size = (length, thickness) if horizontal else (thickness, length)
            one.add_patch(Rectangle(place, *size, facecolor=color, alpha=0.55, edgecolor="none"))
    one.add_patch(Rectangle(corner, TILE, TILE, fill=False, edgecolor=color, linewidth=1.4))


def _draw_summed(one: Axes) -> None:
    """The quarter turn that joins the summed axis of the left operand to that of the right one."""
    line: dict[str, Any] = {"color": style.GREY, "linewidth": 1.1, "linestyle": "dotted"}
    for position in (0.5, TILE - 0.5):
        turned = TILE + GAP + (TILE - position)
        one.plot([position, position, TILE + GAP], [TILE, turned, turned], **line)


@style.styled
def fig_orientations(data: Orientations, *, ax: Ax = None) -> Figure:
    """The scale of every element for blocks along d, along tokens, and squares. Three axes."""
    axes = style.panels(3, ax, size=(11.0, 4.6), sharey=True)
    every = np.concatenate([log2.ravel() for log2 in data.scale_log2.values()])
    for one, (way, log2) in zip(axes, data.scale_log2.items(), strict=True):
        limits: dict[str, Any] = {"vmin": every.min() - 0.5, "vmax": every.max() + 0.5}
        image = one.imshow(log2, cmap="cividis", aspect="auto", interpolation="nearest", **limits)
        one.set_title(f"{way}: {data.tensors[way].scale_e8m0.size} scales")
        one.set_xlabel("channel")
        one.set_xticks(range(0, log2.shape[1] + 1, 32))
        one.grid(visible=False)
    axes[0].set_ylabel("token")
    axes[0].set_yticks(range(0, log2.shape[0] + 1, 32))
    bar = style.figure_of(axes[0]).colorbar(image, ax=list(axes), label="scale of the element", pad=0.02)
    ticks = range(int(every.min()), int(every.max()) + 1)
    bar.set_ticks(list(ticks), labels=[f"$2^{{{n}}}$" for n in ticks])
    return style.finish(
        axes,
        ax,
        f"Turning the blocks changes {100 * data.differing_codes():.0f} % of the codes; a square is the same from "
        "both sides",
        "emulated",
        data.parameters,
    )
