"""The mma warp: all products and all copies of scales into tensor memory, in one order.

A step is one tile of keys for both Q tiles. In steady state, step j of the scores meets step j - 1 of the outputs:

    QK0(j)  PV0(j - 1)  QK1(j)  PV1(j - 1)

QK does not wait for P of its own Q tile, which lies over the other S: softmax warps find their next S there when they are
done with one. While the tensor core works on one Q tile, those of the other have their turn. Between two work tiles it is
the same: PV of the last step of one and QK of the first step of the next stand side by side, and the tensor core does
not idle while O is divided and stored.
"""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

from mxfp8fa.kernels.forward.events import Carried, Fixed
from mxfp8fa.kernels.forward.plan import KV_STAGES, TILE_N, TMEM, Config
from mxfp8fa.kernels.steps.step3_block_scaled import E8M0, scale_columns_a, scale_columns_b
from mxfp8fa.kernels.steps.step4_quantizer import codes_operand
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics.mx_tensor import BLOCK


class Operands(Fixed):
    """What the products read and write.

    Args:
        products: S = Q K^T and O = P V.
        tiles: sQ, sK, sV, codes in shared memory, in stages.
        scales: sSFQ, sSFK, sSFV, sSFP, likewise.
        sf_layout: of an atom of scales in shared memory.
        tmem: first column.
        config: head_dim, and whether scales of P are in shared memory or in tensor memory already.
    """

    def __init__(
        self, products: tuple, tiles: tuple, scales: tuple, sf_layout: cute.Layout, tmem: cute.Pointer, config: Config
    ) -> None:
        (qk, pv), (sQ, sK, sV) = products, tiles
        super().__init__(qk=qk, pv=pv, tmem=tmem, sf_layout=sf_layout, dynamic=config.dynamic)
        self.sSFQ, self.sSFK, self.sSFV, self.sSFP = scales
        self.rQ, self.rK, self.rV = qk.make_fragment_A(sQ), qk.make_fragment_B(sK), pv.make_fragment_B(sV)
        s_shape, o_shape = qk.partition_shape_C((128, TILE_N)), pv.partition_shape_C((128, config.head_dim))
        self.s_layout, self.o_layout = qk.make_fragment_C(s_shape).layout, pv.make_fragment_C(o_shape).layout

    def scores(self, i: int, k_stage: cutlass.Int32) -> None:
        """S of Q tile i = Q K^T, after copies of the scales of both."""
        sf_q = scale_columns_a(self.qk, self.tmem + TMEM[f"SFQ{i}"].start, self.sf_layout)
        sf_k = scale_columns_b(self.qk, self.tmem + TMEM[f"SFK{i}"].start, self.sf_layout)
        copy_scales(self.sSFQ, sf_q, i)
        copy_scales(self.sSFK, sf_k, k_stage)
        tStS = cute.make_tensor(self.tmem + TMEM[f"S{i}"].start, self.s_layout)
        q = self.rQ[None, None, None, i], sf_q[None, None, None, 0]
        k = self.rK[None, None, None, k_stage], sf_k[None, None, None, 0]
        multiply_blocks(self.qk, tStS, q, k, False)

    def output(self, i: int, v_stage: cutlass.Int32, accumulate: cutlass.Boolean) -> None:
        """O of Q tile i = P V, or O + P V. Scales of V are copied; those of P, if a block has its own, else they are there."""
        sf_p = scale_columns_a(self.qk, self.tmem + TMEM[f"SFP{i}"].start, self.sf_layout)
        sf_v = scale_columns_b(self.qk, self.tmem + TMEM[f"SFV{i}"].start, self.sf_layout)
        copy_scales(self.sSFV, sf_v, v_stage)
        if self.dynamic:
            copy_scales(self.sSFP, sf_p, i)
        tOtO = cute.make_tensor(self.tmem + TMEM[f"O{i}"].start, self.o_layout)
        p = codes_operand(self.pv, self.tmem + TMEM[f"P{i}"].start)[None, None, None, 0], sf_p[None, None, None, 0]
        v = self.rV[None, None, None, v_stage], sf_v[None, None, None, 0]
        multiply_blocks(self.pv, tOtO, p, v, accumulate)


def multiply_blocks(
    tiled_mma: cute.TiledMma, tCtD: cute.Tensor, a: tuple, b: tuple, accumulate: cutlass.Boolean
) -> None:
    """One instruction per 32 elements of K; a and b are (codes, scales) of a tile."""
    values = cutlass.extract_mlir_values(tiled_mma)
    for block in range(cute.size(a[0], mode=[2])):
        mma = cutlass.new_from_mlir_values(tiled_mma, values)  # a copy: `set` must not reach beyond an `if`
        mma.set(tcgen05.Field.ACCUMULATE, accumulate if block == 0 else True)
        cute.gemm(mma, tCtD, [x[None, None, block] for x in a], [x[None, None, block] for x in b], tCtD)


def copy_scales(sSF: cute.Tensor, tCtSF: cute.Tensor, stage: cutlass.Int32) -> None:
    """The atom of a stage to tensor memory, by one tcgen05.cp.32x128b.warpx4."""
    copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), E8M0)
    sSF_stages = cute.filter_zeros(tcgen05.append_s2t_broadcast_mode(copy.op, sSF))
    tCtSF_one = cute.filter_zeros(tCtSF)[None, None, None, 0]
    tiled_copy = tcgen05.make_s2t_copy(copy, tCtSF_one)
    thread_copy = tiled_copy.get_slice(0)
    source = tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thread_copy.partition_S(sSF_stages))
    cute.copy(tiled_copy, source[None, None, None, None, stage], thread_copy.partition_D(tCtSF_one))


