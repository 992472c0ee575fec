"""`flash_attn_backward`: the gradient of attention on operands that are quantized already."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mxfp8fa.attention.checks import MAX_ELEMENTS, TMA_ALIGNMENT_BYTES
from mxfp8fa.kernels.execution import require_toolchain, target_of
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import quantize
from mxfp8fa.numerics.operands import check_softmax_scale
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import check_scale_and_mask

if TYPE_CHECKING:
    from mxfp8fa.kernels.backward import Gradients


def flash_attn_backward(
    do: torch.Tensor,
    q: MXOperand,
    k: MXOperand,
    v: MXOperand,
    o: torch.Tensor,
    lse: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *,
    q_second: MXOperand | None = None,
    k_second: MXOperand | None = None,
    v_second: MXOperand | None = None,
    dlse: torch.Tensor | None = None,
    options: AttentionOptions | None = None,
    dtype: torch.dtype = torch.bfloat16,
    dq_overflows: torch.Tensor | None = None,
) -> Gradients:
    """Gradients of sum(O * dO) + sum(lse * dlse) from what `flash_attn_func` was given and returned.

    Autograd cannot pass a gradient through an `MXOperand`; this is the call for those who quantize themselves. It stands
    outside autograd, and its results cannot be differentiated.

    Args:
        do: (B, Sq, Hq, D), D = 64 or 128, float32, bfloat16 or float16. It is quantized in square blocks on the way.
        q: the forward's. Square blocks serve every product; blocks along D need `q_second` beside them.
        k: likewise.
        v: the forward's, in square blocks. With blocks along the tokens it does not serve dP = dO V^T, and `v_second` has to.
        o: the shape of q, as the forward returned it.
        lse: (B, Hq, Sq) float32, likewise.
        softmax_scale: the forward's; 1 / sqrt(D) if None.
        causal: the forward's.
        q_second: Q for dK, in square blocks or along the tokens.
        k_second: K for dQ, likewise.
        v_second: V for dP, in square blocks or along D; best made from V before quantization.
        dlse: (B, Hq, Sq) float32, gradient of lse.
        options: the forward's. `gradients` says what comes back: "float32" arrays in `dtype`, or `MXOperand`s in blocks of
            "1x32" along D or "square" ones.
        dtype: of gradients that are arrays: bfloat16, float16 or float32.
        dq_overflows: (1,) int32, a counter to add to where dQ is added up in FP16; a new one if None.

    Returns:
        dQ, dK, dV (unpacking gives these three), and with options.dq_accumulate = "float16" the counter of overflows, on the
        device: nobody waits for it. dQ depends on the order in which tiles of keys are added up, on a GPU that of arrival.

    Raises:
        ValueError: something that is not allowed, or a device that no kernel runs on; says what is allowed. Nothing has
            been compiled then.
        NotImplementedError: a second derivative is asked for.
        ModuleNotFoundError: the extra `kernels` is not installed.
    """
    options = AttentionOptions() if options is None else options
    if not isinstance(options, AttentionOptions):
        raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
    if options.k_mean:
        raise ValueError("options.k_mean = True with an MXOperand: K is quantized already; allowed: False")
    given = {"q": q, "k": k, "v": v, "q_second": q_second, "k_second": k_second, "v_second": v_second}
    operands: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
    _check(operands, {"do": do, "o": o, "lse": lse, "dlse": dlse})
    softmax_scale = 1.0 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    check_scale_and_mask(softmax_scale, causal)
    check_softmax_scale(softmax_scale)
    operands["v"] = operands.pop("v_second", v)
    require_toolchain()

    from mxfp8fa.kernels.backward import backward

    whole = options.gradients == "float32"
    gradients = backward(
        **operands, o=o, lse=lse, do=do, dlse=dlse, softmax_scale=softmax_scale, causal=causal, options=options,
        dtype=dtype if whole else torch.float32, dq_overflows=dq_overflows,
    )  # fmt: skip
    if whole:
        return gradients
    axes = (3,) if options.gradients == "1x32" else (1, 3)
    made = [quantize(x, axes=axes, rule=options.rule, tail="partial") for x in gradients]
    return replace(gradients, dQ=made[0], dK=made[1], dV=made[2])


def _check(operands: dict[str, MXOperand], tensors: dict[str, torch.Tensor | None]) -> None:
    """Types, devices, addresses, and that V serves dP; shapes and the other blocks are checked by the kernels' own call."""
    for name, operand in operands.items():
        if not isinstance(operand, MXOperand):
            raise ValueError(
                f"{name} is a {type(operand).__name__}; allowed: an MXOperand (floats go to flash_attn_func)"
            )
        if operand.codes.numel() > MAX_ELEMENTS:
            raise ValueError(f"{name} has {operand.codes.numel()} elements; allowed: at most 2^31 - 1")
        if operand.codes.is_contiguous() and operand.codes.data_ptr() % TMA_ALIGNMENT_BYTES:
            raise ValueError(
                f"codes of {name} start at an address that is not a multiple of {TMA_ALIGNMENT_BYTES} bytes, which TMA "
                "cannot take; copy them with .clone()"
            )
    device = operands["q"].codes.device
    for name, x in tensors.items():
        if x is None and name == "dlse":
            continue
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} is a {type(x).__name__}; allowed: a torch tensor")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device} and q on {device}; all must be on one device")
        if x.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                f"{name} requires a gradient, but flash_attn_backward has no derivative; allowed: detached tensors"
            )
    if 3 not in operands["v"].axes and "v_second" not in operands:
        raise ValueError(
            f"v has blocks along axes {operands['v'].axes} of (B, S, H, D), which do not serve dP = dO V^T; allowed: (1, 3) for "
            "squares, or v_second beside it with (3,) or (1, 3)"
        )
    target_of(device)
