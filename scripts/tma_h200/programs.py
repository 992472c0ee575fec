"""Kernels for what `silicon.programs.bulk` leaves open: absolute addresses, narrow boxes, multicast, odd reductions, edited maps."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from silicon.inputs import random_words
from silicon.programs.code import Code, Program

from mxfp8fa.emulator.host.tensormap import TiledMap

THREADS = 128
PIECE_BYTES = 8 * THREADS  # what the threads of a CTA write or read at once
U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ = range(13)
NAMES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz")
BITS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32)
LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
WAIT_STORE = "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"
CLUSTER_SYNC = "barrier.cluster.arrive; barrier.cluster.wait;"
INPUT_BYTES = 16384


def tensor(
    data_type: int, dims: tuple[int, ...], box: tuple[int, ...], *, steps: tuple[int, ...] = (), **options: int
) -> TiledMap:
    """A tensor at the start of the input, rows rounded up to 16 bytes and 16 more."""
    strides, pitch = [], -(-dims[0] * BITS[data_type] // 8 // 16) * 16 + 16
    for d in dims[1:]:
        strides.append(pitch)
        pitch *= d
    return TiledMap(data_type, 0, dims, strides, box, steps or (1,) * len(dims), l2_promotion=0, **options)


def box_bytes(m: TiledMap) -> int:
    """Bytes of a box."""
    counts = [m.box[0], *(-(-b // s) for b, s in zip(m.box[1:], m.element_strides[1:], strict=True))]
    return int(np.prod(counts)) * BITS[m.data_type] // 8


def begin(size_bytes: int, *, from_input: int | None = None) -> Code:
    """A CTA with a shared buffer of 0xEE bytes, or of the input's bytes from an offset on.

    %r0 buffer, %r1 mbarrier for one arrival, %r2 the thread's word, %p0 first thread, %d4 the tensor map.
    """
    code = Code()
    rounds = -(-size_bytes // PIECE_BYTES)
    code.shared("buffer", rounds * PIECE_BYTES, 1024)
    code.shared("barrier", 8, 8)
    code("mov.u32 %r0, buffer; mov.u32 %r1, barrier; setp.eq.u32 %p0, %tx, 0; mad.lo.u32 %r2, %tx, 8, %r0;")
    code(f"mov.b64 %d1, 0xEEEEEEEEEEEEEEEE; mad.wide.u32 %d5, %tx, 8, %in; add.u64 %d5, %d5, {from_input or 0};")
    for i in range(rounds):
        if from_input is not None:
            code(f"ld.global.b64 %d1, [%d5+{PIECE_BYTES * i}];")
        code(f"st.shared.b64 [%r2+{PIECE_BYTES * i}], %d1;")
    code(
        "@%p0 mbarrier.init.shared.b64 [%r1], 1; @%p0 fence.mbarrier_init.release.cluster; fence.proxy.async; bar.sync 0;"
    )
    return code


def with_map(code: Code) -> Code:
    """%d4: address of the tensor map."""
    code("mov.u64 %d4, map; cvta.param.u64 %d4, %d4;")
    return code


def wait(code: Code) -> None:
    """Wait for the barrier's first phase."""
    code("again: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra again;")


