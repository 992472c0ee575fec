"""Pictures of training runs: loss by step, and how far attentions are apart beside the spread of seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.training import ATTENTIONS, BASELINE, CONTROLS, UNITS, Run, compare, seed_spread

COLORS = {
    "bf16": style.BLACK, "exact": style.BLUE, "rounded": style.ORANGE, "direct": style.VERMILION, "coarse": style.PURPLE,
    "k_mean": style.GREEN, "delta": style.SKY, "dq16": "#999933", "square": "#8c564b", "bf16_head": style.GREY,
    "static": style.PURPLE, "unscaled": "#5b2c6f",
}  # fmt: skip


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
    low, high = min(run.final for run in data), max(run.final for run in data)
    curves.set_ylim(low - 0.05, max(high + 0.1, low + (0.75 if unit == UNITS["bytes"] else 0.3)))
    curves.set_xlabel("optimizer step")
    curves.set_ylabel(f"validation loss, {unit}")
    comparisons, spread = compare(data), seed_spread(data)
    many = len(comparisons) > 4  # then the ticks of the second axes name the colours
    if not many:
        curves.legend(loc="upper right", fontsize=9)
    ends.axvspan(-spread, spread, color=style.LIGHT, alpha=0.6, linewidth=0, label="standard deviation of BF16 over seeds")
    ends.axvline(0, color=style.GREY, linewidth=1)
    for row, each in enumerate(comparisons):
        color = COLORS[each.attention]
        if each.attention in CONTROLS:
            outside, across = f"{each.mean:+.2f}, far outside", ends.get_yaxis_transform()
            ends.text(0.98, row, outside, color=color, transform=across, ha="right", va="center")
            continue
        ends.scatter(each.differences, np.full(len(each.differences), row), s=36, color=color, zorder=3)
        ends.errorbar(each.mean, row + 0.2, xerr=each.standard_error, fmt="|", color=color, capsize=4, markersize=12)
    words = [ATTENTIONS[c.attention].replace(", ", "\n" if not many else ", ") for c in comparisons]
    ends.set_yticks(range(len(comparisons)), words, fontsize=8 if many else None)
    for tick, each in zip(ends.get_yticklabels(), comparisons, strict=True):
        tick.set_color(COLORS[each.attention])
    ends.set_ylim(len(comparisons) + (0.3 if many else -0.2), -0.6)
    ends.set_xlabel(f"final loss less BF16's, {unit}")
    ends.locator_params(axis="x", nbins=5)
    ends.legend(loc="lower right", fontsize=8)
    return style.finish(axes, ax, _finding(data), "measured", _parameters(data))


def _finding(data: Sequence[Run]) -> str:
    """What the differences allow to say."""
    spread = seed_spread(data)
    unit = UNITS[data[0].origin["task"]]
    lost = [f"{each.mean:.2f}" for each in compare(data) if each.attention in CONTROLS]
    above = max(each.mean for each in compare(data) if each.attention not in CONTROLS)
    if lost and above < spread:
        found = f"No block scales of dO: {' or '.join(lost)} {unit} lost"
        return f"{found}; with them, no more than seeds differ by ({spread:.3f})"
    if all(abs(each.mean) < spread for each in compare(data)):
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
        f"runs: {seeds} (baseline {BASELINE}); dots are seeds, bars mean and standard error; BF16 is black"
    )
