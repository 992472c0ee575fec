"""Packed sequences: what they cost in bytes."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.studies.jagged import JaggedBytes


@style.styled
def fig_jagged_bytes(data: JaggedBytes, *, ax: Any = None) -> Figure:
    """Bytes moved by raggedness and way, and the share of scale bytes that are padding. Two axes."""
    left, right = axes = style.panels(2, ax)
    for (way, ratio), color, marker in zip(
        data.moved.items(), (style.BLUE, style.ORANGE, style.VERMILION), style.MARKERS, strict=False
    ):
        left.plot(data.spread, ratio, marker=marker, color=color, label=way)
    left.set_xlabel("raggedness r: lengths from (1 - r) x longest to longest")
    left.set_ylabel("bytes moved / compact bytes")
    left.set_ylim(0)
    left.legend()
    right.plot(data.length, 100 * data.padding, "o-", color=style.BLUE)
    right.set_xscale("log", base=2)
    right.set_xlabel("mean length, tokens")
    right.set_ylabel("padding, % of scale bytes")
    right.set_ylim(0)
    finding = "A padded gather moves three to five times the bytes; split addressing pads scales only"
    return style.finish(axes, ax, finding, "definition", data.parameters)
