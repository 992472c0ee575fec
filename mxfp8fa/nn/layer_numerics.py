"""From normalized hidden states to O in torch, on any device: in BF16, in float32, or by the MXFP8 numerics.

Q, K and V are rounded where the kernels round: a projection whose epilogue quantizes leaves float32 accumulators, one that is
followed by RoPE or QK-norm, or that adds a bias, writes BF16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mxfp8fa.nn.attention import mx_attention
from mxfp8fa.nn.products import without_autocast
from mxfp8fa.nn.sequences import Sequences, rotate
from mxfp8fa.numerics.options import AttentionOptions

Precision = Literal["mxfp8", "bf16", "float32"]


@dataclass(frozen=True)
class Layer:
    """What an attention layer is apart from its tensors.

    Attributes:
        head_dim: D.
        causal: a token sees itself and those before it.
        rope_base: of the rotary embedding, or None.
        eps: of the norms.
        softmax_scale: factor on the scores.
        options: of MXFP8 attention.
        compiled: run the numerics through `torch.compile`.
    """

    head_dim: int
    causal: bool
    rope_base: float | None
    eps: float
    softmax_scale: float
    options: AttentionOptions
    compiled: bool = False


@dataclass(frozen=True)
class Weights:
    """Weights of some heads, in BF16; rows of q are those of its query heads.

    Attributes:
        q: (Hq * D, width).
        k: (Hkv * D, width).
        v: likewise.
        q_bias: (Hq * D,) or None; k_bias and v_bias likewise.
        q_norm: (D,) of the norm of every head of Q, or None.
        k_norm: likewise, for K.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_bias: torch.Tensor | None
    k_bias: torch.Tensor | None
    v_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True)
class Inputs:
    """What queries and what keys and values are made of.

    Attributes:
        h: (B, Sq, width) or (Tq, width) BF16, normalized.
        context: (B, Sk, context_width) or (Tk, context_width) BF16; h itself where attention is on itself.
        sequences: of packed h, else None.
        sequences_k: of packed context, else None.
    """

    h: torch.Tensor
    context: torch.Tensor
    sequences: Sequences | None
    sequences_k: Sequences | None


def positions_of(h: torch.Tensor, sequences: Sequences | None) -> torch.Tensor:
    """(S,) or (T,) positions of the tokens."""
    return torch.arange(h.shape[-2], device=h.device) if sequences is None else sequences.positions()


def attend_in_torch(inputs: Inputs, weights: Weights, layer: Layer, precision: Precision) -> torch.Tensor:
    """O (..., Hq, D) in BF16.

    Args:
        inputs: hidden states.
        weights: of the heads.
        layer: the rest.
        precision: of the attention.
    """
    q, k, v = heads(inputs, weights, layer, project if precision == "bf16" else project_float32)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if inputs.sequences is not None and inputs.sequences_k is not None:
        q, k, v = inputs.sequences.pad(q), inputs.sequences_k.pad(k), inputs.sequences_k.pad(v)
    o = (_numerics if precision == "mxfp8" else _exact)(q, k, v, layer, inputs)
    return (o if inputs.sequences is None else inputs.sequences.unpad(o)).bfloat16()


def heads(
    inputs: Inputs, weights: Weights, layer: Layer, epilogue: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K and V (..., H, D) as attention is to quantize them; what nothing follows is made by `epilogue`."""
    q, k, v = (_head(inputs, weights, layer, name, epilogue) for name in ("q", "k", "v"))
    return q, k, v


def _head(
    inputs: Inputs, weights: Weights, layer: Layer, name: str,
    epilogue: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Q, K or V (..., H, D), before attention rounds it."""
    h, sequences = (inputs.h, inputs.sequences) if name == "q" else (inputs.context, inputs.sequences_k)
    weight, bias, norm = (getattr(weights, name + kind, None) for kind in ("", "_bias", "_norm"))
    assert weight is not None
    turned = name != "v" and layer.rope_base is not None
    centred = name == "k" and layer.options.k_mean
    if bias is None and norm is None and not turned and not centred:
        return epilogue(h, weight).unflatten(-1, (-1, layer.head_dim))
    x = project(h, weight, bias).unflatten(-1, (-1, layer.head_dim))
    if norm is not None:
        x = functional.rms_norm(x.float(), (layer.head_dim,), norm.float(), layer.eps)
    if turned:
        assert layer.rope_base is not None
        x = rotate(x, positions_of(h, sequences), layer.rope_base).bfloat16()
    return x


def _numerics(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer, inputs: Inputs) -> torch.Tensor:
    """MXFP8 attention of float32 (B, S, H, D) tensors."""
    options = layer.options
    if options.out_dtype == "auto":
        options = replace(options, out_dtype="bfloat16")
    lengths_q, lengths_k = (None if s is None else s.lengths for s in (inputs.sequences, inputs.sequences_k))
    return mx_attention(
        q, k, v, softmax_scale=layer.softmax_scale, causal=layer.causal, lengths_q=lengths_q, lengths_k=lengths_k,
        options=options, compiled=layer.compiled,
    )  # fmt: skip


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: Layer, inputs: Inputs) -> torch.Tensor:
    """torch's attention of (B, S, H, D) tensors, in their dtype."""
    mask, sequences = None, inputs.sequences_k
    if sequences is not None and not layer.causal:  # under a causal mask no token sees the padding after it
        key = torch.arange(sequences.max_seqlen, device=q.device)
        mask = (key < sequences.lengths.clamp(min=1)[:, None])[:, None, None]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=layer.causal, scale=layer.softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return o.transpose(1, 2)


def project(h: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """H weight^T + bias, rounded to BF16."""
    return functional.linear(h, weight, bias)


def project_float32(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """H weight^T of BF16 operands as float32 sums; its gradient is that of `project`, rounded to BF16."""
    result: torch.Tensor = _ProjectFloat32.apply(h, weight)
    return result


class _ProjectFloat32(torch.autograd.Function):
    @staticmethod
    def forward(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not h.is_cuda:
            return h.float() @ weight.float().mT
        rows = torch.bmm(h.flatten(0, -2)[None], weight.mT[None], out_dtype=torch.float32)
        return rows.unflatten(1, h.shape[:-1])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with without_autocast(dy):
            return project_backward(dy, *ctx.saved_tensors)


def project_backward(dy: torch.Tensor, h: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of h and of the weight from that of h weight^T: straight through what was rounded after it."""
    dy = dy.bfloat16()
    return dy @ weight, dy.flatten(0, -2).mT @ h.flatten(0, -2)
