"""Pictures of quantization inside a kernel."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from mxfp8fa.plots import style
from mxfp8fa.studies.online import ScaleSweep


@style.styled
def fig_scale_sweep(data: ScaleSweep, *, ax: Any = None) -> Figure:
    """SQNR under a constant scale against its code, and with a scale per block. One axes."""
    (one,) = axes = style.panels(1, ax, size=(8.4, 4.2))
    for (name, db), color in zip(data.constant_db.items(), (style.VERMILION, style.BLUE), strict=True):
        one.plot(data.codes, db, marker="o", markersize=3, color=color, label=f"{name}, constant scale")
        one.axhline(data.dynamic_db[name], color=color, linestyle="dashed", label=f"{name}, a scale per block")
    one.set_xlabel("E8M0 code of the constant scale (127 is $2^0$)")
    one.set_ylabel("SQNR that 9 of 10 blocks reach, dB")
    one.set_ylim(0, None)
    one.legend(loc="center right")
    return style.finish(axes, ax, "P needs no scale of its own per block, scores do", "emulated", data.parameters)
