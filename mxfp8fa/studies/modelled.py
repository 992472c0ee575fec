"""Small kernels under the timing model, for the course. Needs the extra `timing`."""

from __future__ import annotations

import numpy as np

from mxfp8fa.emulator import run_ptx
from mxfp8fa.timing.binary import assemble, disassemble
from mxfp8fa.timing.paths import replay
from mxfp8fa.timing.rates import Rates
from mxfp8fa.timing.record import Recorder
from mxfp8fa.timing.simulate import simulate

LINES = {
    "fma": "fma.rn.f32 %f0, %f0, %f0, %f0;",
    "ex2": "ex2.approx.ftz.f32 %f0, %f0;",
    "max": "max.f32 %f0, %f0, 0f3F000001;  neg.f32 %f0, %f0;",
}
_PTX = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry chain(.param .u64 x)
{{
  .reg .f32 %f<4>; .reg .b64 %x; .reg .b32 %r<4>;
  ld.param.u64 %x, [x];
  mov.u32 %r0, %tid.x;
  mad.wide.u32 %x, %r0, 4, %x;
  ld.global.f32 %f0, [%x];
  {body}
  st.global.f32 [%x], %f0;
  ret;
}}
"""


def chain_cycles(line: str, copies: int, warps: int, rates: Rates | None = None) -> float:
    """Modelled cycles of a kernel that is a chain of `copies` dependent lines, in so many warps of one CTA.

    Args:
        line: PTX, one of LINES or your own with %f0 in and out.
        copies: how many of them follow each other.
        warps: 1 to 32; four schedulers share them.
        rates: of the model.
    """
    ptx, recorder = _PTX.format(body="\n  ".join([line] * copies)), Recorder()
    run_ptx(ptx, "chain", grid=1, block=32 * warps, params=[np.ones(32 * warps, np.float32)], trace=recorder)
    (launch,) = recorder.finish()
    return simulate(replay(disassemble(assemble(ptx))["chain"], launch), rates).cycles


def cycles_per_line(line: str, warps: int, rates: Rates | None = None) -> float:
    """What each further copy of a line costs: the difference of a chain of 24 and one of 8."""
    return (chain_cycles(line, 24, warps, rates) - chain_cycles(line, 8, warps, rates)) / 16
