"""Control flow, barriers with reductions, collectives under divergence, special registers, packing."""

from __future__ import annotations

from silicon.programs.code import Code, Program

SPECIAL = (
    "tid.x",
    "tid.y",
    "ntid.x",
    "ntid.y",
    "ntid.z",
    "laneid",
    "ctaid.x",
    "ctaid.y",
    "nctaid.x",
    "nctaid.y",
    "cluster_ctaid.x",
    "cluster_ctaid.y",
    "cluster_nctaid.x",
    "cluster_nctaid.y",
    "cluster_ctarank",
    "cluster_nctarank",
    "clusterid.x",
    "nclusterid.x",
    "lanemask_eq",
    "lanemask_lt",
    "lanemask_le",
    "lanemask_gt",
    "lanemask_ge",
    "nwarpid",
    "dynamic_smem_size",
)


def _trip_counts() -> Program:
    """The length of the Collatz sequence of a small number: every lane leaves the loop at its own time."""
    code = Code()
    code("ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; and.b32 %r0, %r0, 63; add.u32 %r0, %r0, 1; mov.u32 %r1, 0;")
    code("head: setp.eq.u32 %p0, %r0, 1; @%p0 bra done; and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra even;")
    code("mad.lo.u32 %r0, %r0, 3, 1; bra next;")
    code("even: shr.u32 %r0, %r0, 1;")
    code("next: add.u32 %r1, %r1, 1; bra head;")
    code("done: vote.sync.ballot.b32 %r3, %p0, 0xFFFFFFFF;")
    code.put("%r1")
    code.put("%r3")
    return code.build("control.trip_counts", "a loop with a branch in it, left by each lane at its own time", block=64)


def _nested() -> Program:
    code = Code()
    code("ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; mov.u32 %r1, 0;")
    for bit in range(4):
        code(f"shr.u32 %r2, %r0, {bit}; and.b32 %r2, %r2, 1; setp.ne.u32 %p{bit}, %r2, 0;")
    code("@%p0 bra a1; @%p1 bra b1; add.u32 %r1, %r1, 1; @%p2 bra join; mul.lo.u32 %r1, %r1, 3; bra join;")
    code("a1: @%p2 bra c1; xor.b32 %r1, %r1, 10; @!%p3 bra b1; add.u32 %r1, %r1, 100; bra join;")
    code("b1: add.u32 %r1, %r1, 7; @%p3 bra c1; shl.b32 %r1, %r1, 2; bra join;")
    code("c1: add.u32 %r1, %r1, %lane;")
    code("join: mad.lo.u32 %r1, %r1, 5, %lane; shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xFFFFFFFF;")
    code.put("%r1")
    code.put("%r3")
    return code.build("control.nested", "unstructured branches that join in a shuffle")


def _indexed() -> Program:
    code = Code()
    code("targets: .branchtargets t0, t1, t2, t3;")
    code("ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; and.b32 %r0, %r0, 3; mov.u32 %r1, 0; brx.idx %r0, targets;")
    code("t0: add.u32 %r1, %r1, 1;")
    code("t1: add.u32 %r1, %r1, 10; bra end;")
    code("t2: add.u32 %r1, %r1, 100;")
    code("t3: add.u32 %r1, %r1, 1000;")
    code("end: bar.warp.sync 0xFFFFFFFF; shfl.sync.down.b32 %r2|%p0, %r1, 3, 31, 0xFFFFFFFF;")
    code.put("%r1")
    code.put("%r2")
    code.put("%p0")
    return code.build("control.indexed", "brx.idx with fall-through")


def _collectives() -> Program:
    """Each half, quarter ... of a warp runs its own collective; afterwards all meet again."""
    code = Code()
    code("""
        ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; and.b32 %r9, %r0, 1; setp.ne.u32 %p5, %r9, 0;
        setp.lt.u32 %p0, %lane, 10; @%p0 bra low;
    """)
    code("""
        activemask.b32 %r1; vote.sync.ballot.b32 %r2, %p5, 0xFFFFFC00; redux.sync.add.u32 %r3, %r0, 0xFFFFFC00;
        match.any.sync.b32 %r4, %r9, 0xFFFFFC00;
    """)
    code("elect.sync %r5|%p1, 0xFFFFFC00; shfl.sync.idx.b32 %r6, %r0, 20, 31, 0xFFFFFC00; bra join;")
    code("""
        low: activemask.b32 %r1; vote.sync.ballot.b32 %r2, %p5, 0x3FF; redux.sync.max.s32 %r3, %r0, 0x3FF;
        match.all.sync.b32 %r4|%p1, %r9, 0x3FF;
    """)
    code("elect.sync %r5|%p1, 0x3FF; shfl.sync.up.b32 %r6, %r0, 2, 0, 0x3FF;")
    code("join: bar.warp.sync 0xFFFFFFFF; activemask.b32 %r7;")
    for i in range(1, 8):
        code.put(f"%r{i}")
    code.put("%p1")
    return code.build(
        "control.collectives", "activemask, vote, redux, match, elect and shfl in two halves of a warp", minimum=90
    )


