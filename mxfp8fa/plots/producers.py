"""Pictures of the producers: how near to their ceilings they are, here and in print."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.plots.blocks import Ax
from mxfp8fa.published import BY_KEY
from mxfp8fa.studies.producer_results import PEAK_TB_PER_S, PEAK_TFLOPS, copy_beside, find
from mxfp8fa.studies.producers import Timing

ROW_SHAPE, PRODUCT_SHAPE = (65536, 4096), (8192, 4096, 2048)
Bar = tuple[str, float, float, str, str]  # label, low, high, text, colour


@style.styled
def fig_producers(timings: Sequence[Timing], *, ax: Ax = None) -> Figure:
    """Share of a memory's and a tensor core's peak, fused and not, measured on an H200 and published for a B200. Two axes.

    Args:
        timings: as `studies.producer_results.shipped` has them.
        ax: where to draw.
    """
    axes = style.panels(2, ax, size=(12.5, 4.6))
    found = list(timings)
    _bars(axes[0], _bandwidths(found), "effective bandwidth, share of the memory's peak, %")
    _bars(axes[1], _products(found), "products, share of the dense BF16 peak, %")
    fused, plain = (find(found, "rmsnorm_quantize", how, ROW_SHAPE) for how in ("last axis", "torch.compile"))
    return style.finish(
        axes,
        ax,
        f"Fused with what comes before, quantizing costs no pass: RMSNorm {plain.us / fused.us:.1f} times as fast as compiled",
        "measured",
        f"H200, blocks along the last axis, {ROW_SHAPE[0]} x {ROW_SHAPE[1]} and (tokens, N, K) = {PRODUCT_SHAPE}, peaks 4.8 TB/s "
        "and 989 TFLOP/s; B200: published, shapes not stated, peaks 8 TB/s and 2,250 TFLOP/s",
    )


def _bandwidths(timings: list[Timing]) -> list[Bar]:
    copy = copy_beside(timings, ROW_SHAPE)
    ours = [("copy", copy, style.GREY)]
    for label, what, how, color in (
        ("quantize", "quantize", "last axis", style.BLUE),
        ("quantize, torch.compile", "quantize", "torch.compile", style.SKY),
        ("quantize, eager", "quantize", "eager", style.SKY),
        ("RMSNorm + quantize, fused", "rmsnorm_quantize", "last axis", style.BLUE),
        ("both, torch.compile", "rmsnorm_quantize", "torch.compile", style.SKY),
        ("RMSNorm of quack, then ours", "rmsnorm_quantize", "quack, then ours", style.SKY),
        ("both, eager", "rmsnorm_quantize", "eager", style.SKY),
    ):
        ours.append((label, find(timings, what, how, ROW_SHAPE), color))
    peak = PEAK_TB_PER_S["H200"]
    bars: list[Bar] = [(label, 0, t.tb_per_s / peak, f"{t.tb_per_s:.2f} TB/s", color) for label, t, color in ours]
    return bars + [_published(key, 1, PEAK_TB_PER_S["B200"]) for key in ("rmsnorm_fused", "rmsnorm_unfused")]


def _products(timings: list[Timing]) -> list[Bar]:
    bars: list[Bar] = []
    for label, how, color in (
        ("cuBLAS, BF16 out", "cuBLAS", style.GREY),
        ("ours, BF16 out", "own, BF16 out", style.GREY),
        ("gemm_quantize", "last axis", style.BLUE),
        ("cuBLAS, then compiled", "torch.compile", style.SKY),
        ("cuBLAS, then eager", "eager", style.SKY),
    ):
        timing = find(timings, "gemm", how, PRODUCT_SHAPE)
        bars.append((label, 0, timing.tflops / PEAK_TFLOPS["H200"], f"{timing.tflops:.0f} TFLOP/s", color))
    return bars + [_published(key, 1000, PEAK_TFLOPS["B200"]) for key in ("projection_fused", "projection_unfused")]


def _published(key: str, factor: float, peak: float) -> Bar:
    figure = BY_KEY[key]
    low, high = (factor * value / peak for value in (figure.values[0], figure.values[-1]))
    name = "published, B200: fused" if key.endswith("_fused") else "published, B200: unfused"
    return name, low if high > low else 0, high, figure.text(), style.ORANGE


def _bars(ax: Axes, bars: Sequence[Bar], label: str) -> None:
    for row, (_, low, high, text, color) in enumerate(bars):
        ax.barh(row, 100 * (high - low), left=100 * low, color=color, height=0.7)
        ax.text(100 * high + 1, row, text, va="center", fontsize=8)
    ax.set_yticks(range(len(bars)), [name for name, *_ in bars])
    ax.invert_yaxis()
    ax.set_xlim(0, 115)
    ax.set_xlabel(label)
