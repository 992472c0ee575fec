"""Names for what a kernel uses, so that reports and pictures need no addresses. They have no effect on what runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mxfp8fa.layouts.swizzle import NONE, Swizzle


class Buffer(NamedTuple):
    """A tile in shared memory.

    Attributes:
        start, stop: shared offsets.
        row_bytes: bytes of a row; 0 if it has no rows.
        swizzle: how chunks of its rows are permuted.
    """

    start: int
    stop: int
    row_bytes: int = 0
    swizzle: Swizzle = NONE

    def place(self, offset: int) -> str:
        """What a byte of it is."""
        if not self.row_bytes:
            return f"+ {offset - self.start:#x}"
        row, byte = divmod(self.swizzle(offset) - self.start, self.row_bytes)  # a swizzle undoes itself
        return f"row {row}, byte {byte}"


@dataclass(frozen=True)
class Names:
    """What a kernel declares about itself; everything is optional.

    Attributes:
        roles: warp index -> role ("load", "mma", ...).
        barriers: shared offset of an mbarrier -> name.
        columns: name -> (first, last) column of tensor memory.
        buffers: name -> `Buffer`, or (start, stop), in shared memory.
    """

    roles: Mapping[int, str] = field(default_factory=dict)
    barriers: Mapping[int, str] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    buffers: Mapping[str, Buffer | tuple[int, int]] = field(default_factory=dict)

    def barrier(self, key: Any) -> str:
        """The name of a synchronisation object, given the machine's key of it."""
        if key[0] == "mbarrier":
            return self.barriers.get(key[2], f"mbarrier {key[2]:#x}")
        return f"barrier {key[2]}" if key[0] == "barrier" else "cluster barrier"


def agent_name(queue: Hashable) -> str:
    """The agent behind a queue of asynchronous operations, as reports and pictures call it."""
    kind = queue[0] if isinstance(queue, tuple) else str(queue)
    return {"tensor": "tensor core", "tma load": "TMA", "bulk load": "TMA", "bulk peer": "TMA"}.get(kind, kind)
