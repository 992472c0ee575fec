"""Step 4. Quantize between two products: D = Q(S) C^T with S = A B^T, and Q(S) in MXFP8, made where S lies.

New: registers. The accumulator of one product becomes operand A of the next without leaving the SM, as P does in
attention. Thread t takes lane t of tensor memory, row t of S, and so has every 1x32 block of its row to itself:

    TMEM --tcgen05.ld--> row --max of |x|--> scale --multiply, cvt--> codes --tcgen05.st--> TMEM, operand A

    amax     max.NaN.abs.f32 with three inputs (from sm_100 on): 16 of them for 32 elements
    scale    exponent bits of amax, rounded up, minus 8: no logarithm, no division (rule "rceil", `scale_rules`)
    codes    times 2^(127 - scale), exact; cvt.rn.satfinite.e4m3x2 rounds once

Codes: operand A in tensor memory has row m in lane m and four elements of K to a column, so a row of 128 is 32 columns.
They overwrite S, whose row the thread holds in registers.

Scales: a row's four are one word. tcgen05.mma wants the word of row r in column r // 32 of the lanes r % 32 + 32 i, for
all four i (step 3), but a warp reaches only its own 32 lanes: every warp has to write all 128 words, and knows 32. They
meet in shared memory. With a constant scale all words are equal and nobody has to ask anybody.

Constraints: all matrices 128 x 128, K-major, scales E8M0; one CTA.

TMEM, 512 columns allocated:

    columns  name  written by   read by      holds
    0-127    S     tcgen05.mma  tcgen05.ld   first product: row m in lane m, column n in column n
    0-31     Q     tcgen05.st   tcgen05.mma  its codes, four to a column (over S)
    128-255  D     tcgen05.mma  tcgen05.ld   second product
    256-259  SFA   tcgen05.cp   tcgen05.mma  scales of A
    260-263  SFB   tcgen05.cp   tcgen05.mma  scales of B
    264-267  SFQ   tcgen05.st   tcgen05.mma  scales of Q, the word of row r in column r // 32
    268-271  SFC   tcgen05.cp   tcgen05.mma  scales of C

Barriers:

    barrier  count  arrives                            waits      means
    loaded   1      warp 0, and 49.5 KiB of TMA bytes  warp 0     A, B, C and their scales are in shared memory
    s_full   1      tcgen05.commit                     all warps  S is in TMEM
    q_full   128    all threads                        warp 0     Q and its scales are in TMEM
    d_full   1      tcgen05.commit                     all warps  D is in TMEM
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import torch
from cutlass import cute, memory
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cutlass_dsl import T, dsl_user_op
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.checks import check_tensor
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step1_one_mma import accumulator, free_tmem, store_accumulator, tma_tiles
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import (
    BLOCK,
    E4M3,
    E8M0,
    TILE,
    copy_scales,
    make_tiled_mma,
    scale_columns_a,
    scale_columns_b,
)
from mxfp8fa.layouts import ATOM_BYTES

SIZE = 128
THREADS = 128
BLOCKS = SIZE // BLOCK
ATOM_COLUMNS = 4
LANE = 1 << 16  # the step from one lane to the next in a tensor memory address
LOAD_BYTES = 3 * (SIZE * SIZE + ATOM_BYTES)
E4M3_MAX_EXPONENT = 8  # 448 = 1.75 * 2^8
SCALE_NAN = 255

TMEM = TmemMap(
    Columns("S", 0, SIZE, "tcgen05.mma", "tcgen05.ld", "first product: row m in lane m, column n in column n"),
    Columns("Q", 0, SIZE // 4, "tcgen05.st", "tcgen05.mma", "its codes, four to a column", over="S"),
    Columns("D", 128, SIZE, "tcgen05.mma", "tcgen05.ld", "second product"),
    Columns("SFA", 256, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of A"),
    Columns("SFB", 260, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of B"),
    Columns("SFQ", 264, ATOM_COLUMNS, "tcgen05.st", "tcgen05.mma", "scales of Q, the word of row r in column r // 32"),
    Columns("SFC", 268, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of C"),
)
BARRIERS = Barriers(
    Barrier(
        "loaded", 1, "warp 0, and 49.5 KiB of TMA bytes", "warp 0", "A, B, C and their scales are in shared memory"
    ),
    Barrier("s_full", 1, "tcgen05.commit", "all warps", "S is in TMEM"),
    Barrier("q_full", THREADS, "all threads", "warp 0", "Q and its scales are in TMEM"),
    Barrier("d_full", 1, "tcgen05.commit", "all warps", "D is in TMEM"),
)


def arguments(a: MXOperand, b: MXOperand, c: MXOperand, d: torch.Tensor) -> tuple[cute.Tensor, ...]:
    """The tensors as `requantized_product` takes them.

    Args:
        a: (128, 128) in E4M3 with blocks along axis 1 (or square ones), codes contiguous.
        b: likewise.
        c: likewise.
        d: (128, 128) float32, contiguous; will hold Q(A B^T) C^T.

    Raises:
        ValueError: another format, shape, order, or blocks along another axis.
    """
    tensors = []
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x.fmt != "e4m3" or 1 not in x.axes:
            raise ValueError(f"{name} is {x.fmt} in blocks along axes {x.axes}; allowed: e4m3, axes (1,) or (0, 1)")
        check_tensor(f"{name}.codes", x.codes, torch.uint8, SIZE, SIZE)
        tensors += [gmem(x.codes, E4M3), gmem(x.scales_with_rows("tokens"), E8M0)]
    check_tensor("d", d, torch.float32, SIZE, SIZE)
    return (*tensors, gmem(d))


@cute.jit
def requantized_product(
    mA: cute.Tensor,
    mSFA: cute.Tensor,
    mB: cute.Tensor,
    mSFB: cute.Tensor,
    mC: cute.Tensor,
    mSFC: cute.Tensor,
    mD: cute.Tensor,
    constant_scale: cutlass.Constexpr[int | None] = None,
) -> None:
    """Choose instructions, layouts and copies; launch.

    Args:
        mA: (128, 128) E4M3; mB and mC likewise.
        mSFA: (1, 1, 512) E8M0, its scales in an atom; mSFB and mSFC likewise.
        mB: see mA.
        mSFB: see mSFA.
        mC: see mA.
        mSFC: see mSFA.
        mD: (128, 128) FP32.
        constant_scale: E8M0 code, 0 to 253, of every block of Q(S); None takes each block's from its values.

    Raises:
        ValueError: a constant_scale whose reciprocal is not a normal float32 number.
    """
    if cutlass.const_expr(constant_scale is not None and not 0 <= constant_scale <= 253):
        raise ValueError(f"constant_scale = {constant_scale}; allowed: None or 0 to 253")
    first = make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K)
    second = make_tiled_mma_from_tmem(SIZE, OperandMajorMode.K)
    layout = blackwell.make_smem_layout_b(first, TILE, E4M3, 1)  # the same for A, B and C
    sf_layout = blockscaled_layout.make_smem_layout_sfa(first, TILE, BLOCK, 1)
    load_tile = cpasync.CopyBulkTensorTileG2SOp()
    copies = [cute.nvgpu.make_tiled_tma_atom_B(load_tile, mX, layout, TILE, first) for mX in (mA, mB, mC)]
    (tma_a, mA_tma), (tma_b, mB_tma), (tma_c, mC_tma) = copies
    requantized_product_kernel(
        first, second, (tma_a, tma_b, tma_c), (mA_tma, mB_tma, mC_tma), (mSFA, mSFB, mSFC), mD, layout, sf_layout,
        constant_scale,
    ).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))  # fmt: skip


def make_tiled_mma_from_tmem(n: int, b_major: OperandMajorMode) -> cute.TiledMma:
    """tcgen05.mma of kind::mxf8f6f4: 128 x n x 32, A from tensor memory, where it is K-major."""
    op = tcgen05.MmaMXF8F6F4Op(
        E4M3, E4M3, (128, n, BLOCK), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.TMEM, OperandMajorMode.K, b_major
    )
    return cute.make_tiled_mma(op)


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    loaded: cute.struct.MemRange[cutlass.Int64, 1]
    s_full: cute.struct.MemRange[cutlass.Int64, 1]
    q_full: cute.struct.MemRange[cutlass.Int64, 1]
    d_full: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32
    scales: cute.struct.MemRange[cutlass.Int32, SIZE]  # of Q: the word of row r at index r


@cute.kernel
def requantized_product_kernel(
    first: cute.TiledMma,
    second: cute.TiledMma,
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mD: cute.Tensor,
    layout: cute.ComposedLayout,
    sf_layout: cute.Layout,
    constant_scale: cutlass.Constexpr[int | None],
) -> None:
    """One CTA: multiply, quantize, multiply, write."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    sX = [smem.allocate_tensor(E4M3, layout.outer, byte_alignment=1024, swizzle=layout.inner) for _ in range(3)]
    sSF = [smem.allocate_tensor(E8M0, sf_layout, byte_alignment=128) for _ in range(3)]
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    loaded, s_full = storage.loaded.data_ptr(), storage.s_full.data_ptr()
    q_full, d_full = storage.q_full.data_ptr(), storage.d_full.data_ptr()
    tCtS = accumulator(first, tmem + TMEM["S"].start)
    tCtD = accumulator(second, tmem + TMEM["D"].start)

    if warp == 0:
        load(tma, matrices, atoms, sX, sSF, first, loaded)
        cute.arch.mbarrier_wait(loaded, 0)
        operand_a = first.make_fragment_A(sX[0]), scale_columns_a(first, tmem + TMEM["SFA"].start, sf_layout)
        operand_b = first.make_fragment_B(sX[1]), scale_columns_b(first, tmem + TMEM["SFB"].start, sf_layout)
        copy_scales(sSF[0], operand_a[1], 0)
        copy_scales(sSF[1], operand_b[1], 0)
        issue_mma(first, tCtS, operand_a, operand_b, False)
        with cute.arch.elect_one():
            tcgen05.commit(s_full)

    cute.arch.mbarrier_wait(s_full, 0)
    row = load_row(tmem + TMEM["S"].start, SIZE, thread)
    scales = store_codes(row, tmem + TMEM["Q"].start, constant_scale, thread)
    store_scales(scales, tmem + TMEM["SFQ"].start, storage.scales.data_ptr(), constant_scale, thread)
    cute.arch.fence_view_async_tmem_store()  # tcgen05.wait::st: codes and scales are there
    cute.arch.mbarrier_arrive(q_full)

    if warp == 0:
        cute.arch.mbarrier_wait(q_full, 0)
        operand_q = (
            codes_operand(second, tmem + TMEM["Q"].start),
            scale_columns_a(first, tmem + TMEM["SFQ"].start, sf_layout),
        )
        operand_c = second.make_fragment_B(sX[2]), scale_columns_b(first, tmem + TMEM["SFC"].start, sf_layout)
        copy_scales(sSF[2], operand_c[1], 0)
        issue_mma(second, tCtD, operand_q, operand_c, False)
        with cute.arch.elect_one():
            tcgen05.commit(d_full)

    cute.arch.mbarrier_wait(d_full, 0)
    store_accumulator(tCtD, mD, thread)
    free_tmem(tmem, TMEM.allocation, warp)


