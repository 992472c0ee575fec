"""Small programs for what running other people's kernels has found."""

import numpy as np

from mxfp8fa.emulator import run_ptx

HEADER = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %a<3>;
    .reg .pred %p<3>;
    ld.param.u64 %a0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a1, %r0, 4;
    add.s64 %a0, %a0, %a1;
"""


def run(body):
    out = np.full(32, 7, np.uint32)
    run_ptx(HEADER + body + "    ret;\n}\n", "kernel", grid=1, block=32, params=[out])
    return out


def test_poison_that_a_select_leaves_behind_in_a_divergent_warp():
    """The predicate is written in the lanes that are here and poison in the others (flash-attn-4, odd lengths)."""
    out = run("""
    setp.ge.u32 %p0, %r0, 8;
    @%p0 bra DONE;
    setp.lt.u32 %p1, %r0, 0;
    selp.b32 %r2, %r1, 5, %p1;
    st.global.u32 [%a0], %r2;
DONE:
""")
    assert out.tolist() == [5] * 8 + [7] * 24


def test_state_space_before_semantics():
    """`ld.global.acquire.gpu` as flash-attn-4's deterministic backward writes it."""
    out = run("""
    ld.global.acquire.gpu.b32 %r1, [%a0];
    add.u32 %r1, %r1, %r0;
    st.global.u32 [%a0], %r1;
""")
    assert (out == 7 + np.arange(32)).all()
