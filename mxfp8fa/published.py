"""Every published figure this project reproduces, as data with its source, and what stands beside each one here today.

The figures are other people's, taken on NVIDIA B200. What we do for each of them is in `OURS`: emulated (numerics in
NumPy or on the emulator), modelled (cycles from the timing model), measured (a clock on a named GPU), or nothing yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SOURCE = "PyTorch post on MXFP8 FlashAttention-4 (B200), as written up in September 2026"
B200 = "NVIDIA B200"

LLM_SHAPES = "LLM shapes"
RECOMMENDATION_JAGGED = "recommendation shapes, jagged keys, max length 16,384"
RECOMMENDATION_UNIFORM = "recommendation shapes, uniform keys"
RECOMMENDATION = "recommendation shapes"
MODULE = "module with {} KV tokens, median"

Form = Literal["value", "about", "at most", "range", "within", "counts"]
Kind = Literal["emulated", "modelled", "measured"]


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One published figure.

    Attributes:
        key: short name by which code and notebooks refer to it.
        what: what was measured, in words.
        values: the number; both ends of a range; or one number per name in `unit` for counts.
        form: how the values are to be read.
        unit: "PF" (1e15 FLOP/s), "TB/s", "dB", "x" (a ratio), "%", or the names of the counts.
        shapes: on which shapes.
        digits: decimals of the published number.
        hardware: on which device.
        note: a caveat of the source, or how we derived the value.
        source: who published it.
    """

    key: str
    what: str
    values: tuple[float, ...]
    form: Form = "value"
    unit: str
    digits: int = 2
    shapes: str
    hardware: str = B200
    note: str = ""
    source: str = SOURCE

    def text(self) -> str:
        """The value with its unit, as in tables: "2.85 PF", "18.84 to 28.02 dB", "23 pass, 1 borderline, 0 fail"."""
        if self.form == "counts":
            names = self.unit.split(", ")
            return ", ".join(f"{value:g} {name}" for value, name in zip(self.values, names, strict=True))
        number = " to ".join(f"{value:.{self.digits}f}" for value in self.values)
        prefix = {"about": "about ", "at most": "up to ", "within": "within "}.get(self.form, "")
        return f"{prefix}{number}{'' if self.unit == 'x' else ' '}{self.unit}"


@dataclass(frozen=True)
class Ours:
    """What stands beside a published figure in this project.

    Attributes:
        kind: of the number.
        command: makes it again.
        value: the number, where it is one; at the shape of the published benchmark.
        of: whose kernel it is about, if not ours.
    """

    kind: Kind
    command: str
    value: str = ""
    of: str = ""

    def text(self) -> str:
        """As in tables: "modelled: 1.26 to 1.56 PF"."""
        kind = f"{self.kind}, {self.of}" if self.of else self.kind
        return f"{kind}: {self.value}" if self.value else kind


