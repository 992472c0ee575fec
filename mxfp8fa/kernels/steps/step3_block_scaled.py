"""Step 3. MXFP8: D = A B^T for E4M3 matrices with one power-of-two scale per row and 32 elements of K.

New: the scale factors, and how they come to where tcgen05.mma wants them.

    GMEM --bulk copy--> SMEM --tcgen05.cp--> TMEM --tcgen05.mma--> multiplied in

A tile of K is 128 elements, so each of the tile's 128 rows has four scales: 512 bytes, one 128x4 atom
(`mxfp8fa.layouts.pack_scales`), contiguous in all memories but the last. tcgen05.cp.32x128b.warpx4 ("UTCCP" in SASS)
takes the atom as 32 rows of 16 bytes and writes row l into lane l, four columns of it, and again into the lanes l + 32,
l + 64 and l + 96. The scale of row r and block b of the tile is then byte b of column r // 32, in the lanes r % 32 + 32 i
(PTX ISA, "tcgen05.mma", scale factor A layout 1X).

tcgen05.mma multiplies 32 elements of K, one block. Which byte of the columns it takes is the scale id, two bits of the
instruction descriptor for each operand. CuTe counts bytes in the top two bits of the scales' address; the compiled code
moves them into the descriptor. So one copy serves four instructions, with the ids 0, 1, 2 and 3.

The columns of a stage are rewritten only when its `full` barrier has completed again, and so after `empty`: the products
that read them are over. Kernels with no columns to spare use one set and count on tcgen05.cp to wait for earlier
products of the same thread, which the PTX ISA does not promise.

Constraints: M, N, K multiples of 128; A and B each K-major or MN-major (8-bit types only); E8M0 scales.

TMEM, 256 columns allocated:

    columns  name  written by   read by      holds
    0-127    D     tcgen05.mma  tcgen05.ld   accumulator: row m in lane m, column n in column n
    128-139  SFA   tcgen05.cp   tcgen05.mma  scales of A, 4 columns a stage
    140-151  SFB   tcgen05.cp   tcgen05.mma  scales of B, 4 columns a stage

Barriers:

    barrier   count  arrives                             waits      means
    full[3]   1      load warp, and 33 KiB of TMA bytes  mma warp   the stage is filled
    empty[3]  1      tcgen05.commit                      load warp  the stage and its scale columns have been read
    done      1      tcgen05.commit                      all warps  D is in TMEM
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.checks import Multiple, check_tensor
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step1_one_mma import accumulator, free_tmem, store_accumulator, tma_tiles
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.layouts import ATOM_BYTES

E4M3, E8M0 = cutlass.Float8E4M3FN, cutlass.Float8E8M0FNU
TILE = TILE_M, TILE_N, TILE_K = 128, 128, 128
BLOCK = 32
ATOM_COLUMNS = 4  # of tensor memory that an atom fills
STAGES = 3
THREADS = 128
LOAD_WARP, MMA_WARP = 0, 1
STAGE_BYTES = (TILE_M + TILE_N) * TILE_K + 2 * ATOM_BYTES

TMEM = TmemMap(
    Columns("D", 0, TILE_N, "tcgen05.mma", "tcgen05.ld", "accumulator: row m in lane m, column n in column n"),
    Columns("SFA", 128, STAGES * ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of A, 4 columns a stage"),
    Columns("SFB", 140, STAGES * ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of B, 4 columns a stage"),
)
BARRIERS = Barriers(
    Barrier("full", 1, "load warp, and 33 KiB of TMA bytes", "mma warp", "the stage is filled", STAGES),
    Barrier("empty", 1, "tcgen05.commit", "load warp", "the stage and its scale columns have been read", STAGES),
    Barrier("done", 1, "tcgen05.commit", "all warps", "D is in TMEM"),
)


def arguments(a: MXOperand, b: MXOperand, d: torch.Tensor) -> tuple[cute.Tensor, ...]:
    """The tensors as `block_scaled` takes them; one compilation serves all sizes, but not all orders of A and B.

    Args:
        a: (M, K) in E4M3 with blocks along K (or square ones); codes contiguous, which makes A K-major, or the transpose
            of a contiguous tensor: MN-major. M and K are multiples of 128.
        b: (N, K), likewise; N is a multiple of 128.
        d: (M, N) float32, contiguous; will hold A B^T.

    Raises:
        ValueError: another format, shape, order, or blocks along another axis.
    """
    tensors = []
    for name, x, k in (("a", a, Multiple(TILE_K)), ("b", b, a.shape[-1])):
        if x.fmt != "e4m3" or 1 not in x.axes:
            raise ValueError(f"{name} is {x.fmt} in blocks along axes {x.axes}; allowed: e4m3, axes (1,) or (0, 1)")
        check_tensor(f"{name}.codes", x.codes, torch.uint8, Multiple(TILE_M), k, column_major=True)
        tensors.append(gmem(x.codes, E4M3, divisible_by=(TILE_M, TILE_K)))
        tensors.append(gmem(x.scales_with_rows("tokens"), E8M0, divisible_by=(1, 1, None)))
    check_tensor("d", d, torch.float32, a.shape[0], b.shape[0])
    return (*tensors, gmem(d, divisible_by=(TILE_M, TILE_N)))


@cute.jit
def block_scaled(mA: cute.Tensor, mSFA: cute.Tensor, mB: cute.Tensor, mSFB: cute.Tensor, mD: cute.Tensor) -> None:
    """Choose instruction, layouts and copies; launch a CTA per tile of D.

    Args:
        mA: (M, K) E4M3.
        mSFA: (M / 128, K / 128, 512) E8M0, the scales of A in atoms.
        mB: (N, K) E4M3.
        mSFB: (N / 128, K / 128, 512) E8M0.
        mD: (M, N) FP32.
    """
    tiled_mma = make_tiled_mma(LayoutEnum.from_tensor(mA).mma_major_mode(), LayoutEnum.from_tensor(mB).mma_major_mode())
    a_layout = blackwell.make_smem_layout_a(tiled_mma, TILE, E4M3, STAGES)
    b_layout = blackwell.make_smem_layout_b(tiled_mma, TILE, E4M3, STAGES)
    sfa_layout = blockscaled_layout.make_smem_layout_sfa(tiled_mma, TILE, BLOCK, STAGES)
    sfb_layout = blockscaled_layout.make_smem_layout_sfb(tiled_mma, TILE, BLOCK, STAGES)
    load_tile = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, mA_tma = cute.nvgpu.make_tiled_tma_atom_A(load_tile, mA, a_layout, TILE, tiled_mma)
    tma_b, mB_tma = cute.nvgpu.make_tiled_tma_atom_B(load_tile, mB, b_layout, TILE, tiled_mma)
    grid = (cute.size(mD, mode=[0]) // TILE_M, cute.size(mD, mode=[1]) // TILE_N, 1)
    block_scaled_kernel(
        tiled_mma, tma_a, mA_tma, mSFA, tma_b, mB_tma, mSFB, mD, a_layout, b_layout, sfa_layout, sfb_layout
    ).launch(grid=grid, block=(THREADS, 1, 1))


def make_tiled_mma(a_major: OperandMajorMode, b_major: OperandMajorMode) -> cute.TiledMma:
    """tcgen05.mma of kind::mxf8f6f4: 128 x 128 x 32, both operands from shared memory."""
    op = tcgen05.MmaMXF8F6F4Op(
        E4M3, E4M3, (TILE_M, TILE_N, BLOCK), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, a_major, b_major
    )
    return cute.make_tiled_mma(op)


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    full: cute.struct.MemRange[cutlass.Int64, STAGES]
    empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    done: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32


@cute.kernel
def block_scaled_kernel(
    tiled_mma: cute.TiledMma,
    tma_a: cute.CopyAtom,
    mA: cute.Tensor,
    mSFA: cute.Tensor,
    tma_b: cute.CopyAtom,
    mB: cute.Tensor,
    mSFB: cute.Tensor,
    mD: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    sfa_layout: cute.Layout,
    sfb_layout: cute.Layout,
) -> None:
    """One CTA: one tile of D."""
    thread, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    sA = smem.allocate_tensor(E4M3, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(E4M3, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(E8M0, sfa_layout, byte_alignment=128)
    sSFB = smem.allocate_tensor(E8M0, sfb_layout, byte_alignment=128)
    full, empty, done = storage.full.data_ptr(), storage.empty.data_ptr(), storage.done.data_ptr()
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    tCtD = accumulator(tiled_mma, tmem + TMEM["D"].start)

    gA = cute.local_tile(mA, (TILE_M, TILE_K), (tile_m, None))  # (M, K, tiles of K)
    gB = cute.local_tile(mB, (TILE_N, TILE_K), (tile_n, None))
    k_tiles = cute.size(gA, mode=[2])
    if warp == LOAD_WARP:
        load_a = tma_a, *tma_tiles(tma_a, sA, tiled_mma.get_slice(0).partition_A(gA))
        load_b = tma_b, *tma_tiles(tma_b, sB, tiled_mma.get_slice(0).partition_B(gB))
        load_sfa = mSFA[tile_m, None, None], sSFA
        load_sfb = mSFB[tile_n, None, None], sSFB
        load((load_a, load_b), (load_sfa, load_sfb), full, empty, k_tiles)
    elif warp == MMA_WARP:
        operand_a = (
            tiled_mma.make_fragment_A(sA),
            sSFA,
            scale_columns_a(tiled_mma, tmem + TMEM["SFA"].start, sfa_layout),
        )
        operand_b = (
            tiled_mma.make_fragment_B(sB),
            sSFB,
            scale_columns_b(tiled_mma, tmem + TMEM["SFB"].start, sfb_layout),
        )
        issue_mma(tiled_mma, tCtD, operand_a, operand_b, full, empty, k_tiles)
        with cute.arch.elect_one():
            tcgen05.commit(done)

    cute.arch.mbarrier_wait(done, 0)
    store_accumulator(tCtD, cute.local_tile(mD, (TILE_M, TILE_N), (tile_m, tile_n)), thread)
    free_tmem(tmem, TMEM.allocation, warp)


block_scaled_kernel.set_name_prefix("block_scaled", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def load(codes: tuple, scales: tuple, full: cute.Pointer, empty: cute.Pointer, k_tiles: cutlass.Int32) -> None:
    """The load warp, as in step 2; a scale atom is 512 contiguous bytes and needs no tensor map.

    Args:
        codes: for A and B, the TMA copy, its destination and its source (see `tma_tiles`).
        scales: for A and B, the atoms (tiles of K, 512) in global memory and the stages in shared memory.
        full: first of the barriers of the filled stages.
        empty: first of the barriers of the read stages.
        k_tiles: number of tiles along K.
    """
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), E8M0, num_bits_per_copy=8 * ATOM_BYTES)
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = k % STAGES, k // STAGES
        cute.arch.mbarrier_wait(empty + stage, (turn + 1) % 2)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, STAGE_BYTES)
        for tma, tXsX, tXgX in codes:
            cute.copy(tma, tXgX[None, k], tXsX[None, stage], tma_bar_ptr=full + stage)
        with cute.arch.elect_one():  # unlike the TMA copy, the bulk copy elects nobody itself
            for gSF, sSF in scales:
                sAtoms = cute.make_tensor(sSF.iterator, cute.make_layout((ATOM_BYTES, STAGES)))
                cute.copy(bulk, gSF[k, None], sAtoms[None, stage], mbar_ptr=full + stage)


@cute.jit
def issue_mma(
    tiled_mma: cute.TiledMma,
    tCtD: cute.Tensor,
    operand_a: tuple,
    operand_b: tuple,
    full: cute.Pointer,
    empty: cute.Pointer,
    k_tiles: cutlass.Int32,
) -> None:
    """The mma warp: per stage, two copies of scales and four products.

    Args:
        tiled_mma: the instruction.
        tCtD: accumulator.
        operand_a: descriptors of its codes, its scales in shared memory, their columns (see `scale_columns`).
        operand_b: likewise.
        full: first of the barriers of the filled stages.
        empty: first of the barriers of the read stages.
        k_tiles: number of tiles along K.
    """
    (tCrA, sSFA, tCtSFA), (tCrB, sSFB, tCtSFB) = operand_a, operand_b
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = k % STAGES, k // STAGES
        cute.arch.mbarrier_wait(full + stage, turn % 2)
        copy_scales(sSFA, tCtSFA, stage)
        copy_scales(sSFB, tCtSFB, stage)  # tcgen05.mma follows tcgen05.cp of the same thread in order
        for block in cutlass.range_constexpr(TILE_K // BLOCK):  # `block` is the scale id of both operands
            tiled_mma.set(tcgen05.Field.ACCUMULATE, k > 0 or block > 0)
            a = [tCrA[None, None, block, stage], tCtSFA[None, None, block, stage]]
            b = [tCrB[None, None, block, stage], tCtSFB[None, None, block, stage]]
            cute.gemm(tiled_mma, tCtD, a, b, tCtD)
        with cute.arch.elect_one():
            tcgen05.commit(empty + stage)


def scale_columns_a(tiled_mma: cute.TiledMma, tmem: cute.Pointer, sfa_layout: cute.Layout) -> cute.Tensor:
    """The columns of A's scales, (scales of an instruction, 1, blocks of the tile, stages)."""
    one = blockscaled_layout.make_tmem_layout_sfa(
        tiled_mma, TILE, BLOCK, cute.slice_(sfa_layout, (None, None, None, 0))
    )
    return staged(tmem, one)


