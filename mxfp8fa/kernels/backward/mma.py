"""The mma warp: five products a tile of queries, each after copies of the scales that it reads.

    S^T(t)  dK(t-1)  dQ(t-1)  dP^T(t)  dV(t)

Tensor memory is full, so scales lie over what is dead at that moment (`tables.TMEM`), and are copied again for every
product. What has to have happened before such a copy:

    SFK, SFQ       over dP: dp_drained(t-1)
    SFdS, SFQt     over dP, above dS: ds_full(t-1), which the product needs anyway
    SFdSt, SFKt    over S: s_drained(t); at the end P, which lies elsewhere, is read and S is dead
    SFV, SFdO      over S: s_drained(t)
    SFP, SFdOt     over S: s_drained(t)

That a copy follows the products which read the columns before, and a product those which read what it overwrites, is the
order of the tensor core's queue; every public kernel relies on it, the PTX ISA does not promise all of it.
"""

from types import SimpleNamespace

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.backward.tables import STAGES, TMEM
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3, E8M0, TILE, make_tiled_mma

HALF_STEP = 64 * 4  # in bytes of a lane: the second half of P and dS lies 64 columns after the first


@cute.jit
def multiply(
    products: dict,
    tiles: dict,
    scales: dict,
    tmem: cute.Pointer,
    events: SimpleNamespace,
    count: cutlass.Int32,
) -> None:
    """All products of one CTA.

    Args:
        products: the instructions, "s", "dp", "dv", "dk" and "dq".
        tiles: payloads in shared memory as these read them: "k", "q", "v", "do", "do_t", "q_t", "ds", "k_t".
        scales: their scales in shared memory, by the same names and "p", "ds" and "ds_t".
        tmem: first column.
        events: see `tables.BARRIERS`.
        count: tiles of queries, of all heads; at least 1.
    """
    s_mma, dp_mma, dv_mma, dk_mma, dq_mma = (products[name] for name in ("s", "dp", "dv", "dk", "dq"))
    rK, rQ = s_mma.make_fragment_A(tiles["k"]), s_mma.make_fragment_B(tiles["q"])
    rV, rdO = dp_mma.make_fragment_A(tiles["v"]), dp_mma.make_fragment_B(tiles["do"])
    tP, rdOt = halves_operand(dv_mma, tmem + TMEM["P0"].start), dv_mma.make_fragment_B(tiles["do_t"])
    tdS, rQt = halves_operand(dk_mma, tmem + TMEM["dS0"].start), dk_mma.make_fragment_B(tiles["q_t"])
    rdSt, rKt = dq_mma.make_fragment_A(tiles["ds_t"]), dq_mma.make_fragment_B(tiles["k_t"])
    tS, tdP = accumulator(s_mma, tmem + TMEM["S"].start), accumulator(dp_mma, tmem + TMEM["dP"].start)
    tdV, tdK = accumulator(dv_mma, tmem + TMEM["dV"].start), accumulator(dk_mma, tmem + TMEM["dK"].start)
    tdQ = accumulator(dq_mma, tmem + TMEM["dP"].start)

    events.kv_full.wait(0)
    for t in cutlass.range(count + 1, unroll=1):
        stage, stage_before = t % STAGES, (t + 1) % STAGES
        if t < count:
            events.q_full.wait(t)
            if t > 0:
                events.dp_drained.wait(t - 1)
            k = scaled(rK, scales["k"], tmem, "SFK", 0)
            product(s_mma, tS, k, scaled(rQ, scales["q"], tmem, "SFQ", stage), False)
            events.s_full.commit(t)
        if t > 0:
            events.ds_full.wait(t - 1)
            ds = scaled(tdS, scales["ds"], tmem, "SFdS", 0)
            product(dk_mma, tdK, ds, scaled(rQt, scales["q_t"], tmem, "SFQt", stage_before), t > 1)
            events.q_empty.commit(t - 1)
        if t < count:
            events.s_drained.wait(t)
        if t > 0:
            ds = scaled(rdSt, scales["ds_t"], tmem, "SFdSt", 0)
            product(dq_mma, tdQ, ds, scaled(rKt, scales["k_t"], tmem, "SFKt", 0), False)
            events.dq_full.commit(t - 1)
        if t < count:
            events.do_full.wait(t)
            if t > 0:
                events.dq_drained.wait(t - 1)
            v = scaled(rV, scales["v"], tmem, "SFV", 0)
            product(dp_mma, tdP, v, scaled(rdO, scales["do"], tmem, "SFdO", stage), False)
            events.dp_full.commit(t)
            events.p_full.wait(t)
            p = scaled(tP, scales["p"], tmem, "SFP", 0)
            product(dv_mma, tdV, p, scaled(rdOt, scales["do_t"], tmem, "SFdOt", stage), t > 0)
            events.do_empty.commit(t)
    events.dkv_full.commit(0)


