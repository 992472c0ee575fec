"""CuTe DSL kernels for sm_100a. Importing this room needs the extra `kernels` (torch, nvidia-cutlass-dsl, llvmlite).

    compile_kernel, gmem     compile a kernel for Blackwell on any machine; a torch tensor as a kernel takes it
    MXOperand                a block-scaled tensor: codes, and scales packed as the tensor core reads them
    TmemMap, Barriers        what a kernel declares of its tensor memory and of its barriers (`plan`)
    steps                    from one tensor-core instruction to an attention tile, one idea a file

A compiled kernel runs in the emulator, `mxfp8fa.emulator.run(compiled, *args)`, or on a B200, `compiled(*args)`.
"""

from mxfp8fa.kernels.launch import GPU_ARCH, compile_kernel, gmem
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap

__all__ = ["GPU_ARCH", "Barrier", "Barriers", "Columns", "MXOperand", "TmemMap", "compile_kernel", "gmem"]
