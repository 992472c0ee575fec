"""Tiled TMA loads against the ISA's description, element by element: ranks, edges, types, swizzles, gathers, errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import boxes
from tests.emulator.tensor.boxes import (
    BF16,
    F16,
    F32,
    F32_FTZ,
    FLOATS,
    SWIZZLE_NAMES,
    TF32,
    TF32_FTZ,
    U4,
    U4_PADDED,
    U6_PADDED,
    U8,
    U16,
    U32,
    expect,
    load,
    load_text,
    loaded,
    tensor,
)
from tests.emulator.tensor.kernels import SCHEDULES, SM, copy_out, run, wait


def check(
    t: boxes.Tensor,
    at: tuple[int, ...],
    *,
    offset: int = 0,
    rows: tuple[int, ...] | None = None,
    fill: int = 0,
    **options,
) -> None:
    found = load(t, at, offset=offset, rows=rows, **options)
    np.testing.assert_array_equal(found, loaded(t, at, start=SM + offset, rows=rows, fill=fill))


DIMS, BOX = (40, 5, 4, 3, 3), (16, 4, 3, 2, 2)
PLACES = {
    "inside": (8, 1, 1, 1, 1), "before": (-8, -2, -1, -1, -1), "after": (32, 3, 2, 2, 2), "mixed": (16, -3, 3, 1, -1),
    "outside": (640, 0, 0, 0, 0), "far": (-(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 0),
}  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", PLACES)
def test_ranks_and_edges(rank, place):
    """Whole boxes count on the mbarrier, also where they hang over an edge or lie outside altogether."""
    check(tensor(U16, DIMS[:rank], BOX[:rank]), PLACES[place][:rank])


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_schedules(options):
    check(tensor(U32, (16, 9), (8, 8), swizzle=1), (4, 3), **options)


@pytest.mark.parametrize("data_type", range(16))
def test_element_types(data_type):
    """A box of each type that hangs over the last row and, where its size allows, over the last column."""
    inner = {U4: 64, U4_PADDED: 128, U6_PADDED: 128}.get(data_type, 256 // boxes.BITS[data_type])
    dims = (inner + 128 if inner == 128 else inner + 4, 6)
    t = tensor(data_type, dims, (inner, 4))
    at = (128 if inner == 128 else 128 // boxes.BITS[data_type], 3)
    if data_type in (F32_FTZ, TF32, TF32_FTZ):
        t.memory.view(np.uint32)[:] &= 0xBFFFE000  # numbers that no conversion changes; those have a test of their own
    check(t, at)


@pytest.mark.parametrize("data_type", FLOATS)
def test_outside_is_nan(data_type):
    """0x7FF7 in every 16 bits, whatever the type (measured on an H200; the ISA only names it OOB-NaN)."""
    inner = 256 // boxes.BITS[data_type]
    t = tensor(data_type, (inner + 1, 4), (inner, 4), oob_fill=1)
    t.memory.view(np.uint32)[:] &= 0xBFFFE000
    check(t, (128 // boxes.BITS[data_type], -2), fill=0x7FF7)


@pytest.mark.parametrize("swizzle", SWIZZLE_NAMES)
@pytest.mark.parametrize("data_type", [U8, F16, F32])
@pytest.mark.parametrize("offset", [0, 128, 640, 1024 + 256])
def test_swizzles_go_by_absolute_addresses(swizzle, data_type, offset):
    """A box that starts inside the pattern continues it: the phase comes from the shared address."""
    inner_bytes = {"none": 64, "32B": 32, "64B": 64}.get(SWIZZLE_NAMES[swizzle], 128)
    inner = inner_bytes * 8 // boxes.BITS[data_type]
    check(tensor(data_type, (4 * inner, 24), (inner, 16), swizzle=swizzle), (inner, 5), offset=offset)


@pytest.mark.parametrize("swizzle", [1, 2, 3, 4, 6])
def test_swizzled_boxes_over_the_edge(swizzle):
    inner = {1: 16, 2: 32}.get(swizzle, 64)
    check(tensor(BF16, (inner + 8, 6), (inner, 8), swizzle=swizzle, oob_fill=1), (16, 2), fill=0x7FF7)


@pytest.mark.parametrize(("swizzle", "inner"), [(1, 16), (2, 16), (2, 32), (3, 16), (3, 32), (3, 64)])
@pytest.mark.parametrize("offset", [0, 128])
def test_rows_narrower_than_the_pattern(swizzle, inner, offset):
    """Each takes a whole row of the pattern, what is left of it stays untouched (measured on an H200)."""
    check(tensor(U8, (256, 24), (inner, 8), swizzle=swizzle), (16, 2), offset=offset)
    check(tensor(U8, (256, 24, 3), (inner, 4, 2), swizzle=swizzle), (16, 22, 1), offset=offset)


@pytest.mark.parametrize("steps", [(1, 3), (1, 2, 3), (1, 1, 8), (2, 1)])
def test_element_strides(steps):
    """Every step-th element of the box; without interleave the step of dimension 0 is ignored (CUDA Driver API)."""
    dims, box = (32, 12, 20)[: len(steps)], (16, 8, 9)[: len(steps)]
    check(tensor(U16, dims, box, steps=steps), (8, -2, 3)[: len(steps)])


def tf32_by_hand(bits: int) -> int:
    """Rounded to nearest even in the upper 19 bits; every NaN is 0x7FFFE000 (measured on an H200)."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFFE000
    low = bits & 0x1FFF
    up = low > 0x1000 or (low == 0x1000 and bits >> 13 & 1)
    return (bits & ~0x1FFF) + (0x2000 if up else 0)


