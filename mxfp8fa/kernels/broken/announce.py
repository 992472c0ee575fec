"""A bulk copy brings a tile to shared memory and completes on an mbarrier. A fence is missing."""

import cutlass
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels import compile_kernel, gmem

THREADS = 64


@cute.struct
class Storage:
    """A barrier."""

    full: cutlass.Int64


@cute.kernel
def announce_kernel(a: cute.Tensor, out: cute.Tensor) -> None:
    """Copies 64 numbers."""
    thread, _, _ = cute.arch.thread_idx()
    smem = memory.SmemAllocator()
    full = smem.allocate(Storage).full.ptr
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), byte_alignment=128)
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float32, num_bits_per_copy=32 * THREADS)
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
    cute.arch.sync_threads()
    if thread == 32:
        cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * THREADS)
        cute.copy(bulk, a, tile, mbar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)
    out[thread] = tile[thread]


@cute.jit
def announce(a: cute.Tensor, out: cute.Tensor) -> None:
    """Launch it."""
    announce_kernel(a, out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def make() -> tuple:
    """(compiled, args)."""
    args = gmem(torch.arange(THREADS, dtype=torch.float32)), gmem(torch.zeros(THREADS))
    return compile_kernel(announce, *args), args
