"""MXFP8 attention for models. Needs torch.

MXAttention     an attention layer, hidden states in and out
set_precision   switches every such layer of a model: "mxfp8", "bf16"
mx_attention    softmax(Q K^T) V on (B, S, H, D) tensors by the numerics in torch, rounding where the kernels round
"""

from mxfp8fa.nn.attention import mx_attention
from mxfp8fa.nn.module import MXAttention, set_precision

__all__ = ["MXAttention", "mx_attention", "set_precision"]
