"""Step 7. Warp specialisation: step 6 with a load warp, an mma warp and four softmax warps. The same bits, overlapped.

New: nobody does two things. The tensor core multiplies for tile j + 1 while the softmax warps work on tile j, and the
tiles after those are on their way; two S take turns in tensor memory, two K and two V in shared memory.

    load warp      K0   V0    K1      V1    K2 ...
    mma warp            QK0   QK1           PV0   QK2           PV1 ...
    softmax warps             softmax 0           softmax 1     ...

What keeps them together is six events. An event happens once per tile of keys, and `Event` counts: `s_full.wait(j)`
waits until it has happened for tile j. Behind it are mbarriers in turn, one per stage, and their parities (step 2).

One event often answers several questions, so there are no others:

    s_full(j)   S can be read (softmax warps). K has been read: its stage is free for tile j + 2 (load warp).
    p_full(j)   P and a rescaled O are there (mma warp). S has been read: it lies under P.
    o_full(j)   O can be rescaled or, at the end, stored (softmax warps). V has been read (load warp). P has been read:
                QK of tile j + 2 may overwrite it, and copies of scales may overwrite those of tile j (mma warp).

No event is missed: a barrier completes its next phase only after all who wait for this one have gone on. s_full(j + 2),
for example, needs K of tile j + 2, and so the load warp, and p_full(j), and so the softmax warps.

Constraints: those of step 6.

TMEM, 512 columns allocated:

    columns  name  written by   read by      holds
    0-255    S     tcgen05.mma  tcgen05.ld   scores of two tiles of keys, 128 columns each
    0-31     P0    tcgen05.st   tcgen05.mma  codes of P, even tiles (over S)
    128-159  P1    tcgen05.st   tcgen05.mma  codes of P, odd tiles (over S)
    256-383  O     tcgen05.mma  tcgen05.ld   output, the first D of the columns
    384-387  SFQ   tcgen05.cp   tcgen05.mma  scales of Q
    388-391  SFP   tcgen05.st   tcgen05.mma  scales of P, all bytes 119
    392-399  SFK   tcgen05.cp   tcgen05.mma  scales of K, 4 columns a stage
    400-407  SFV   tcgen05.cp   tcgen05.mma  scales of V, 4 columns a stage

Barriers:

    barrier    count  arrives                       waits                   means
    q_full     1      load warp, and the TMA bytes  mma warp                Q and its scales are in shared memory
    k_full[2]  1      load warp, and the TMA bytes  mma warp                a tile of K and its scales, likewise
    v_full[2]  1      load warp, and the TMA bytes  mma warp                a tile of V and its scales, likewise
    s_full[2]  1      tcgen05.commit                softmax and load warps  S is in TMEM; K has been read
    p_full     128    softmax warps                 mma warp                P is in TMEM, and O is rescaled
    o_full[2]  1      tcgen05.commit                all                     O is in TMEM; P and V have been read
"""

from types import SimpleNamespace

import cutlass
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import tcgen05

from mxfp8fa.kernels.checks import Multiple
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.plan import Barrier, Barriers, Columns, TmemMap
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import copy_scales, scale_columns_a, scale_columns_b
from mxfp8fa.kernels.steps.step4_quantizer import ATOM_COLUMNS, codes_operand, issue_mma, load_row, store_scales
from mxfp8fa.kernels.steps.step5_attention_tile import (
    P_SCALE,
    P_SCALES,
    TILE_M,
    TILE_N,
    allocate_tiles,
    attention_arguments,
    copies,
    finish,
    lane_sum,
    largest,
    load_tile,
    make_products,
    probabilities,
    store_output,
    store_probabilities,
)
from mxfp8fa.kernels.steps.step6_kv_loop import expect, mask, rescale_output, update_max
from mxfp8fa.layouts import ATOM_BYTES

