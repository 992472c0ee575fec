"""tcgen05.alloc, dealloc, relinquish_alloc_permit: waiting, rules, pairs, and what fresh columns hold."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor.kernels import SCHEDULES, run

ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"


def one_warp(body: str, out: np.ndarray | None = None, **options) -> np.ndarray:
    """Run a body in one warp; it may leave words 0.. of `sm`, which come back."""
    out = np.zeros(8, np.uint32) if out is None else out
    dump = " @%first ld.shared.v4.b32 {%a0, %a1, %a2, %a3}, [%r3];\n @%first st.global.v4.b32 [%rd1], {%a0, %a1, %a2, %a3};"
    zero = " mov.b32 %a0, 0xFFFF;\n @%first st.shared.v4.b32 [%r3], {%a0, %a0, %a0, %a0};\n bar.warp.sync 0xFFFFFFFF;\n"
    run(zero + body + dump, out, block=32, **options)
    return out


def allocate(*columns: int) -> str:
    """Allocations whose addresses go to words 0.. of `sm`."""
    return "\n".join(f" {ALLOC} [%r3+{4 * i}], {n};" for i, n in enumerate(columns)) + "\n"


@pytest.mark.parametrize("columns", [32, 64, 128, 256, 512])
def test_the_address_goes_to_shared_memory(columns):
    found = one_warp(allocate(columns))
    assert found[0] >> 16 == 0 and (found[0] & 0xFFFF) % columns == 0
    assert list(found[1:4]) == [0xFFFF] * 3


def test_allocations_do_not_overlap():
    sizes = (256, 128, 64, 32)
    taken = [
        c for base, n in zip(one_warp(allocate(*sizes)).tolist(), sizes, strict=False) for c in range(base, base + n)
    ]
    assert len(set(taken)) == sum(sizes) and max(taken) < 512


def test_freed_columns_are_given_again():
    body = allocate(256, 256) + f" ld.shared.u32 %a5, [%r3+4];\n {DEALLOC} %a5, 256;\n {ALLOC} [%r3+8], 128;\n"
    found = one_warp(body)
    assert found[1] <= found[2] < found[1] + 256


@pytest.mark.parametrize("columns", [0, 16, 31, 33, 48, 96, 384, 513, 1024])
def test_column_counts(columns):
    with pytest.raises(
        em.IllegalOperation, match=f"tcgen05.alloc of {columns} columns: allowed are 32, 64, 128, 256, 512"
    ):
        one_warp(allocate(columns))


def test_allocations_must_not_grow():
    with pytest.raises(
        em.IllegalOperation, match=r"tcgen05.alloc of 64 columns after one of 32: allocations must not grow"
    ):
        one_warp(allocate(32, 64))
    one_warp(allocate(64, 64, 32, 32))


def test_no_allocation_after_relinquish():
    with pytest.raises(em.IllegalOperation, match=r"after tcgen05.relinquish_alloc_permit"):
        one_warp(allocate(32) + f" {RELINQUISH};\n {ALLOC} [%r3+4], 32;\n")


@pytest.mark.parametrize(
    ("address", "columns", "known"),
    [("%a5", 32, "64 columns at 0x0"), ("32", 64, "64 columns at 0x0"), ("%a5", 128, "64 columns at 0x0")],
)
def test_dealloc_must_match(address, columns, known):
    with pytest.raises(em.IllegalOperation, match=f"tcgen05.dealloc of {columns} columns at .*: allocated is {known}"):
        one_warp(allocate(64) + f" ld.shared.u32 %a5, [%r3];\n {DEALLOC} {address}, {columns};\n")


def test_dealloc_twice():
    with pytest.raises(em.IllegalOperation, match=r"allocated is nothing"):
        one_warp(allocate(64) + f" ld.shared.u32 %a5, [%r3];\n {DEALLOC} %a5, 64;\n {DEALLOC} %a5, 64;\n")


WAITING = f"""
 @%w0 bra FIRST;
 bar.sync 1, 64;
 {ALLOC} [%r3+16], 64;             // full: waits until warp 0 frees
 ld.shared.u32 %a1, [%r3+32];      // what warp 0 wrote before it freed
 setp.eq.u32 %p1, %r1, 32;
 @%p1 st.global.u32 [%rd1], %a1;
 bra DONE;
