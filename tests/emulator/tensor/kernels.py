"""PTX around the body of a test: shared memory, mbarriers, tensor memory, and copies of whole images in and out.

A kernel of `run` has these registers ready:

    %r1 thread   %r2 rank in the cluster   %r3 shared address of `sm` (offset 0x400 of the CTA)   %r4 of `bar` (64 mbarriers)
    %r5 base of tensor memory, when columns are allocated   %warp   %rd1 out   %rd2 in   %rd3 in of this CTA
    %first: thread 0 of the CTA   %leader: thread 0 of the CTA of rank 0   %w0: threads of warp 0
    %map0 .. %map3: addresses of tensor maps
Free: %a0.. %b0.. (b32), %x0.. (b64), %h0.. (b16), %p0.. (pred).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mxfp8fa.emulator as em
from mxfp8fa.emulator.host import TiledMap

SM = 0x400  # offset of the first static shared variable
WAIT = """
 {{ W{n}: mbarrier.try_wait.parity.shared.b64 %pw, [%r4+{at}], {parity};
 @!%pw bra W{n}; }}
"""
SCHEDULES: list[dict[str, Any]] = [{"schedule": "eager"}, {"schedule": "lazy"}]
SCHEDULES += [{"schedule": "random", "seed": seed} for seed in range(10)]
_waits = iter(range(10**9))


def wait(barrier: int = 0, parity: int = 0) -> str:
    """Wait for a phase of mbarrier number `barrier` of this CTA."""
    return WAIT.format(n=next(_waits), at=8 * barrier, parity=parity)


def kernel(body: str, *, shared_bytes: int, maps: int, barriers: str, columns: int, group: int) -> str:
    """The whole text."""
    parameters = "".join(f", .param .align 64 .b8 m{i}[128]" for i in range(maps))
    map_addresses = "".join(f" mov.b64 %map{i}, m{i}; cvta.param.u64 %map{i}, %map{i};\n" for i in range(maps))
    allocate = free = ""
    if columns:
        allocate = f" @%w0 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [slot], {columns};"
        free = f" @%w0 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r5, {columns};"
    return f"""
.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 in_bytes{parameters})
{{
 .reg .pred %p<20>; .reg .pred %first, %leader, %w0, %pw; .reg .b16 %h<20>; .reg .b32 %r<10>; .reg .b32 %a<260>; .reg .b32 %b<260>;
 .reg .b32 %warp; .reg .b64 %rd<10>; .reg .b64 %x<60>; .reg .b64 %map<4>;
 .shared .align 1024 .b8 sm[{shared_bytes}]; .shared .align 8 .b8 bar[512]; .shared .align 4 .b8 slot[4];
 ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.u32 %r9, [in_bytes];
 mov.u32 %r1, %tid.x; shr.u32 %warp, %r1, 5; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, sm; mov.u32 %r4, bar;
 mad.wide.u32 %rd3, %r2, %r9, %rd2;
 setp.eq.u32 %first, %r1, 0; setp.eq.u32 %leader, %r2, 0; and.pred %leader, %leader, %first; setp.lt.u32 %w0, %r1, 32;
{map_addresses}{barriers}
{allocate}
 fence.mbarrier_init.release.cluster;
 fence.proxy.async;
 bar.sync 0;
 barrier.cluster.arrive; barrier.cluster.wait;
{" ld.shared.u32 %r5, [slot];" if columns else ""}
{body}
 bar.sync 0;
 barrier.cluster.arrive; barrier.cluster.wait;
{free}
 ret;
}}
"""


def run(
    body: str, out: np.ndarray, source: np.ndarray | None = None, *, block: int = 128, ctas: int = 1, shared_bytes: int = 65536,
    maps: list[TiledMap | bytes] | None = None, barrier_counts: dict[int, int] | None = None, columns: int = 0, group: int = 1,
    grid: int | None = None, allow: tuple[Any, ...] = (), **options: Any,
) -> em.Report:  # fmt: skip
    """Run a body in a cluster of `ctas`.

    Args:
        body: PTX.
        out: the array that the kernel may write.
        source: input; its first axis is the CTA if it has `ctas` entries there.
        maps: tensor maps, passed as parameters.
        barrier_counts: mbarriers to initialise, number -> arrivals; number 0 with one arrival always exists.
        columns: tensor memory columns to allocate (and free).
        group: cta_group of the allocation.
    """
    source = np.zeros(ctas, np.uint32) if source is None else source
    counts = {0: 1} | (barrier_counts or {})
    barriers = "".join(f" @%first mbarrier.init.shared.b64 [%r4+{8 * i}], {n};\n" for i, n in counts.items())
    text = kernel(
        body, shared_bytes=shared_bytes, maps=len(maps or ()), barriers=barriers, columns=columns, group=group
    )
    per_cta = source.nbytes // ctas
    encoded = [m.encode() if isinstance(m, TiledMap) else m for m in maps or ()]
    return em.run_ptx(
        text, "k", grid=grid or ctas, block=block, cluster=ctas, params=[out, source, per_cta, *encoded], allow=allow, **options
    )  # fmt: skip


def copy_in(size_bytes: int, threads: int = 128) -> str:
    """Fill `sm` from this CTA's input: st.shared of 16 bytes by every thread, then the fence for the async proxy."""
    assert size_bytes % 16 == 0
    n = next(_waits)
    return f"""
 {{ mul.lo.u32 %a0, %r1, 16;
 C{n}: setp.ge.u32 %p0, %a0, {size_bytes};
 @%p0 bra D{n};
 cvt.u64.u32 %x0, %a0; add.u64 %x0, %x0, %rd3; add.u32 %a1, %a0, %r3;
 ld.global.v4.b32 {{%a4, %a5, %a6, %a7}}, [%x0];
 st.shared.v4.b32 [%a1], {{%a4, %a5, %a6, %a7}};
 add.u32 %a0, %a0, {16 * threads};
 bra C{n};
 D{n}: fence.proxy.async; bar.sync 0; }}
"""


