"""Copies between the CTAs of a cluster: multicast, signals of cta_group::2, bulk copies to a peer, commits that multicast."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.tensor.boxes import F16, UNTOUCHED, fill_shared, loaded, tensor
from tests.emulator.tensor.kernels import SCHEDULES, SM, aligned, copy_in, copy_out, run, wait
from tests.emulator.tensor.test_tma_stores import INTEGERS, on

T = tensor(F16, (96, 24), (64, 8), swizzle=3)
BOX_BYTES = 1024
SYNC = " barrier.cluster.arrive; barrier.cluster.wait;\n"
TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
MAPA = " mapa.shared::cluster.u32"
PEER = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def expect_in(mask: int, size: int) -> str:
    """Thread 0 of every CTA of a mask expects bytes on its barrier 0."""
    return (
        f" mov.b32 %b9, {mask}; shr.u32 %b9, %b9, %r2; and.b32 %b9, %b9, 1; setp.ne.u32 %p9, %b9, 0;\n"
        f" and.pred %p8, %p9, %first;\n @%p8 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {size};\n"
    )


def waiting_in(barrier: int = 0) -> str:
    """CTAs of the mask wait."""
    n = wait(barrier)
    return " @!%p9 bra.uni SKIP;\n" + n + "SKIP:\n"


@pytest.mark.parametrize("mask", [0b1, 0b10, 0b11, 0b101, 0b1111])
@pytest.mark.parametrize("options", SCHEDULES[:4], ids=str)
def test_multicast(mask, options):
    """The box goes to the same offset in every CTA of the mask and completes on the barrier there; nowhere else."""
    out = np.zeros((4, 2048), np.uint8)
    body = fill_shared(2048) + expect_in(mask, BOX_BYTES) + SYNC
    body += f" mov.b16 %h1, {mask}; @%leader {TENSOR}.multicast::cluster [%r3], [%map0, {{16, 5}}], [%r4], %h1;\n"
    run(body + waiting_in() + SYNC + copy_out(2048), out, maps=[T.map], allow=(T.memory,), ctas=4, **options)
    for cta in range(4):
        wanted = loaded(T, (16, 5)) if mask >> cta & 1 else np.full(BOX_BYTES, UNTOUCHED)
        np.testing.assert_array_equal(out[cta, :BOX_BYTES], wanted)
        assert (out[cta, BOX_BYTES:] == UNTOUCHED).all()


@pytest.mark.parametrize("mask", [0b10, 0b1011])
def test_multicast_bulk_copies(mask):
    data, out = aligned(np.random.default_rng(1).integers(0, 256, 4096, np.uint8)), np.zeros((4, 2048), np.uint8)
    body = fill_shared(2048) + expect_in(mask, 512) + SYNC
    body += f" mov.b16 %h1, {mask}; add.u32 %b0, %r3, 256; @%leader {BULK}.multicast::cluster [%b0], [%rd2], 512, [%r4], %h1;\n"
    run(body + waiting_in() + SYNC + copy_out(2048), out, data, ctas=4)
    for cta in range(4):
        wanted = data[:512] if mask >> cta & 1 else np.full(512, UNTOUCHED)
        np.testing.assert_array_equal(out[cta, 256:768], wanted)


@pytest.mark.parametrize("issuer", [0, 1, 3])
def test_a_load_into_another_cta(issuer):
    """Destination and barrier in the CTA of rank 2, whoever issues."""
    out = np.zeros((4, 2048), np.uint8)
    body = fill_shared(2048) + expect_in(0b100, BOX_BYTES) + SYNC
    body += f" setp.eq.u32 %p5, %r2, {issuer}; and.pred %p5, %p5, %first;\n"
    body += f"{MAPA} %b0, %r3, 2;{MAPA} %b1, %r4, 2;\n"
    body += f" @%p5 {TENSOR} [%b0], [%map0, {{0, 0}}], [%b1];\n"
    run(body + waiting_in() + SYNC + copy_out(2048), out, maps=[T.map], allow=(T.memory,), ctas=4)
    for cta in range(4):
        wanted = loaded(T, (0, 0)) if cta == 2 else np.full(BOX_BYTES, UNTOUCHED)
        np.testing.assert_array_equal(out[cta, :BOX_BYTES], wanted)


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("options", SCHEDULES[:3], ids=str)
def test_cta_group_2_signals_the_barrier_of_a_parity(parity, options):
    """Every CTA loads into its own memory; the bytes of a pair complete on the even (or the odd) CTA's barrier."""
    out = np.zeros((4, 2048), np.uint8)
    mask = 0b0101 << parity
    body = fill_shared(2048) + expect_in(mask, 2 * BOX_BYTES) + SYNC
    body += f" and.b32 %b2, %r2, 2; add.u32 %b2, %b2, {parity}; mapa.shared::cluster.u32 %b1, %r4, %b2; mul.lo.u32 %b3, %r2, 3;\n"
    body += f" @%first {TENSOR}.cta_group::2 [%r3], [%map0, {{16, %b3}}], [%b1];\n"
    run(body + waiting_in() + SYNC + copy_out(2048), out, maps=[T.map], allow=(T.memory,), ctas=4, **options)
    for cta in range(4):
        np.testing.assert_array_equal(out[cta, :BOX_BYTES], loaded(T, (16, 3 * cta)))


