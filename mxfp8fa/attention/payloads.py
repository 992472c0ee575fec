"""Quantized q, k and v of one call."""

from __future__ import annotations

from typing import Any

import torch

from mxfp8fa.attention.checks import NAMES, Call
from mxfp8fa.kernels.jagged import sequence_of_tokens
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import dequantize, quantize


def quantized(
    x: torch.Tensor, *, axes: tuple[int, ...], rule: str, cu_seqlens: torch.Tensor | None = None
) -> MXOperand:
    """`x` in MXFP8, the last block of tokens partial: by the producers' kernel on a GPU, by torch operations on a CPU.

    Code for code the same; in the emulator the kernel would take longer than the attention's.
    """
    if x.is_cuda:
        from mxfp8fa.kernels import producers

        return producers.quantize(x, axes=axes, rule=rule, cu_seqlens=cu_seqlens)
    return quantize(x, axes=axes, rule=rule, tail="partial", cu_seqlens=cu_seqlens)


def payloads(call: Call) -> tuple[list[MXOperand], torch.Tensor | None]:
    """The operands that the kernel reads, and what has to be added to its lse (None: nothing)."""
    options, along_tokens, along_d, square = call.options, *_axes(call)
    qk_axes = along_d if options.resolved_qk_blocks(call.causal) == "1x32" else square
    v_axes = along_tokens if options.v_blocks == "1x32" else square
    tensors, lse_shift = list(call.tensors), None
    if options.k_mean:
        tensors[1], lse_shift = _remove_k_mean(call, qk_axes)
    operands = []
    for i, (name, x) in enumerate(zip(NAMES, tensors, strict=True)):
        axes = v_axes if name == "v" else qk_axes
        operands.append(call.operand(i) if call.axes[i] else _payload(call, name, x, axes))
    return operands, lse_shift


def backward_payloads(call: Call) -> tuple[dict[str, Any], torch.Tensor | None]:
    """The operands of the backward of a call on floats, by its names, and what its lse has to be less (None: nothing)."""
    options, along_tokens, along_d, both = call.options, *_axes(call)
    square = options.resolved_qk_blocks(call.causal) == "square"
    qk_axes = both if square else along_d
    (q, k, v), lse_shift = call.tensors, None
    if options.k_mean:
        k, lse_shift = _remove_k_mean(call, qk_axes)
    operands = {"q": _payload(call, "q", q, qk_axes), "k": _payload(call, "k", k, qk_axes)}
    operands["v"] = _payload(call, "v", v, along_d if options.resolved_grad_v_blocks == "1x32" else both)
    if not square:
        second_axes = both if options.grad_qk_blocks == "square" else along_tokens
        operands |= {f"{name}_second": _payload(call, name, x, second_axes) for name, x in (("q", q), ("k", k))}
    return operands, lse_shift


def _axes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Blocks along the tokens, along D, and square ones."""
    token = call.token_axis
    return (token,), (token + 2,), (token, token + 2)


def _payload(call: Call, name: str, x: torch.Tensor, axes: tuple[int, ...]) -> MXOperand:
    return quantized(x, axes=axes, rule=call.options.rule, cu_seqlens=call.cu_seqlens(name))


def _remove_k_mean(call: Call, q_axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """K less its mean over each sequence's tokens, and what this takes from lse: softmax_scale * q . mean(K)."""
    q, k, _ = call.tensors
    q_values = dequantize(call.operand(0) if call.axes[0] else _payload(call, "q", q, q_axes))
    group = q.shape[-2] // k.shape[-2]
    if call.sequences is not None:
        mean, of_keys = _packed_mean(call)
        by_head = mean.double().repeat_interleave(group, dim=1)  # (B, Hq, D)
        cu_seqlens_q = call.sequences.cu_seqlens_q
        if cu_seqlens_q is None:
            dots = torch.einsum("shd,bhd->hbs", q_values, by_head).flatten(1)
        else:
            of_queries = by_head.index_select(0, sequence_of_tokens(cu_seqlens_q, len(q)))
            dots = torch.einsum("shd,shd->hs", q_values, of_queries)
        return k.float() - mean.index_select(0, of_keys), (call.softmax_scale * dots).float()
    mean = k.mean(1, dtype=torch.float64).float()  # (B, Hkv, D)
    dots = torch.einsum("bshd,bhd->bhs", q_values, mean.double().repeat_interleave(group, dim=1))
    return k.float() - mean[:, None], (call.softmax_scale * dots).float()


def _packed_mean(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of K over each sequence (B, Hkv, D), 0 for those without keys, and which sequence every key is of."""
    k, sequences = call.tensors[1], call.sequences
    assert sequences is not None
    of_keys = sequence_of_tokens(sequences.cu_seqlens_k, len(k))
    sums = torch.zeros((sequences.batch, *k.shape[1:]), dtype=torch.float64, device=k.device)
    sums = sums.index_add_(0, of_keys, k.double())
    lengths = sequences.cu_seqlens_k.diff().clamp(min=1)
    return (sums / lengths[:, None, None]).float(), of_keys
