"""The softmax warps: a row of S per thread, from scores to codes of P. One group of four warps per Q tile.

A group waits for its S, and where it writes what others read, until they have read what was there before:

    P over the other S        `s_read` of the other group, which has it in registers; P of the step before went away when
                              that S was written, which the tensor core did after PV
    scales of P, one atom     `o_full`: PV of the step before is done, and with it the copy of the atom
    acc_scale, one slot       likewise: PV follows the correction of its step, which has taken acc_scale by then
    row maximum and sum,      the first S of a work tile is issued before O of the one before is complete, the second not,
    two slots in turn         so at most two work tiles are on their way to the correction warps
"""

import cutlass
from cutlass import cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from mxfp8fa.kernels.forward.direct import half_sum
from mxfp8fa.kernels.forward.dynamic import block_maxima, largest_of, scale_values, store_scale_word
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.plan import P_COLUMN, Q_TILES, SFP_COLUMN, TILE_M, TILE_N, Config
from mxfp8fa.kernels.forward.rows import lane_sum, largest, load_scores, mask, probabilities, rounded, update_max
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3
from mxfp8fa.kernels.steps.step4_quantizer import store_row, store_scales
from mxfp8fa.kernels.steps.step5_attention_tile import reference
from mxfp8fa.numerics.softmax import E8M0_BIAS


@cute.jit
def softmax(cta: Fixed, i: cutlass.Int32) -> None:
    """Q tile i of every work tile."""
    work, events, config = cta.work, cta.events, cta.config
    thread = cute.arch.thread_idx()[0] % TILE_M
    tStS, tOther = cta.tmem + i * TILE_N, cta.tmem + (1 - i) * TILE_N
    scores, others, ended = cutlass.Int32(0), cutlass.Int32(0), cutlass.Int32(0)
    for index in cutlass.range(work.first, work.count, work.step, unroll=1):
        tile = work.tile(index)
        kv_tiles, after_tile = tile.kv_tiles(i), others + tile.kv_tiles(1 - i)
        # S of the other Q tile that are issued before PV of this one's last step.
        last = after_tile + i
        last_issued = after_tile + i * meets_next(work, index, config.interleave)
        first_query = (tile.q_tile + i) * TILE_M
        all_see, sees = tile.keys_seen(first_query), tile.keys_seen(first_query + thread)
        row_max, row_sum = -cutlass.Float32.inf, cutlass.Float32(0)
        for j in cutlass.range(kv_tiles, unroll=1):
            first_key = (kv_tiles - 1 - j) * TILE_N
            events.s_full(i).wait(scores)
            row = load_scores(tStS, TILE_N, thread)
            events.s_read(i).arrive(scores)
            if first_key + TILE_N > all_see:
                mask(row, sees - first_key)
            maxima = block_maxima(row) if config.dynamic else None
            tile_max = largest_of(maxima) if config.dynamic else largest(row)
            row_max, acc_scale = update_max(row_max, tile_max, cta.scale_log2, config.rescale_threshold)
            events.o_full(i).wait_one_turn_before(scores)
            if j > 0:  # the first O of a work tile is not added to anything
                cta.acc_scale[i * TILE_M + thread] = acc_scale
                events.scale_full(i).arrive(scores - ended - 1)
            codes = cute.make_rmem_tensor(TILE_N, E4M3)
            scales = probabilities(row, codes, row_max, maxima, cta.scale_log2, config)
            issued = cutlass.min(cutlass.max(last - (kv_tiles - 1) + j, others), last_issued)
            pin(cute.recast_tensor(codes, cutlass.Int32))
            if issued > 0:
                events.s_read(1 - i).wait_one_turn_before(issued)
            store_row(cute.recast_tensor(codes, cutlass.Float32), tOther + P_COLUMN, thread)
            if cutlass.const_expr(config.dynamic):
                store_scale_word(scales, cta.p_scales, i, thread)
            else:
                store_constant_scales(E8M0_BIAS - config.p_offset, tOther + SFP_COLUMN, thread)
            cute.arch.fence_view_async_tmem_store()
            events.p_full(i).arrive(scores)
            row_sum = add_to_sum(row_sum, acc_scale, row, codes, scales, config)
            if cutlass.const_expr(config.direct_columns):  # the direct code of a NaN may be 0: the sum carries it
                row_sum += reference(row_max) - reference(row_max)
            scores += 1
        if kv_tiles > 0:
            slot = (ended % 2 * Q_TILES + i) * TILE_M + thread
            cta.row_max[slot], cta.row_sum[slot] = row_max, row_sum
            events.sum_full(i).arrive(ended)
            ended += 1
        others = after_tile


def pin(words: cute.Tensor) -> None:
    """Compute the words here: without it the compiler moves their exponentials behind the next wait, to their use."""
    for i in range(cute.size(words)):
        words[i] = pinned(words[i])


@dsl_user_op
def pinned(word: cutlass.Int32, *, loc: object = None, ip: object = None) -> cutlass.Int32:
    """The word itself, from where nothing that makes it can be moved down."""
    operands = [cutlass.Int32(word).ir_value(loc=loc, ip=ip)]
    return cutlass.Int32(
        llvm.inline_asm(T.i32(), operands, "mov.b32 $0, $1;", "=r,r", has_side_effects=True, loc=loc, ip=ip)
    )


@cute.jit
def meets_next(work: Fixed, index: cutlass.Int32, interleave: cutlass.Constexpr[bool]) -> cutlass.Int32:
    """1 if the first step of the next work tile has scores of Q tile 0, which come before the last PV of this one."""
    meets = cutlass.Int32(0)
    if cutlass.const_expr(interleave):  # noqa: SIM102  (one condition is known at compile time, the other is not)
        if index + work.step < work.count:
            following = work.tile(index + work.step)
            n0, n1 = following.kv_tiles(0), following.kv_tiles(1)
            meets = cutlass.Int32(n0 > 0) * cutlass.Int32(n0 >= n1)
    return meets


def store_constant_scales(scale: int, tSFP: cute.Pointer, thread: cutlass.Int32) -> None:
    """One code for every block of every row: all threads write the same word."""
    store_scales(cutlass.Int32(scale * 0x01010101), tSFP, None, scale, thread)


def add_to_sum(
    row_sum: cutlass.Float32,
    acc_scale: cutlass.Float32,
    row: cute.Tensor,
    codes: cute.Tensor,
    scales: list[cutlass.Int32],
    config: Config,
) -> cutlass.Float32:
    """row_sum * acc_scale + the sum of P, before its rounding or after; P is on its way already."""
    # An explicit rounding, or the compiler makes one fma of this product and the sum's first addition.
    kept = cute.math.mul(row_sum, acc_scale, rounding=cute.math.RoundingMode.NEAREST_EVEN)
    if config.half_sum:
        return kept + half_sum(cute.recast_tensor(codes, cutlass.Int32))
    values = rounded(codes) if config.rounded_sum else row
    if not config.dynamic:
        return lane_sum(values, kept)
    for block, scale in enumerate(scale_values(scales)):
        kept = cute.math.fma(lane_sum(cute.local_tile(values, (BLOCK,), (block,))), scale, kept)
    return kept
