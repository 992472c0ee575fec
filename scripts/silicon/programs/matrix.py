"""ldmatrix and stmatrix: every number of matrices, plain and transposed, rows in mixed order."""

from __future__ import annotations

import numpy as np

from silicon.programs.code import Code, Program

ROW_BYTES = 16
ROWS = 64


def _fill(code: Code) -> None:
    """Put 64 rows of 16 bytes of the input into shared memory and make a row address per lane, in mixed order."""
    code.shared("memory", ROWS * ROW_BYTES)
    code("mov.u32 %r0, memory;")
    for half in range(2):
        code(f"""
            add.u32 %r1, %tx, {32 * half}; mad.wide.u32 %d0, %r1, {ROW_BYTES}, %in;
            ld.global.v2.b64 {{%d1, %d2}}, [%d0];
        """)
        code(f"mad.lo.u32 %r2, %r1, {ROW_BYTES}, %r0; st.shared.v2.b64 [%r2], {{%d1, %d2}};")
    code("bar.sync 0;")
    code(f"mad.lo.u32 %r3, %tx, 11, 5; and.b32 %r3, %r3, {ROWS - 1}; mad.lo.u32 %r4, %r3, {ROW_BYTES}, %r0;")


def _load(number: int, trans: bool) -> Program:
    code = Code()
    _fill(code)
    registers = [f"%r{10 + i}" for i in range(number)]
    form = f"ldmatrix.sync.aligned.m8n8.x{number}{'.trans' if trans else ''}.shared.b16"
    code(f"{form} {{{', '.join(registers)}}}, [%r4];")
    for r in registers:
        code.put(r)
    return code.build(f"ldmatrix.x{number}{'.trans' if trans else ''}", form, _words(), minimum=75)


def _store(number: int, trans: bool) -> Program:
    code = Code()
    _fill(code)
    registers = [f"%r{10 + i}" for i in range(number)]
    for i, r in enumerate(registers):
        code(f"mad.lo.u32 {r}, %tx, {0x10003 + 2 * i}, {0x40000 * (i + 1) + 7};")
    form = f"stmatrix.sync.aligned.m8n8.x{number}{'.trans' if trans else ''}.shared.b16"
    code(f"{form} [%r4], {{{', '.join(registers)}}}; bar.sync 0;")
    for half in range(2):
        code(f"""
            add.u32 %r1, %tx, {32 * half}; mad.lo.u32 %r2, %r1, {ROW_BYTES}, %r0;
            ld.shared.v2.b64 {{%d1, %d2}}, [%r2];
        """)
        code.put("%d1")
        code.put("%d2")
    return code.build(f"stmatrix.x{number}{'.trans' if trans else ''}", form, _words(), minimum=90)


def _words() -> np.ndarray:
    """Each 16-bit element is its own number."""
    return np.arange(ROWS * ROW_BYTES // 2, dtype=np.uint16).view(np.uint64)


def programs() -> list[Program]:
    """All kernels of this file."""
    return [f(n, t) for f in (_load, _store) for n in (1, 2, 4) for t in (False, True)]
