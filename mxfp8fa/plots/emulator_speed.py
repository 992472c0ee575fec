"""How the emulator's time and memory grow with sequence length and grid."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter

from mxfp8fa.plots.style import BLUE, GREY, VERMILION, finish, panels, styled
from mxfp8fa.studies.emulator_results import Launch, growth

KERNELS = {"flash-attn-4 forward, BF16": (BLUE, "o"), "our forward, MXFP8": (VERMILION, "s")}


@styled
def fig_emulator_speed(launches: Sequence[Launch], where: str, *, ax: Axes | Sequence[Axes] | None = None) -> Figure:
    """Three panels: seconds of a launch by sequence length and by CTAs, and the peak memory of the process.

    Args:
        launches: of the kernels in KERNELS.
        where: machine and date.
        ax: three axes to draw in; None for a new figure.

    Raises:
        ValueError: fewer than two lengths or grids of a kernel, or another number of axes.
    """
    by_length, by_grid, memory = axes = panels(3, ax, size=(11.5, 3.8))
    for kernel, (color, marker) in KERNELS.items():
        lengths, grids = growth(list(launches), kernel), growth(list(launches), kernel, heads=True)
        if min(len(lengths), len(grids)) < 2:
            raise ValueError(f"{kernel}: {len(lengths)} lengths and {len(grids)} grids; growth needs at least 2 of each")
        by_length.loglog([x.seqlen for x in lengths], [1e3 * x.wall_s for x in lengths], color=color, marker=marker, label=kernel)
        by_grid.loglog([x.ctas for x in grids], [1e3 * x.wall_s for x in grids], color=color, marker=marker, label=kernel)
        memory.semilogx([x.seqlen for x in lengths], [x.memory_mib for x in lengths], color=color, marker=marker, label=kernel)
    first = growth(list(launches), next(iter(KERNELS)))
    _guide(by_length, [x.seqlen for x in first], 1e3 * first[-1].wall_s, 2, "length squared")
    grid = growth(list(launches), next(iter(KERNELS)), heads=True)
    _guide(by_grid, [x.ctas for x in grid], 1e3 * grid[-1].wall_s, 1, "in proportion")
    every = sorted({x.seqlen for x in launches if x.heads == 1 and x.options == "default"})
    for axis, ticks, text in (
        (by_length, every, "sequence length, one head"),
        (by_grid, sorted({x.ctas for x in grid}), f"CTAs: heads of {grid[0].seqlen} tokens"),
        (memory, every, "sequence length, one head"),
    ):
        axis.set_xticks(ticks, labels=[str(n) for n in ticks], minor=False)
        axis.minorticks_off()
        axis.set_xlabel(text)
        axis.margins(0.1)
    for axis in (by_length, by_grid):
        axis.set_ylabel("wall time of a launch, ms")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
    memory.set_ylabel("peak memory of the process, MiB")
    shown = [x.memory_mib for kernel in KERNELS for x in growth(list(launches), kernel)]
    memory.set_ylim(0, 1.15 * max(shown))
    by_length.legend(frameon=False, fontsize=8)
    work, longer = (first[-1].seqlen / first[0].seqlen) ** 2, first[-1].wall_s / first[0].wall_s
    more = first[-1].memory_mib / first[0].memory_mib
    finding = f"{work:.0f} times the work takes {longer:.0f} times as long and {more:.1f} times the memory"
    return finish(axes, ax, finding, "emulated", f"head_dim 128, forward, not causal, one thread; {where}")


def _guide(axes: Axes, xs: Sequence[float], last: float, power: int, text: str) -> None:
    """A dashed line of a given growth through the last point."""
    ys = [last * (x / xs[-1]) ** power for x in xs]
    axes.loglog(xs, ys, "--", color=GREY)
    axes.annotate(text, (xs[0], ys[0]), color=GREY, fontsize=8, va="top", xytext=(4, -2), textcoords="offset points")
