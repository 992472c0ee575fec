"""Whole kernels with both engines: the same memory, the same counts, the same schedule, the same errors."""

import numpy as np
import pytest
from both_engines import both_engines

from mxfp8fa.emulator import compiled, run_ptx
from mxfp8fa.emulator.compiled import engine
from mxfp8fa.emulator.errors import BarrierError, DeadlockError, OutOfBounds, PoisonError
from mxfp8fa.emulator.machine.machine import QUANTUM
from mxfp8fa.emulator.machine.program import load_program

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no machine code here")

SCHEDULES = [{"schedule": "eager"}, {"schedule": "lazy"}, {"schedule": "random", "seed": 3}, {"check": "races"}]
HEAD = ".version 8.7\n.target sm_100a\n.address_size 64\n"


def kernel(body, registers=""):
    return f"""{HEAD}
.visible .entry k(.param .u64 x, .param .u32 n)
{{
  .reg .pred %p, %q, %w; .reg .b32 %t, %v, %s, %i, %n, %a, %m; .reg .b64 %x, %y, %pair; .reg .f32 %f, %g;
  .shared .align 16 .b8 buffer[8192];
  {registers}
  mov.u32 %t, %tid.x;
  ld.param.u64 %x, [x];
  ld.param.u32 %n, [n];
  mad.wide.u32 %y, %t, 4, %x;
  mov.u32 %i, 0;
{body}
  ret;
}}
"""


def run(body, threads=64, rounds=60, words=256, registers="", **options):
    """x after `rounds` rounds; both engines have agreed on it, and the second one has run compiled code."""
    text = kernel(body, registers)
    x = np.arange(words, dtype=np.uint32)
    with both_engines() as programs:
        run_ptx(text, "k", grid=2, block=threads, params=[x, rounds], **options)
    assert programs
    regions = load_program(text, "k").engine.regions.values()
    assert any(r.address for r in regions), "nothing was compiled: this test proves nothing"
    return x