def copy_out(size_bytes: int, threads: int = 128) -> str:
    """Write the first bytes of `sm` to `out`, CTA after CTA."""
    assert size_bytes % 8 == 0
    n = next(_waits)
    return f"""
 {{ mad.wide.u32 %x1, %r2, {size_bytes}, %rd1; mul.lo.u32 %a0, %r1, 8;
 C{n}: setp.ge.u32 %p0, %a0, {size_bytes};
 @%p0 bra D{n};
 cvt.u64.u32 %x0, %a0; add.u64 %x0, %x0, %x1; add.u32 %a1, %a0, %r3;
 ld.shared.v2.b32 {{%a4, %a5}}, [%a1];
 st.global.v2.b32 [%x0], {{%a4, %a5}};
 add.u32 %a0, %a0, {8 * threads};
 bra C{n};
 D{n}: }}
"""


def registers(count: int, name: str = "a", first: int = 0) -> str:
    """{%a0, %a1, ..}."""
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def _columns_loop(columns: int, first: int, step: str, width: int) -> str:
    """`step` for every `width` columns: %x0 is the global address of the row's next word, %b0 that of its cell."""
    n = next(_waits)
    return f"""
 {{ shl.b32 %b0, %warp, 21; add.u32 %b0, %b0, %r5; add.u32 %b0, %b0, {first}; mov.b32 %a1, 0;
 C{n}: {step}
 add.u64 %x0, %x0, {4 * width}; add.u32 %b0, %b0, {width}; add.u32 %a1, %a1, {width}; setp.lt.u32 %p0, %a1, {columns};
 @%p0 bra C{n}; }}
"""


def tensor_in(offset_bytes: int, columns: int, first: int = 0) -> str:
    """Fill columns first.. of tensor memory from this CTA's input: 128 rows of `columns` words at an offset."""
    assert columns % 8 == 0
    width = 32 if columns % 32 == 0 else 8
    row = f" mul.lo.u32 %a0, %r1, {4 * columns}; cvt.u64.u32 %x0, %a0; add.u64 %x0, %x0, %rd3; add.u64 %x0, %x0, {offset_bytes};\n"
    step = "".join(f"ld.global.v4.b32 {registers(4, 'a', 4 + i)}, [%x0+{4 * i}]; " for i in range(0, width, 4))
    step += f"tcgen05.st.sync.aligned.32x32b.x{width}.b32 [%b0], {registers(width, 'a', 4)};"
    return row + _columns_loop(columns, first, step, width) + " tcgen05.wait::st.sync.aligned; bar.sync 0;\n"


def tensor_out(columns: int, first: int = 0) -> str:
    """Write `columns` columns of tensor memory to `out`: (CTA, 128 lanes, columns) words."""
    assert columns % 8 == 0
    width = 32 if columns % 32 == 0 else 8
    row = f" mad.lo.u32 %a0, %r2, 128, %r1; mul.wide.u32 %x0, %a0, {4 * columns}; add.u64 %x0, %x0, %rd1;\n"
    step = f"tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {registers(width, 'a', 4)}, [%b0]; tcgen05.wait::ld.sync.aligned; "
    step += "".join(f"st.global.v4.b32 [%x0+{4 * i}], {registers(4, 'a', 4 + i)}; " for i in range(0, width, 4))
    return row + _columns_loop(columns, first, step, width)


def aligned(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """A copy whose data starts at a multiple of `alignment`, as device memory does."""
    raw = np.zeros(array.nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
