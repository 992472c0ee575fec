"""The main loop of `gemm_quantize` for Hopper: wgmma into registers, two warpgroups side by side.

Each of them has all 128 tokens and one half of the 256 columns, in two products of 64 tokens; one warp of a third
warpgroup loads. The loads of the next tile go on while this one is written; the tensor core rests meanwhile.

Barriers:

    barrier   count  arrives                             waits            means
    full[4]   1      load warp, and 48 KiB of TMA bytes  both warpgroups  the stage is filled
    empty[4]  8      a thread of each of their warps     load warp        the stage has been read
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from mxfp8fa.kernels.plan import Barrier, Barriers
from mxfp8fa.kernels.producers.fragment import Blocks
from mxfp8fa.kernels.producers.gemm_epilogue import Geometry, write
from mxfp8fa.kernels.producers.gemm_tiles import (
    HALF_N,
    STAGES,
    THREADS,
    TILE_K,
    TILE_M,
    TILE_N,
    Operands,
    load_tile,
    make_operands,
    place,
    smem_layout,
)

BOX_ROWS = 16  # of x: those of a warp in one product
LOAD_REGISTERS, MMA_REGISTERS = 40, 232  # a thread; 128 x 40 + 256 x 232 are an SM's 65,536
BARRIERS = Barriers(
    Barrier("full", 1, "load warp, and 48 KiB of TMA bytes", "both warpgroups", "the stage is filled", STAGES),
    Barrier("empty", 8, "a thread of each of their warps", "load warp", "the stage has been read", STAGES),
)


@cute.jit
def gemm(
    pX: cute.Pointer,
    pWeight: cute.Pointer,
    targets: tuple,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    stride: cutlass.Int64,
    multiprocessors: cutlass.Int32,
    stream: object,
    outputs: cutlass.Constexpr[tuple[Blocks | None, ...]],
    narrow: cutlass.Constexpr[int],
) -> None:
    """Launch a CTA per SM; the arguments are those of `gemm_blackwell.gemm`."""
    operands = make_operands(pX, pWeight, sizes[:3], stride, BOX_ROWS)
    op = warpgroup.MmaF16BF16Op(
        cutlass.BFloat16, cutlass.Float32, (64, HALF_N, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K,
        OperandMajorMode.K,
    )  # fmt: skip
    count = sizes[4] * sizes[6] * cute.ceil_div(sizes[1], TILE_N)
    gemm_kernel(cute.make_tiled_mma(op), operands, targets, pTiles, sizes, outputs, narrow).launch(
        grid=(cutlass.min(count, multiprocessors), 1, 1), block=(THREADS, 1, 1), stream=stream, min_blocks_per_mp=1
    )


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    full: cute.struct.MemRange[cutlass.Int64, STAGES]
    empty: cute.struct.MemRange[cutlass.Int64, STAGES]


@cute.kernel
def gemm_kernel(
    tiled_mma: cute.TiledMma,
    operands: Operands,
    targets: tuple,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    outputs: cutlass.Constexpr[tuple[Blocks | None, ...]],
    narrow: cutlass.Constexpr[int],
) -> None:
    """One CTA: tile after tile."""
    first, _, _ = cute.arch.block_idx()
    step, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    a_layout, b_layout = smem_layout(TILE_M, STAGES), smem_layout(TILE_N, STAGES)
    sA = smem.allocate_tensor(cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    barriers = storage.full.data_ptr(), storage.empty.data_ptr()
    if warp == 0:
        with cute.arch.elect_one():
            for barrier in BARRIERS:
                for stage in cutlass.range_constexpr(barrier.stages):
                    cute.arch.mbarrier_init(getattr(storage, barrier.name).data_ptr() + stage, barrier.count)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    _, n, k, head_dim, batches, seqlen, tiles = sizes
    counts = batches * tiles, cute.ceil_div(n, TILE_N)
    k_tiles = cute.ceil_div(k, TILE_K)
    filled = cutlass.Int32(0)
    if warp < 4:
        cute.arch.setmaxregister_decrease(LOAD_REGISTERS)
        if warp == 0:
            for index in cutlass.range(first, counts[0] * counts[1], step, unroll=1):
                where = place(index, pTiles, seqlen, tiles, counts)
                load_tile(operands, sA, sB, where, barriers, k_tiles, filled, BOX_ROWS)
                filled += k_tiles
    else:
        cute.arch.setmaxregister_increase(MMA_REGISTERS)
        half = warp // 4 - 1
        acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C((TILE_M, HALF_N)), cutlass.Float32)
        for index in cutlass.range(first, counts[0] * counts[1], step, unroll=1):
            where = place(index, pTiles, seqlen, tiles, counts)
            multiply(tiled_mma, acc, sA, half_of(sB, half), barriers, k_tiles, filled)
            filled += k_tiles
            flat = cute.make_tensor(acc.iterator, cute.make_layout(HALF_N))
            write(flat, where, half, targets, Geometry(n, head_dim, tiles), outputs, narrow)


gemm_kernel.set_name_prefix("gemm_quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


def half_of(sB: cute.Tensor, half: cutlass.Int32) -> cute.Tensor:
    """128 of the 256 rows of all stages."""
    one = cute.select(smem_layout(HALF_N, 1).outer, mode=[0, 1])
    layout = cute.append(one, cute.make_layout(STAGES, stride=TILE_N * TILE_K))
    return cute.make_tensor(sB.iterator + cute.assume(half * HALF_N * TILE_K, divby=HALF_N * TILE_K), layout)


@cute.jit
def multiply(
    tiled_mma: cute.TiledMma,
    acc: cute.Tensor,
    sA: cute.Tensor,
    sB: cute.Tensor,
    barriers: tuple[cute.Pointer, cute.Pointer],
    k_tiles: cutlass.Int32,
    count: cutlass.Int32,
) -> None:
    """A tile into the warpgroup's registers; `count` stages have been read so far.

    One product is always behind the one that was just issued: a stage is handed back when the next is being read.
    """
    full, empty = barriers
    slice_ = tiled_mma.get_slice(0)
    tCrA, tCrB = (
        tiled_mma.make_fragment_A(slice_.partition_A(sA)),
        tiled_mma.make_fragment_B(slice_.partition_B(sB)),
    )
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = (count + k) % STAGES, (count + k) // STAGES
        cute.arch.mbarrier_wait(full + stage, turn % 2)
        warpgroup.fence()
        for step in cutlass.range_constexpr(TILE_K // 16):
            tiled_mma.set(warpgroup.Field.ACCUMULATE, k > 0 or step > 0)
            cute.gemm(tiled_mma, acc, tCrA[None, None, step, stage], tCrB[None, None, step, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if k > 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(empty + (count + k - 1) % STAGES)
    warpgroup.wait_group(0)
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(empty + (count + k_tiles - 1) % STAGES)
