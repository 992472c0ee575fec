"""The end of a CTA: dK and dV from tensor memory to global memory, by the compute warps."""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.plan import COMPUTE_WARP, GROUP_THREADS, TILE_N, TMEM
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.steps.step4_quantizer import load_row

COLUMNS = 32  # that a thread holds at a time


@cute.jit
def store_gradients(cta: Fixed, mdK: cute.Tensor, mdV: cute.Tensor) -> None:
    """The first half of the compute warps stores dV, the other dK; zeros if no query sees a key of the tile.

    Args:
        cta: see `main.main_kernel`.
        mdK: (B, Sk, Hkv, D) FP32, BF16 or FP16, out.
        mdV: likewise.
    """
    thread, _, _ = cute.arch.thread_idx()
    if cta.work.count > 0:
        cta.events.dkv_full.wait(0)
    lane = thread % GROUP_THREADS
    if thread < 32 * COMPUTE_WARP + GROUP_THREADS:
        store_gradient(cta.tmem + TMEM["dV"].start, mdV, cta.work, lane, cutlass.Float32(1))
    else:
        store_gradient(cta.tmem + TMEM["dK"].start, mdK, cta.work, lane, cta.softmax_scale)


@cute.jit
def store_gradient(
    tmem: cute.Pointer,
    mX: cute.Tensor,
    work: Fixed,
    lane: cutlass.Int32,
    factor: cutlass.Float32,
) -> None:
    """One row a thread, times `factor`."""
    key = work.kv_tile * TILE_N + lane
    for part in cutlass.range_constexpr(cute.size(mX, mode=[3]) // COLUMNS):
        row = cute.make_rmem_tensor(COLUMNS, cutlass.Float32)
        row.fill(0)
        if work.count > 0:
            row.store(load_row(tmem + part * COLUMNS, COLUMNS, lane).load() * factor)
        out = cute.make_rmem_tensor(COLUMNS, mX.element_type)
        out.store(row.load().to(mX.element_type))
        if key < work.seqlen_k:
            batch, token = work.k.row(key)
            cute.autovec_copy(out, cute.local_tile(mX[batch, token, work.kv_head, None], (COLUMNS,), (part,)))
