"""MXFP8 attention for models: the numerics in torch, differentiable. Needs torch.

`mx_attention` is softmax(Q K^T) V on (B, S, H, D) tensors, rounding where the kernels round.
"""

from mxfp8fa.nn.attention import mx_attention

__all__ = ["mx_attention"]