LOOP = """
again:
  {body}
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra again;
"""
STORE = "\n  st.global.u32 [%y], %v;"
BODIES = {
    "arithmetic and packing": """
  ld.global.u32 %v, [%y]; cvt.rn.f32.u32 %f, %v; mov.b64 %pair, {%f, %g0};
  fma.rn.f32x2 %pair, %pair, %pair, %pair; mov.b64 {%f, %g}, %pair; ex2.approx.ftz.f32 %g, %g;
  mul.f32 %f, %f, 0f3F000001; cvt.rni.s32.f32 %v, %f; and.b32 %v, %v, 0xFFFF; st.global.u32 [%y], %v;""",
    "guards and divergence": """
  and.b32 %s, %t, 7; setp.gt.u32 %q, %s, 3; setp.eq.u32 %w, %s, %i;
  @%q add.u32 %v, %v, %s; @!%q xor.b32 %v, %v, %i; @%w bra skip;
  mad.lo.u32 %v, %v, 3, 1;
skip: shl.b32 %a, %v, 1;""",
    "shared memory": """
  mov.u32 %a, buffer; mad.lo.u32 %a, %t, 16, %a; st.shared.v2.b32 [%a+8], {%t, %i}; bar.sync 0;
  xor.b32 %m, %t, 5; mov.u32 %s, buffer; mad.lo.u32 %s, %m, 16, %s; ld.shared.v2.b32 {%v, %m}, [%s+8];
  setp.lt.u32 %q, %t, 9; @%q st.shared.b32 [%a], %v; mad.lo.u32 %v, %v, 7, %m; bar.sync 0;""",
    "collectives": """
  shfl.sync.bfly.b32 %v|%q, %t, 3, 31, -1; vote.sync.ballot.b32 %m, %q, -1; redux.sync.add.u32 %s, %v, -1;
  elect.sync %a|%w, -1; @%w add.u32 %s, %s, 1; xor.b32 %v, %s, %m; add.u32 %v, %v, %i;""",
    "poison that only moves": """
  setp.lt.u32 %q, %t, 40; @%q mov.u32 %u, %i; mov.b64 %pair, {%u, %t}; mov.b64 {%s, %a}, %pair;
  mov.u32 %v, %a; @%q add.u32 %v, %s, %a;""",
    "named barriers": """
  and.b32 %s, %t, 32; setp.eq.u32 %q, %s, 0; mov.u32 %a, buffer; @%q bra first;
  st.shared.u32 [%a], %i; bar.arrive 1, 64; barrier.sync 2, 64; ld.shared.u32 %v, [%a+4]; bra both;
first: bar.sync 1, 64; ld.shared.u32 %v, [%a]; add.u32 %v, %v, 7; st.shared.u32 [%a+4], %v; bar.arrive 2, 64;
both: bar.sync 3, 64;""",
    "named barriers that reduce in some rounds": """
  and.b32 %s, %i, 3; setp.eq.u32 %q, %s, 0; setp.gt.u32 %w, %t, 20; @%q bra reduces; bar.sync 1, 64; bra go;
reduces: barrier.red.popc.u32 %v, 1, 64, %w;
go: add.u32 %v, %v, 1;""",
    "groups that wait for one another": """
  and.b32 %s, %t, 31; setp.eq.u32 %q, %s, 5; mov.u32 %a, buffer; and.b32 %m, %t, 32;
  add.u32 %a, %a, %m; @!%q bra meet; st.shared.u32 [%a], %i; add.u32 %v, %v, 3;
meet: bar.warp.sync -1; ld.shared.u32 %s, [%a]; add.u32 %v, %v, %s; and.b32 %s, %t, 3;
  setp.gt.u32 %w, %s, 1; @%w bra odd;
  bar.warp.sync 0x33333333; mad.lo.u32 %v, %v, 3, 1; bra on;
odd: bar.warp.sync 0xCCCCCCCC; mad.lo.u32 %v, %v, 5, 2;
on: bar.sync 0, 64;""",
    "a guard around bits of three operands": """
  and.b32 %a, %t, 1; setp.eq.u32 %q, %a, 0; ld.global.b32 %s, [%y]; ld.global.b32 %m, [%x+84];
  @%q copysign.f32 %s, %s, %m; add.u32 %v, %v, %s;""",
    "parameters": """
  ld.param.u32 %s, [n]; ld.param.v2.b8 {%h, %k}, [n]; ld.param.s8 %m, [n]; ld.param.u64 %pair, [x]; cvt.u32.u16 %a, %h;
  setp.lt.u32 %q, %t, 7; @%q ld.param.u16 %v, [n]; mad.lo.u32 %v, %a, %s, %v; add.u32 %v, %v, %m;""",
    "a loop of its own for every thread": """
  and.b32 %s, %t, 15; mov.u32 %v, 0;
inner: mad.lo.u32 %v, %v, 5, %i; setp.ne.u32 %q, %s, 0; @%q sub.u32 %s, %s, 1; @%q bra inner;""",
}
EXTRA = ".reg .f32 %g0; .reg .b32 %u; .reg .b16 %h, %k; mov.f32 %g0, 0f3F800000; mov.u32 %v, 1; setp.ne.u32 %q, 0, 0;"


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("name", BODIES)
def test_kernels(name, options):
    body = LOOP.format(body=BODIES[name])
    run(body + ("" if "st.global" in body else STORE), registers=EXTRA, **options)


def arrivals(body):
    """Two warps and an mbarrier that both arrive at in every round."""
    return (
        "  mov.u32 %a, buffer; setp.eq.u32 %q, %t, 0; @%q mbarrier.init.shared.b64 [%a], 64; bar.sync 0;"
        + LOOP.format(body=body) + "\n  ld.shared.u64 %pair, [%a]; mov.b64 {%v, %s}, %pair;" + STORE
    )  # fmt: skip


ROUND = """
  mbarrier.arrive.shared.b64 %pair, [%a]; and.b32 %m, %i, 1;
wait: mbarrier.try_wait.parity.shared.b64 %w, [%a], %m; @!%w bra wait;"""


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: "-".join(map(str, o.values())))
def test_mbarriers(options):
    run(arrivals(ROUND), **options)


ONE_WAITS = """
  setp.eq.u32 %q, %t, 3; mov.u32 %v, %i; @!%q bra others; and.b32 %m, %i, 1;
wait: mbarrier.try_wait.parity.shared.b64 %w, [%a], %m; @!%w bra wait;
  st.shared.u32 [%a+8], %i; bra together;
others: setp.ge.u32 %q, %t, 32; @%q mbarrier.arrive.shared.b64 %pair, [%a];
  setp.lt.u32 %q, %t, 32; mbarrier.arrive.shared.b64 %pair, [%a];
together: bar.sync 1, 64;"""


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: "-".join(map(str, o.values())))
def test_a_thread_that_waits_apart_from_its_warp(options):
    """Lane 3 waits on an mbarrier; the other 31 lanes, and twice each lane of the other warp, arrive."""
    body = arrivals(ONE_WAITS).replace("[%a], 64;", "[%a], 95;")
    run(body, **options)


