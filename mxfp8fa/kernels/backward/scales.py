"""The scales warp: the two scale atoms of dS from its sixteen scales.

The compute warps leave a word per square block: 32 keys (a warp's) by 32 queries. Both products read the same codes, but
with other rows, so the atoms differ:

    for dK  rows are keys, bytes of a word are blocks of queries
    for dQ  rows are queries, bytes of a word are blocks of keys

The scale of a block serves its 32 rows, so all 32 lines of 16 bytes of an atom are equal, and lane l writes line l. It
takes place while the compute warps still convert and store the codes.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.plan import BLOCKS, TILE_N
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.layouts import ATOM_BYTES


@cute.jit
def assemble_scales(cta: Fixed) -> None:
    """Both atoms, tile after tile, from (blocks of keys, blocks of queries) words."""
    sWords, sAtom, sAtomT, events = cta.sWords, cta.scales["ds"], cta.scales["ds_t"], cta.events
    lane = cute.arch.lane_idx()
    words = cute.make_rmem_tensor((BLOCKS, BLOCKS), cutlass.Int32)
    for t in cutlass.range(cta.work.count, unroll=1):
        events.ds_scaled.wait(t)
        for k in cutlass.range_constexpr(BLOCKS):
            for q in cutlass.range_constexpr(BLOCKS):
                words[k, q] = sWords[k, q]
        for i in cutlass.range_constexpr(BLOCKS):
            line(sAtom, lane)[i] = pack_bytes([words[i, q] for q in range(BLOCKS)])
            line(sAtomT, lane)[i] = pack_bytes([words[k, i] for k in range(BLOCKS)])
        cute.arch.fence_view_async_shared()
        events.ds_full.arrive(t)


def line(sAtom: cute.Tensor, lane: cutlass.Int32) -> cute.Tensor:
    """The 16 bytes of an atom that lane `lane` writes, as words."""
    words = cute.make_tensor(
        cute.recast_ptr(sAtom.iterator, dtype=cutlass.Int32), cute.make_layout((BLOCKS, ATOM_BYTES // 16))
    )
    return words[None, lane]


def pack_bytes(parts: list) -> cutlass.Int32:
    """Four numbers below 256 in a word, the first in the low byte."""
    return parts[0] | (parts[1] << 8) | (parts[2] << 16) | (parts[3] << 24)


@cute.jit
def fill_constant_scales(sAtom: cute.Tensor, word: cutlass.Constexpr[int]) -> None:
    """The scale atom of P, the same word 128 times; written before the CTA meets for the first time."""
    thread, _, _ = cute.arch.thread_idx()
    if thread < TILE_N:
        sWords = cute.make_tensor(cute.recast_ptr(sAtom.iterator, dtype=cutlass.Int32), cute.make_layout(TILE_N))
        sWords[thread] = cutlass.Int32(word)
        cute.arch.fence_view_async_shared()