STAGES = 2  # of S, K and V
SOFTMAX_THREADS = 128  # warps 0 to 3: a warp reaches the lanes of tensor memory that its number modulo 4 names
LOAD_WARP, MMA_WARP = 4, 5
THREADS = SOFTMAX_THREADS + 64

TMEM = TmemMap(
    Columns("S", 0, STAGES * TILE_N, "tcgen05.mma", "tcgen05.ld", "scores of two tiles of keys, 128 columns each"),
    Columns("P0", 0, TILE_N // 4, "tcgen05.st", "tcgen05.mma", "codes of P, even tiles", over="S"),
    Columns("P1", TILE_N, TILE_N // 4, "tcgen05.st", "tcgen05.mma", "codes of P, odd tiles", over="S"),
    Columns("O", 256, 128, "tcgen05.mma", "tcgen05.ld", "output, the first D of the columns"),
    Columns("SFQ", 384, ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of Q"),
    Columns("SFP", 388, ATOM_COLUMNS, "tcgen05.st", "tcgen05.mma", "scales of P, all bytes 119"),
    Columns("SFK", 392, STAGES * ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of K, 4 columns a stage"),
    Columns("SFV", 400, STAGES * ATOM_COLUMNS, "tcgen05.cp", "tcgen05.mma", "scales of V, 4 columns a stage"),
)
BARRIERS = Barriers(
    Barrier("q_full", 1, "load warp, and the TMA bytes", "mma warp", "Q and its scales are in shared memory"),
    Barrier("k_full", 1, "load warp, and the TMA bytes", "mma warp", "a tile of K and its scales, likewise", STAGES),
    Barrier("v_full", 1, "load warp, and the TMA bytes", "mma warp", "a tile of V and its scales, likewise", STAGES),
    Barrier("s_full", 1, "tcgen05.commit", "softmax and load warps", "S is in TMEM; K has been read", STAGES),
    Barrier("p_full", SOFTMAX_THREADS, "softmax warps", "mma warp", "P is in TMEM, and O is rescaled"),
    Barrier("o_full", 1, "tcgen05.commit", "all", "O is in TMEM; P and V have been read", STAGES),
)


class Event:
    """Something that happens once per tile of keys, tile after tile.

    For tile i it completes phase i // stages of mbarrier i % stages. With several stages it may happen again before all
    have waited for the last time; they then wait on another barrier.
    """

    def __init__(self, first: cute.Pointer, stages: int):
        self.first, self.stages = first, stages

    def __extract_mlir_values__(self) -> list:
        """For the compiler: nothing in it changes from one trip of a loop to the next."""
        return []

    def __new_from_mlir_values__(self, values: list) -> "Event":
        return self

    def at(self, i: cutlass.Int32) -> cute.Pointer:
        """The barrier of tile i."""
        return self.first + i % self.stages

    def wait(self, i: cutlass.Int32) -> None:
        """Until it has happened for tile i."""
        cute.arch.mbarrier_wait(self.at(i), i // self.stages % 2)

    def wait_one_turn_before(self, i: cutlass.Int32) -> None:
        """Until it has happened for tile i - stages; at once if there is no such tile."""
        cute.arch.mbarrier_wait(self.at(i), (i // self.stages + 1) % 2)

    def arrive(self, i: cutlass.Int32) -> None:
        """The calling thread has done its part for tile i."""
        cute.arch.mbarrier_arrive(self.at(i))

    def commit(self, i: cutlass.Int32) -> None:
        """Happens for tile i when the tensor core has done what it was told so far."""
        with cute.arch.elect_one():
            tcgen05.commit(self.at(i))


def arguments(
    q: MXOperand, k: MXOperand, v: MXOperand, o: torch.Tensor, lse: torch.Tensor, softmax_scale: float
) -> tuple[cute.Tensor | cutlass.Float32, ...]:
    """What `warp_specialised` takes: see step 6."""
    return attention_arguments(q, k, v, o, lse, softmax_scale, tokens=Multiple(1))


@cute.jit
def warp_specialised(
    mQ: cute.Tensor,
    mSFQ: cute.Tensor,
    mK: cute.Tensor,
    mSFK: cute.Tensor,
    mV: cute.Tensor,
    mSFV: cute.Tensor,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    scale_log2: cutlass.Float32,
) -> None:
    """Choose instructions, layouts and copies; launch a CTA per 128 queries. The arguments are those of step 6."""
    products, layouts, tma, matrices = make_products(mQ, mK, mV, STAGES)
    grid = (cute.ceil_div(cute.size(mO, mode=[0]), TILE_M), 1, 1)
    kv_tiles = cute.ceil_div(cute.size(mK, mode=[0]), TILE_N)
    warp_specialised_kernel(
        products, layouts, tma, matrices, (mSFQ, mSFK, mSFV), mO, mLSE, cute.size(mK, mode=[0]), kv_tiles, scale_log2
    ).launch(grid=grid, block=(THREADS, 1, 1))


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    q_full: cute.struct.MemRange[cutlass.Int64, 1]
    k_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    v_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    s_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    p_full: cute.struct.MemRange[cutlass.Int64, 1]
    o_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    tmem: cutlass.Int32


@cute.kernel
def warp_specialised_kernel(
    products: tuple,
    layouts: tuple,
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    seqlen_k: cutlass.Int32,
    kv_tiles: cutlass.Int32,
    scale_log2: cutlass.Float32,
) -> None:
    """One CTA: 128 queries, all keys; every warp goes to its role."""
    q_tile, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    tiles, scales = allocate_tiles(smem, layouts)
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    events = SimpleNamespace(**{b.name: Event(getattr(storage, b.name).data_ptr(), b.stages) for b in BARRIERS})
    if warp == LOAD_WARP:
        load(copies(products, tma, matrices, tiles, cute.size(mO, mode=[1])), atoms, scales, events, q_tile, kv_tiles)
    elif warp == MMA_WARP:
        multiply(products, tiles, scales, layouts[3], tmem, events, cute.size(mO, mode=[1]), kv_tiles)
    else:
        softmax(tmem, events, mO, mLSE, q_tile, seqlen_k, kv_tiles, scale_log2)
    free_tmem(tmem, TMEM.allocation, warp)


warp_specialised_kernel.set_name_prefix("warp_specialised", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def load(
    tile_copies: list,
    atoms: tuple,
    scales: tuple,
    events: SimpleNamespace,
    q_tile: cutlass.Int32,
    kv_tiles: cutlass.Int32,
) -> None:
    """The load warp: Q, then K and V of every tile, as soon as their stage is free."""
    (copy_q, copy_k, copy_v), (mSFQ, mSFK, mSFV), (sSFQ, sSFK, sSFV) = tile_copies, atoms, scales
    tile_bytes = cute.size(copy_q[1], mode=[0]) + ATOM_BYTES  # a code is a byte
    expect(events.q_full.at(0), tile_bytes)
    load_tile(copy_q, mSFQ[q_tile, 0, None], sSFQ, q_tile, 0, events.q_full.at(0))
    for j in cutlass.range(kv_tiles, unroll=1):
        kv_tile, stage = kv_tiles - 1 - j, j % STAGES
        events.s_full.wait_one_turn_before(j)  # QK of tile j - 2 has read K
        expect(events.k_full.at(j), tile_bytes)
        load_tile(copy_k, mSFK[kv_tile, 0, None], sSFK, kv_tile, stage, events.k_full.at(j))
        events.o_full.wait_one_turn_before(j)  # PV of tile j - 2 has read V
        expect(events.v_full.at(j), tile_bytes)
        load_tile(copy_v, mSFV[0, kv_tile, None], sSFV, kv_tile, stage, events.v_full.at(j))


@cute.jit
def multiply(
    products: tuple,
    tiles: tuple,
    scales: tuple,
    sf_layout: cute.Layout,
    tmem: cute.Pointer,
    events: SimpleNamespace,
    head_dim: cutlass.Constexpr[int],
    kv_tiles: cutlass.Int32,
) -> None:
    """The mma warp: QK one tile ahead of PV."""
    (qk, pv), (sQ, sK, sV), (sSFQ, sSFK, sSFV) = products, tiles, scales
    sf_q, sf_p = (scale_columns_a(qk, tmem + TMEM[name].start, sf_layout) for name in ("SFQ", "SFP"))
    sf_k, sf_v = (scale_columns_b(qk, tmem + TMEM[name].start, sf_layout) for name in ("SFK", "SFV"))
    operand_q, operand_k = (qk.make_fragment_A(sQ), sf_q), (qk.make_fragment_B(sK), sf_k)
    operand_v = pv.make_fragment_B(sV), sf_v
    s_layout = qk.make_fragment_C(qk.partition_shape_C((TILE_M, TILE_N))).layout
    tOtO = cute.make_tensor(tmem + TMEM["O"].start, pv.make_fragment_C(pv.partition_shape_C((TILE_M, head_dim))).layout)

    events.q_full.wait(0)
    copy_scales(sSFQ, sf_q, 0)
    for j in cutlass.range(kv_tiles + 1, unroll=1):
        if j < kv_tiles:  # S of tile j, over P of tile j - 2
            if j > 1:  # the tensor core takes products in order anyway; the PTX ISA does not promise it for these two
                events.o_full.wait(j - 2)
            events.k_full.wait(j)
            copy_scales(sSFK, sf_k, j % STAGES)
            tStS = cute.make_tensor(tmem + j % STAGES * TILE_N, s_layout)
            issue_mma(qk, tStS, operand_q, operand_k, False, j % STAGES)
            events.s_full.commit(j)
        if j > 0:  # O of tile j - 1
            i = j - 1
            events.v_full.wait(i)
            copy_scales(sSFV, sf_v, i % STAGES)
            events.p_full.wait(i)
            operand_p = codes_operand(pv, tmem + i % STAGES * TILE_N), sf_p
            issue_mma(pv, tOtO, operand_p, operand_v, i > 0, i % STAGES)
            events.o_full.commit(i)


@cute.jit
def softmax(
    tmem: cute.Pointer,
    events: SimpleNamespace,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    q_tile: cutlass.Int32,
    seqlen_k: cutlass.Int32,
    kv_tiles: cutlass.Int32,
    scale_log2: cutlass.Float32,
) -> None:
    """The softmax warps, a row per thread: step 6's operations in its order, but for the time of the rescaling."""
    thread, _, _ = cute.arch.thread_idx()
    tO, head_dim = tmem + TMEM["O"].start, cute.size(mO, mode=[1])
    store_scales(cutlass.Int32(P_SCALES), tmem + TMEM["SFP"].start, None, P_SCALE, thread)
    row_max, row_sum = -cutlass.Float32.inf, cutlass.Float32(0)
    for j in cutlass.range(kv_tiles, unroll=1):
        tS = tmem + j % STAGES * TILE_N
        events.s_full.wait(j)
        row = load_row(tS, TILE_N, thread)
        mask(row, seqlen_k - (kv_tiles - 1 - j) * TILE_N)
        row_max, acc_scale = update_max(row_max, largest(row), scale_log2)
        probabilities(row, row_max, scale_log2)
        store_probabilities(row, tS, thread)
        if j > 0:  # as late as possible: PV of the tile before may have taken until now
            events.o_full.wait(j - 1)
            rescale_output(tO, acc_scale, head_dim, thread)
        cute.arch.fence_view_async_tmem_store()
        events.p_full.arrive(j)
        row_sum = lane_sum(row, cute.math.mul(row_sum, acc_scale, rounding=cute.math.RoundingMode.NEAREST_EVEN))
    events.o_full.wait(kv_tiles - 1)
    inverse_sum, lse = finish(row_max, row_sum, scale_log2)
    store_output(tO, inverse_sum, lse, mO, mLSE, q_tile, thread)
