"""Each kind of order, present and missing: present is silent, missing is reported with both sites."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.machine.kernels import HEAD_LINES, launch

SCHEDULES = ("eager", "lazy", "random")


def findings(body, *, block=64, schedule="eager", **keywords):
    out = np.zeros(4096, np.uint32)
    source = np.arange(4096, dtype=np.uint32)
    return launch(body, out, source, block=block, check="races", schedule=schedule, **keywords).races


NEIGHBOUR = """
 shl.b32 %r3, %r1, 2;
 add.s32 %r4, %r2, %r3;
 st.shared.u32 [%r4], %r1;
 {sync}
 xor.b32 %r5, %r3, 128;
 add.s32 %r5, %r2, %r5;
 ld.shared.u32 %r6, [%r5];"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_memory_between_warps(schedule):
    assert not findings(NEIGHBOUR.format(sync="bar.sync 0;"), schedule=schedule)
    found = findings(NEIGHBOUR.format(sync=""), schedule=schedule)
    assert {f.kind for f in found} == {"race"} and "not ordered" in found[0].what
    lines = {found[0].first[1].ptx_line, found[0].second[1].ptx_line}
    assert lines == {HEAD_LINES + 4, HEAD_LINES + 8}
    assert found[0].first[0] != found[0].second[0] and "shared offset" in found[0].where


def test_adjacent_words_are_not_a_race():
    assert not findings(
        " shl.b32 %r3, %r1, 2;\n add.s32 %r4, %r2, %r3;\n st.shared.u32 [%r4], %r1;\n ld.shared.u32 %r5, [%r4];"
    )


def test_global_memory_between_ctas_and_atomics():
    same = " st.global.u32 [%rd1], %r1;"
    assert findings(same, block=1, grid=2)[0].kind == "race"
    assert not findings(" red.global.add.u32 [%rd1], 1;", block=32, grid=2)
    assert not findings(" st.global.u32 [%rd4], %r1;", block=32, grid=1)


FLAG = """
 mov.u32 %r9, %ctaid.x;
 setp.eq.u32 %p1, %r9, 1;
 @%p1 bra WRITE;
S:
 {load} %r10, [%rd2+64];
 setp.ne.u32 %p2, %r10, 77;
 @%p2 bra S;
 ld.global.u32 %r11, [%rd1];
 bra END;
WRITE:
 st.global.u32 [%rd1], %r1;
 {store} [%rd2+64], 77;
END:"""


def test_release_and_acquire_through_memory():
    ordered = FLAG.format(load="ld.acquire.gpu.global.u32", store="st.release.gpu.global.u32")
    assert not findings(ordered, block=1, grid=2)


BARRIER = """
 setp.eq.u32 %p1, %r1, 0;
 mov.u32 %r9, 32;
 @%p1 mbarrier.init.shared.b64 [%r2], %r9;
 bar.sync 0;
 setp.lt.u32 %p2, %r1, 32;
 @!%p2 bra CONSUME;
 shl.b32 %r3, %r1, 2;
 add.s32 %r4, %r2, %r3;
 st.shared.u32 [%r4+64], %r1;
 {arrive}
 bra END;
CONSUME:
W:
 mbarrier.try_wait.parity.shared.b64 %p3, [%r2], {parity};
 @!%p3 bra W;
 ld.shared.u32 %r6, [%r2+64];
END:"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mbarrier_arrive_and_wait(schedule):
    arrive = "mbarrier.arrive.shared.b64 _, [%r2];"
    assert not findings(BARRIER.format(arrive=arrive, parity=0), schedule=schedule)


def caught(body, **keywords):
    """What each schedule says: kinds of findings, or the name of the error."""
    said = set()
    for schedule in SCHEDULES:
        try:
            said |= {f.kind for f in findings(body, schedule=schedule, **keywords)}
        except em.EmulationError as error:
            said.add(type(error).__name__)
    return said


def test_mbarrier_wait_for_the_wrong_parity():
    """A fresh barrier has passed parity 1, so the wait returns too early, or, after the arrivals, never."""
    body = BARRIER.format(arrive="mbarrier.arrive.shared.b64 _, [%r2];", parity=1)
    assert caught(body) == {"race", "barrier", "DeadlockError"}


def test_use_of_an_mbarrier_before_its_initialisation_is_ordered():
    body = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 64;
 {sync}
 mbarrier.arrive.shared.b64 _, [%r2];"""
    assert not findings(body.format(sync="bar.sync 0;"))
    assert caught(body.format(sync="")) == {"race", "PoisonError"}


def bulk(*, wait=None, overwrite="", init_fence="fence.mbarrier_init.release.cluster;"):
    return SETUP + BULK.format(wait=WAIT if wait is None else wait, overwrite=overwrite, init_fence=init_fence)


BULK = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 1;
 {init_fence}
 bar.sync 0;
 @!%p1 bra CONSUME;
 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd2], 128, [%r2];
CONSUME:
{wait}
 ld.shared.u32 %r6, [%r7];
 bar.sync 0;
 {overwrite}
