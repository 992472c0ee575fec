"""Square quantization in registers: 32 lanes of a warp by 32 of their numbers share one scale.

The maximum of such a block is that of 32 registers, then one redux.sync across the warp (PTX ISA, redux.sync on f32:
sm_100a only; without .NaN it would drop a NaN, as max does). What follows is step 4's, for all four rules (`numerics.scale_rules`).
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK
from mxfp8fa.kernels.steps.step4_quantizer import SCALE_NAN, max3
from mxfp8fa.numerics.formats import E4M3
from mxfp8fa.numerics.scale_rules import carry_of_rule


@cute.jit
def square_scale(x: cute.Tensor, rule: cutlass.Constexpr[str]) -> cutlass.Int32:
    """The E8M0 code of the block that is register range `x` (32,) of all lanes; equal in all lanes."""
    amax = cutlass.Float32(0)
    for i in cutlass.range_constexpr(0, BLOCK, 2):
        amax = max3(amax, x[i], x[i + 1], abs=True)
    amax = cute.arch.warp_redux_sync(amax, "fmax", nan=True)
    bits = amax.bitcast(cutlass.Int32)
    scale = cutlass.max(((bits + carry_of_rule(rule, E4M3)) >> 23) - E4M3.max_exponent, 0)
    return scale if bits < 0x7F800000 else cutlass.Int32(SCALE_NAN)


@cute.jit
def scale_value(scale: cutlass.Int32) -> cutlass.Float32:
    """2^(scale - 127) by its bits: code 0 is 2^-127, a subnormal number, and 255 is NaN."""
    bits = scale << 23
    bits = bits if scale != 0 else cutlass.Int32(0x00400000)
    bits = bits if scale != SCALE_NAN else cutlass.Int32(0x7FFFFFFF)
    return bits.bitcast(cutlass.Float32)
