"""A kernel launch as the host code made it, read from CUDA's launch configuration and checked against the device.

Sources: CUDA Runtime API, cudaLaunchConfig_t, cudaLaunchAttribute (72-byte records), cudaLaunchKernelExC; CUDA C++
Programming Guide, thread block clusters.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import LaunchError
from .device import BLOCK_MAX, CLUSTER_CTAS_MAX, GRID_MAX, SMEM_RESERVED_BYTES, THREADS_PER_BLOCK_MAX, Device
from .ptx_entries import Dim3, EntryPoint

_COOPERATIVE = 2
_CLUSTER_DIMENSION = 4
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_PREFERRED_CLUSTER_DIMENSION = 11


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: the kernel's symbol in `ptx`.
        ptx: text of the PTX module.
        grid: number of CTAs per axis.
        block: number of threads per axis.
        cluster: number of CTAs of a cluster per axis; (1, 1, 1) when the launch asks for none.
        preferred_cluster: the larger cluster shape the launch would like, or None.
        smem_bytes: dynamic shared memory of a CTA.
        params: the bytes of each kernel parameter, in the order of the PTX parameter list.
        cooperative: all CTAs must be resident at the same time.
        programmatic_stream_serialization: the kernel may start before its predecessor ended (PDL).
        attributes: every launch attribute as it came, cudaLaunchAttributeID -> 64 bytes.
        index: 0 for the first launch of a host call.
    """

    kernel: str
    ptx: str = field(repr=False)
    grid: Dim3
    block: Dim3
    cluster: Dim3
    preferred_cluster: Dim3 | None
    smem_bytes: int
    params: tuple[bytes, ...] = field(repr=False)
    cooperative: bool = False
    programmatic_stream_serialization: bool = False
    attributes: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    index: int = 0


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_ubyte * 64)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint32),
    ]


def read_config(config_address: int, params_address: int, entry: EntryPoint, ptx: str, index: int) -> Launch:
    """Copy a cudaLaunchConfig_t and the parameters it goes with into a Launch.

    Args:
        config_address: address of the cudaLaunchConfig_t.
        params_address: address of an array of addresses, one per kernel parameter.
        entry: the kernel; says how many parameters there are and how long each one is.
        ptx: the module's text.
        index: number of launches of this host call before this one.
    """
    config = _Config.from_address(config_address)
    attributes = {a.id: bytes(a.value) for a in (config.attributes[i] for i in range(config.attribute_count))}
    cluster = _dim3(attributes.get(_CLUSTER_DIMENSION))
    return Launch(
        kernel=entry.name,
        ptx=ptx,
        grid=_triple(config.grid),
        block=_triple(config.block),
        cluster=cluster or entry.required_cluster or (1, 1, 1),
        preferred_cluster=_dim3(attributes.get(_PREFERRED_CLUSTER_DIMENSION)),
        smem_bytes=config.smem_bytes,
        params=read_params(params_address, entry),
        cooperative=_flag(attributes.get(_COOPERATIVE)),
        programmatic_stream_serialization=_flag(attributes.get(_PROGRAMMATIC_STREAM_SERIALIZATION)),
        attributes=attributes,
        index=index,
    )


def read_params(params_address: int, entry: EntryPoint) -> tuple[bytes, ...]:
    """Copy each kernel parameter's bytes from an array of addresses."""
    if not entry.params:
        return ()
    addresses = (ctypes.c_void_p * len(entry.params)).from_address(params_address)
    return tuple(ctypes.string_at(a, p.size_bytes) for a, p in zip(addresses, entry.params, strict=True))


def check_launch(launch: Launch, entry: EntryPoint, device: Device) -> None:
    """Refuse what cudaLaunchKernelExC refuses on the device.

    Raises:
        LaunchError: names the kernel, the value given and what is allowed.
    """
    threads = math.prod(launch.block)
    ctas = math.prod(launch.cluster)
    smem_bytes = launch.smem_bytes + entry.static_smem_bytes
    problems = [
        (min(*launch.grid, *launch.block) < 1, f"grid {launch.grid}, block {launch.block}: an axis is 0"),
        (_exceeds(launch.grid, GRID_MAX), f"grid {launch.grid} exceeds {GRID_MAX}"),
        (_exceeds(launch.block, BLOCK_MAX), f"block {launch.block} exceeds {BLOCK_MAX}"),
        (threads > THREADS_PER_BLOCK_MAX, f"block {launch.block} exceeds {THREADS_PER_BLOCK_MAX} threads"),
        (
            entry.required_block not in (None, launch.block),
            f"block {launch.block}; the kernel was compiled for exactly {entry.required_block} (.reqntid)",
        ),
        (
            entry.max_threads is not None and threads > entry.max_threads,
            f"block {launch.block}; the kernel was compiled for at most {entry.max_threads} threads (.maxntid)",
        ),
        (
            entry.required_cluster not in (None, launch.cluster),
            f"cluster {launch.cluster}; the kernel was compiled for {entry.required_cluster} (.reqnctapercluster)",
        ),
        (
            any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)),
            f"grid {launch.grid} is not a multiple of cluster {launch.cluster}",
        ),
        (ctas > CLUSTER_CTAS_MAX, f"cluster {launch.cluster} has {ctas} CTAs; at most {CLUSTER_CTAS_MAX}"),
        (
            smem_bytes > device.smem_bytes_max,
            f"{launch.smem_bytes} bytes of dynamic and {entry.static_smem_bytes} of static shared memory; at most "
            f"{device.smem_bytes_max} together ({SMEM_RESERVED_BYTES} more are reserved)",
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise LaunchError(f"launch {launch.index} of {launch.kernel}: {message}")


def _exceeds(values: Dim3, limits: Dim3) -> bool:
    return any(v > limit for v, limit in zip(values, limits, strict=True))


def _triple(values: ctypes.Array[ctypes.c_uint32]) -> Dim3:
    return int(values[0]), int(values[1]), int(values[2])


def _dim3(value: bytes | None) -> Dim3 | None:
    """Three 32-bit numbers of an attribute; None when the attribute is absent or all zero."""
    if value is None:
        return None
    x, y, z = struct.unpack_from("<III", value)
    return (x, y, z) if x and y and z else None


def _flag(value: bytes | None) -> bool:
    return value is not None and value[:4] != b"\0\0\0\0"
