"""PTX around a body, and what the machine's tests run."""

from __future__ import annotations

from typing import Any

import numpy as np

import mxfp8fa.emulator as em

HEAD = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in)
{
 .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .b128 %q<3>;
 .shared .align 16 .b8 sm[4096]; .local .align 16 .b8 lm[16];
 ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in];
 mov.u32 %r1, %tid.x;
 mov.u32 %r2, sm;
 mul.wide.u32 %rd3, %r1, 4;
 add.s64 %rd4, %rd1, %rd3;
 add.s64 %rd5, %rd2, %rd3;
"""
TAIL = "\n ret;\n}\n"
HEAD_LINES = HEAD.count("\n")


def kernel(body: str) -> str:
    """A kernel: %rd4 = &out[tid], %rd5 = &in[tid], %r1 = tid, %r2 = shared address of 4096 bytes."""
    return HEAD + body + TAIL


def launch(
    body: str, out: np.ndarray, source: np.ndarray | None = None, *, block: int = 32, grid: Any = 1, **options: Any
) -> em.Report:
    """Run a body over arrays."""
    source = np.zeros(1, np.uint32) if source is None else source
    return em.run_ptx(kernel(body), "k", grid=grid, block=block, params=[out, source], **options)
