"""What a softmax thread computes on its row, in the float32 operations of `mxfp8fa.numerics.softmax` and their order."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import tcgen05

from mxfp8fa.kernels.forward.direct import SHARE_PERIOD, direct_words
from mxfp8fa.kernels.forward.dynamic import block_scales
from mxfp8fa.kernels.forward.plan import Config
from mxfp8fa.kernels.steps.step3_block_scaled import E4M3
from mxfp8fa.kernels.steps.step4_quantizer import lanes
from mxfp8fa.kernels.steps.step5_attention_tile import lane_sum, largest, reference
from mxfp8fa.numerics.exp2 import POLYNOMIAL, POLYNOMIAL_LOWEST, POLYNOMIAL_ROUND
from mxfp8fa.numerics.softmax import LN_2, REFERENCE_LIMIT_LOG2

PART = 32  # columns of tensor memory that an instruction loads
MANTISSA_BITS = 23

__all__ = ["finish", "lane_sum", "largest", "load_scores", "mask", "probabilities", "rounded", "update_max"]


def load_scores(tmem: cute.Pointer, columns: int, thread: cutlass.Int32) -> cute.Tensor:
    """The thread's row in registers, by loads of 32 columns: one of 128 needs more registers than a launch of 512 has."""
    row = cute.make_rmem_tensor(columns, cutlass.Float32)
    for column in range(0, columns, PART):
        tile = lanes(tmem + column, PART)
        op = tcgen05.Ld32x32bOp(tcgen05.Repetition(PART))
        tiled_load = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tile)
        thread_load = tiled_load.get_slice(thread)
        part = cute.make_tensor(row.iterator + column, cute.make_layout(thread_load.partition_D(tile).shape))
        cute.copy(tiled_load, thread_load.partition_S(tile), part)
    cute.arch.fence_view_async_tmem_load()  # tcgen05.wait::ld: only now are the registers defined
    return row


@cute.jit
def mask(row: cute.Tensor, keys: cutlass.Int32) -> None:
    """-infinity for all scores but the first `keys`; a NaN there disappears too."""
    for i in cutlass.range(cute.size(row), unroll_full=True):
        row[i] = row[i] if i < keys else -cutlass.Float32.inf


