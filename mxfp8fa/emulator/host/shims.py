"""What programs written for a GPU ask for before they launch a kernel, answered without one.

`cuda_shims` replaces the following while it is open, for the whole process, and puts everything back:

    torch functions     a CUDA device anywhere in the arguments becomes the CPU and the result an `as_cuda` tensor:
                        torch.empty(..., device="cuda"), tensor.to("cuda"), tensor.cuda() (a copy, as on a GPU);
                        custom operators that exist for CUDA only are called directly; the backward of a Python
                        autograd function gets CUDA tensors (first derivatives only)
    torch.cuda          is_available is_initialized init device_count current_device set_device device synchronize
                        get_device_capability get_device_name get_device_properties current_stream default_stream stream
                        Stream Event empty_cache is_current_stream_capturing
    cuda.bindings       driver: cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetAttribute
                        cuCtxGetCurrent cuCtxCreate cuCtxSetCurrent cuCtxSynchronize cuDevicePrimaryCtxRetain
                        cuStreamCreate cuStreamSynchronize cuStreamDestroy cuEventCreate cuEventRecord
                        cuEventSynchronize cuEventElapsedTime cuEventDestroy
                        runtime: cudaGetDevice cudaSetDevice cudaGetDeviceCount cudaDeviceSynchronize
                        cudaDeviceGetAttribute cudaStreamCreate cudaStreamSynchronize cudaStreamDestroy
    cutlass.utils       HardwareInfo: get_max_active_clusters get_device_multiprocessor_count

Everything runs on the CPU in program order, so synchronising does nothing. Event times are the wall time of the
emulation, not of any GPU. The largest number of active clusters is SMs // cluster size (Not modelled: clusters do not
cross GPC borders, which makes the real number smaller for large clusters). CUDA graphs are not emulated; whatever is
not listed behaves as on a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from .cuda_view import as_cuda, is_cuda_tensor, names_cuda, on_cpu
from .device import SM_COUNT, SMEM_BYTES_MAX, Device
from .patching import Patches

COMPUTE_CAPABILITY = (10, 0)
_handles = itertools.count(0x10, 0x10)


@contextlib.contextmanager
def cuda_shims(*, sm_count: int = SM_COUNT, smem_bytes_max: int = SMEM_BYTES_MAX) -> Iterator[None]:
    """Let programs that ask for a CUDA device find one with the given numbers; see the module's text for the list."""
    device = Device(sm_count=sm_count, smem_bytes_max=smem_bytes_max)
    patches = Patches()
    with contextlib.ExitStack() as stack:
        stack.callback(patches.undo)
        _patch_bindings(patches, device)
        _patch_hardware_info(patches, device)
        torch = _optional("torch")
        if torch is not None:
            _patch_torch_cuda(patches, torch, device)
            mode = _torch_function_mode(torch)
            _patch_autograd(patches, torch, mode)
            stack.enter_context(mode)
        yield


def _optional(module: str) -> Any:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        return None


class Stream:
    """Stands in for torch.cuda.Stream: an identity and nothing to wait for."""

    def __init__(self, *_: Any, handle: int | None = None, **__: Any):
        self.cuda_stream = next(_handles) if handle is None else handle

    def synchronize(self) -> None:
        """Everything is already done."""

    def wait_stream(self, stream: Any) -> None:
        """Everything is already done."""

    def wait_event(self, event: Any) -> None:
        """Everything is already done."""

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class Event:
    """Stands in for torch.cuda.Event; measures the wall time of the emulation."""

    def __init__(self, *_: Any, **__: Any):
        self._recorded_s: float | None = None

    def record(self, stream: Any = None) -> None:
        self._recorded_s = time.perf_counter()

    def synchronize(self) -> None:
        """Everything is already done."""

    def wait(self, stream: Any = None) -> None:
        """Everything is already done."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of wall time between two records."""
        if self._recorded_s is None or end._recorded_s is None:
            raise RuntimeError("both events must be recorded before their distance can be read")
        return 1e3 * (end._recorded_s - self._recorded_s)


def _nothing() -> Callable[..., None]:
    """A new function that does nothing: torch's compiler keeps a table of functions and refuses one under two names."""
    return lambda *_, **__: None


def _patch_torch_cuda(patches: Patches, torch: Any, device: Device) -> None:
    default = Stream(handle=0)
    properties = types.SimpleNamespace(
        name="emulated B200",
        major=COMPUTE_CAPABILITY[0],
        minor=COMPUTE_CAPABILITY[1],
        multi_processor_count=device.sm_count,
        warp_size=32,
        max_threads_per_multi_processor=device.attribute(39),
        shared_memory_per_block=device.attribute(8),
        shared_memory_per_block_optin=device.smem_bytes_max,
        shared_memory_per_multiprocessor=device.attribute(81),
        regs_per_multiprocessor=device.attribute(82),
    )
    replacements = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing(),
        "device": lambda *_: contextlib.nullcontext(),
        "synchronize": _nothing(),
        "empty_cache": _nothing(),
        "get_device_capability": lambda *_: COMPUTE_CAPABILITY,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "current_stream": lambda *_: default,
        "default_stream": lambda *_: default,
        "stream": lambda stream: stream if isinstance(stream, Stream) else contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": lambda: False,
    }
    for name, value in replacements.items():
        patches.set(torch.cuda, name, value)


