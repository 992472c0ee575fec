"""MXFP8 attention for torch: quantize, then FlashAttention-4 in MXFP8, on a Blackwell GPU or in the emulator.

    flash_attn_func         attention of (B, S, H, D) tensors, differentiable in floats
    flash_attn_backward     its gradient for MXOperands
    flash_attn_varlen_func  attention of sequences packed in (T, H, D) tensors
    AttentionOptions        how it rounds
    MXOperand, quantize     operands that are quantized already
    emulation               how kernels on CPU tensors run: checker, schedule, progress, and what they did

Importing it touches neither CUDA nor the CuTe DSL; the first call that runs a kernel does.
"""

from mxfp8fa.attention.api import flash_attn_func
from mxfp8fa.attention.backward import flash_attn_backward
from mxfp8fa.attention.varlen import flash_attn_varlen_func
from mxfp8fa.kernels.execution import emulation
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.torch_quantize import quantize
from mxfp8fa.numerics.options import AttentionOptions

__all__ = [
    "AttentionOptions",
    "MXOperand",
    "emulation",
    "flash_attn_backward",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "quantize",
]
