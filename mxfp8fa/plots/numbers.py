"""Pictures of the numbers themselves: the bits of a code, every code of E4M3, and blocks with an outlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mxfp8fa.numerics import E4M3, Format, decode_scalar
from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.outliers import OutlierSweep

FIELD_COLORS = {"sign": style.GREY, "exponent": style.BLUE, "mantissa": style.ORANGE}
# Validated with the categorical colours of style; INT8 is the one that is not MX.
ELEMENT_COLORS = {"E4M3": style.BLUE, "E5M2": style.VERMILION, "INT8": style.GREY}


@style.styled
def fig_bits(data: Sequence[tuple[Format, int]], *, ax: Ax = None) -> Figure:
    """The bits of one code per format, field by field, and the value they stand for. One axes."""
    (one,) = axes = style.panels(1, ax, size=(9.0, 0.95 + 0.7 * len(data)))
    for row, (fmt, code) in enumerate(data):
        _draw_code(one, fmt, code, -1.35 * row)
    one.set_xlim(-2.2, 15.4)
    one.set_ylim(-1.35 * (len(data) - 1) - 0.25, 1.35)
    one.set_aspect("equal")
    one.axis("off")
    return style.finish(
        axes,
        ax,
        "A code is a sign, an exponent and a mantissa; a scale is an exponent and nothing else",
        "definition",
        "OCP 8-bit floating point v1.0 (E4M3, E5M2), OCP MX v1.0 (E8M0); bit 7 on the left",
    )


def _draw_code(one: Axes, fmt: Format, code: int, bottom: float) -> None:
    """One row: name, eight boxes, formula."""
    widths = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "mantissa": fmt.mantissa_bits}
    fields = [name for name, width in widths.items() for _ in range(width)]
    one.text(-0.3, bottom + 0.5, fmt.name.upper(), ha="right", va="center", fontsize=12, fontweight="bold")
    for position, (field, bit) in enumerate(zip(fields, f"{code:0{fmt.bits}b}", strict=True)):
        color = FIELD_COLORS[field]
        one.add_patch(Rectangle((position, bottom), 1, 1, facecolor=color, alpha=0.25, edgecolor="none"))
        one.add_patch(Rectangle((position, bottom), 1, 1, fill=False, edgecolor=color, linewidth=1.5))
        one.text(position + 0.5, bottom + 0.5, bit, ha="center", va="center", fontsize=13, family="DejaVu Sans Mono")
    start = 0
    for field, width in widths.items():
        if width:
            one.text(start + width / 2, bottom + 1.04, field, ha="center", va="bottom", fontsize=8, color="#444444")
        start += width
    one.text(8.4, bottom + 0.5, _formula(fmt, code), ha="left", va="center", fontsize=12)


def _formula(fmt: Format, code: int) -> str:
    """The value as it is computed from the fields of a normal number."""
    exponent, mantissa = divmod(code & ~(0x80 if fmt.signed else 0), 1 << fmt.mantissa_bits)
    sign = "-" if fmt.signed and code & 0x80 else ""
    power = rf"2^{{{exponent} - {fmt.bias}}}"
    fraction = rf"(1 + \frac{{{mantissa}}}{{{1 << fmt.mantissa_bits}}})" if fmt.mantissa_bits else ""
    times = r" \times " if fraction else ""
    return rf"0x{code:02X}  $= {sign}{power}{times}{fraction} = {decode_scalar(code, fmt):g}$"


@style.styled
def fig_code_table(fmt: Format = E4M3, *, ax: Ax = None) -> Figure:
    """Every non-negative code of a format: a row per exponent field, a column per mantissa. One axes."""
    rows, columns = 1 << fmt.exponent_bits, 1 << fmt.mantissa_bits
    (one,) = axes = style.panels(1, ax, size=(9.0, 1.5 + 0.34 * rows))
    values = np.array([[decode_scalar(r * columns + c, fmt) for c in range(columns)] for r in range(rows)])
    with np.errstate(divide="ignore", invalid="ignore"):
        shade = np.where(np.isfinite(values) & (values > 0), np.log2(values), np.nan)
    one.imshow(shade, cmap="cividis", aspect="auto", alpha=0.85)
    middle = (np.nanmin(shade) + np.nanmax(shade)) / 2
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if shade[row, column] < middle else "black"
        one.text(column, row, _short(value), ha="center", va="center", fontsize=9, color=ink)
    one.add_patch(Rectangle((-0.5, -0.5), columns, 1, fill=False, edgecolor=style.VERMILION, linewidth=2.5, zorder=3))
    one.annotate(
        f"subnormal: no hidden 1,\nsteps of $2^{{{fmt.min_exponent - fmt.mantissa_bits}}}$",
        (columns - 0.45, 0),
        (columns - 0.3, 0),
        va="center",
        fontsize=9,
        color=style.VERMILION,
        annotation_clip=False,
    )
    _label_rows(one, fmt, rows, columns)
    one.set_xticks(range(columns), [f"{c:0{fmt.mantissa_bits}b}" for c in range(columns)])
    one.xaxis.set_label_position("top")
    one.xaxis.tick_top()
    one.tick_params(length=0)
    one.spines[:].set_visible(False)
    one.grid(visible=False)
    one.set_xlabel("mantissa bits")
    finite = int(np.isfinite(values).sum())
    return style.finish(
        axes,
        ax,
        f"{fmt.name.upper()} says {finite} magnitudes from 0 to {fmt.max_value:g}; the sign bit doubles them",
        "definition",
        f"codes 0x00 to 0x{(rows * columns) - 1:02X} in reading order; with the sign bit set, the same negated",
    )


def _label_rows(one: Axes, fmt: Format, rows: int, columns: int) -> None:
    """Left of each row: its first code, its exponent field, and the power of two that stands for."""
    one.set_yticks([])
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "annotation_clip": False}
    for text, left in (("code", 80), ("field", 48), ("power", 8)):
        one.annotate(text, (-0.5, -0.8), (-left, 0), fontsize=9, color=style.GREY, **look)
    for row in range(rows):
        power = f"$2^{{{max(row, 1) - fmt.bias}}}$"
        for text, left in ((f"0x{row * columns:02X}", 80), (f"{row}", 48), (power, 8)):
            one.annotate(text, (-0.5, row), (-left, 0), fontsize=10, **look)


def _short(value: float) -> str:
    """A value in at most seven characters."""
    return "NaN" if np.isnan(value) else "inf" if np.isinf(value) else f"{value:.4g}".replace("e-0", "e-")


@style.styled
def fig_outlier(data: OutlierSweep, *, ax: Ax = None) -> Figure:
    """SQNR of the ordinary elements of a block against the size of its outlier. One axes."""
    (one,) = axes = style.panels(1, ax, size=(8.4, 4.4))
    for marker, (name, db) in zip(style.MARKERS, data.db.items(), strict=False):
        one.plot(data.gain_log2, db, marker=marker, markersize=5, color=ELEMENT_COLORS[name], label=name)
        at = {"E4M3": 17, "E5M2": 20, "INT8": 6}[name]
        value = float(np.interp(at, data.gain_log2, db))
        place = {"E4M3": (8, 4), "E5M2": (0, 8), "INT8": (8, 4)}[name]
        color = ELEMENT_COLORS[name]
        one.annotate(name, (at, value), place, textcoords="offset points", color=color, fontsize=11, fontweight="bold")
    ticks = range(int(data.gain_log2[0]), int(data.gain_log2[-1]) + 1, 2)
    one.set_xticks(list(ticks), [f"$2^{{{n}}}$" for n in ticks])
    one.set_xlabel("outlier, in standard deviations of the other elements")
    one.set_ylabel("SQNR of the other 31 elements, dB")
    return style.finish(
        axes,
        ax,
        "An outlier costs integers 6 dB per binade at once, E4M3 nothing for twelve binades",
        "emulated",
        data.parameters,
    )
