"""A small causal decoder made of `MXAttention`, for dense batches and for packed histories, and what its layers may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mxfp8fa.nn.byte_model import Linear
from mxfp8fa.nn.layer_numerics import Inputs
from mxfp8fa.nn.module import MXAttention
from mxfp8fa.numerics.formats import E4M3
from mxfp8fa.numerics.options import AttentionOptions

# Name of `--attention` for the tasks module and jagged -> what the layers are given.
LAYERS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "float32": {"precision": "float32"},
    "exact": {},
    "rounded": {"options": AttentionOptions(row_sum="rounded")},
    "direct": {"options": AttentionOptions(exp="direct", row_sum="rounded")},
    "k_mean": {"options": AttentionOptions(k_mean=True)},
    "delta": {"options": AttentionOptions(delta="unquantized_dO")},
    "sum_P_dP": {"options": AttentionOptions(delta="sum_P_dP")},
    "dq16": {"options": AttentionOptions(dq_accumulate="float16", dq_scale_log2="auto")},
    "dq16_raw": {"options": AttentionOptions(dq_accumulate="float16", dq_scale_log2=0)},
    "square": {"options": AttentionOptions(qk_blocks="square", v_blocks="square")},
    "bf16_head": {"bf16_heads": (0,)},
    "coarse": {"options": AttentionOptions(rule="floor", p_offset=0, delta="unquantized_dO")},
    "static": {"do_scale_log2": 6},
    "unscaled": {"do_scale_log2": 0},
}
ROPE_BASE = 10_000.0
NO_TARGET = -100  # of events that are not to be predicted; what torch's cross entropy leaves out


@dataclass(frozen=True)
class DecoderSize:
    """Shape of the decoder.

    Attributes:
        layers: number of blocks.
        heads: per block.
        head_dim: D; the width is heads * head_dim.
        context: tokens of a sequence, at most.
        vocabulary: of the tokens.
    """

    layers: int = 4
    heads: int = 4
    head_dim: int = 64
    context: int = 256
    vocabulary: int = 256

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.heads * self.head_dim


class StaticScaleAttention(MXAttention):
    """A control, harmful on purpose: dO goes through E4M3 under one static power of two instead of block scales.

    Args:
        width: as for `MXAttention`, whose other arguments follow.
        num_heads: likewise.
        do_scale_log2: log2 of the factor on dO; of the usual mean loss 0 leaves nothing above E4M3's smallest number.
        arguments: the rest.
    """

    def __init__(self, width: int, num_heads: int, *, do_scale_log2: int, **arguments: Any) -> None:
        super().__init__(width, num_heads, **arguments)
        self.do_scale = 2.0**do_scale_log2

    def _attend(self, inputs: Inputs) -> torch.Tensor:
        o = super()._attend(inputs)
        if self.precision == "mxfp8" and o.requires_grad:
            o.register_hook(self._through_e4m3)
        return o

    def _through_e4m3(self, do: torch.Tensor) -> torch.Tensor:
        codes = (do.float() * self.do_scale).clamp(-E4M3.max_value, E4M3.max_value).to(torch.float8_e4m3fn)
        return (codes.float() / self.do_scale).to(do.dtype)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each added to the residual stream."""

    def __init__(self, size: DecoderSize, layer: dict[str, Any]) -> None:
        super().__init__()
        kind = StaticScaleAttention if "do_scale_log2" in layer else MXAttention
        self.attention = kind(size.width, size.heads, causal=True, rope_base=ROPE_BASE, **layer)
        self.norm = nn.RMSNorm(size.width)
        self.up, self.down = (
            Linear(size.width, 4 * size.width, bias=False), Linear(4 * size.width, size.width, bias=False)
        )  # fmt: skip

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor | None, max_seqlen: int | None) -> torch.Tensor:
        """(B, S, width), or (T, width) with cu_seqlens -> the same."""
        x = x + self.attention(x, cu_seqlens, max_seqlen=max_seqlen)
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Decoder(nn.Module):
    """Tokens to logits of the next token; every attention starts with the same weights for the same seed."""

    def __init__(self, size: DecoderSize, attention: str, *, compiled: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        layer = {"backend": "torch", "compiled": compiled, **LAYERS[attention]}
        self.blocks = nn.ModuleList(Block(size, layer) for _ in range(size.layers))
        self.norm, self.head = nn.RMSNorm(size.width), Linear(size.width, size.vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = (2 * size.layers) ** -0.5 if name.endswith(("o_proj.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def forward(
        self, tokens: torch.Tensor, cu_seqlens: torch.Tensor | None = None, max_seqlen: int | None = None
    ) -> torch.Tensor:
        """(B, S) integers, or (T,) with cu_seqlens -> (..., vocabulary) float32."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, cu_seqlens, max_seqlen)
        return self.head(self.norm(x)).float()

    def loss(self, batch: Any) -> torch.Tensor:
        """Mean cross entropy, in nats per token, of every token but the first of each sequence.

        Args:
            batch: (B, S + 1) tokens, or a `Histories`.
        """
        if isinstance(batch, torch.Tensor):
            logits, targets = self(batch[:, :-1].long()).flatten(0, 1), batch[:, 1:].flatten()
        else:
            logits, targets = self(batch.tokens, batch.cu_seqlens, batch.max_seqlen), batch.targets
        return functional.cross_entropy(logits, targets.long(), ignore_index=NO_TARGET)


@dataclass(frozen=True)
class Histories:
    """Packed histories.

    Attributes:
        tokens: (T,) int64, each history without its last event.
        targets: (T,) int64, the event after each, or `NO_TARGET`.
        cu_seqlens: (B + 1,) cumulative lengths.
        max_seqlen: bound on the lengths.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int