FIGURES: tuple[PublishedFigure, ...] = (
    PublishedFigure(
        key="forward_llm_mxfp8",
        what="forward, MXFP8 FA4",
        values=(2.85,),
        unit="PF",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="forward_llm_cudnn_mxfp8",
        what="forward, cuDNN 9.24 MXFP8",
        values=(2.82,),
        unit="PF",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="forward_llm_bf16",
        what="forward, internal BF16 FA4",
        values=(2.0,),
        unit="PF",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="forward_llm_speedup",
        what="forward, MXFP8 FA4 over internal BF16 FA4",
        values=(1.43,),
        unit="x",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="backward_llm_fp32_dq",
        what="backward, MXFP8 FA4, dQ accumulated in FP32",
        values=(1.82,),
        unit="PF",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="backward_llm_fp16_dq",
        what="backward, MXFP8 FA4, dQ accumulated in FP16",
        values=(1.98,),
        unit="PF",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="backward_llm_speedup_fp32_dq",
        what="backward, FP32 dQ, over the cuDNN BF16 reference",
        values=(1.21,),
        unit="x",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="backward_llm_speedup_fp16_dq",
        what="backward, FP16 dQ, over the cuDNN BF16 reference",
        values=(1.32,),
        unit="x",
        shapes=LLM_SHAPES,
    ),
    PublishedFigure(
        key="backward_llm_bf16",
        what="backward, cuDNN BF16 reference",
        values=(1.5,),
        form="about",
        unit="PF",
        shapes=LLM_SHAPES,
        note="not published itself: follows from the two ratios, 1.82 / 1.21 and 1.98 / 1.32",
    ),
    PublishedFigure(
        key="backward_llm_cudnn_mxfp8",
        what="backward, cuDNN MXFP8",
        values=(1.76,),
        unit="PF",
        shapes=LLM_SHAPES,
        note=(
            "performance only: "
            "with non-uniform E8M0 scales of V its dQ and dK did not match the reference; with uniform ones they did"
        ),
    ),
    PublishedFigure(
        key="forward_jagged_mxfp8",
        what="forward, MXFP8 FA4",
        values=(2.54,),
        unit="PF",
        shapes=RECOMMENDATION_JAGGED,
    ),
    PublishedFigure(
        key="forward_jagged_speedup",
        what="forward, over the internal BF16 kernel",
        values=(1.59,),
        unit="x",
        shapes=RECOMMENDATION_JAGGED,
    ),
    PublishedFigure(
        key="forward_jagged_vs_cudnn",
        what="forward, distance to cuDNN MXFP8",
        values=(4.0,),
        form="within",
        unit="%",
        digits=0,
        shapes=RECOMMENDATION_JAGGED,
    ),
    PublishedFigure(
        key="forward_uniform_mxfp8",
        what="forward, MXFP8 FA4",
        values=(2.59,),
        unit="PF",
        shapes=RECOMMENDATION_UNIFORM,
    ),
    PublishedFigure(
        key="forward_uniform_speedup",
        what="forward, over BF16",
        values=(1.51,),
        unit="x",
        shapes=RECOMMENDATION_UNIFORM,
    ),
    PublishedFigure(
        key="backward_recommendation_fp32_dq",
        what="backward, dQ accumulated in FP32",
        values=(1.42,),
        unit="PF",
        shapes=RECOMMENDATION,
    ),
    PublishedFigure(
        key="backward_recommendation_fp16_dq",
        what="backward, dQ accumulated in FP16",
        values=(1.58,),
        unit="PF",
        shapes=RECOMMENDATION,
    ),
    PublishedFigure(
        key="backward_recommendation_speedup",
        what="backward, over BF16",
        values=(1.52,),
        form="at most",
        unit="x",
        shapes=RECOMMENDATION,
    ),
    PublishedFigure(
        key="module_latency_4096",
        what="module latency, gain over BF16",
        values=(1.0,),
        unit="x",
        shapes=MODULE.format("4,096"),
    ),
    PublishedFigure(
        key="module_latency_8192",
        what="module latency, gain over BF16",
        values=(1.18,),
        unit="x",
        shapes=MODULE.format("8,192"),
    ),
    PublishedFigure(
        key="module_latency_16384",
        what="module latency, gain over BF16",
        values=(1.3,),
        unit="x",
        shapes=MODULE.format("16,384"),
    ),
    PublishedFigure(
        key="bandwidth_bound_below",
        what="sequences below this stay bandwidth-bound",
        values=(8.0,),
        form="about",
        unit="K tokens",
        digits=0,
        shapes=RECOMMENDATION,
        note="they need fused kernels, not faster math",
    ),
    PublishedFigure(
        key="projection_unfused",
        what="projection GEMM, then quantization",
        values=(0.2,),
        form="about",
        unit="PF",
        shapes="not stated",
    ),
    PublishedFigure(
        key="projection_fused",
        what="projection GEMM with quantization in its epilogue",
        values=(0.91, 0.98),
        form="range",
        unit="PF",
        shapes="not stated",
    ),
    PublishedFigure(
        key="projection_speedup",
        what="quantization in the projection's epilogue",
        values=(4.4, 4.7),
        form="range",
        unit="x",
        digits=1,
        shapes="not stated",
    ),
    PublishedFigure(
        key="rmsnorm_unfused",
        what="RMSNorm, then quantization",
        values=(0.75, 0.87),
        form="range",
        unit="TB/s",
        shapes="not stated",
    ),
    PublishedFigure(
        key="rmsnorm_fused",
        what="RMSNorm fused with quantization",
        values=(2.6, 4.0),
        form="range",
        unit="TB/s",
        digits=1,
        shapes="not stated",
    ),
    PublishedFigure(
        key="sqnr",
        what="SQNR of outputs and gradients, FP32 dQ configuration",
        values=(18.84, 28.02),
        form="range",
        unit="dB",
        shapes="not stated",
    ),
    PublishedFigure(
        key="strict_summary",
        what="strict summary of the accuracy checks, FP32 dQ configuration",
        values=(23.0, 1.0, 0.0),
        form="counts",
        unit="pass, borderline, fail",
        shapes="not stated",
    ),
)

BY_KEY: dict[str, PublishedFigure] = {figure.key: figure for figure in FIGURES}

