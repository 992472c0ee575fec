"""CPU tensors that introduce themselves as CUDA tensors.

The CuTe DSL and TVM-FFI read a tensor through DLPack. A CPU tensor becomes memory space "generic" there, and kernels
that issue bulk copies then do not compile; a CUDA tensor becomes "gmem", as on a GPU. `as_cuda` changes nothing but the
device that DLPack reports (device type 2): the memory stays the CPU tensor's own.

Source of the structures: DLPack, DLManagedTensor and DLManagedTensorVersioned.
"""

from __future__ import annotations

import ctypes
import math
import sys
from functools import lru_cache
from typing import Any

DL_CUDA = 2  # kDLCUDA
SOURCE_ATTRIBUTE = "_mxfp8fa_source"  # set on a from_dlpack tensor: what it was made of


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Where the DLTensor starts in the structure a capsule of this name points to.
_TENSOR_OFFSET = {b"dltensor": 0, b"dltensor_versioned": 32}


def _dltensor(capsule: Any) -> _DLTensor:
    """The DLTensor inside an unconsumed DLPack capsule."""
    api = ctypes.pythonapi
    get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    name = get_name(capsule)
    if name not in _TENSOR_OFFSET:
        raise ValueError(f"a DLPack capsule named {name!r}; allowed: {sorted(_TENSOR_OFFSET)}")
    return _DLTensor.from_address(get_pointer(capsule, name) + _TENSOR_OFFSET[name])


class CudaArray:
    """A NumPy array, or another DLPack exporter in CPU memory, that DLPack reports as a CUDA tensor."""

    def __init__(self, array: Any):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return DL_CUDA, 0

    def __dlpack__(self, **options: Any) -> Any:
        """Export the array; `stream` and `dl_device` speak of a device that does not exist and are dropped."""
        for name in ("stream", "dl_device"):
            options.pop(name, None)
        capsule = self.array.__dlpack__(**{k: v for k, v in options.items() if v is not None})
        _dltensor(capsule).device_type = DL_CUDA
        return capsule

    def __repr__(self) -> str:
        return f"as_cuda({self.array!r})"


def as_cuda(tensor: Any) -> Any:
    """Present a CPU tensor as a CUDA tensor; the memory is shared.

    Args:
        tensor: a torch CPU tensor, a NumPy array, or any object in CPU memory with `__dlpack__`.

    Returns:
        For torch a tensor (subclass of torch.Tensor) whose `device` is cuda:0 and on which every torch function still
        runs on the CPU; for anything else a small object with the DLPack methods only.

    Raises:
        ValueError: `tensor` has no `__dlpack__`, or lies on another device than the CPU.
    """
    if isinstance(tensor, CudaArray) or is_cuda_tensor(tensor):
        return tensor
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.device.type != "cpu":
            raise ValueError(f"as_cuda takes CPU tensors, got one on {tensor.device}")
        return tensor.as_subclass(cuda_tensor_class())
    if not hasattr(tensor, "__dlpack__"):
        raise ValueError(f"as_cuda takes torch tensors, NumPy arrays and DLPack exporters, got {type(tensor).__name__}")
    device_type = tensor.__dlpack_device__()[0]
    if device_type != 1:
        raise ValueError(f"as_cuda takes CPU tensors, got DLPack device type {int(device_type)}")
    return CudaArray(tensor)


def unwrap(value: Any) -> Any:
    """What a view was made of: the source of `as_cuda` on arrays and, where it is known, of `from_dlpack`."""
    source = getattr(value, "__dict__", {}).get(SOURCE_ATTRIBUTE)
    if source is not None:
        return unwrap(source)
    return value.array if isinstance(value, CudaArray) else value


def is_cuda_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor made by `as_cuda` (or computed from one)."""
    return sys.modules.get("torch") is not None and isinstance(value, cuda_tensor_class())


def dlpack_extent(value: Any) -> tuple[int, int] | None:
    """Address and bytes from the first to the last element of a tensor known through DLPack only.

    Returns:
        None when the value is no such tensor.
    """
    if hasattr(value, "load_dltensor"):  # the DSL's from_dlpack tensor: its capsule is consumed, its fields remain
        return value.data_ptr, _extent_bytes(value.shape, value.stride, value.element_type.width)
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        return None
    capsule = value.__dlpack__()  # owns what `tensor` points to
    tensor = _dltensor(capsule)
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    size_bytes = _extent_bytes(shape, strides, tensor.bits * tensor.lanes)
    return (tensor.data or 0) + tensor.byte_offset, size_bytes


def _extent_bytes(shape: Any, strides: Any, bits: int) -> int:
    if 0 in tuple(shape):
        return 0
    if strides is None:
        return -(-math.prod(shape) * bits // 8)
    elements = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))
    return -(-elements * bits // 8)


@lru_cache(maxsize=1)
def cuda_tensor_class() -> Any:
    """The torch.Tensor subclass behind `as_cuda`, made on first use because torch is optional."""
    import torch

    class EmulatedCudaTensor(torch.Tensor):
        """A CPU tensor that calls itself a CUDA tensor; results of torch functions on it are such tensors too."""

        @property
        def device(self) -> Any:
            return torch.device("cuda", 0)

        @property
        def is_cuda(self) -> bool:
            return True

        def get_device(self) -> int:
            return 0

        def cuda(self, *_: Any, **__: Any) -> Any:
            return self

        def cpu(self, *_: Any, **__: Any) -> Any:
            return plain(self).clone()

        def numpy(self, **options: Any) -> Any:
            return plain(self).numpy(**options)

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            to_cpu = function is torch.Tensor.to and _names_device(args[1:], kwargs, "cpu")
            args, kwargs = on_cpu(args, kwargs)
            result = super().__torch_function__(function, types, args, kwargs)
            return plain(result).clone() if to_cpu else result

        def __dlpack_device__(self) -> tuple[int, int]:
            return DL_CUDA, 0

        def __dlpack__(self, **options: Any) -> Any:
            return CudaArray(plain(self).detach()).__dlpack__(**options)

    return EmulatedCudaTensor


def plain(tensor: Any) -> Any:
    """The same torch tensor as an ordinary CPU tensor (shared memory)."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def on_cpu(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The same arguments of a torch function with every CUDA device replaced by the CPU."""
    return tuple(_cpu_if_cuda(a) for a in args), {k: _cpu_if_cuda(v) for k, v in kwargs.items()}


def names_cuda(args: Any, kwargs: Any) -> bool:
    """Whether the arguments of a torch function name a CUDA device."""
    return _names_device(args, kwargs, "cuda")


def _names_device(args: Any, kwargs: Any, kind: str) -> bool:
    return any(_device_type(v) == kind for v in (*args, *kwargs.values()))


def _device_type(value: Any) -> str | None:
    import torch

    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
        return value.partition(":")[0]
    return None


def _cpu_if_cuda(value: Any) -> Any:
    return "cpu" if _device_type(value) == "cuda" else value
