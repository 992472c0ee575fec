"""Producers: kernels that leave their results in MXFP8, codes and scales as the tensor core reads them.

    quantize            a tensor
    rmsnorm_quantize    RMSNorm of it
    gemm_quantize       a projection of it; `gemm` is the same product in BF16 or FP32

They take torch tensors and give `MXOperand`s. What needs no tensor memory runs on Hopper as well as on Blackwell, and CPU
tensors run in the emulator.
"""

from mxfp8fa.kernels.producers.gemm import gemm, gemm_quantize
from mxfp8fa.kernels.producers.quantize import quantize
from mxfp8fa.kernels.producers.rmsnorm import Normalized, rmsnorm_quantize

__all__ = ["Normalized", "gemm", "gemm_quantize", "quantize", "rmsnorm_quantize"]
