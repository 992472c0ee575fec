"""After the main kernel: dQ from the workspace, in order, scaled, in the caller's dtype.

The workspace has the order in which the main kernel's reduction writes (`reduce.py`): a tile of 128 queries is four
parts of 32 queries, one a warp, and in each 16 bytes of every query stand side by side:

    element (query, d) of a tile:   [query // 32][d // V][query % 32][d % V]     V = 4 with FP32, 8 with FP16

A thread reads the pieces of its query: 32 lanes read 512 contiguous bytes.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.backward.preprocess import query_of
from mxfp8fa.kernels.forward.tensors import unfold

TILE_M = 128
THREADS = 128


@cute.jit
def postprocess(
    mWork: cute.Tensor,
    mdQ: cute.Tensor,
    mFactor: cute.Tensor,
    mOverflows: cute.Tensor,
    mTable: cute.Tensor | None,
    batch: cutlass.Int32,
    seqlen_q: cutlass.Int32,
    heads: cutlass.Int32,
    softmax_scale: cutlass.Float32,
) -> None:
    """Launch a CTA per tile of queries, query head and batch. Tensors come as rows (`tensors.py`).

    Args:
        mWork: (B, Hq, tiles, 128 * D) FP32 or FP16: the sums.
        mdQ: (B, Sq, Hq, D) FP32, BF16 or FP16, out.
        mFactor: (1, 1) FP32, the static factor under which FP16 sums stand, a power of two.
        mOverflows: (1, 1) Int32; the number of infinite sums is added to it if they are FP16.
        mTable: for packed sequences, B = 1 and S = T, all tiles of queries as they lie (`mxfp8fa.kernels.jagged`).
        batch: B.
        seqlen_q: Sq.
        heads: Hq.
        softmax_scale: factor on dQ.
    """
    tiles = cute.ceil_div(seqlen_q, TILE_M)
    if cutlass.const_expr(mTable is not None):
        tiles = cute.size(mTable, mode=[0]) - 1
    mWork, mdQ = unfold(mWork, batch, heads, tiles), unfold(mdQ, batch, seqlen_q, heads)
    postprocess_kernel(mWork, mdQ, mFactor, mOverflows, mTable, softmax_scale).launch(
        grid=(tiles, heads, batch), block=(THREADS, 1, 1)
    )


@cute.kernel
def postprocess_kernel(
    mWork: cute.Tensor,
    mdQ: cute.Tensor,
    mFactor: cute.Tensor,
    mOverflows: cute.Tensor,
    mTable: cute.Tensor | None,
    softmax_scale: cutlass.Float32,
) -> None:
    """One CTA: 128 queries of one head."""
    thread, _, _ = cute.arch.thread_idx()
    tile, head, batch = cute.arch.block_idx()
    here, query, exists = query_of(mTable, tile, batch, cute.size(mdQ, mode=[1]), thread)
    head_dim = cute.size(mdQ, mode=[3])
    if exists:
        gRow = row_of_workspace(mWork[batch, head, tile, None], head_dim, thread)
        stored = cute.make_rmem_tensor(gRow.shape, mWork.element_type)
        cute.autovec_copy(gRow, stored)
        row = stored.load().to(cutlass.Float32)
        if cutlass.const_expr(mWork.element_type is not cutlass.Float32):
            count_infinities(row, mOverflows)
            row = row * (cutlass.Float32(1) / mFactor[0, 0])
        out = cute.make_rmem_tensor(gRow.shape, mdQ.element_type)
        out.store((row * softmax_scale).to(mdQ.element_type))
        cute.autovec_copy(cute.make_tensor(out.iterator, cute.make_layout(head_dim)), mdQ[here, query, head, None])


postprocess_kernel.set_name_prefix("backward_postprocess", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def count_infinities(row: cute.TensorSSA, mOverflows: cute.Tensor) -> None:
    """Add the number of infinite elements of a row; what became NaN by overflow was counted before (`reduce.py`)."""
    x = cute.make_rmem_tensor(row.shape, cutlass.Float32)
    x.store(row)
    count = cutlass.Int32(0)
    for i in cutlass.range(cute.size(x), unroll_full=True):
        count += cutlass.Int32((x[i].bitcast(cutlass.Int32) & 0x7FFFFFFF) == 0x7F800000)
    if count > 0:
        cute.arch.atomic_add(mOverflows.iterator.llvm_ptr, count)


def row_of_workspace(gTile: cute.Tensor, head_dim: int, row: cutlass.Int32) -> cute.Tensor:
    """(V, D / V): the elements of one query, `row` of 128."""
    vector = 128 // gTile.element_type.width
    part = row // 32 * (32 * head_dim) + row % 32 * vector
    pieces = cute.make_layout((vector, head_dim // vector), stride=(1, 32 * vector))
    return cute.make_tensor((gTile.iterator + part).align(16), pieces)
