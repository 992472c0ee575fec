"""The static factor on dQ when it is added up in FP16: given, or the largest that its bound allows.

|dQ| / softmax_scale <= 2 max||dO|| max||V|| max|K| (`numerics.dq.dq_scale_log2`), where norms run over head_dim. It is
computed by torch where the tensors are, from what the products read, and stays there: nobody waits for it.
"""

from __future__ import annotations

import torch

from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import dequantize, quantize
from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.dq import AUTO_SCALE_MARGIN, FLOAT16_MAX
from mxfp8fa.numerics.options import DQ_SCALE_LOG2_RANGE


def dq_factor(
    options: AttentionOptions, do: torch.Tensor, v: MXOperand, k: MXOperand, cu_seqlens: torch.Tensor | None = None
) -> torch.Tensor:
    """The factor, (1, 1) FP32 on the device of `do`.

    Args:
        options: dq_accumulate and dq_scale_log2; "auto" reads dO, V and K once more.
        do: (B, Sq, Hq, D) floats, (T, Hq, D) if packed.
        v: as dP reads it.
        k: as dQ reads it.
        cu_seqlens: where sequences of do begin, if it is packed; all of them have one factor.
    """
    if options.dq_accumulate == "float32" or options.dq_scale_log2 != "auto":
        log2 = 0 if options.dq_accumulate == "float32" else int(options.dq_scale_log2)
        return torch.full((1, 1), 2.0**log2, device=do.device)
    square = (do.ndim - 3, do.ndim - 1)
    do_seen = quantize(do, axes=square, rule=options.rule, tail="partial", cu_seqlens=cu_seqlens)
    norms = [dequantize(x).square().sum(-1).amax().sqrt() for x in (do_seen, v)]
    bound = 2 * AUTO_SCALE_MARGIN * norms[0] * norms[1] * dequantize(k).abs().amax()
    log2 = (FLOAT16_MAX / bound).log2().floor().clamp(*DQ_SCALE_LOG2_RANGE)
    usable = bound.isfinite() & (bound > 0)
    return torch.where(usable, log2, torch.zeros_like(log2)).exp2().float().reshape(1, 1)
