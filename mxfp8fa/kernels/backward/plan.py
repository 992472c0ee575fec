"""What the roles of the main kernel agree on: tiles, warps, columns of tensor memory, barriers.

Warps, 512 threads:

    0-3    reduce    dQ: tensor memory, registers, shared memory, added to global memory
    4-11   compute   P^T and dS^T: warps 4-7 take queries 0-63 of a tile, 8-11 the others; a thread has one key
    12     load      Q, K, V, dO, their scales, lse and delta
    13     mma       ten copies of scales and five products a tile of queries
    14     scales    the two scale atoms of dS
    15     idle      registers are handed out to four warps at a time

TMEM, 512 columns allocated:

    columns  name   written by   read by      holds
    0-127    S      tcgen05.mma  tcgen05.ld   S^T: key m in lane m, query n in column n
    0-15     P0     tcgen05.st   tcgen05.mma  codes of P^T, queries 0-63, four to a column (over S)
    48-51    SFV    tcgen05.cp   tcgen05.mma  scales of V for dP (over S)
    52-55    SFdO   tcgen05.cp   tcgen05.mma  scales of dO for dP, rows are queries (over S)
    56-59    SFP    tcgen05.cp   tcgen05.mma  scales of P for dV, all bytes equal (over S)
    60-63    SFdOt  tcgen05.cp   tcgen05.mma  scales of dO for dV, rows are head_dim (over S)
    64-79    P1     tcgen05.st   tcgen05.mma  codes of P^T, queries 64-127 (over S)
    80-83    SFdSt  tcgen05.cp   tcgen05.mma  scales of dS for dQ, rows are queries (over S)
    84-87    SFKt   tcgen05.cp   tcgen05.mma  scales of K for dQ, rows are head_dim (over S)
    88-91    SFdS   tcgen05.cp   tcgen05.mma  scales of dS for dK, rows are keys (over S)
    92-95    SFQt   tcgen05.cp   tcgen05.mma  scales of Q for dK, rows are head_dim (over S)
    128-255  dV     tcgen05.mma  tcgen05.ld   dV: key m in lane m, the first D of the columns
    256-383  dP     tcgen05.mma  tcgen05.ld   dP^T like S^T; then dQ: query m in lane m, the first D of the columns
    304-307  SFK    tcgen05.cp   tcgen05.mma  scales of K for S (over dP)
    308-311  SFQ    tcgen05.cp   tcgen05.mma  scales of Q for S (over dP)
    384-511  dK     tcgen05.mma  tcgen05.ld   dK / softmax_scale: key m in lane m, the first D of the columns

Barriers:

    barrier     count  arrives                       waits                  means
    kv_full     1      load warp, and the TMA bytes  mma warp               K and V and their scales are in shared memory
    q_full[2]   1      load warp, and the TMA bytes  mma and compute warps  a tile of Q, its scales, lse and delta, likewise
    do_full[2]  1      load warp, and the TMA bytes  mma warp               a tile of dO and its scales, likewise
    empty[2]    1      tcgen05.commit                load warp              Q and dO have been read, and lse and delta
    s_full      1      tcgen05.commit                compute warps          S is in TMEM
    s_drained   8      compute warps                 mma warp               S is in registers: scales may lie over it
    p_full      8      compute warps                 mma warp               P is in TMEM
    dp_full     1      tcgen05.commit                compute warps          dP is in TMEM; dS of the tile before has been read
    dp_drained  8      compute warps                 mma warp               dP is in registers: scales may lie over it
    ds_scaled   8      compute warps                 scales warp            the scales of dS are in shared memory, a word each
    ds_full     9      compute and scales warps      mma warp               dS is in SMEM, its scales in atoms
    dq_full     1      tcgen05.commit                reduce warps           dQ is in TMEM
    dq_drained  4      reduce warps                  mma warp               dQ is in registers: dP may overwrite it
    dkv_full    1      tcgen05.commit                compute warps          dK and dV are complete
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import cute

from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap

TILE_M, TILE_N = 128, 128  # queries, keys
STAGES = 2  # of Q and of dO
DQ_COLUMNS = 32  # of head_dim in such a part

REDUCE_WARP, COMPUTE_WARP, LOAD_WARP, MMA_WARP, SCALES_WARP, IDLE_WARP = 0, 4, 12, 13, 14, 15
REDUCE_WARPS, COMPUTE_WARPS, WARPS = 4, 8, 16
THREADS = 32 * WARPS
GROUP_THREADS = 128  # reduce warps, and each half of the compute warps
ROLES = {
    **dict.fromkeys(range(REDUCE_WARP, COMPUTE_WARP), "reduce"),
    **dict.fromkeys(range(COMPUTE_WARP, LOAD_WARP), "compute"),
    LOAD_WARP: "load", MMA_WARP: "mma", SCALES_WARP: "scales", IDLE_WARP: "idle",
}  # fmt: skip
# Registers of a thread, by warpgroup: 128 x (2 x 160 + 112 + 80) are the 64 Ki of an SM.
COMPUTE_REGISTERS, REDUCE_REGISTERS, OTHER_REGISTERS = 160, 112, 80
HALF = TILE_M // 2  # queries of a compute thread
BLOCKS = 4  # of a tile, along queries and along keys

_MMA, _LD, _ST, _CP = "tcgen05.mma", "tcgen05.ld", "tcgen05.st", "tcgen05.cp"
_LOAD, _COMMIT = "load warp, and the TMA bytes", "tcgen05.commit"

TMEM = TmemMap(
    Columns("S", 0, TILE_M, _MMA, _LD, "S^T: key m in lane m, query n in column n"),
    Columns("P0", 0, HALF // 4, _ST, _MMA, "codes of P^T, queries 0-63, four to a column", over="S"),
    Columns("SFV", 48, 4, _CP, _MMA, "scales of V for dP", over="S"),
    Columns("SFdO", 52, 4, _CP, _MMA, "scales of dO for dP, rows are queries", over="S"),
    Columns("SFP", 56, 4, _CP, _MMA, "scales of P for dV, all bytes equal", over="S"),
    Columns("SFdOt", 60, 4, _CP, _MMA, "scales of dO for dV, rows are head_dim", over="S"),
    Columns("P1", 64, HALF // 4, _ST, _MMA, "codes of P^T, queries 64-127", over="S"),
    Columns("SFdSt", 80, 4, _CP, _MMA, "scales of dS for dQ, rows are queries", over="S"),
    Columns("SFKt", 84, 4, _CP, _MMA, "scales of K for dQ, rows are head_dim", over="S"),
    Columns("SFdS", 88, 4, _CP, _MMA, "scales of dS for dK, rows are keys", over="S"),
    Columns("SFQt", 92, 4, _CP, _MMA, "scales of Q for dK, rows are head_dim", over="S"),
    Columns("dV", 128, 128, _MMA, _LD, "dV: key m in lane m, the first D of the columns"),
    Columns("dP", 256, 128, _MMA, _LD, "dP^T like S^T; then dQ: query m in lane m, the first D of the columns"),
    Columns("SFK", 304, 4, _CP, _MMA, "scales of K for S", over="dP"),
    Columns("SFQ", 308, 4, _CP, _MMA, "scales of Q for S", over="dP"),
    Columns("dK", 384, 128, _MMA, _LD, "dK / softmax_scale: key m in lane m, the first D of the columns"),
)
BARRIERS = Barriers(
    Barrier("kv_full", 1, _LOAD, "mma warp", "K and V and their scales are in shared memory"),
    Barrier("q_full", 1, _LOAD, "mma and compute warps", "a tile of Q, its scales, lse and delta, likewise", STAGES),
    Barrier("do_full", 1, _LOAD, "mma warp", "a tile of dO and its scales, likewise", STAGES),
    Barrier("empty", 1, _COMMIT, "load warp", "Q and dO have been read, and lse and delta", STAGES),
    Barrier("s_full", 1, _COMMIT, "compute warps", "S is in TMEM"),
    Barrier("s_drained", COMPUTE_WARPS, "compute warps", "mma warp", "S is in registers: scales may lie over it"),
    Barrier("p_full", COMPUTE_WARPS, "compute warps", "mma warp", "P is in TMEM"),
    Barrier("dp_full", 1, _COMMIT, "compute warps", "dP is in TMEM; dS of the tile before has been read"),
    Barrier("dp_drained", COMPUTE_WARPS, "compute warps", "mma warp", "dP is in registers: scales may lie over it"),
    Barrier(
        "ds_scaled", COMPUTE_WARPS, "compute warps", "scales warp", "the scales of dS are in shared memory, a word each"
    ),
    Barrier(
        "ds_full", COMPUTE_WARPS + 1, "compute and scales warps", "mma warp",
        "dS is in SMEM, its scales in atoms",
    ),
    Barrier("dq_full", 1, _COMMIT, "reduce warps", "dQ is in TMEM"),
    Barrier("dq_drained", REDUCE_WARPS, "reduce warps", "mma warp", "dQ is in registers: dP may overwrite it"),
    Barrier("dkv_full", 1, _COMMIT, "compute warps", "dK and dV are complete"),
)  # fmt: skip
# Fields of shared memory before the tiles: all mbarriers in the order of the table, then the rest.
Storage = cute.struct(
    type(
        "Storage",
        (),
        {
            "__annotations__": {
                **{b.name: cute.struct.MemRange[cutlass.Int64, b.stages] for b in BARRIERS},
                "tmem": cutlass.Int32,
                "words": cute.struct.MemRange[cutlass.Int32, BLOCKS * BLOCKS],
            }
        },
    )
)


@dataclass(frozen=True)
class Config:
    """What is compiled into the main kernel.

    Attributes:
        head_dim: D, 64 or 128.
        causal: whether query i sees key j only where j <= i + Sk - Sq.
        p_offset: log2 of the factor on P.
        rounded: whether dS takes P as rounded to E4M3.
        rule: how scales of dS follow from its maxima (`numerics.scale_rules`).
        second: whether dK and dQ read payloads of Q and K of their own.
        direct_columns: how many keys of every 16, the last ones, have direct codes of P (`AttentionOptions.exp`).
        direct_bias: of direct codes.
        subnormal: by which conversion direct codes come about (`AttentionOptions.direct_codes`).
    """

    head_dim: int
    causal: bool
    p_offset: int
    rounded: bool
    rule: str
    second: bool
    direct_columns: int
    direct_bias: float
    subnormal: bool

    @property
    def dq_stages(self) -> int:
        """Parts of dQ on their way to global memory: all of a tile, unless second payloads take that room."""
        return 2 if self.second else self.head_dim // DQ_COLUMNS
