"""Address arithmetic whose numbers are the machine's own: what programs can observe of cvta, isspacep, mapa, getctarank."""

from __future__ import annotations

from silicon.programs.code import Code, Program

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const")


def _spaces() -> Program:
    """Which space a generic address is in, for an address of each space, and what lies there."""
    code = Code()
    code.shared("word", 16)
    code.declare(".local .align 8 .b8 own[16];")
    code("""
        mov.u64 %d0, %in; mov.u64 %d1, word; st.shared.u32 [word], 77; cvta.shared.u64 %d1, %d1;
        mov.u64 %d2, own; st.local.u32 [own], 99; cvta.local.u64 %d2, %d2;
    """)
    code("mov.u64 %d3, constant; cvta.const.u64 %d3, %d3; bar.sync 0;")
    for i in range(4):
        for space in SPACES:
            if space == "const" or i == 3:
                continue
            code(f"isspacep.{space} %p0, %d{i};")
            code.put("%p0")
    for i in range(1, 4):
        code(f"ld.u32 %r0, [%d{i}];")
        code.put("%r0")
    code("""
        cvta.to.shared.u64 %d4, %d1; ld.shared.u32 %r1, [%d4]; cvta.to.local.u64 %d5, %d2;
        ld.local.u32 %r2, [%d5]; cvta.to.global.u64 %d6, %d0; sub.u64 %d7, %d6, %in;
    """)
    for r in ("%r1", "%r2", "%d7"):
        code.put(r)
    code("""
        cvta.shared::cta.u64 %d8, %d4; sub.u64 %d9, %d8, %d1; cvta.to.shared::cluster.u64 %d10, %d1;
        sub.u64 %d11, %d10, %d4;
    """)
    code.put("%d9")
    code.put("%d11")
    return code.build(
        "addresses.spaces",
        "cvta and isspacep for global, shared and local addresses",
        module=".const .align 4 .u32 constant = 1234;",
        minimum=90,
    )


def _cluster() -> Program:
    """mapa and getctarank for each CTA of a cluster of four."""
    code = Code()
    code.shared("pad", 48)
    code.shared("word", 16)
    code("""
        mov.u32 %r0, %cluster_ctarank; mov.u32 %r1, word; mad.lo.u32 %r2, %r0, 1000, 7;
        st.shared.u32 [%r1], %r2; barrier.cluster.arrive; barrier.cluster.wait;
    """)
    code("mov.u64 %d0, word; cvta.shared.u64 %d1, %d0;")
    for rank in range(4):
        code(f"""
            mapa.shared::cluster.u32 %r3, %r1, {rank}; ld.shared::cluster.u32 %r4, [%r3];
            getctarank.shared::cluster.u32 %r5, %r3;
        """)
        code(f"""
            mapa.u64 %d2, %d1, {rank}; ld.u32 %r6, [%d2]; getctarank.u64 %r7, %d2;
            mapa.shared::cluster.u64 %d3, %d0, {rank}; cvt.u64.u32 %d4, %r3; sub.u64 %d4, %d4, %d3;
        """)
        for r in ("%r4", "%r5", "%r6", "%r7", "%d4"):
            code.put(r)
        code("""
            isspacep.shared::cta %p0, %d2; isspacep.shared::cluster %p1, %d2; isspacep.shared %p2, %d2;
            isspacep.global %p3, %d2;
        """)
        for i in range(4):
            code.put(f"%p{i}")
    code("""
        getctarank.shared::cluster.u32 %r8, %r1; getctarank.u64 %r9, %d1; barrier.cluster.arrive;
        barrier.cluster.wait;
    """)
    code.put("%r8")
    code.put("%r9")
    return code.build(
        "addresses.cluster", "mapa, getctarank and isspacep in a cluster of four CTAs", grid=4, cluster=4, minimum=90
    )


def _layout() -> Program:
    """Numbers that the emulator takes from sm_100a code: first shared address, and the rank's place in an address."""
    code = Code()
    code.shared("word", 16)
    code("""
        mov.u32 %r0, word; st.shared.u32 [%r0], 0; mapa.shared::cluster.u32 %r1, %r0, 0;
        mapa.shared::cluster.u32 %r2, %r0, 1; sub.u32 %r3, %r2, %r1; mov.u32 %r4, %cluster_ctarank;
    """)
    code("""
        mapa.shared::cluster.u32 %r5, %r0, %r4; sub.u32 %r6, %r5, %r0; and.b32 %r7, %r0, 0xFFFFFF;
        barrier.cluster.arrive; barrier.cluster.wait;
    """)
    for r in ("%r7", "%r3", "%r6"):
        code.put(r)
    return code.build(
        "addresses.layout", "first shared address; distance of the windows of two CTAs", grid=2, cluster=2, minimum=90
    )


def programs() -> list[Program]:
    """All kernels of this file."""
    return [_spaces(), _cluster(), _layout()]
