"""Inputs worth quantizing: real attention tensors of a small language model, and a generator with LLM habits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

REAL_FILE = "minilm_attention.npz"
REAL_LAYERS = (0, 3)
REAL_HEADS = (0, 4, 8)
SYNTHETIC_HEAD_DIMS = (64, 128)
# Beyond this a softmax over a few hundred keys is one-hot and says nothing about quantization any more.
MAX_LOGIT_STD = 16.0


@dataclass(frozen=True)
class AttentionInputs:
    """One attention's inputs and upstream gradient, float32.

    Attributes:
        name: what tables and figures call it.
        q: (B, Sq, Hq, D).
        k: (B, Sk, Hkv, D).
        v: (B, Sk, Hkv, D).
        do: (B, Sq, Hq, D), the gradient with respect to O.
        origin: where the numbers come from, in one sentence.
    """

    name: str
    q: Float32
    k: Float32
    v: Float32
    do: Float32
    origin: str

    @property
    def head_dim(self) -> int:
        """D."""
        return self.q.shape[-1]

    @property
    def softmax_scale(self) -> float:
        """1 / sqrt(D), what both the real model and the synthetic logits assume."""
        return 1.0 / math.sqrt(self.head_dim)

    def tensors(self) -> dict[str, Float32]:
        """The four arrays by the names used in tables: Q, K, V, dO."""
        return {"Q": self.q, "K": self.k, "V": self.v, "dO": self.do}


def load_real() -> dict[str, AttentionInputs]:
    """Q, K, V and dO of two layers and three heads of all-MiniLM-L6-v2 on 512 tokens of varied text.

    Each array is (1, 512, 3, 32), float32 whose values are float16 numbers. The model is an encoder: no causal mask,
    head_dim 32 (one block of 32 per row), only moderate outlier channels. dO is the gradient of a cosine loss, times a
    power of two. `scripts/make_real_inputs.py` makes the file and says how.

    Returns:
        {"minilm-layer0": ..., "minilm-layer3": ...}.
    """
    found: dict[str, AttentionInputs] = {}
    path = resources.files("mxfp8fa.numerics") / "data" / REAL_FILE
    with path.open("rb") as file, np.load(file) as archive:
        for layer in REAL_LAYERS:
            q, k, v, do = (archive[f"layer{layer}_{name}"].astype(np.float32) for name in ("q", "k", "v", "do"))
            heads = ", ".join(str(head) for head in REAL_HEADS)
            origin = f"all-MiniLM-L6-v2 layer {layer}, heads {heads}, 512 tokens; dO from a cosine loss"
            found[f"minilm-layer{layer}"] = AttentionInputs(f"minilm-layer{layer}", q, k, v, do, origin)
    return found


def synthetic_llm(
    *,
    batch: int = 1,
    seqlen_q: int = 1024,
    seqlen_k: int | None = None,
    num_heads_q: int = 2,
    num_heads_kv: int | None = None,
    head_dim: int = 128,
    logit_std: float = 1.0,
    outlier_channels: int = 0,
    outlier_gain: float = 8.0,
    k_mean: float = 0.0,
    v_mean: float = 0.0,
    seed: int = 0,
) -> AttentionInputs:
    """Gaussian Q, K, V, dO with the habits of large language models, each switched on by its argument.

    Q and K are scaled so that the logits `softmax_scale * q.k`, without the part that `k_mean` adds to a whole row (the
    softmax does not see it), have standard deviation `logit_std` over tokens.

    Args:
        batch: B.
        seqlen_q: Sq.
        seqlen_k: Sk; seqlen_q if None.
        num_heads_q: Hq.
        num_heads_kv: Hkv, a divisor of Hq; Hq if None.
        head_dim: D, 64 or 128.
        logit_std: 0 < logit_std <= 16; trained models show about 1 to 8.
        outlier_channels: how many channels of Q and K, the same ones in both and chosen per KV head, are `outlier_gain`
            times as large as the others.
        outlier_gain: >= 1.
        k_mean: offset of each channel of K over all tokens, in standard deviations of that channel; its sign is drawn
            per channel and KV head.
        v_mean: the same for V.
        seed: of NumPy's PCG64 generator; the same arguments give the same bytes.

    Raises:
        ValueError: an argument outside what is stated above.
    """
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    num_heads_kv = num_heads_q if num_heads_kv is None else num_heads_kv
    sizes = {"batch": batch, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "num_heads_q": num_heads_q}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} = {value} must be at least 1")
    if num_heads_kv < 1 or num_heads_q % num_heads_kv:
        raise ValueError(f"num_heads_kv = {num_heads_kv} must divide num_heads_q = {num_heads_q}")
    _check_habits(head_dim, logit_std, outlier_channels, outlier_gain, k_mean, v_mean)
    rng = np.random.default_rng(seed)
    gains = _channel_gains(rng, num_heads_kv, head_dim, outlier_channels, outlier_gain)
    # Var(q.k) = sum over channels of gain^4, as both q and k carry the gain; one factor on each brings it to logit_std.
    spread = np.sqrt((gains**4).sum(axis=-1, keepdims=True) / head_dim)
    gains *= np.sqrt(logit_std / spread)
    q = rng.standard_normal((batch, seqlen_q, num_heads_q, head_dim))
    q *= np.repeat(gains, num_heads_q // num_heads_kv, axis=0)
    k = rng.standard_normal((batch, seqlen_k, num_heads_kv, head_dim))
    k = (k + k_mean * _signs(rng, num_heads_kv, head_dim)) * gains
    v = rng.standard_normal((batch, seqlen_k, num_heads_kv, head_dim)) + v_mean * _signs(rng, num_heads_kv, head_dim)
    do = rng.standard_normal((batch, seqlen_q, num_heads_q, head_dim))
    origin = (
        f"synthetic, logit std {logit_std:g}, {outlier_channels} outlier channels x{outlier_gain:g}, "
        f"K mean {k_mean:g}, V mean {v_mean:g}, seed {seed}"
    )
    name, f32 = f"synthetic-d{head_dim}", np.float32
    return AttentionInputs(name, q.astype(f32), k.astype(f32), v.astype(f32), do.astype(f32), origin)


def _check_habits(
    head_dim: int, logit_std: float, outlier_channels: int, outlier_gain: float, k_mean: float, v_mean: float
) -> None:
    if head_dim not in SYNTHETIC_HEAD_DIMS:
        raise ValueError(f"head_dim = {head_dim} must be one of {SYNTHETIC_HEAD_DIMS}")
    if not 0 < logit_std <= MAX_LOGIT_STD:
        raise ValueError(f"logit_std = {logit_std} must be above 0 and at most {MAX_LOGIT_STD:g}")
    if not 0 <= outlier_channels < head_dim:
        raise ValueError(f"outlier_channels = {outlier_channels} must be from 0 to head_dim - 1 = {head_dim - 1}")
    if not (math.isfinite(outlier_gain) and outlier_gain >= 1):
        raise ValueError(f"outlier_gain = {outlier_gain} must be finite and at least 1")
    for name, value in {"k_mean": k_mean, "v_mean": v_mean}.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} = {value} must be finite")


def _signs(rng: np.random.Generator, num_heads: int, head_dim: int) -> NDArray[np.float64]:
    """(H, D) of -1 and +1."""
    return rng.choice([-1.0, 1.0], size=(num_heads, head_dim))


def _channel_gains(
    rng: np.random.Generator, num_heads: int, head_dim: int, outlier_channels: int, outlier_gain: float
) -> NDArray[np.float64]:
    """(H, D): outlier_gain in `outlier_channels` channels of each head, 1 elsewhere."""
    gains = np.ones((num_heads, head_dim))
    for row in gains:
        row[rng.choice(head_dim, size=outlier_channels, replace=False)] = outlier_gain
    return gains
