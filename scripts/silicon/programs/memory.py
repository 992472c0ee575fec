"""Loads and stores of every width, sign extension, vectors, and the state spaces."""

from __future__ import annotations

import numpy as np

from silicon.inputs import integer_edges, random_words
from silicon.programs.code import Code, Program

WIDTHS = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
}
VECTORS = (
    ("v2", "u8"),
    ("v4", "u8"),
    ("v2", "s8"),
    ("v4", "s8"),
    ("v2", "u16"),
    ("v4", "s16"),
    ("v2", "b32"),
    ("v4", "u32"),
    ("v2", "b64"),
    ("v2", "f32"),
    ("v4", "f32"),
)


def _edge_words(count: int, seed: str) -> np.ndarray:
    edges = np.concatenate([integer_edges(64), integer_edges(8) * np.uint64(0x0101010101010101)])
    return edges[(random_words(seed, count) % np.uint64(edges.size)).astype(np.int64)]


def _place(code: Code, space: str) -> str:
    """Lines that put the thread's word into a space; returns the base of its address."""
    if space in ("global", "generic"):
        return "%mine"
    if space == "shared":
        code.shared("memory", 32 * 16)
        code("mov.u32 %r0, memory; mad.lo.u32 %r0, %tx, 16, %r0; ld.global.b64 %d0, [%mine]; st.shared.b64 [%r0], %d0;")
        return "%r0"
    code.declare(".local .align 16 .b8 memory[16];")
    code("ld.global.b64 %d0, [%mine]; st.local.b64 [memory], %d0;")
    return "memory"


def _loads(space: str) -> Program:
    code = Code()
    base = _place(code, space)
    prefix = "ld" if space == "generic" else f"ld.{space}"
    for t, size in WIDTHS.items():
        for offset in range(0, 8, size) if size < 4 else (0,):
            for register in (["%r1"] if size <= 4 and t[0] != "f" else []) + (
                ["%d1"] if t[0] != "f" or size == 8 else ["%r1"]
            ):
                code(f"{prefix}.{t} {register}, [{base}+{offset}];")
                code.put(register)
    return code.build(
        f"loads.{space}", f"ld.{space} of every type into 32- and 64-bit registers", _edge_words(32, space)
    )


def _stores(space: str) -> Program:
    code = Code()
    base = _place(code, space) if space != "generic" else "%slot"
    prefix, load = ("st", "ld") if space == "generic" else (f"st.{space}", f"ld.{space}")
    if space == "generic":
        code.results = 1  # slot 0 is the memory that is written
        code("ld.global.b64 %d0, [%mine]; st.global.b64 [%slot], %d0;")
    code("not.b64 %d2, %d0; cvt.u32.u64 %r2, %d2; cvt.u16.u64 %h2, %d2; add.u32 %r2, %r2, 77;")
    for t, size in WIDTHS.items():
        register = {1: "%r2", 2: "%h2", 4: "%r2", 8: "%d2"}[size]
        code(f"{prefix}.{t} [{base}+{8 - size}], {register};")
        code(f"{load}.b64 %d3, [{base}];")
        code.put("%d3")
    return code.build(
        f"stores.{space}", f"st.{space} of every type, from wider registers where allowed", _edge_words(32, space)
    )


def _vectors(space: str) -> Program:
    code = Code()
    if space == "shared":
        code.shared("memory", 32 * 32)
        code("mov.u32 %r0, memory; mad.lo.u32 %r0, %tx, 32, %r0;")
        base = "%r0"
    else:
        base = "%d0"
    code("mul.wide.u32 %d1, %tx, 32; add.u64 %d0, %in, %d1;")
    if space == "shared":
        code("ld.global.v2.b64 {%d2, %d3}, [%d0]; st.shared.v2.b64 [%r0], {%d2, %d3};")
        code("ld.global.v2.b64 {%d2, %d3}, [%d0+16]; st.shared.v2.b64 [%r0+16], {%d2, %d3};")
    for vec, t in VECTORS:
        n = int(vec[1:])
        registers = [f"%{'d' if t.endswith('64') else 'r'}{10 + i}" for i in range(n)]
        code(f"ld.{space}.{vec}.{t} {{{', '.join(registers)}}}, [{base}];")
        for r in registers:
            code.put(r)
        code(f"st.{space}.{vec}.{t} [{base}+16], {{{', '.join(reversed(registers))}}};")
        code(f"ld.{space}.v2.b64 {{%d8, %d9}}, [{base}+16];")
        code.put("%d8")
        code.put("%d9")
    code(f"ld.{space}.v4.b32 {{_, %r20, _, %r21}}, [{base}];")
    code.put("%r20")
    code.put("%r21")
    return code.build(f"vectors.{space}", f"ld.{space} and st.{space} of vectors", _edge_words(32 * 4, "vectors"))


def _variables() -> Program:
    code = Code()
    code("and.b32 %r0, %tx, 7; mul.wide.u32 %d0, %r0, 4;")
    code("mov.u64 %d1, table; add.u64 %d1, %d1, %d0; ld.const.u32 %r1, [%d1];")
    code.put("%r1")
    code("mov.u64 %d1, words; add.u64 %d1, %d1, %d0; ld.global.s32 %d2, [%d1];")
    code.put("%d2")
    code("mov.u64 %d1, reals; add.u64 %d1, %d1, %d0; ld.global.f32 %r3, [%d1];")
    code.put("%r3")
    code("ld.global.u64 %d4, [pointer]; ld.u32 %r4, [%d4];")
    code.put("%r4")
    code("ld.global.u8 %r5, [bytes+3];")
    code.put("%r5")
    module = """
.const .align 4 .u32 table[8] = {1, 2, 4, 8, 0x10, 0xFFFFFFFF, 7, 5};
.global .align 4 .s32 words[8] = {-1, -2, 3, -2147483648, 2147483647};
.global .align 4 .f32 reals[8] = {1.5, 0f40490FDB, -0.25, 1e10, 0.1};
.global .align 8 .u64 pointer[1] = {generic(words)};
.global .align 1 .b8 bytes[5] = {10, 20, 30, 40};
"""
    return code.build("variables", "initialised .const and .global variables and a pointer to one", module=module)


def _local_indexing() -> Program:
    code = Code()
    code.declare(".local .align 4 .b8 stack[64];")
    code("mov.u64 %d0, stack; mov.u32 %r0, 0;")
    code("""
        fill: mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d1, %d0; mad.lo.u32 %r1, %r0, 1000, %tx;
        st.local.u32 [%d1], %r1;
    """)
    code("add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 16; @%p0 bra fill;")
    code("""
        mul.lo.u32 %r2, %tx, 7; and.b32 %r2, %r2, 15; mul.wide.u32 %d2, %r2, 4; add.u64 %d2, %d2, %d0;
        ld.local.u32 %r3, [%d2];
    """)
    code.put("%r3")
    code("cvta.local.u64 %d3, %d2; ld.u32 %r4, [%d3];")
    code.put("%r4")
    return code.build("local_indexing", "private memory with an index per thread, also through a generic address")


def programs() -> list[Program]:
    """All kernels of this file."""
    spaces = ("global", "shared", "local", "generic")
    found = [f(s) for f in (_loads, _stores) for s in spaces if (f, s) != (_stores, "global")]
    return [*found, *(_vectors(s) for s in ("global", "shared")), _variables(), _local_indexing()]
