"""Asynchronous copies: cp.async and its groups, st.async and red.async between the CTAs of a cluster, remote shared memory."""

from __future__ import annotations

import numpy as np

from silicon.inputs import integer_edges, random_words
from silicon.programs.code import Code, Program

STAGE_BYTES = 512  # 16 bytes per lane
PEER = "mov.u32 %r90, %cluster_ctarank; xor.b32 %r91, %r90, 1;"
SYNC = "barrier.cluster.arrive; barrier.cluster.wait;"


def _put_stage(code: Code, offset: int) -> None:
    """Put the lane's 16 bytes at an offset of its stage."""
    code(f"ld.shared.v2.b64 {{%d40, %d41}}, [%r1+{offset}];")
    code.put("%d40")
    code.put("%d41")


def _stages(count: int) -> Code:
    """Shared memory of `count` stages, filled with ones; %r1: the lane's place in stage 0, %d0: its 16 bytes in global memory."""
    code = Code()
    code.shared("stages", STAGE_BYTES * count)
    code("mov.u32 %r0, stages; mad.lo.u32 %r1, %tx, 16, %r0; mad.wide.u32 %d0, %tx, 16, %in; mov.b64 %d1, -1;")
    for i in range(count):
        code(f"st.shared.v2.b64 [%r1+{STAGE_BYTES * i}], {{%d1, %d1}};")
    return code


def _sizes() -> Program:
    code = _stages(4)
    copies = (
        "ca.shared.global [%r1], [%d0], 4",
        "ca.shared.global [%r1+520], [%d0+8], 8",
        "ca.shared.global [%r1+1024], [%d0], 16",
        "cg.shared::cta.global.L2::128B [%r1+1536], [%d0], 16",
    )
    code(" ".join(f"cp.async.{c};" for c in copies))
    code("cp.async.wait_all;")
    for i in range(4):
        _put_stage(code, STAGE_BYTES * i)
    return code.build("cp_async.sizes", "cp.async of 4, 8 and 16 bytes", random_words("cp", 64))


def _zero_fill() -> Program:
    code = _stages(3)
    code("rem.u32 %r2, %tx, 5; rem.u32 %r3, %tx, 9; rem.u32 %r4, %tx, 17;")
    code("""
        cp.async.ca.shared.global [%r1], [%d0], 4, %r2; cp.async.ca.shared.global [%r1+512], [%d0], 8, %r3;
        cp.async.cg.shared.global [%r1+1024], [%d0], 16, %r4;
    """)
    code("cp.async.commit_group; cp.async.wait_group 0;")
    for i in range(3):
        _put_stage(code, STAGE_BYTES * i)
    return code.build(
        "cp_async.zero_fill",
        "cp.async with every source size from 0 to the copy size: the rest is zero",
        random_words("fill", 64),
    )


def _ignore_source() -> Program:
    code = _stages(2)
    code("and.b32 %r2, %tx, 3; setp.eq.u32 %p0, %r2, 1;")
    code("""
        cp.async.ca.shared.global [%r1], [%d0], 8, %p0; cp.async.cg.shared.global [%r1+512], [%d0], 16, %p0;
        cp.async.wait_all;
    """)
    for i in range(2):
        _put_stage(code, STAGE_BYTES * i)
    return code.build("cp_async.ignore_source", "cp.async with ignore-src", random_words("ignore", 64))


def _groups() -> Program:
    code = _stages(3)
    for i in range(3):
        code(f"cp.async.cg.shared.global [%r1+{STAGE_BYTES * i}], [%d0+{512 * i}], 16; cp.async.commit_group;")
    for i in range(3):
        code(f"cp.async.wait_group {2 - i};")
        _put_stage(code, STAGE_BYTES * i)
    code("cp.async.commit_group; cp.async.wait_group 0;")  # an empty group is complete
    return code.build("cp_async.groups", "a pipeline of three commit groups", random_words("groups", 192))


def _to_barrier(noinc: bool) -> Program:
    code = _stages(1)
    code.shared("barrier", 8, 8)
    code(f"""
        mov.u32 %r5, barrier; setp.eq.u32 %p0, %tx, 0;
        @%p0 mbarrier.init.shared.b64 [%r5], {64 if noinc else 32}; bar.sync 0;
    """)
    code(f"""
        cp.async.cg.shared.global [%r1], [%d0], 16;
        cp.async.mbarrier.arrive{".noinc" if noinc else ""}.shared.b64 [%r5];
    """)
    code("mbarrier.arrive.shared.b64 %d2, [%r5];")
    code("again: mbarrier.test_wait.shared.b64 %p1, [%r5], %d2; @!%p1 bra again;")
    code("xor.b32 %r6, %tx, 9; mad.lo.u32 %r1, %r6, 16, %r0;")
    _put_stage(code, 0)
    code("bar.sync 0; mbarrier.test_wait.parity.shared.b64 %p2, [%r5], 0;")
    code.put("%p2")
    name = "noinc" if noinc else "inc"
    return code.build(
        f"cp_async.mbarrier.{name}",
        f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}: the phase ends when all lanes' copies have landed",
        random_words(name, 64),
    )


def _cluster(name: str, covers: str, code: Code, inputs: np.ndarray | None = None, **options: object) -> Program:
    return code.build(name, covers, inputs, grid=2, cluster=2, minimum=90, **options)


