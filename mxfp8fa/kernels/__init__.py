"""CuTe DSL kernels for sm_100a. This room needs the extra `kernels` (torch, nvidia-cutlass-dsl, llvmlite).

    compile_kernel, gmem     compile a kernel for Blackwell on any machine; a torch tensor as a kernel takes it
    MXOperand                a block-scaled tensor: codes, and scales packed as the tensor core reads them
    quantize                 torch tensor to MXOperand, on any device
    TmemMap, Barriers        what a kernel declares of its tensor memory and of its barriers (`plan`)
    steps                    from one tensor-core instruction to an attention tile, one idea a file

A compiled kernel runs in the emulator, `mxfp8fa.emulator.run(compiled, *args)`, or on a B200, `compiled(*args)`.

Names are imported when they are first used: the CuTe DSL takes seconds, and operands and their quantizer do not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxfp8fa.kernels.launch import GPU_ARCH, compile_kernel, gmem
    from mxfp8fa.kernels.operands import MXOperand
    from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
    from mxfp8fa.kernels.torch_quantize import quantize

_HOME = {
    "launch": ("GPU_ARCH", "compile_kernel", "gmem"),
    "operands": ("MXOperand",),
    "plan": ("Barrier", "Barriers", "Columns", "TmemMap"),
    "torch_quantize": ("quantize",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "GPU_ARCH", "Barrier", "Barriers", "Columns", "MXOperand", "TmemMap", "compile_kernel", "gmem", "quantize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
