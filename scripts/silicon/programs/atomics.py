"""Atomics on global and shared memory: each on a word of its own with edge values, and all threads on a few words."""

from __future__ import annotations

import numpy as np

from silicon.inputs import EDGES, float_edges, integer_edges, random_words
from silicon.programs.code import Code, Program

SPACES = ("global", "shared")
THREADS = 128
# type: operations, in the order in which they are applied to the same word
INTEGER_OPS = {
    "u32": ("add", "min", "max", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "b32": ("and", "or", "xor", "exch"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "b64": ("and", "or", "xor", "exch"),
}
FLOAT_OPS = {
    "f32": "add",
    "f64": "add",
    "f16": "add.noftz",
    "bf16": "add.noftz",
    "f16x2": "add.noftz",
    "bf16x2": "add.noftz",
}
SIZES = {"16": 2, "32": 4, "64": 8}
CONTENDED_WORDS = 4


def _size(t: str) -> int:
    return 4 if t.endswith("x2") else SIZES[t[-2:]]


def _register(t: str, number: int) -> str:
    return {2: "%h", 4: "%r", 8: "%d"}[_size(t)] + str(number)


def _target(code: Code, space: str) -> str:
    """The address register of a 64-bit word of the thread's own: its first result slot, or shared memory."""
    if space == "global":
        code.results = max(code.results, 1)
        return "%slot"
    if not code.head:
        code.shared("memory", THREADS * 8)
        code("mov.u32 %r0, memory; mad.lo.u32 %r0, %tx, 8, %r0;")
    return "%r0"


def _operands(t: str, seed: str) -> np.ndarray:
    """Pairs (old, b) per thread: edge values of the type, every other pair one of two random ones of them."""
    kind = {"f16x2": "f16", "bf16x2": "bf16"}.get(t, t)
    edges = float_edges(kind) if kind in ("f16", "bf16", "f32", "f64") else integer_edges(8 * _size(t))
    index = (random_words(seed, 2 * THREADS) % np.uint64(EDGES)).astype(np.int64)
    words = edges[index]
    if t.endswith("x2"):
        words = words | np.roll(words, 11) << np.uint64(16)
    return words


def _own_word(space: str, t: str, ops: tuple[str, ...]) -> Program:
    code = Code()
    address = _target(code, space)
    bits = 8 * _size(t)
    code(f"""
        mad.wide.u32 %d0, %tx, 16, %in; ld.global.b{bits} {_register(t, 1)}, [%d0];
        ld.global.b{bits} {_register(t, 2)}, [%d0+8];
    """)
    for op in ops:
        for form in ("atom", "red"):
            if form == "red" and op == "exch":
                continue
            code(f"st.{space}.b{bits} [{address}], {_register(t, 1)};")
            if form == "atom":
                code(f"atom.{space}.{op}.{t} {_register(t, 3)}, [{address}], {_register(t, 2)};")
                code.put(_register(t, 3))
            else:
                code(f"red.{space}.{op}.{t} [{address}], {_register(t, 2)};")
            code(f"ld.{space}.b{bits} {_register(t, 4)}, [{address}];")
            code.put(_register(t, 4))
    if space == "global":
        code("mov.b64 %d9, 0; st.global.b64 [%slot], %d9;")
    return code.build(
        f"atomics.own.{space}.{t}",
        f"atom.{space} and red.{space} {', '.join(ops)} .{t} on edge values, each thread on a word of its own",
        _operands(t, f"{space} {t}"),
        block=THREADS,
        minimum=90 if t in ("f16", "bf16", "bf16x2") else 80,
    )


def _compare_and_swap(space: str) -> Program:
    code = Code()
    address = _target(code, space)
    for t in ("b16", "b32", "b64"):
        bits = 8 * _size(t)
        old, guess, new = _register(t, 1), _register(t, 2), _register(t, 3)
        code(f"""
            mad.wide.u32 %d0, %tx, 8, %in; ld.global.b{bits} {old}, [%d0]; and.b32 %r9, %tx, 1;
            setp.eq.u32 %p0, %r9, 0;
        """)
        code(f"xor.b{bits} {guess}, {old}, 64; @%p0 mov.b{bits} {guess}, {old}; not.b{bits} {new}, {old};")
        code(f"""
            st.{space}.b{bits} [{address}], {old};
            atom.{space}.cas.{t} {_register(t, 4)}, [{address}], {guess}, {new};
        """)
        code.put(_register(t, 4))
        code(f"ld.{space}.b{bits} {_register(t, 5)}, [{address}];")
        code.put(_register(t, 5))
    if space == "global":
        code("mov.b64 %d9, 0; st.global.b64 [%slot], %d9;")
    return code.build(
        f"atomics.cas.{space}",
        f"atom.{space}.cas of 16, 32 and 64 bits, half of them with a wrong guess",
        block=THREADS,
    )


def _contended(space: str, op: str, t: str) -> Program:
    """All threads on CONTENDED_WORDS words with an operation whose end result does not depend on the order."""
    code = Code()
    bits = 8 * _size(t)
    code.shared("memory", 64)
    code.results = 1
    register = _register(t, 1)
    code(f"ld.global.b{bits} {register}, [%mine];")
    code("""
        mul.lo.u32 %r8, %thread, 5; shr.u32 %r9, %r8, 3; xor.b32 %r8, %r8, %r9; and.b32 %r8, %r8, 3;
        shl.b32 %r8, %r8, 3;
    """)
    if space == "global":  # the words are the first ones behind the inputs
        code(f"cvt.u64.u32 %d5, %r8; add.u64 %d5, %d5, %in; add.u64 %d5, %d5, {8 * THREADS};")
        address, words = "%d5", "%d6"
        code(f"add.u64 %d6, %in, {8 * THREADS};")
    else:
        code("mov.u32 %r6, memory; add.u32 %r5, %r6, %r8; setp.lt.u32 %p1, %tx, 8; mad.lo.u32 %r4, %tx, 8, %r6;")
        code(f"""
            mad.wide.u32 %d7, %tx, 8, %in; @%p1 ld.global.b64 %d8, [%d7+{8 * THREADS}];
            @%p1 st.shared.b64 [%r4], %d8;
        """)
        address, words = "%r5", "%r6"
    code("bar.sync 0;")
    code(f"""
        red.{space}.{op}.{t} [{address}], {register}; bar.sync 0; mov.b64 %d4, 0;
        setp.lt.u32 %p2, %tx, {CONTENDED_WORDS};
    """)
    if space == "global":
        code(f"mad.wide.u32 %d3, %tx, 8, {words}; @%p2 ld.global.b{bits} {_register(t, 4)}, [%d3];")
    else:
        code(f"mad.lo.u32 %r3, %tx, 8, {words}; @%p2 ld.shared.b{bits} {_register(t, 4)}, [%r3];")
    code(
        f"mov.b64 %d30, 0; @%p2 cvt.u64.u{bits} %d30, {_register(t, 4)};"
        if bits < 64
        else "mov.b64 %d30, 0; @%p2 mov.b64 %d30, %d4;"
    )
    code("st.global.b64 [%slot], %d30;")
    return code.build(
        f"atomics.contended.{space}.{op}.{t}",
        f"red.{space}.{op}.{t} by 128 threads on four words",
        _addends(op, t),
        block=THREADS,
        minimum=90 if t == "bf16x2" else 80,
    )


def _addends(op: str, t: str) -> np.ndarray:
    """Integers: anything, over four start words. Float sums: small integers, so that no order rounds."""
    words = random_words(f"contended {op} {t}", THREADS + 8)
    small = (words % np.uint64(7)).astype(np.float64)
    if t == "f32":
        return small.astype(np.float32).view(np.uint32).astype(np.uint64)
    if t == "f64":
        return small.view(np.uint64)
    if t in ("f16x2", "bf16x2"):
        half = (
            small.astype(np.float16).view(np.uint16)
            if t == "f16x2"
            else (small.astype(np.float32).view(np.uint32) >> 16)
        )
        return half.astype(np.uint64) | np.roll(half, 3).astype(np.uint64) << np.uint64(16)
    if op in ("inc", "dec"):
        return np.full(THREADS + 8, 20, np.uint64)  # one bound for all, so that the order does not matter
    return words


def _counters(space: str) -> Program:
    """What the threads get back from a shared counter is every number once, in some order."""
    code = Code()
    code.shared("memory", 16)
    if space == "shared":
        code("mov.u32 %r0, memory; mov.b64 %d0, 0; st.shared.b64 [%r0], %d0; st.shared.b64 [%r0+8], %d0; bar.sync 0;")
        address = "%r0"
    else:
        address = "%in"
    code(f"atom.{space}.add.u32 %r1, [{address}], 3;")
    code.put("%r1")
    code(f"atom.{space}.inc.u32 %r2, [{address}+4], 49;")
    code.put("%r2")
    return code.build(
        f"atomics.counters.{space}",
        f"values returned by atom.{space}.add and inc under contention",
        np.zeros(4),
        block=THREADS,
        unordered=True,
    )


def _cas_loop(space: str) -> Program:
    """A lock-free increment: threads retry until nobody came between."""
    code = Code()
    code.shared("memory", 16)
    if space == "shared":
        code("mov.u32 %r0, memory; mov.b64 %d0, 0; st.shared.b64 [%r0], %d0; bar.sync 0;")
        address = "%r0"
    else:
        address = "%in"
    code(f"ld.{space}.u32 %r1, [{address}];")
    code(f"again: add.u32 %r2, %r1, 3; atom.{space}.cas.b32 %r3, [{address}], %r1, %r2;")
    code("setp.ne.u32 %p0, %r3, %r1; mov.u32 %r1, %r3; @%p0 bra again;")
    code(f"bar.sync 0; ld.volatile.{space}.u32 %r4, [{address}];")
    code.put("%r4")
    return code.build(
        f"atomics.cas_loop.{space}", f"128 threads add 3 by an atom.{space}.cas loop", np.zeros(4), block=THREADS
    )


def _vectors() -> Program:
    """Vector atomics exist on global memory only."""
    code = Code()
    code.results = 2  # the thread's word: 16 bytes
    code("""
        mul.wide.u32 %d0, %tx, 32; add.u64 %d0, %in, %d0; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%d0];
        ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d0+16];
    """)
    olds, values = [f"%r{i}" for i in (1, 2, 3, 4)], [f"%r{i}" for i in (5, 6, 7, 8)]
    code("mad.wide.u32 %d1, %tx, 16, %in;")
    for op, vec, t in (
        ("add", "v2", "f32"),
        ("add", "v4", "f32"),
        ("add.noftz", "v2", "f16x2"),
        ("max.noftz", "v4", "bf16x2"),
        ("min.noftz", "v4", "f16x2"),
    ):
        n = int(vec[1:])
        code(f"st.global.v4.b32 [%d1+8192], {{{', '.join(olds)}}};")
        results = ", ".join(f"%r{20 + i}" for i in range(n))
        code(f"atom.global.{op}.{vec}.{t} {{{results}}}, [%d1+8192], {{{', '.join(values[:n])}}};")
        for i in range(n):
            code.put(f"%r{20 + i}")
        code("ld.global.v4.b32 {%r30, %r31, %r32, %r33}, [%d1+8192];")
        for i in range(4):
            code.put(f"%r{30 + i}")
    code("mov.b64 %d9, 0; st.global.b64 [%slot], %d9; st.global.b64 [%slot+8], %d9;")
    words = float_edges("f32")[(random_words("vector atomics", 2048) % np.uint64(EDGES)).astype(np.int64)]
    return code.build(
        "atomics.vectors",
        "atom.global of v2 and v4, f32, f16x2 and bf16x2",
        words | np.roll(words, 5) << np.uint64(32),
        minimum=90,
    )


def programs() -> list[Program]:
    """All kernels of this file."""
    found = []
    for space in SPACES:
        found += [_own_word(space, t, ops) for t, ops in INTEGER_OPS.items()]
        found += [_own_word(space, t, (op,)) for t, op in FLOAT_OPS.items()]
        found += [_compare_and_swap(space), _counters(space), _cas_loop(space)]
        contended = [
            ("add", "u32"),
            ("min", "s32"),
            ("max", "u64"),
            ("and", "b32"),
            ("or", "b64"),
            ("xor", "b32"),
            ("inc", "u32"),
            ("dec", "u32"),
            ("add", "u64"),
            ("add", "f32"),
            ("add", "f64"),
            ("add.noftz", "f16x2"),
            ("add.noftz", "bf16x2"),
        ]
        found += [_contended(space, op, t) for op, t in contended]
    return [*found, _vectors()]
