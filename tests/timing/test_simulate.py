"""The event model on kernels of a few lines: what microbenchmarks of these instructions measure has to come out again."""

import numpy as np
import pytest

from mxfp8fa.emulator import run_ptx
from mxfp8fa.timing.binary import ToolError, assemble, disassemble, tool
from mxfp8fa.timing.paths import replay
from mxfp8fa.timing.rates import CONSTANTS, Rates
from mxfp8fa.timing.record import Recorder
from mxfp8fa.timing.simulate import simulate

try:
    tool("ptxas"), tool("nvdisasm")
except ToolError:
    pytest.skip("needs the extra `timing`", allow_module_level=True)

PTX = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x)
{{
  .reg .f32 %f<40>; .reg .b64 %x; .reg .b32 %r<8>; .reg .pred %p<4>;
  .shared .align 16 .b8 buffer[1024];
  ld.param.u64 %x, [x];
  mov.u32 %r0, %tid.x;
  mad.wide.u32 %x, %r0, 4, %x;
  ld.global.f32 %f0, [%x];
{body}
  st.global.f32 [%x], %f0;
  ret;
}}
"""


def replayed(body, threads=32):
    """A kernel's run and its SASS."""
    ptx = PTX.format(body=body)
    recorder = Recorder()
    run_ptx(ptx, "k", grid=1, block=threads, params=[np.ones(threads, np.float32)], trace=recorder, engine="numpy")
    (launch,) = recorder.finish()
    return replay(disassemble(assemble(ptx))["k"], launch)


def cycles(body, threads=32, **changes):
    return simulate(replayed(body, threads), Rates(changes)).cycles


def per_line(line, threads=32, first=8, then=24, **changes):
    """Cycles that each further copy of a line costs."""
    return (cycles(line * then, threads, **changes) - cycles(line * first, threads, **changes)) / (then - first)


FMA = "  fma.rn.f32 %f0, %f0, %f0, %f0;\n"
EX2 = "  ex2.approx.ftz.f32 %f0, %f0;\n"


def test_a_chain_runs_at_its_latency():
    assert per_line(FMA) == 4


def test_warps_of_one_scheduler_share_it():
    """Eight warps of a scheduler hide each other's latency: one instruction a cycle."""
    assert per_line(FMA, threads=32 * 8 * 4) == pytest.approx(8, rel=0.05)


def test_mufu_is_the_wall():
    """16 lanes an SM: a warp takes 8 cycles of its scheduler's unit, and 8 warps 64."""
    assert per_line(EX2, threads=32 * 8 * 4) == pytest.approx(64, rel=0.05)
    assert per_line(EX2) == pytest.approx(CONSTANTS["mufu"].value + CONSTANTS["mufu_latency"].value, abs=3)


def test_rates_matter():
    assert per_line(EX2, threads=1024, mufu=4) == pytest.approx(32, rel=0.1)
    with pytest.raises(ValueError, match=r"'sfu' is no constant of the model: allowed are fma, "):
        Rates({"sfu": 4})


EXCHANGE = """
  mov.u32 %r1, buffer;
  mad.lo.u32 %r2, %r0, {stride}, %r1;
  st.shared.f32 [%r2], %f0;
  bar.sync 0;
  ld.shared.f32 %f1, [%r2];
  add.rn.f32 %f0, %f0, %f1;
"""


def test_barriers_wait_for_the_slowest_warp():
    """One warp computes before it arrives; the others take as long."""
    branch = "  setp.ge.u32 %p1, %r0, 32;\n  @%p1 bra SKIP;\n" + FMA * 200 + "SKIP:\n"
    alone = cycles(EXCHANGE.format(stride=4), threads=128)
    with_work = replayed(branch + EXCHANGE.format(stride=4), threads=128)
    line = simulate(with_work)
    assert line.cycles - alone == pytest.approx(4 * 200, rel=0.1)
    waits = {reason: c for (warp, reason), c in line.stalls.cycles.items() if warp == 1}
    assert max(waits, key=waits.get) == "waits: barrier 0" and waits["waits: barrier 0"] > 600
    assert max(line.ends.values()) - min(line.ends.values()) < 50


def test_bank_conflicts_take_the_port():
    """A stride of 32 bytes puts 32 lanes into 4 banks: 8 cycles instead of 1, store and load."""
    plain, conflicting = (replayed(EXCHANGE.format(stride=s)) for s in (4, 32))
    assert [sorted(r.record.wavefronts.values()) for r in (plain, conflicting)] == [[(1, 1)] * 2, [(1, 8)] * 2]
    assert simulate(conflicting).cycles == simulate(plain).cycles + 7  # the load's; nobody waits for the store


LOOP = """
  mov.u32 %r3, {turns};
AGAIN:
  bar.sync 0;
""" + FMA * 3 + EX2 + """
  sub.u32 %r3, %r3, 1;
  setp.ne.u32 %p2, %r3, 0;
  @%p2 bra AGAIN;
"""


@pytest.mark.parametrize("turns", [1, 2, 7, 30])
def test_loops_are_matched_turn_by_turn(turns):
    """Whatever ptxas unrolls or peels, every exponential is executed as often as the emulator executed it."""
    r = replayed(LOOP.format(turns=turns), threads=64)
    assert r.coverage(("MUFU.EX2",)) == (2 * turns, 2 * turns)
    assert r.lost_share == 0 and all(path.forced == 0 for path in r.paths)


def test_paths_follow_the_branch_that_was_taken():
    """Two sides of a branch without anchors: the executed one is longer, and is found by its executed lines."""
    body = "  setp.gt.f32 %p1, %f0, 0f40000000;\n  @%p1 bra RARE;\n" + EX2 * 40 + "  bra.uni END;\nRARE:\n" + FMA + "END:\n"
    assert replayed(body).coverage(("MUFU.EX2",)) == (40, 40)