requantized_product_kernel.set_name_prefix("requantized_product", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def load(
    tma: tuple, matrices: tuple, atoms: tuple, sX: list, sSF: list, tiled_mma: cute.TiledMma, loaded: cute.Pointer
) -> None:
    """Everything at once, on one barrier."""
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), E8M0, num_bits_per_copy=8 * ATOM_BYTES)
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(loaded, LOAD_BYTES)
    for i in cutlass.range_constexpr(3):
        gX = cute.local_tile(matrices[i], (SIZE, SIZE), (0, None))
        tXsX, tXgX = tma_tiles(tma[i], sX[i], tiled_mma.get_slice(0).partition_B(gX))
        cute.copy(tma[i], tXgX[None, 0], tXsX[None, 0], tma_bar_ptr=loaded)
    with cute.arch.elect_one():
        for i in cutlass.range_constexpr(3):
            sAtom = cute.make_tensor(sSF[i].iterator, cute.make_layout(ATOM_BYTES))
            cute.copy(bulk, atoms[i][0, 0, None], sAtom, mbar_ptr=loaded)


@cute.jit
def issue_mma(
    tiled_mma: cute.TiledMma,
    tCtD: cute.Tensor,
    operand_a: tuple,
    operand_b: tuple,
    accumulate: cutlass.Boolean,
    stage: cutlass.Int32 = 0,
) -> None:
    """D = A B^T over one tile, or D + A B^T if `accumulate`.

    Args:
        tiled_mma: the instruction.
        tCtD: accumulator.
        operand_a: its codes and its scales in tensor memory, stage 0 of both.
        operand_b: likewise, in the given stage.
        accumulate: whether to add to D.
        stage: of B.
    """
    (tCrA, tCtSFA), (tCrB, tCtSFB) = operand_a, operand_b
    for block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
        tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate or block > 0)
        a = [tCrA[None, None, block, 0], tCtSFA[None, None, block, 0]]
        b = [tCrB[None, None, block, stage], tCtSFB[None, None, block, stage]]
        cute.gemm(tiled_mma, tCtD, a, b, tCtD)


