"""The device that host code is told it runs on: a B200, as far as its numbers are public.

Host code asks the CUDA runtime for device attributes. Only attributes with a public source are answered; any other is
an error that names it, because a wrong number would silently change what the host code launches.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import HostError

SM_COUNT = 148  # B200
# CUDA C++ Programming Guide, technical specifications per compute capability, column 10.0:
SMEM_BYTES_MAX = 232448  # 227 KB per block
SMEM_RESERVED_BYTES = 1024  # per block
SMEM_BYTES_PER_SM = 233472  # 228 KB
THREADS_PER_BLOCK_MAX = 1024
THREADS_PER_SM_MAX = 2048
BLOCKS_PER_SM_MAX = 32
GRID_MAX = (2**31 - 1, 65535, 65535)
BLOCK_MAX = (1024, 1024, 64)
CLUSTER_CTAS_MAX = 16  # non-portable maximum; 8 is the portable one (CUDA C++ Programming Guide, thread block clusters)

_MULTIPROCESSOR_COUNT = 16
_SMEM_BYTES_OPTIN = 97

# cudaDeviceAttr -> value, same table.
_KNOWN = {
    1: THREADS_PER_BLOCK_MAX,
    2: BLOCK_MAX[0],
    3: BLOCK_MAX[1],
    4: BLOCK_MAX[2],
    5: GRID_MAX[0],
    6: GRID_MAX[1],
    7: GRID_MAX[2],
    8: 49152,  # shared memory per block without opting in
    9: 65536,  # constant memory
    10: 32,  # warp size
    12: 65536,  # 32-bit registers per block
    39: THREADS_PER_SM_MAX,
    75: 10,  # compute capability, major
    76: 0,  # compute capability, minor
    81: SMEM_BYTES_PER_SM,
    82: 65536,  # 32-bit registers per SM
    95: 1,  # cooperative launch
    106: BLOCKS_PER_SM_MAX,
    111: SMEM_RESERVED_BYTES,
    120: 1,  # cluster launch
}


@dataclass(frozen=True)
class Device:
    """What host code may ask about the device.

    Attributes:
        sm_count: number of SMs; smaller values make persistent kernels loop.
        smem_bytes_max: largest dynamic shared memory of one block.
    """

    sm_count: int = SM_COUNT
    smem_bytes_max: int = SMEM_BYTES_MAX

    def __post_init__(self) -> None:
        if self.sm_count < 1:
            raise ValueError(f"sm_count = {self.sm_count}; a device has at least one SM")
        if not 0 < self.smem_bytes_max <= SMEM_BYTES_PER_SM:
            raise ValueError(f"smem_bytes_max = {self.smem_bytes_max}; allowed: 1..{SMEM_BYTES_PER_SM}")

    def attribute(self, number: int) -> int:
        """Value of a cudaDeviceAttr.

        Raises:
            HostError: no public value is known for this attribute.
        """
        if number == _MULTIPROCESSOR_COUNT:
            return self.sm_count
        if number == _SMEM_BYTES_OPTIN:
            return self.smem_bytes_max
        if number not in _KNOWN:
            raise HostError(
                f"the host code asks for device attribute {number} (cudaDeviceAttr); the emulated device answers only "
                f"{sorted([*_KNOWN, _MULTIPROCESSOR_COUNT, _SMEM_BYTES_OPTIN])}"
            )
        return _KNOWN[number]

    def max_blocks_per_sm(self, threads: int, smem_bytes: int) -> int:
        """Upper bound of resident blocks per SM from threads and shared memory.

        Not modelled: the register limit (PTX does not fix the number of registers).
        """
        warps = -(-threads // 32)
        by_threads = THREADS_PER_SM_MAX // (32 * warps)
        by_smem = SMEM_BYTES_PER_SM // (smem_bytes + SMEM_RESERVED_BYTES)
        return min(by_threads, by_smem, BLOCKS_PER_SM_MAX)