PARTS_ARRIVE = """
  and.b32 %m, %t, 31; mov.u32 %s, 0; mov.u32 %v, %i; setp.ne.u32 %q, %m, 0; @%q bra meet;
inner: add.u32 %s, %s, 1; setp.lt.u32 %w, %s, 30; @%w bra inner;
meet: barrier.sync 0;"""


@pytest.mark.parametrize("options", SCHEDULES, ids=lambda o: "-".join(map(str, o.values())))
def test_a_thread_that_comes_to_a_barrier_where_its_warp_waits(options, monkeypatch):
    """Lane 0 is late by more than a turn: the other 31 wait in the middle of the very instruction that it comes to.

    Compiled code stops where groups meet, and these do not become one: Python has to go on, or nobody ever does.
    """
    for schedule in QUANTUM:
        monkeypatch.setitem(QUANTUM, schedule, 40)
    run(LOOP.format(body=PARTS_ARRIVE) + STORE, **options)


def test_a_deadlock_of_compiled_waits_is_reported_as_by_python():
    """In round 40 warp 1 waits at barrier 1 and warp 0 on an mbarrier that nobody else arrives at."""
    stuck = "setp.ge.u32 %q, %t, 32; setp.gt.u32 %w, %i, 39; and.pred %q, %q, %w; @%q bar.sync 1, 64;"
    with pytest.raises(DeadlockError) as found:
        run(arrivals(stuck + ROUND))
    assert "barrier 1: 32 of 64 threads arrived, last warp 1 at PTX line" in str(found.value)
    assert "waits for phase parity 0 on the mbarrier at shared offset 0x400" in str(found.value)


def test_who_arrived_last_is_known_after_compiled_arrivals():
    """After 40 rounds the second warp leaves: the report names its last arrival, or the first warp's."""
    early = "setp.ge.u32 %q, %t, 32; setp.gt.u32 %w, %i, 39; and.pred %q, %q, %w; @%q ret;"
    with pytest.raises(DeadlockError, match=r"last arrival: CTA .* warp 0 at PTX line"):
        run(arrivals(early + ROUND))


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ("mad.wide.u32 %y, %i, 400, %x; st.global.u32 [%y], %i; mov.u32 %v, %i;", OutOfBounds, "store of 4 bytes"),
        ("mad.lo.u32 %a, %i, 400, %t; and.b32 %a, %a, -4; ld.shared.u32 %v, [%a];", OutOfBounds, "load of 4 bytes"),
        (
            "selp.b64 %pair, -4, %y, %q; ld.global.u32 %v, [%pair]; setp.gt.u32 %q, %i, 50;",
            OutOfBounds,
            "load of 4 bytes",
        ),
        (
            "selp.b64 %pair, -8, %x, %q; st.global.v2.u32 [%pair], {%t, %i}; setp.gt.u32 %q, %i, 50;",
            OutOfBounds,
            "store of 8",
        ),
        ("setp.gt.u32 %q, %i, 50; @%q mov.u32 %v, %u; setp.eq.u32 %w, %v, 7; @%w bra again;", PoisonError, "decides"),
        (
            "mov.u32 %a, buffer; setp.eq.u32 %q, %i, 45; @%q mbarrier.arrive.shared.b64 _, [%a];",
            PoisonError,
            "mbarrier",
        ),
    ],
)
def test_errors_are_the_same(body, error, text, monkeypatch):
    """The error comes after the code has become hot (a barrier ends the turn of every round), and is that of the Python step."""
    monkeypatch.setattr(engine, "PATIENCE_STEPS", 0)
    with pytest.raises(error, match=text):
        run(LOOP.format(body=body + " bar.sync 0;"), registers=EXTRA)


def test_too_many_arrivals():
    with pytest.raises(BarrierError, match="more arrivals than expected"):
        run(arrivals("setp.eq.u32 %q, %i, 30; @%q mbarrier.arrive.shared.b64 _, [%a], 3;" + ROUND))
