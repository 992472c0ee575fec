"""Everything a kernel can do wrong is an error that says what, where and what is allowed."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.machine.kernels import HEAD_LINES, kernel, launch

STORE = " st.global.u32 [%rd4], %r9;"


def test_error_names_cta_warp_lane_and_line():
    out = np.zeros(40, np.uint32)
    with pytest.raises(em.OutOfBounds) as error:
        launch(" mov.u32 %r9, 1;\n" + STORE, out, block=64)
    site = error.value.site
    assert (site.cta, site.warp, site.lane, site.ptx_line) == ((0, 0, 0), 1, 8, HEAD_LINES + 2)
    assert "outside all valid memory" in str(error.value) and "parameter 0 (out)" in str(error.value)
    assert "st.global.u32" in str(error.value)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (" ld.global.u32 %r9, [%rd4+2];", em.Misaligned, "not a multiple of 4"),
        (" ld.global.v4.u32 {%r9,%r10,%r11,%r12}, [%rd4];", em.Misaligned, "not a multiple of 16"),
        (" ld.shared.u32 %r9, [%r2+4096];", em.OutOfBounds, "shared address 0x1400"),
        (" ld.shared.u64 %rd9, [%r2+4];", em.Misaligned, "not a multiple of 8"),
        (" mov.u64 %rd9, 0;\n ld.global.u32 %r9, [%rd9];", em.OutOfBounds, "global address 0x0"),
        (" setp.eq.u32 %p2, %r1, 0;\n @%p2 bra A;\n @%p1 bra A;\nA:", em.PoisonError, "decides what is executed"),
        (" ld.shared.u32 %r9, [%r2];\n st.global.u32 [%rd4], %r9;", em.PoisonError, "global memory"),
        (" ld.shared.u32 %r9, [%r2];\n ld.shared.u32 %r10, [%r9];", em.PoisonError, "address"),
        (" ld.shared.u32 %r9, [%r2];\n setp.eq.u32 %p1, %r9, 0;\n @%p1 bra A;\nA:", em.PoisonError, "decides"),
        (" ld.shared.u32 %r9, [%r2];\n bar.sync %r9;", em.PoisonError, "bar.sync"),
        (" mbarrier.arrive.shared.b64 _, [%r2];", em.PoisonError, "never initialised"),
        (" mov.u32 %r9, 0;\n mbarrier.init.shared.b64 [%r2], %r9;", em.BarrierError, "count 0"),
        (" bar.sync 16;", em.BarrierError, "0 to 15"),
        (" bar.sync 0, 48;", em.BarrierError, "multiples of 32"),
        (" bar.sync %r1;", em.BarrierError, "differs between the threads"),
        (" trap;", em.Trap, "trap"),
        (" setmaxnreg.inc.sync.aligned.u32 260;", em.IllegalOperation, "24 to 256"),
        (" barrier.cluster.wait;", em.BarrierError, "without an arrive"),
        (" setp.lt.u32 %p1, %r1, 4;\n @%p1 bra.uni A;\nA:", em.IllegalOperation, "disagree"),
        (" mov.u64 %rd9, -4;\n st.local.u32 [%rd9], %r1;", em.OutOfBounds, "local address 0xfffffffffffffffc"),
        (" mov.u64 %rd9, -8;\n ld.local.v2.u32 {%r9, %r10}, [%rd9];", em.OutOfBounds, "the thread has 16 bytes"),
        (" ld.local.u32 %r9, [lm+16];", em.OutOfBounds, "local address 0x10"),
        (" mapa.shared::cluster.u32 %r9, %r2, 3;\n ld.shared::cluster.u32 %r10, [%r9];", em.OutOfBounds, "rank 3"),
    ],
)  # fmt: skip
def test_misuse(body, kind, text):
    with pytest.raises(kind, match=text):
        launch(body, np.zeros(32, np.uint32))


def test_poison_may_be_moved_and_masked_but_strict_refuses_the_load():
    body = """
 ld.shared.u32 %r9, [%r2];
 and.b32 %r9, %r9, 0;
 setp.eq.u32 %p1, %r1, 99;
 ld.shared.u32 %r10, [%r2+4];
 selp.b32 %r10, %r10, %r9, %p1;
 st.global.u32 [%rd4], %r10;"""
    out = np.ones(32, np.uint32)
    launch(body, out)
    assert (out == 0).all()
    with pytest.raises(em.PoisonError, match="never written"):
        launch(body, out, uninitialised="strict")


def test_half_written_word_keeps_its_other_half_poisoned():
    body = " mov.b16 %h1, 7;\n st.shared.b16 [%r2], %h1;\n ld.shared.b32 %r9, [%r2];\n {}\n st.global.u32 [%rd4], %r9;"
    out = np.zeros(32, np.uint32)
    launch(body.format("and.b32 %r9, %r9, 0xFFFF;"), out)
    assert (out == 7).all()
    with pytest.raises(em.PoisonError):
        launch(body.format("and.b32 %r9, %r9, 0x1FFFF;"), out)


def test_deadlock_lists_who_waits_on_what_and_who_arrived_last():
    body = """
 setp.eq.u32 %p1, %r1, 0;
 mov.u32 %r9, 2;
 @%p1 mbarrier.init.shared.b64 [%r2], %r9;
 bar.sync 0;
 @%p1 mbarrier.arrive.shared.b64 _, [%r2];
