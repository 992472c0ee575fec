"""Tiled TMA stores and reductions: where elements go, edges, swizzled sources, scatters, every operation and type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor import boxes
from tests.emulator.tensor.boxes import (
    BF16,
    F16,
    F32,
    F32_FTZ,
    F64,
    S32,
    S64,
    U4,
    U4_PADDED,
    U8,
    U16,
    U32,
    U64,
    elements,
    tensor,
)
from tests.emulator.tensor.kernels import SCHEDULES, SM, copy_in, run
from tests.layouts.cute_layout import swizzled

WAIT = " @%leader cp.async.bulk.commit_group;\n @%leader cp.async.bulk.wait_group 0;\n"


def source_bytes(size: int, seed: int = 1) -> np.ndarray:
    """What shared memory holds: whole 2048-byte pieces of random bytes."""
    return np.random.default_rng(seed).integers(0, 256, -(-size // 2048) * 2048, np.uint8)


def store_text(
    t: boxes.Tensor, at: tuple[int, ...], *, source: str = "%r3", mode: str = "", op: str = "", guard: str = "@%leader "
) -> str:
    name = f"cp{'.reduce' if op else ''}.async.bulk.tensor.{len(t.map.dims)}d.global.shared::cta{op}{mode}.bulk_group"
    return f" {guard}{name} [%map0, {boxes.coordinates(at)}], [{source}];\n"


def store(
    t: boxes.Tensor,
    at: tuple[int, ...],
    shared: np.ndarray,
    *,
    offset: int = 0,
    mode: str = "",
    op: str = "",
    **options,
) -> None:
    """Run a kernel that fills `sm` and stores one box from sm + offset; changes t.memory."""
    body = (
        copy_in(shared.size)
        + f" add.u32 %b0, %r3, {offset};\n"
        + store_text(t, at, source="%b0", mode=mode, op=op)
        + WAIT
    )
    run(
        body,
        np.zeros(4, np.uint32),
        shared,
        maps=[t.map],
        allow=(t.memory,),
        shared_bytes=max(shared.size, 4096),
        **options,
    )


Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def stored(
    t: boxes.Tensor, at: tuple[int, ...], shared: np.ndarray, *, offset: int = 0, rows: tuple[int, ...] | None = None,
    combine: Combine | None = None,
) -> np.ndarray:  # fmt: skip
    """Global memory afterwards, element by element."""
    size = boxes.BITS[t.map.data_type] // 8
    found = t.memory.copy()
    for number, place in enumerate(elements(t.map, at, rows)):
        if place is None:
            continue
        first = SM + offset + boxes.shared_bit(t.map, number) // 8
        data = np.array(
            [shared[swizzled(first + b, boxes.SWIZZLE_NAMES[t.map.swizzle]) - SM] for b in range(size)], np.uint8
        )
        to = t.start + boxes.bit_of(t.map, place) // 8
        found[to : to + size] = data if combine is None else combine(found[to : to + size].copy(), data)
    return found


DIMS, BOX = (40, 5, 4, 3, 3), (16, 4, 3, 2, 2)
PLACES = {
    "inside": (8, 1, 1, 1, 1),
    "over": (32, 3, 2, 2, 2),
    "outside": (640, 0, 0, 0, 0),
    "far": (0, 2**31 - 1, 0, 0, 2**31 - 1),
}


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", PLACES)
def test_ranks_and_edges(rank, place):
    """Elements outside of the tensor are dropped, and nothing else in memory changes."""
    t = tensor(U16, DIMS[:rank], BOX[:rank])
    shared, at = source_bytes(2048), PLACES[place][:rank]
    wanted = stored(t, at, shared)
    store(t, at, shared)
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize("data_type", range(13))
def test_element_types(data_type):
    """Bits go as they are, also those of the ftz and tf32 types (measured on an H200)."""
    inner = 256 // boxes.BITS[data_type]
    t = tensor(data_type, (2 * inner, 6), (inner, 4))
    shared, at = source_bytes(128), (inner // 2, 3)
    wanted = stored(t, at, shared)
    store(t, at, shared)
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize("swizzle", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("offset", [0, 384])
def test_swizzled_sources(swizzle, offset):
    inner = {1: 16, 2: 32}.get(swizzle, 64)
    t = tensor(F16, (2 * inner, 20), (inner, 16), swizzle=swizzle)
    shared, at = source_bytes(offset + 2048), (inner, 2)
    wanted = stored(t, at, shared, offset=offset)
    store(t, at, shared, offset=offset)
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize(("swizzle", "inner"), [(1, 16), (2, 32), (3, 16), (3, 64)])
def test_rows_narrower_than_the_pattern(swizzle, inner):
    """They are read from whole rows of the pattern (measured on an H200)."""
    t = tensor(U8, (256, 24), (inner, 8), swizzle=swizzle)
    shared = source_bytes(1024)
    wanted = stored(t, (16, 2), shared)
    store(t, (16, 2), shared)
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_schedules(options):
    t = tensor(U32, (32, 9), (8, 8), swizzle=1)
    shared, at = source_bytes(256), (24, 4)
    wanted = stored(t, at, shared)
    store(t, at, shared, **options)
    np.testing.assert_array_equal(t.memory, wanted)


def test_element_strides():
    t = tensor(U16, (32, 20, 9), (16, 8, 6), steps=(1, 3, 2))
    shared, at = source_bytes(512), (8, 15, 4)
    wanted = stored(t, at, shared)
    store(t, at, shared)
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize("rows", [(0, 5, 2, 7), (6, 1, 100, 4)])
def test_scatter4(rows):
    t = tensor(F16, (96, 8), (64, 1), swizzle=3)
    shared = source_bytes(512)
    wanted = stored(t, (32, 0), shared, rows=rows)
    store(t, (32, *rows), shared, mode=".tile::scatter4")
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize("dims", [(37, 9), (3, 9), (37,)])
def test_a_row_that_ends_inside_a_chunk_is_written_to_the_end_of_the_chunk(dims):
    """What lies behind the last element of such a row changes (measured on an H200 for two dimensions)."""
    box = (16, 8)[: len(dims)]
    t = tensor(U16, dims, box)
    shared, at = source_bytes(256), (32 if dims[0] > 8 else 0, 5)[: len(dims)]
    before, wanted = t.memory.copy(), stored(t, at, shared)
    longer = boxes.with_map(t, dims=(-(-dims[0] // 8) * 8, *dims[1:]))
    chunks = stored(longer, at, shared)
    store(t, at, shared)
    np.testing.assert_array_equal(t.memory, chunks)
    assert (t.memory != wanted).any() and (t.memory != before).any()


def test_threads_that_store_the_same_store_it_once():
    t = tensor(U8, (64, 8), (32, 8))
    shared = source_bytes(256)
    wanted = stored(t, (16, 0), shared)
    body = copy_in(shared.size) + store_text(t, (16, 0), guard="") + WAIT.replace("@%leader ", "")
    report = run(body, np.zeros(4, np.uint32), shared, maps=[t.map], allow=(t.memory,), block=32)
    np.testing.assert_array_equal(t.memory, wanted)
    assert report.bytes_moved["global store"] == 256


# -- reductions -----------------------------------------------------------------------------------------------------------


def on(dtype: type, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Combine:
    """A combination of raw bytes as values of a type."""

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            result = np.asarray(function(old.view(dtype), new.view(dtype)))
        return result.astype(dtype).reshape(1).view(np.uint8)

    return combine


def bfloat(function: Callable[[np.float32, np.float32], np.ndarray]) -> Combine:
    """A combination of two bf16 in float32, rounded to nearest even (finite values)."""

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        a, b = ((x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (old, new))
        bits = np.asarray(function(a, b), np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return rounded.astype(np.uint16).view(np.uint8)

    return combine


INTEGERS = {
    "add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1), "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}  # fmt: skip
CASES = [(U32, np.uint32, op) for op in INTEGERS] + [
    (S32, np.int32, op) for op in ("add", "min", "max", "and", "or", "xor")
]
CASES += [(U64, np.uint64, op) for op in ("add", "min", "max", "and", "or", "xor")] + [
    (S64, np.int64, op) for op in ("min", "max")
]


def check_reduction(
    data_type: int, op: str, combine: Combine, shared: np.ndarray, memory: np.ndarray | None = None
) -> None:
    inner = 256 // boxes.BITS[data_type]
    t = tensor(data_type, (2 * inner, 6), (inner, 4))
    if memory is not None:
        t.memory[:] = np.resize(memory.view(np.uint8), t.memory.size)
    at = (inner + inner // 2, 3)  # hangs over both edges
    wanted = stored(t, at, shared, combine=combine)
    store(t, at, shared, op=f".{op}")
    np.testing.assert_array_equal(t.memory, wanted)


@pytest.mark.parametrize(("data_type", "dtype", "op"), CASES)
def test_integer_reductions(data_type, dtype, op):
    small = np.random.default_rng(3).integers(0, 4, 512).astype(dtype).view(np.uint8)[:2048]
    for shared in (source_bytes(128), np.resize(small, 2048)):
        check_reduction(data_type, op, on(dtype, INTEGERS[op]), shared)


def numbers(dtype: type, seed: int) -> np.ndarray:
    """Values that meet: sums round, some are subnormal, zeros of both signs."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(2048 // np.dtype(dtype).itemsize) * 2.0 ** rng.integers(
        -12, 8, 2048 // np.dtype(dtype).itemsize
    )
    return values.astype(dtype)