def accumulator(tiled_mma: cute.TiledMma, tmem: cute.Pointer) -> cute.Tensor:
    """The accumulator of a product at `tmem`."""
    m, n = (tiled_mma.shape_mnk[i] for i in (0, 1))
    return cute.make_tensor(tmem, tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((m, n))).layout)


def halves_operand(tiled_mma: cute.TiledMma, tmem: cute.Pointer) -> cute.Tensor:
    """Codes (128, 128) as operand A, blocks 0 and 1 at `tmem`, blocks 2 and 3 in the columns 64 further on."""
    one = tiled_mma.make_fragment_A(tiled_mma.partition_shape_A((128, 128))).layout
    blocks = cute.make_layout((2, 2), stride=(BLOCK, HALF_STEP))
    layout = cute.make_layout(
        (one.shape[0], one.shape[1], blocks.shape, 1), stride=(one.stride[0], one.stride[1], blocks.stride, 0)
    )
    return cute.make_tensor(cute.recast_ptr(tmem, dtype=E4M3), layout)


def scaled(rX: cute.Tensor, sSF: cute.Tensor, tmem: cute.Pointer, home: str, stage: cutlass.Int32) -> tuple:
    """Copy the scale atom of a stage to its four columns; returns the operand: codes, their stage, scales in TMEM.

    Args:
        rX: codes as the instruction takes them, (codes of an instruction, 1, blocks, stages).
        sSF: scale atoms in shared memory, in stages.
        tmem: first column.
        home: the range of `tables.TMEM` that takes the scales.
        stage: of codes and scales.
    """
    one_stage = cute.slice_(sSF.layout, (None, None, None, 0))
    tiled_mma = make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K)  # any of the five: an atom is an atom
    columns = blockscaled_layout.make_tmem_layout_sfa(tiled_mma, TILE, BLOCK, one_stage)
    tSF = cute.make_tensor(cute.recast_ptr(tmem + TMEM[home].start, dtype=E8M0), columns)
    copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), E8M0)
    source = cute.filter_zeros(tcgen05.append_s2t_broadcast_mode(copy.op, sSF))
    target = cute.filter_zeros(tSF)
    tiled_copy = tcgen05.make_s2t_copy(copy, target)
    thread_copy = tiled_copy.get_slice(0)
    descriptors = tcgen05.get_s2t_smem_desc_tensor(tiled_copy, thread_copy.partition_S(source))
    cute.copy(tiled_copy, descriptors[None, None, None, None, stage], thread_copy.partition_D(target))
    return rX, stage, tSF


@cute.jit
def product(
    tiled_mma: cute.TiledMma, tD: cute.Tensor, operand_a: tuple, operand_b: tuple, accumulate: cutlass.Boolean
) -> None:
    """D = A B^T over one tile, or D + A B^T if `accumulate`; an operand is (codes, stage, scales)."""
    (rA, stage_a, sf_a), (rB, stage_b, sf_b) = operand_a, operand_b
    for block in cutlass.range_constexpr(cute.size(rB, mode=[2])):
        tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate or block > 0)
        a = [rA[None, None, block, stage_a], sf_a[None, None, block]]
        b = [rB[None, None, block, stage_b], sf_b[None, None, block]]
        cute.gemm(tiled_mma, tD, a, b, tD)