def _torch_function_mode(torch: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    class CudaOnCpu(TorchFunctionMode):
        """Runs torch functions that name a CUDA device on the CPU and marks their results."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is torch.device:
                return function(*args, **kwargs)
            if function is torch.Tensor.cuda:
                return args[0] if is_cuda_tensor(args[0]) else as_cuda(args[0].clone())
            implementation = _cuda_implementation(function)
            if implementation is not None:
                with self:  # it is Python code that calls torch functions; torch leaves the mode while this one runs
                    return implementation(*args, **kwargs)
            if not names_cuda(args, kwargs):
                return function(*args, **kwargs)
            args, kwargs = on_cpu(args, kwargs)
            result = function(*args, **kwargs)
            if function is torch.Tensor.to and not is_cuda_tensor(args[0]) and result.data_ptr() == args[0].data_ptr():
                result = result.clone()
            return _marked(result) if isinstance(result, torch.Tensor) else result

    return CudaOnCpu()


def _cuda_implementation(function: Any) -> Callable[..., Any] | None:
    """The Python function behind a custom operator that was registered for CUDA only."""
    name = getattr(getattr(function, "_schema", None), "name", None) or getattr(function, "_qualified_op_name", None)
    if name is None:
        return None
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(name)
    implementations = getattr(definition, "_backend_fns", {})
    return None if "cpu" in implementations or None in implementations else implementations.get("cuda")


def _patch_autograd(patches: Patches, torch: Any, mode: Any) -> None:
    """Autograd's C++ engine forgets the Python class of a tensor: mark what the backward of a Python function gets."""
    original = torch.autograd.function.BackwardCFunction.apply

    def apply(context: Any, *gradients: Any) -> Any:
        gradients = tuple(as_cuda(g.detach()) if isinstance(g, torch.Tensor) else g for g in gradients)
        # While a torch function such as Tensor.backward runs, torch neither consults modes nor subclasses.
        with torch._C._EnableTorchFunction(), mode:
            return original(_MarkedContext(context), *gradients)

    patches.set(torch.autograd.function.BackwardCFunction, "apply", apply)


class _MarkedContext:
    """The context of a backward function; saved tensors come back as CUDA tensors."""

    def __init__(self, context: Any):
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(None if t is None else as_cuda(t.detach()) for t in self._context.saved_tensors)


def _marked(tensor: Any) -> Any:
    """A new tensor as a CUDA tensor; a leaf stays a leaf, so that gradients gather in it."""
    if tensor.is_leaf and tensor.requires_grad:
        return as_cuda(tensor.detach()).requires_grad_()
    return as_cuda(tensor)


def _patch_hardware_info(patches: Patches, device: Device) -> None:
    utils = _optional("cutlass.utils")
    if utils is None:
        return

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def max_active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
        if not 1 <= cluster_size <= 32:
            raise ValueError(f"Cluster size must be between 1 and 32, {cluster_size} is not supported")
        return device.sm_count // cluster_size

    patches.set(utils.HardwareInfo, "__init__", init)
    patches.set(utils.HardwareInfo, "get_max_active_clusters", max_active_clusters)
    patches.set(utils.HardwareInfo, "get_device_multiprocessor_count", lambda self: device.sm_count)


def _patch_bindings(patches: Patches, device: Device) -> None:
    driver, runtime = _optional("cuda.bindings.driver"), _optional("cuda.bindings.runtime")
    if driver is None or runtime is None:
        return
    ok, fine = driver.CUresult.CUDA_SUCCESS, runtime.cudaError_t.cudaSuccess
    events: dict[int, Event] = {}

    def event_create(*_: Any) -> Any:
        handle = driver.CUevent(next(_handles))
        events[int(handle)] = Event()
        return ok, handle

    def event_elapsed(start: Any, end: Any) -> Any:
        return ok, events[int(start)].elapsed_time(events[int(end)])

    def event_record(event: Any, *_: Any) -> Any:
        events[int(event)].record()
        return (ok,)

    driver_functions = {
        "cuDriverGetVersion": lambda: (ok, 13000),
        "cuDeviceGetCount": lambda: (ok, 1),
        "cuDeviceGet": lambda ordinal: (ok, driver.CUdevice(ordinal)),
        "cuDeviceGetAttribute": lambda attribute, _: (ok, device.attribute(int(attribute))),
        "cuCtxGetCurrent": lambda: (ok, driver.CUcontext(1)),
        "cuCtxCreate": lambda *_: (ok, driver.CUcontext(1)),
        "cuDevicePrimaryCtxRetain": lambda _: (ok, driver.CUcontext(1)),
        "cuStreamCreate": lambda *_: (ok, driver.CUstream(next(_handles))),
        "cuEventCreate": event_create,
        "cuEventRecord": event_record,
        "cuEventElapsedTime": event_elapsed,
    }
    for name in ("cuInit", "cuCtxSetCurrent", "cuCtxSynchronize", "cuStreamSynchronize", "cuStreamDestroy",
                 "cuEventSynchronize", "cuEventDestroy"):  # fmt: skip
        driver_functions[name] = lambda *_: (ok,)
    runtime_functions = {
        "cudaGetDevice": lambda: (fine, 0),
        "cudaGetDeviceCount": lambda: (fine, 1),
        "cudaDeviceGetAttribute": lambda attribute, _: (fine, device.attribute(int(attribute))),
        "cudaStreamCreate": lambda *_: (fine, runtime.cudaStream_t(next(_handles))),
    }
    for name in ("cudaSetDevice", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaStreamDestroy"):
        runtime_functions[name] = lambda *_: (fine,)
    for module, functions in ((driver, driver_functions), (runtime, runtime_functions)):
        for name, function in functions.items():
            patches.set(module, name, function)