@pytest.mark.parametrize("data_type", [F32, F32_FTZ, TF32, TF32_FTZ])
def test_conversions(data_type):
    """tf32 types round; the ftz types do not flush in a load (measured on an H200)."""
    t = tensor(data_type, (32, 8), (32, 8))
    edges = [
        0,
        1,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x3F800FFF,
        0x3F801000,
        0x3F801001,
        0x3F803000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7F800000,
    ]
    edges += [0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x3F802FFF, 0xBF801000]
    words = t.memory[t.start : t.start + 8 * 144].view(np.uint32).reshape(8, 36)
    words[:, : len(edges)] = edges
    wanted = words[:, :32]
    if data_type in (TF32, TF32_FTZ):
        wanted = np.array([[tf32_by_hand(int(w)) for w in row] for row in wanted], np.uint32)
    np.testing.assert_array_equal(load(t, (0, 0)).view(np.uint32).reshape(8, 32), wanted)


@pytest.mark.parametrize("data_type", [U4_PADDED, U6_PADDED])
@pytest.mark.parametrize("swizzle", [0, 3])
def test_padded_groups_keep_their_padding(data_type, swizzle):
    """16 elements in the first 8 or 12 of 16 bytes; the rest stays as it was; the barrier counts without padding."""
    t = tensor(data_type, (256, 5), (128, 4), swizzle=swizzle)
    check(t, (128, 2))
    check(t, (0, -1))


def test_the_checker_follows_groups_that_lie_in_two_pages():
    """12 bytes per 16 elements of 6 bits; the first row begins 64 bytes in front of a multiple of 4,096."""
    t = tensor(U6_PADDED, (128, 4), (128, 4))
    memory = boxes.aligned(np.arange(8192).astype(np.uint8), 4096)
    t = boxes.Tensor(memory, dataclasses.replace(t.map, address=memory.ctypes.data + 4096 - 64))
    check(t, (0, 0), check="races")


@pytest.mark.parametrize("rows", [(0, 5, 2, 7), (3, 3, 3, 3), (-1, 8, 100, 4)])
@pytest.mark.parametrize("swizzle", [0, 3])
def test_gather4(rows, swizzle):
    """Four rows in any order, outside ones filled; the bytes of all four count."""
    t = tensor(F16, (96, 8), (64, 1), swizzle=swizzle, oob_fill=1)
    check(t, (32, 0), rows=rows, fill=0x7FF7)


def test_the_second_half_of_a_map_is_not_read():
    """Host code of the CuTe DSL writes 64 bytes and leaves garbage behind them."""
    t = tensor(U8, (32, 8), (32, 8))
    garbage = t.map.encode()[:64] + bytes(range(64, 128))
    np.testing.assert_array_equal(load(t, (0, 1), maps=[garbage]), loaded(t, (0, 1)))


