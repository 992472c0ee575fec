"""Pictures of the attention module: how long it takes, and what its gradients are worth while it trains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.studies.module_speed import KV_TOKENS, PUBLISHED, WAYS, Module, Rates
from mxfp8fa.studies.training import Run

PART_COLORS = {
    "RMSNorm": style.GREY, "Q, K, V projection": style.SKY, "quantization": style.VERMILION, "attention": style.BLUE,
    "output projection": style.GREEN,
}  # fmt: skip
WAY_COLORS = {"fused": style.BLUE, "pass": style.ORANGE, "unfused": style.VERMILION}
PROJECTION_COLORS = {
    "q_proj": style.BLUE, "k_proj": style.ORANGE, "v_proj": style.GREEN, "o_proj": style.PURPLE
}  # fmt: skip


@style.styled
def fig_module_speed(data: tuple[Module, Rates, Rates], *, ax: Ax = None) -> Figure:
    """Parts of the module's time at three lengths, forward and in training, and the gain over the BF16 twin. Three axes.

    Args:
        data: the module, the published rates, and those of the attention as modelled here.
        ax: where to draw.
    """
    module, published, modelled = data
    forward, training, gains = axes = style.panels(3, ax, size=(14.0, 4.8), width_ratios=(1.1, 1.1, 1))
    _bars(forward, module, published, "forward")
    _bars(training, module, published, "training")
    forward.set_ylabel("ns per token, forward")
    training.set_ylabel("ns per token, forward and backward")
    training.legend(loc="upper left", fontsize=7, bbox_to_anchor=(0.0, 0.93))
    lengths = np.geomspace(256, 65536, 60).astype(int)
    for way, color in WAY_COLORS.items():
        for step, line in (("forward", "-"), ("training", "--")):
            label = f"{way}: {WAYS[way]}" if step == "forward" else None
            gains.plot(lengths, [module.gain(n, published, way, step) for n in lengths], line, color=color, label=label)
    for step, line in (("forward", "-"), ("training", "--")):
        label = "fused, attention as modelled here" if step == "forward" else "dashed: forward and backward"
        gains.plot(lengths, [module.gain(n, modelled, "fused", step) for n in lengths], line, color=style.BLACK, label=label)
    gains.plot(
        list(PUBLISHED), list(PUBLISHED.values()), "D", color=style.PURPLE, label="published, module of unstated shape"
    )
    gains.axhline(1, color=style.GREY, linewidth=1)
    gains.set_xscale("log", base=2)
    gains.set_xticks([512, 2048, 8192, 32768], ["512", "2,048", "8,192", "32,768"])
    gains.set_ylim(top=2.05)
    gains.set_xlabel("KV tokens")
    gains.set_ylabel("time of the BF16 twin / time of MXFP8")
    gains.legend(loc="upper left", fontsize=7)
    crossover, in_training = (module.crossover(published, "fused", step) for step in ("forward", "training"))
    eager = module.crossover(published, "unfused")
    finding = (
        f"At published rates the fused module gains from about {_two_digits(crossover)} KV tokens on (in training "
        f"{_two_digits(in_training)}), with quantization as it was before fusion from {_two_digits(eager)}"
    )
    parameters = (
        f"B200, width {module.width}; projection {published.projection_fused_pf} PF fused and "
        f"{published.projection_unfused_pf} PF unfused, attention {published.attention_bf16_pf} (backward "
        f"{published.backward_bf16_pf}) PF in BF16 and {published.attention_mxfp8_pf} ({published.backward_mxfp8_pf}) in MXFP8 "
        f"(published), black {modelled.attention_bf16_pf:.2f} ({modelled.backward_bf16_pf:.2f}) and "
        f"{modelled.attention_mxfp8_pf:.2f} ({modelled.backward_mxfp8_pf:.2f}) PF (modelled, bench/results/timing.md). "
        "Diamonds: published, measured by others"
    )
    return style.finish(axes, ax, finding, "modelled", parameters)


def _bars(axes: Axes, module: Module, rates: Rates, step: str) -> None:
    """The parts of one step, at three lengths, in BF16 and by every way to quantize."""
    ways: tuple[str | None, ...] = (None, *WAYS)
    places = [group * (len(ways) + 1) + i for group in range(len(KV_TOKENS)) for i in range(len(ways))]
    columns = [module.step_parts(count, rates, way, step) for count in KV_TOKENS for way in ways]
    bottom = np.zeros(len(columns))
    for part, color in PART_COLORS.items():
        heights = np.array([column[part] for column in columns])
        axes.bar(places, heights, bottom=bottom, color=color, label=part, width=0.85)
        bottom += heights
    axes.set_xticks(places, ["BF16", *WAYS] * len(KV_TOKENS), rotation=60, fontsize=8)
    for group, count in enumerate(KV_TOKENS):
        axes.text(group * (len(ways) + 1) + 1.5, bottom.max() * 1.03, f"{count:,} KV", ha="center", fontsize=9)
    axes.set_ylim(0, bottom.max() * 1.12)


def _two_digits(tokens: float | None) -> str:
    return "never" if tokens is None else f"{float(f'{tokens:.2g}'):,.0f}"


@style.styled
def fig_gradient_sqnr(data: Sequence[Run], *, ax: Ax = None) -> Figure:
    """SQNR of the gradients of every projection against float32 attention, by step and by layer. Two axes.

    Args:
        data: runs of one task that measured gradients, one attention but bf16.
        ax: where to draw.
    """
    by_step, by_layer = axes = style.panels(2, ax, size=(10.0, 4.4))
    steps = [probe["step"] for probe in data[0].gradient_sqnr]
    for precision, line in (("mxfp8", "-"), ("bf16", ":")):
        for name, color in PROJECTION_COLORS.items():
            values = np.array([[probe[precision][name] for probe in run.gradient_sqnr] for run in data])
            label = f"{name}, {precision}"
            by_step.plot(steps, values.mean((0, 2)), line, marker="o", markersize=4, color=color, label=label)
            last = values[:, -1]  # (seeds, layers)
            by_layer.plot(range(last.shape[1]), last.mean(0), line, marker="o", markersize=4, color=color)
            by_layer.fill_between(range(last.shape[1]), last.min(0), last.max(0), color=color, alpha=0.15, linewidth=0)
    by_step.set_xlabel("optimizer step (mean over layers and seeds)")
    by_layer.set_xlabel(f"layer, at step {steps[-1]} (bands: seeds)")
    by_layer.set_xticks(range(len(data[0].gradient_sqnr[0]["mxfp8"]["q_proj"])))
    by_step.set_ylabel("SQNR of the gradient, dB")
    low_end, high_end = by_step.get_ylim()
    by_step.set_ylim(top=high_end + 0.15 * (high_end - low_end))
    by_step.legend(fontsize=7, ncols=4, loc="upper center")
    first, final = (
        np.mean([probe["mxfp8"][n] for run in data for n in PROJECTION_COLORS for probe in [run.gradient_sqnr[i]]])
        for i in (0, -1)
    )
    low = min(min(probe["mxfp8"][n]) for run in data for probe in run.gradient_sqnr for n in PROJECTION_COLORS)
    of = data[0].origin
    finding = f"Gradients lose signal as training goes on: {first:.0f} dB, then {final:.0f} dB; the worst layer has {low:.0f} dB"
    parameters = (
        f"{of['device']}, {of['date']}, torch {of['torch']}; numerics of Blackwell emulated in torch, task {of['task']}, "
        f"{len(data)} seeds. The gradient of one validation batch against float32 attention at the same weights"
    )
    return style.finish(axes, ax, finding, "measured", parameters)
