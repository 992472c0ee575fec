"""Actors of finished clusters: the checker forgets them and still sees what they did."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from mxfp8fa.emulator.check import Checker
from mxfp8fa.emulator.launch import run_machine
from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
from mxfp8fa.emulator.machine.memory import GlobalMemory, array_range
from mxfp8fa.emulator.machine.program import load_program
from mxfp8fa.emulator.parameters import pack_parameters
from tests.emulator.check.test_races import SCHEDULES, bulk, findings
from tests.emulator.machine.kernels import kernel

FIRST_WRITES = """
 bar.sync 0;
 mov.u32 %r9, %ctaid.x;
 setp.eq.u32 %p1, %r9, {writer};
 setp.eq.u32 %p2, %r1, {thread};
 and.pred %p1, %p1, %p2;
 @%p1 st.global.u32 [%rd1], %r1;
 bar.sync 0;
 setp.eq.u32 %p1, %r9, {other};
 @%p1 {access};
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("access", ["st.global.u32 [%rd1], %r9", "ld.global.u32 %r10, [%rd1]"])
def test_what_a_finished_cta_did_is_unordered(access, schedule):
    """Also for the warp that has its number now, and for those that warp tells."""
    for thread in (0, 32):
        body = FIRST_WRITES.format(writer=0, thread=thread, other=5, access=access)
        found = findings(body, grid=6, schedule=schedule)
        assert "race" in {f.kind for f in found}
        assert {found[0].first[1].cta, found[0].second[1].cta} == {(0, 0, 0), (5, 0, 0)}
        assert f"CTA (0, 0, 0) warp {thread // 32}" in {found[0].first[0], found[0].second[0]}


def test_a_read_of_a_finished_cta():
    body = FIRST_WRITES.format(writer=3, thread=0, other=1, access="ld.global.u32 %r10, [%rd1]")
    (found, *_) = findings(body, grid=4)
    assert found.what.startswith("read and write of global memory")
    assert found.first[0] == "CTA (1, 0, 0) warp 0" and found.second[0] == "CTA (3, 0, 0) warp 0"


TICKET = """
 mov.u32 %r9, %ctaid.x;
 mul.wide.u32 %rd7, %r9, 128;
 add.s64 %rd7, %rd7, %rd4;
 {plain}
 bar.sync 0;
 setp.eq.u32 %p1, %r1, 0;
 @!%p1 bra END;
 {before}
 atom.{sem}.gpu.global.add.u32 %r10, [%rd1+16000], 1;
 {after}
 setp.eq.u32 %p2, %r10, 5;
 @!%p2 bra END;
 ld.global.u32 %r11, [%rd1+256];
END:"""
STORE = "st.global.u32 [%rd7], %r1;"


@pytest.mark.parametrize(
    ("before", "sem", "after", "silent"),
    [
        ("", "acq_rel", "", True),
        ("fence.acq_rel.gpu;", "relaxed", "fence.acq_rel.gpu;", True),
        ("membar.gl;", "relaxed", "membar.gl;", True),
        ("", "release", "fence.acq_rel.gpu;", True),
        ("", "relaxed", "", False),
        ("fence.acq_rel.gpu;", "relaxed", "", False),
        ("", "relaxed", "fence.acq_rel.gpu;", False),
        ("", "acquire", "", False),
    ],
)
def test_the_last_cta_reads_what_all_wrote(before, sem, after, silent):
    """A ticket counter tells what the CTAs did, long after they are gone, if its atomics say so or fences stand around."""
    body = TICKET.format(plain=STORE, before=before, sem=sem, after=after)
    assert (findings(body, block=32, grid=6) == []) == silent


def test_only_what_was_told_is_known():
    """Each CTA stores once more after its ticket: the last one may not read that."""
    later = "END:\n add.s64 %rd7, %rd7, 8192;\n st.global.u32 [%rd7], %r1;"
    body = TICKET.format(plain=STORE, before="", sem="acq_rel", after="").replace("END:", later)
    assert findings(body, block=32, grid=6) == []
    found = findings(body.replace("[%rd1+256]", "[%rd1+8448]"), block=32, grid=6)
    assert [f.kind for f in found] == ["race"] and "st.global" in found[0].first[1].text


def checked(body, grid):
    program = load_program(kernel(body), "k")
    out, source = np.zeros(4096, np.uint32), np.zeros(4096, np.uint32)
    params, _ = pack_parameters(program.kernel, [out, source])
    program.begin(params)
    memory = GlobalMemory([*program.ranges(), array_range(out, "out"), array_range(source, "in")])
    checker = Checker()
    tracemalloc.start()
    run_machine(program, LaunchSpec((grid, 1, 1), (128, 1, 1), params=params), memory, Options(), watch=checker)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return checker, size


def test_memory_does_not_grow_with_the_number_of_ctas():
    """All read the same page, by threads and by TMA. What stays of a CTA is the names of those who acted: under 4 KB."""
    body = " ld.global.u32 %r10, [%rd5];\n" + bulk()
    few, many = checked(body, 10)[1], checked(body, 60)[1]
    assert many - few < 50 * 4000


def test_numbers_are_used_again():
    checker, _ = checked(" ld.global.u32 %r10, [%rd5];\n" + bulk(), 50)
    assert checker._actors._next < 16