@cute.jit
def multiply(cta: Fixed, operands: Operands) -> None:
    """Every step of every work tile; the outputs of the last step of one are issued with the first scores of the next."""
    work, events = cta.work, cta.events
    step, v_blocks = cutlass.Int32(0), cutlass.Int32(0)
    # Of each Q tile: S and PV issued so far, PV of the present tile, and how many tiles were begun and ended.
    a = Carried(scores=0, outputs=0, depth=0, begun=0)
    b = Carried(scores=0, outputs=0, depth=0, begun=0)
    b_followed = cutlass.Int32(0)  # whether PV1 came after the last S0: its P waited until that was read
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        n0, n1 = tile.kv_tiles(0), tile.kv_tiles(1)
        steps = cutlass.max(n0, n1)
        for j in cutlass.range(steps, unroll=1):
            kv_tile = steps - 1 - j
            a_pending, b_pending = a.outputs < a.scores, b.outputs < b.scores
            pending = a_pending or b_pending
            events.k_full.wait(step)
            if kv_tile < n0:
                a = issue_scores(cta, operands, 0, a, b.scores, b_followed > 0, kv_tile, n0, step)
            if pending:
                take_v(cta, operands, step - 1, v_blocks)
            a = issue_output(cta, operands, 0, a, a_pending, j == 0, step - 1)
            if kv_tile < n1:
                b = issue_scores(cta, operands, 1, b, a.scores, a_pending, kv_tile, n1, step)
            events.k_empty.commit(step)
            b = issue_output(cta, operands, 1, b, b_pending, j == 0, step - 1)
            if pending:
                events.v_empty.commit(step - 1)
            b_followed = cutlass.Int32(b_pending)
            step, v_blocks = step + 1, cute.ceil_div(tile.seqlen_k - kv_tile * TILE_N, BLOCK)
        if (not cta.config.interleave) or steps == 0:
            a, b = finish_outputs(cta, operands, a, b, step, v_blocks)
    finish_outputs(cta, operands, a, b, step, v_blocks)


@cute.jit
def finish_outputs(
    cta: Fixed, operands: Operands, a: Carried, b: Carried, step: cutlass.Int32, v_blocks: cutlass.Int32
) -> tuple[Carried, Carried]:
    """PV of the last step, if it is still to be issued."""
    pending = a.outputs + b.outputs < a.scores + b.scores
    if pending:
        take_v(cta, operands, step - 1, v_blocks)
    a = issue_output(cta, operands, 0, a, a.outputs < a.scores, True, step - 1)
    b = issue_output(cta, operands, 1, b, b.outputs < b.scores, True, step - 1)
    if pending:
        cta.events.v_empty.commit(step - 1)
    return a, b


@cute.jit
def issue_scores(
    cta: Fixed,
    operands: Operands,
    i: cutlass.Constexpr[int],
    mine: Carried,
    others: cutlass.Int32,
    proved: cutlass.Boolean,
    kv_tile: cutlass.Int32,
    kv_tiles: cutlass.Int32,
    step: cutlass.Int32,
) -> Carried:
    """S of Q tile i for a tile of keys; `others` S of the other Q tile were issued so far.

    `proved`: a PV of the other tile was issued since the last S of this one, so that is read, or P would not be over it.
    """
    events = cta.events
    begun = mine.begun
    if kv_tile == kv_tiles - 1:
        events.q_full(i).wait(begun)
        begun += 1
    events.s_read(1 - i).wait_one_turn_before(others)  # until the last of them is in registers: scales go there
    if not proved:
        events.s_read(i).wait_one_turn_before(mine.scores)
    operands.scores(i, step % KV_STAGES)
    events.s_full(i).commit(mine.scores)
    if kv_tile == 0:
        events.q_empty(i).commit(begun - 1)
    return mine.but(scores=mine.scores + 1, begun=begun)


@cute.jit
def issue_output(
    cta: Fixed,
    operands: Operands,
    i: cutlass.Constexpr[int],
    mine: Carried,
    pending: cutlass.Boolean,
    last: cutlass.Boolean,
    step: cutlass.Int32,
) -> Carried:
    """PV of Q tile i for the tile of keys of `step`, if its S was issued and PV was not; `last` of its work tile?"""
    events = cta.events
    if pending:
        events.p_full(i).wait(mine.outputs)
        operands.output(i, step % KV_STAGES, mine.depth > 0)
        events.o_full(i).commit(mine.outputs)
        mine = mine.but(
            outputs=mine.outputs + 1,
            depth=(mine.depth + 1) * (1 - cutlass.Int32(last)),
        )
    return mine


@cute.jit
def take_v(cta: Fixed, operands: Operands, step: cutlass.Int32, blocks: cutlass.Int32) -> None:
    """Wait for the tile of V of a step, and write 0 over the scales of all but its first `blocks`, up to the last key.

    Whatever the padding of the packed scales holds: 0xFF is NaN, and NaN times P = 0 would reach O. Scales of K need no
    such care, as their scores are masked, nor those of Q, as their rows are not stored.
    """
    events = cta.events
    events.v_full.wait(step)
    if blocks < TILE_N // BLOCK:
        thread = cute.arch.lane_idx()
        words = cute.make_tensor(
            cute.recast_ptr(operands.sSFV.iterator, dtype=cutlass.Int32) + step % KV_STAGES * (ATOM_BYTES // 4),
            cute.make_layout((4, 32)),
        )
        keep = (cutlass.Int32(1) << (8 * blocks)) - 1
        for word in cutlass.range_constexpr(4):  # a word has the four blocks of one row
            words[word, thread] = words[word, thread] & keep
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
