"""The load warp: Q tiles, K and V into shared memory, each with its scales, as soon as there is room."""

from collections.abc import Callable

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels.forward.events import Carried, Fixed
from mxfp8fa.kernels.forward.plan import KV_STAGES
from mxfp8fa.kernels.steps.step1_one_mma import tma_tiles
from mxfp8fa.kernels.steps.step3_block_scaled import E8M0
from mxfp8fa.kernels.steps.step6_kv_loop import expect
from mxfp8fa.layouts import ATOM_BYTES


class Source(Fixed):
    """One of Q, K, V: how a tile of it and its atom of scales come to shared memory.

    Args:
        tma: the TMA copy.
        cut: a sequence's matrix, (tokens, D, heads) or (D, tokens, heads), into tiles as the product takes them.
        mX: the tensor as TMA sees it, sequences in its last mode.
        tokens: which mode of `mX` they are.
        sX: destination, in stages.
        mSF: scales in global memory, (batch, heads, tiles, 512).
        sSF: scales in shared memory.
    """

    def __init__(
        self, tma: cute.CopyAtom, cut: Callable[[cute.Tensor], cute.Tensor], mX: cute.Tensor, tokens: int, sX: cute.Tensor,
        mSF: cute.Tensor, sSF: cute.Tensor,
    ) -> None:  # fmt: skip
        super().__init__(tma=tma, cut=cut, mX=mX, tokens=tokens, sX=sX, mSF=mSF)
        stages = cute.size(sX, mode=[3])
        self.sAtoms = cute.make_tensor(sSF.iterator, cute.make_layout((ATOM_BYTES, stages)))
        self.stage_bytes = cute.size(sX) // stages + ATOM_BYTES  # a code is a byte

    def load(
        self, where: Fixed, head: cutlass.Int32, tile: cutlass.Int32, stage: cutlass.Int32, full: cute.Pointer
    ) -> None:
        """Start the copies of a tile of the sequence that lies at `where` into a stage; `full` counts their bytes."""
        expect(full, self.stage_bytes)
        tXsX, tXgX = tma_tiles(self.tma, self.sX, self.cut(where.rows(self.mX, self.tokens)))
        cute.copy(self.tma, tXgX[None, tile, head], tXsX[None, stage], tma_bar_ptr=full)
        bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), E8M0, num_bits_per_copy=8 * ATOM_BYTES)
        with cute.arch.elect_one():
            cute.copy(bulk, where.tile(self.mSF, head, tile), self.sAtoms[None, stage], mbar_ptr=full)


@cute.jit
def load(cta: Fixed, q: Source, k: Source, v: Source) -> None:
    """Everything the CTA reads, in the order in which the mma warp uses it."""
    work, events = cta.work, cta.events
    tiles = Carried(q0=0, q1=0)
    step = cutlass.Int32(0)
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        steps = cutlass.max(tile.kv_tiles(0), tile.kv_tiles(1))
        tiles = tiles.but(q0=load_q(events, q, tile, 0, tiles.q0))
        for j in cutlass.range(steps, unroll=1):
            kv_tile = steps - 1 - j
            events.k_empty.wait_one_turn_before(step)
            k.load(tile.k, tile.kv_head, kv_tile, step % KV_STAGES, events.k_full.at(step))
            if j == 0:
                tiles = tiles.but(q1=load_q(events, q, tile, 1, tiles.q1))
            events.v_empty.wait_one_turn_before(step)
            v.load(tile.k, tile.kv_head, kv_tile, step % KV_STAGES, events.v_full.at(step))
            step += 1


@cute.jit
def load_q(events: Fixed, q: Source, tile: Fixed, i: cutlass.Constexpr[int], count: cutlass.Int32) -> cutlass.Int32:
    """Q tile i of a work tile, if it sees a key; `count` of them came before. Returns the new count."""
    if tile.kv_tiles(i) > 0:
        events.q_empty(i).wait_one_turn_before(count)
        q.load(tile.q, tile.head, tile.q_tile + i, i, events.q_full(i).at(count))
        count += 1
    return count
