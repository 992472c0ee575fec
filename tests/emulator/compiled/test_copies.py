"""Copies in machine code: TMA boxes of every type, rank and swizzle, bulk loads, tcgen05.cp; what stays, or fails, in Python."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from both_engines import both_engines

from mxfp8fa.emulator import compiled
from mxfp8fa.emulator.compiled import engine as engines
from mxfp8fa.emulator.compiled.state import NodeField
from mxfp8fa.emulator.errors import EmulationError
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor
from mxfp8fa.layouts.swizzle import NONE, SW128
from tests.emulator.tensor import boxes
from tests.emulator.tensor.boxes import BF16, F32, SWIZZLE_NAMES, TF32, U8, U16, expect, load_text, loaded, tensor
from tests.emulator.tensor.kernels import SM, copy_out, run, wait
from tests.emulator.tensor.test_tmem_copies import COMMIT, EMPTY, FORMS, copied

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
        instructions = enumerate(self.program.instructions)
        copies = [pc for pc, i in instructions if i.opcode == "cp" or i.mnemonic.startswith("tcgen05.cp")]
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
        run(
            loads(t.map, [(0, 0), (32, 8)]),
            np.zeros(8, np.uint8),
            maps=[t.map],
            allow=(t.memory,),
            shared_bytes=2 * SLOT_BYTES,
        )
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


# -- bulk loads -------------------------------------------------------------------------------------------------------


def bulk(pieces):
    """One bulk load after the other; a piece: (address of the source as text, offset in `sm`, bytes)."""
    text = boxes.fill_shared(4096)
    for i, (source, offset, size) in enumerate(pieces):
        text += f" add.u32 %b0, %r3, {offset}; mov.b32 %b1, {size}; {source}\n" + expect(
            size if 0 < size < 4096 else 16
        )
        copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%b0], [%x0], %b1, [%r4];"
        text += f" @%leader {copy}\n" + wait(parity=i & 1) + " bar.sync 0;\n"
    return text + copy_out(4096)


def test_bulk_loads(compiled_loads):
    """From two tensors in turn; what runs in the very first turn comes before anything is compiled."""
    source, other = (boxes.aligned(np.random.default_rng(i).integers(0, 256, 1024, np.uint8), 128) for i in range(2))
    pieces = [
        ("mov.b64 %x0, %rd2;", 0, 1024), (f"mov.b64 %x0, {other.ctypes.data + 16};", 1024, 512),
        ("add.u64 %x0, %rd2, 1008;", 1536, 16), (f"mov.b64 %x0, {other.ctypes.data};", 2048, 1024),
    ]  # fmt: skip
    out = np.zeros(4096, np.uint8)
    with both_engines():
        run(bulk(pieces), out, source, allow=(other,), shared_bytes=4096)
    expected = np.full(4096, boxes.UNTOUCHED, np.uint8)
    expected[:1024], expected[1024:1536], expected[1536:1552], expected[2048:3072] = (
        source,
        other[16:528],
        source[1008:],
        other,
    )
    np.testing.assert_array_equal(out, expected)
    assert compiled_loads[-1] in (3, 4)


BAD_BULK = {
    "far past the source": ("add.u64 %x0, %rd2, 1048576;", 0, 32),
    "far before it": ("sub.u64 %x0, %rd2, 1048576;", 0, 32),
    "at the end of the address space": ("mov.b64 %x0, -16;", 0, 16),
    "around it": ("mov.b64 %x0, -16;", 0, 32),
    "past the end of shared memory": ("mov.b64 %x0, %rd2;", 0x30000, 64),
    "nearly 4 GiB": ("mov.b64 %x0, %rd2;", 0, 0xFFFFFFF0),
    "no bytes": ("mov.b64 %x0, %rd2;", 0, 0),
    "odd bytes": ("mov.b64 %x0, %rd2;", 0, 24),
    "an odd source": ("add.u64 %x0, %rd2, 8;", 0, 32),
}


@pytest.mark.parametrize("name", BAD_BULK)
def test_bad_bulk_loads_fail_alike(name):
    source = boxes.aligned(np.zeros(1024, np.uint8), 128)
    good = ("mov.b64 %x0, %rd2;", 0, 64)
    with both_engines(), pytest.raises(EmulationError):
        run(bulk([good, good, BAD_BULK[name]]), np.zeros(4096, np.uint8), source, shared_bytes=4096)


# -- tcgen05.cp -------------------------------------------------------------------------------------------------------


def row_copies(form, descriptors, columns):
    """tcgen05.cp of each descriptor to each column, with a wait in between."""
    parts = [
        f" add.u32 %a0, %r5, {c};\n @%leader tcgen05.cp.cta_group::1.{form} [%a0], {d};\n"
        for d, c in zip(descriptors, columns, strict=True)
    ]
    between = [COMMIT.format(1, "", "") + wait(parity=i & 1) + " bar.sync 0;\n" for i in range(len(parts) - 1)]
    return "".join(a + b for a, b in zip(parts, [*between, ""], strict=True))


@pytest.mark.parametrize("swizzle", [NONE, SW128], ids=lambda s: s.name)
@pytest.mark.parametrize("form", FORMS)
def test_rows_to_tensor_memory(form, swizzle, compiled_loads):
    """Three copies to three places: the second and the third by machine code, with the bits of the first."""
    _, row_bytes, _ = FORMS[form]
    source = np.random.default_rng(1).integers(0, 2**32, 8192, np.uint32)
    d = MatrixDescriptor(SM + 1024, 0x2000 if row_bytes == 32 and swizzle is NONE else 16, 640, swizzle).encode()
    with both_engines():
        (found,) = copied(row_copies(form, [d] * 3, (0, 8, 16)), source, columns=24)
    words = row_bytes // 4
    for column in (8, 16):
        np.testing.assert_array_equal(found[:, column : column + words], found[:, :words])
    assert (found[:, :words] != EMPTY).any() and compiled_loads[-1] == 2


@pytest.mark.parametrize("column", [32, 508, 600, 0x200000])
def test_bad_columns_fail_alike(column):
    source, d = np.zeros(512, np.uint32), MatrixDescriptor(SM, 16, 128, NONE).encode()
    with both_engines(), pytest.raises(EmulationError, match=r"tensor memory|tcgen05"):
        copied(row_copies("32x128b.warpx4", [d] * 3, (0, 4, column)), source)
