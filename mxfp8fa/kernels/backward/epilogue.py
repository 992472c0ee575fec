"""The end of a CTA: dK and dV from tensor memory to global memory, by the compute warps."""

from types import SimpleNamespace

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.tables import COMPUTE_WARP, TILE_N, TMEM
from mxfp8fa.kernels.steps.step4_quantizer import load_row

COLUMNS = 32  # that a thread holds at a time


@cute.jit
def store_gradients(
    tmem: cute.Pointer,
    mdK: cute.Tensor,
    mdV: cute.Tensor,
    events: SimpleNamespace,
    place: tuple,
    count: cutlass.Int32,
    softmax_scale: cutlass.Float32,
) -> None:
    """Warps 4 to 7 store dV, warps 8 to 11 dK; zeros if no query sees a key of the tile.

    Args:
        tmem: first column.
        mdK: (B, Sk, Hkv, D) FP32, BF16 or FP16, out.
        mdV: likewise.
        events: see `tables.BARRIERS`.
        place: tile of keys, head of keys, batch.
        count: tiles of queries that were visited, of all heads.
        softmax_scale: factor on dK.
    """
    thread, _, _ = cute.arch.thread_idx()
    if count > 0:
        events.dkv_full.wait(0)
    if thread < 32 * (COMPUTE_WARP + 4):
        store_gradient(tmem + TMEM["dV"].start, mdV, place, count, thread % 128, cutlass.Float32(1))
    else:
        store_gradient(tmem + TMEM["dK"].start, mdK, place, count, thread % 128, softmax_scale)


@cute.jit
def store_gradient(
    tmem: cute.Pointer,
    mX: cute.Tensor,
    place: tuple,
    count: cutlass.Int32,
    lane: cutlass.Int32,
    factor: cutlass.Float32,
) -> None:
    """One row a thread, times `factor`."""
    kv_tile, kv_head, batch = place
    key = kv_tile * TILE_N + lane
    for part in cutlass.range_constexpr(cute.size(mX, mode=[3]) // COLUMNS):
        row = cute.make_rmem_tensor(COLUMNS, cutlass.Float32)
        row.fill(0)
        if count > 0:
            row.store(load_row(tmem + part * COLUMNS, COLUMNS, lane).load() * factor)
        out = cute.make_rmem_tensor(COLUMNS, mX.element_type)
        out.store(row.load().to(mX.element_type))
        if key < cute.size(mX, mode=[1]):
            cute.autovec_copy(out, cute.local_tile(mX[batch, key, kv_head, None], (COLUMNS,), (part,)))
