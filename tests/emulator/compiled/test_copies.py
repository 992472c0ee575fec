"""TMA loads in machine code: boxes of every type, rank and swizzle, and what has to stay, or to fail, in Python."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from both_engines import both_engines

from mxfp8fa.emulator import compiled
from mxfp8fa.emulator.compiled import engine as engines
from mxfp8fa.emulator.compiled.state import NodeField
from mxfp8fa.emulator.errors import EmulationError
from tests.emulator.tensor import boxes
from tests.emulator.tensor.boxes import BF16, F32, SWIZZLE_NAMES, TF32, U8, U16, expect, load_text, loaded, tensor
from tests.emulator.tensor.kernels import SM, copy_out, run, wait

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no machine code here")

SLOT_BYTES = 8192  # of shared memory for each load
DIMS, BOX = (64, 5, 4, 3, 3), (16, 4, 3, 2, 2)
INSIDE = ((0, 0, 0, 0, 0), (16, 1, 1, 1, 1), (48, 0, 1, 0, 1), (8, 1, 0, 1, 0), (32, 1, 1, 0, 1))
PLACES = (*INSIDE[:4], (56, 3, 2, 2, 2), (-8, -1, 0, 0, 0), INSIDE[4])


@pytest.fixture(autouse=True)
def compiled_loads(monkeypatch):
    """Compile everything at once; how many loads ran as machine code."""
    monkeypatch.setattr(engines, "PATIENCE_STEPS", 0)
    monkeypatch.setattr(engines, "HOT", 1)
    monkeypatch.setattr(engines, "WARM", 1)
    runs, collect = [], engines.Engine.add_counts

    def add_counts(self, counts):
        copies = [pc for pc, i in enumerate(self.program.instructions) if i.opcode == "cp"]
        idle = 3 * len(copies)  # the three warps without the leader pass by each
        runs.append(int(self.nodes[copies, NodeField.RUNS].sum()) - idle)
        collect(self, counts)

    monkeypatch.setattr(engines.Engine, "add_counts", add_counts)
    return runs


def loads(m, places, shift=0, targets=None):
    """PTX of one load after the other, each to a place of its own, with a wait."""
    size = boxes.transferred(m, len(boxes.elements(m, places[0])))
    text = boxes.fill_shared(SLOT_BYTES * len(places))
    for i, at in enumerate(places):
        text += f" add.u32 %b0, %r3, {SLOT_BYTES * i + shift if targets is None else targets[i]};\n"
        text += expect(size) + load_text(m, at, to="%b0") + wait(parity=i & 1) + " bar.sync 0;\n"
    return text


def check(t, places, shift=0):
    """Both engines load the same; the reference too."""
    whole = SLOT_BYTES * len(places)
    out = np.zeros(whole, np.uint8)
    with both_engines():
        run(loads(t.map, places, shift) + copy_out(whole), out, maps=[t.map], allow=(t.memory,), shared_bytes=whole)
    size = boxes.shared_size(t.map, len(boxes.elements(t.map, places[0])))
    for i, at in enumerate(places):
        start = SLOT_BYTES * i + shift
        np.testing.assert_array_equal(out[start : start + size], loaded(t, at, start=SM + start))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks_and_edges(rank, compiled_loads):
    """Five of the seven boxes lie inside; the first of them is Python's."""
    check(tensor(U16, DIMS[:rank], BOX[:rank]), [p[:rank] for p in PLACES])
    assert compiled_loads[-1] == 4


@pytest.mark.parametrize("swizzle", SWIZZLE_NAMES, ids=SWIZZLE_NAMES.get)
@pytest.mark.parametrize("kind", [U8, BF16, F32])
def test_swizzles(kind, swizzle, compiled_loads):
    inner = 32 // (boxes.BITS[kind] // 8)
    t = tensor(kind, (4 * inner, 40), (inner, 24), swizzle=swizzle)
    check(t, [(0, 0), (inner, 8), (2 * inner, 16), (3 * inner, 1)])
    assert compiled_loads[-1] == 3


def test_a_destination_off_the_period_of_the_swizzle_stays_in_python(compiled_loads):
    check(tensor(U16, (64, 40), (32, 8), swizzle=2), [(0, 0), (32, 8), (0, 16)], shift=512)
    assert compiled_loads[-1] == 0


