"""The CUDA functions that host code calls, answered on a CPU.

A compiled CuTe DSL function's object file calls the CUDA runtime and driver through thin wrappers whose names start
with an underscore and whose arguments are those of the CUDA function of that name. Each function below is one of them.
They are native callbacks shared by every program of the process; which call of which program is meant is the top of a
per-thread stack (`HostRun.entered`), so nothing of a finished call stays behind.

A Python exception cannot cross native code. It is stored in the run, every later callback of that run returns an error
code without doing anything, and the caller of the host code raises it again.

Sources: CUDA Runtime API and CUDA Driver API, the function of the same name without the underscore.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .device import THREADS_PER_BLOCK_MAX, Device
from .errors import HostError
from .launch import Launch, check_launch, read_config, read_params
from .memory import MemoryRange, covers
from .ptx_entries import EntryPoint
from .tensormap import TiledMap

_INT, _PTR, _SIZE, _UINT = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
SUCCESS = 0
CUDA_ERROR_UNKNOWN = 999  # what callbacks return once the run has failed
_SHARED_SIZE_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: static shared memory
_MAX_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind
_handles = itertools.count(0x1000, 0x10)


@dataclass
class HostRun:
    """One call into host code.

    Attributes:
        ptx: text of the module whose kernels are launched.
        entries: its kernels by name.
        kernels: kernel handles given out so far; belongs to the loaded program, not to the run.
        device: what the host code is told about the device.
        on_launch: receives each launch.
        memory: device memory that the host code may copy to and from, or set.
        error: the first exception of a callback.
    """

    ptx: str
    entries: dict[str, EntryPoint]
    kernels: dict[int, EntryPoint]
    device: Device
    on_launch: Callable[[Launch], None]
    memory: Sequence[MemoryRange] = ()
    error: BaseException | None = None
    launches: int = 0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the run that callbacks of the current thread belong to; on leaving, raise its error if any."""
        _stack().append(self)
        try:
            yield
        finally:
            _stack().pop()
        if self.error is not None:
            error, self.error = self.error, None  # a traceback that leads back to its own exception is a cycle
            raise error

    def kernel(self, handle: int | None) -> EntryPoint:
        """The kernel behind a handle that `_cudaLibraryGetKernel` gave out."""
        entry = self.kernels.get(handle or 0)
        if entry is None:
            raise HostError(f"the host code uses kernel handle {handle}, which was never given out")
        return entry

    def launch(self, launch: Launch, entry: EntryPoint) -> None:
        """Check a launch and hand it on."""
        check_launch(launch, entry, self.device)
        self.launches += 1
        self.on_launch(launch)


_local = threading.local()


def _stack() -> list[HostRun]:
    if not hasattr(_local, "runs"):
        _local.runs = []
    runs: list[HostRun] = _local.runs
    return runs


Function = Callable[..., int | None]


@dataclass(frozen=True)
class _Export:
    function: Function
    result: Any
    arguments: tuple[Any, ...] = field(default=())


_EXPORTS: dict[str, _Export] = {}


def _export(name: str, *arguments: Any, result: Any = _INT) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        _EXPORTS[name] = _Export(function, result, arguments)
        return function

    return register


def callback_address(name: str) -> int | None:
    """Native address of the callback with this name, or None when there is none. The callback is never freed."""
    if name not in _EXPORTS:
        return None
    if name not in _callbacks:
        export = _EXPORTS[name]
        _callbacks[name] = ctypes.CFUNCTYPE(export.result, *export.arguments)(_guarded(name, export))
    return ctypes.cast(_callbacks[name], ctypes.c_void_p).value


_callbacks: dict[str, Any] = {}


