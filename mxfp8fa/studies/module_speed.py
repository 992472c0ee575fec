"""How long an attention module takes in BF16 and in MXFP8: modelled part by part from rates with their sources.

    BF16      RMSNorm, projection to Q, K and V, attention, output projection
    MXFP8     the same, with Q, K and V quantized by one of three ways: in the projection's epilogue, by a pass of its own
              over memory, or as published before fusion
    backward  the same parts the other way round, two products for each of the projections and five for attention's two.
              MXFP8 reads dO in eight bits, and V in a second payload, along d: fused, both are written by kernels that hold
              them anyway (the one for delta, the projection); else a pass reads them. Projections' products stay in BF16.

Nothing is timed here. Published rates are those of a B200 and state no shapes; the module's shape is ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mxfp8fa.published import BY_KEY, attention_flops
from mxfp8fa.studies.speeds import modelled_cycles

KV_TOKENS = (4096, 8192, 16384)
PUBLISHED = {count: BY_KEY[f"module_latency_{count}"].values[0] for count in KV_TOKENS}
WAYS = {
    "fused": "in the projection's epilogue",
    "pass": "a pass of its own",
    "unfused": "as published before fusion",
}
SCALE_SHARE = 1 / 32  # bytes of scales per byte of codes, 1x32
STEPS = ("forward", "training")  # training: forward and backward


@dataclass(frozen=True)
class Rates:
    """Rates of a B200.

    Attributes:
        name: of the set.
        attention_bf16_pf: 1e15 FLOP/s.
        attention_mxfp8_pf: likewise.
        backward_bf16_pf: of attention's backward, five products.
        backward_mxfp8_pf: likewise, dQ added up in FP32.
        projection_fused_pf: of the projection whose epilogue quantizes; the middle of the published 0.91 to 0.98.
        projection_unfused_pf: of projection and quantization after it, as published.
        epilogue_share: speed of the projection with the epilogue over that without: measured on an H200 (91 to 99 %,
            bench/results/producers.md), so the BF16 projection is the published fused one divided by it.
        hbm_tb: 1e12 bytes/s that a pass over memory reaches (SemiAnalysis, microbench-blackwell; the H200's quantize
            reaches the same share of a copy as a copy).
        norm_tb: of RMSNorm, the middle of the published 2.6 to 4.0 fused with quantization; here for both twins.
        eager_tb: of a quantization that is not fused: the middle of the published 0.75 to 0.87 of RMSNorm, then that.
    """

    name: str
    attention_bf16_pf: float
    attention_mxfp8_pf: float
    backward_bf16_pf: float
    backward_mxfp8_pf: float
    projection_fused_pf: float = 0.945
    projection_unfused_pf: float = 0.20
    epilogue_share: float = 0.95
    hbm_tb: float = 7.2
    norm_tb: float = 3.3
    eager_tb: float = 0.81


PUBLISHED_RATES = Rates(
    "attention as published",
    *(BY_KEY[f"{key}_llm_{kind}"].values[0] for key, kind in (
        ("forward", "bf16"), ("forward", "mxfp8"), ("backward", "bf16"), ("backward", "fp32_dq"))),
)  # fmt: skip
_CLOCK_GHZ = (1.58 + 1.965) / 2  # the middle


def _modelled_pf(kernel: str, batch: int, length: int, *, backward: bool = False) -> float:
    """1e15 FLOP/s of a kernel with 16 heads of 128."""
    cycles = modelled_cycles(f"{kernel}, b{batch}-h16-s{length}-d128")
    return attention_flops(batch * length**2, 16, 128, backward=backward) / (cycles / _CLOCK_GHZ) / 1e6


# As in bench/results/timing.md; FlashAttention-4 in BF16 with CTA pairs.
MODELLED_RATES = Rates(
    "attention as modelled here",
    _modelled_pf("flash-attn-4 2 CTAs", 8, 4096),
    _modelled_pf("forward d128 dense", 8, 4096),
    _modelled_pf("flash-attn-4-backward 2 CTAs", 4, 8192, backward=True),
    _modelled_pf("backward d128 dense", 4, 8192, backward=True),
)


@dataclass(frozen=True)
class Module:
    """The module's shape: self-attention, dense, Hq = Hkv.

    Attributes:
        width: features of a token, and heads * head_dim.
        causal: half of all pairs.
    """

    width: int = 2048
    causal: bool = False

    def parts(self, kv_tokens: int, rates: Rates, way: str | None) -> dict[str, float]:
        """Nanoseconds per token of a long batch, by part, forward.

        Args:
            kv_tokens: of a sequence.
            rates: of the device.
            way: how Q, K and V are quantized, a key of `WAYS`; None for the BF16 twin.

        Raises:
            ValueError: another way, or no tokens.
        """
        _check(kv_tokens, way)
        bf16_pf = rates.projection_fused_pf / rates.epilogue_share
        pf = rates.attention_bf16_pf if way is None else rates.attention_mxfp8_pf
        return {
            "RMSNorm": 4 * self.width / rates.norm_tb / 1e3,
            "Q, K, V projection": self._projection / bf16_pf,
            "quantization": self._quantization(self._projection, bf16_pf, rates, way),
            "attention": self._attention(kv_tokens) / pf,
            "output projection": self._projection / 3 / bf16_pf,
        }

    def backward_parts(self, kv_tokens: int, rates: Rates, way: str | None) -> dict[str, float]:
        """The same of the backward, with what the forward writes for it alone: a second payload of V.

        Raises:
            ValueError: see `parts`.
        """
        _check(kv_tokens, way)
        bf16_pf = rates.projection_fused_pf / rates.epilogue_share
        pf = rates.backward_bf16_pf if way is None else rates.backward_mxfp8_pf
        written = 2 * self.width * (1 + 1.5 * SCALE_SHARE)  # codes of dO and V; scales of dO both ways, of V one
        read = 2 * self.width * 2
        quantized_ns = {
            None: 0.0,
            "fused": written / rates.hbm_tb / 1e3,
            "pass": (read + written) / rates.hbm_tb / 1e3,
            "unfused": (read + written) / rates.eager_tb / 1e3,
        }
        return {
            "RMSNorm": 6 * self.width / rates.norm_tb / 1e3,  # reads x and its gradient, writes a gradient
            "Q, K, V projection": 2 * self._projection / bf16_pf,
            "quantization": quantized_ns[way],
            "attention": 2.5 * self._attention(kv_tokens) / pf,
            "output projection": 2 * self._projection / 3 / bf16_pf,
        }

    @property
    def _projection(self) -> float:
        """Of Q, K and V, 1e6 FLOP a token: over 1e15 FLOP/s these are nanoseconds."""
        return 6 * self.width**2 / 1e6

    def _attention(self, kv_tokens: int) -> float:
        """1e6 FLOP a token, forward."""
        return 4 * kv_tokens * self.width / 1e6 / (2 if self.causal else 1)

    def _quantization(self, projection: float, bf16_pf: float, rates: Rates, way: str | None) -> float:
        """What it adds to the projection."""
        if way is None:
            return 0.0
        if way == "pass":
            return 3 * self.width * (2 + 1 + SCALE_SHARE) / rates.hbm_tb / 1e3
        pf = rates.projection_fused_pf if way == "fused" else rates.projection_unfused_pf
        return projection / pf - projection / bf16_pf

    def step_parts(self, kv_tokens: int, rates: Rates, way: str | None, step: str = "forward") -> dict[str, float]:
        """`parts`, or with step = "training" the sum of `parts` and `backward_parts`.

        Raises:
            ValueError: see `parts`; another step.
        """
        if step not in STEPS:
            raise ValueError(f"step = {step!r}; allowed: {', '.join(map(repr, STEPS))}")
        found = self.parts(kv_tokens, rates, way)
        if step == "training":
            back = self.backward_parts(kv_tokens, rates, way)
            found = {part: ns + back[part] for part, ns in found.items()}
        return found

    def gain(self, kv_tokens: int, rates: Rates, way: str, step: str = "forward") -> float:
        """Time of the BF16 twin over that of MXFP8."""
        bf16, mxfp8 = (sum(self.step_parts(kv_tokens, rates, each, step).values()) for each in (None, way))
        return bf16 / mxfp8

    def crossover(self, rates: Rates, way: str, step: str = "forward") -> float | None:
        """KV tokens from which MXFP8 is faster; None if it never is."""
        bf16, mxfp8 = (self.step_parts(1, rates, each, step) for each in (None, way))
        per_key = bf16["attention"] - mxfp8["attention"]
        costs = sum(ns - bf16[part] for part, ns in mxfp8.items() if part != "attention")
        return max(0.0, costs / per_key) if per_key > 0 else None


def _check(kv_tokens: int, way: str | None) -> None:
    if way is not None and way not in WAYS:
        raise ValueError(f"way = {way!r}; allowed: {', '.join(map(repr, WAYS))} or None")
    if kv_tokens < 1:
        raise ValueError(f"kv_tokens = {kv_tokens}; allowed: positive integers")


@dataclass(frozen=True)
class Row:
    """The module at one length.

    Attributes:
        step: one of `STEPS`.
        rates: their name.
        way: how it quantizes.
        kv_tokens: of a sequence.
        gain: over the BF16 twin.
        eaten: share of MXFP8's time that quantization takes.
        published: gain, or None; whether the backward is in it is not stated.
    """

    step: str
    rates: str
    way: str
    kv_tokens: int
    gain: float
    eaten: float
    published: float | None


def rows(module: Module | None = None, kv_tokens: Sequence[int] = KV_TOKENS) -> list[Row]:
    """Every step, set of rates, way and length."""
    module, found = module or Module(), []
    for step, rates, way, count in itertools.product(STEPS, (PUBLISHED_RATES, MODELLED_RATES), WAYS, kv_tokens):
        parts = module.step_parts(count, rates, way, step)
        eaten = parts["quantization"] / sum(parts.values())
        found.append(Row(step, rates.name, way, count, module.gain(count, rates, way, step), eaten, PUBLISHED.get(count)))
    return found
