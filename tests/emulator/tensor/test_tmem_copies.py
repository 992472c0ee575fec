"""tcgen05.cp and shift: rows of shared memory to lanes, swizzled sources, pairs, unpacking, and a scale factor's way."""

from __future__ import annotations

import numpy as np
import pytest

import mxfp8fa.emulator as em
from mxfp8fa.layouts.matrix_descriptor import MatrixDescriptor
from mxfp8fa.layouts.swizzle import NONE, SW32, SW64, SW128
from tests.emulator.tensor.kernels import SCHEDULES, SM, copy_in, run, tensor_out, wait
from tests.layouts.cute_layout import canonical, swizzled

COMMIT = " @%leader tcgen05.commit.cta_group::{0}.mbarrier::arrive::one.shared::cluster{1}.b64 [%r4]{2};\n"
EMPTY = 0xFFFFFFFF
FORMS = {
    "128x256b": (128, 32, lambda i: [i]),
    "128x128b": (128, 16, lambda i: [i]),
    "4x256b": (4, 32, lambda i: [32 * i]),
    "64x128b.warpx2::02_13": (64, 16, lambda i: [i, i + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda i: [64 * (i // 32) + i % 32, 64 * (i // 32) + 32 + i % 32]),
    "32x128b.warpx4": (32, 16, lambda i: [i, i + 32, i + 64, i + 96]),
}


def fill(columns: int) -> str:
    """Write EMPTY to the first columns, so that what a copy leaves alone shows."""
    store = "tcgen05.st.sync.aligned.32x32b.x4.b32"
    lines = [f" mov.b32 %b0, {EMPTY};"]
    lines += [f" add.u32 %b1, %r5, {c}; {store} [%b1], {{%b0, %b0, %b0, %b0}};" for c in range(0, columns, 4)]
    return "\n".join([*lines, " tcgen05.wait::st.sync.aligned; bar.sync 0;\n"])


def copied(instructions: str, source: np.ndarray, *, group: int = 1, columns: int = 16, **options) -> np.ndarray:
    """(CTA, 128, columns) of tensor memory after instructions by the leader; `source` fills shared memory, per CTA."""
    multicast = (".multicast::cluster", ", 3") if group == 2 else ("", "")
    out = np.zeros((group, 128, columns), np.uint32)
    body = copy_in(source.nbytes // group) + fill(columns)
    body += " barrier.cluster.arrive; barrier.cluster.wait;\n" if group == 2 else ""
    body += instructions + COMMIT.format(group, *multicast) + wait() + tensor_out(columns)
    run(body, out, source, columns=32, ctas=group, group=group, **options)
    return out


@pytest.mark.parametrize("swizzle", [NONE, SW32, SW64, SW128], ids=lambda s: s.name)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, swizzle):
    """Row i of the source, as the descriptor lays it out, to its lanes; everything else keeps what it held."""
    rows, row_bytes, lanes = FORMS[form]
    source = np.random.default_rng(1).integers(0, 2**32, 8192, np.uint32)
    d = MatrixDescriptor(SM + 1024, 16 if swizzle is NONE else 0, 640, swizzle)
    if swizzle is NONE and row_bytes == 32:
        d = MatrixDescriptor(SM + 1024, 0x2000, 128, swizzle)
    (found,) = copied(f" add.u32 %a0, %r5, 4;\n @%leader tcgen05.cp.cta_group::1.{form} [%a0], {d.encode()};\n", source)
    expected = np.full((128, 16), EMPTY, np.uint32)
    plain = canonical("K", swizzle.name, max(rows, 8), row_bytes // 4, 4, d.leading_bytes, d.stride_bytes)
    for i in range(rows):
        for w in range(row_bytes // 4):
            word = source[(swizzled(d.start_bytes + plain[i, w], swizzle.name) - SM) // 4]
            for lane in lanes(i):
                expected[lane, 4 + w] = word
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("options", SCHEDULES[:3], ids=str)
def test_a_pair_copies_in_both_each_from_its_own_shared_memory(options):
    """(That each CTA reads its own is inferred from public kernels.)"""
    source = np.random.default_rng(2).integers(0, 2**32, (2, 512), np.uint32)
    d = MatrixDescriptor(SM, 16, 128, NONE)
    found = copied(
        f" @%leader tcgen05.cp.cta_group::2.32x128b.warpx4 [%r5], {d.encode()};\n", source, group=2, **options
    )
    for cta in range(2):
        for lane in range(128):
            np.testing.assert_array_equal(found[cta, lane, :4], source[cta].reshape(-1, 4)[lane % 32])
    assert (found[:, :, 4:] == EMPTY).all()


def test_scale_factors_from_the_128x4_block():
    """512 bytes of scales copied by 32x128b.warpx4: row r's four scales in lane r % 32 of every partition, column r / 32."""
    scales = np.random.default_rng(3).integers(0, 256, (128, 4), np.uint8)
    block = np.zeros(512, np.uint8)
    for r in range(128):
        for k in range(4):
            block[r % 32 * 16 + r // 32 * 4 + k] = scales[r, k]
    assert block[218] == scales[77, 2]
    d = MatrixDescriptor(SM, 0, 128, NONE)
    (found,) = copied(f" @%leader tcgen05.cp.cta_group::1.32x128b.warpx4 [%r5], {d.encode()};\n", block.view(np.uint32))
    for r in range(128):
        for partition in range(4):
            cell = int(found[32 * partition + r % 32, r // 32])
            assert list(cell.to_bytes(4, "little")) == list(scales[r])


@pytest.mark.parametrize(("bits", "unpack"), [(4, "b8x16.b4x16_p64"), (6, "b8x16.b6x16_p32")])
@pytest.mark.parametrize("form", ["128x256b", "64x128b.warpx2::02_13"])
def test_unpacking(bits, unpack, form):
    """Element i of a group lies at bit i * bits; it arrives in byte i, a 4-bit one at bits 5:2 (inferred). Padding is not read."""
    rows, row_bytes, lanes = FORMS[form]
    codes = np.random.default_rng(4).integers(0, 1 << bits, (rows, row_bytes), np.uint8)
    memory = np.full((rows, row_bytes), 0xEE, np.uint8)
    for r in range(rows):
        for group in range(row_bytes // 16):
            number = sum(int(c) << bits * i for i, c in enumerate(codes[r, 16 * group : 16 * group + 16]))
            memory[r, 16 * group : 16 * group + 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    image = np.zeros(rows * 32, np.uint8)
    for r in range(rows):  # 8 rows x 16 bytes, the second column of 16 bytes in the second half
        for group in range(row_bytes // 16):
            at = rows * 16 * group + 16 * r
            image[at : at + 16] = memory[r, 16 * group : 16 * group + 16]
    d = MatrixDescriptor(SM, rows * 16, 128, NONE)
    (found,) = copied(
        f" @%leader tcgen05.cp.cta_group::1.{form}.{unpack} [%r5], {d.encode()};\n", image.view(np.uint32)
    )
    expected = np.full((128, 16), EMPTY, np.uint32)
    for i in range(rows):
        shifted = codes[i].astype(np.uint8) << (2 if bits == 4 else 0)
        for lane in lanes(i):
            expected[lane, : row_bytes // 4] = shifted.view(np.uint32)
    np.testing.assert_array_equal(found, expected)


def test_padding_that_was_never_written_does_no_harm():
    """TMA leaves the padding of 4-bit groups alone."""
    body = " cvt.u64.u32 %x0, %r1; mad.lo.u32 %a0, %r1, 16, %r3; st.shared.b64 [%a0], %x0; fence.proxy.async; bar.sync 0;\n"
    d = MatrixDescriptor(SM, 16, 128, NONE)
    body += f" @%leader tcgen05.cp.cta_group::1.32x128b.warpx4.b8x16.b4x16_p64 [%r5], {d.encode()};\n"
    body += COMMIT.format(1, "", "") + wait()
    out = np.zeros((128, 8), np.uint32)
    with pytest.raises(em.PoisonError):  # columns 4 to 7 were never written
        run(body + tensor_out(8), out, columns=32)
    clear = " mov.b32 %b9, 0; add.u32 %b8, %r5, 4;\n"
    clear += " tcgen05.st.sync.aligned.32x32b.x4.b32 [%b8], {%b9, %b9, %b9, %b9}; tcgen05.wait::st.sync.aligned;\n"
    run(clear + body + tensor_out(8), out, columns=32)
    assert out[33, 0] == 1 << 2 and out[90, 0] == 10 << 2 | 1 << 10  # 26 is nibbles 10 and 1


def test_copies_follow_one_another_and_a_shift_after_them():
    """cp, cp and shift of one thread are in order: rows 1..31 move to lanes 0..30 (direction inferred)."""
    source = np.arange(128 * 8 * 2, dtype=np.uint32)
    a, b = (MatrixDescriptor(SM + at, 2048, 128, NONE).encode() for at in (0, 4096))
    (found,) = copied(
        f" @%leader tcgen05.cp.cta_group::1.128x256b [%r5], {a};\n @%leader tcgen05.cp.cta_group::1.128x256b [%r5], {b};\n"
        " add.u32 %a0, %r5, 0x200000;\n @%leader tcgen05.shift.cta_group::1.down [%a0];\n",
        source,
        schedule="lazy",
    )
    plain = canonical("K", "none", 128, 8, 4, 2048, 128)
    rows = np.array([[source[(4096 + plain[r, w]) // 4] for w in range(8)] for r in range(128)])
    np.testing.assert_array_equal(found[:32, :8], rows[:32])
    np.testing.assert_array_equal(found[32:63, :8], rows[33:64])
    np.testing.assert_array_equal(found[63:, :8], rows[63:])


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("tcgen05.cp.cta_group::1.32x128b [%r5], 70368744177664", em.UnsupportedInstruction, "tcgen05.cp"),
        ("tcgen05.cp.cta_group::1.64x128b [%r5], 70368744177664", em.UnsupportedInstruction, "tcgen05.cp"),
        (
            "tcgen05.cp.cta_group::1.128x256b [%r5], 0",
            em.IllegalOperation,
            r"tcgen05.cp: descriptor 0x0+: the constant in bits 46:48",
        ),
        ("tcgen05.cp.cta_group::1.128x256b [%r5], 70368744177664", em.OutOfBounds, "tcgen05.cp .* this CTA has 0x400"),
        (
            "tcgen05.shift.cta_group::1.down [%r1]",
            em.IllegalOperation,
            "tcgen05.shift at lane 3: a multiple of 32 is needed",
        ),
    ],
)
def test_errors(text, kind, message):
    body = " add.u32 %r1, %r1, 0x30000;\n" if "shift" in text else ""
    with pytest.raises(kind, match=message):
        run(body + f" @%leader {text};\n", np.zeros(4, np.uint32), columns=32)


def test_columns_that_are_not_allocated():
    d = MatrixDescriptor(SM, 16, 128, NONE).encode()
    with pytest.raises(em.OutOfBounds, match=r"tcgen05.cp reaches column 32, which is not allocated"):
        run(
            f" add.u32 %a0, %r5, 30;\n @%leader tcgen05.cp.cta_group::1.32x128b.warpx4 [%a0], {d};\n",
            np.zeros(4, np.uint32),
            columns=32,
        )


def test_shared_memory_that_was_never_written_is_poison_in_tensor_memory():
    d = MatrixDescriptor(SM, 16, 128, NONE).encode()
    body = f" @%leader tcgen05.cp.cta_group::1.32x128b.warpx4 [%r5], {d};\n" + COMMIT.format(1, "", "") + wait()
    run(body, np.zeros(4, np.uint32), columns=32)
    with pytest.raises(em.PoisonError):
        run(body + tensor_out(8), np.zeros((128, 8), np.uint32), columns=32)