def _guarded(name: str, export: _Export) -> Callable[..., int | None]:
    """Run the function for the current run; store its exception and fail instead of raising."""
    failure = None if export.result is None else CUDA_ERROR_UNKNOWN

    def call(*arguments: Any) -> int | None:
        runs = _stack()
        if not runs or runs[-1].error is not None:
            return failure
        try:
            return export.function(runs[-1], *arguments)
        except BaseException as error:  # also KeyboardInterrupt: it has to reach the caller of the host code
            error.add_note(f"raised while host code called {name}")
            runs[-1].error = error
            return failure

    return call


def _store(address: int, value: int, kind: Any = _INT) -> int:
    kind.from_address(address).value = value
    return SUCCESS


# Launches


@_export("_cudaLaunchKernelEx", _PTR, _PTR, _PTR)
def _launch_kernel_ex(run: HostRun, config: int, kernel: int, params: int) -> int:
    entry = run.kernel(kernel)
    run.launch(read_config(config, params, entry, run.ptx, run.launches), entry)
    return SUCCESS


@_export("_cudaLaunchKernel", _PTR, _UINT, _UINT, _UINT, _UINT, _UINT, _UINT, _PTR, _UINT, _PTR)
def _launch_kernel(
    run: HostRun, kernel: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, stream: int, smem: int, params: int
) -> int:
    entry = run.kernel(kernel)
    launch = Launch(
        kernel=entry.name,
        ptx=run.ptx,
        grid=(gx, gy, gz),
        block=(bx, by, bz),
        cluster=entry.required_cluster or (1, 1, 1),
        preferred_cluster=None,
        smem_bytes=smem,
        params=read_params(params, entry),
        index=run.launches,
    )
    run.launch(launch, entry)
    return SUCCESS


# Libraries and kernels


@_export("_cudaLibraryLoadData", _PTR, _PTR, _PTR, _PTR, _UINT, _PTR, _PTR, _UINT)
def _library_load_data(run: HostRun, library: int, *_: Any) -> int:
    return _store(library, next(_handles), _PTR)


@_export("_cudaLibraryGetKernel", _PTR, _PTR, ctypes.c_char_p)
def _library_get_kernel(run: HostRun, kernel: int, library: int, name: bytes) -> int:
    entry = run.entries.get(name.decode())
    if entry is None:
        raise HostError(f"the host code loads kernel {name.decode()!r}; the PTX has {sorted(run.entries)}")
    handle = next(_handles)
    run.kernels[handle] = entry
    return _store(kernel, handle, _PTR)


@_export("_cudaLibraryGetKernelCount", _PTR, _PTR)
def _library_get_kernel_count(run: HostRun, count: int, library: int) -> int:
    return _store(count, len(run.entries), _UINT)


@_export("_cudaLibraryUnload", _PTR)
def _library_unload(run: HostRun, library: int) -> int:
    return SUCCESS


@_export("_cuKernelGetAttribute", _PTR, _INT, _PTR, _INT)
def _kernel_get_attribute(run: HostRun, value: int, attribute: int, kernel: int, device: int) -> int:
    entry = run.kernel(kernel)
    if attribute == _SHARED_SIZE_BYTES:
        return _store(value, entry.static_smem_bytes)
    if attribute == 0:  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        return _store(value, entry.max_threads or THREADS_PER_BLOCK_MAX)
    raise HostError(
        f"the host code asks for function attribute {attribute} (CUfunction_attribute) of {entry.name}; "
        "known without compiling PTX to machine code are 0 (threads per block) and 1 (static shared memory)"
    )


def _check_smem_limit(run: HostRun, entry: EntryPoint, attribute: int, value: int) -> int:
    """Setting a function attribute: only the dynamic shared-memory limit can be wrong here, the others are hints."""
    if attribute == _MAX_DYNAMIC_SMEM and value + entry.static_smem_bytes > run.device.smem_bytes_max:
        raise HostError(
            f"the host code asks for {value} bytes of dynamic shared memory for {entry.name}, which has "
            f"{entry.static_smem_bytes} static ones; at most {run.device.smem_bytes_max} together"
        )
    return SUCCESS


