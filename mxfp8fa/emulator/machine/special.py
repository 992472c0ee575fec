"""Special registers, PTX ISA section 10: functions of the warp that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import UnsupportedInstruction
from mxfp8fa.emulator.lanes import LANES
from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.emulator.machine.warp import WARP_LANES, Warp
from mxfp8fa.emulator.ptx import syntax

Read = Callable[[Warp], np.ndarray]
_LANE = np.arange(LANES, dtype=np.uint64)
WARPS_PER_SM = 64  # most warp identifiers of an SM; what an H200 answers
_AXES = {"x": 0, "y": 1, "z": 2}
_MASKS = {
    "lanemask_eq": np.uint64(1) << _LANE,
    "lanemask_lt": (np.uint64(1) << _LANE) - np.uint64(1),
    "lanemask_le": (np.uint64(2) << _LANE) - np.uint64(1),
    "lanemask_gt": np.uint64(0xFFFFFFFF) & ~((np.uint64(2) << _LANE) - np.uint64(1)),
    "lanemask_ge": np.uint64(0xFFFFFFFF) & ~((np.uint64(1) << _LANE) - np.uint64(1)),
}


def _tid(warp: Warp, axis: int) -> np.ndarray:
    found = warp.extra.get("tid")
    if found is None:
        bx, by, _ = warp.machine.launch.block
        thread = warp.index * WARP_LANES + np.arange(LANES)
        found = warp.extra["tid"] = [(thread % bx), (thread // bx % by), (thread // (bx * by))]
    return found[axis].astype(np.uint32)


def _clusters(warp: Warp) -> tuple[int, int, int]:
    x, y, z = (g // c for g, c in zip(warp.machine.launch.grid, warp.machine.launch.cluster, strict=True))
    return x, y, z


def _rank_position(warp: Warp) -> tuple[int, int, int]:
    x, y, z = (i - f for i, f in zip(warp.cta.index, warp.cta.cluster.first, strict=True))
    return x, y, z


def _cluster_position(warp: Warp) -> tuple[int, int, int]:
    x, y, z = (f // c for f, c in zip(warp.cta.cluster.first, warp.machine.launch.cluster, strict=True))
    return x, y, z


# Vectors of three; %tid is the only one that differs between the threads of a warp.
_VECTORS: dict[str, Callable[[Warp], tuple[int, int, int]]] = {
    "ntid": lambda w: w.machine.launch.block,
    "ctaid": lambda w: w.cta.index,
    "nctaid": lambda w: w.machine.launch.grid,
    "clusterid": _cluster_position,
    "nclusterid": _clusters,
    "cluster_ctaid": _rank_position,
    "cluster_nctaid": lambda w: w.machine.launch.cluster,
}
_SCALARS: dict[str, Callable[[Warp], Any]] = {
    "laneid": lambda w: _LANE,
    "warpid": lambda w: w.index,
    "nwarpid": lambda w: WARPS_PER_SM,
    "smid": lambda w: (w.machine.finished_clusters * len(w.cta.cluster.ctas) + w.cta.rank) % w.machine.options.sm_count,
    "nsmid": lambda w: w.machine.options.sm_count,
    "gridid": lambda w: 1,
    "is_explicit_cluster": lambda w: len(w.cta.cluster.ctas) > 1,
    "cluster_ctarank": lambda w: w.cta.rank,
    "cluster_nctarank": lambda w: len(w.cta.cluster.ctas),
    # Time is counted in warp-instructions of the launch: it grows, and means nothing more.
    "clock": lambda w: w.machine.instructions & 0xFFFFFFFF,
    "clock_hi": lambda w: w.machine.instructions >> 32,
    "clock64": lambda w: w.machine.instructions,
    "globaltimer": lambda w: w.machine.instructions,
    "globaltimer_lo": lambda w: w.machine.instructions & 0xFFFFFFFF,
    "globaltimer_hi": lambda w: w.machine.instructions >> 32,
    "reserved_smem_offset_begin": lambda w: 0,
    "reserved_smem_offset_end": lambda w: SHARED_BASE,
    "reserved_smem_offset_cap": lambda w: SHARED_BASE,
    "total_smem_size": lambda w: w.cta.shared.size_bytes,
    "aggr_smem_size": lambda w: w.cta.shared.size_bytes + SHARED_BASE,
    "dynamic_smem_size": lambda w: w.machine.launch.smem_bytes,
    "current_graph_exec": lambda w: 0,
} | {name: (lambda w, m=mask: m) for name, mask in _MASKS.items()}


def special_register(operand: syntax.SpecialRegister) -> Read:
    """A function that reads a special register as 32 lanes.

    Raises:
        UnsupportedInstruction: performance counters and environment registers have no value here.
    """
    name = operand.name
    if name == "tid" and operand.component in _AXES:
        return lambda w: _tid(w, _AXES[operand.component])
    if name in _VECTORS and operand.component in _AXES:
        vector, axis = _VECTORS[name], _AXES[operand.component]
        return lambda w: np.full(LANES, vector(w)[axis], np.uint32)
    if (name == "tid" or name in _VECTORS) and operand.component == "w":
        return lambda w: np.zeros(LANES, np.uint32)
    if name in _SCALARS:
        scalar = _SCALARS[name]
        dtype = np.bool_ if name == "is_explicit_cluster" else np.uint64
        return lambda w: np.broadcast_to(np.asarray(scalar(w), dtype), (LANES,))
    raise UnsupportedInstruction(f"special register {operand} has no value in the emulator")
