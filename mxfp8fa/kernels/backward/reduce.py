"""The reduce warps: dQ of a tile of keys is added to the workspace in global memory.

Each warp takes 32 queries, from tensor memory to global memory, without the others. 32 columns at a time go through
shared memory, where 16 bytes of every lane stand side by side: no two lanes meet in a bank, and the part is contiguous in
the workspace, whose order is this one (see `postprocess.py`). The copy engine does the additions, in order of arrival:
on a GPU the sum over the tiles of keys is not deterministic.

FP16 sums overflow in two places. A part may be too large already: it becomes infinite here, where it is counted, since a
second one of the other sign would make a NaN of the sum. Finite parts may add up to infinity, which nothing finite takes
back: `postprocess.py` counts what is infinite in the end. NaN comes from the inputs and is not counted.
"""

import cutlass
from cutlass import cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from mxfp8fa.kernels.backward.plan import DQ_COLUMNS, TMEM
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.steps.step4_quantizer import load_row

FLOAT16_OVERFLOW = 65520.0  # halfway from the largest number to the next power of two: rounded to infinity


@cute.jit
def reduce_dq(cta: Fixed, mWork: cute.Tensor, mFactor: cute.Tensor, mOverflows: cute.Tensor) -> None:
    """Add dQ / softmax_scale, times a factor if sums are FP16, tile after tile.

    Args:
        cta: see `main.main_kernel`; its `sParts` is (32 * 32, stages, warps) in the workspace's dtype.
        mWork: (B, Hq, tiles, 128 * D).
        mFactor: (1, 1) FP32; read if sums are FP16.
        mOverflows: (1, 1) Int32; the number of parts' elements that are infinite in FP16 is added to it.
    """
    events, work, sParts = cta.events, cta.work, cta.sParts
    thread, _, _ = cute.arch.thread_idx()
    warp, lane = thread // 32, thread % 32
    parts = cta.config.head_dim // DQ_COLUMNS
    part_size, stages = cute.size(sParts, mode=[0]), cute.size(sParts, mode=[1])
    float16 = sParts.element_type is not cutlass.Float32
    factor = mFactor[0, 0] if cutlass.const_expr(float16) else cutlass.Float32(1)
    t = cutlass.Int32(0)
    for head in cutlass.range(work.kv_head * work.group, (work.kv_head + 1) * work.group, unroll=1):
        for tile in cutlass.range(work.first, work.q_tiles, unroll=1):
            gWarp = cute.local_tile(work.q.tile(mWork, head, tile), (parts * part_size,), (warp,))
            events.dq_full.wait(t)
            for part in cutlass.range_constexpr(parts):
                piece = load_row(cta.tmem + TMEM["dP"].start + part * DQ_COLUMNS, DQ_COLUMNS, thread)
                if cutlass.const_expr(part == parts - 1):
                    events.dq_drained.arrive(t)
                sPart = sParts[None, part % stages, warp]
                cute.arch.cp_async_bulk_wait_group(stages - 1, read=True)
                cute.arch.sync_warp()
                if cutlass.const_expr(float16):
                    piece.store(piece.load() * factor)
                    count_overflows(piece, mOverflows)
                store_part(piece, sPart, lane)
                cute.arch.fence_view_async_shared()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    add_to_global(cute.local_tile(gWarp, (part_size,), (part,)), sPart)
                    cute.arch.cp_async_bulk_commit_group()
            t += 1
    cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def count_overflows(piece: cute.Tensor, mOverflows: cute.Tensor) -> None:
    """Add the number of elements that FP16 rounds to infinity; a comparison with NaN is false."""
    count = cutlass.Int32(0)
    for i in cutlass.range_constexpr(cute.size(piece)):
        count += cutlass.Int32(cute.arch.fmax(piece[i], -piece[i]) >= FLOAT16_OVERFLOW)
    if count > 0:
        cute.arch.atomic_add(mOverflows.iterator.llvm_ptr, count)


@cute.jit
def store_part(piece: cute.Tensor, sPart: cute.Tensor, lane: cutlass.Int32) -> None:
    """32 numbers of a lane to shared memory, 16 bytes at a time, 512 bytes apart."""
    dtype = sPart.element_type
    converted = cute.make_rmem_tensor(cute.size(piece), dtype)
    converted.store(piece.load().to(dtype))
    vector = 128 // dtype.width
    target = cute.make_tensor(
        (sPart.iterator + lane * vector).align(16),
        cute.make_layout((vector, cute.size(piece) // vector), stride=(1, 32 * vector)),
    )
    cute.autovec_copy(cute.make_tensor(converted.iterator, cute.make_layout(target.shape)), target)


@dsl_user_op
def add_to_global(gX: cute.Tensor, sX: cute.Tensor, *, loc: object = None, ip: object = None) -> None:
    """gX += sX by cp.reduce.async.bulk, contiguous; the DSL has no call for it."""
    kind = {cutlass.Float32: "add.f32", cutlass.Float16: "add.noftz.f16"}[sX.element_type]
    size_bytes = cutlass.Int32(cute.size(sX) * sX.element_type.width // 8)
    operands = [
        gX.iterator.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip),
        sX.iterator.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip),
        size_bytes.ir_value(loc=loc, ip=ip),
    ]
    instruction = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{kind} [$0], [$1], $2;"
    llvm.inline_asm(None, operands, instruction, "l,r,r", has_side_effects=True, loc=loc, ip=ip)
