"""How reports call who acts and what is accessed: by the names a kernel declares, else by numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.elements import Elements
from mxfp8fa.emulator.names import Buffer, Names

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.memory import GlobalMemory
    from mxfp8fa.emulator.machine.warp import Warp


class Places:
    """Names of warps, agents and addresses of one launch."""

    def __init__(self, names: Names):
        self._names = names
        self._memory: GlobalMemory | None = None

    def warp(self, warp: Warp) -> str:
        """A warp, with its role if it has one."""
        self._memory = warp.machine.memory
        role = self._names.roles.get(warp.index)
        return f"CTA {warp.cta.index} warp {warp.index}" + (f" ({role})" if role else "")

    def shared(self, cta: CTA, offset: int) -> str:
        """A place in shared memory."""
        return f"shared offset {offset:#x} of {cta}" + self._shared_name(offset)

    def barrier(self, key: Any) -> str:
        """A synchronisation object, by the machine's key of it."""
        return self._names.barrier(key)

    def _shared_name(self, offset: int) -> str:
        if offset in self._names.barriers:
            return f", barrier {self._names.barriers[offset]}"
        for name, buffer in self._names.buffers.items():
            start, stop = buffer[:2]
            if start <= offset < stop:
                return f", {name} {Buffer(*buffer).place(offset)}"
        return ""

    def tensor(self, cta: CTA, lane: int, column: int) -> str:
        """A place in tensor memory."""
        place = f"tensor memory lane {lane}, column {column} of {cta}"
        inside = [
            f"column {column - first} of {name}"
            for name, (first, last) in self._names.columns.items()
            if first <= column <= last
        ]
        return ", ".join([place, " or ".join(inside)]) if inside else place

    def memory(self, address: int) -> str:
        """A place in global memory: an element of a tensor, or a byte of the allocation it lies in."""
        found = self._memory.find(address, 1) if self._memory is not None else None
        if found is None:
            return f"global address {address:#x}"
        elements = Elements.of(found.owner) or getattr(found.owner, "elements", None)
        index = elements.index(address) if elements is not None else None
        if index is None:
            return f"byte {address - found.address} of {found.name}"
        text = ", ".join(map(str, index))
        return f"{found.name}[{text}]" if found.name.isidentifier() else f"element [{text}] of {found.name}"