def dump_shared(code: Code, size_bytes: int) -> None:
    """Put the buffer."""
    for i in range(-(-size_bytes // PIECE_BYTES)):
        code(f"ld.shared.b64 %d2, [%r2+{PIECE_BYTES * i}];")
        code.put("%d2")


def dump_input(code: Code, size_bytes: int) -> None:
    """Put the first bytes of the input, which were written to."""
    code("bar.sync 0; mad.wide.u32 %d3, %tx, 8, %in;")
    for i in range(-(-size_bytes // PIECE_BYTES)):
        code(f"ld.global.b64 %d2, [%d3+{PIECE_BYTES * i}];")
        code.put("%d2")


def place(at: tuple[int, ...]) -> str:
    """The operand [map, {coordinates}]."""
    return f"[%d4, {{{', '.join(map(str, at))}}}]"


def finish(
    code: Code, name: str, covers: str, m: TiledMap | None, words: np.ndarray | None = None, **options: int
) -> Program:
    """The program; its input is random unless words are given."""
    given = random_words(name, INPUT_BYTES // 8) if words is None else words
    return code.build(name, covers, given, block=THREADS, minimum=90, tensor=m, **options)


def load(
    name: str,
    covers: str,
    m: TiledMap,
    at: tuple[int, ...],
    *,
    offset: int = 0,
    span: int = 0,
    words: np.ndarray | None = None,
) -> Program:
    """One box to the buffer + offset; `span`: bytes of the buffer to look at, where that is more than the box."""
    size = max(offset + box_bytes(m), span)
    code = with_map(begin(size))
    code(f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {box_bytes(m)}; add.u32 %r5, %r0, {offset};")
    code(f"@%p0 {LOAD.format(len(m.dims))} [%r5], {place(at)}, [%r1];")
    wait(code)
    dump_shared(code, size)
    return finish(code, name, covers, m, words)


def store(
    name: str,
    covers: str,
    m: TiledMap,
    at: tuple[int, ...],
    *,
    op: str = "",
    offset: int = 0,
    words: np.ndarray | None = None,
) -> Program:
    """One box from the buffer, which holds the input's second half, to the tensor in its first half."""
    half = INPUT_BYTES // 2
    code = with_map(begin(offset + box_bytes(m), from_input=half))
    name_ = f"cp{'.reduce' if op else ''}.async.bulk.tensor.{len(m.dims)}d.global.shared::cta{op}.tile.bulk_group"
    code(f"add.u32 %r5, %r0, {offset}; @%p0 {name_} {place(at)}, [%r5]; {WAIT_STORE}")
    dump_input(code, half)
    return finish(code, name, covers, m, words)


# -- one CTA --------------------------------------------------------------------------------------------------------------


def addresses() -> list[Program]:
    """Where in the pattern a box begins, and boxes narrower than the pattern's rows."""
    found = []
    for swizzle, span in ((1, 32), (2, 64), (3, 128)):
        m = tensor(F16, (128, 24), (span // 2, 16), swizzle=swizzle)
        for offset in (128, 256, 640):
            covers = f"swizzle {span}, a box at offset {offset} of a 1024-byte block"
            found.append(load(f"phase.load.{span}.{offset}", covers, m, (8, 3), offset=offset))
            found.append(store(f"phase.store.{span}.{offset}", covers, m, (8, 3), offset=offset))
        for inner in (16, 32, 64):
            if inner < span:
                narrow = tensor(U8, (256, 24), (inner, 8), swizzle=swizzle)
                covers = f"swizzle {span} of a box with rows of {inner} bytes"
                found.append(load(f"narrow.load.{span}.{inner}", covers, narrow, (16, 2), span=8 * span))
                found.append(store(f"narrow.store.{span}.{inner}", covers, narrow, (16, 2)))
    return found


def types() -> list[Program]:
    """Types and fills that are not measured elsewhere."""
    found = []
    for t in (S32, U64, S64, F64, F32_FTZ, TF32, TF32_FTZ):
        inner = 512 // BITS[t]
        found.append(
            load(
                f"type.{NAMES[t]}",
                f"a swizzled load of {NAMES[t]}",
                tensor(t, (4 * inner, 12), (inner, 8), swizzle=2),
                (inner, 3),
            )
        )
    for t in (F32_FTZ, TF32, TF32_FTZ):
        m = tensor(t, (11, 5), (8, 4), oob_fill=1)
        found.append(load(f"fill.{NAMES[t]}", f"NaN outside of a tensor of {NAMES[t]}", m, (8, -2)))
    return found


def edges() -> list[Program]:
    """Coordinates far away, large boxes, stores over ragged ends."""
    low, high = -(2**31), 2**31 - 1
    m = tensor(U16, (40, 9, 5), (16, 4, 3))
    found = [
        load("far.low", "coordinates of -2^31", m, (low, low, low)),
        load("far.high", "coordinates of 2^31 - 1 (the innermost one 2^31 - 8)", m, (high - 7, high, high)),
        load("far.mixed", "one coordinate far away, the others inside", m, (8, high, 1)),
        store("far.store", "a store with one coordinate far away", m, (8, high, 1)),
        load("large.rows", "a box of 256 rows", tensor(U8, (48, 240), (32, 256)), (16, 20)),
        load("large.inner", "a box of 256 bytes times 32 rows", tensor(U8, (300, 40), (256, 32)), (32, 4)),
        store(
            "steps.store",
            "a store with element strides",
            tensor(U16, (64, 20, 9), (32, 8, 6), steps=(1, 3, 2)),
            (8, 5, 1),
        ),
        store("ragged.rank1", "a store over the end of a vector of 37 elements", tensor(U16, (37,), (16,)), (32,)),
        store(
            "ragged.rank3",
            "a store over ragged rows in three dimensions",
            tensor(U8, (21, 5, 3), (16, 4, 2)),
            (16, 3, 1),
        ),
        store("ragged.f32", "a store over the end of rows of 5 floats", tensor(F32, (5, 9), (4, 4)), (4, 2)),
        store(
            "ragged.reduce",
            "an addition over the end of rows of 5 words",
            tensor(U32, (5, 9), (4, 4)),
            (4, 2),
            op=".add",
        ),
        store(
            "ragged.swizzled",
            "a swizzled store over the end of rows of 37 elements",
            tensor(U16, (37, 9), (32, 8), swizzle=2),
            (32, 3),
        ),
    ]
    return found


def questions() -> list[Program]:
    """Things whose answer may be a fault."""
    plain, cube = tensor(F16, (64, 9), (32, 8)), tensor(U16, (64, 9, 4), (32, 4, 2))
    found = [
        load("unaligned.f32", "an innermost coordinate of 4 bytes (f32)", tensor(F32, (64, 9), (32, 8)), (1, 0)),
        load("unaligned.u8", "an innermost coordinate of 8 bytes (u8)", tensor(U8, (64, 9), (32, 8)), (8, 0)),
        load(
            "unaligned.rank1", "an innermost coordinate of 8 bytes in one dimension", tensor(U16, (256,), (64,)), (4,)
        ),
        load("unaligned.rank3", "an innermost coordinate of 2 bytes in three dimensions", cube, (1, 2, 1)),
        load(
            "unaligned.swizzled",
            "an innermost coordinate of 8 bytes, swizzled",
            tensor(F16, (96, 9), (64, 8), swizzle=3),
            (4, 0),
        ),
        load("destination.16", "a shared address that is a multiple of 16 only", plain, (0, 0), offset=16),
        load("destination.64", "a shared address that is a multiple of 64 only", plain, (0, 0), offset=64),
        store("source.16", "a store from a shared address that is a multiple of 16 only", plain, (0, 0), offset=16),
        store("source.64", "a store from a shared address that is a multiple of 64 only", plain, (0, 0), offset=64),
        store("negative.rank3", "a store at a negative coordinate of dimension 2", cube, (0, 0, -1)),
    ]
    odd = [
        (U8, "add"),
        (U16, "add"),
        (U16, "max"),
        (U16, "xor"),
        (S64, "add"),
        (F64, "add"),
        (F32, "min"),
        (F16, "and"),
        (TF32, "add"),
    ]
    odd += [
        (S32, "inc"),
        (U64, "inc"),
        (S32, "add"),
        (U64, "max"),
        (S64, "max"),
        (U64, "and"),
        (S32, "xor"),
        (BF16, "or"),
        (U8, "and"),
    ]
    for t, op in odd:
        m = tensor(t, (512 // BITS[t], 16), (512 // BITS[t], 16))
        found.append(
            store(
                f"reduce.{op}.{NAMES[t]}",
                f"cp.reduce.async.bulk.tensor.{op} on a map of {NAMES[t]}",
                m,
                (0, 0),
                op=f".{op}",
            )
        )
    return found


# -- maps that begin before their tensor ----------------------------------------------------------------------------------


def endings() -> list[Program]:
    """Sequences that lie end to end under one map, with a mode for where they end: `kernels.forward.sequences`."""
    tokens, row, first, length = 40, 144, 10, 21  # rows of 64 elements and 16 bytes more; the sequence is 10 to 30
    m = TiledMap(
        F16, -tokens * row, (64, tokens, tokens + 1), [row, row], (64, 16, 1), (1, 1, 1), swizzle=3, l2_promotion=0
    )
    found = []
    for name, i in (("inside", 0), ("straddling", 16), ("behind", 32)):
        at, covers = (
            (0, tokens - length + i, first + length),
            f"{name} the end of a sequence, by a map that begins before its tensor",
        )
        found += [
            load(f"ending.load.{name}", f"a load {covers}", m, at),
            store(f"ending.store.{name}", f"a store {covers}", m, at),
        ]
    return found


# -- clusters -------------------------------------------------------------------------------------------------------------


def multicast(name: str, covers: str, ctas: int, mask: int, *, bulk: bool = False) -> Program:
    """CTA 0 sends one box (or 1024 bytes) to the CTAs of a mask; all show their buffers."""
    m = tensor(F16, (96, 24), (64, 8), swizzle=3)
    code = with_map(begin(2048))
    code(
        f"mov.u32 %r6, %cluster_ctarank; mov.b32 %r7, {mask}; shr.u32 %r7, %r7, %r6; and.b32 %r7, %r7, 1; setp.ne.u32 %p2, %r7, 0;"
    )
    code("and.pred %p3, %p2, %p0; setp.eq.u32 %p4, %r6, 0; and.pred %p4, %p4, %p0;")
    code(
        f"@%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1024; {CLUSTER_SYNC} mov.b16 %h1, {mask}; add.u32 %r5, %r0, 1024;"
    )
    what = (
        f"{BULK_LOAD}.multicast::cluster [%r5], [%in], 1024"
        if bulk
        else f"{LOAD.format(2)}.multicast::cluster [%r5], {place((16, 5))}"
    )
    code(f"@%p4 {what}, [%r1], %h1; @!%p2 bra over;")
    wait(code)
    code(f"over: {CLUSTER_SYNC}")
    dump_shared(code, 2048)
    return finish(code, name, covers, m, grid=ctas, cluster=ctas)


def each_half() -> Program:
    """Two CTAs, each of which loads half of a tile and sends it to both: what a 2-CTA GEMM does with its B."""
    m = tensor(F16, (96, 24), (64, 8), swizzle=3)
    code = with_map(begin(2048))
    code("mov.u32 %r6, %cluster_ctarank; mul.lo.u32 %r7, %r6, 8; mad.lo.u32 %r5, %r6, 1024, %r0; mov.b16 %h1, 3;")
    code(f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 2048; {CLUSTER_SYNC}")
    code(f"@%p0 {LOAD.format(2)}.multicast::cluster [%r5], [%d4, {{16, %r7}}], [%r1], %h1;")
    wait(code)
    code(CLUSTER_SYNC)
    dump_shared(code, 2048)
    return finish(code, "multicast.halves", "each CTA of a pair loads half of a tile for both", m, grid=2, cluster=2)


def remote_load() -> Program:
    """CTA 1 asks for a box to go to CTA 0, whose own barrier counts it."""
    m = tensor(F16, (96, 24), (64, 8), swizzle=3)
    code = with_map(begin(1024))
    code(
        "mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p2, %r6, 0; and.pred %p3, %p2, %p0; not.pred %p4, %p2; and.pred %p4, %p4, %p0;"
    )
    code(f"@%p3 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 1024; {CLUSTER_SYNC}")
    code("mov.b32 %r9, 0; mapa.shared::cluster.u32 %r7, %r0, %r9; mapa.shared::cluster.u32 %r8, %r1, %r9;")
    code(f"@%p4 {LOAD.format(2)} [%r7], {place((16, 5))}, [%r8]; @!%p2 bra over;")
    wait(code)
    code(f"over: {CLUSTER_SYNC}")
    dump_shared(code, 1024)
    return finish(code, "remote.load", "a load that another CTA issued", m, grid=2, cluster=2)


def clusters() -> list[Program]:
    """All kernels with more than one CTA."""
    found = [
        multicast(f"multicast.{mask:04b}", f"a tensor load to the CTAs {mask:04b} of 4", 4, mask)
        for mask in (1, 2, 5, 10, 15)
    ]
    found += [
        multicast(f"multicast.bulk.{mask:04b}", f"a bulk copy to the CTAs {mask:04b} of 4", 4, mask, bulk=True)
        for mask in (2, 13)
    ]
    return [*found, each_half(), remote_load()]


# -- maps that are edited on the device -----------------------------------------------------------------------------------

_SCRATCH = INPUT_BYTES - 128  # where the edited map goes


def edited(name: str, covers: str, wanted: TiledMap, edits: list[str]) -> Program:
    """Edit a copy of the map in shared memory, publish it, and load with it."""
    original = tensor(U16, (64, 12, 5), (16, 4, 2))
    size = box_bytes(wanted)
    code = with_map(begin(2048))
    code(
        "setp.lt.u32 %p5, %tx, 16; mad.wide.u32 %d6, %tx, 8, %d4; mad.lo.u32 %r10, %tx, 8, %r0; add.u32 %r11, %r0, 0; setp.lt.u32 %p6, %tx, 32;"
    )
    code("@%p5 ld.b64 %d7, [%d6]; @%p5 st.shared.b64 [%r10], %d7; bar.sync 0; add.u64 %d9, %in, 1024;")
    for edit in edits:
        code(f"@%p0 tensormap.replace.tile.{edit};")
    code(f"bar.sync 0; add.u64 %d8, %in, {_SCRATCH};")
    code(
        "@%p6 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d8], [%r11], 128;"
    )
    code("fence.proxy.tensormap::generic.acquire.gpu [%d8], 128; bar.sync 0; mov.b64 %d1, 0xEEEEEEEEEEEEEEEE;")
    code("st.shared.b64 [%r2], %d1; st.shared.b64 [%r2+1024], %d1; fence.proxy.async; bar.sync 0; mov.b64 %d4, %d8;")
    at = (128 // BITS[wanted.data_type], 2, 1)
    code(
        f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size}; @%p0 {LOAD.format(len(wanted.dims))} [%r0], {place(at)}, [%r1];"
    )
    wait(code)
    dump_shared(code, 2048)
    return finish(code, name, covers, original)


def edits() -> list[Program]:
    """Every field that a grouped kernel edits."""
    base = tensor(U16, (64, 12, 5), (16, 4, 2))

    def field(text: str, type: str = "b32") -> str:
        name, _, values = text.partition(" ")
        return f"{name}.shared::cta.b1024.{type} [%r11], {values}"

    cases = {
        "none": ({}, []),
        "address": ({}, [field("global_address %d9", "b64")]),
        "dims": ({"dims": (13, 3, 2)}, [field("global_dim 0, 13"), field("global_dim 1, 3"), field("global_dim 2, 2")]),
        "strides": ({}, [field("global_stride 0, 192", "b64"), field("global_stride 1, 4096", "b64")]),
        "box": ({"box": (32, 8, 1)}, [field("box_dim 0, 32"), field("box_dim 1, 8"), field("box_dim 2, 1")]),
        "steps": ({"element_strides": (1, 2, 1)}, [field("element_stride 1, 2")]),
        "swizzle": ({}, [field("swizzle_mode 1")]),
        "nan": ({"data_type": BF16}, [field("elemtype 10"), field("fill_mode 1"), field("global_dim 0, 13")]),
        "type": ({"data_type": U8}, [field("elemtype 0")]),
    }
    found = []
    for name, (changes, lines) in cases.items():
        found.append(edited(f"edit.{name}", f"tensormap.replace: {name}", replace(base, **changes), lines))
    return found


@lru_cache(maxsize=1)
def all_programs() -> dict[str, Program]:
    """Every program by name."""
    found = [*addresses(), *types(), *edges(), *questions(), *endings(), *clusters(), *edits()]
    return {p.name: p for p in found}