@pytest.mark.parametrize(
    ("to", "after", "operands"),
    [
        ("shared::cta", ".mbarrier::complete_tx::bytes", "{0, 1}], [%r4]"),
        ("shared::cluster", ".tile.mbarrier::complete_tx::bytes.L2::cache_hint", "{0, 1}], [%r4], %x9"),
        ("shared::cluster", ".tile.mbarrier::complete_tx::bytes.cta_group::1", "{%b1, %b2}], [%r4]"),
    ],
)
def test_spellings(to, after, operands):
    t = tensor(U8, (32, 8), (32, 8))
    out = np.zeros(256, np.uint8)
    body = " mov.b64 %x9, 0x12F0000000000000; mov.b32 %b1, 0; mov.b32 %b2, 1;\n" + expect(256)
    body += f" @%leader cp.async.bulk.tensor.2d.{to}.global{after} [%r3], [%map0, {operands};\n"
    run(body + wait() + copy_out(256), out, maps=[t.map], allow=(t.memory,))
    np.testing.assert_array_equal(out, loaded(t, (0, 1)))


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.prefetch.tensor.2d.L2.global [%map0, {0, 0}]",
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%map0, {0, 0, 1, 2, 3}]",
        "cp.async.bulk.prefetch.L2.global [%rd2], 16",
        "prefetch.tensormap [%map0]",
    ],
)
def test_prefetches_do_nothing(text):
    t = tensor(U8, (32, 8), (32, 8))
    run(f" @%leader {text};\n", np.zeros(4, np.uint32), maps=[t.map], allow=(t.memory,))


# -- errors ---------------------------------------------------------------------------------------------------------------


def refuse(t: boxes.Tensor, body: str, kind: type[em.EmulationError], text: str, **options) -> None:
    with pytest.raises(kind, match=text):
        run(
            body,
            np.zeros(4, np.uint32),
            maps=options.pop("maps", [t.map]),
            allow=options.pop("allow", (t.memory,)),
            **options,
        )


PLAIN = tensor(F16, (64, 9), (32, 8))


@pytest.mark.parametrize("offset", [16, 64, 8])
def test_destination_alignment(offset):
    body = f" add.u32 %b0, %r3, {offset};\n" + load_text(PLAIN.map, (0, 0), to="%b0")
    refuse(
        PLAIN,
        body,
        em.IllegalOperation,
        rf"the destination of a TMA load at shared offset {0x400 + offset:#x}: a multiple of 128",
    )


def test_destination_outside_shared_memory():
    body = " add.u32 %b0, %r3, 4224;\n" + load_text(PLAIN.map, (0, 0), to="%b0")
    refuse(PLAIN, body, em.OutOfBounds, "the destination of a TMA load", shared_bytes=4096)


@pytest.mark.parametrize("at", [(4, 0), (-5, 0), (1, 0), (12, 3)])
def test_the_innermost_coordinate_counts_16_bytes(at):
    """An H200 answers with an illegal-instruction fault."""
    refuse(PLAIN, load_text(PLAIN.map, at), em.IllegalOperation, rf"coordinate {at[0]} of dimension 0 .*16 bytes")


def test_ranks_must_agree():
    body = " @%leader cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%map0, {0, 0, 0}], [%r4];"
    refuse(PLAIN, body, em.IllegalOperation, r".3d copy with a tensor map of rank 2")
    few = " @%leader cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%map0, {0}], [%r4];"
    refuse(PLAIN, few, em.IllegalOperation, "1 coordinates for a tensor map of rank 2")


def test_the_map_is_aligned_to_64_bytes():
    body = " add.u64 %map0, %map0, 32;\n" + load_text(PLAIN.map, (0, 0))
    refuse(PLAIN, body, em.Misaligned, "tensor map of 64 bytes at .*not a multiple of 64")


def word2(**fields: int) -> bytes:
    """PLAIN's map with fields of the word at 0x08 changed: (first bit, width)."""
    places = {
        "kind": (0, 4),
        "rank": (4, 3),
        "type": (7, 4),
        "interleave": (11, 2),
        "swizzle": (13, 2),
        "atoms": (19, 2),
    }
    raw = bytearray(PLAIN.map.encode())
    word = int.from_bytes(raw[8:12], "little")
    for name, value in fields.items():
        first, width = places[name]
        word = word & ~(((1 << width) - 1) << first) | value << first
    raw[8:12] = word.to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (bytes(128), "no tiled tensor map was written here"),
        (word2(rank=5), "rank 6; allowed: 1 to 5"),
        (word2(type=14), "element type 14; allowed: 0 to 13"),
        (word2(interleave=1), "interleave 1; the emulator has tile mode without interleave"),
        (word2(swizzle=3, atoms=2), "swizzle mode 3, atomicity 2, which the emulator does not have"),
    ],
)
def test_maps_that_are_none(raw, text):
    refuse(PLAIN, load_text(PLAIN.map, (0, 0)), em.IllegalOperation, text, maps=[raw])