def _early_exit() -> Program:
    code = Code()
    code("mov.b64 %result, 0; st.global.b64 [%slot], %result; st.global.b64 [%slot+8], %result;")
    code("and.b32 %r0, %lane, 3; setp.eq.u32 %p0, %r0, 2; @%p0 exit; setp.gt.u32 %p1, %tx, 60; @%p1 bra gone;")
    code("activemask.b32 %r1; vote.sync.any.pred %p2, %p1, %r1; bar.sync 0;")
    code.put("%r1")
    code.put("%p2")
    code("gone:")
    return code.build("control.early_exit", "lanes that have exited take no part in votes and barriers", block=64)


def _reductions(aligned: bool) -> Program:
    code = Code()
    form = ".aligned" if aligned else ""
    code("""
        ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; and.b32 %r1, %r0, 3; setp.ne.u32 %p0, %r1, 0;
        setp.ge.u32 %p1, %tx, 0; setp.gt.u32 %p2, %tx, 200;
    """)
    for i, p in enumerate(("%p0", "%p1", "%p2", "!%p0")):
        code(f"""
            barrier.red.popc{form}.u32 %r{10 + i}, 0, {p}; barrier.red.and{form}.pred %p{10 + i}, 1, {p};
            bar.red.or.pred %p{20 + i}, 2, 128, {p};
        """)
        code.put(f"%r{10 + i}")
        code.put(f"%p{10 + i}")
        code.put(f"%p{20 + i}")
    code(f"setp.lt.u32 %p3, %warp, 2; mov.u32 %r20, 0; @!%p3 bra others; barrier.red.popc{form}.u32 %r20, 3, 64, %p0;")
    code("others: bar.sync 0;")
    code.put("%r20")
    return code.build(
        f"control.reductions{form}",
        f"bar.red and barrier.red{form}: popc, and, or, with and without a thread count",
        block=128,
    )


def _arrive_and_sync() -> Program:
    """Producer warps arrive without waiting, consumer warps wait for them."""
    code = Code()
    code.shared("words", 4 * 64)
    code("""
        mov.u32 %r0, words; setp.lt.u32 %p0, %tx, 64; @!%p0 bra consumer; mad.lo.u32 %r1, %tx, 4, %r0;
        mad.lo.u32 %r2, %tx, 77, 5;
    """)
    code("st.shared.u32 [%r1], %r2; bar.arrive 4, 128; mov.u32 %r3, 0; bra done;")
    code("consumer: bar.sync 4, 128; sub.u32 %r4, 127, %tx; mad.lo.u32 %r1, %r4, 4, %r0; ld.shared.u32 %r3, [%r1];")
    code("done:")
    code.put("%r3")
    return code.build(
        "control.arrive_sync", "bar.arrive and bar.sync of 128 threads between two pairs of warps", block=128
    )


def _special() -> Program:
    code = Code()
    for name in SPECIAL:
        code(f"mov.u32 %r0, %{name};")
        code.put("%r0")
    code("mov.pred %p0, %is_explicit_cluster;")
    code.put("%p0")
    return code.build(
        "control.special_registers",
        "special registers of a grid of three clusters of two CTAs",
        grid=6,
        cluster=2,
        block=96,
        minimum=90,
    )


def _uniform_predicates() -> Program:
    code = Code()
    code("""
        ld.global.b64 %d0, [%mine]; cvt.u32.u64 %r0, %d0; setp.gt.s32 %p0, %r0, 0; setp.lt.u32 %p1, %lane, 16;
        mov.u32 %r1, 1;
    """)
    code("""
        @%p0 add.u32 %r1, %r1, 5; @!%p0 mul.lo.u32 %r1, %r1, 9; and.pred %p2, %p0, %p1; or.pred %p3, %p0, %p1;
        xor.pred %p4, %p0, %p1; not.pred %p5, %p4; mov.pred %p6, %p2;
    """)
    code.put("%r1")
    for i in range(2, 7):
        code.put(f"%p{i}")
    code("setp.lt.and.s32 %p7|%p8, %r0, 100, %p1; setp.ge.or.u32 %p9|%p10, %r0, 0x80000000, !%p1;")
    for i in range(7, 11):
        code.put(f"%p{i}")
    return code.build("control.predicates", "guards, predicate arithmetic and both results of setp")


def _packing() -> Program:
    code = Code()
    code("""
        ld.global.b64 %d0, [%mine]; mov.b64 {%r0, %r1}, %d0; mov.b32 {%h0, %h1}, %r0;
        mov.b64 {%h2, %h3, %h4, %h5}, %d0; mov.b64 %d1, {%r1, %r0}; mov.b32 %r2, {%h1, %h0};
        mov.b64 %d2, {%h5, %h2, %h4, %h3};
    """)
    for r in ("%r0", "%r1", "%h0", "%h1", "%h4", "%d1", "%r2", "%d2"):
        code.put(r)
    code("""
        cvt.s32.s8 %r3, %r0; cvt.u32.u8 %r4, %r0; cvt.s8.s32 %r5, %r0; cvt.sat.u8.s32 %r6, %r0;
        cvt.s64.s16 %d3, %h1; cvt.u16.s8 %h6, %h0;
    """)
    for r in ("%r3", "%r4", "%r5", "%r6", "%d3", "%h6"):
        code.put(r)
    return code.build("control.packing", "mov of vectors, and cvt between registers wider than the type")


def programs() -> list[Program]:
    """All kernels of this file."""
    return [
        _trip_counts(),
        _nested(),
        _indexed(),
        _collectives(),
        _early_exit(),
        _reductions(True),
        _reductions(False),
        _arrive_and_sync(),
        _special(),
        _uniform_predicates(),
        _packing(),
    ]
