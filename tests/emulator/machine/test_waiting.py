"""Warps that poll, give up, or exit while others wait for them: nothing hangs, nobody is forgotten."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from mxfp8fa.emulator.check import Checker

from .kernels import launch

SCHEDULES = ("eager", "lazy", "random")
BARRIER = "setp.eq.u32 %p1, %r1, 0;\n @%p1 mbarrier.init.shared.b64 [%r2], 1;\n bar.sync 0;\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_polling_that_sleeps_is_reported_too(schedule):
    body = "S:\n nanosleep.u32 100;\n ld.volatile.global.u32 %r9, [%rd5];\n setp.eq.u32 %p1, %r9, 0;\n @%p1 bra S;"
    with pytest.raises(em.SpinError, match="nobody left can write"):
        launch(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32), schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pause", ["nanosleep.u32 100;", "add.u32 %r12, %r12, 1;"], ids=["sleeps", "counts"])
def test_a_cta_that_polls_for_a_later_one(schedule, pause):
    body = f"""
 mov.u32 %r12, 0;
 mov.u32 %r9, %ctaid.x;
 setp.eq.u32 %p1, %r9, 1;
 @%p1 bra WRITE;
S:
 {pause}
 ld.volatile.global.u32 %r10, [%rd2];
 setp.eq.u32 %p2, %r10, 0;
 @%p2 bra S;
 st.global.u32 [%rd4], %r10;
 bra END;
WRITE:
 st.volatile.global.u32 [%rd2], 5;
END:"""
    out = np.zeros(32, np.uint32)
    launch(body, out, np.zeros(32, np.uint32), grid=2, schedule=schedule)
    assert (out == 5).all()


def test_a_wait_that_counts_its_attempts_is_a_deadlock():
    body = (
        BARRIER
        + """ mov.u32 %r9, 0;
W:
 add.u32 %r9, %r9, 1;
 mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
 @!%p2 bra W;
 st.global.u32 [%rd4], %r9;"""
    )
    with pytest.raises(em.DeadlockError, match="waits for phase parity 0"):
        launch(body, np.zeros(32, np.uint32))


def test_a_wait_that_gives_up_in_time_goes_on():
    body = (
        BARRIER
        + """ mov.u32 %r9, 0;
W:
 add.u32 %r9, %r9, 1;
 mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
 setp.lt.u32 %p3, %r9, 100;
 @%p3 bra W;
 st.global.u32 [%rd4], %r9;"""
    )
    out = np.zeros(32, np.uint32)
    launch(body, out)
    assert (out == 100).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("first", ["lt", "ge"], ids=["lower half waits", "upper half waits"])
def test_a_barrier_waits_no_longer_for_threads_of_the_same_warp_that_exit(schedule, first):
    body = f"""
 setp.{first}.u32 %p1, %r1, 16;
 @!%p1 bra OTHERS;
 barrier.sync 0;
 st.global.u32 [%rd4], 1;
 ret;
OTHERS:
 st.global.u32 [%rd4], 2;"""
    out = np.zeros(32, np.uint32)
    launch(body, out, schedule=schedule)
    waits = np.arange(32) < 16 if first == "lt" else np.arange(32) >= 16
    assert (out == np.where(waits, 1, 2)).all()


def test_the_checker_keeps_nothing_of_ctas_that_are_gone():
    """What it knows must not pass to a CTA that merely sits where another one was."""
    checker = Checker()
    body = """
 st.shared.u32 [%r2], 1;
 bar.sync 0;
 atom.shared.add.u32 %r9, [%r2], 1;
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;"""
    launch(body, np.zeros(32, np.uint32), grid=20, trace=checker)
    assert not checker._meetings.by_owner
