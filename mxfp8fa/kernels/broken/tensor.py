"""Four warps store to tensor memory and load it again. A fence is missing."""

import cutlass
import torch
from cutlass import cute, memory
from cutlass.cute.nvgpu import tcgen05

from mxfp8fa.kernels import compile_kernel, gmem

THREADS, COLUMNS = 128, 32


@cute.struct
class Storage:
    """Where tcgen05.alloc writes the address of the columns."""

    tmem: cutlass.Int32


@cute.kernel
def tensor_kernel(out: cute.Tensor) -> None:
    """Every thread passes its number through its lane of 32 columns."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    slot = memory.SmemAllocator().allocate(Storage).tmem.ptr
    if warp == 0:
        cute.arch.alloc_tmem(COLUMNS, slot)
        cute.arch.relinquish_tmem_alloc_permit()
    cute.arch.sync_threads()
    tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, slot)
    cells = cute.make_tensor(tmem, cute.make_layout((THREADS, COLUMNS), stride=(1 << 16, 1)))
    store_op = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
    load_op = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
    store = tcgen05.make_tmem_copy(store_op, cells).get_slice(thread)
    load = tcgen05.make_tmem_copy(load_op, cells).get_slice(thread)
    mine = store.partition_D(cells)
    values = cute.make_rmem_tensor(store.partition_S(cells).shape, cutlass.Float32)
    values.fill(cutlass.Float32(thread))
    cute.copy(store_op, values, mine)
    again = cute.make_rmem_tensor(values.shape, cutlass.Float32)
    cute.copy(load_op, load.partition_S(cells), again)
    cute.arch.fence_view_async_tmem_load()
    out[thread] = again[0]
    cute.arch.sync_threads()
    if warp == 0:
        cute.arch.dealloc_tmem(tmem, COLUMNS)


@cute.jit
def tensor(out: cute.Tensor) -> None:
    """Launch it."""
    tensor_kernel(out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def make() -> tuple:
    """(compiled, args)."""
    args = (gmem(torch.zeros(THREADS)),)
    return compile_kernel(tensor, *args), args
