"""Pictures of training runs: loss by step, and how far attentions are apart beside the spread of seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.training import ATTENTIONS, BASELINE, UNITS, Run, compare, seed_spread

COLORS = {"bf16": style.BLACK, "exact": style.BLUE, "rounded": style.ORANGE, "direct": style.VERMILION, "coarse": style.PURPLE}


MODELS = {"bytes": "Causal byte model", "module": "Decoder of MXAttention", "jagged": "Decoder of MXAttention, packed"}
TOKENS = {"bytes": "bytes", "module": "bytes", "jagged": "events at most"}


@style.styled
def fig_training(data: Sequence[Run], *, ax: Ax = None) -> Figure:
    """Validation loss by step, every run a line; and the differences to BF16 at the end. Two axes.

    Args:
        data: finished runs of one task.
        ax: where to draw.
    """
    unit = UNITS[data[0].origin["task"]]
    curves, ends = axes = style.panels(2, ax, size=(10.0, 4.4), width_ratios=(1.25, 1))
    for run in data:
        label = ATTENTIONS[run.attention] if run.seed == min(r.seed for r in data) else None
        curves.plot(run.steps, run.validation, color=COLORS[run.attention], linewidth=1.2, label=label)
    low = min(run.final for run in data)
    curves.set_ylim(low - 0.05, low + (0.75 if unit == UNITS["bytes"] else 0.3))
    curves.set_xlabel("optimizer step")
    curves.set_ylabel(f"validation loss, {unit}")
    curves.legend(loc="upper right")
    comparisons, spread = compare(data), seed_spread(data)
    ends.axvspan(-spread, spread, color=style.LIGHT, alpha=0.6, linewidth=0, label="standard deviation of BF16 over seeds")
    ends.axvline(0, color=style.GREY, linewidth=1)
    for row, each in enumerate(comparisons):
        color = COLORS[each.attention]
        ends.scatter(each.differences, np.full(len(each.differences), row), s=36, color=color, zorder=3)
        ends.errorbar(each.mean, row + 0.2, xerr=each.standard_error, fmt="|", color=color, capsize=4, markersize=12)
    ends.set_yticks(range(len(comparisons)), [ATTENTIONS[c.attention].replace(", ", "\n") for c in comparisons])
    ends.set_ylim(len(comparisons) - 0.4, -0.6)
    ends.set_xlabel(f"final loss less BF16's, same seed, {unit}")
    ends.locator_params(axis="x", nbins=5)
    ends.legend(loc="lower right", fontsize=8)
    return style.finish(axes, ax, _finding(data), "measured", _parameters(data))


def _finding(data: Sequence[Run]) -> str:
    """What the differences allow to say."""
    spread = seed_spread(data)
    inside = all(abs(each.mean) < spread for each in compare(data))
    if inside:
        unit = UNITS[data[0].origin["task"]]
        if any(run.attention == "coarse" for run in data):
            start = "Too short to tell: not even the coarse control differs from BF16 by more than the seeds do"
            return f"{start} ({spread:.3f} {unit})"
        return f"No MXFP8 attention differs from BF16 by more than the seeds do ({spread:.3f} {unit})"
    apart = max(compare(data), key=lambda each: abs(each.mean))
    return f"{ATTENTIONS[apart.attention]} differs from BF16 by {apart.mean:+.3f}; the seeds do by {spread:.3f}"


def _parameters(data: Sequence[Run]) -> str:
    of = data[0].origin
    size, schedule = of["size"], of["schedule"]
    counts = {name: sum(run.attention == name for run in data) for name in ATTENTIONS}
    seeds = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return (
        f"{of['device']}, {of['date']}, torch {of['torch']}; numerics of Blackwell emulated in torch. {MODELS[of['task']]}, "
        f"{size['layers']} layers, {size['heads']} heads of {size['head_dim']}, {schedule['steps']} steps of "
        f"{schedule['batch']} x {size['context']} {TOKENS[of['task']]} of {of['corpus']['corpus']}; "
        f"runs: {seeds} (baseline {BASELINE}); dots are seeds, bars mean and standard error"
    )
