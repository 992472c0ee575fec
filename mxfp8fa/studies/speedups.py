"""Every published speed beside what this project models or measures, as bars, in four groups.

A bar's kind is published (B200), modelled (by the timing model, or from published rates), or measured (H200: no B200 was
here). Published bars with nothing beside them say so.
"""

from __future__ import annotations

from mxfp8fa.studies import jagged, module_speed, speeds
from mxfp8fa.studies.module_speed import KV_TOKENS
from mxfp8fa.studies.producer_results import shipped as producers
from mxfp8fa.studies.producers import Timing
from mxfp8fa.studies.speeds import Speed, published

_LARGE_MB = 500


def attention() -> list[Speed]:
    """PF of attention: LLM shapes, then recommendation shapes, which are not public: ours are `studies.jagged`'s."""
    rows = [row._replace(what=f"forward: {row.what}") for row in speeds.forward_speeds()]
    rows += [row._replace(what=f"backward: {row.what}") for row in speeds.backward_speeds()]
    for speed in jagged.jagged_tail().speeds:
        what = speed.what.replace(",", ": recommendation,", 1)
        rows += [published(speed.key, what), Speed(f"{what}: ours", "modelled", *speed.petaflops)]
    return rows


def ratios() -> list[Speed]:
    """Times faster: attention over BF16, the module over its BF16 twin, the projection over a pass of its own."""
    names = {
        "forward_llm_speedup": "forward", "backward_llm_speedup_fp32_dq": "backward, dQ in FP32",
        "backward_llm_speedup_fp16_dq": "backward, dQ in FP16",
    }  # fmt: skip
    rows = []
    for key, (_, ours) in speeds.ratios().items():
        rows += [
            published(key, f"{names[key]}, over BF16"),
            Speed(f"{names[key]}: ours over flash-attn-4, BF16", "modelled", ours, ours),
        ]
    recommendation = {
        "forward_jagged_speedup": "forward: recommendation, jagged",
        "forward_uniform_speedup": "forward: recommendation, uniform",
        "backward_recommendation_speedup": "backward: recommendation, up to",
    }
    for key, what in recommendation.items():
        ours = jagged.speedups()[key]
        rows += [published(key, what), Speed(f"{what}: ours over flash-attn-4, BF16", "modelled", ours, ours)]
    for count in KV_TOKENS:
        what = f"module, {count:,} KV tokens"
        rows.append(published(f"module_latency_{count}", what))
        rows += [Speed(f"{what}: {name}", "modelled", gain, gain) for name, gain in module_gains(count).items()]
    rows += [
        published("projection_speedup", "projection: quantization in its epilogue"),
        Speed("projection, H200: over cuBLAS, then eager", "measured", *projection_gain("eager")),
        Speed("projection, H200: over cuBLAS, then torch.compile", "measured", *projection_gain("torch.compile")),
    ]
    return rows


def projections() -> list[Speed]:
    """PF of projections that end in MXFP8: published for a B200, measured on an H200."""
    return [
        published("projection_fused", "quantization in its epilogue, B200"),
        Speed("ours, in its epilogue, H200", "measured", *projection_pf("last axis", "tokens", "square")),
        published("projection_unfused", "quantization after it, B200"),
        Speed("cuBLAS, then eager, H200", "measured", *projection_pf("eager")),
        Speed("cuBLAS, then torch.compile, H200", "measured", *projection_pf("torch.compile")),
    ]


def norms() -> list[Speed]:
    """TB/s of norm and quantizer: published for a B200, measured on an H200, and what bytes alone would allow there."""
    rows = [r for r in speeds.shipped()["producers"] if r["what"] == "rmsnorm_quantize"]
    by_bytes = [r["tb_per_s"] * r["us"] / r["modelled_us"] for r in rows]
    return [
        published("rmsnorm_fused", "RMSNorm fused with quantization, B200"),
        Speed("ours, fused, H200", "measured", *norm_tb("last axis", "tokens", "square")),
        Speed("bytes and a launch, H200", "modelled", min(by_bytes), max(by_bytes)),
        published("rmsnorm_unfused", "RMSNorm, then quantization, B200"),
        Speed("quack's RMSNorm, then our quantizer, H200", "measured", *norm_tb("quack, then ours")),
    ]


def errors_of_bytes() -> dict[tuple[str, str], list[float]]:
    """Operation and size -> what bytes over bandwidth and a launch say, over the measured time, less one."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in speeds.shipped()["producers"]:
        megabytes = row["tb_per_s"] * row["us"]
        size = "under 0.5 GB" if megabytes < _LARGE_MB else "0.5 GB and more"
        errors.setdefault((row["what"], size), []).append(row["modelled_us"] / row["us"] - 1)
    return errors


def projection_pf(*ways: str) -> tuple[float, float]:
    """Least and most PF of the measured projections of some ways, over all shapes."""
    found = [timing.tflops / 1000 for timing in _timings("gemm", ways)]
    return min(found), max(found)


def projection_gain(way: str) -> tuple[float, float]:
    """Least and most of another way's time over that of the fused projection with blocks along the last axis."""
    fused = {timing.shape: timing.us for timing in _timings("gemm", ("last axis",))}
    found = [timing.us / fused[timing.shape] for timing in _timings("gemm", (way,))]
    return min(found), max(found)


def norm_tb(*ways: str) -> tuple[float, float]:
    """Least and most TB/s of the measured norms of some ways, over all shapes."""
    found = [timing.tb_per_s for timing in _timings("rmsnorm_quantize", ways)]
    return min(found), max(found)


def module_gains(kv_tokens: int) -> dict[str, float]:
    """Rates of attention -> gain of the module that quantizes in the projection's epilogue over its BF16 twin."""
    rows = module_speed.rows(kv_tokens=(kv_tokens,))
    return {row.rates: row.gain for row in rows if (row.way, row.step) == ("fused", "forward")}


def value(key: str) -> str:
    """What `published.OURS` has to say beside a published speed.

    Raises:
        KeyError: nothing was modelled or measured for it.
    """
    if key.startswith("module_latency_"):
        return f"{module_gains(int(key.removeprefix('module_latency_')))[module_speed.PUBLISHED_RATES.name]:.2f}x"
    if key in jagged.speedups():
        return f"{jagged.speedups()[key]:.2f}x"
    for speed in jagged.jagged_tail().speeds:
        if speed.key == key:
            return "{:.2f} to {:.2f} PF".format(*speed.petaflops)
    measured = {
        "projection_fused": (projection_pf("last axis", "tokens", "square"), ".2f", " PF, H200"),
        "projection_unfused": (projection_pf("eager"), ".2f", " PF, H200"),
        "projection_speedup": (projection_gain("eager"), ".1f", "x, H200"),
        "rmsnorm_fused": (norm_tb("last axis", "tokens", "square"), ".1f", " TB/s, H200"),
        "rmsnorm_unfused": (norm_tb("quack, then ours"), ".1f", " TB/s, H200"),
    }
    if key not in measured:
        return speeds.modelled_value(key)
    (low, high), digits, unit = measured[key]
    return f"{low:{digits}} to {high:{digits}}{unit}"


def _timings(what: str, ways: tuple[str, ...]) -> list[Timing]:
    found = [timing for timing in producers()[1] if timing.what == what and timing.how in ways]
    if not found:
        raise KeyError(f"{what}: {', '.join(ways)}")
    return found
