"""Pictures of block scaling: formats, one block, the four scale rules, and what one scale for 32 rows costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.studies.blocks import BlockExample, FormatGrid, QuantizedTensor, RowSpread, ScaleMap, ScaleRules

FORMAT_COLORS = {"e4m3": style.BLUE, "e5m2": style.VERMILION}
Ax = Axes | Sequence[Axes] | None


def _log2_ticks(ax: Axes, low: int, high: int, step: int, axis: str = "x") -> None:
    """Ticks at powers of two, labelled 2^n."""
    exponents = range(low, high + 1, step)
    which = ax.xaxis if axis == "x" else ax.yaxis
    which.set_ticks([2.0**n for n in exponents], [f"$2^{{{n}}}$" for n in exponents])


@style.styled
def fig_formats(data: Sequence[FormatGrid], *, ax: Ax = None) -> Figure:
    """The numbers of each format on a number line, and the relative error of rounding to them. Two axes."""
    line, error = axes = style.panels(2, ax, rows=2, size=(9.0, 5.2), sharex=True, height_ratios=(1, 1.5))
    for row, grid in enumerate(data):
        color = FORMAT_COLORS[grid.name]
        line.vlines(grid.values, row - 0.32, row + 0.32, color=color, linewidth=0.7)
        line.text(grid.values[0], row - 0.38, f"{grid.values[0]:.3g}", ha="center", fontsize=8, color=color)
        line.text(grid.values[-1], row - 0.38, f"{grid.values[-1]:g}", ha="center", fontsize=8, color=color)
        percent = 100 * grid.relative_error
        error.plot(grid.magnitudes, percent, color=color, linewidth=1.0, zorder=3 - row, label=grid.name.upper())
    line.set_yticks(range(len(data)), [grid.name.upper() for grid in data])
    line.set_ylim(len(data) - 0.4, -0.8)
    line.grid(visible=False)
    line.set_xscale("log", base=2)
    _log2_ticks(error, -16, 16, 4)
    error.set_xlim(data[0].magnitudes[0], data[0].magnitudes[-1])
    error.set_ylim(0, 30)
    error.set_xlabel("magnitude")
    error.set_ylabel("rounding error, % of the value")
    error.legend(loc="upper center", ncols=2)
    return style.finish(
        axes,
        ax,
        "E4M3 errs by at most 6 % over 15 binades; E5M2 doubles the error for twice the range",
        "definition",
        "all positive finite codes; round to nearest, ties to even; above the largest value every number becomes it",
    )


@style.styled
def fig_block(data: Sequence[BlockExample], *, ax: Ax = None) -> Figure:
    """Blocks of 32 values before and after quantization on the grid their scale gives them. One axes per block."""
    axes = style.panels(len(data), ax, size=(1.0 + 3.6 * len(data), 4.6), sharey=True)
    largest = max(float(np.abs(example.values).max()) for example in data)
    smallest = min(float(np.abs(example.values[example.values != 0]).min()) for example in data)
    bottom, top = 2.0 ** np.floor(np.log2(smallest) - 2), 2.0 ** np.ceil(np.log2(largest) + 5)
    for one, example in zip(axes, data, strict=True):
        _draw_block(one, example, bottom)
        one.set_yscale("log", base=2)
        one.set_ylim(bottom, top)
    axes[0].set_ylabel("magnitude")
    axes[0].legend(loc="upper right")
    return style.finish(
        axes,
        ax,
        "The largest element sets the scale; the others notice only when they are 2¹⁴ times smaller",
        "emulated",
        "E4M3, one E8M0 scale per 32 elements, rule rceil; white: where the block has all 4 significant bits; "
        "grey: subnormals; crosses: rounded to zero",
    )


def _draw_block(one: Axes, example: BlockExample, bottom: float) -> None:
    """One block: stems to the values, rings before and dots after, over the bands that the scale leaves."""
    magnitude, stored, lanes = np.abs(example.values), np.abs(example.dequantized), np.arange(32)
    min_normal = example.scale * 2.0**-6
    if min_normal > bottom:
        one.axhspan(bottom, min_normal, color=style.LIGHT, alpha=0.6, zorder=0)
    one.vlines(lanes, bottom, magnitude, color=style.SKY, linewidth=1.0)
    one.scatter(lanes, magnitude, s=30, facecolors="white", edgecolors=style.BLUE, label="before", zorder=3)
    kept = stored > 0
    one.scatter(lanes[kept], stored[kept], s=9, color=style.VERMILION, label="after", zorder=4)
    lost = ~kept & (magnitude > 0)
    one.scatter(lanes[lost], magnitude[lost], s=22, marker="x", color=style.VERMILION, zorder=4)
    error = np.abs(example.dequantized - example.values)[magnitude > 0] / magnitude[magnitude > 0]
    worst = f"error: mean {100 * error.mean():.1f} %, worst {100 * error.max():.0f} %"
    one.text(0.02, 0.98, f"scale $2^{{{np.log2(example.scale):.0f}}}$\n{worst}", transform=one.transAxes, va="top")
    one.set_title(example.label)
    one.set_xlabel("element of the block")
    one.grid(visible=False)


@style.styled
def fig_scale_rules(data: ScaleRules, *, ax: Ax = None) -> Figure:
    """Scale and error of the largest element by rule, and the SQNR of Gaussian data. Three axes."""
    scale, error, dots = axes = style.panels(3, ax, size=(11.0, 4.2), width_ratios=(1.1, 1.3, 0.7))
    for offset, (rule, values) in enumerate(data.scale.items()):
        color = style.RULE_COLORS[rule]
        # Lines that coincide are shifted by a few percent, or one would hide the other.
        scale.plot(data.amax, values * 1.04 ** (offset - 1.5), color=color, label=rule)
        error.plot(data.amax, 100 * data.amax_error[rule], color=color, linewidth=1.2, label=rule)
    scale.set_yscale("log", base=2)
    _log2_ticks(scale, -9, -6, 1, axis="y")
    scale.set_ylabel("scale")
    error.set_ylabel("error of the largest element, %")
    for one in (scale, error):
        one.set_xscale("log", base=2)
        one.set_xticks([1, 1.75, 2, 3.5, 4], ["1", "1.75", "2", "3.5", "4"])
        one.minorticks_off()
        one.set_xlabel("largest magnitude of the block")
    scale.legend(loc="upper left")
    for row, (rule, db) in enumerate(data.gaussian_db.items()):
        dots.plot([db], [row], "o", color=style.RULE_COLORS[rule], markersize=8)
        dots.annotate(f"{db:.2f}", (db, row), (0, 9), textcoords="offset points", ha="center", fontsize=8)
    dots.set_yticks(range(len(data.gaussian_db)), list(data.gaussian_db))
    dots.set_ylim(len(data.gaussian_db) - 0.5, -0.6)
    dots.margins(x=0.25)
    dots.set_xlabel("SQNR of Gaussian data, dB")
    return style.finish(
        axes,
        ax,
        "floor clips the largest element by up to 12.5 %, even by 10 %; rceil never clips, ceil wastes a bit to do so",
        "emulated",
        data.parameters,
    )


@style.styled
def fig_scale_map(data: ScaleMap, *, ax: Ax = None) -> Figure:
    """A matrix by magnitude, and the scales that 1x32 and square blocks give its elements. Three axes."""
    axes = style.panels(3, ax, size=(11.0, 4.6), sharey=True)
    with np.errstate(divide="ignore"):
        magnitude = np.log2(np.abs(data.values))
    top = np.ceil(magnitude.max())
    # One colour scale in binades: a scale is 2^8 below the largest element that it serves.
    panels = {"magnitude of the elements": magnitude}
    panels |= {f"{kind}: {count} scales": data.scale_log2[kind] + 8 for kind, count in data.scales.items()}
    for one, (label, binades) in zip(axes, panels.items(), strict=True):
        image = one.imshow(binades, cmap="cividis", vmin=top - 9, vmax=top, aspect="auto", interpolation="nearest")
        one.set_title(label)
        one.set_xlabel("channel")
        one.set_xticks(range(0, data.values.shape[1] + 1, 32))
        one.grid(visible=False)
    axes[0].set_ylabel("token")
    axes[0].set_yticks(range(0, data.values.shape[0] + 1, 32))
    style.colorbar(image, axes, "element, or the largest its scale fits")
    return style.finish(
        axes,
        ax,
        f"{data.values.size:,} elements need {data.scales['1x32']} scales in 1x32 blocks, "
        f"{data.scales['square']} in squares",
        "emulated",
        data.parameters,
    )


@style.styled
def fig_row_spread(data: RowSpread, *, ax: Ax = None) -> Figure:
    """Mean and worst row SQNR of 1x32 and square blocks against the spread of row magnitudes. One axes."""
    (one,) = axes = style.panels(1, ax)
    for kind, color in style.BLOCK_COLORS.items():
        dashes = "dashed" if kind == "square" else "solid"
        binades = 2 * data.spread_log2
        one.plot(binades, data.mean_db[kind], "o", ls=dashes, color=color, label=f"{kind}, mean")
        one.plot(binades, data.worst_db[kind], "v", ls=dashes, color=color, alpha=0.6, label=f"{kind}, worst row")
    one.set_xticks(range(0, 21, 2))
    one.axvline(12, color=style.GREY, linewidth=1, linestyle="dotted")
    one.text(11.9, 3.0, "rows differ by $2^{12}$", fontsize=9, color=style.GREY, ha="right")
    one.set_xlabel("binades between the largest and the smallest row, 2r")
    one.set_ylabel("SQNR of a row, dB")
    one.legend(loc="center left")
    return style.finish(
        axes,
        ax,
        "Squares are free until rows in one tile differ by about 2¹²; then small rows vanish",
        "emulated",
        data.parameters,
    )


@style.styled
def fig_tensors(data: Sequence[QuantizedTensor], *, ax: Ax = None) -> Figure:
    """SQNR of every quantized tensor, whole and worst row, by block kind. One axes."""
    (one,) = axes = style.panels(1, ax, size=(8.0, 0.5 + 0.26 * len(data)))
    labels = [f"{tensor.inputs}  {tensor.tensor}" for tensor in data]
    rows = np.arange(len(data))
    for kind, color in style.BLOCK_COLORS.items():
        shift = {"1x32": -0.14, "square": 0.14}[kind]
        one.scatter([t.db[kind] for t in data], rows + shift, color=color, s=28, label=f"{kind}, whole tensor")
        worst = [t.worst_row_db[kind] for t in data]
        one.scatter(worst, rows + shift, color=color, s=28, marker="|", label=f"{kind}, worst row")
    one.set_yticks(rows, labels)
    one.invert_yaxis()
    one.set_xlabel("SQNR, dB")
    one.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return style.finish(
        axes,
        ax,
        "Real and synthetic tensors lose the same to E4M3, in 1x32 and in square blocks",
        "emulated",
        "E4M3, rule rceil; a row is one token of one head",
    )
