"""Cells of the history: words, and bytes as soon as parts of words are accessed by different warps."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.emulator.check.clocks import Actor
from mxfp8fa.emulator.check.shadow import Access, Shadow
from tests.emulator.check.test_races import findings

BYTES = """
 shr.u32 %r3, %r1, 5;
 and.b32 %r4, %r1, 31;
 shl.b32 %r4, %r4, 2;
 add.s32 %r4, %r4, %r3;
 add.s32 %r5, %r2, %r4;
 st.shared.{first} [%r5], %r1;
 setp.ne.u32 %p1, %r3, 0;
 @%p1 bra END;
 {then}
END:"""


def test_neighbouring_bytes_of_a_word_are_not_a_race():
    """cuDNN's MXFP8 backward writes packed scale factors like this: two bytes of a word by one warp, two by another."""
    assert findings(BYTES.format(first="u8", then="")) == []


def test_the_same_byte_is_one():
    found = findings(BYTES.format(first="u8", then="st.shared.u8 [%r5+1], %r1;"))
    assert {f.kind for f in found} == {"race"}
    assert "shared offset 0x401" in found[0].where


def test_a_word_that_covers_a_byte_is_one():
    then = "and.b32 %r5, %r5, 0xFFFFFFFC;\n st.shared.u32 [%r5], %r1;"
    assert "write and write of shared memory" in findings(BYTES.format(first="u8", then=then))[0].what


def test_bytes_of_global_memory():
    body = " mov.u32 %r3, %ctaid.x;\n cvt.u64.u32 %rd7, %r3;\n add.s64 %rd7, %rd7, %rd1;\n st.global.u8 [%rd7{}], %r3;"
    assert findings(body.format(""), block=1, grid=4) == []
    assert findings(body.replace("add.s64 %rd7, %rd7, %rd1", "mov.u64 %rd7, %rd1").format(""), block=1, grid=4)[0].kind == "race"


@pytest.mark.parametrize("size", [1, 2])
def test_whole_words_keep_cells_of_words(size):
    shadow = Shadow(64)
    offsets = np.arange(32, 64, size, dtype=np.uint64)
    assert list(shadow.cells(offsets, size)) == list(range(8, 16)) and shadow.per_word == 1
    assert list(shadow.cells(offsets[:1], size)) == list(range(32, 32 + size)) and shadow.per_word == 4


def test_history_survives_the_change_of_cells():
    one, other = Actor(2, "one", asynchronous=False), Actor(3, "other", asynchronous=False)
    one.advance()
    shadow = Shadow(64)
    shadow.record(shadow.cells(np.array([8]), 8), one, 77, one.clock, write=True, atomic=False)
    shadow.record(shadow.cells(np.array([20]), 4), one, 78, one.clock, write=False, atomic=False)
    cells = shadow.cells(np.array([15, 16, 21, 24]), 1)
    found = list(shadow.conflicts(cells, other, Access(write=True)))
    assert [(shadow.byte_of(c.cell), c.site, c.wrote) for c in found] == [(15, 77, True), (21, 78, False)]