"""
SETUP = " add.s32 %r7, %r2, 128;\n"
WAIT = "W:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;\n @!%p3 bra W;"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bulk_copy_and_its_mbarrier(schedule):
    assert not findings(bulk(), schedule=schedule)


def test_bulk_copy_without_the_wait():
    found = findings(bulk(wait=""))
    assert found[0].kind == "race" and found[0].first[0] == "TMA"
    assert "cp.async.bulk" in found[0].first[1].text


STORE = """
 shl.b32 %r3, %r1, 2;
 add.s32 %r4, %r2, %r3;
 st.shared.u32 [%r4], %r1;
 {fence}
 bar.sync 0;
 setp.eq.u32 %p1, %r1, 0;
 @!%p1 bra NEXT;
 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
 cp.async.bulk.commit_group;
 {wait}
NEXT:
 bar.sync 0;
 {reuse}
 cp.async.bulk.wait_group 0;
"""
FENCE = "fence.proxy.async.shared::cta;"
READ_DONE = "cp.async.bulk.wait_group.read 0;"


def test_bulk_store_needs_the_proxy_fence_and_the_wait_before_reuse():
    reuse = "st.shared.u32 [%r4], %r1;"
    assert not findings(STORE.format(fence=FENCE, wait=READ_DONE, reuse=reuse))
    hidden = findings(STORE.format(fence="", wait=READ_DONE, reuse=reuse))
    assert [f.kind for f in hidden] == ["visibility"] and "fence.proxy.async" in hidden[0].what
    early = findings(STORE.format(fence=FENCE, wait="", reuse=reuse))
    assert [f.kind for f in early] == ["race"] and early[0].first[0] == "bulk store"


def test_work_outstanding_when_the_cta_exits():
    found = findings(STORE.format(fence=FENCE, wait="", reuse="").replace("cp.async.bulk.wait_group 0;", ""))
    assert "outstanding" in [f.kind for f in found]


COPY = """
 shl.b32 %r3, %r1, 2;
 add.s32 %r4, %r2, %r3;
 cp.async.ca.shared.global [%r4], [%rd5], 4;
 cp.async.commit_group;
 {wait}
 ld.shared.u32 %r6, [%r4];"""


def test_cp_async_group_wait():
    assert not findings(COPY.format(wait="cp.async.wait_group 0;"))
    assert not findings(COPY.format(wait="cp.async.wait_all;"))
    assert findings(COPY.format(wait="cp.async.wait_group 1;"))[0].kind == "race"


TENSOR = """
 setp.lt.u32 %p1, %r1, 32;
 @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32;
 bar.sync 0;
 ld.shared.u32 %r8, [%r2];
 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r8], {{%r1}};
 {wait_st}
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [%r8];
 {wait_ld}
 st.global.u32 [%rd4], %r9;
 bar.sync 0;
 @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, {columns};"""


def tensor(wait_st="tcgen05.wait::st.sync.aligned;", wait_ld="tcgen05.wait::ld.sync.aligned;", columns=32):
    return TENSOR.format(wait_st=wait_st, wait_ld=wait_ld, columns=columns)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tensor_memory_store_load(schedule):
    assert not findings(tensor(), schedule=schedule)
    assert not findings(tensor(wait_ld=""), schedule=schedule)  # a register dependency orders the load


def test_tensor_memory_store_without_wait():
    found = findings(tensor(wait_st=""))
    assert found[0].kind == "race" and "tensor memory" in found[0].what


def test_tensor_memory_never_freed():
    body = tensor().replace("@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 32;", "")
    assert [f.kind for f in findings(body)] == ["leak"]


def test_barrier_reinitialised_in_use():
    body = """
 setp.eq.u32 %p1, %r1, 0;
 @%p1 mbarrier.init.shared.b64 [%r2], 2;
 bar.sync 0;
 @%p1 mbarrier.arrive.shared.b64 _, [%r2];
 @%p1 mbarrier.init.shared.b64 [%r2], 2;"""
    assert "initialised again with 1 arrivals" in findings(body)[0].what


def test_transactions_that_do_not_match():
    body = bulk(wait="").replace("[%r2], 128;\n cp", "[%r2], 256;\n cp")
    found = [f for f in findings(body.replace(" ld.shared.u32 %r6, [%r7];", "")) if f.kind == "barrier"]
    assert "transaction count of 128" in found[0].what


def test_cluster_barrier_orders_the_peers_shared_memory():
    body = """
 mov.u32 %r9, %cluster_ctarank;
 xor.b32 %r9, %r9, 1;
 mapa.shared::cluster.u32 %r10, %r2, %r9;
 st.shared.u32 [%r2], %r1;
 {sync}
 ld.shared::cluster.u32 %r11, [%r10];
 barrier.cluster.arrive;
 barrier.cluster.wait;"""
    sync = "barrier.cluster.arrive{};\n barrier.cluster.wait;"
    run = {"block": 1, "grid": 2, "cluster": 2}
    assert not findings(body.format(sync=sync.format(".release")), **run)
    assert findings(body.format(sync=sync.format(".relaxed")), **run)[0].kind == "race"


def test_the_same_pair_is_reported_once_and_printed():
    from mxfp8fa.emulator.check import format_findings

    found = findings(NEIGHBOUR.format(sync=""))
    text = format_findings(found)
    assert "first" in text and "then" in text and "PTX line" in text
    assert found[0].count >= 1 and format_findings([]) == "no findings"
