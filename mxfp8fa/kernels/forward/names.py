"""Names of the kernel's warps, barriers, columns and buffers, for the emulator's reports and pictures."""

from __future__ import annotations

from mxfp8fa.emulator.names import Names
from mxfp8fa.kernels.forward import plan
from mxfp8fa.kernels.names import SharedTile, names_of
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.layouts.swizzle import SW64, SW128


def names(head_dim: int) -> Names:
    """What `kernel.allocate_tiles` allocates, in its order, and what `plan` declares."""
    swizzle = {64: SW64, 128: SW128}[head_dim]
    rings = ("Q", plan.Q_TILES), ("K", plan.KV_STAGES), ("V", plan.KV_STAGES)
    scales = *rings, ("P", plan.Q_TILES)
    return names_of(
        plan,
        *(SharedTile(f"s{name}", head_dim, plan.TILE_N, stages, swizzle) for name, stages in rings),
        SharedTile("sO", plan.CHUNK_BYTES, plan.TILE_M, plan.CHUNK_STAGES, SW128),
        *(SharedTile(f"sSF{name}", ATOM_BYTES, 1, stages, alignment_bytes=128) for name, stages in scales),
    )
