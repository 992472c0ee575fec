"""Memories: global memory (the process's own, behind bounds checks), shared memory with poison, local memory.

Addresses
  global   real addresses of the tensors passed; valid are the ranges registered with `GlobalMemory`.
  shared   (rank of the CTA in its cluster) << 24 | offset, as SASS for sm_100a computes it; a CTA's own variables start
           at offset 0x400 (1 KiB is reserved by the system).
  local    byte offset in the thread's private memory.
  generic  global addresses as they are; shared and local ones moved to windows of their own, far above any process
           address. (Window positions are ours: the ISA leaves them open.)

Fresh shared and local memory is poison: every byte has a shadow byte, 0xFF until written.
"""

from __future__ import annotations

import bisect
import ctypes
from dataclasses import dataclass

import numpy as np

from mxfp8fa.emulator.errors import Misaligned, OutOfBounds

SHARED_BASE = 0x400  # first shared byte of a CTA's own variables; below is reserved (sm_90 and later)
SHARED_RANK_SHIFT = 24  # mapa puts the CTA's rank into bits 31:24 of a shared address (sm_100a SASS)
SHARED_OFFSET_MASK = (1 << SHARED_RANK_SHIFT) - 1
SHARED_LIMIT_BYTES = 232448  # largest dynamic shared memory of a CTA on sm_100: 227 KiB
LOCAL_LIMIT_BYTES = 512 << 10  # largest local memory of a thread (CUDA C++ Programming Guide, technical specifications)
SHARED_WINDOW = 1 << 56  # generic addresses of shared memory
LOCAL_WINDOW = 2 << 56  # generic addresses of local memory
WINDOW_BYTES = 1 << 32

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Range:
    """Valid global memory: `size_bytes` from `address`; `name` appears in error messages."""

    address: int
    size_bytes: int
    name: str
    writable: bool = True
    owner: object = None

    @property
    def end(self) -> int:
        """First address after the range."""
        return self.address + self.size_bytes


def array_range(array: np.ndarray, name: str) -> Range:
    """The range of a NumPy array's data; the range keeps the array alive."""
    return Range(array.ctypes.data, array.nbytes, name, array.flags.writeable, array)


