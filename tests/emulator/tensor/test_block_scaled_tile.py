"""One block-scaled tile by every path: A by TMA, B by threads in another swizzle, scales by tcgen05.cp, D by TMA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from mxfp8fa.emulator.host import TiledMap
from tests.emulator.tensor import boxes, operands, products
from tests.emulator.tensor.kernels import SCHEDULES, SM, aligned, copy_in, registers, run, wait
from tests.emulator.tensor.products import SFA_COLUMN, SFB_COLUMN, Case, commit

TILE = Case("mxf8f6f4", a="e4m3", b="e5m2", scales=1, n=64, steps=4, a_swizzle="128B", b_swizzle="64B")
SF_AT, A_AT, D_AT = 8192, 16384, 32768  # offsets in `sm`; B is at 0
LOADED_BYTES = 128 * 128 + 2 * 512


@dataclass
class Inputs:
    """What the kernel reads and writes.

    Attributes:
        source: B as shared memory holds it, then the scales of A and of B in 512-byte blocks.
        a, d: tensors in global memory, and their maps.
    """

    source: np.ndarray
    a: np.ndarray
    d: np.ndarray
    maps: list[TiledMap]


def scale_block(scales: np.ndarray) -> np.ndarray:
    """(rows, 4) scales in the 128x4 block that tcgen05.cp takes."""
    block = np.zeros(512, np.uint8)
    for r, row in enumerate(scales):
        at = r % 32 * 16 + r // 32 * 4
        block[at : at + 4] = row
    return block


def inputs(data: products.Data) -> Inputs:
    """A lies inside a larger tensor; B in two columns of 64-byte rows."""
    a = aligned(np.zeros((130, 160), np.uint8), 128)
    a[1:129, 16:144] = data.a
    b = np.zeros(64 * 128, np.uint8)
    for half in range(2):
        operands.place(b, SM + 4096 * half, data.b[:, 64 * half : 64 * half + 64], 1, "K", "64B", 0, 512)
    d = aligned(np.zeros((128, 64), np.float32), 128)
    map_a = TiledMap(boxes.U8, a.ctypes.data, (160, 130), (160,), (128, 128), (1, 1), swizzle=3)
    map_d = TiledMap(boxes.F32, d.ctypes.data, (64, 128), (256,), (32, 128), (1, 1), swizzle=3)
    source = np.concatenate([b, scale_block(data.sfa), scale_block(data.sfb)])[None]
    return Inputs(aligned(source), a, d, [map_a, map_d])


def loads() -> str:
    """B by the threads; A and the scales by one, waited for on barrier 1."""
    tensor = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    body = copy_in(8192) + f" @%leader mbarrier.arrive.expect_tx.shared.b64 _, [%r4+8], {LOADED_BYTES};\n"
    body += f" add.u32 %b0, %r3, {A_AT}; add.u32 %b1, %r4, 8; add.u32 %b2, %r3, {SF_AT}; add.u64 %x0, %rd2, 8192;\n"
    body += f" @%leader {tensor} [%b0], [%map0, {{16, 1}}], [%b1];\n @%leader {bulk} [%b2], [%x0], 1024, [%b1];\n"
    return body + wait(1)


def product() -> str:
    """Scales to tensor memory, then four steps of K = 32 with scale ids 0 to 3."""
    body = f" add.u32 %b2, %r5, {SFA_COLUMN}; add.u32 %b3, %r5, {SFB_COLUMN};\n"
    for i, at in enumerate((0, 512)):
        word = operands.descriptor(SM + SF_AT + at, 0, 128, "none")
        body += f" @%leader tcgen05.cp.cta_group::1.32x128b.warpx4 [%b{2 + i}], {word};\n"
    for step in range(4):
        a = operands.descriptor(SM + A_AT + 32 * step, 0, 1024, "128B")
        b = operands.descriptor(SM + 4096 * (step // 2) + 32 * (step % 2), 0, 512, "64B")
        body += f" mov.b32 %b4, {step}; setp.ne.u32 %p1, %b4, 0;\n @%leader tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"
        body += f" [%r5], {a}, {b}, {products.descriptor(TILE, step)}, [%b2], [%b3], %p1;\n"
    return body + commit(1) + wait()


def epilogue() -> str:
    """Each thread's row to shared memory, 16-byte chunks XORed with the row number, and two boxes to the tensor."""
    body = " shl.b32 %b5, %warp, 21; add.u32 %b5, %b5, %r5;\n"
    body += f" tcgen05.ld.sync.aligned.32x32b.x64.b32 {registers(64)}, [%b5];\n tcgen05.wait::ld.sync.aligned;\n"
    body += f" and.b32 %b6, %r1, 7; shl.b32 %b6, %b6, 4; mad.lo.u32 %b7, %r1, 128, %r3; add.u32 %b7, %b7, {D_AT};\n"
    for chunk in range(16):
        half, within = divmod(chunk, 8)
        body += f" xor.b32 %b8, %b6, {16 * within}; add.u32 %b8, %b8, %b7;\n"
        body += f" st.shared.v4.b32 [%b8+{16384 * half}], {registers(4, 'a', 4 * chunk)};\n"
    body += " fence.proxy.async; bar.sync 0;\n"
    for half in range(2):
        body += f" add.u32 %b9, %r3, {D_AT + 16384 * half};\n"
        body += f" @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map1, {{{32 * half}, 0}}], [%b9];\n"
    return body + " @%leader cp.async.bulk.commit_group;\n @%leader cp.async.bulk.wait_group 0;\n"


@pytest.mark.parametrize(
    "options", [*SCHEDULES, {"check": "races"}, {"wait_ld": "required", "schedule": "lazy"}], ids=str
)
def test_the_tile(options):
    """No swizzle, permutation or scale error that A and B would share can cancel; the bits are those of NumPy."""
    data = products.random_data(TILE)
    given = inputs(data)
    report = run(
        loads() + product() + epilogue(), np.zeros(4, np.uint32), given.source, maps=given.maps, allow=(given.a, given.d),
        columns=512, barrier_counts={1: 1}, **options,
    )  # fmt: skip
    np.testing.assert_array_equal(given.d.view(np.uint32), products.expected(TILE, data))
    assert report.races == []