@_export("_cudaFuncSetAttribute", _PTR, _INT, _INT)
def _func_set_attribute(run: HostRun, kernel: int, attribute: int, value: int) -> int:
    return _check_smem_limit(run, run.kernel(kernel), attribute, value)


@_export("_cudaKernelSetAttributeForDevice", _PTR, _INT, _INT, _INT)
def _kernel_set_attribute(run: HostRun, kernel: int, attribute: int, value: int, device: int) -> int:
    return _check_smem_limit(run, run.kernel(kernel), attribute, value)


@_export("_cudaOccupancyMaxActiveBlocksPerMultiprocessor", _PTR, _PTR, _INT, _SIZE)
def _occupancy(run: HostRun, blocks: int, kernel: int, threads: int, smem_bytes: int) -> int:
    """Not modelled: the register limit, so this is an upper bound."""
    entry = run.kernel(kernel)
    return _store(blocks, run.device.max_blocks_per_sm(threads, smem_bytes + entry.static_smem_bytes))


# The device


@_export("_cudaGetDevice", _PTR)
def _get_device(run: HostRun, device: int) -> int:
    return _store(device, 0)


@_export("_cuDeviceGet", _PTR, _INT)
def _device_get(run: HostRun, device: int, ordinal: int) -> int:
    _only_device_0(ordinal)
    return _store(device, 0)


@_export("_cudaSetDevice", _INT)
def _set_device(run: HostRun, device: int) -> int:
    _only_device_0(device)
    return SUCCESS


def _only_device_0(device: int) -> None:
    if device != 0:
        raise HostError(f"the host code selects device {device}; the emulated machine has device 0 only")


@_export("_cudaGetDeviceCount", _PTR)
def _get_device_count(run: HostRun, count: int) -> int:
    return _store(count, 1)


@_export("_cudaDeviceGetAttribute", _PTR, _INT, _INT)
def _device_get_attribute(run: HostRun, value: int, attribute: int, device: int) -> int:
    return _store(value, run.device.attribute(attribute))


@_export("_cudaGetLastError")
def _get_last_error(run: HostRun) -> int:
    return SUCCESS


# Streams and events: everything is already finished when the host code asks.


@_export("_cudaStreamCreate", _PTR)
def _stream_create(run: HostRun, stream: int) -> int:
    return _store(stream, next(_handles), _PTR)


@_export("_cudaEventCreate", _PTR)
def _event_create(run: HostRun, event: int) -> int:
    return _store(event, next(_handles), _PTR)


def _done(run: HostRun, *_: Any) -> int:
    return SUCCESS


for _name, _count in (
    ("_cudaDeviceSynchronize", 0),
    ("_cudaStreamSynchronize", 1),
    ("_cudaStreamDestroy", 1),
    ("_cudaStreamWaitEvent", 3),
    ("_cudaEventDestroy", 1),
    ("_cudaEventRecord", 2),
    ("_cudaEventSynchronize", 1),
    ("_cudaProfilerStart", 0),
    ("_cudaProfilerStop", 0),
):
    _export(_name, *[_PTR] * _count)(_done)


# Memory


@_export("_cudaMemset", _PTR, _INT, _SIZE)
def _memset(run: HostRun, address: int, value: int, size: int) -> int:
    _require_memory(run, address, size, "sets")
    ctypes.memset(address, value & 0xFF, size)
    return SUCCESS


@_export("_cudaMemsetAsync", _PTR, _INT, _SIZE, _PTR)
def _memset_async(run: HostRun, address: int, value: int, size: int, stream: int) -> int:
    return _memset(run, address, value, size) or SUCCESS


@_export("_cudaMemcpy", _PTR, _PTR, _SIZE, _INT)
def _memcpy(run: HostRun, to: int, source: int, size: int, kind: int) -> int:
    if kind != _DEVICE_TO_HOST:
        _require_memory(run, to, size, "copies to")
    if kind != _HOST_TO_DEVICE:
        _require_memory(run, source, size, "copies from")
    ctypes.memmove(to, source, size)
    return SUCCESS


