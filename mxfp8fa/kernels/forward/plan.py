"""What the roles agree on: tiles, warps, columns of tensor memory, barriers.

At head_dim 128 the two score and the two output accumulators fill tensor memory, 4 x 128 of 512 columns. What else has
to be there, P and four kinds of scales, lies in columns whose own content is dead at that moment:

    name    lies over  the content there is dead because
    P0      S1         S of the other queries is in registers: s_read[1], the one barrier that only the bargain needs
    SFP0    S1         likewise; written with P, or, scales of their own, copied with SFV0
    SFV0    S1         likewise, and p_full[0] said so to the mma warp, which has it copied
    SFQ0    S1         likewise, but the mma warp waits for s_read[1] itself
    SFK0    S1         likewise

and the other way round for tile 1. Since P0 is not in S0, the next scores of tile 0 are computed before P0 is ready. QK
of tile 1 puts its scores over what PV and QK of tile 0 read, and these have read it by then, because the tensor core
executes the products of one thread in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import cute

from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step4_quantizer import ATOM_COLUMNS

TILE_M, TILE_N = 128, 128  # queries and keys of a tile
Q_TILES = 2  # tiles of queries that a CTA works on at the same time
KV_STAGES = 4  # tiles of K in shared memory, and as many of V
CHUNK_BYTES = 128  # of a row of O: what is staged in shared memory at a time, and the span of its swizzle
CHUNK_STAGES = 2

WARP_THREADS, GROUP_THREADS = 32, 128
SOFTMAX_WARPS = 4 * Q_TILES  # warps 0 to 3 work on Q tile 0, 4 to 7 on Q tile 1
CORRECTION_WARP = 8  # to 11
MMA_WARP, EPILOGUE_WARP, LOAD_WARP, IDLE_WARP = 12, 13, 14, 15
THREADS = 16 * WARP_THREADS
ROLES = {
    **{warp: f"softmax{warp // 4}" for warp in range(SOFTMAX_WARPS)},
    **{warp: "correction" for warp in range(CORRECTION_WARP, CORRECTION_WARP + 4)},
    MMA_WARP: "mma", EPILOGUE_WARP: "epilogue", LOAD_WARP: "load", IDLE_WARP: "idle",
}  # fmt: skip
# Registers of a thread, by warpgroup: 128 x (2 x 192 + 88 + 40) are the 64 Ki of an SM.
SOFTMAX_REGISTERS, CORRECTION_REGISTERS, OTHER_REGISTERS = 192, 88, 40

# Where P and scales of a Q tile lie, counted from the first column of S of the other Q tile.
P_COLUMN, SFP_COLUMN, SFV_COLUMN = 0, 32, 36
SFQ_COLUMN, SFK_COLUMN = 40, 44


def _tile_columns(i: int) -> list[Columns]:
    """What belongs to Q tile i."""
    s, over = TILE_N * (1 - i), f"S{1 - i}"
    cp, mma = "tcgen05.cp", "tcgen05.mma"
    return [
        Columns(f"P{i}", s + P_COLUMN, TILE_N // 4, "tcgen05.st", mma, "codes of P, four keys to a column", over=over),
        Columns(f"SFP{i}", s + SFP_COLUMN, ATOM_COLUMNS, f"tcgen05.st, {cp}", mma, "scales of P", over=over),
        Columns(f"SFV{i}", s + SFV_COLUMN, ATOM_COLUMNS, cp, mma, "scales of V for PV", over=over),
        Columns(f"SFQ{i}", s + SFQ_COLUMN, ATOM_COLUMNS, cp, mma, "scales of Q for QK", over=over),
        Columns(f"SFK{i}", s + SFK_COLUMN, ATOM_COLUMNS, cp, mma, "scales of K for QK", over=over),
    ]


TMEM = TmemMap(
    *(
        Columns(f"S{i}", TILE_N * i, TILE_N, "tcgen05.mma", "tcgen05.ld", f"scores of Q tile {i}")
        for i in range(Q_TILES)
    ),
    *(
        Columns(f"O{i}", 256 + 128 * i, 128, "tcgen05.mma, tcgen05.st", "tcgen05.ld", "output, the first D columns")
        for i in range(Q_TILES)
    ),
    *(columns for i in range(Q_TILES) for columns in _tile_columns(i)),
)

BARRIERS = Barriers(
    Barrier("q_full", 1, "load warp, and the TMA bytes", "mma", "a Q tile and its scales are in SMEM", Q_TILES),
    Barrier("q_empty", 1, "tcgen05.commit", "load", "the last QK of the Q tile has read it", Q_TILES),
    Barrier("k_full", 1, "load warp, and the TMA bytes", "mma", "a tile of K and its scales are in SMEM", KV_STAGES),
    Barrier("k_empty", 1, "tcgen05.commit", "load", "QK of both Q tiles have read it", KV_STAGES),
    Barrier("v_full", 1, "load warp, and the TMA bytes", "mma", "a tile of V and its scales are in SMEM", KV_STAGES),
    Barrier("v_empty", 1, "tcgen05.commit", "load", "PV of both Q tiles have read it", KV_STAGES),
    Barrier("s_full", 1, "tcgen05.commit", "softmax", "S is in TMEM", Q_TILES),
    Barrier("s_read", GROUP_THREADS, "softmax", "mma, softmax", "S is in registers: its columns can take P and scales", Q_TILES),
    Barrier(
        "p_full", 2 * GROUP_THREADS, "softmax, correction", "mma", "P is in TMEM; O is rescaled or free", Q_TILES
    ),
    Barrier("scale_full", GROUP_THREADS, "softmax", "correction", "acc_scale is in SMEM", Q_TILES),
    Barrier(
        "sum_full", GROUP_THREADS, "softmax", "correction", "row maxima and sums are in SMEM, two turns", 2 * Q_TILES
    ),
    Barrier("o_full", 1, "tcgen05.commit", "correction, softmax", "PV is done: O may be rescaled, or is complete", Q_TILES),
    Barrier("chunk_full", GROUP_THREADS, "correction", "epilogue", "a chunk of O is in SMEM", CHUNK_STAGES),
    Barrier("chunk_empty", 1, "epilogue", "correction", "TMA has read it", CHUNK_STAGES),
)
# Fields of shared memory before the tiles: all mbarriers in the order of the table, then the rest.
Storage = cute.struct(
    type(
        "Storage",
        (),
        {
            "__annotations__": {
                **{b.name: cute.struct.MemRange[cutlass.Int64, b.stages] for b in BARRIERS},
                "tmem": cutlass.Int32,
                "acc_scale": cute.struct.MemRange[cutlass.Float32, Q_TILES * TILE_M],
                "row_sum": cute.struct.MemRange[cutlass.Float32, 2 * Q_TILES * TILE_M],
                "row_max": cute.struct.MemRange[cutlass.Float32, 2 * Q_TILES * TILE_M],
            }
        },
    )
)


@dataclass(frozen=True)
class Config:
    """What is compiled into a kernel.

    Attributes:
        head_dim: D, 64 or 128.
        o_type: of O.
        causal: whether query i sees key j only where j <= i + Sk - Sq.
        p_offset: log2 of the factor on P; 0 with dynamic scales, which have factors of their own.
        rescale_threshold: growth of a row maximum, in log2 units, up to which O is not rescaled.
        rounded_sum: whether the row sum takes P as rounded to E4M3.
        half_sum: whether it adds them in float16 within a tile of keys.
        polynomial_columns: how many columns of every 16, the first ones, take exp2 by polynomial.
        direct_columns: how many, the last ones, get their codes without an exponential.
        direct_bias: c of a direct code.
        subnormal: by which conversion, see `mxfp8fa.kernels.forward.direct`.
        dynamic: whether blocks of P have scales of their own, see `mxfp8fa.kernels.forward.dynamic`.
        interleave: whether the last PV of a work tile is left until the first QK of the next stands beside it.
    """

    head_dim: int
    o_type: type[cutlass.Numeric]
    causal: bool
    p_offset: int
    rescale_threshold: float
    rounded_sum: bool
    half_sum: bool
    polynomial_columns: int
    direct_columns: int
    direct_bias: float
    subnormal: bool
    dynamic: bool = False
    interleave: bool = True