def test_elements_that_are_not_just_copied_stay_in_python(compiled_loads):
    """tf32 rounds (`test_tma_loads` holds the values)."""
    t = tensor(TF32, (128, 40), (32, 8))
    with both_engines():
        run(loads(t.map, [(0, 0), (32, 8)]), np.zeros(8, np.uint8), maps=[t.map], allow=(t.memory,), shared_bytes=2 * SLOT_BYTES)
    assert compiled_loads[-1] == 0


BAD = {
    "a coordinate off the chunks": {"places": [(0, 0), (16, 1), (3, 1)]},
    "a destination past the end of shared memory": {"targets": [0, SLOT_BYTES, 4 * SLOT_BYTES]},
    "a destination far outside": {"targets": [0, SLOT_BYTES, 0x00F00000]},
    "a destination of another rank": {"targets": [0, SLOT_BYTES, 0x05000000]},
    "a misaligned destination": {"targets": [0, SLOT_BYTES, SLOT_BYTES + 8]},
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_the_same(name):
    """The third load is wrong; the two before it were not."""
    t = tensor(U16, (64, 40), (32, 24))
    places = BAD[name].get("places", [(0, 0), (32, 8), (0, 16)])
    text = loads(t.map, places, targets=BAD[name].get("targets")) + copy_out(1024)
    with both_engines(), pytest.raises(EmulationError) as found:
        run(text, np.zeros(1024, np.uint8), maps=[t.map], allow=(t.memory,), shared_bytes=4 * SLOT_BYTES)
    assert found.value.site is not None


def test_a_tensor_that_leaves_valid_memory():
    """The map says 4096 rows, the memory has 40: the first box is fine, the one at row 3000 is an error of both engines."""
    t = tensor(U16, (64, 40), (32, 8))
    longer = dataclasses.replace(t.map, dims=(64, 4096))
    text = loads(longer, [(0, 0), (32, 8), (0, 3000)]) + copy_out(1024)
    with both_engines(), pytest.raises(EmulationError, match="TMA load"):
        run(text, np.zeros(1024, np.uint8), maps=[longer], allow=(t.memory,), shared_bytes=4 * SLOT_BYTES)


def test_bytes_that_nobody_expected():
    """The third load completes more bytes than its barrier can count: refused by both engines alike."""
    t = tensor(U16, (64, 40), (32, 8))
    extra = " @%leader mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 1048575;\n"
    text = loads(t.map, [(0, 0), (32, 8)]) + extra + extra + copy_out(1024)
    with both_engines(), pytest.raises(EmulationError, match="transaction count"):
        run(text, np.zeros(1024, np.uint8), maps=[t.map], allow=(t.memory,), shared_bytes=4 * SLOT_BYTES)


def test_a_map_that_the_kernel_edits(compiled_loads):
    """tensormap.replace between two loads: the second reads from the new address."""
    t, other = tensor(U16, (64, 40), (32, 8)), tensor(U16, (64, 40), (32, 8))
    other.memory[:] = other.memory[::-1].copy()
    whole = 3 * SLOT_BYTES
    size = boxes.transferred(t.map, len(boxes.elements(t.map, (0, 0))))
    text = boxes.fill_shared(whole)
    for i in range(3):
        if i == 2:
            text += (
                f" mov.b64 %x0, {other.map.address};\n"
                " @%leader tensormap.replace.tile.global_address.global.b1024.b64 [%rd2], %x0;\n bar.sync 0;\n"
                " fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;\n"
            )
        text += f" add.u32 %b0, %r3, {SLOT_BYTES * i};\n" + expect(size)
        text += load_text(t.map, (0, 8), to="%b0").replace("%map0", "%rd2") + wait(parity=i & 1) + " bar.sync 0;\n"
    source = boxes.aligned(np.frombuffer(t.map.encode(), np.uint8), 128)
    out = np.zeros(whole, np.uint8)
    with both_engines():
        run(text + copy_out(whole), out, source, allow=(t.memory, other.memory), shared_bytes=whole)
    for i, each in enumerate((t, t, other)):
        start = SLOT_BYTES * i
        np.testing.assert_array_equal(out[start : start + size], loaded(each, (0, 8), start=SM + start))