@pytest.mark.parametrize(
    ("data_type", "dtype", "op"), [(F32, np.float32, "add"), *((F16, np.float16, op) for op in ("add", "min", "max"))]
)
def test_float_reductions(data_type, dtype, op):
    function = {"add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum}[op]
    check_reduction(data_type, op, on(dtype, function), numbers(dtype, 4).view(np.uint8), numbers(dtype, 5))


@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_bf16_reductions(op):
    data, memory = ((numbers(np.float32, seed)[:512].view(np.uint32) >> 16).astype(np.uint16) for seed in (6, 7))
    function = {"add": lambda a, b: a + b, "min": np.minimum, "max": np.maximum}[op]
    check_reduction(BF16, op, bfloat(function), np.resize(data, 1024).view(np.uint8), memory)


@pytest.mark.parametrize(("data_type", "flushes"), [(F32, False), (F32_FTZ, True)])
def test_subnormal_sums(data_type, flushes):
    """f32 keeps them; the type with ftz flushes inputs and results (measured on an H200; the ISA says that f32 flushes)."""
    tiny = np.array([1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x3F800000, 0, 0x80000000], np.uint32)

    def flush(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.uint32)
        return (
            np.where(bits & 0x7F800000 == 0, bits & 0x80000000, bits).astype(np.uint32).view(np.float32)
            if flushes
            else x
        )

    combine = on(np.float32, lambda a, b: flush(np.asarray(flush(a) + flush(b))))
    check_reduction(data_type, "add", combine, np.resize(tiny, 512).view(np.uint8), np.resize(np.repeat(tiny, 8), 512))


def test_every_thread_reduces():
    """Unlike stores of the same bytes, reductions of 32 threads add 32 times."""
    t = tensor(U32, (8, 1), (8, 1))
    t.memory[:] = 0
    shared = np.resize(np.arange(1, 9, dtype=np.uint32).view(np.uint8), 2048)
    body = copy_in(shared.size) + store_text(t, (0, 0), op=".add", guard="") + WAIT.replace("@%leader ", "")
    run(body, np.zeros(4, np.uint32), shared, maps=[t.map], allow=(t.memory,), block=32)
    np.testing.assert_array_equal(t.memory[t.start : t.start + 32].view(np.uint32), 32 * np.arange(1, 9))


# -- errors ---------------------------------------------------------------------------------------------------------------

PLAIN = tensor(U16, (40, 9), (16, 8))


def refuse(t: boxes.Tensor, body: str, kind: type[em.EmulationError], text: str, **options) -> None:
    with pytest.raises(kind, match=text):
        run(
            copy_in(2048) + body, np.zeros(4, np.uint32), source_bytes(2048), maps=[t.map], allow=(t.memory,), **options
        )


@pytest.mark.parametrize("op", ["", ".add"])
@pytest.mark.parametrize("at", [(-8, 0), (0, -1)])
def test_negative_coordinates(at, op):
    """CUDA Programming Guide: the corner of a tile that is written must not be negative; an H200 faults."""
    t = tensor(U32, (40, 9), (16, 8))
    refuse(
        t,
        store_text(t, at, op=op),
        em.IllegalOperation,
        rf"coordinates \({at[0]}, {at[1]}\) of a tensor store: .* not be negative",
    )


def test_unaligned_innermost_coordinate():
    refuse(PLAIN, store_text(PLAIN, (4, 0)), em.IllegalOperation, "coordinate 4 of dimension 0 is 8 bytes")


@pytest.mark.parametrize("offset", [16, 64])
def test_source_alignment(offset):
    body = f" add.u32 %b0, %r3, {offset};\n" + store_text(PLAIN, (0, 0), source="%b0")
    refuse(
        PLAIN,
        body,
        em.IllegalOperation,
        rf"the source of a TMA store at shared offset {SM + offset:#x}: a multiple of 128",
    )


def test_sources_of_another_cta():
    body = " mapa.shared::cluster.u32 %b0, %r3, 1;\n" + store_text(PLAIN, (0, 0), source="%b0")
    with pytest.raises(
        em.IllegalOperation, match=r"belongs to the CTA of rank 1, but this instruction \(shared::cta\)"
    ):
        run(body, np.zeros(4, np.uint32), maps=[PLAIN.map], allow=(PLAIN.memory,), ctas=2)


def test_never_written_shared_memory_must_not_be_stored():
    with pytest.raises(
        em.PoisonError, match=r"shared memory at offset 0x400 was never written and goes to global memory"
    ):
        run(store_text(PLAIN, (0, 0)) + WAIT, np.zeros(4, np.uint32), maps=[PLAIN.map], allow=(PLAIN.memory,))


def test_read_only_tensors():
    t = tensor(U16, (40, 9), (16, 8))
    t.memory.flags.writeable = False
    refuse(t, store_text(t, (0, 0)), em.OutOfBounds, "read-only")


def test_padded_types_can_only_be_loaded():
    t = tensor(U4_PADDED, (128, 4), (128, 2))
    refuse(t, store_text(t, (0, 0)), em.IllegalOperation, "TMA store of b4x16_p64: padded types can only be loaded")


MISSING = [
    (U8, "add", "u8"),
    (U16, "add", "u16"),
    (U16, "xor", "u16"),
    (S64, "add", "s64"),
    (F32, "min", "f32"),
    (F64, "max", "f64"),
]
MISSING += [(S32, "inc", "s32"), (U64, "dec", "u64"), (F16, "and", "f16"), (BF16, "or", "bf16"), (F32, "inc", "f32")]


@pytest.mark.parametrize(("data_type", "op", "name"), MISSING)
def test_reductions_that_do_not_exist(data_type, op, name):
    """An H200 faults on them; the message lists the types that have the operation."""
    inner = 256 // boxes.BITS[data_type]
    t = tensor(data_type, (2 * inner, 6), (inner, 4))
    refuse(t, store_text(t, (0, 0), op=f".{op}"), em.IllegalOperation, f"tensor reduction {op} on {name}; allowed: u32")


def test_f64_addition():
    check_reduction(F64, "add", on(np.float64, np.add), numbers(np.float64, 8).view(np.uint8), numbers(np.float64, 9))


def test_packed_nibbles_are_stored_as_bytes():
    t = tensor(U4, (64, 4), (32, 2))
    shared, at = source_bytes(32), (32, 1)
    wanted = t.memory.copy()
    for row in range(2):
        start = t.start + 16 + (1 + row) * t.map.strides_bytes[0]
        wanted[start : start + 16] = shared[16 * row : 16 * row + 16]
    store(t, at, shared)
    np.testing.assert_array_equal(t.memory, wanted)
