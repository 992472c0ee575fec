"""MXFP8 attention in torch: the numerics of `mxfp8fa.numerics`, differentiable, on any device, fast enough to train.

    o = mx_attention(q, k, v, causal=True, options=AttentionOptions())      (B, S, H, D), as the NumPy functions take it

What is equal to NumPy bit for bit, and what is not:

    always         codes and scales of Q, K, V and dO, both payloads of each
    given S        codes and scales of P, row_max, row_sum, acc_scale; in the backward, from lse, the codes of P
    given P, dP    codes and scales of dS
    not            the order in which a matrix product adds: float32 and the device's own. Where all sums are exact
                   (small integers) O, lse, dQ, dK and dV are equal bit for bit too, and so the tests see the rest.

All heads and sequences go through one batched product per key tile. Queries are not cut into tiles: rows do not see each
other but in the squares of dS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mxfp8fa.nn.backward import backward
from mxfp8fa.nn.forward import Call, forward
from mxfp8fa.nn.products import Visibility, without_autocast
from mxfp8fa.numerics.operands import check_head_dim, check_softmax_scale
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.softmax import softmax_scale_log2


def mx_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    lengths_q: torch.Tensor | None = None,
    lengths_k: torch.Tensor | None = None,
    options: AttentionOptions | None = None,
    compiled: bool = False,
) -> torch.Tensor:
    """O = softmax(softmax_scale * Q K^T) V with block-scaled E4M3 operands, forward and backward.

    Args:
        q: (B, Sq, Hq, D) float32, float16 or bfloat16; head_dim a multiple of 32 up to 256.
        k: (B, Sk, Hkv, D) of the same dtype; Hkv divides Hq.
        v: the shape of k.
        softmax_scale: 1 / sqrt(D) if None.
        causal: query i sees key j when j <= i + Sk - Sq, with the lengths of its sequence.
        lengths_q: (B,) integers, how many queries of each sequence count; those after are padding with O = 0. All if None.
        lengths_k: the same for keys.
        options: `AttentionOptions()` if None; accumulate must be "float32".
        compiled: run forward and backward through `torch.compile`.

    Returns:
        O in the shape of q, in options.out_dtype ("auto": the dtype of q); delta in the backward is taken from this O.

    Raises:
        ValueError: shapes, dtypes or options that are not allowed.
    """
    options = AttentionOptions() if options is None else options
    call = make_call(q, k, v, softmax_scale, Visibility(q.shape[1], k.shape[1], causal, lengths_q, lengths_k), options)
    o, _ = _MXAttention.apply(*(x.transpose(1, 2) for x in (q, k, v)), call, compiled)
    return o.transpose(1, 2)


def make_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    visibility: Visibility,
    options: AttentionOptions,
) -> Call:
    """Check the arguments of `mx_attention` and put what is not a tensor together.

    Raises:
        ValueError: see `mx_attention`.
    """
    _check(q, k, v, options)
    scale = 1.0 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    check_softmax_scale(scale)
    return Call(visibility, scale, float(softmax_scale_log2(scale)), options, q.shape[2] // k.shape[2])


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            f"q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; allowed: (B, Sq, Hq, D), "
            "(B, Sk, Hkv, D), (B, Sk, Hkv, D)"
        )
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"Hq = {q.shape[2]} is not a multiple of Hkv = {k.shape[2]}")
    allowed = (torch.float32, torch.float16, torch.bfloat16)
    if q.dtype not in allowed or {k.dtype, v.dtype} != {q.dtype}:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; allowed: one of float32, float16, bfloat16")
    check_head_dim(q.shape[3])
    if options.accumulate != "float32":
        raise ValueError(f"accumulate = {options.accumulate!r}: here products are the device's; allowed: 'float32'")


class _MXAttention(torch.autograd.Function):
    """The two passes as one differentiable function of (B, H, S, D) tensors; returns O and lse."""

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Call, compiled: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with without_autocast(q):
            o, lse = _maybe_compiled(forward, compiled)(*(x.detach() for x in (q, k, v)), call)
        return o.to(_out_dtype(q, call)), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        q, k, v, ctx.call, ctx.compiled = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, o, lse = (x.detach() for x in ctx.saved_tensors)
        with without_autocast(q):
            dq, dk, dv = _maybe_compiled(backward, ctx.compiled)(q, k, v, o, lse, do, ctx.call)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def _out_dtype(q: torch.Tensor, call: Call) -> torch.dtype:
    dtype = call.options.out_dtype
    return q.dtype if dtype == "auto" else getattr(torch, dtype)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False, fullgraph=True)


def _maybe_compiled(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return _compiled(function) if compiled else function
