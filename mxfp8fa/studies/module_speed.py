"""How long an attention module takes, forward, in BF16 and in MXFP8: modelled part by part from rates with their sources.

    BF16    RMSNorm, projection to Q, K and V, attention, output projection
    MXFP8   the same, with Q, K and V quantized by one of three ways: in the projection's epilogue, by a pass of its own over
            memory, or as published before fusion

Nothing is timed here. Published rates are those of a B200 and state no shapes; the module's shape is ours.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Rates:
    """Rates of a B200.

    Attributes:
        name: of the set.
        attention_bf16_pf: 1e15 FLOP/s.
        attention_mxfp8_pf: likewise.
        projection_fused_pf: of the projection whose epilogue quantizes; the middle of the published 0.91 to 0.98.
        projection_unfused_pf: of projection and quantization after it, as published.
        epilogue_share: speed of the projection with the epilogue over that without: measured on an H200 (91 to 99 %,
            bench/results/producers.md), so the BF16 projection is the published fused one divided by it.
        hbm_tb: 1e12 bytes/s that a pass over memory reaches (SemiAnalysis, microbench-blackwell; the H200's quantize
            reaches the same share of a copy as a copy).
        norm_tb: of RMSNorm, the middle of the published 2.6 to 4.0 fused with quantization; here for both twins.
    """

    name: str
    attention_bf16_pf: float
    attention_mxfp8_pf: float
    projection_fused_pf: float = 0.945
    projection_unfused_pf: float = 0.20
    epilogue_share: float = 0.95
    hbm_tb: float = 7.2
    norm_tb: float = 3.3


PUBLISHED_RATES = Rates(
    "attention as published", BY_KEY["forward_llm_bf16"].values[0], BY_KEY["forward_llm_mxfp8"].values[0]
)
_MODELLED_SHAPE, _CLOCK_GHZ = "b8-h16-s4096-d128", (1.58 + 1.965) / 2  # the middle


def _modelled_pf(cycles: int) -> float:
    """1e15 FLOP/s of the forward at `_MODELLED_SHAPE`."""
    return attention_flops(8 * 4096**2, 16, 128) / (cycles / _CLOCK_GHZ) / 1e6


# As in bench/results/timing.md; FlashAttention-4 in BF16 with CTA pairs.
MODELLED_RATES = Rates(
    "attention as modelled here",
    _modelled_pf(modelled_cycles(f"flash-attn-4 2 CTAs, {_MODELLED_SHAPE}")),
    _modelled_pf(modelled_cycles(f"forward d128 dense, {_MODELLED_SHAPE}")),
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
        """Nanoseconds per token of a long batch, by part.

        Args:
            kv_tokens: of a sequence.
            rates: of the device.
            way: how Q, K and V are quantized, a key of `WAYS`; None for the BF16 twin.

        Raises:
            ValueError: another way, or no tokens.
        """
        if way is not None and way not in WAYS:
            raise ValueError(f"way = {way!r}; allowed: {', '.join(map(repr, WAYS))} or None")
        if kv_tokens < 1:
            raise ValueError(f"kv_tokens = {kv_tokens}; allowed: positive integers")
        projection = 6 * self.width**2 / 1e6  # 1e6 FLOP over 1e15 FLOP/s are nanoseconds
        bf16_pf = rates.projection_fused_pf / rates.epilogue_share
        attention = 4 * kv_tokens * self.width / 1e6 / (2 if self.causal else 1)
        pf = rates.attention_bf16_pf if way is None else rates.attention_mxfp8_pf
        return {
            "RMSNorm": 4 * self.width / rates.norm_tb / 1e3,
            "Q, K, V projection": projection / bf16_pf,
            "quantization": self._quantization(projection, bf16_pf, rates, way),
            "attention": attention / pf,
            "output projection": projection / 3 / bf16_pf,
        }

    def _quantization(self, projection: float, bf16_pf: float, rates: Rates, way: str | None) -> float:
        """What it adds to the projection."""
        if way is None:
            return 0.0
        if way == "pass":
            return 3 * self.width * (2 + 1 + SCALE_SHARE) / rates.hbm_tb / 1e3
        pf = rates.projection_fused_pf if way == "fused" else rates.projection_unfused_pf
        return projection / pf - projection / bf16_pf

    def gain(self, kv_tokens: int, rates: Rates, way: str) -> float:
        """Time of the BF16 twin over that of MXFP8."""
        return sum(self.parts(kv_tokens, rates, None).values()) / sum(self.parts(kv_tokens, rates, way).values())

    def crossover(self, rates: Rates, way: str) -> float | None:
        """KV tokens from which MXFP8 is faster; None if it never is."""
        saved = sum(self.parts(1, rates, None).values()) - self.parts(1, rates, None)["attention"]
        costs = sum(self.parts(1, rates, way).values()) - self.parts(1, rates, way)["attention"]
        per_key = self.parts(1, rates, None)["attention"] - self.parts(1, rates, way)["attention"]
        return max(0.0, (costs - saved) / per_key) if per_key > 0 else None


@dataclass(frozen=True)
class Row:
    """The module at one length.

    Attributes:
        rates: their name.
        way: how it quantizes.
        kv_tokens: of a sequence.
        gain: over the BF16 twin.
        eaten: share of MXFP8's time that quantization takes.
        published: gain, or None.
    """

    rates: str
    way: str
    kv_tokens: int
    gain: float
    eaten: float
    published: float | None


def rows(module: Module | None = None, kv_tokens: Sequence[int] = KV_TOKENS) -> list[Row]:
    """Every way, length and set of rates."""
    module, found = module or Module(), []
    for rates in (PUBLISHED_RATES, MODELLED_RATES):
        for way in WAYS:
            for count in kv_tokens:
                parts = module.parts(count, rates, way)
                eaten = parts["quantization"] / sum(parts.values())
                gain = module.gain(count, rates, way)
                found.append(Row(rates.name, way, count, gain, eaten, PUBLISHED.get(count)))
    return found