def codes_operand(tiled_mma: cute.TiledMma, tmem: cute.Pointer) -> cute.Tensor:
    """The codes at `tmem` as operand A: (codes of an instruction, 1, blocks, 1), a byte each."""
    fragment = tiled_mma.make_fragment_A(tiled_mma.partition_shape_A((SIZE, SIZE)))
    return cute.make_tensor(cute.recast_ptr(tmem, dtype=E4M3), cute.append(fragment.layout, cute.make_layout(1)))


def lanes(tmem: cute.Pointer, columns: int) -> cute.Tensor:
    """The words (lane, column) from the pointer on, for copies by all four warps."""
    return cute.make_tensor(tmem, cute.make_layout((128, columns), stride=(LANE, 1)))


def load_row(tmem: cute.Pointer, columns: int, thread: cutlass.Int32) -> cute.Tensor:
    """`columns` words of the thread's lane, in registers."""
    tile = lanes(tmem, columns)
    op = tcgen05.Ld32x32bOp(tcgen05.Repetition(columns))
    tiled_load = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tile)
    thread_load = tiled_load.get_slice(thread)
    row = cute.make_rmem_tensor(thread_load.partition_D(tile).shape, cutlass.Float32)
    cute.copy(tiled_load, thread_load.partition_S(tile), row)
    cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld: only now are the registers defined
    return cute.make_tensor(row.iterator, cute.make_layout(columns))


