"""Kernels that break a rule: where the emulator raises an error, does the GPU fault?"""

from __future__ import annotations

from silicon.programs.code import Code, Program

CASES = {
    "unaligned_global_load": (
        "an 8-byte load from global memory at a multiple of 4",
        "add.u64 %d0, %in, 4; ld.global.b64 %d1, [%d0];",
    ),
    "unaligned_shared_load": (
        "a 4-byte load from shared memory at an odd address",
        "mov.u32 %r0, memory; st.shared.b64 [%r0], %d3; ld.shared.b32 %r1, [%r0+1]; cvt.u64.u32 %d1, %r1;",
    ),
    "unaligned_atomic": (
        "a 4-byte atomic at a multiple of 2",
        "add.u64 %d0, %in, 2; atom.global.add.u32 %r1, [%d0], 1; cvt.u64.u32 %d1, %r1;",
    ),
    "null_load": ("a load from address 0", "mov.b64 %d0, 0; ld.global.b64 %d1, [%d0];"),
    "far_shared_load": (
        "a load far beyond the shared memory of the CTA",
        "mov.u32 %r0, 0x3F000; ld.shared.b64 %d1, [%r0];",
    ),
    "trap": ("trap", "mov.b64 %d1, 0; trap;"),
    "too_many_arrivals": (
        "three arrivals at once on an mbarrier for two",
        "mov.u32 %r0, memory; mbarrier.init.shared.b64 [%r0], 2; mbarrier.arrive.shared::cta.b64 %d1, [%r0], 3; mov.b64 %d1, 0;",
    ),
    "unaligned_matrix_row": (
        "ldmatrix from a row at a multiple of 8",
        "mov.u32 %r0, memory; st.shared.b64 [%r0+8], %d3; st.shared.b64 [%r0+16], %d3; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0+8]; cvt.u64.u32 %d1, %r1;",
    ),
    "unaligned_bulk_copy": (
        "cp.async.bulk of 16 bytes from a multiple of 8",
        "add.u64 %d0, %in, 8; mov.u32 %r0, memory; mov.u32 %r1, memory; add.u32 %r1, %r1, 64; mbarrier.init.shared.b64 [%r1], 1; "
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 16, [%r1]; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16; "
        "again: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra again; ld.shared.b64 %d1, [%r0];",
    ),
}


def programs() -> list[Program]:
    """All kernels of this file: one warp, in which the first lane alone does the forbidden thing (ldmatrix: all)."""
    found = []
    for name, (covers, body) in CASES.items():
        code = Code()
        code.shared("memory", 256)
        code("mov.b64 %d3, 0; setp.ne.u32 %p0, %tx, 0;" + ("" if "matrix" in name else " @%p0 exit;"))
        code(body)
        code.put("%d1")
        found.append(code.build(f"fault.{name}", covers, minimum=90, illegal=True))
    return found