@_export("_cudaMemcpyAsync", _PTR, _PTR, _SIZE, _INT, _PTR)
def _memcpy_async(run: HostRun, to: int, source: int, size: int, kind: int, stream: int) -> int:
    return _memcpy(run, to, source, size, kind) or SUCCESS


def _require_memory(run: HostRun, address: int | None, size: int, action: str) -> None:
    if size and not covers(run.memory, address or 0, size):
        raise HostError(
            f"the host code {action} {size} bytes at {address or 0:#x}, outside the storages of the tensors passed; "
            "name further valid memory with allow="
        )


@_export("_cuTensorMapEncodeTiled", _PTR, _INT, _UINT, _PTR, _PTR, _PTR, _PTR, _PTR, _INT, _INT, _INT, _INT)
def _tensor_map_encode_tiled(
    run: HostRun, tensor_map: int, data_type: int, rank: int, address: int, dims: int, strides: int, box: int,
    steps: int, interleave: int, swizzle: int, l2_promotion: int, oob_fill: int
) -> int:  # fmt: skip
    if tensor_map % 64:
        raise ValueError(f"cuTensorMapEncodeTiled: tensorMap = {tensor_map:#x}; allowed: a multiple of 64")
    if not 1 <= rank <= 5:
        raise ValueError(f"cuTensorMapEncodeTiled: tensorRank = {rank}; allowed: 1..5")
    encoded = TiledMap(
        data_type=data_type,
        address=address or 0,
        dims=(ctypes.c_uint64 * rank).from_address(dims)[:],
        strides_bytes=(ctypes.c_uint64 * (rank - 1)).from_address(strides)[:] if rank > 1 else (),
        box=(ctypes.c_uint32 * rank).from_address(box)[:],
        element_strides=(ctypes.c_uint32 * rank).from_address(steps)[:],
        interleave=interleave,
        swizzle=swizzle,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    ).encode()
    ctypes.memmove(tensor_map, encoded, len(encoded))
    return SUCCESS


# The DSL's own helpers


@_export("cuda_dialect_assert_success", _INT, result=None)
def _assert_success(run: HostRun, code: int) -> None:
    if code:
        raise HostError(f"the host code stops with CUDA error {code}")


@_export("cuda_dialect_print_on_error", _INT, result=None)
def _print_on_error(run: HostRun, code: int) -> None:
    _assert_success(run, code)


_ERROR_NAME = ctypes.create_string_buffer(b"cudaErrorUnknown")


@_export("cuda_dialect_get_error_name", _INT, result=_PTR)
def _get_error_name(run: HostRun, code: int) -> int:
    return ctypes.addressof(_ERROR_NAME)


@_export("cuda_dialect_init_library_once", _PTR, _PTR, _PTR, _PTR)
def _init_library_once(run: HostRun, state: int, init: int, load_to_device: int, set_error: int) -> int:
    """Load the library and its kernels when `*state` is still null; a TVM-FFI function does this on its first call."""
    if _PTR.from_address(state).value:
        return SUCCESS
    library = ctypes.c_void_p()
    code = ctypes.CFUNCTYPE(_INT, _PTR)(init)(ctypes.addressof(library))
    code = code or ctypes.CFUNCTYPE(_INT, _PTR, _INT)(load_to_device)(ctypes.addressof(library), 0)
    if code and run.error is None:
        raise HostError(f"loading the kernels failed with CUDA error {code}")
    if run.error is not None:
        return CUDA_ERROR_UNKNOWN
    return _store(state, library.value or 0, _PTR)


@_export("cuda_dialect_unload_library_once", _PTR, result=None)
def _unload_library_once(run: HostRun, state: int) -> None:
    _store(state, 0, _PTR)
