"""Pictures of training runs: loss by step, and how far attentions are apart beside the spread of seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.training import (
    ATTENTIONS,
    BASELINE,
    CONTROLS,
    LAST_STEPS,
    UNITS,
    Run,
    compare,
    seed_spread,
    standard_error,
)

COLORS = {
    "bf16": style.BLACK, "exact": style.BLUE, "rounded": style.ORANGE, "direct": style.VERMILION, "coarse": style.PURPLE,
    "k_mean": style.GREEN, "delta": style.SKY, "dq16": "#999933", "square": "#8c564b", "bf16_head": style.GREY,
    "static": style.PURPLE, "unscaled": "#5b2c6f", "float32": "#7f7f7f", "sum_P_dP": "#17a2a2", "dq16_raw": "#5c5c1f",
}  # fmt: skip


MODELS = {"bytes": "Causal byte model", "module": "Decoder of MXAttention", "jagged": "Decoder of MXAttention, packed"}
TOKENS = {"bytes": "bytes", "module": "bytes", "jagged": "events at most"}


@style.styled
def fig_training(data: Sequence[Run], *, ax: Ax = None) -> Figure:
    """Validation loss by step, and the differences to BF16 at the end, of validation and of training. Three axes.

    Every run is a line; of more than four attentions beside BF16 the mean over the seeds that all have, with the range of
    BF16 as a band.

    Args:
        data: finished runs of one task.
        ax: where to draw.
    """
    unit = UNITS[data[0].origin["task"]]
    curves, ends, training = axes = style.panels(3, ax, size=(13.0, 4.8), width_ratios=(1.25, 1, 1))
    comparisons = compare(data)
    many = len(comparisons) > 4  # then the ticks of the second axes name the colours
    seeds = {name: {run.seed for run in data if run.attention == name} for name in ATTENTIONS}
    shared = set.intersection(*(found for found in seeds.values() if found))
    for attention in [name for name, found in seeds.items() if found]:
        _curves(curves, [run for run in data if run.attention == attention and (not many or run.seed in shared)], many)
    low, high = min(run.final for run in data), max(run.final for run in data)
    curves.set_ylim(low - 0.05, max(high + 0.1, low + (0.75 if unit == UNITS["bytes"] else 0.3)))
    curves.set_xlabel("optimizer step")
    curves.set_ylabel(f"validation loss, {unit}")
    if not many:
        curves.legend(loc="upper right", fontsize=8)
    of_baseline = [run for run in data if run.attention == BASELINE]
    _differences(ends, {c.attention: c.differences for c in comparisons}, [run.final for run in of_baseline])
    _differences(training, {c.attention: c.training for c in comparisons}, [run.training for run in of_baseline])
    words = [ATTENTIONS[c.attention].replace(", ", "\n" if not many else ", ") for c in comparisons]
    ends.set_yticks(range(len(comparisons)), words, fontsize=8)
    for tick, each in zip(ends.get_yticklabels(), comparisons, strict=True):
        tick.set_color(COLORS[each.attention])
    training.set_yticks(range(len(comparisons)), [""] * len(comparisons))
    ends.set_xlabel("final validation loss less BF16's")
    training.set_xlabel(f"training loss less BF16's, last {LAST_STEPS} steps")
    ends.legend(loc="lower right", fontsize=8)
    return style.finish(axes, ax, _finding(data), "measured", _parameters(data))


def _differences(axes: Axes, differences: dict[str, NDArray[np.float64]], baseline: Sequence[float]) -> None:
    """A row for each attention: its seeds, mean and standard error, beside the spread of BF16's seeds."""
    spread = float(np.std(baseline, ddof=1))
    axes.axvspan(-spread, spread, color=style.LIGHT, alpha=0.6, linewidth=0, label="standard deviation of BF16 over seeds")
    axes.axvline(0, color=style.GREY, linewidth=1)
    for row, (attention, values) in enumerate(differences.items()):
        color = COLORS[attention]
        if attention in CONTROLS:
            outside, across = f"{values.mean():+.2f}, far outside", axes.get_yaxis_transform()
            axes.text(0.98, row, outside, color=color, transform=across, ha="right", va="center")
            continue
        axes.scatter(values, np.full(len(values), row), s=36, color=color, zorder=3)
        if len(values) > 1:
            axes.errorbar(values.mean(), row + 0.2, xerr=standard_error(values), fmt="|", color=color, capsize=4, markersize=12)
    axes.set_ylim(len(differences) + (1.0 if len(differences) > 4 else 0.3), -0.6)
    axes.locator_params(axis="x", nbins=5)


def _curves(axes: Axes, runs: Sequence[Run], many: bool) -> None:
    """The runs of one attention."""
    color = COLORS[runs[0].attention]
    losses = np.array([run.validation for run in runs])
    if not many:
        for i, row in enumerate(losses):
            axes.plot(runs[0].steps, row, color=color, linewidth=1.2, label=None if i else ATTENTIONS[runs[0].attention])
        return
    baseline = runs[0].attention == BASELINE
    axes.plot(runs[0].steps, losses.mean(0), color=color, linewidth=2.0 if baseline else 1.1, zorder=3 if baseline else 2)
    if baseline:
        axes.fill_between(runs[0].steps, losses.min(0), losses.max(0), color=color, alpha=0.15, linewidth=0)


def _finding(data: Sequence[Run]) -> str:
    """What the differences allow to say."""
    spread = seed_spread(data)
    unit = UNITS[data[0].origin["task"]]
    lost = [f"{each.mean:.2f}" for each in compare(data) if each.attention in CONTROLS]
    above = max(each.mean for each in compare(data) if each.attention not in CONTROLS)
    if lost and above < spread:
        found = f"No block scales of dO: {' or '.join(lost)} {unit} lost"
        return f"{found}; with them, no more than seeds differ by ({spread:.2g})"
    if all(abs(each.mean) < spread for each in compare(data)):
        return f"No MXFP8 attention differs from BF16 by more than the seeds do ({spread:.3f} {unit})"
    apart = max(compare(data), key=lambda each: abs(each.mean))
    return f"{ATTENTIONS[apart.attention]} differs from BF16 by {apart.mean:+.3f}; the seeds do by {spread:.3f}"


def _parameters(data: Sequence[Run]) -> str:
    of = data[0].origin
    size, schedule = of["size"], of["schedule"]
    counts = {name: sum(run.attention == name for run in data) for name in ATTENTIONS}
    seeds = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    curves = "; curves: means over the seeds that all have" if len(compare(data)) > 4 else ""
    return (
        f"{of['device']}, {of['date']}, torch {of['torch']}; numerics of Blackwell emulated in torch. {MODELS[of['task']]}, "
        f"{size['layers']} layers, {size['heads']} heads of {size['head_dim']}, {schedule['steps']} steps of "
        f"{schedule['batch']} x {size['context']} {TOKENS[of['task']]} of {of['corpus']['corpus']}; "
        f"seeds: {seeds} (baseline {BASELINE}); dots are seeds, bars mean and standard error; BF16 is black{curves}"
    )