FIRST:
 {ALLOC} [%r3], 512;
 bar.sync 1, 64;
 mov.b32 %a0, 77;
 @%first st.shared.u32 [%r3+32], %a0;
 ld.shared.u32 %a5, [%r3];
 bar.warp.sync 0xFFFFFFFF;
 FREE
DONE:
"""


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_alloc_waits_while_full_and_dealloc_wakes_it(options):
    out = np.zeros(8, np.uint32)
    run(WAITING.replace("FREE", f"{DEALLOC} %a5, 512;"), out, block=64, **options)
    assert out[0] == 77


def test_alloc_that_nobody_makes_room_for_is_a_deadlock():
    with pytest.raises(em.DeadlockError, match=r"tcgen05.alloc waits for free columns; allocated: \{0: 512\}"):
        run(WAITING.replace("FREE", ""), np.zeros(8, np.uint32), block=64)


PAIR_ALLOC = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32"


@pytest.mark.parametrize("options", SCHEDULES[:4], ids=str)
def test_both_ctas_of_a_pair_allocate(options):
    out = np.zeros((2, 4), np.uint32)
    body = f""" {PAIR_ALLOC} [%r3], 256;\n {PAIR_ALLOC} [%r3+4], 128;
 ld.shared.v2.b32 {{%a0, %a1}}, [%r3];\n mad.wide.u32 %x0, %r2, 16, %rd1;\n @%first st.global.v2.b32 [%x0], {{%a0, %a1}};
 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %a0, 256;\n tcgen05.dealloc.cta_group::2.sync.aligned.b32 %a1, 128;
 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"""
    report = run(body, out, block=32, ctas=2, check="races", **options)
    assert (out[0] == out[1]).all() and out[0, 0] != out[0, 1]
    assert [f.kind for f in report.races] == []


def test_one_cta_of_a_pair_cannot_allocate_alone():
    body = f" setp.eq.u32 %p1, %r2, 1;\n @%p1 bra OFF;\n {PAIR_ALLOC} [%r3], 64;\nOFF:"
    with pytest.raises(em.DeadlockError, match=r"64 columns waits for the other CTA of the pair to allocate too"):
        run(body, np.zeros(4, np.uint32), block=32, ctas=2)


def test_the_ctas_of_a_pair_must_want_the_same():
    body = f" mov.b32 %a0, 64;\n setp.eq.u32 %p1, %r2, 1;\n @%p1 mov.b32 %a0, 32;\n {PAIR_ALLOC} [%r3], %a0;"
    with pytest.raises(em.IllegalOperation, match=r"of \[(64, 32|32, 64)\] columns by the CTAs of a pair"):
        run(body, np.zeros(4, np.uint32), block=32, ctas=2)


def test_a_pair_waits_for_room_in_both():
    """The odd CTA still holds everything when both ask again."""
    body = f"""
 {PAIR_ALLOC} [%r3], 512;
 ld.shared.u32 %a5, [%r3];
 setp.eq.u32 %p1, %r2, 1;
 @%p1 bra ODD;
 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %a5, 512;
 {PAIR_ALLOC} [%r3+4], 32;
 bra JOIN;
ODD:
 @%w0 bra ASK;                      // warp 1 frees later
 mov.b32 %a0, 0;
SPIN:
 add.u32 %a0, %a0, 1; setp.lt.u32 %p2, %a0, 100; @%p2 bra SPIN;
 @%first bra ASK;
 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %a5, 512;
 bra JOIN;
ASK:
 {PAIR_ALLOC} [%r3+4], 32;
