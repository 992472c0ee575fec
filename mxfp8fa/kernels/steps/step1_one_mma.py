"""Step 1. One tensor-core instruction: D = A B^T for BF16 matrices of 128 x 16.

New: the whole way of a product through an SM, once, with nothing else in sight.

    GMEM --TMA--> SMEM --tcgen05.mma--> TMEM --tcgen05.ld--> registers --st.global--> GMEM

One CTA of four warps. Warp 0 issues everything: two bulk tensor copies, then one tcgen05.mma, which multiplies the two
matrices from shared memory and leaves the product in tensor memory. All four warps wait for it; then every thread reads
the row that its lane of tensor memory holds and writes it out.

Constraints: M = N = 128 and K = 16, the shape of one instruction of kind::f16 (PTX ISA, "tcgen05.mma", shapes); A and B
K-major, that is row-major (M, K) and (N, K); FP32 accumulator.

TMEM, 128 columns allocated:

    columns  name  written by   read by     holds
    0-127    D     tcgen05.mma  tcgen05.ld  accumulator: row m in lane m, column n in column n

Barriers:

    barrier  count  arrives                         waits      means
    loaded   1      warp 0, and 8 KiB of TMA bytes  warp 0     sA and sB are filled
    done     1      tcgen05.commit                  all warps  D is in TMEM

The PTX ISA asks for tcgen05.fence::after_thread_sync between the wait for `done` and tcgen05.ld. The CuTe DSL has it
only among its experimental primitives, and the kernels built with it that we know run without; so do these.
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05

from mxfp8fa.kernels.checks import check_tensor
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap

M, N, K = 128, 128, 16
THREADS = 128  # four warps: tensor memory has 128 lanes, and a warp reaches 32 of them
LOAD_BYTES = (M + N) * K * 2

TMEM = TmemMap(
    Columns("D", 0, N, "tcgen05.mma", "tcgen05.ld", "accumulator: row m in lane m, column n in column n"),
)
BARRIERS = Barriers(
    Barrier("loaded", 1, "warp 0, and 8 KiB of TMA bytes", "warp 0", "sA and sB are filled"),
    Barrier("done", 1, "tcgen05.commit", "all warps", "D is in TMEM"),
)


def arguments(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> tuple[cute.Tensor, ...]:
    """The tensors as `one_mma` takes them.

    Args:
        a: (128, 16) bfloat16, contiguous.
        b: (128, 16) bfloat16, contiguous.
        d: (128, 128) float32, contiguous; will hold A B^T.

    Raises:
        ValueError: another dtype, shape or order.
    """
    check_tensor("a", a, torch.bfloat16, M, K)
    check_tensor("b", b, torch.bfloat16, N, K)
    check_tensor("d", d, torch.float32, M, N)
    return gmem(a), gmem(b), gmem(d)


@cute.jit
def one_mma(mA: cute.Tensor, mB: cute.Tensor, mD: cute.Tensor) -> None:
    """Choose the instruction, the layouts of shared memory that it reads and the TMA copies that fill them; launch."""
    op = tcgen05.MmaF16BF16Op(
        cutlass.BFloat16,
        cutlass.Float32,
        (M, N, K),
        tcgen05.CtaGroup.ONE,
        tcgen05.OperandSource.SMEM,
        OperandMajorMode.K,
        OperandMajorMode.K,
    )
    tiled_mma = cute.make_tiled_mma(op)
    # A row of 16 BF16 is 32 bytes, so rows are swizzled in groups of 32 bytes: Swizzle<1,4,3>.
    a_layout = blackwell.make_smem_layout_a(tiled_mma, (M, N, K), cutlass.BFloat16, 1)
    b_layout = blackwell.make_smem_layout_b(tiled_mma, (M, N, K), cutlass.BFloat16, 1)
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, mA_tma = cute.nvgpu.make_tiled_tma_atom_A(load, mA, a_layout, (M, N, K), tiled_mma)
    tma_b, mB_tma = cute.nvgpu.make_tiled_tma_atom_B(load, mB, b_layout, (M, N, K), tiled_mma)
    one_mma_kernel(tiled_mma, tma_a, mA_tma, tma_b, mB_tma, mD, a_layout, b_layout).launch(
        grid=(1, 1, 1), block=(THREADS, 1, 1)
    )


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    loaded: cutlass.Int64
    done: cutlass.Int64
    tmem: cutlass.Int32  # tcgen05.alloc writes the address of the columns here


@cute.kernel
def one_mma_kernel(
    tiled_mma: cute.TiledMma,
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,
    mD: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
) -> None:
    """One CTA: load both operands, multiply, write the product."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    sA = smem.allocate_tensor(cutlass.BFloat16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(cutlass.BFloat16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)

    # 1. Tensor memory and barriers, seen by all threads after the CTA barrier.
    if warp == 0:
        cute.arch.alloc_tmem(TMEM.allocation, storage.tmem.ptr)
        cute.arch.relinquish_tmem_alloc_permit()  # this CTA will not ask again
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(storage.loaded.ptr, BARRIERS["loaded"].count)
            cute.arch.mbarrier_init(storage.done.ptr, BARRIERS["done"].count)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, storage.tmem.ptr)

    # 2. Tiles: g in global memory, s in shared memory, r descriptors of what the instruction reads, t in tensor memory.
    gA = cute.local_tile(mA, (M, K), (None, None))  # (M, K, tiles of rows, tiles of K)
    gB = cute.local_tile(mB, (N, K), (None, None))
    tAsA, tAgA = tma_tiles(tma_a, sA, tiled_mma.get_slice(0).partition_A(gA))
    tBsB, tBgB = tma_tiles(tma_b, sB, tiled_mma.get_slice(0).partition_B(gB))
    tCrA = tiled_mma.make_fragment_A(sA)
    tCrB = tiled_mma.make_fragment_B(sB)
    tCtD = accumulator(tiled_mma, tmem + TMEM["D"].start)

    # 3. Load, multiply, say so.
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(storage.loaded.ptr, LOAD_BYTES)
        cute.copy(tma_a, tAgA[None, 0, 0], tAsA[None, 0], tma_bar_ptr=storage.loaded.ptr)
        cute.copy(tma_b, tBgB[None, 0, 0], tBsB[None, 0], tma_bar_ptr=storage.loaded.ptr)
        cute.arch.mbarrier_wait(storage.loaded.ptr, 0)
        tiled_mma.set(tcgen05.Field.ACCUMULATE, False)  # D = A B^T; True would add the old D
        cute.gemm(tiled_mma, tCtD, tCrA[None, None, 0, 0], tCrB[None, None, 0, 0], tCtD)
        with cute.arch.elect_one():
            tcgen05.commit(storage.done.ptr)

    # 4. Everyone: one row of D each, then give the columns back.
    cute.arch.mbarrier_wait(storage.done.ptr, 0)
    store_accumulator(tCtD, cute.local_tile(mD, (M, N), (0, 0)), thread)
    free_tmem(tmem, TMEM.allocation, warp)