def test_cta_group_2_with_multicast():
    """One copy to both pairs: each pair's bytes complete on the barrier of its even CTA."""
    out = np.zeros((4, 2048), np.uint8)
    body = fill_shared(2048) + expect_in(0b0101, 2 * BOX_BYTES) + SYNC
    body += (
        f" mov.b16 %h1, 15; @%leader {TENSOR}.multicast::cluster.cta_group::2 [%r3], [%map0, {{0, 7}}], [%r4], %h1;\n"
    )
    run(body + waiting_in() + SYNC + copy_out(2048), out, maps=[T.map], allow=(T.memory,), ctas=4)
    for cta in range(4):
        np.testing.assert_array_equal(out[cta, :BOX_BYTES], loaded(T, (0, 7)))


# -- bulk copies to a peer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_bulk_copies_to_a_peer(options):
    """Each CTA sends 512 bytes to its neighbour, which waits for them on its own barrier."""
    data = np.random.default_rng(2).integers(0, 256, (2, 2048), np.uint8)
    out = np.zeros((2, 2048), np.uint8)
    body = copy_in(2048) + expect_in(0b11, 512) + SYNC
    body += f" xor.b32 %b0, %r2, 1; add.u32 %b1, %r3, 1024;{MAPA} %b1, %b1, %b0;{MAPA} %b2, %r4, %b0;\n"
    body += f" @%first {PEER} [%b1], [%r3], 512, [%b2];\n"
    run(body + wait() + SYNC + copy_out(2048), out, data, ctas=2, **options)
    for cta in range(2):
        wanted = data[cta].copy()
        wanted[1024:1536] = data[1 - cta, :512]
        np.testing.assert_array_equal(out[cta], wanted)


@pytest.mark.parametrize(
    ("form", "dtype", "op"),
    [("add.u32", np.uint32, "add"), ("add.s32", np.int32, "add"), ("add.u64", np.uint64, "add"), ("min.s32", np.int32, "min"),
     ("max.u32", np.uint32, "max"), ("inc.u32", np.uint32, "inc"), ("dec.u32", np.uint32, "dec"), ("and.b32", np.uint32, "and"),
     ("or.b32", np.uint32, "or"), ("xor.b64", np.uint64, "xor")],
)  # fmt: skip
def test_reductions_into_a_peer(form, dtype, op):
    data = np.random.default_rng(3).integers(0, 256, (2, 2048), np.uint8)
    data[:, 256:512] &= 3
    data[:, 1280:1536] &= 3
    out = np.zeros((2, 2048), np.uint8)
    body = copy_in(2048) + expect_in(0b10, 512) + SYNC
    body += " add.u32 %b1, %r3, 1024; mapa.shared::cluster.u32 %b1, %b1, 1; mapa.shared::cluster.u32 %b2, %r4, 1;\n"
    name = PEER.replace("cp.async", "cp.reduce.async")
    body += f" @%leader {name}.{form} [%b1], [%r3], 512, [%b2];\n"
    run(body + waiting_in() + SYNC + copy_out(2048), out, data, ctas=2)
    size, wanted = np.dtype(dtype).itemsize, data[1].copy()
    for i in range(0, 512, size):
        wanted[1024 + i : 1024 + i + size] = on(dtype, INTEGERS[op])(
            data[1, 1024 + i : 1024 + i + size], data[0, i : i + size]
        )
    np.testing.assert_array_equal(out[1], wanted)
    np.testing.assert_array_equal(out[0], data[0])