def store_row(row: cute.Tensor, tmem: cute.Pointer, thread: cutlass.Int32) -> None:
    """The inverse: words from registers into the thread's lane."""
    columns = cute.size(row)
    tile = lanes(tmem, columns)
    op = tcgen05.St32x32bOp(tcgen05.Repetition(columns))
    tiled_store = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tile)
    thread_store = tiled_store.get_slice(thread)
    target = thread_store.partition_D(tile)
    source = cute.make_tensor(row.iterator, cute.make_layout(thread_store.partition_S(tile).shape))
    cute.copy(tiled_store, source, target)


@cute.jit
def store_codes(
    row: cute.Tensor, tmem: cute.Pointer, constant_scale: cutlass.Constexpr[int | None], thread: cutlass.Int32
) -> cutlass.Int32:
    """Quantize the row of 128, block by block, and write its codes; returns the word of its four scales."""
    codes = cute.make_rmem_tensor(SIZE, E4M3)
    scales = cutlass.Int32(0)
    for block in cutlass.range_constexpr(BLOCKS):
        part, coded = cute.local_tile(row, (BLOCK,), (block,)), cute.local_tile(codes, (BLOCK,), (block,))
        scale = cutlass.Int32(constant_scale) if constant_scale is not None else block_scale(part)
        coded.store((part.load() * reciprocal(scale)).to(E4M3))
        scales = scales | (scale << (8 * block))
    store_row(cute.recast_tensor(codes, cutlass.Float32), tmem, thread)
    return scales


