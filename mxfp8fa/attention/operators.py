"""The torch operator behind `flash_attn_func`: what `torch.compile`, FakeTensor and autograd see.

An operator takes tensors, numbers and strings only. So an `MXOperand` comes as codes, packed scales and axes, options
come as text, and everything is put together again inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mxfp8fa.attention.checks import NO_PARTS, Call, check_call, options_from
from mxfp8fa.attention.gradient import empty_gradients, keep, run_backward
from mxfp8fa.attention.payloads import payloads


@torch.library.custom_op("mxfp8fa::attention_forward", mutates_args=())
def attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scales: Sequence[torch.Tensor],
    k_scales: Sequence[torch.Tensor],
    v_scales: Sequence[torch.Tensor],
    q_axes: Sequence[int],
    k_axes: Sequence[int],
    v_axes: Sequence[int],
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and lse: see `flash_attn_func`. Scales and axes are empty for floats."""
    call = _call(q, k, v, (q_scales, k_scales, v_scales), (q_axes, k_axes, v_axes), softmax_scale, causal, options)
    o, lse = call.empty_output()
    if 0 in q.shape:
        return o, lse
    if k.shape[1] == 0:
        return o.zero_(), lse.fill_(float("-inf"))
    call.check_device()
    operands, lse_shift = payloads(call)

    from mxfp8fa.attention.estimate import announced
    from mxfp8fa.kernels.forward import forward

    with announced(call):
        o, lse = forward(
            *operands, softmax_scale=call.softmax_scale, causal=causal, options=call.options, out_dtype=call.out_dtype
        )
    return o, lse if lse_shift is None else lse + lse_shift


@attention_forward.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scales: Sequence[torch.Tensor],
    k_scales: Sequence[torch.Tensor],
    v_scales: Sequence[torch.Tensor],
    q_axes: Sequence[int],
    k_axes: Sequence[int],
    v_axes: Sequence[int],
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results, with the same checks."""
    call = _call(q, k, v, (q_scales, k_scales, v_scales), (q_axes, k_axes, v_axes), softmax_scale, causal, options)
    return call.empty_output()


def _call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scales: tuple[Sequence[torch.Tensor], ...],
    axes: tuple[Sequence[int], ...], softmax_scale: float | None, causal: bool, options: str,
) -> Call:  # fmt: skip
    return check_call((q, k, v), scales, axes, softmax_scale, causal, options_from(options))


@torch.library.custom_op("mxfp8fa::attention_backward", mutates_args=())
def attention_backward(
    do: torch.Tensor,
    dlse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV of a call on floats: see `flash_attn_func`."""
    call = _call(q, k, v, NO_PARTS, NO_PARTS, softmax_scale, causal, options)
    return run_backward(call, o, lse, do, dlse)


@attention_backward.register_fake
def _(
    do: torch.Tensor,
    dlse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    return empty_gradients(_call(q, k, v, NO_PARTS, NO_PARTS, softmax_scale, causal, options))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *scales_and_axes, softmax_scale, causal, options = inputs
    scales, axes = tuple(scales_and_axes[:3]), tuple(scales_and_axes[3:])
    keep(ctx, _call(q, k, v, scales, axes, softmax_scale, causal, options), *output, softmax_scale)


def _gradient(ctx: Any, do: torch.Tensor, dlse: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, o, lse = ctx.saved_tensors
    gradients = attention_backward(do, dlse, q, k, v, o, lse, *ctx.arguments)
    return *gradients, *NO_PARTS, *NO_PARTS, None, None, None


def no_second_gradient(_ctx: Any, *_gradients: torch.Tensor) -> None:
    """Refuse the gradient of a gradient."""
    raise NotImplementedError("attention has no second derivative: its gradient cannot be differentiated")


attention_forward.register_autograd(_gradient, setup_context=_keep)
# Without this the operator would cut the graph in silence.
attention_backward.register_autograd(no_second_gradient)
