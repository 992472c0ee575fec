"""The mma warp: five products a tile of queries, each after copies of the scales that it reads.

    S^T(t)  dQ(t-1)  dK(t-1)  dP^T(t)  dV(t)

dP has to wait until the reduce warps have taken dQ out of its columns; so dQ comes before dK, which reads dS from shared
memory and leaves dP's columns alone, and scales of dP are copied before the wait.

Tensor memory is full, so scales lie over what is dead at that moment (`plan.TMEM`), and are copied again for every
product. What has to have happened before such a copy:

    SFK, SFQ       over dP: dp_drained(t-1)
    SFdSt, SFKt    over S: s_drained(t); at the end P, which lies elsewhere, was read and S is dead
    SFdS, SFQt     likewise
    SFV, SFdO      over S: s_drained(t)
    SFP, SFdOt     over S: s_drained(t)

That a copy follows the products which read the columns before, and a product those which read what it overwrites, is the
order of the tensor core's queue; every public kernel relies on it, the PTX ISA does not promise all of it.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.plan import BLOCKS, STAGES, TILE_M, TILE_N, TMEM
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.mma import copy_scales, multiply_blocks
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3, scale_columns_a

HALF_STEP = 64 * 4  # in bytes of a lane: the second half of P lies 64 columns after the first


class Product(Fixed):
    """One of the five, D = A B^T or D + A B^T.

    Args:
        tiled_mma: the instruction.
        tD: the accumulator.
        rA: codes of A as the instruction takes them, (codes of an instruction, 1, blocks, stages).
        rB: codes of B, likewise.
        scales: atoms of A and of B in shared memory, in stages.
        homes: where their scales go, names of ranges of `plan.TMEM`.
        tmem: first column.
    """

    def __init__(
        self,
        tiled_mma: cute.TiledMma,
        tD: cute.Tensor,
        rA: cute.Tensor,
        rB: cute.Tensor,
        scales: tuple[cute.Tensor, cute.Tensor],
        homes: tuple[str, str],
        tmem: cute.Pointer,
    ) -> None:
        super().__init__(tiled_mma=tiled_mma, tD=tD, rA=rA, rB=rB, scales=scales)
        self.homes = tuple(tmem + TMEM[name].start for name in homes)

    def issue(self, stage_b: cutlass.Int32, accumulate: cutlass.Boolean) -> None:
        """Copy the scales, multiply; A has one stage."""
        self.copy_scales(stage_b)
        self.multiply(stage_b, accumulate)

    def copy_scales(self, stage_b: cutlass.Int32) -> None:
        """Of both operands, to their columns."""
        for side, stage in enumerate((0, stage_b)):
            copy_scales(self.scales[side], self._columns(side), stage)

    def multiply(self, stage_b: cutlass.Int32, accumulate: cutlass.Boolean) -> None:
        """By scales that have been copied."""
        a, b = (
            (rX[None, None, None, stage], self._columns(side)[None, None, None, 0])
            for side, (rX, stage) in enumerate(((self.rA, 0), (self.rB, stage_b)))
        )
        multiply_blocks(self.tiled_mma, self.tD, a, b, accumulate)

    def _columns(self, side: int) -> cute.Tensor:
        """Where the scales of an operand go; of B it would be the same four columns."""
        return scale_columns_a(self.tiled_mma, self.homes[side], self.scales[side].layout)


def products_of(cta: Fixed, tiled_mmas: dict) -> Fixed:
    """S, dP, dV, dK and dQ.

    Args:
        cta: see `main.main_kernel`.
        tiled_mmas: the instructions: "s" for S and dP, "dv", "dk", "dq".
    """
    s, dv, dk, dq = (tiled_mmas[name] for name in ("s", "dv", "dk", "dq"))
    tiles, scales, tmem, head_dim = cta.tiles, cta.scales, cta.tmem, cta.config.head_dim

    def accumulator(tiled_mma: cute.TiledMma, name: str, columns: int) -> cute.Tensor:
        shape = tiled_mma.partition_shape_C((TILE_N, columns))
        return cute.make_tensor(tmem + TMEM[name].start, tiled_mma.make_fragment_C(shape).layout)

    def make(
        tiled_mma: cute.TiledMma, d: tuple[str, int], rA: cute.Tensor, b: str, sf_a: str, homes: tuple[str, str]
    ) -> Product:
        rB = tiled_mma.make_fragment_B(tiles[b])
        return Product(tiled_mma, accumulator(tiled_mma, *d), rA, rB, (scales[sf_a], scales[b]), homes, tmem)

    return Fixed(
        s=make(s, ("S", TILE_M), s.make_fragment_A(tiles["k"]), "q", "k", ("SFK", "SFQ")),
        dp=make(s, ("dP", TILE_M), s.make_fragment_A(tiles["v"]), "do", "v", ("SFV", "SFdO")),
        dv=make(dv, ("dV", head_dim), halves(dv, tmem + TMEM["P0"].start), "do_t", "p", ("SFP", "SFdOt")),
        dk=make(dk, ("dK", head_dim), dk.make_fragment_A(tiles["ds"]), "q_t", "ds", ("SFdS", "SFQt")),
        dq=make(dq, ("dP", head_dim), dq.make_fragment_A(tiles["ds_t"]), "k_t", "ds_t", ("SFdSt", "SFKt")),
    )


def halves(tiled_mma: cute.TiledMma, tmem: cute.Pointer) -> cute.Tensor:
    """Codes (128, 128) as operand A, two blocks at `tmem` and two in the columns 64 further on."""
    one = tiled_mma.make_fragment_A(tiled_mma.partition_shape_A((TILE_N, TILE_M))).layout
    shape = one.shape[0], one.shape[1], (BLOCKS // 2, 2), 1
    stride = one.stride[0], one.stride[1], (BLOCK, HALF_STEP), 0
    return cute.make_tensor(cute.recast_ptr(tmem, dtype=E4M3), cute.make_layout(shape, stride=stride))


@cute.jit
def multiply(cta: Fixed, products: Fixed) -> None:
    """All products of one CTA, which has at least one tile of queries."""
    events, count = cta.events, cta.work.count
    events.kv_full.wait(0)
    for t in cutlass.range(count + 1, unroll=1):
        stage, stage_before = t % STAGES, (t + 1) % STAGES
        if t < count:
            events.q_full.wait(t)
            if t > 0:
                events.dp_drained.wait(t - 1)
            products.s.issue(stage, False)
            events.s_full.commit(t)
            events.s_drained.wait(t)
        if t > 0:
            events.ds_full.wait(t - 1)
            products.dq.issue(0, False)
            events.dq_full.commit(t - 1)
            products.dk.issue(stage_before, t > 1)
            events.empty.commit(t - 1)
        if t < count:
            events.do_full.wait(t)
            products.dp.copy_scales(stage)
            if t > 0:
                events.dq_drained.wait(t - 1)
            products.dp.multiply(stage, False)
            events.dp_full.commit(t)
            events.p_full.wait(t)
            products.dv.issue(stage, t > 0)
    events.dkv_full.commit(0)