one_mma_kernel.set_name_prefix("one_mma", remove_cutlass_symbol=True, keep_mangled_name=False)


def tma_tiles(tma: cute.CopyAtom, sX: cute.Tensor, tCgX: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """Source and destination of the TMA copies of one operand.

    Returns:
        tXsX (TMA, stages) and tXgX (TMA, tiles of rows, tiles of K): one index of the first mode for the copy itself.
    """
    return cpasync.tma_partition(tma, 0, cute.make_layout(1), cute.group_modes(sX, 0, 3), cute.group_modes(tCgX, 0, 3))


def accumulator(tiled_mma: cute.TiledMma, tmem: cute.Pointer) -> cute.Tensor:
    """The 128 x 128 accumulator at `tmem`: lane and column are the high and low half of a tensor memory address."""
    shape = tiled_mma.partition_shape_C((M, N))
    return cute.make_tensor(tmem, tiled_mma.make_fragment_C(shape).layout)


def store_accumulator(tCtD: cute.Tensor, gD: cute.Tensor, thread: cutlass.Int32) -> None:
    """TMEM to registers to global memory: thread t takes lane t, 128 columns by one tcgen05.ld.32x32b.x128."""
    tD = tCtD[(None, None), 0, 0]  # (M, N)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x128), cutlass.Float32)
    tiled_load = tcgen05.make_tmem_copy(load, tD)
    thread_load = tiled_load.get_slice(thread)
    tDgD = thread_load.partition_D(gD)
    tDrD = cute.make_rmem_tensor(tDgD.shape, cutlass.Float32)
    cute.copy(tiled_load, thread_load.partition_S(tD), tDrD)
    cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld: only now are the registers defined
    cute.autovec_copy(tDrD, tDgD)


@cute.jit
def free_tmem(tmem: cute.Pointer, columns: cutlass.Constexpr[int], warp: cutlass.Int32) -> None:
    """Give the columns back, once nobody reads them any more; a CTA must not end before."""
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.dealloc_tmem(tmem, columns)
