"""Pictures of the backward: one dS, and its scales in two orders."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.plots.tensor_memory import GROUP_COLORS, _tint

BLOCKS = 4
_SHADES = (1.0, 0.75, 0.5, 0.28)


@style.styled
def fig_ds_scales(atoms: Mapping[str, NDArray[np.int64]], ax: Ax = None) -> Figure:
    """A tile of dS in its sixteen squares, and the words of its scales as dK and as dQ read them. Three axes.

    Args:
        atoms: of `studies.backward.scale_atoms`.
        ax: where to draw; None for a new figure.
    """
    axes = style.panels(3, ax, size=(10.2, 4.2))
    tile = np.arange(BLOCKS**2).reshape(BLOCKS, BLOCKS)
    _blocks(axes[0], tile, "dS$^T$ in SMEM: codes", "queries", "keys", 32)
    _blocks(axes[1], atoms["dK"][::32], "scales for dK += dS$^T$ Q", "byte of the word", "row of the atom = key", 1)
    _blocks(axes[2], atoms["dQ"][::32], "scales for dQ = dS K", "byte of the word", "row of the atom = query", 1)
    finding = "One payload, sixteen scales, two orders: rows are keys for dK and queries for dQ"
    return style.finish(axes, ax, finding, "emulated", "kernels/backward, one tile of 128 keys x 128 queries")


def _blocks(ax: Axes, numbers: NDArray[np.int64], title: str, x: str, y: str, step: int) -> None:
    """A 4 x 4 picture; the colour says the block of keys, its strength and the text the block of queries."""
    picture = np.array([[_tint(GROUP_COLORS[n // BLOCKS], _SHADES[n % BLOCKS]) for n in row] for row in numbers])
    ax.imshow(picture, aspect="auto", extent=(0, BLOCKS, BLOCKS, 0))
    for (i, j), n in np.ndenumerate(numbers):
        ax.text(j + 0.5, i + 0.5, f"k{n // BLOCKS} q{n % BLOCKS}", ha="center", va="center", fontsize=10)
    ax.grid(False)
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if step == 1:
        ax.set_xticks([b + 0.5 for b in range(BLOCKS)], [str(b) for b in range(BLOCKS)])
    else:
        ax.set_xticks(range(BLOCKS + 1), [str(32 * b) for b in range(BLOCKS + 1)])
    ax.set_yticks(range(BLOCKS + 1), [str(32 * b) for b in range(BLOCKS + 1)])
