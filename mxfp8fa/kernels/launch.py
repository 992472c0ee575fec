"""From torch tensors to a kernel compiled for sm_100a, with or without a GPU in the machine."""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

import mxfp8fa.emulator  # noqa: F401  (from here on compiled functions keep their PTX)
from mxfp8fa.emulator import as_cuda

GPU_ARCH = "sm_100a"
ALIGNMENT_BYTES = 16  # of a tensor's first element: TMA and 128-bit accesses need it


def compile_kernel(function: Any, *args: Any, target: str = GPU_ARCH) -> Any:
    """Compile a @cute.jit function for Blackwell, with line information so that errors name lines of Python.

    Args:
        function: launches the kernel.
        *args: what it will be called with; tensors come from `gmem`.
        target: the architecture; the emulator runs code for sm_100a.

    Returns:
        The compiled function: `mxfp8fa.emulator.run(compiled, *args)`, or `compiled(*args)` on a B200.
    """
    return cute.compile(function, *args, options=f"--gpu-arch={target} --generate-line-info")


def gmem(
    tensor: torch.Tensor,
    element_type: type[cutlass.Numeric] | None = None,
    *,
    divisible_by: tuple[int | None, ...] = (),
) -> Any:
    """A torch tensor as a kernel takes it: CuTe tensor in global memory; the memory is shared.

    Args:
        tensor: compact, of up to 5 dimensions; a CPU tensor is presented as a CUDA tensor.
        element_type: CuTe type of the elements where torch has no such type or DLPack cannot name it: E4M3 codes are
            uint8 here and cutlass.Float8E4M3FN there.
        divisible_by: per dimension, what the compiled kernel may assume of its size; None compiles the size in.

    Raises:
        ValueError: the first element is not aligned to 16 bytes.
    """
    if tensor.data_ptr() % ALIGNMENT_BYTES:
        raise ValueError(f"the tensor starts at an address that is not a multiple of {ALIGNMENT_BYTES} bytes; copy it")
    source = tensor if tensor.device.type != "cpu" else as_cuda(tensor)
    cute_tensor = from_dlpack(source, assumed_align=ALIGNMENT_BYTES)
    if element_type is not None:
        cute_tensor.element_type = element_type
    # By stride, as CuTe deduces it; torch's dim_order() differs for sizes of 1.
    order = tuple(sorted(range(tensor.ndim), key=lambda mode: -tensor.stride(mode)))
    for mode, divisor in enumerate(divisible_by):
        if divisor is not None:
            cute_tensor.mark_compact_shape_dynamic(mode, order, divisor)
    return cute_tensor
