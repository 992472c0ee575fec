"""Step 2. A K loop: D = A B^T for BF16 matrices of any size in whole tiles, fed by a ring of TMA loads.

New: `full` and `empty`, two mbarriers per stage of shared memory, and two warps that run ahead of each other.

    load warp   wait empty[s] -> expect bytes on full[s] -> TMA into sA[s], sB[s]     for every tile of K
    mma warp    wait full[s]  -> tcgen05.mma x 4         -> tcgen05.commit(empty[s])  for every tile of K

Tile k lies in stage s = k % STAGES and is the (k // STAGES)-th to lie there. A wait names a parity, not a phase: it
returns once the phase of that parity has completed. The phases of a barrier are numbered from 0, so the mma warp waits
for parity (k // STAGES) % 2 of `full`. The load warp waits for the opposite one of `empty`: on a fresh barrier the phase
before phase 0 counts as completed, so the first STAGES loads find their stage empty without anybody having said so.

A tile of K is 64 elements: 128 bytes, a row of the widest swizzle, and four instructions of K = 16. The first of them
overwrites D, all others add to it.

Constraints: M, N multiples of 128, K a multiple of 64; A and B K-major; one CTA per 128 x 128 tile of D.

TMEM, 128 columns allocated:

    columns  name  written by   read by     holds
    0-127    D     tcgen05.mma  tcgen05.ld  accumulator: row m in lane m, column n in column n

Barriers:

    barrier   count  arrives                             waits      means
    full[3]   1      load warp, and 32 KiB of TMA bytes  mma warp   the stage is filled
    empty[3]  1      tcgen05.commit                      load warp  the stage has been read
    done      1      tcgen05.commit                      all warps  D is in TMEM
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from mxfp8fa.kernels.checks import Multiple, check_tensor
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step1_one_mma import accumulator, free_tmem, store_accumulator, tma_tiles

TILE = TILE_M, TILE_N, TILE_K = 128, 128, 64
STAGES = 3
THREADS = 128
LOAD_WARP, MMA_WARP = 0, 1
STAGE_BYTES = (TILE_M + TILE_N) * TILE_K * 2

TMEM = TmemMap(
    Columns("D", 0, TILE_N, "tcgen05.mma", "tcgen05.ld", "accumulator: row m in lane m, column n in column n"),
)
BARRIERS = Barriers(
    Barrier("full", 1, "load warp, and 32 KiB of TMA bytes", "mma warp", "the stage is filled", STAGES),
    Barrier("empty", 1, "tcgen05.commit", "load warp", "the stage has been read", STAGES),
    Barrier("done", 1, "tcgen05.commit", "all warps", "D is in TMEM"),
)


def arguments(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[cute.Tensor, ...]:
    """The tensors as `k_loop` takes them; one compilation serves all sizes.

    Args:
        a: (M, K) bfloat16, contiguous, M a multiple of 128 and K of 64.
        b: (N, K) bfloat16, contiguous, N a multiple of 128.
        d: (M, N) float32, contiguous; will hold A B^T.

    Raises:
        ValueError: another dtype, shape or order.
    """
    check_tensor("a", a, torch.bfloat16, Multiple(TILE_M), Multiple(TILE_K))
    check_tensor("b", b, torch.bfloat16, Multiple(TILE_N), a.shape[1])
    check_tensor("d", d, torch.float32, a.shape[0], b.shape[0])
    mA, mB = (gmem(x, divisible_by=(TILE_M, TILE_K)) for x in (a, b))
    return mA, mB, gmem(d, divisible_by=(TILE_M, TILE_N))


@cute.jit
def k_loop(mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor) -> None:
    """Choose instruction, layouts and copies as in step 1, with STAGES tiles in shared memory; launch a CTA per tile."""
    op = tcgen05.MmaF16BF16Op(
        cutlass.BFloat16,
        cutlass.Float32,
        (TILE_M, TILE_N, 16),
        tcgen05.CtaGroup.ONE,
        tcgen05.OperandSource.SMEM,
        OperandMajorMode.K,
        OperandMajorMode.K,
    )
    tiled_mma = cute.make_tiled_mma(op)
    a_layout = blackwell.make_smem_layout_a(tiled_mma, TILE, cutlass.BFloat16, STAGES)
    b_layout = blackwell.make_smem_layout_b(tiled_mma, TILE, cutlass.BFloat16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, mA_tma = cute.nvgpu.make_tiled_tma_atom_A(load, mA, a_layout, TILE, tiled_mma)
    tma_b, mB_tma = cute.nvgpu.make_tiled_tma_atom_B(load, mB, b_layout, TILE, tiled_mma)
    grid = (cute.size(mD, mode=[0]) // TILE_M, cute.size(mD, mode=[1]) // TILE_N, 1)
    k_loop_kernel(tiled_mma, tma_a, mA_tma, tma_b, mB_tma, mD, a_layout, b_layout).launch(
        grid=grid, block=(THREADS, 1, 1)
    )


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    full: cute.struct.MemRange[cutlass.Int64, STAGES]
    empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    done: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32


@cute.kernel
def k_loop_kernel(
    tiled_mma: cute.TiledMma,
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,
    mD: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
) -> None:
    """One CTA: one tile of D."""
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    sA = smem.allocate_tensor(cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    full, empty, done = storage.full.data_ptr(), storage.empty.data_ptr(), storage.done.data_ptr()

    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    tCtD = accumulator(tiled_mma, tmem + TMEM["D"].start)

    gA = cute.local_tile(mA, (TILE_M, TILE_K), (tile_m, None))  # (M, K, tiles of K)
    gB = cute.local_tile(mB, (TILE_N, TILE_K), (tile_n, None))
    k_tiles = cute.size(gA, mode=[2])
    if warp == LOAD_WARP:
        load_a = tma_a, *tma_tiles(tma_a, sA, tiled_mma.get_slice(0).partition_A(gA))
        load_b = tma_b, *tma_tiles(tma_b, sB, tiled_mma.get_slice(0).partition_B(gB))
        load(load_a, load_b, full, empty, k_tiles)
    elif warp == MMA_WARP:
        issue_mma(tiled_mma, tCtD, tiled_mma.make_fragment_A(sA), tiled_mma.make_fragment_B(sB), full, empty, k_tiles)
        with cute.arch.elect_one():
            tcgen05.commit(done)

    cute.arch.mbarrier_wait(done, 0)
    store_accumulator(tCtD, cute.local_tile(mD, (TILE_M, TILE_N), (tile_m, tile_n)), thread)
    free_tmem(tmem, TMEM.allocation, warp)


k_loop_kernel.set_name_prefix("k_loop", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def set_up(
    storage: Storage, barriers: cutlass.Constexpr, columns: cutlass.Constexpr[int], warp: cutlass.Int32
) -> cute.Pointer:
    """Allocate tensor memory and initialise the barriers, for all threads to see.

    Args:
        storage: has a field `tmem`, and one named like each barrier with as many elements as it has stages.
        barriers: the kernel's `Barriers`.
        columns: of tensor memory to allocate.
        warp: index of the calling warp.

    Returns:
        Pointer to the first column.
    """
    if warp == 0:
        cute.arch.alloc_tmem(columns, storage.tmem.ptr)
        cute.arch.relinquish_tmem_alloc_permit()
        with cute.arch.elect_one():
            for barrier in barriers:
                for stage in cutlass.range_constexpr(barrier.stages):
                    cute.arch.mbarrier_init(getattr(storage, barrier.name).data_ptr() + stage, barrier.count)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    return cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)


@cute.jit
def load(load_a: tuple, load_b: tuple, full: cute.Pointer, empty: cute.Pointer, k_tiles: cutlass.Int32) -> None:
    """The load warp: fill stage after stage.

    Args:
        load_a: the copy, its source and its destination (see `tma_tiles`).
        load_b: likewise.
        full: first of the barriers of the filled stages.
        empty: first of the barriers of the read stages.
        k_tiles: number of tiles along K.
    """
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = k % STAGES, k // STAGES
        cute.arch.mbarrier_wait(empty + stage, (turn + 1) % 2)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, STAGE_BYTES)
        for tma, tXsX, tXgX in (load_a, load_b):
            cute.copy(tma, tXgX[None, k], tXsX[None, stage], tma_bar_ptr=full + stage)


@cute.jit
def issue_mma(
    tiled_mma: cute.TiledMma,
    tCtD: cute.Tensor,
    tCrA: cute.Tensor,
    tCrB: cute.Tensor,
    full: cute.Pointer,
    empty: cute.Pointer,
    k_tiles: cutlass.Int32,
) -> None:
    """The mma warp: multiply stage after stage, and hand each back when the tensor core has read it."""
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = k % STAGES, k // STAGES
        cute.arch.mbarrier_wait(full + stage, turn % 2)
        for step in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
            tiled_mma.set(tcgen05.Field.ACCUMULATE, k > 0 or step > 0)
            cute.gemm(tiled_mma, tCtD, tCrA[None, None, step, stage], tCrB[None, None, step, stage], tCtD)
        with cute.arch.elect_one():
            tcgen05.commit(empty + stage)
