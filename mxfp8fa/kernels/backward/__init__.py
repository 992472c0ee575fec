"""MXFP8 FlashAttention-4, backward, for sm_100a: preprocess, main and postprocess kernel.

    backward     gradients of one call
    Gradients    what it returns

A walk through it: `call.backward` checks and launches; `plan` has the tables; `main.main_kernel` sends warps to their
roles; `mma.multiply` is the order of the five products, `compute.compute` what P and dS are.
"""

from mxfp8fa.kernels.backward.call import Gradients, backward

__all__ = ["Gradients", "backward"]
