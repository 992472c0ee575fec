"""The static factor on dQ when it is added up in FP16: given, or the largest that its bound allows.

|dQ| / softmax_scale <= 2 max||dO|| max||V|| max|K| (`numerics.dq.dq_scale_log2`), where norms run over head_dim. It is
computed by torch where the tensors are, from what the products read, and stays there: nobody waits for it.
"""

from __future__ import annotations

import torch

from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import quantize
from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.dq import AUTO_SCALE_MARGIN, FLOAT16_MAX
from mxfp8fa.numerics.options import DQ_SCALE_LOG2_RANGE
from mxfp8fa.numerics.softmax import E8M0_BIAS


def dq_factor(options: AttentionOptions, do: torch.Tensor, v: MXOperand, k: MXOperand) -> torch.Tensor:
    """The factor, (1, 1) FP32 on the device of `do`.

    Args:
        options: dq_accumulate and dq_scale_log2; "auto" reads dO, V and K once more.
        do: (B, Sq, Hq, D) floats.
        v: as dP reads it.
        k: as dQ reads it.
    """
    if options.dq_accumulate == "float32" or options.dq_scale_log2 != "auto":
        log2 = 0 if options.dq_accumulate == "float32" else int(options.dq_scale_log2)
        return torch.full((1, 1), 2.0**log2, device=do.device)
    do_seen = quantize(do, axes=(1, 3), rule=options.rule, tail="partial")
    norms = [values(x, "tokens").square().sum(-1).amax().sqrt() for x in (do_seen, v)]
    k_rows = "tokens" if "tokens" in k.scales else "head_dim"
    bound = 2 * AUTO_SCALE_MARGIN * norms[0] * norms[1] * values(k, k_rows).abs().amax()
    log2 = (FLOAT16_MAX / bound).log2().floor().clamp(*DQ_SCALE_LOG2_RANGE)
    usable = bound.isfinite() & (bound > 0)
    return torch.where(usable, log2, torch.zeros_like(log2)).exp2().float().reshape(1, 1)


def values(x: MXOperand, rows: str) -> torch.Tensor:
    """The numbers of an operand in FP64, (B, H, S, D), or (B, H, D, S) with rows="head_dim"."""
    codes = x.codes.view(torch.float8_e4m3fn).double().transpose(1, 2)  # (B, H, S, D)
    codes = codes if rows == "tokens" else codes.transpose(2, 3)
    length, blocked = codes.shape[2:]
    atoms = x.scales_with_rows(rows).unflatten(-1, (32, 4, 4))  # (B, H, row tiles, block tiles, 32, 4, 4)
    scale_e8m0 = atoms.permute(0, 1, 2, 5, 4, 3, 6).flatten(2, 4).flatten(3, 4)[:, :, :length, : -(-blocked // 32)]
    scale = torch.where(scale_e8m0 == 255, torch.nan, torch.exp2(scale_e8m0.double() - E8M0_BIAS))
    return codes * scale.repeat_interleave(32, dim=3)[..., :blocked]
