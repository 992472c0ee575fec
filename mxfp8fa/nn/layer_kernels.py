"""From normalized hidden states to O by the attention kernels: on a Blackwell GPU, or, for CPU tensors, in the emulator.

The projections are torch's, with float32 results where nothing but quantization follows; `flash_attn_func` quantizes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mxfp8fa.attention import flash_attn_func
from mxfp8fa.nn.layer_numerics import Layer, Weights, heads, project_float32
from mxfp8fa.nn.sequences import Sequences


def attend_in_kernels(h: torch.Tensor, weights: Weights, layer: Layer, sequences: Sequences | None) -> torch.Tensor:
    """O (..., Hq, D) in BF16: see `layer_numerics.attend_in_torch`. Packed sequences run one after another."""
    options = replace(layer.options, out_dtype="bfloat16") if layer.options.out_dtype == "auto" else layer.options
    q, k, v = (x.float() for x in heads(h, weights, layer, sequences, project_float32))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attn_func(q, k, v, layer.softmax_scale, layer.causal, options=options)

    if sequences is None:
        return attend(q, k, v).bfloat16()
    lengths = sequences.lengths.tolist()
    parts = [attend(*(x[None] for x in rows))[0] for rows in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)]
    return torch.cat(parts).bfloat16()
