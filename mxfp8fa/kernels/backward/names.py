"""Names of the main kernel's warps, barriers, columns and buffers, for the emulator's reports and pictures."""

from __future__ import annotations

from mxfp8fa.emulator.names import Names
from mxfp8fa.kernels.backward import plan
from mxfp8fa.kernels.names import SharedTile, names_of
from mxfp8fa.layouts.swizzle import SW64, SW128


def names(config: plan.Config) -> Names:
    """What `main.allocate_tiles` allocates, in its order, and what `plan` declares."""
    head_dim, stages = config.head_dim, plan.STAGES
    swizzle = {64: SW64, 128: SW128}[head_dim]
    rings = [("Q", stages), ("K", 1), ("V", 1), ("dO", stages), *([("Qt", stages), ("Kt", 1)] if config.second else [])]
    return names_of(
        plan,
        *(SharedTile(f"s{name}", head_dim, plan.TILE_N, count, swizzle) for name, count in rings),
        SharedTile("sdS", plan.TILE_M, plan.TILE_N, 1, SW128),
    )
