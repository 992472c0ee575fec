"""What the timing model says of the kernels, as it ships, and every published speed beside it.

`python bench/timing.py --full` makes the data again; this reads them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from mxfp8fa.published import BY_KEY

SHIPPED = "timing.json"
ALONE = " (nothing beside)"  # of a published speed that is neither modelled nor measured here


class Speed(NamedTuple):
    """One bar: what it is, of which kind, and its ends (equal for one number)."""

    what: str
    kind: str
    low: float
    high: float


@cache
def shipped() -> dict[str, Any]:
    """The modelled numbers in the package."""
    found: dict[str, Any] = json.loads((resources.files("mxfp8fa.studies") / "data" / SHIPPED).read_text())
    return found


def at_llm(kernel: str, options: str = "") -> dict[str, Any]:
    """A kernel at the published shape: cycles of a step and a tile, microseconds, PF, cycles by resource.

    Raises:
        KeyError: it was not modelled.
    """
    for entry in shipped()["at_llm"]:
        if (entry["kernel"], entry["options"]) == (kernel, options):
            return dict(entry)
    raise KeyError(f"{kernel} {options}".strip())


def published(key: str, what: str) -> Speed:
    """A published figure as a bar."""
    values = BY_KEY[key].values
    return Speed(what, "published", values[0], values[-1])


def modelled(kernel: str, what: str, options: str = "") -> Speed:
    """A modelled speed in PF as a bar: from 1.58 to 1.965 GHz."""
    low, high = sorted(at_llm(kernel, options)["pf"])
    return Speed(what, "modelled", low, high)


def forward_speeds() -> list[Speed]:
    """PF of forwards at LLM shapes: the published ones, then ours and others' under the model."""
    direct = "exp=direct row_sum=rounded direct_share=1.0 sum_format=float16 direct_codes=subnormal"
    return [
        published("forward_llm_mxfp8", "MXFP8 FA4"),
        published("forward_llm_cudnn_mxfp8", "cuDNN 9.24 MXFP8"),
        published("forward_llm_bf16", "internal BF16 FA4"),
        modelled("forward", "ours, MXFP8"),
        modelled("forward", "ours, 25 % polynomial", "exp2=0.25"),
        modelled("forward", "ours, direct codes", direct),
        modelled("cudnn", "cuDNN's open MXFP8 forward"),
        modelled("flash-attn-4", "flash-attn-4, BF16"),
    ]


def backward_speeds() -> list[Speed]:
    """PF of backwards at LLM shapes, likewise."""
    return [
        published("backward_llm_fp16_dq", "MXFP8 FA4, dQ in FP16"),
        published("backward_llm_fp32_dq", "MXFP8 FA4, dQ in FP32"),
        published("backward_llm_cudnn_mxfp8", f"cuDNN MXFP8{ALONE}"),
        published("backward_llm_bf16", "cuDNN BF16 reference"),
        modelled("backward-fp16", "ours, dQ in FP16"),
        modelled("backward", "ours, dQ in FP32"),
        modelled("flash-attn-4-backward", "flash-attn-4, BF16"),
    ]


def ratios() -> dict[str, tuple[float, float]]:
    """Key of a published ratio -> it, and the same of modelled kernels at one clock: ours over flash-attn-4's BF16."""
    pairs = {
        "forward_llm_speedup": ("forward", "flash-attn-4"),
        "backward_llm_speedup_fp32_dq": ("backward", "flash-attn-4-backward"),
        "backward_llm_speedup_fp16_dq": ("backward-fp16", "flash-attn-4-backward"),
    }
    return {key: (BY_KEY[key].values[0], at_llm(slow)["us"][0] / at_llm(fast)["us"][0]) for key, (fast, slow) in pairs.items()}


def predictions() -> list[tuple[str, float, float]]:
    """Table, published and predicted microseconds of every row but the one that fixes its table's clock."""
    return [
        (table["name"], row["us"], row["modelled_us"]) for table in shipped()["tables"] for row in table["rows"][1:]
    ]


def sensitivities(count: int = 12) -> list[tuple[str, float, float]]:
    """Constant, and the relative change of our forward's cycles at either end of its range; the largest first."""
    changes = [(name, low, high) for name, (low, high) in shipped()["sensitivity"].items()]
    return sorted(changes, key=lambda each: -max(abs(each[1]), abs(each[2])))[:count]


def steps() -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Name, cycles of a step, and cycles by unit of three forwards at head_dim 128."""
    chosen = {"flash-attn-4, BF16": "flash-attn-4", "cuDNN's open MXFP8": "cudnn", "ours, MXFP8": "forward"}
    entries = {name: at_llm(kernel) for name, kernel in chosen.items()}
    return [(name, e["step"], [(r["name"], r["cycles"]) for r in e["resources"]]) for name, e in entries.items()]


def by_length() -> dict[str, list[tuple[int, float, float]]]:
    """Kernel -> (length, PF at 1.58 GHz, PF at 1.965 GHz)."""
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for entry in shipped()["lengths"]:
        curves.setdefault(entry["kernel"].replace(" d128", ","), []).append((entry["length"], *entry["pf"]))
    return curves


def modelled_cycles(label: str) -> int:
    """Cycles of a kernel at a shape, by its label in the tables: "forward d128 dense, b8-h16-s4096-d128".

    Raises:
        KeyError: it was not modelled.
    """
    cycles = {row["label"]: row["cycles"] for table in shipped()["tables"] for row in table["rows"]}
    cycles |= {f"{entry['kernel']}, {entry['shape']}": entry["cycles"] for entry in shipped()["lengths"]}
    return int(cycles[label])


def timeline() -> dict[str, Any]:
    """Arguments of `plots.cycles.fig_modelled_timeline` for three steps of our forward."""
    kept = shipped()["timeline"]
    before = [0.0] * kept["first_bin"]
    return {
        "units": {name: before + shares for name, shares in kept["units"].items()},
        "roles": [tuple(span) for span in kept["roles"]], "bin_cycles": kept["bin_cycles"], "window": tuple(kept["window"]),
        "parameters": f"forward, head_dim 128, one SM of a B200, 3 of {kept['steps']} steps of {kept['step']} cycles",
    }  # fmt: skip


# Published figure -> kernel of `at_llm` whose speed stands beside it in published.py.
_BESIDE = {
    "forward_llm_mxfp8": "forward", "forward_llm_cudnn_mxfp8": "cudnn", "forward_llm_bf16": "flash-attn-4",
    "backward_llm_fp32_dq": "backward", "backward_llm_fp16_dq": "backward-fp16", "backward_llm_bf16": "flash-attn-4-backward",
}  # fmt: skip


def modelled_value(key: str) -> str:
    """What `published.OURS` has to say beside a published figure.

    Raises:
        KeyError: nothing was modelled for it.
    """
    if key in ratios():
        return f"{ratios()[key][1]:.2f}x"
    low, high = sorted(at_llm(_BESIDE[key])["pf"])
    return f"{low:.2f} to {high:.2f} PF"