@cute.jit
def update_max(
    row_max: cutlass.Float32,
    tile_max: cutlass.Float32,
    scale_log2: cutlass.Float32,
    rescale_threshold: cutlass.Constexpr[float],
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """The maximum to measure from, and the factor on what was summed before."""
    raised = cute.arch.fmax(row_max, tile_max, nan=True)
    growth_log2 = (row_max - reference(raised)) * scale_log2  # <= 0, or NaN
    keep = growth_log2 >= -rescale_threshold
    acc_scale = cutlass.Float32(1) if keep else cute.math.exp2(growth_log2, fastmath=True)
    return row_max if keep else raised, acc_scale


@cute.jit
def probabilities(
    row: cute.Tensor,
    codes: cute.Tensor,
    row_max: cutlass.Float32,
    maxima: cute.Tensor,
    scale_log2: cutlass.Float32,
    config: cutlass.Constexpr[Config],
) -> list[cutlass.Int32]:
    """Scores to P, in place and over its block scale, and their E4M3 codes; direct columns have codes only.

    Args:
        row: masked scores.
        codes: out.
        row_max: what they are measured from.
        maxima: of each 32 of them, changed; None if scales are constant, 2^-p_offset.
        scale_log2: softmax_scale * log2(e).
        config: what is compiled in.

    Returns:
        Words whose low byte is the scale's code of each block; none if scales are constant.
    """
    m = reference(row_max)
    product = m * scale_log2
    if cutlass.max(product, -product) > cutlass.Float32(float(REFERENCE_LIMIT_LOG2)):
        row.store(row.load() - m)
        if cutlass.const_expr(config.dynamic):
            maxima.store(maxima.load() - m)
        m = cutlass.Float32(0)
    scales: list[cutlass.Int32] = []
    offsets = [cutlass.Float32(config.p_offset)]
    if cutlass.const_expr(config.dynamic):
        scales, offsets = block_scales(maxima, m, scale_log2)
    if cutlass.const_expr(config.direct_columns):
        words = cute.recast_tensor(codes, cutlass.Int32)
        direct_words(row, words, m, scale_log2, offsets, config)
    exponentials(row, scale_log2, [cute.math.fma(-m, scale_log2, offset) for offset in offsets], config)
    for first in cutlass.range_constexpr(0, cute.size(row), SHARE_PERIOD):
        for word in cutlass.range_constexpr(first // 4, (first + SHARE_PERIOD - config.direct_columns) // 4):
            part = cute.local_tile(row, (4,), (word,))
            cute.local_tile(codes, (4,), (word,)).store(part.load().to(E4M3))
    return scales


def exponentials(row: cute.Tensor, scale_log2: cutlass.Float32, addends: list, config: Config) -> None:
    """2^(scale_log2 * score + addend) in place, of all columns but the direct ones; an addend for each equal part."""
    for i in range(0, cute.size(row), 2):
        if i % SHARE_PERIOD < SHARE_PERIOD - config.direct_columns:
            addend = addends[i * len(addends) // cute.size(row)]
            x = cute.arch.fma_packed_f32x2((row[i], row[i + 1]), (scale_log2, scale_log2), (addend, addend))
            if i % SHARE_PERIOD < config.polynomial_columns:
                row[i], row[i + 1] = exp2_polynomial(*x)
            else:
                row[i], row[i + 1] = (cute.math.exp2(y, fastmath=True) for y in x)


def exp2_polynomial(x0: cutlass.Float32, x1: cutlass.Float32) -> list[cutlass.Float32]:
    """Two powers of two without the special function unit: `mxfp8fa.numerics.exp2.exp2_polynomial`, packed."""
    lowest, (c1, c2) = float(POLYNOMIAL_LOWEST), ((float(c),) * 2 for c in POLYNOMIAL)
    round_up, round_down = (float(POLYNOMIAL_ROUND),) * 2, (-float(POLYNOMIAL_ROUND),) * 2
    x = tuple(cute.arch.fmax(y, lowest) for y in (x0, x1))
    n = cute.arch.add_packed_f32x2(x, round_up)
    f = cute.arch.sub_packed_f32x2(x, cute.arch.add_packed_f32x2(n, round_down))
    p = cute.arch.fma_packed_f32x2(c2, f, c1)
    p = cute.arch.fma_packed_f32x2(p, f, (1.0, 1.0))
    bits = [p[i].bitcast(cutlass.Int32) + (n[i].bitcast(cutlass.Int32) << MANTISSA_BITS) for i in range(2)]
    return [b.bitcast(cutlass.Float32) for b in bits]


def rounded(codes: cute.Tensor) -> cute.Tensor:
    """The values of E4M3 codes."""
    values = cute.make_rmem_tensor(cute.size(codes), cutlass.Float32)
    values.store(codes.load().to(cutlass.Float32))
    return values


@cute.jit
def finish(
    row_max: cutlass.Float32,
    row_sum: cutlass.Float32,
    scale_log2: cutlass.Float32,
    p_offset: cutlass.Constexpr[int],
) -> tuple[cutlass.Float32, cutlass.Float32]:
    """1 / row sum, which O is multiplied by, and lse."""
    total = row_sum * cutlass.Float32(2.0**-p_offset)
    log2_total = cute.math.log2(total, fastmath=True)
    lse = cute.math.fma(reference(row_max), scale_log2, log2_total) * cutlass.Float32(float(LN_2))
    divisor = cutlass.Float32(1) if total == 0.0 else total
    return cutlass.Float32(1) / divisor, lse
