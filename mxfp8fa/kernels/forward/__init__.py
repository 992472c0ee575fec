"""MXFP8 FlashAttention-4, forward, for sm_100a."""

from mxfp8fa.kernels.forward.call import compile_forward, forward, forward_arguments

__all__ = ["compile_forward", "forward", "forward_arguments"]
