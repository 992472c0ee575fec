"""Run the host side of a compiled CuTe DSL function on a CPU and catch its kernel launches.

    run_host(compiled, args, kwargs, on_launch)   one call; every kernel launch arrives as a Launch
    memory_ranges(args, kwargs)                   the global memory that this call may touch
    active(runner)                                while open, calls of compiled functions go to runner(HostCall)
    as_cuda(tensor)                               a CPU tensor that the DSL takes for a CUDA tensor
    cuda_shims(sm_count=...)                      what programs written for a GPU ask for before they launch

llvmlite, the DSL and torch are imported on first use; importing this package needs NumPy only. It makes two additions
to the DSL (`dsl.install`): compiled functions keep their PTX, `from_dlpack` tensors remember their source.
"""

from .active import active
from .call import HostCall, OnLaunch, run_host
from .cuda_view import as_cuda
from .device import SM_COUNT, SMEM_BYTES_MAX, Device
from .dsl import install, ptx_of
from .errors import HostError
from .launch import Launch
from .memory import MemoryRange, memory_ranges
from .ptx_entries import EntryParam, EntryPoint, scan_entries
from .shims import cuda_shims
from .tensormap import TiledMap

__all__ = [
    "SMEM_BYTES_MAX",
    "SM_COUNT",
    "Device",
    "EntryParam",
    "EntryPoint",
    "HostCall",
    "HostError",
    "Launch",
    "MemoryRange",
    "OnLaunch",
    "TiledMap",
    "active",
    "as_cuda",
    "cuda_shims",
    "install",
    "memory_ranges",
    "ptx_of",
    "run_host",
    "scan_entries",
]

install()
