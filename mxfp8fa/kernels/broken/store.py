"""Threads write a tile to shared memory; one of them has the TMA unit store it. A fence is missing."""

import cutlass
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels import compile_kernel, gmem

THREADS = 64


@cute.kernel
def store_kernel(out: cute.Tensor) -> None:
    """One CTA writes 0, 1, ..., 63."""
    thread, _, _ = cute.arch.thread_idx()
    smem = memory.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), byte_alignment=128)
    bulk = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), cutlass.Float32, num_bits_per_copy=32 * THREADS)
    tile[thread] = cutlass.Float32(thread)
    cute.arch.sync_threads()
    if thread == 0:
        cute.copy(bulk, tile, out)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def store(out: cute.Tensor) -> None:
    """Launch it."""
    store_kernel(out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def make() -> tuple:
    """(compiled, args)."""
    args = (gmem(torch.zeros(THREADS)),)
    return compile_kernel(store, *args), args
