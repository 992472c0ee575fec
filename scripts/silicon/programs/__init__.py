"""The hand-written kernels."""

from __future__ import annotations

from functools import lru_cache

from silicon.programs import addresses, atomics, bulk, control, copies, faults, matrix, mbarriers, memory
from silicon.programs.code import Program


@lru_cache(maxsize=1)
def all_programs() -> dict[str, Program]:
    """Every program by name."""
    found = [
        p for m in (memory, atomics, matrix, mbarriers, copies, control, addresses, bulk, faults) for p in m.programs()
    ]
    return {p.name: p for p in found}
