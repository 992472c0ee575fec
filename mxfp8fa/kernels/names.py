"""Names for the emulator's reports and pictures, from what a kernel's file declares anyway: BARRIERS, TMEM, *_WARP."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.emulator.names import Buffer, Names
from mxfp8fa.layouts.swizzle import NONE, Swizzle

MBARRIER_BYTES = 8


@dataclass(frozen=True)
class SharedTile:
    """A tile that a kernel allocates after its `Storage`, one per stage.

    Attributes:
        name: what reports call it.
        row_bytes, rows: its shape.
        stages: how many of them follow one another.
        swizzle: of its rows.
        alignment_bytes: of the first.
    """

    name: str
    row_bytes: int
    rows: int
    stages: int = 1
    swizzle: Swizzle = NONE
    alignment_bytes: int = 1024


def names_of(module: ModuleType, *tiles: SharedTile) -> Names:
    """What a kernel's module declares, and the tiles that it allocates after its `Storage`, in this order.

    BARRIERS: its `Barriers`, laid out in this order at the beginning of shared memory (the kernel's `Storage` is its
    first allocation and starts with them). TMEM: its `TmemMap`. LOAD_WARP, MMA_WARP, ...: index of the warp of a role;
    or ROLES: the role of each warp.
    """
    barriers: dict[int, str] = {}
    for barrier in getattr(module, "BARRIERS", ()):
        for stage in range(barrier.stages):
            name = barrier.name if barrier.stages == 1 else f"{barrier.name}[{stage}]"
            barriers[SHARED_BASE + MBARRIER_BYTES * len(barriers)] = name
    roles = {
        value: key.removesuffix("_WARP").lower()
        for key, value in vars(module).items()
        if key.endswith("_WARP") and isinstance(value, int)
    } | getattr(module, "ROLES", {})
    columns = {r.name: (r.start, r.stop - 1) for r in getattr(module, "TMEM", ())}
    return Names(roles=roles, barriers=barriers, columns=columns, buffers=_buffers(module, tiles))


def _buffers(module: ModuleType, tiles: tuple[SharedTile, ...]) -> dict[str, Buffer]:
    end, found = SHARED_BASE + (module.Storage.size_in_bytes() if tiles else 0), {}
    for tile in tiles:
        end = -(-end // tile.alignment_bytes) * tile.alignment_bytes
        for stage in range(tile.stages):
            start, end = end, end + tile.row_bytes * tile.rows
            name = tile.name if tile.stages == 1 else f"{tile.name}[{stage}]"
            found[name] = Buffer(start, end, tile.row_bytes, tile.swizzle)
    return found
