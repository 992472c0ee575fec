"""The gradient of `flash_attn_func`: the torch operator behind it, and what the forward keeps for it.

The forward keeps q, k, v and O as they are, and lse: for 16-bit tensors 2 D bytes a row of each, and 4 a row of lse. They
are quantized again when the backward comes; keeping codes as well would cost half as much once more.
"""

from __future__ import annotations

from typing import Any

import torch

from mxfp8fa.attention.checks import Call
from mxfp8fa.attention.payloads import backward_payloads
from mxfp8fa.kernels.supported import check_backward_options


def run_backward(
    call: Call, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor, dlse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV of one checked call on floats, in the dtype of q, k and v."""
    gradients = empty_gradients(call)
    if o.numel() == 0 or call.tensors[1].numel() == 0:
        for x in gradients:
            x.zero_()
        return gradients
    call.check_device()
    operands, lse_shift = backward_payloads(call)

    from mxfp8fa.attention.estimate import announced
    from mxfp8fa.kernels.backward import backward

    packed: dict[str, Any] = {} if call.sequences is None else {"sequences": call.sequences}
    with announced(call, backward=True):
        dq, dk, dv = backward(
            **operands, o=o, lse=lse if lse_shift is None else lse - lse_shift, do=do, dlse=dlse,
            softmax_scale=call.softmax_scale, causal=call.causal, options=call.options, dtype=call.tensors[0].dtype, **packed,
        )  # fmt: skip
    return dq, dk, dv


def empty_gradients(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV, nothing in them yet."""
    q, k, v = call.tensors
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return dq, dk, dv


def keep(ctx: Any, call: Call, o: torch.Tensor, lse: torch.Tensor, softmax_scale: float | None) -> None:
    """Keep what the gradient of a call needs.

    Raises:
        ValueError: the backward kernel cannot do what the options say, or an operand came quantized.
    """
    if any(call.axes):
        raise ValueError(
            "a gradient is asked for, but autograd cannot pass one through an MXOperand; allowed: q, k and v as floats, or "
            "flash_attn_backward, which takes MXOperands"
        )
    if call.options.gradients != "float32":
        raise ValueError(
            f"options.gradients = {call.options.gradients!r}: autograd cannot carry an MXOperand; allowed: 'float32', or "
            "flash_attn_backward, which returns MXOperands"
        )
    check_backward_options(call.options)
    ctx.save_for_backward(*call.tensors, o, lse)
    ctx.arguments = softmax_scale, call.causal, call.options.text