@pytest.mark.parametrize("mask", [0b01, 0b10, 0b11])
def test_commits_that_multicast(mask):
    """A commit with nothing outstanding arrives at once, at the same offset in every CTA of the mask."""
    out = np.zeros((2, 2), np.uint32)
    name = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    body = f" mov.b16 %h1, {mask};\n @%leader {name} [%r4], %h1;\n"
    body += SYNC + " mbarrier.test_wait.parity.shared.b64 %p1, [%r4], 0; selp.b32 %a0, 1, 0, %p1;\n"
    body += " mad.wide.u32 %x0, %r2, 8, %rd1; @%first st.global.u32 [%x0], %a0;\n"
    run(body, out, block=32, ctas=2)
    assert [int(x) for x in out[:, 0]] == [mask >> cta & 1 for cta in range(2)]


# -- errors -----------------------------------------------------------------------------------------------------------------


def refuse(body: str, text: str, kind: type[em.EmulationError] = em.IllegalOperation, ctas: int = 2) -> None:
    with pytest.raises(kind, match=text):
        run(fill_shared(2048) + SYNC + body + SYNC, np.zeros(4, np.uint32), maps=[T.map], allow=(T.memory,), ctas=ctas)


@pytest.mark.parametrize("mask", [0, 0b100, 0x8001])
def test_masks(mask):
    body = f" mov.b16 %h1, {mask}; @%leader {TENSOR}.multicast::cluster [%r3], [%map0, {{0, 0}}], [%r4], %h1;\n"
    refuse(body, rf"multicast mask {mask:#x}: the cluster has CTAs 0 to 1, and at least one is needed")


def test_destination_and_barrier_in_different_ctas():
    body = " mapa.shared::cluster.u32 %b1, %r4, 1;\n"
    text = r"TMA load into CTA \(0, 0, 0\) with an mbarrier of CTA \(1, 0, 0\): they must be in one CTA \(or use .cta_group::2\)"
    refuse(body + f" @%leader {TENSOR} [%r3], [%map0, {{0, 0}}], [%b1];\n", text)
    refuse(body + f" @%leader {PEER} [%r3], [%r3], 64, [%b1];\n", "with an mbarrier of CTA .* must be in one CTA")


def test_the_source_of_a_peer_copy_is_in_the_own_cta():
    body = f"{MAPA} %b1, %r3, 1;{MAPA} %b2, %r4, 1;\n @%leader {PEER} [%b1], [%b1], 64, [%b2];\n"
    refuse(body, r"belongs to the CTA of rank 1, but this instruction \(shared::cta\) may only reach its own")


def test_a_cta_that_is_not_in_the_cluster():
    body = f" mov.b32 %b1, {0x0500_0000 + SM};\n @%leader {TENSOR} [%b1], [%map0, {{0, 0}}], [%r4];\n"
    refuse(body, r"shared address 0x5000400 names CTA rank 5: the cluster has 2 CTA\(s\)", em.OutOfBounds)


def test_a_cta_that_has_exited():
    """The cluster barrier lets the others go on when the threads of a CTA have exited."""
    body = f" setp.eq.u32 %p1, %r2, 1;\n @%p1 exit;\n{SYNC}{MAPA} %b1, %r3, 1;{MAPA} %b2, %r4, 1;\n"
    refuse(
        body + f" @%leader {PEER} [%b1], [%r3], 64, [%b2];\n", r"belongs to CTA \(1, 0, 0\), which has exited already"
    )