def test_a_tensor_outside_valid_memory():
    refuse(PLAIN, load_text(PLAIN.map, (0, 0)), em.OutOfBounds, "TMA load .* outside all valid memory", allow=())
    part = (PLAIN.memory.ctypes.data, PLAIN.start + 200)  # the last rows are missing
    refuse(PLAIN, load_text(PLAIN.map, (0, 0)), em.OutOfBounds, "TMA load .* bytes into", allow=(part,))


def test_gather4_rules():
    t = tensor(F16, (64, 9), (32, 2))
    body = load_text(t.map, (0, 1, 2, 3, 4), mode=".tile::gather4")
    refuse(t, body, em.IllegalOperation, "box of 2 rows: it must have one")
    cube = tensor(F16, (64, 9, 2), (32, 1, 1))
    body = body.replace(".2d", ".3d")
    refuse(cube, body, em.IllegalOperation, r"gather4 needs a tensor map of rank 2 and 5 coordinates, not 3 and 5")
    short = load_text(PLAIN.map, (0, 1, 2), mode=".tile::gather4")
    refuse(PLAIN, short, em.IllegalOperation, r"gather4 needs a tensor map of rank 2 and 5 coordinates, not 2 and 3")


def test_im2col_is_refused_by_name():
    name = "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    body = f" @%leader {name} [%r3], [%map0, {{0, 0, 0}}], [%r4], {{%h0}};"
    refuse(PLAIN, body, em.UnsupportedInstruction, "im2col modes are not supported by the emulator")


@pytest.mark.parametrize(("expected_bytes", "left"), [(512 + 16, 16), (512 - 16, -16)])
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_transaction_counts_that_never_match_are_a_deadlock(expected_bytes, left, schedule):
    """The report names the barrier, what it still waits for, and who touched it last."""
    body = expect(expected_bytes) + load_text(PLAIN.map, (0, 0)) + wait()
    text = rf"waits for phase parity 0 on the mbarrier at shared offset 0x10400: phase 0, .*tx-count {left}; last .*\(TMA load\)"
    refuse(PLAIN, body, em.DeadlockError, text, schedule=schedule)


def test_a_barrier_that_was_never_initialised():
    body = load_text(PLAIN.map, (0, 0), barrier="%r4+8")
    refuse(
        PLAIN, body, em.PoisonError, r"the mbarrier at shared offset 0x10408 of CTA \(0, 0, 0\) was never initialised"
    )


def test_sizes_that_do_not_fit_the_unit_of_a_packed_type():
    t = tensor(U4, (64, 4), (32, 2))
    raw = bytearray(t.map.encode())
    raw[0x20] = 62  # 63 elements
    refuse(
        t,
        load_text(t.map, (0, 0)),
        em.IllegalOperation,
        "box 32 and size 63 of dimension 0 must be multiples of 2",
        maps=[bytes(raw)],
    )


@pytest.mark.parametrize("address", [2**64 - 256, 2**63, 2**63 - 256, 2**57, 2**47, 0], ids=hex)
@pytest.mark.parametrize("what", ["load", "store"])
def test_tensors_at_addresses_that_no_memory_has(address, what):
    """A map of garbage: an error that says where, whatever the address; a box outside of the tensor reads nothing."""
    t = tensor(U16, (64, 40), (32, 8))
    wild = dataclasses.replace(t.map, address=address)
    name = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    store = f" @%leader {name} [%map0, {{32, 39}}], [%r3];\n @%leader cp.async.bulk.commit_group;\n"
    begin = boxes.fill_shared(4096) + expect(boxes.transferred(wild, 256))
    for body in [store] if what == "store" else [load_text(wild, (0, 0)), load_text(wild, (32, 39))]:
        with pytest.raises(em.OutOfBounds, match="global address 0x"):
            run(begin + body, np.zeros(8, np.uint8), maps=[wild], shared_bytes=4096)
    if what == "load":
        run(begin + load_text(wild, (-32, -9)) + wait(), np.zeros(8, np.uint8), maps=[wild], shared_bytes=4096)