W:
 mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
 @!%p2 bra W;"""
    with pytest.raises(em.DeadlockError) as error:
        launch(body, np.zeros(64, np.uint32), block=64)
    text = str(error.value)
    assert "waits for phase parity 0" in text and "1 of 2 arrivals pending" in text
    assert f"last arrival: CTA (0, 0, 0) warp 0 at PTX line {HEAD_LINES + 6}" in text
    assert text.count("warp") >= 2


def test_named_barrier_deadlock_names_the_barrier():
    body = " setp.lt.u32 %p1, %r1, 32;\n @%p1 bra A;\n bar.sync 1, 64;\nA:"
    with pytest.raises(em.DeadlockError, match="barrier 1: 32 of 64 threads arrived"):
        launch(body, np.zeros(64, np.uint32), block=64)


def test_spin_on_memory_that_nobody_writes_is_reported():
    body = "S:\n ld.volatile.global.u32 %r9, [%rd5];\n setp.eq.u32 %p1, %r9, 0;\n @%p1 bra S;"
    with pytest.raises(em.SpinError, match="nobody left can write"):
        launch(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_waiting_for_another_cta_works_when_it_comes_later(schedule):
    body = """
 mov.u32 %r9, %ctaid.x;
 setp.eq.u32 %p1, %r9, 1;
 @%p1 bra WRITE;
S:
 ld.volatile.global.u32 %r10, [%rd2];
 setp.eq.u32 %p2, %r10, 0;
 @%p2 bra S;
 st.global.u32 [%rd4], %r10;
 bra END;
WRITE:
 mov.u32 %r10, 5;
 st.volatile.global.u32 [%rd2], %r10;
END:"""
    out, flag = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    launch(body, out, flag, grid=2, schedule=schedule)
    assert (out == 5).all()


def test_too_many_arrivals():
    body = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 16;
 bar.warp.sync 0xffffffff;
 mbarrier.arrive.shared.b64 _, [%r2], 9;"""
    with pytest.raises(em.BarrierError, match="more arrivals than expected"):
        launch(body, np.zeros(32, np.uint32))