# What this project offers beside a figure so far; figures without an entry are quoted, nothing more.
OURS: dict[str, Ours] = {
    "forward_llm_mxfp8": Ours("modelled", "mxfp8fa model forward", "1.49 to 1.84 PF"),
    "forward_llm_cudnn_mxfp8": Ours("modelled", "mxfp8fa model cudnn --two-cta", "1.09 to 1.35 PF", "cuDNN's open kernel"),
    "forward_llm_bf16": Ours("modelled", "mxfp8fa model flash-attn-4 --two-cta", "1.38 to 1.72 PF", "flash-attn-4"),
    "forward_llm_speedup": Ours("modelled", "mxfp8fa model forward", "1.07x", "over flash-attn-4"),
    "backward_llm_fp32_dq": Ours("modelled", "mxfp8fa model backward", "1.06 to 1.28 PF"),
    "backward_llm_fp16_dq": Ours("modelled", "mxfp8fa model backward-fp16", "0.92 to 1.12 PF"),
    "backward_llm_speedup_fp32_dq": Ours("modelled", "mxfp8fa model backward", "1.01x", "over flash-attn-4"),
    "backward_llm_speedup_fp16_dq": Ours("modelled", "mxfp8fa model backward-fp16", "0.88x", "over flash-attn-4"),
    "backward_llm_bf16": Ours("modelled", "mxfp8fa model flash-attn-4-backward --two-cta", "1.04 to 1.26 PF", "flash-attn-4"),
    "forward_jagged_mxfp8": Ours("modelled", "mxfp8fa figures --only jagged_tail", "1.52 to 1.89 PF"),
    "forward_uniform_mxfp8": Ours("modelled", "mxfp8fa figures --only jagged_tail", "1.56 to 1.94 PF"),
    "forward_jagged_speedup": Ours("modelled", "mxfp8fa figures --only jagged_tail", "1.05x", "over flash-attn-4"),
    "forward_uniform_speedup": Ours("modelled", "mxfp8fa figures --only jagged_tail", "1.05x", "over flash-attn-4"),
    "backward_recommendation_speedup": Ours("modelled", "mxfp8fa figures --only jagged_tail", "1.28x", "over flash-attn-4"),
    "backward_recommendation_fp32_dq": Ours("modelled", "mxfp8fa figures --only jagged_tail", "0.78 to 0.96 PF"),
    "backward_recommendation_fp16_dq": Ours("modelled", "mxfp8fa figures --only jagged_tail", "0.68 to 0.84 PF"),
    "module_latency_4096": Ours("modelled", "mxfp8fa bench module", "1.07x", "from published rates"),
    "module_latency_8192": Ours("modelled", "mxfp8fa bench module", "1.14x", "from published rates"),
    "module_latency_16384": Ours("modelled", "mxfp8fa bench module", "1.22x", "from published rates"),
    "projection_unfused": Ours("measured", "mxfp8fa bench producers", "0.08 to 0.28 PF, H200", "cuBLAS, then eager"),
    "projection_fused": Ours("measured", "mxfp8fa bench producers", "0.61 to 0.77 PF, H200"),
    "projection_speedup": Ours("measured", "mxfp8fa bench producers", "2.4 to 8.3x, H200", "over cuBLAS, then eager"),
    "rmsnorm_unfused": Ours("measured", "mxfp8fa bench producers", "0.9 to 1.8 TB/s, H200", "quack's norm, then ours"),
    "rmsnorm_fused": Ours("measured", "mxfp8fa bench producers", "2.7 to 4.2 TB/s, H200"),
    "sqnr": Ours("emulated", "mxfp8fa sqnr"),
    "strict_summary": Ours("emulated", "mxfp8fa sqnr"),
}

# The shape the published benchmark code uses when none is given: not causal, packed sequences of one length.
BENCHMARK_SHAPE = {"batch": 8, "seqlen_q": 2048, "seqlen_k": 2048, "num_heads": 16, "head_dim": 128}


def attention_flops(sum_sq_sk: int, num_heads: int, head_dim: int, *, backward: bool = False) -> int:
    """Floating-point operations as the published benchmark counts them: 4 H D sum(Sq Sk) forward, 10 H D ... backward.

    Args:
        sum_sq_sk: the sum over sequences of seqlen_q * seqlen_k.
        num_heads: H (query heads).
        head_dim: D.
        backward: count the five GEMMs of the backward instead of the forward's two.
    """
    return (10 if backward else 4) * num_heads * head_dim * sum_sq_sk


def state_table() -> str:
    """The README's state table: every published figure, its value, and what this project has beside it (Markdown)."""
    lines = ["| published | shapes | value | here today | command |", "|---|---|---|---|---|"]
    for figure in FIGURES:
        ours = OURS.get(figure.key)
        here, command = (ours.text(), f"`{ours.command}`") if ours else ("published only", "")
        lines.append(f"| {figure.what} | {figure.shapes} | {figure.text()} | {here} | {command} |")
    return "\n".join(lines)
