"""Pictures of what a tcgen05.mma reads and writes: descriptors, tiles in shared memory, the accumulator, column maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from mxfp8fa.layouts.tmem import COLUMNS, LANES, PARTITION_LANES
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.descriptors import BitField, SharedTile

_MONO = "DejaVu Sans Mono"
_WORD_BITS = 32
_ROW_PITCH = 3.4  # between the words of a figure, in bits' widths
_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)


class ColumnRange(Protocol):
    """What a picture needs to know of a range of tensor memory columns."""

    @property
    def name(self) -> str:
        """What the kernel calls it."""

    @property
    def start(self) -> int:
        """First column."""

    @property
    def count(self) -> int:
        """Number of columns."""


# -- descriptors ------------------------------------------------------------------------------------------------------


@style.styled
def fig_words(data: Sequence[tuple[str, Sequence[BitField]]], *, finding: str, ax: Ax = None) -> Figure:
    """Words bit by bit, 32 to a row, with their fields' names and meanings. One axes.

    Args:
        data: title and fields of each word.
        finding: the title.
        ax: where to draw; None for a new figure.
    """
    rows = [
        (title if low == 0 else "", fields, low)
        for title, fields in data
        for low in range(0, max(f.high for f in fields) + 1, _WORD_BITS)
    ]
    (one,) = axes = style.panels(1, ax, size=(11.0, 0.9 + 1.25 * len(rows)))
    for i, (title, fields, low) in enumerate(rows):
        _draw_word(one, title, fields, low, -_ROW_PITCH * i)
    one.set_xlim(-0.2, _WORD_BITS + 0.2)
    one.set_ylim(-_ROW_PITCH * (len(rows) - 1) - 1.6, 2.3)
    one.axis("off")
    return style.finish(
        axes, ax, finding, "definition", "PTX ISA, instruction and shared memory descriptors; highest bit left"
    )


def _draw_word(one: Axes, title: str, fields: Sequence[BitField], low: int, bottom: float) -> None:
    """One row of 32 bits from bit `low` on; a title above it."""
    if title:
        one.text(0, bottom + 1.75, title, fontsize=10, fontweight="bold")
    shown = [f for f in fields if low <= f.low < low + _WORD_BITS]
    for i, f in enumerate(shown):
        width = f.high - f.low + 1
        left = low + _WORD_BITS - 1 - f.high
        color = _COLORS[i % 2] if f.name else style.LIGHT
        one.add_patch(Rectangle((left, bottom), width, 1, facecolor=color, alpha=0.25, edgecolor="none"))
        one.add_patch(Rectangle((left, bottom), width, 1, fill=False, edgecolor=color, linewidth=1.2))
        for bit in range(width):
            digit = f.value >> (width - 1 - bit) & 1
            one.text(left + bit + 0.5, bottom + 0.5, str(digit), ha="center", va="center", fontsize=9, family=_MONO)
        if f.name:
            one.text(left + width / 2, bottom + 1.12, _narrow(f.name, width), ha="center", va="bottom", fontsize=7)
            one.text(left + width / 2, bottom - 0.12, _narrow(f.meaning, width), ha="center", va="top", fontsize=7)


def _narrow(text: str, width: int) -> str:
    """The text on two lines where its field is too narrow for one."""
    return text.replace(" ", "\n", 1).replace("-m", "-\nm") if len(text) > 2.2 * width else text


# -- shared memory ----------------------------------------------------------------------------------------------------


@style.styled
def fig_tiles(data: Sequence[SharedTile], *, finding: str, lines: int = 8, ax: Ax = None) -> Figure:
    """The first 128-byte lines of tiles in shared memory, chunk by chunk: which row and which k each holds.

    Args:
        data: one axes each.
        finding: the title.
        lines: how many lines to show.
        ax: where to draw; None for a new figure.
    """
    axes = style.panels(len(data), ax, size=(0.6 + 5.2 * len(data), 1.5 + 0.38 * lines))
    for one, tile in zip(axes, data, strict=True):
        first = int(tile.addresses.min()) // 128 * 128
        for line in range(lines):
            for chunk, (row, k) in enumerate(tile.chunks(line, first)):
                _draw_chunk(one, tile, line, chunk, row, k)
        one.set_xlim(0, 8)
        one.set_ylim(lines, 0)
        one.set_xticks(np.arange(9), [str(16 * i) for i in range(9)])
        one.set_yticks(np.arange(lines) + 0.5, [f"{first + 128 * i:#x}" for i in range(lines)])
        one.set_xlabel("byte of the line")
        one.set_ylabel("shared address")
        one.set_title(tile.name)
        one.grid(visible=False)
    label = "row and k of the first element of each 16 bytes, from the operand's descriptor; colour: what a line shares"
    return style.finish(axes, ax, finding, "definition", label)


def _draw_chunk(one: Axes, tile: SharedTile, line: int, chunk: int, row: int, k: int) -> None:
    if row < 0:
        return
    color = _COLORS[(k if tile.mn_major else row) % 4]
    one.add_patch(Rectangle((chunk, line), 1, 1, facecolor=color, alpha=0.3, edgecolor="white", linewidth=1))
    one.text(chunk + 0.5, line + 0.5, f"{row}, {k}", ha="center", va="center", fontsize=7, family=_MONO)


# -- tensor memory ----------------------------------------------------------------------------------------------------


@style.styled
def fig_accumulator(cells: NDArray[np.float32], *, mark: tuple[int, int], finding: str, ax: Ax = None) -> Figure:
    """An accumulator as tensor memory holds it, lane by column, and which warp reads which lanes. One axes.

    Args:
        cells: (128, columns) values.
        mark: lane and column of a cell to point at.
        finding: the title.
        ax: where to draw; None for a new figure.
    """
    (one,) = axes = style.panels(1, ax, size=(8.0, 5.6))
    image = one.imshow(cells, cmap="cividis", aspect="auto")
    for warp in range(LANES // PARTITION_LANES):
        one.axhline(PARTITION_LANES * warp - 0.5, color="white", linewidth=1.2)
        one.text(cells.shape[1] + 1, PARTITION_LANES * (warp + 0.5) - 0.5, f"warp {warp}", va="center", fontsize=9)
    lane, column = mark
    one.plot(column, lane, "s", markersize=7, markerfacecolor="none", markeredgecolor=style.VERMILION, clip_on=False)
    offset = (-70, 25) if column > cells.shape[1] // 2 else (25, 25)
    one.annotate(
        f"lane {lane}, column {column}: {cells[lane, column]:g}", (column, lane), offset, textcoords="offset points",
        color="white", fontsize=9, arrowprops={"arrowstyle": "-", "color": style.VERMILION},
    )  # fmt: skip
    one.set_xlabel("column of tensor memory")
    one.set_ylabel("lane")
    one.set_yticks([*range(0, LANES, 16), LANES - 1])
    one.grid(visible=False)
    style.figure_of(one).colorbar(image, ax=one, label="value of the cell", pad=0.12)
    return style.finish(axes, ax, finding, "emulated", "contents of tensor memory when the kernel ends")


@style.styled
def fig_columns(data: Sequence[tuple[str, Sequence[ColumnRange]]], *, finding: str, ax: Ax = None) -> Figure:
    """Who owns which of the 512 columns, one row per kernel. One axes.

    Args:
        data: name of each kernel and its ranges.
        finding: the title.
        ax: where to draw; None for a new figure.
    """
    (one,) = axes = style.panels(1, ax, size=(10.0, 1.5 + 0.75 * len(data)))
    for row, (_, ranges) in enumerate(data):
        one.add_patch(Rectangle((0, row - 0.3), COLUMNS, 0.6, facecolor="none", edgecolor=style.LIGHT))
        for i, r in enumerate(ranges):
            color = _COLORS[i % 4]
            one.add_patch(Rectangle((r.start, row - 0.3), r.count, 0.6, facecolor=color, alpha=0.35, edgecolor=color))
            inside = r.count >= 40
            one.text(
                r.start + r.count / 2, row if inside else row - 0.36, r.name, fontsize=8, ha="center",
                va="center" if inside else "bottom", rotation=0 if inside else 60,
            )  # fmt: skip
    one.set_xlim(0, COLUMNS)
    one.set_ylim(len(data) - 0.5, -0.9)
    one.set_xticks(range(0, COLUMNS + 1, 64))
    one.set_yticks(range(len(data)), [name for name, _ in data])
    one.set_xlabel("column of tensor memory")
    one.grid(axis="y", visible=False)
    return style.finish(axes, ax, finding, "definition", "the column maps that the kernels are compiled with")