@cute.jit
def block_scale(x: cute.Tensor) -> cutlass.Int32:
    """The E8M0 code of 32 values: the smallest scale under which none saturates (rule "rceil").

    E - 8, and one more where the mantissa of amax exceeds that of 448: adding just less than a quarter carries into
    the exponent field exactly then.
    """
    amax = cutlass.Float32(0)
    for i in cutlass.range_constexpr(0, BLOCK, 2):
        amax = max3(amax, x[i], x[i + 1], abs=True)
    bits = amax.bitcast(cutlass.Int32)
    scale = ((bits + 0x1FFFFF) >> 23) - E4M3_MAX_EXPONENT
    scale = cutlass.max(scale, 0)
    return scale if bits < 0x7F800000 else cutlass.Int32(SCALE_NAN)


@dsl_user_op
def max3(
    a: cutlass.Float32,
    b: cutlass.Float32,
    c: cutlass.Float32,
    *,
    abs: bool = False,
    loc: object = None,
    ip: object = None,
) -> cutlass.Float32:
    """The largest of three numbers or magnitudes; NaN if one of them is (PTX ISA, max). The DSL has no call for it."""
    operands = [cutlass.Float32(x).ir_value(loc=loc, ip=ip) for x in (a, b, c)]
    instruction = f"max.NaN{'.abs' if abs else ''}.f32 $0, $1, $2, $3;"
    return cutlass.Float32(llvm.inline_asm(T.f32(), operands, instruction, "=f,f,f,f", loc=loc, ip=ip))


@cute.jit
def reciprocal(scale: cutlass.Int32) -> cutlass.Float32:
    """2^(127 - scale) by its exponent field; NaN for the NaN scale, so that all codes of such a block are NaN."""
    bits = (254 - scale) << 23
    bits = bits if scale != SCALE_NAN else cutlass.Int32(0x7FFFFFFF)
    return bits.bitcast(cutlass.Float32)


@cute.jit
def store_scales(
    scales: cutlass.Int32,
    tmem: cute.Pointer,
    words: cute.Pointer,
    constant_scale: cutlass.Constexpr[int | None],
    thread: cutlass.Int32,
) -> None:
    """Write the scales of all 128 rows into the thread's lane: column c takes the word of row 32 c + lane % 32.

    Args:
        scales: the word of the thread's own row.
        tmem: first of the four columns.
        words: 128 words of shared memory to exchange them through.
        constant_scale: not None if all words are equal.
        thread: its number, and that of its row.
    """
    column = cute.make_rmem_tensor(ATOM_COLUMNS, cutlass.Int32)
    if cutlass.const_expr(constant_scale is None):
        sWords = cute.make_tensor(words, cute.make_layout((32, ATOM_COLUMNS)))
        sWords[thread] = scales
        cute.arch.sync_threads()
        for c in cutlass.range_constexpr(ATOM_COLUMNS):
            column[c] = sWords[thread % 32, c]
    else:
        column.fill(scales)
    store_row(cute.recast_tensor(column, cutlass.Float32), tmem, thread)
