"""The main loop of `gemm_quantize` for Blackwell: tcgen05.mma into tensor memory, twice 256 columns of it.

While the epilogue empties one accumulator the tensor core fills the other, so a tile costs the longer of the two.

TMEM, 512 columns allocated:

    columns  name  written by   read by     holds
    0-255    D0    tcgen05.mma  tcgen05.ld  accumulator of even tiles: token m in lane m
    256-511  D1    tcgen05.mma  tcgen05.ld  accumulator of odd tiles

Barriers:

    barrier    count  arrives                             waits              means
    full[4]    1      load warp, and 48 KiB of TMA bytes  mma warp           the stage is filled
    empty[4]   1      tcgen05.commit                      load warp          the stage has been read
    done[2]    1      tcgen05.commit                      epilogue warps     the accumulator is complete
    drained[2] 256    epilogue threads                    mma warp           the accumulator has been read
"""

import cutlass
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
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
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem
from mxfp8fa.kernels.steps.step2_k_loop import set_up

LOAD_WARP, MMA_WARP = 0, 1
EPILOGUE_THREADS = 256
LANE = 1 << 16  # the step from one lane to the next in a tensor memory address

TMEM = TmemMap(
    Columns("D0", 0, TILE_N, "tcgen05.mma", "tcgen05.ld", "accumulator of even tiles: token m in lane m"),
    Columns("D1", 256, TILE_N, "tcgen05.mma", "tcgen05.ld", "accumulator of odd tiles"),
)
BARRIERS = Barriers(
    Barrier("full", 1, "load warp, and 48 KiB of TMA bytes", "mma warp", "the stage is filled", STAGES),
    Barrier("empty", 1, "tcgen05.commit", "load warp", "the stage has been read", STAGES),
    Barrier("done", 1, "tcgen05.commit", "epilogue warps", "the accumulator is complete", 2),
    Barrier("drained", EPILOGUE_THREADS, "epilogue threads", "mma warp", "the accumulator has been read", 2),
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
    """Launch a CTA per SM.

    Args:
        pX: first element of x.
        pWeight: of the weight, contiguous.
        targets: values, scales with tokens as rows and scales with the head dimension as rows, of each output.
        pTiles: of (tiles, 2) int32, first token and number of tokens of every tile, for packed sequences.
        sizes: rows of x, N, K, head dimension, batches, tokens of a batch, token tiles of a batch.
        stride: from row to row of x, in elements.
        multiprocessors: of the GPU.
        stream: CUDA stream.
        outputs: which blocks each output has; None for plain values.
        narrow: blocks of columns of a head, at most 4.
    """
    operands = make_operands(pX, pWeight, sizes[:3], stride, TILE_M)
    op = tcgen05.MmaF16BF16Op(
        cutlass.BFloat16, cutlass.Float32, (TILE_M, TILE_N, 16), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM,
        OperandMajorMode.K, OperandMajorMode.K,
    )  # fmt: skip
    count = sizes[4] * sizes[6] * cute.ceil_div(sizes[1], TILE_N)
    gemm_kernel(cute.make_tiled_mma(op), operands, targets, pTiles, sizes, outputs, narrow).launch(
        grid=(cutlass.min(count, multiprocessors), 1, 1), block=(THREADS, 1, 1), stream=stream
    )


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    full: cute.struct.MemRange[cutlass.Int64, STAGES]
    empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    done: cute.struct.MemRange[cutlass.Int64, 2]
    drained: cute.struct.MemRange[cutlass.Int64, 2]
    tmem: cutlass.Int32


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
    thread, _, _ = cute.arch.thread_idx()
    first, _, _ = cute.arch.block_idx()
    step, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    a_layout, b_layout = smem_layout(TILE_M, STAGES), smem_layout(TILE_N, STAGES)
    sA = smem.allocate_tensor(cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    full, empty = storage.full.data_ptr(), storage.empty.data_ptr()
    done, drained = storage.done.data_ptr(), storage.drained.data_ptr()
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)

    _, n, k, head_dim, batches, seqlen, tiles = sizes
    counts = batches * tiles, cute.ceil_div(n, TILE_N)
    k_tiles = cute.ceil_div(k, TILE_K)
    turn = cutlass.Int32(0)
    for index in cutlass.range(first, counts[0] * counts[1], step, unroll=1):
        if warp == LOAD_WARP:
            where = place(index, pTiles, seqlen, tiles, counts)
            load_tile(operands, sA, sB, where, (full, empty), k_tiles, turn * k_tiles, TILE_M)
        elif warp == MMA_WARP:
            cute.arch.mbarrier_wait(drained + turn % 2, (turn // 2 + 1) % 2)
            multiply(tiled_mma, tmem + TILE_N * (turn % 2), sA, sB, (full, empty), k_tiles, turn * k_tiles)
            with cute.arch.elect_one():
                tcgen05.commit(done + turn % 2)
        elif thread >= THREADS - EPILOGUE_THREADS:
            where = place(index, pTiles, seqlen, tiles, counts)
            half = (thread - (THREADS - EPILOGUE_THREADS)) // 128
            cute.arch.mbarrier_wait(done + turn % 2, turn // 2 % 2)
            acc = load_accumulator(tmem + cute.assume(TILE_N * (turn % 2) + HALF_N * half, divby=HALF_N), thread % 128)
            cute.arch.mbarrier_arrive(drained + turn % 2)
            write(acc, where, half, targets, Geometry(n, head_dim, tiles), outputs, narrow)
        turn += 1
    free_tmem(tmem, TMEM.allocation, warp)


gemm_kernel.set_name_prefix("gemm_quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def multiply(
    tiled_mma: cute.TiledMma,
    tmem: cute.Pointer,
    sA: cute.Tensor,
    sB: cute.Tensor,
    barriers: tuple[cute.Pointer, cute.Pointer],
    k_tiles: cutlass.Int32,
    count: cutlass.Int32,
) -> None:
    """The mma warp: a tile into the 256 columns at `tmem`; `count` stages have been read so far."""
    full, empty = barriers
    tCrA, tCrB = tiled_mma.make_fragment_A(staged(sA, TILE_M)), tiled_mma.make_fragment_B(staged(sB, TILE_N))
    tCtD = cute.make_tensor(tmem, tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((TILE_M, TILE_N))).layout)
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = (count + k) % STAGES, (count + k) // STAGES
        cute.arch.mbarrier_wait(full + stage, turn % 2)
        for step in cutlass.range_constexpr(TILE_K // 16):
            tiled_mma.set(tcgen05.Field.ACCUMULATE, k > 0 or step > 0)
            cute.gemm(tiled_mma, tCtD, tCrA[None, None, step, stage], tCrB[None, None, step, stage], tCtD)
        with cute.arch.elect_one():
            tcgen05.commit(empty + stage)


def staged(sX: cute.Tensor, rows: int) -> cute.Tensor:
    """Stages of (rows, 64) as the instruction takes them: ((rows, 16), 1, 4, stages)."""
    row = cute.make_layout((rows, 16), stride=(TILE_K, 1))
    layout = cute.make_layout(
        (row.shape, 1, TILE_K // 16, STAGES), stride=(row.stride, 0, 16, rows * TILE_K)
    )
    return cute.make_tensor(sX.iterator, layout)


def load_accumulator(tmem: cute.Pointer, thread: cutlass.Int32) -> cute.Tensor:
    """128 columns of the warp's 32 lanes, as a wgmma would leave them: two tcgen05.ld.16x256b.x16."""
    tile = cute.make_tensor(tmem, cute.make_layout((TILE_M, HALF_N), stride=(LANE, 1)))
    op = tcgen05.Ld16x256bOp(tcgen05.Repetition.x16)
    tiled_load = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tile)
    thread_load = tiled_load.get_slice(thread)
    acc = cute.make_rmem_tensor(thread_load.partition_D(tile).shape, cutlass.Float32)
    cute.copy(tiled_load, thread_load.partition_S(tile), acc)
    cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld: only now are the registers defined
    return cute.make_tensor(acc.iterator, cute.make_layout(HALF_N))
