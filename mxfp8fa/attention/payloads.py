"""Quantized q, k and v of one call."""

from __future__ import annotations

import torch

from mxfp8fa.attention.checks import NAMES, Call
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import dequantize_blocks, quantize, quantize_blocks


def quantized(x: torch.Tensor, *, axes: tuple[int, ...], rule: str) -> MXOperand:
    """`x` in MXFP8, the last block of tokens partial: by the producers' kernel on a GPU, by torch operations on a CPU.

    Code for code the same; in the emulator the kernel would take longer than the attention's.
    """
    if x.is_cuda:
        from mxfp8fa.kernels import producers

        return producers.quantize(x, axes=axes, rule=rule)
    return quantize(x, axes=axes, rule=rule, tail="partial")


def payloads(call: Call) -> tuple[list[MXOperand], torch.Tensor | None]:
    """The operands that the kernel reads, and what has to be added to its lse (None: nothing)."""
    options = call.options
    qk_axes = (3,) if options.resolved_qk_blocks(call.causal) == "1x32" else (1, 3)
    v_axes = (1,) if options.v_blocks == "1x32" else (1, 3)
    tensors, lse_shift = list(call.tensors), None
    if options.k_mean:
        tensors[1], lse_shift = _remove_k_mean(call, qk_axes)
    operands = []
    for i, (name, x) in enumerate(zip(NAMES, tensors, strict=True)):
        axes = v_axes if name == "v" else qk_axes
        made = call.operand(i) if call.axes[i] else quantized(x, axes=axes, rule=options.rule)
        operands.append(made)
    return operands, lse_shift


def backward_payloads(call: Call) -> tuple[dict[str, MXOperand], torch.Tensor | None]:
    """The operands of the backward of a call on floats, by its names, and what its lse has to be less (None: nothing)."""
    options = call.options
    square = options.resolved_qk_blocks(call.causal) == "square"
    qk_axes = (1, 3) if square else (3,)
    (q, k, v), lse_shift = call.tensors, None
    if options.k_mean:
        k, lse_shift = _remove_k_mean(call, qk_axes)

    def payload(x: torch.Tensor, axes: tuple[int, ...]) -> MXOperand:
        return quantized(x, axes=axes, rule=options.rule)

    operands = {"q": payload(q, qk_axes), "k": payload(k, qk_axes)}
    operands["v"] = payload(v, (3,) if options.resolved_grad_v_blocks == "1x32" else (1, 3))
    if not square:
        second_axes = (1, 3) if options.grad_qk_blocks == "square" else (1,)
        operands |= {"q_second": payload(q, second_axes), "k_second": payload(k, second_axes)}
    return operands, lse_shift


def _remove_k_mean(call: Call, q_axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """K less its mean over each sequence's tokens, and what this takes from lse: softmax_scale * q . mean(K)."""
    q, k, _ = call.tensors
    if call.axes[0]:
        q_values = torch.from_numpy(call.operand(0).to_mx_tensor().dequantize()).to(q.device)
    else:
        codes, scale = quantize_blocks(q, axes=q_axes, rule=call.options.rule)
        q_values = dequantize_blocks(codes, scale, axes=q_axes)
    mean = k.mean(1, dtype=torch.float64).float()  # (B, Hkv, D)
    by_head = mean.repeat_interleave(q.shape[2] // k.shape[2], dim=1)  # (B, Hq, D)
    dots = torch.einsum("bshd,bhd->bhs", q_values.double(), by_head.double())
    return k.float() - mean[:, None], (call.softmax_scale * dots).float()
