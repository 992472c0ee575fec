"""Raw operand elements and their values: orders that a product of two operands cannot show, all codes, padding from TMA."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.emulator.isa.tcgen05_descriptor import decode
from mxfp8fa.emulator.machine.tensor_core import padded_codes, values_of
from tests.emulator.tensor import boxes, operands, products
from tests.emulator.tensor.kernels import SM, copy_in, run, tensor_out, wait
from tests.emulator.tensor.products import Case

MX4 = Case("mxf4", a="e2m1", b="e2m1", scales=2)
F8 = Case("f8f6f4", a="e4m3", b="e4m3")


def shape_of(c: Case):
    return decode(products.descriptor(c), c.kind, c.group, None)


def test_the_low_nibble_is_the_lower_k():
    """Swapped in A and in B alike it would not show in any product; so here is the order itself."""
    words = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], np.uint8)
    np.testing.assert_array_equal(values_of(words, "e2m1", shape_of(MX4))[0], operands.table("e2m1"))


@pytest.mark.parametrize(("fmt", "bits"), [("e2m1", 4), ("e2m3", 6), ("e3m2", 6)])
def test_padded_groups(fmt, bits):
    """Element i of a group of 16 lies at bit i * bits, whatever the padding holds."""
    codes = np.arange(1 << bits, dtype=np.uint8).reshape(-1, 16)[:, ::-1].copy()
    words = operands.padded_groups(codes, bits)
    np.testing.assert_array_equal(padded_codes(words, bits), codes)
    words[:, 2 * bits :] ^= 0xFF
    np.testing.assert_array_equal(values_of(words, fmt, shape_of(F8.change(a=fmt))), operands.table(fmt)[codes])


@pytest.mark.parametrize(("fmt", "shift"), [("e2m1", 2), ("e2m3", 0), ("e3m2", 0)])
def test_containers_of_tensor_memory(fmt, shift):
    """One element to a byte, a 4-bit one in bits 5:2 (inferred); the other bits are not read."""
    codes = np.arange(len(operands.table(fmt)), dtype=np.uint8)[None, :]
    others = 0xFF & ~(len(operands.table(fmt)) - 1 << shift)
    for noise in (0, others):
        words = (codes << shift | noise).astype(np.uint8)
        found = values_of(words, fmt, shape_of(F8.change(a=fmt)), in_tensor_memory=True)
        np.testing.assert_array_equal(found[0], operands.table(fmt))


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_all_codes_of_8_bits(fmt):
    codes = np.arange(256, dtype=np.uint8)[None, :]
    np.testing.assert_array_equal(
        values_of(codes, fmt, shape_of(F8.change(a=fmt)))[0], operands.table(fmt).astype(np.float32)
    )


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_all_codes_of_16_bits(fmt):
    codes = np.arange(65536, dtype=np.uint16)[None, :]
    found = values_of(codes, fmt, shape_of(Case(a=fmt, b=fmt)))
    wanted = codes.view(np.float16) if fmt == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize(("fmt", "data_type"), [("e2m1", boxes.U4_PADDED), ("e2m3", boxes.U6_PADDED)])
def test_padding_that_tma_never_wrote_does_no_harm(fmt, data_type):
    """A comes by TMA in its padded type, so that the padding in shared memory is poison; B by threads."""
    c = F8.change(a=fmt, n=8, a_swizzle="128B", steps=4)
    data = products.random_data(c)
    bits = operands.BITS[fmt]
    rows = np.packbits(
        np.unpackbits(data.a[..., None], axis=-1, bitorder="little")[..., :bits].reshape(128, -1),
        axis=1,
        bitorder="little",
    )
    memory = boxes.aligned(np.zeros((128, 128), np.uint8), 128)
    memory[:, : rows.shape[1]] = rows
    tensor = boxes.TiledMap(data_type, memory.ctypes.data, (128, 128), (128,), (128, 128), (1, 1), swizzle=3)
    b = np.zeros(8 * 128, np.uint8)
    operands.place(b, SM, data.b, 1, "K", "128B", 0, 1024)
    body = copy_in(1024) + boxes.expect(128 * 128 * bits // 8, "%r4+8") + " add.u32 %b0, %r3, 1024;\n"
    body += boxes.load_text(tensor, (0, 0), to="%b0", barrier="%r4+8") + wait(1)
    for step in range(4):
        a_word = operands.descriptor(SM + 1024 + 32 * step, 0, 1024, "128B")
        b_word = operands.descriptor(SM + 32 * step, 0, 1024, "128B")
        body += f" mov.b32 %b4, {step}; setp.ne.u32 %p1, %b4, 0;\n"
        body += f" @%leader tcgen05.mma.cta_group::1.kind::f8f6f4 [%r5], {a_word}, {b_word}, {products.descriptor(c)}, %p1;\n"
    out = np.zeros((1, 128, 8), np.uint32)
    run(
        body + products.commit(1) + wait() + tensor_out(8), out, b[None], maps=[tensor], allow=(memory,), columns=32,
        barrier_counts={1: 1},
    )  # fmt: skip
    np.testing.assert_array_equal(out[0], products.expected(c, data))
