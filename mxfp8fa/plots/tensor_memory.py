"""Pictures of tensor memory: whose cells, which register holds which cell, and where the scales of an atom lie.

Where cells belong follows from `mxfp8fa.layouts.tmem`; what they hold is passed in, as a run left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from mxfp8fa.layouts import ATOM_COLUMNS, ATOM_ROWS
from mxfp8fa.layouts.tmem import COLUMNS, LANES, PARTITION_LANES, fragment_cells
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax

PARTS = LANES // PARTITION_LANES
GROUP_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)  # rows 0-31, 32-63, 64-95, 96-127 of an atom
# How many registers of each shape are drawn: eight columns of every one.
_DRAWN_LANES = 16
_FRAGMENTS = {"32x32b": 8, "16x64b": 4, "16x128b": 2, "16x256b": 1, "16x32bx2": 4}
_LABEL: dict[str, Any] = {"ha": "center", "va": "center"}


def _tint(color: str, strength: float) -> tuple[float, float, float]:
    """Between white (0) and the colour (1)."""
    r, g, b = (1 + (channel - 1) * strength for channel in to_rgb(color))
    return r, g, b


@style.styled
def fig_partitions(
    writer: NDArray[np.int64], allocated: int, *, finding: str, parameters: str, ax: Ax = None
) -> Figure:
    """All cells of tensor memory, the lanes that each warp reaches, and who wrote what. One axes.

    Args:
        writer: (128, 512) number of the warp that wrote the cell, -1 where nobody did.
        allocated: columns allocated, from column 0 on.
        finding: the title.
        parameters: for the caption.
        ax: where to draw; None for a new figure.
    """
    (one,) = axes = style.panels(1, ax, size=(9.6, 3.9))
    purple = style.MEMORY_COLORS["TMEM"]
    shades = [_tint(purple, 0.35 + 0.65 * part / (PARTS - 1)) for part in range(PARTS)]
    picture = np.ones((LANES, COLUMNS, 3))
    picture[:, :allocated] = _tint(purple, 0.08)
    for part, shade in enumerate(shades):
        picture[writer == part] = shade
    one.imshow(picture, aspect="auto", extent=(0, COLUMNS, LANES, 0))
    one.add_patch(
        Rectangle(
            (allocated, 0), COLUMNS - allocated, LANES, fill=False, hatch="//", edgecolor=style.LIGHT, linewidth=0
        )
    )
    one.text((allocated + COLUMNS) / 2, 1.5 * PARTITION_LANES, "not allocated", **_LABEL, fontsize=11, color=style.GREY)
    for part in range(PARTS):
        one.axhline(PARTITION_LANES * part, color=style.BLACK, linewidth=0.8, linestyle="dashed")
        one.text(COLUMNS + 6, PARTITION_LANES * (part + 0.5), f"warps {part}, {part + 4}, ...", va="center", fontsize=9)
        lanes, columns = np.nonzero(writer == part)
        if lanes.size:
            middle = columns.mean() + 0.5, lanes.mean() + 0.5
            one.annotate(f"warp {part}", middle, (9, 0), textcoords="offset points", va="center", fontsize=9)
    one.set_xticks(range(0, COLUMNS + 1, 64))
    one.set_yticks(range(0, LANES + 1, PARTITION_LANES))
    one.set_xlabel("column (32 bits each)")
    one.set_ylabel("lane")
    one.grid(visible=False)
    return style.finish(axes, ax, finding, "emulated", parameters)


@style.styled
def fig_fragments(shapes: Sequence[str] = tuple(_FRAGMENTS), *, thread: int = 5, ax: Ax = None) -> Figure:
    """Which thread holds which cell in which register, by shape of tcgen05.ld and .st. One axes per shape.

    Args:
        shapes: "32x32b", "16x64b", "16x128b", "16x256b" or "16x32bx2".
        thread: whose registers are outlined.
        ax: where to draw; None for a new figure.
    """
    axes = style.panels(len(shapes), ax, size=(2.4 * len(shapes), 6.0), sharey=True)
    for one, shape in zip(axes, shapes, strict=True):
        _draw_fragment(one, shape, thread)
    axes[0].set_ylabel("lane, counted from that of the address")
    return style.finish(
        axes,
        ax,
        "32x32b gives every thread a row; the other shapes spread 16 rows over 32 threads",
        "definition",
        f"PTX ISA, tcgen05.ld; a cell shows thread and register, darker with the register; outlined: thread {thread}. "
        "32x32b has 32 lanes, of which 16 are drawn; the second half of 16x32bx2 lies 4 columns further",
    )


def _draw_fragment(one: Axes, shape: str, thread: int) -> None:
    number = _FRAGMENTS[shape]
    lanes, columns = fragment_cells(shape, number, split_columns=4 if shape == "16x32bx2" else 0)
    for (register, owner), at in np.ndenumerate(lanes):
        lane, column = int(at), int(columns[register, owner])
        if lane < _DRAWN_LANES:
            shade = _tint(style.MEMORY_COLORS["RMEM"], 0.15 + 0.75 * register / (len(lanes) - 1))
            edge, width, above = (style.VERMILION, 2.0, 3) if owner == thread else ("white", 0.6, 2)
            one.add_patch(
                Rectangle((column, lane), 1, 1, facecolor=shade, edgecolor=edge, linewidth=width, zorder=above)
            )
            text = f"t{owner}\nr{register}"
            one.text(column + 0.5, lane + 0.52, text, **_LABEL, fontsize=6, linespacing=0.95, zorder=4)
    one.set_xlim(0, 8)
    one.set_ylim(_DRAWN_LANES, 0)
    one.set_xticks(range(0, 9, 2))
    one.set_yticks(range(0, _DRAWN_LANES + 1, 4))
    one.set_title(f".{shape}.x{number}", fontsize=10)
    one.set_xlabel("column")
    one.grid(visible=False)


@style.styled
def fig_scale_way(
    packed: NDArray[np.int64],
    tensor: NDArray[np.int64],
    *,
    parameters: str,
    row: int = 37,
    block: int = 2,
    ax: Ax = None,
) -> Figure:
    """An atom of scales: as a matrix, packed in global and shared memory, in tensor memory. Three axes.

    Args:
        packed: (512,) for every byte of the packed atom, the scale it is: 4 row + block.
        tensor: (128, 4, 4) the same for lane, column and byte of tensor memory.
        parameters: for the caption.
        row: of the scale that is outlined everywhere.
        block: likewise.
        ax: where to draw; None for a new figure.
    """
    axes = style.panels(3, ax, size=(10.5, 6.4), width_ratios=(1, 2.6, 2.6))
    matrix = np.arange(ATOM_ROWS * ATOM_COLUMNS).reshape(ATOM_ROWS, ATOM_COLUMNS)
    pictures = (
        (matrix, "scale_e8m0", "block of K", "row"),
        (packed.reshape(32, 16), "GMEM and SMEM: 512 bytes", "byte", "row of 16 bytes"),
        (tensor.reshape(LANES, 16), "TMEM: 128 lanes, 4 columns", "column and its bytes", "lane"),
    )
    for one, (origin, title, below, left) in zip(axes, pictures, strict=True):
        _draw_origins(one, origin, ATOM_COLUMNS * row + block)
        one.set_title(title, fontsize=10)
        one.set_xlabel(below)
        one.set_ylabel(left)
    axes[0].set_yticks(range(0, ATOM_ROWS + 1, 32))
    axes[1].set_yticks(range(0, 33, 8))
    axes[2].set_yticks(range(0, LANES + 1, 32))
    axes[2].set_xticks([2, 6, 10, 14], ["0", "1", "2", "3"])
    return style.finish(
        axes,
        ax,
        f"The scale of row {row}, block {block}, is one byte of the matrix, one of the atom, four of tensor memory",
        "emulated",
        parameters,
    )


def _draw_origins(one: Axes, origin: NDArray[np.int64], marked: int) -> None:
    """Bytes in the colour of their 32 rows, darker with the block; the marked scale outlined."""
    height, width = origin.shape
    rows, blocks = origin // ATOM_COLUMNS, origin % ATOM_COLUMNS
    palette = np.array([[_tint(c, 0.3 + 0.7 * b / 3) for b in range(ATOM_COLUMNS)] for c in GROUP_COLORS])
    one.imshow(palette[rows // 32, blocks], aspect="auto", extent=(0, width, height, 0))
    for y, x in np.argwhere(origin == marked):
        one.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=style.VERMILION, linewidth=2, zorder=3))
        one.annotate(f"{y}", (x, y), (-3, 3), textcoords="offset points", ha="right", fontsize=8, color=style.VERMILION)
    one.set_xticks(range(0, width + 1, 4 if width > 4 else 1))
    one.grid(visible=False)
