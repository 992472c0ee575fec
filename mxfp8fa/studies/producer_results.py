"""The producers as measured on an H200, and what an extra pass over memory costs beside what eight bits save."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from mxfp8fa.published import BY_KEY, attention_flops
from mxfp8fa.studies.producers import CODE_BYTES, Timing

# Vendors' data sheets: bytes a second of memory, dense BF16 operations a second of tensor cores.
PEAK_TB_PER_S = {"H200": 4.8, "B200": 8.0}
PEAK_TFLOPS = {"H200": 989.0, "B200": 2250.0}
READ_BYTES = 2  # of an element of Q, K or V in BF16


def shipped() -> tuple[dict[str, Any], list[Timing]]:
    """Device, versions and date of the committed measurement, and its times (`bench/bench_producers.py` made it)."""
    record = json.loads((files("mxfp8fa.studies") / "data" / "producers_h200.json").read_text())
    timings = [Timing(**{**timing, "shape": tuple(timing["shape"])}) for timing in record.pop("timings")]
    return record, timings


def find(timings: list[Timing], what: str, how: str, shape: tuple[int, ...]) -> Timing:
    """The time of one operation.

    Raises:
        KeyError: it was not measured.
    """
    for timing in timings:
        if (timing.what, timing.how, timing.shape) == (what, how, shape):
            return timing
    raise KeyError(f"{what}, {how}, {shape}")


def copy_beside(timings: list[Timing], shape: tuple[int, ...]) -> Timing:
    """The copy of as many bytes that was timed just before a shape."""
    at = timings.index(find(timings, "quantize", "last axis", shape))
    return next(timing for timing in reversed(timings[:at]) if timing.what == "copy")


def saved_us(seqlen: int, num_heads: int, head_dim: int) -> float:
    """What attention in MXFP8 saves over BF16 at the published speeds on a B200, forward, not causal: microseconds."""
    flops = attention_flops(seqlen**2, num_heads, head_dim)
    bf16, mxfp8 = (BY_KEY[key].values[0] for key in ("forward_llm_bf16", "forward_llm_mxfp8"))
    return flops / 1e9 / bf16 - flops / 1e9 / mxfp8


def pass_us(seqlen: int, num_heads: int, head_dim: int, tb_per_s: float) -> float:
    """What a pass costs that reads Q, K and V in BF16 and writes codes and scales: microseconds."""
    return 3 * seqlen * num_heads * head_dim * (READ_BYTES + CODE_BYTES) / tb_per_s / 1e6