def scale_columns_b(tiled_mma: cute.TiledMma, tmem: cute.Pointer, sfb_layout: cute.Layout) -> cute.Tensor:
    """The columns of B's scales, likewise."""
    one = blockscaled_layout.make_tmem_layout_sfb(
        tiled_mma, TILE, BLOCK, cute.slice_(sfb_layout, (None, None, None, 0))
    )
    return staged(tmem, one)


def staged(tmem: cute.Pointer, one_stage: cute.Layout) -> cute.Tensor:
    """Scales at `tmem`, with stages four columns apart; CuTe counts bytes here, four to a column."""
    layout = cute.append(one_stage, cute.make_layout(STAGES, stride=4 * ATOM_COLUMNS))
    return cute.make_tensor(cute.recast_ptr(tmem, dtype=E8M0), layout)


def copy_scales(sSF: cute.Tensor, tCtSF: cute.Tensor, stage: cutlass.Int32) -> None:
    """SMEM to TMEM: the atom of a stage, by one tcgen05.cp.32x128b.warpx4."""
    copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), E8M0)
    sSF_stages = cute.filter_zeros(tcgen05.append_s2t_broadcast_mode(copy.op, sSF))
    tCtSF_stages = cute.filter_zeros(tCtSF)
    tiled_copy = tcgen05.make_s2t_copy(copy, tCtSF_stages[None, None, None, 0])
    thread_copy = tiled_copy.get_slice(0)
    source = tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thread_copy.partition_S(sSF_stages))
    target = thread_copy.partition_D(tCtSF_stages)
    cute.copy(tiled_copy, source[None, None, None, None, stage], target[None, None, None, None, stage])