class Words:
    """A byte buffer seen as words of 1, 2, 4 and 8 bytes, with its shadow (0xFF bytes where never written)."""

    def __init__(self, size_bytes: int):
        size = -(-size_bytes // 16) * 16
        self.size_bytes = size_bytes
        self.data = np.zeros(size, np.uint8)
        self.shadow = np.full(size, 0xFF, np.uint8)
        self.data_address, self.shadow_address = self.data.ctypes.data, self.shadow.ctypes.data
        self._data = {n: self.data.view(t) for n, t in _WORDS.items()}
        self._shadow = {n: self.shadow.view(t) for n, t in _WORDS.items()}

    def load(self, offsets: np.ndarray, word_bytes: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Words at byte offsets (aligned, in bounds), and their shadow or None when all of it was written."""
        index = offsets // word_bytes
        shadow = self._shadow[word_bytes][index]
        return self._data[word_bytes][index], shadow if shadow.any() else None

    def load_word(self, offset: int) -> tuple[int, bool]:
        """The 8-byte word at an aligned offset, and whether any of it was never written."""
        return int(self._data[8][offset >> 3]), bool(self._shadow[8][offset >> 3])

    def store_word(self, offset: int, value: int) -> None:
        """Write the 8-byte word at an aligned offset."""
        self._data[8][offset >> 3] = value
        self._shadow[8][offset >> 3] = 0

    def store(self, offsets: np.ndarray, word_bytes: int, values: np.ndarray, shadow: np.ndarray | None) -> None:
        """Write words; later lanes win where offsets repeat (PTX leaves the order open)."""
        index = offsets // word_bytes
        self._data[word_bytes][index] = values
        self._shadow[word_bytes][index] = 0 if shadow is None else shadow

    def store_chunks(self, index: np.ndarray, chunks: np.ndarray) -> None:
        """Write chunks of 16 bytes (as complex128, whose bits are only copied) at multiples of 16."""
        self.data.view(np.complex128)[index] = chunks
        self.shadow.view(np.complex128)[index] = 0

    def read_bytes(self, offset: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of `size` bytes and their shadow."""
        return self.data[offset : offset + size].copy(), self.shadow[offset : offset + size].copy()

    def write_bytes(self, offset: int, values: np.ndarray, shadow: np.ndarray | None = None) -> None:
        """Write consecutive bytes."""
        self.data[offset : offset + values.size] = values
        self.shadow[offset : offset + values.size] = 0 if shadow is None else shadow


def check_alignment(addresses: np.ndarray, access_bytes: int, what: str) -> None:
    """Raise Misaligned naming the first lane whose address is not a multiple of the access size."""
    bad = addresses & np.uint64(access_bytes - 1)
    if bad.any():
        k = int(np.nonzero(bad)[0][0])
        raise Misaligned(
            f"{what} of {access_bytes} bytes at {int(addresses[k]):#x}: not a multiple of {access_bytes}", lane=k
        )


class SharedMemory:
    """Shared memory of one CTA: offsets 0x400 up to 0x400 + static + dynamic bytes."""

    def __init__(self, size_bytes: int):
        self.size_bytes = size_bytes
        self.words = Words(SHARED_BASE + size_bytes)

    def check(self, offsets: np.ndarray, access_bytes: int, what: str) -> None:
        """Raise OutOfBounds or Misaligned for the first bad lane."""
        bad = (offsets < SHARED_BASE) | (offsets + np.uint64(access_bytes) > SHARED_BASE + self.size_bytes)
        if bad.any():
            k = int(np.nonzero(bad)[0][0])
            raise OutOfBounds(
                f"{what} of {access_bytes} bytes at shared address {int(offsets[k]):#x}: this CTA has "
                f"{SHARED_BASE:#x}..{SHARED_BASE + self.size_bytes:#x} ({self.size_bytes} bytes)",
                lane=k,
            )
        check_alignment(offsets, access_bytes, f"shared {what}")


class GlobalMemory:
    """Global memory: the process's own bytes, reachable only inside registered ranges.

    Attributes:
        last: the range that was used last, or None.
    """

    def __init__(self, ranges: list[Range] | None = None):
        self._ranges: list[Range] = []
        self._starts: list[int] = []
        self.last: Range | None = None
        for r in ranges or ():
            self.add(r)

    def ranges(self) -> list[Range]:
        """All valid ranges."""
        return list(self._ranges)

    def add(self, new: Range) -> None:
        """Register a range. Ranges may overlap or repeat (two views of one storage)."""
        if new.size_bytes > 0:
            at = bisect.bisect_right(self._starts, new.address)
            self._ranges.insert(at, new)
            self._starts.insert(at, new.address)

    def remove(self, old: Range) -> None:
        """Forget a range."""
        if old in self._ranges:
            at = self._ranges.index(old)
            del self._ranges[at], self._starts[at]
            self.last = None

    def find(self, address: int, size_bytes: int) -> Range | None:
        """A range that holds [address, address + size)."""
        for i in range(bisect.bisect_right(self._starts, address) - 1, -1, -1):
            r = self._ranges[i]
            if address + size_bytes <= r.end:
                return r
        return None

    def check(self, addresses: np.ndarray, access_bytes: int, what: str, *, write: bool) -> None:
        """Raise OutOfBounds or Misaligned for the first bad lane."""
        check_alignment(addresses, access_bytes, f"global {what}")
        low, high = int(addresses.min()), int(addresses.max()) + access_bytes
        r = self.last
        if r is None or low < r.address or high > r.end or (write and not r.writable):
            r = self.find(low, high - low)
            if r is None or (write and not r.writable):
                for k, a in enumerate(addresses.tolist()):
                    self._check_one(a, access_bytes, what, write, k)
                return
            self.last = r

    def _check_one(self, address: int, size: int, what: str, write: bool, lane: int) -> None:
        r = self.find(address, size)
        if r is None:
            raise OutOfBounds(
                f"{what} of {size} bytes at global address {address:#x}: {self._nearest(address)}", lane=lane
            )
        if write and not r.writable:
            raise OutOfBounds(
                f"{what} of {size} bytes at global address {address:#x}: {r.name} is read-only", lane=lane
            )

    def _nearest(self, address: int) -> str:
        if not self._ranges:
            return "no global memory is valid (pass tensors, or name it with allow=)"
        r = min(self._ranges, key=lambda r: max(r.address - address, address - (r.end - 1), 0))
        place = f"{r.address - address} bytes before" if address < r.address else f"{address - r.address} bytes into"
        return f"outside all valid memory; it is {place} {r.name} ({r.size_bytes} bytes at {r.address:#x})"

    def load(self, addresses: np.ndarray, word_bytes: int) -> np.ndarray:
        """Words at checked, aligned addresses."""
        return _process_words()[word_bytes][addresses // np.uint64(word_bytes) - np.uint64(_ORIGIN // word_bytes)]

    def store(self, addresses: np.ndarray, word_bytes: int, values: np.ndarray) -> None:
        """Write words at checked, aligned addresses; later lanes win where addresses repeat."""
        _process_words()[word_bytes][addresses // np.uint64(word_bytes) - np.uint64(_ORIGIN // word_bytes)] = values

    def bytes(self, address: int, size_bytes: int) -> np.ndarray:
        """A view of process memory that was checked before."""
        return _process_words()[1][address - _ORIGIN : address - _ORIGIN + size_bytes]


_ORIGIN = 4096  # the first page is never mapped
_VIEWS: dict[int, np.ndarray] = {}


def _process_words() -> dict[int, np.ndarray]:
    """The process's address space as word arrays (made once; nothing is read until a checked access indexes it)."""
    if not _VIEWS:
        buffer = (ctypes.c_uint8 * ((1 << 47) - _ORIGIN)).from_address(_ORIGIN)
        everything = np.frombuffer(memoryview(buffer), np.uint8)
        _VIEWS.update({n: everything.view(t) for n, t in (_WORDS | {16: np.complex128}).items()})
    return _VIEWS


class LocalMemory:
    """Private memory of the 32 threads of a warp."""

    def __init__(self, size_bytes: int, lanes: int = 32):
        self.stride = -(-max(size_bytes, 1) // 16) * 16
        self.size_bytes = size_bytes
        self.words = Words(self.stride * lanes)
        self._base = np.arange(lanes, dtype=np.uint64) * np.uint64(self.stride)

    def place(self, lanes: np.ndarray, offsets: np.ndarray, access_bytes: int, what: str) -> np.ndarray:
        """Byte positions in `words` of per-thread offsets, checked."""
        bad = (offsets >= np.uint64(self.size_bytes)) | (offsets + np.uint64(access_bytes) > self.size_bytes)  # no wrap
        if bad.any():
            k = int(np.nonzero(bad)[0][0])
            raise OutOfBounds(
                f"{what} of {access_bytes} bytes at local address {int(offsets[k]):#x}: the thread has {self.size_bytes} bytes",
                lane=int(lanes[k]),
            )
        check_alignment(offsets, access_bytes, f"local {what}")
        return self._base[lanes] + offsets
