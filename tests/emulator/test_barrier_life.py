"""What BarrierLife writes down, against the kernel's own sequence of arrivals and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.emulator.barrier_life import BarrierLife, _short
from tests.emulator.machine.kernels import HEAD_LINES, launch

OFFSET = 0x400

COPIES = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 2;
 bar.sync 0;
 @!%p1 bra WAIT;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 48;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+64], [%rd2], 32, [%r2];
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+96], [%rd2], 16, [%r2];
 mbarrier.arrive.shared.b64 _, [%r2];
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
 @!%p2 bra WAIT;"""


def life(body, *, block=32, **options):
    found = BarrierLife({OFFSET: "full"})
    launch(body, np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=block, trace=found, **options)
    return found


def test_every_change_with_the_state_after_it():
    steps = life(COPIES, block=1).steps
    assert [(s.actor, s.what, s.phase, s.pending, s.tx, s.outcome) for s in steps] == [
        ("warp 0", "mbarrier.init 2", 0, 2, 0, ""),
        ("warp 0", "mbarrier.arrive.expect_tx 48", 0, 1, 48, ""),
        ("TMA", "cp.async.bulk 32", 0, 1, 16, ""),
        ("TMA", "cp.async.bulk 16", 0, 1, 0, ""),
        ("warp 0", "mbarrier.arrive", 1, 2, 0, "phase 0 completes"),
        ("warp 0", "mbarrier.try_wait.parity 0", 1, 2, 0, "passes"),
    ]
    assert [s.ptx_line - HEAD_LINES for s in steps] == [3, 6, 7, 8, 9, 11]
    assert {(s.barrier, s.expected) for s in steps} == {("full", 2)}


def test_a_wait_is_one_step_until_its_answer_changes():
    steps = [s for s in life(COPIES, block=64, schedule="lazy").steps if "try_wait" in s.what]
    assert [(s.actor, s.outcome) for s in steps].count(("warp 1", "not yet")) <= 3
    for actor in ("warp 0", "warp 1"):
        assert [s.outcome for s in steps if s.actor == actor][-1] == "passes"


def test_arrivals_of_many_lanes_are_one_step():
    body = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 64;
 bar.sync 0;
 mbarrier.arrive.shared.b64 _, [%r2];"""
    steps = life(body, block=64).steps
    assert [(s.pending, s.phase) for s in steps] == [(64, 0), (32, 0), (64, 1)]
    assert {s.actor for s in steps[1:]} == {"warp 0", "warp 1"}


def test_several_ctas_are_told_apart():
    found = life("\n mbarrier.init.shared.b64 [%r2], 1;", block=1, grid=2, cluster=2)
    assert sorted(s.actor for s in found.steps) == ["CTA (0, 0, 0) warp 0", "CTA (1, 0, 0) warp 0"]


def test_the_table_and_one_barrier_of_it():
    found = life(COPIES, block=1)
    lines = str(found).splitlines()
    assert lines[0].split() == ["line", "who", "does", "barrier", "phase", "pending", "tx-count"]
    assert len(lines) == 1 + len(found.steps) and len({line.index("full") for line in lines[1:]}) == 1
    assert found.of("full").steps == found.steps and found.of("empty").steps == []


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("@%p1 mbarrier.init.shared.b64 [%r2+8], 64;", "mbarrier.init 64"),
        ("@!%p1 mbarrier.arrive.release.cta.shared::cta.b64 _, [bar], 3;", "mbarrier.arrive 3"),
        ("mbarrier.arrive.expect_tx.shared.b64 _, [full], %r5;", "mbarrier.arrive.expect_tx"),
        ("mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0, 0x989680;", "mbarrier.try_wait.parity 0 0x989680"),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];", "tcgen05.commit"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [%rd2], 512, [b];", "cp.async.bulk 512"),
    ],
)  # fmt: skip
def test_short_names(text, short):
    assert _short(text.rstrip(";")) == short == _short(text)