def test_unknown_instruction_is_refused_before_anything_runs():
    out = np.zeros(32, np.uint32)
    body = " mov.u32 %r9, 1;\n st.global.u32 [%rd4], %r9;\n add.rq.f32 %r9, %r9, %r9;\n frobnicate.b32 %r9;"
    with pytest.raises(em.UnsupportedInstruction) as error:
        launch(body, out)
    text = str(error.value)
    assert "add.rq.f32" in text and "frobnicate" in text and f"PTX line {HEAD_LINES + 3}" in text
    assert (out == 0).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "fast"}, "eager, lazy, random"),
        ({"uninitialised": "zero"}, "poison, strict"),
        ({"accumulate": "bf16"}, "float32, blackwell, exact"),
        ({"seed": 1.5}, "integer"),
        ({"sm_count": 0}, "at least 1"),
        ({"speed": 3}, "unknown option 'speed'"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(ValueError, match=text):
        launch("", np.zeros(32, np.uint32), **options)


@pytest.mark.parametrize(
    ("keywords", "kind", "text"),
    [
        ({"block": 1025}, em.LaunchError, "at most 1024"),
        ({"grid": 3, "cluster": 2}, em.LaunchError, "not a multiple"),
        ({"grid": 32, "cluster": 32}, em.LaunchError, "at most 16"),
        ({"smem_bytes": 232448}, em.LaunchError, "at most 232448"),
        ({"grid": 0}, ValueError, "at least 1"),
        ({"grid": 1.5}, ValueError, "one to three integers"),
        ({"grid": (1, 65536, 1)}, em.LaunchError, "at most"),
        ({"block": (1, 1, 65)}, em.LaunchError, "at most"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "one to three"),
        ({"params": [1]}, ValueError, "2 parameters"),
        ({"params": [1.5, 0]}, ValueError, "float does not fit"),
        ({"params": ["x", 0]}, ValueError, "allowed are"),
        ({"params": [1e300, 0]}, ValueError, "float does not fit"),
        ({"params": b"123"}, em.LaunchError, "16 bytes of parameters, 3"),
    ],
)
def test_wrong_launches(keywords, kind, text):
    arguments = {"grid": 1, "block": 32, "params": [np.zeros(32, np.uint32)] * 2} | keywords
    with pytest.raises(kind, match=text):
        em.run_ptx(kernel(""), "k", **arguments)


def test_missing_kernel_is_named():
    with pytest.raises(em.LaunchError, match=r"no kernel 'other'.*it has k"):
        em.run_ptx(kernel(""), "other", grid=1, block=32)


def test_a_failed_run_leaves_nothing_behind():
    out = np.zeros(32, np.uint32)
    with pytest.raises(em.EmulationError):
        launch(" st.global.u32 [%rd4], %r1;\n bar.sync 0;\n trap;", out)
    assert (out == np.arange(32)).all()
    out[:] = 0
    launch(" st.global.u32 [%rd4], %r1;", out)
    assert (out == np.arange(32)).all()
    gc.collect()
    from mxfp8fa.emulator.machine.cluster import Cluster

    assert not [x for x in gc.get_objects() if isinstance(x, Cluster)]


def test_a_lane_outside_its_own_mask():
    """bar.warp.sync is undefined for a thread that its membermask does not name."""
    with pytest.raises(
        em.IllegalOperation, match=r"bar\.warp\.sync: lane 1 executes it but is not in its membermask 0x00000001"
    ):
        launch(" bar.warp.sync 1;", np.zeros(32, np.uint32))
    launch(" shl.b32 %r9, 1, %r1;\n bar.warp.sync %r9;", np.zeros(32, np.uint32))  # each lane by itself


@pytest.mark.parametrize(
    "text",
    ["add.u32 %r9, %h1, 1;", "setp.eq.u32 %p1, %h1, 1;", "st.global.u32 [%rd4], %h1;", "add.u64 %rd9, %rd4, %r1;"],
)
def test_registers_too_narrow_for_what_is_read(text):
    """As ptxas: "Arguments mismatch"; only ld, st and cvt take registers of another size, and those wider ones."""
    with pytest.raises(
        em.UnsupportedInstruction, match=r"register %\w+ has (16|32) bits, but the instruction reads (32|64)"
    ):
        launch(f" mov.u16 %h1, 1;\n {text}", np.zeros(32, np.uint32))


def test_local_memory_is_limited():
    with pytest.raises(em.LaunchError, match="local memory for a thread: at most 524288"):
        launch(" .local .b8 much[100000000000];\n st.local.u8 [much], 0;", np.zeros(32, np.uint32))


def test_wider_registers_where_the_isa_allows_them():
    out = np.zeros(32, np.uint32)
    launch(" mov.u32 %r9, 0x12345;\n cvt.u32.u16 %r9, %r9;\n st.global.u16 [%rd4], %r9;", out)
    assert (out == 0x2345).all()


def test_one_lane_is_a_lane():
    body = (
        " setp.eq.u32 %p1, %r1, 0;\n @%p1 mbarrier.init.shared.b64 [%r2], 1;\n bar.sync 0;\n @!%p1 bra END;\n"
        "W:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;\n @!%p3 bra W;\nEND:"
    )
    with pytest.raises(em.DeadlockError, match=r"warp 0 \(1 lane\): waits"):
        launch(body, np.zeros(32, np.uint32))
