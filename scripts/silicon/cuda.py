"""The part of the CUDA driver API that running PTX needs, through ctypes. Names and numbers: CUDA Driver API, cuda.h."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np

from mxfp8fa.emulator.host.tensormap import MAP_BYTES, TiledMap

_LOG_BYTES = 1 << 18
_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
_NOT_READY = 600
_PTX_VERSIONS = (
    "9.9",
    "9.8",
    "9.7",
    "9.6",
    "9.5",
    "9.4",
    "9.3",
    "9.2",
    "9.1",
    "9.0",
    "8.8",
    "8.7",
    "8.6",
    "8.5",
    "8.4",
    "8.3",
    "8.2",
    "8.1",
    "8.0",
    "7.8",
)


class CudaError(Exception):
    """A driver call failed."""


class AssemblyError(CudaError):
    """The driver's PTX compiler refused a module; `log` is what it said."""

    def __init__(self, log: str):
        super().__init__(log or "(the compiler gave no reason)")
        self.log = log


class HangError(CudaError):
    """A kernel did not end in time."""


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: id, padding to 8 bytes, and a union of 64 bytes."""

    _fields_ = (("id", c_int), ("pad", c_ubyte * 4), ("value", c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_LaunchAttribute)),
        ("attribute_count", c_uint),
    )


class Module:
    """A loaded module; `function` looks up an entry point."""

    def __init__(self, device: Device, handle: c_void_p):
        self._device = device
        self._handle = handle

    def function(self, name: str) -> c_void_p:
        """Handle of an entry point."""
        found = c_void_p()
        self._device.call("cuModuleGetFunction", byref(found), self._handle, name.encode())
        return found

    def unload(self) -> None:
        """Free the module."""
        self._device.call("cuModuleUnload", self._handle)


class Device:
    """The first CUDA GPU, with its primary context current.

    Attributes:
        name: as the driver reports it.
        capability: (major, minor).
        driver: version of the installed driver, or of its CUDA interface if that is all there is.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(0))
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, c_int(256), device)
        self.name = name.value.decode()
        self.capability = tuple(self._attribute(a, device) for a in (_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR))
        self.driver = self._driver()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self._ptx_version = ""

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function; CudaError if it fails."""
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise CudaError(f"{name}: {self._error(status)}")

    def _error(self, status: int) -> str:
        text = c_char_p()
        self._cuda.cuGetErrorString(c_int(status), byref(text))
        return f"error {status}: {(text.value or b'unknown').decode()}"

    def _attribute(self, number: int, device: c_int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), device)
        return value.value

    def _driver(self) -> str:
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        try:
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return cuda
        return f"{found[0]} ({cuda})" if found else cuda

    @property
    def target(self) -> str:
        """PTX target with the architecture's own features: sm_90a, sm_100a, ..., plain below 9.0."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def ptx_version(self) -> str:
        """The newest PTX version that the driver's compiler takes."""
        for version in () if self._ptx_version else _PTX_VERSIONS:
            try:
                self.load(
                    f".version {version}\n.target {self.target}\n.address_size 64\n.visible .entry probe() {{ ret; }}\n"
                ).unload()
            except AssemblyError:
                continue
            self._ptx_version = version
            break
        return self._ptx_version

    def load(self, ptx: str) -> Module:
        """Compile and load PTX; AssemblyError with the compiler's log if it refuses."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (c_void_p * 2)(ctypes.cast(log, c_void_p), c_void_p(_LOG_BYTES))
        handle = c_void_p()
        status = self._cuda.cuModuleLoadDataEx(byref(handle), c_char_p(ptx.encode()), c_uint(2), options, values)
        if status:
            raise AssemblyError(log.value.decode(errors="replace") or self._error(status))
        return Module(self, handle)

    def tensor_map(self, tensor: TiledMap, base: int) -> ctypes.Array[c_ubyte]:
        """The driver's encoding of a tensor map whose address is counted from `base`, as a kernel parameter."""
        buffer = (c_ubyte * (2 * MAP_BYTES))()
        encoded = (c_ubyte * MAP_BYTES).from_buffer(buffer, -ctypes.addressof(buffer) % 64)
        rank = len(tensor.dims)
        self.call(
            "cuTensorMapEncodeTiled",
            byref(encoded),
            c_int(tensor.data_type),
            c_uint(rank),
            c_void_p(base + tensor.address),
            (c_uint64 * rank)(*tensor.dims),
            (c_uint64 * rank)(*tensor.strides_bytes),
            (c_uint * rank)(*tensor.box),
            (c_uint * rank)(*tensor.element_strides),
            *(c_int(getattr(tensor, k)) for k in ("interleave", "swizzle", "l2_promotion", "oob_fill")),
        )
        return encoded

    def upload(self, array: np.ndarray) -> c_uint64:
        """Device address of a copy of an array."""
        array = np.ascontiguousarray(array)
        address = self.allocate(array.nbytes)
        self.call("cuMemcpyHtoD_v2", address, array.ctypes.data_as(c_void_p), c_size_t(array.nbytes))
        return address

    def allocate(self, size_bytes: int) -> c_uint64:
        """Device address of fresh memory, filled with 0xCD so that what a kernel leaves out shows."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(max(size_bytes, 16)))
        self.call("cuMemsetD8_v2", address, c_ubyte(0xCD), c_size_t(max(size_bytes, 16)))
        return address

    def download(self, address: c_uint64, count: int, dtype: type) -> np.ndarray:
        """`count` elements from device memory."""
        array = np.empty(count, dtype)
        self.call("cuMemcpyDtoH_v2", array.ctypes.data_as(c_void_p), address, c_size_t(array.nbytes))
        return array

    def free(self, address: c_uint64) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", address)

    def launch(
        self,
        function: c_void_p,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: Sequence[Any],
        *,
        cluster: Sequence[int] = (1, 1, 1),
        shared_bytes: int = 0,
        seconds: float = 10.0,
    ) -> None:
        """Run a kernel to its end; HangError when it takes longer than `seconds`."""
        if shared_bytes:
            self.call(
                "cuFuncSetAttribute", function, c_int(_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES), c_int(shared_bytes)
            )
        config = _LaunchConfig((c_uint * 3)(*grid), (c_uint * 3)(*block), shared_bytes, None, None, 0)
        attribute = _LaunchAttribute(_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        attribute.value[:3] = list(cluster)
        if tuple(cluster) != (1, 1, 1):
            config.attributes, config.attribute_count = ctypes.pointer(attribute), 1
        pointers = (c_void_p * len(parameters))(*(ctypes.cast(byref(p), c_void_p) for p in parameters))
        self.call("cuLaunchKernelEx", byref(config), function, pointers, None)
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (status := self._cuda.cuStreamQuery(c_void_p(0))) == _NOT_READY:
            if time.monotonic() > deadline:
                raise HangError(f"the kernel did not end within {seconds} s")
        if status:
            raise CudaError(f"the kernel failed: {self._error(status)}")