def _pair(bytes_per_lane: int) -> Code:
    """Two CTAs with a barrier and a buffer each: %r93 the own barrier, %r95, %r96 the peer's buffer (own lane) and barrier."""
    code = Code()
    code.shared("buffer", 32 * bytes_per_lane)
    code.shared("barrier", 8, 8)
    code(PEER)
    code(f"""
        mov.u32 %r92, buffer; mad.lo.u32 %r94, %lane, {bytes_per_lane}, %r92; mov.u32 %r93, barrier;
        setp.eq.u32 %p9, %lane, 0;
    """)
    code("""
        mapa.shared::cluster.u32 %r95, %r94, %r91; mapa.shared::cluster.u32 %r96, %r93, %r91;
        @%p9 mbarrier.init.shared.b64 [%r93], 1;
    """)
    return code


def _expect_and_wait(code: Code, size_bytes: int, operations: str) -> None:
    code(f"""
        @%p9 mbarrier.arrive.expect_tx.shared.b64 _, [%r93], {size_bytes};
        @%p9 fence.mbarrier_init.release.cluster; {SYNC}
    """)
    code(operations)
    code("again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p8, [%r93], 0; @!%p8 bra again;")


def _st_async() -> Program:
    code = _pair(64)
    code("""
        mov.b64 %d1, 0; st.shared.b64 [%r94+24], %d1; ld.global.b64 %d2, [%mine]; cvt.u32.u64 %r1, %d2;
        shr.u64 %d3, %d2, 32; cvt.u32.u64 %r2, %d3; not.b64 %d4, %d2;
    """)
    stores = (
        ("b32 [%r95], %r1", 4),
        ("u32 [%r95+4], %r2", 4),
        ("b64 [%r95+8], %d2", 8),
        ("v2.s32 [%r95+16], {%r2, %r1}", 8),
        ("v4.f32 [%r95+32], {%r1, %r2, %r1, %r2}", 16),
        ("v2.u64 [%r95+48], {%d4, %d2}", 16),
    )
    text = []
    for store, _ in stores:
        form, rest = store.split(" ", 1)
        vec, _, t = form.rpartition(".")
        text.append(
            f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{'.' + vec if vec else ''}.{t} {rest}, [%r96];"
        )
    _expect_and_wait(code, 32 * sum(size for _, size in stores), " ".join(text))
    for i in range(8):
        code(f"ld.shared.b64 %d9, [%r94+{8 * i}];")
        code.put("%d9")
    return _cluster("st_async", "st.async of 32- and 64-bit words and vectors into the other CTA", code)


RED_ASYNC = (
    ("inc", "u32"),
    ("dec", "u32"),
    ("min", "u32"),
    ("max", "u32"),
    ("add", "u32"),
    ("min", "s32"),
    ("max", "s32"),
    ("add", "s32"),
    ("and", "b32"),
    ("or", "b32"),
    ("xor", "b32"),
    ("add", "u64"),
)


def _red_async() -> Program:
    code = _pair(128)
    code("""
        mad.wide.u32 %d1, %lane, 16, %in; ld.global.b64 %d2, [%d1]; ld.global.b64 %d3, [%d1+8];
        cvt.u32.u64 %r1, %d2; cvt.u32.u64 %r2, %d3;
    """)
    text, total = [], 0
    for i, (op, t) in enumerate(RED_ASYNC):
        wide = t.endswith("64")
        code(f"st.shared.b64 [%r94+{8 * i}], %d2;" if wide else f"st.shared.b32 [%r94+{8 * i}], %r1;")
        text.append(
            f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t} [%r95+{8 * i}], {'%d3' if wide else '%r2'}, [%r96];"
        )
        total += 8 if wide else 4
    _expect_and_wait(code, 32 * total, " ".join(text))
    for i, (_, t) in enumerate(RED_ASYNC):
        register, width = ("%d9", 64) if t.endswith("64") else ("%r9", 32)
        code(f"ld.shared.b{width} {register}, [%r94+{8 * i}];")
        code.put(register)
    edges = integer_edges(64)[(random_words("red.async", 64) % np.uint64(80)).astype(np.int64)]
    return _cluster("red_async", "red.async of every operation on words of the other CTA", code, edges)


def _remote_memory() -> Program:
    code = _pair(32)
    code("""
        ld.global.b64 %d1, [%mine]; cvt.u32.u64 %r1, %d1; st.shared.b64 [%r94], %d1; mov.b64 %d2, 0;
        st.shared.b64 [%r94+8], %d2; st.shared.b64 [%r94+16], %d2;
    """)
    code(SYNC)
    code("ld.shared::cluster.b64 %d3, [%r95]; ld.shared::cluster.u8 %r3, [%r95+3];")
    code.put("%d3")
    code.put("%r3")
    code("""
        st.shared::cluster.b32 [%r95+8], %r1; atom.shared::cluster.add.u32 %r4, [%r95+16], %r1;
        red.shared::cluster.xor.b32 [%r95+16], 255;
    """)
    code.put("%r4")
    code(SYNC)
    code("ld.shared.b64 %d4, [%r94+8]; ld.shared::cta.b64 %d5, [%r94+16];")
    code.put("%d4")
    code.put("%d5")
    code("cvt.u64.u32 %d6, %r95; cvta.shared::cluster.u64 %d7, %d6; ld.b64 %d8, [%d7];")
    code.put("%d8")
    code(SYNC)
    return _cluster("remote_memory", "loads, stores and atomics in the shared memory of the other CTA", code)


def programs() -> list[Program]:
    """All kernels of this file."""
    return [
        _sizes(),
        _zero_fill(),
        _ignore_source(),
        _groups(),
        _to_barrier(False),
        _to_barrier(True),
        _st_async(),
        _red_async(),
        _remote_memory(),
    ]