JOIN:
 bar.sync 0;
 ld.shared.u32 %a1, [%r3+4];
 mad.wide.u32 %x0, %r2, 4, %rd1;
 @%first st.global.u32 [%x0], %a1;"""
    body = body.replace(f" {PAIR_ALLOC} [%r3], 512;", f" @%w0 {PAIR_ALLOC} [%r3], 512;\n bar.sync 0;", 1)
    body = body.replace(" @%p1 bra ODD;\n", " @%p1 bra ODD;\n @!%w0 bra JOIN;\n", 1)
    for options in SCHEDULES[:4]:
        out = np.full(2, 99, np.uint32)
        run(body, out, block=64, ctas=2, **options)
        assert (out == 0).all()


@pytest.mark.parametrize(
    ("body", "ctas", "text"),
    [
        (f" {ALLOC} [%r3], 32;\n {PAIR_ALLOC} [%r3+4], 32;", 2, "cta_group::2 in a kernel that has used .cta_group::1"),
        (f" {PAIR_ALLOC} [%r3], 32;", 1, r"cta_group::2 in a cluster of 1 CTA\(s\): it needs pairs"),
    ],
)
def test_groups(body, ctas, text):
    with pytest.raises(em.IllegalOperation, match=text):
        run(body, np.zeros(4, np.uint32), block=32, ctas=ctas)


def test_alloc_needs_the_whole_warp():
    guard = " setp.lt.u32 %p1, %r1, 5;\n"
    with pytest.raises(
        em.IllegalOperation, match=r"tcgen05.alloc is .aligned: all threads of the warp must execute it together"
    ):
        run(f"{guard} @%p1 {ALLOC} [%r3], 32;", np.zeros(4, np.uint32), block=32)
    lonely = f"{guard} @!%p1 bra REST;\n {ALLOC} [%r3], 32;\nREST:\n @!%p1 bar.warp.sync 0xFFFFFFFF;"
    with pytest.raises(em.DeadlockError, match=r"tcgen05.alloc waits for lanes .* of its own warp"):
        run(lonely, np.zeros(4, np.uint32), block=32)


# -- what columns hold --------------------------------------------------------------------------------------------------

LOAD = " tcgen05.ld.sync.aligned.32x32b.x1.b32 {%a1}, [%r5];\n tcgen05.wait::ld.sync.aligned;\n"
STORE = " tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r1};\n tcgen05.wait::st.sync.aligned;\n"
KEEP = " mad.wide.u32 %x0, %r1, 4, %rd1;\n st.global.u32 [%x0], %a1;\n"


def test_fresh_columns_must_not_reach_global_memory():
    with pytest.raises(em.PoisonError, match=r"a value that was never written reaches a store to global memory"):
        run(LOAD + KEEP, np.zeros(32, np.uint32), block=32, columns=32)
    out = np.zeros(32, np.uint32)
    run(STORE + LOAD + KEEP, out, block=32, columns=32)
    np.testing.assert_array_equal(out, np.arange(32))


def test_fresh_columns_may_be_loaded_and_dropped_unless_strict():
    body = LOAD + " and.b32 %a1, %a1, 0;\n" + KEEP
    out = np.ones(32, np.uint32)
    run(body, out, block=32, columns=32)
    assert (out == 0).all()
    with pytest.raises(em.PoisonError, match=r"tensor memory that was never written \(lane 0, column 0\)"):
        run(body, out, block=32, columns=32, uninitialised="strict")


def test_columns_given_again_are_fresh_again():
    again = f" {DEALLOC} %r5, 32;\n {ALLOC} [%r3], 32;\n ld.shared.u32 %a9, [%r3];\n mov.b32 %r5, %a9;\n"
    with pytest.raises(em.PoisonError):
        run(STORE + again + LOAD + KEEP, np.zeros(32, np.uint32), block=32, columns=32)


@pytest.mark.parametrize(("column", "reached"), [(32, 32), (480, 480), (31, 32)])
def test_columns_not_allocated(column, reached):
    load = f" add.u32 %a0, %r5, {column};\n tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%a1, %a2}}, [%a0];"
    store = f" add.u32 %a0, %r5, {column};\n tcgen05.st.sync.aligned.32x32b.x2.b32 [%a0], {{%r1, %r1}};"
    for body, name in ((load, "ld"), (store, "st")):
        with pytest.raises(em.OutOfBounds, match=f"tcgen05.{name} reaches column {reached}, which is not allocated"):
            run(body, np.zeros(4, np.uint32), block=32, columns=32)


def test_columns_after_dealloc():
    body = f" {ALLOC} [%r3], 32;\n ld.shared.u32 %a0, [%r3];\n {DEALLOC} %a0, 32;\n"
    with pytest.raises(em.OutOfBounds, match=r"column 0, which is not allocated"):
        run(body + " tcgen05.st.sync.aligned.32x32b.x1.b32 [%a0], {%r1};", np.zeros(4, np.uint32), block=32)


def test_columns_never_freed_are_a_leak_for_the_checker():
    report = run(f" {ALLOC} [%r3], 32;\n {ALLOC} [%r3+4], 32;", np.zeros(4, np.uint32), block=32, check="races")
    assert [(f.kind, f.what) for f in report.races] == [("leak", "64 columns of tensor memory were never deallocated")]
    assert run(STORE, np.zeros(4, np.uint32), block=32, columns=32, check="races").races == []
