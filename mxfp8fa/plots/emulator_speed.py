"""How the emulator's time and memory grow with the sequence length."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots.style import BLUE, GREY, VERMILION, finish, panels, styled


@styled
def fig_emulator_speed(points: Sequence[tuple[int, float, float]], *, ax: Axes | Sequence[Axes] | None = None) -> Figure:
    """Two panels: CPU seconds of a launch, and the peak memory of the process.

    Args:
        points: (sequence length, CPU seconds, MiB) of one attention head, emulated.
        ax: two axes to draw in; None for a new figure.

    Raises:
        ValueError: fewer than two points, or another number of axes.
    """
    if len(points) < 2:
        raise ValueError(f"{len(points)} points: growth needs at least 2")
    time_axes, memory_axes = axes = panels(2, ax, size=(8.0, 3.6))
    lengths, seconds, memory = ([p[i] for p in points] for i in range(3))
    time_axes.loglog(lengths, seconds, "o-", color=BLUE)
    quadratic = [seconds[-1] * (n / lengths[-1]) ** 2 for n in lengths]
    time_axes.loglog(lengths, quadratic, "--", color=GREY)
    time_axes.annotate("length squared", (lengths[0], quadratic[0]), color=GREY, fontsize=8, va="top")
    time_axes.set_ylabel("CPU time of a launch, s")
    memory_axes.semilogx(lengths, memory, "o-", color=VERMILION)
    memory_axes.set_ylim(bottom=0)
    memory_axes.set_ylabel("peak memory of the process, MiB")
    for axis in axes:
        axis.set_xticks(lengths, labels=[str(n) for n in lengths], minor=False)
        axis.minorticks_off()
        axis.set_xlabel("sequence length, queries and keys")
    work, longer, more = (lengths[-1] / lengths[0]) ** 2, seconds[-1] / seconds[0], memory[-1] / memory[0] - 1
    finding = f"{work:.0f} times the work takes {longer:.0f} times as long; memory grows {more:.0%}"
    return finish(axes, ax, finding, "emulated", "flash-attn-4 BF16 forward, one head, head_dim 128, one thread")
