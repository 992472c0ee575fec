"""A small causal model of bytes whose attention is one argument: the smallest place where MXFP8 can go wrong in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from mxfp8fa.nn.attention import mx_attention
from mxfp8fa.numerics.options import AttentionOptions

# Q, K and V of (B, S, H, D) to O of the same shape, causal.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Causal attention has Q and K in 1x32 blocks along d by default, which no later token can enter.
ATTENTION_OPTIONS: dict[str, AttentionOptions | None] = {
    "bf16": None,
    "exact": AttentionOptions(),
    "rounded": AttentionOptions(row_sum="rounded"),
    "direct": AttentionOptions(exp="direct", row_sum="rounded"),
}


@dataclass(frozen=True)
class ModelSize:
    """Shape of the model.

    Attributes:
        layers: number of blocks.
        heads: per block.
        head_dim: D; the width of the model is heads * head_dim.
        context: tokens of a sequence.
    """

    layers: int = 6
    heads: int = 4
    head_dim: int = 128
    context: int = 512

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.heads * self.head_dim


def make_attention(name: str, *, compiled: bool = False) -> Attention:
    """One of `ATTENTION_OPTIONS`, causal.

    Raises:
        KeyError: no attention has that name.
    """
    options = ATTENTION_OPTIONS[name]
    if options is None:
        return _bf16_attention
    return lambda q, k, v: mx_attention(q, k, v, causal=True, options=options, compiled=compiled)


def _bf16_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Linear(nn.Linear):
    """Float32 weights that enter the product in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in) -> (..., out), bfloat16."""
        return functional.linear(x.bfloat16(), self.weight.bfloat16())


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on the normalized residual stream and added to it."""

    def __init__(self, size: ModelSize, attention: Attention) -> None:
        super().__init__()
        self.size, self.attention = size, attention
        width = size.width
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = Linear(width, 3 * width, bias=False), Linear(width, width, bias=False)
        self.up, self.down = Linear(width, 4 * width, bias=False), Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, width) float32 -> the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.size.heads, self.size.head_dim))
        o = self.attention(*qkv.unbind(2))  # (B, S, H, D)
        x = x + self.out(o.flatten(-2))
        return x + self.down(functional.silu(self.up(self.norm2(x))))


class ByteModel(nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self, size: ModelSize, attention: Attention) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size, attention) for _ in range(size.layers))
        self.norm, self.head = nn.RMSNorm(size.width), Linear(size.width, 256, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = (2 * size.layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, S) integers -> (B, S, 256) float32."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).float()

    def loss(self, chunk: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy, in nats per byte, of predicting each byte of (B, S + 1) but the first."""
        logits = self(chunk[:, :-1].long())
        return functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].long().flatten())
