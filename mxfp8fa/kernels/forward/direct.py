"""Codes of P without exponentials: one fma a score, and a conversion that packs; and the sum of the codes in float16.

An E4M3 code read as an integer is 8 * (log2 P + 7) but for the curvature of a binade, and log2 P is what an fma makes of a
score. Two instruction sequences round that number y, pack and clamp it (`mxfp8fa.numerics.softmax` is their model):

    integer      cvt.rni.s32.f32 twice and cvt.pack.sat.u8.s32.b32, which ptxas turns into one F2IP for two scores
    subnormal    y * 2^-24 rounded to a float16 subnormal, whose bits are the integer: cvt.rn.relu.f16x2.f32 for two
                 scores, then prmt gathers the low bytes of two pairs
"""

import cutlass
import numpy as np
from cutlass import cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from mxfp8fa.kernels.forward.plan import Config
from mxfp8fa.numerics.softmax import E4M3_BIAS

CODES_PER_WORD = 4
SHARE_PERIOD = 16  # direct and exact columns alternate with this period; the last ones of it are direct
GAIN = 8.0  # codes per binade
SUBNORMAL_UNIT = 2.0**-24  # of float16
HALF_LANES = 8


@cute.jit
def direct_words(
    row: cute.Tensor,
    words: cute.Tensor,
    m: cutlass.Float32,
    scale_log2: cutlass.Float32,
    offsets: list,
    config: cutlass.Constexpr[Config],
) -> None:
    """Direct codes of the last columns of every 16, into their words.

    Args:
        row: (n,) masked scores.
        words: (n / 4,) Int32, four codes each; words of other columns are left alone.
        m: what scores are measured from, small enough for one fma.
        scale_log2: softmax_scale * log2(e).
        offsets: log2 of the factor on P, one for all columns or one for each equal part of them.
        config: what is said of direct codes.
    """
    unit = SUBNORMAL_UNIT if config.subnormal else 1.0
    slope = scale_log2 * cutlass.Float32(GAIN * unit)
    at_zero = cutlass.Float32(float(np.float32(E4M3_BIAS + config.direct_bias)))
    addends = [cute.math.fma(-m, slope, (at_zero + offset) * cutlass.Float32(GAIN * unit)) for offset in offsets]
    for word in cutlass.range_constexpr(cute.size(words)):
        first = word * CODES_PER_WORD
        if cutlass.const_expr(first % SHARE_PERIOD >= SHARE_PERIOD - config.direct_columns):
            addend = addends[word * len(addends) // cute.size(words)]
            y0, y1 = cute.arch.fma_packed_f32x2((row[first], row[first + 1]), (slope, slope), (addend, addend))
            y2, y3 = cute.arch.fma_packed_f32x2((row[first + 2], row[first + 3]), (slope, slope), (addend, addend))
            words[word] = packed_subnormals(y0, y1, y2, y3) if config.subnormal else packed_integers(y0, y1, y2, y3)


@dsl_user_op
def packed_integers(
    y0: cutlass.Float32,
    y1: cutlass.Float32,
    y2: cutlass.Float32,
    y3: cutlass.Float32,
    *,
    loc: object = None,
    ip: object = None,
) -> cutlass.Int32:
    """Four numbers rounded to integers, clamped to 0..255 and packed, the first lowest (PTX ISA, cvt and cvt.pack)."""
    instruction = """{
        .reg .s32 a, b; .reg .b32 upper;
        cvt.rni.s32.f32 a, $4; cvt.rni.s32.f32 b, $3; cvt.pack.sat.u8.s32.b32 upper, a, b, 0;
        cvt.rni.s32.f32 a, $2; cvt.rni.s32.f32 b, $1; cvt.pack.sat.u8.s32.b32 $0, a, b, upper;
    }"""
    operands = [cutlass.Float32(y).ir_value(loc=loc, ip=ip) for y in (y0, y1, y2, y3)]
    return cutlass.Int32(llvm.inline_asm(T.i32(), operands, instruction, "=r,f,f,f,f", loc=loc, ip=ip))


@dsl_user_op
def packed_subnormals(
    y0: cutlass.Float32,
    y1: cutlass.Float32,
    y2: cutlass.Float32,
    y3: cutlass.Float32,
    *,
    loc: object = None,
    ip: object = None,
) -> cutlass.Int32:
    """Four multiples of 2^-24 rounded to integers, not below 0, and packed, the first lowest; NaN becomes 0xFF."""
    instruction = """{
        .reg .b32 low, high;
        cvt.rn.relu.f16x2.f32 low, $2, $1; cvt.rn.relu.f16x2.f32 high, $4, $3;
        prmt.b32 $0, low, high, 0x6420;
    }"""
    operands = [cutlass.Float32(y).ir_value(loc=loc, ip=ip) for y in (y0, y1, y2, y3)]
    return cutlass.Int32(llvm.inline_asm(T.i32(), operands, instruction, "=r,f,f,f,f", loc=loc, ip=ip))


def half_sum(words: cute.Tensor) -> cutlass.Float32:
    """Sum of the codes in (n / 4,) words in the order of `numerics.softmax.half_sum`: four packed pairs of float16."""
    lanes = []
    for word in range(cute.size(words)):
        pairs = decoded_pairs(words[word])
        for half in range(2):
            lane = word % 2 * 2 + half
            if word < 2:
                lanes.append(pairs[half])
            else:
                lanes[lane] = add_pairs(lanes[lane], pairs[half])
    return promoted_sum(add_pairs(add_pairs(lanes[0], lanes[1]), add_pairs(lanes[2], lanes[3])))


def decoded_pairs(word: cutlass.Int32) -> list[cutlass.Int32]:
    """Four E4M3 codes as two packed pairs of float16, exactly."""
    return [decoded_pair(word, upper=upper) for upper in (False, True)]


@dsl_user_op
def decoded_pair(word: cutlass.Int32, *, upper: bool, loc: object = None, ip: object = None) -> cutlass.Int32:
    """The lower or upper two codes of a word as float16 (PTX ISA, cvt.rn.f16x2.e4m3x2)."""
    chosen = "high" if upper else "low"
    instruction = f"{{ .reg .b16 low, high; mov.b32 {{low, high}}, $1; cvt.rn.f16x2.e4m3x2 $0, {chosen}; }}"
    operands = [cutlass.Int32(word).ir_value(loc=loc, ip=ip)]
    return cutlass.Int32(llvm.inline_asm(T.i32(), operands, instruction, "=r,r", loc=loc, ip=ip))


@dsl_user_op
def add_pairs(a: cutlass.Int32, b: cutlass.Int32, *, loc: object = None, ip: object = None) -> cutlass.Int32:
    """Two additions in float16 (PTX ISA, add.rn.f16x2)."""
    operands = [cutlass.Int32(x).ir_value(loc=loc, ip=ip) for x in (a, b)]
    return cutlass.Int32(llvm.inline_asm(T.i32(), operands, "add.rn.f16x2 $0, $1, $2;", "=r,r,r", loc=loc, ip=ip))


@dsl_user_op
def promoted_sum(pair: cutlass.Int32, *, loc: object = None, ip: object = None) -> cutlass.Float32:
    """The sum of a pair of float16 in float32."""
    instruction = """{
        .reg .b16 low, high; .reg .f32 x, y;
        mov.b32 {low, high}, $1; cvt.f32.f16 x, low; cvt.f32.f16 y, high; add.rn.f32 $0, x, y;
    }"""
    operands = [cutlass.Int32(pair).ir_value(loc=loc, ip=ip)]
    return cutlass.Float32(llvm.inline_asm(T.f32(), operands, instruction, "=f,r", loc=loc, ip=ip))
