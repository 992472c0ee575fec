"""The forward of MXFP8 attention on (B, H, S, D) tensors; `mxfp8fa.nn.attention` is the door."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from mxfp8fa.nn.blocks import quantize
from mxfp8fa.nn.products import Visibility, product
from mxfp8fa.nn.softmax import RowState, dequantized, finish, softmax_step
from mxfp8fa.numerics.mx_tensor import BLOCK
from mxfp8fa.numerics.operands import Blocks
from mxfp8fa.numerics.options import AttentionOptions


class Call(NamedTuple):
    """What a call is apart from its tensors.

    Attributes:
        visibility: the mask.
        softmax_scale: factor on the scores.
        scale_log2: softmax_scale * log2(e) as a float32 number.
        options: how it rounds.
        group_size: query heads per key head.
    """

    visibility: Visibility
    softmax_scale: float
    scale_log2: float
    options: AttentionOptions
    group_size: int

    @property
    def qk_blocks(self) -> Blocks:
        """Blocks of Q and K for S."""
        return "along_d" if self.options.resolved_qk_blocks(self.visibility.causal) == "1x32" else "square"

    @property
    def v_blocks(self) -> Blocks:
        """Blocks of V for O."""
        return "along_tokens" if self.options.v_blocks == "1x32" else "square"

    def by_query_head(self, x: torch.Tensor) -> torch.Tensor:
        """(B, Hkv, ...) repeated for the query heads of each group."""
        return x if self.group_size == 1 else x.repeat_interleave(self.group_size, dim=1)


class Scored(NamedTuple):
    """Values of Q and K as S sees them.

    Attributes:
        q: (B, Hq, Sq, D).
        k: (B, Hkv, Sk, D).
        k_float: (B, Hkv, Sk, D) what k was quantized from, its mean removed if asked for.
        lse_shift: (B, Hq, Sq) what removing the mean took from lse, or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    k_float: torch.Tensor
    lse_shift: torch.Tensor | None


def prepare_scores(q: torch.Tensor, k: torch.Tensor, call: Call) -> Scored:
    """Quantize Q and K, whose rows after the end of a sequence are zeros, for S = Q K^T."""
    q_values = quantize(q, call.qk_blocks, call.options.rule).values
    k_float, shift = k.float(), None
    if call.options.k_mean:
        k_float, shift = _remove_k_mean(k_float, q_values, call)
    return Scored(q_values, quantize(k_float, call.qk_blocks, call.options.rule).values, k_float, shift)


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """O (B, Hq, Sq, D) and lse (B, Hq, Sq), float32; lse is that of the given K.

    Args:
        q: (B, Hq, Sq, D) floats.
        k: (B, Hkv, Sk, D).
        v: likewise.
        call: the rest.
    """
    q, k, v = (call.visibility.valid_rows(x, side) for x, side in ((q, "q"), (k, "k"), (v, "k")))
    scored = prepare_scores(q, k, call)
    v_values = call.by_query_head(pad_tokens(quantize(v, call.v_blocks, call.options.rule).values))
    k_values = call.by_query_head(pad_tokens(scored.k))
    state = RowState.empty(q.shape[:-1], q.device)
    o = torch.zeros(q.shape, device=q.device)
    for tile in _key_tiles(k_values.shape[-2], call.options):
        s = call.visibility.mask(product(scored.q, k_values[..., tile, :]), tile.start)
        codes, scale_e8m0, acc_scale, state = softmax_step(s, state, call.scale_log2, call.options)
        o = o * acc_scale[..., None] + product(dequantized(codes, scale_e8m0), v_values[..., tile, :].mT)
    inverse_sum, lse = finish(state, call.scale_log2, call.options)
    o = call.visibility.valid_rows(o * inverse_sum[..., None], "q")
    return o, lse if scored.lse_shift is None else lse + scored.lse_shift


def pad_tokens(x: torch.Tensor) -> torch.Tensor:
    """(..., S, D) with zeros up to a multiple of 32 tokens."""
    missing = -x.shape[-2] % BLOCK
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def _key_tiles(keys: int, options: AttentionOptions) -> list[slice]:
    """The key tiles in the order in which a query tile visits them."""
    tiles = [slice(start, min(start + options.tile_n, keys)) for start in range(0, keys, options.tile_n)]
    return tiles if options.kv_order == "ascending" else tiles[::-1]


def _remove_k_mean(k: torch.Tensor, q_values: torch.Tensor, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """K less its mean over each sequence's tokens, and what that takes from lse: softmax_scale * q . mean(K)."""
    lengths = call.visibility.lengths_k
    count = k.shape[-2] if lengths is None else lengths.clamp(min=1)[:, None, None, None]
    mean = (k.double().sum(-2, keepdim=True) / count).float()  # (B, Hkv, 1, D)
    dots = (q_values.double() * call.by_query_head(mean).double()).sum(-1)
    return call.visibility.valid_rows(k - mean, "k"), (call.softmax_scale * dots).float()
