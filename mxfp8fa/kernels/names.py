"""Names for the emulator's reports and pictures, from what a kernel's file declares anyway: BARRIERS, TMEM, *_WARP."""

from __future__ import annotations

from types import ModuleType

from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.emulator.names import Names

MBARRIER_BYTES = 8


def names_of(module: ModuleType) -> Names:
    """What a kernel's module declares.

    BARRIERS: its `Barriers`, laid out in this order at the beginning of shared memory (the kernel's `Storage` is its
    first allocation and starts with them). TMEM: its `TmemMap`. LOAD_WARP, MMA_WARP, ...: index of the warp of a role.
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
    }
    columns = {r.name: (r.start, r.stop - 1) for r in getattr(module, "TMEM", ())}
    return Names(roles=roles, barriers=barriers, columns=columns)
