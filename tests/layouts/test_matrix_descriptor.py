"""Shared-memory matrix descriptors: bits, errors, and the addresses they stand for against the ISA's canonical layouts."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.layouts.matrix_descriptor import SWIZZLE_MODES, MatrixDescriptor, byte_addresses
from mxfp8fa.layouts.swizzle import NONE, SW32, SW64, SW128, SW128_ATOM32
from tests.layouts.cute_layout import canonical, swizzled

PLAIN = MatrixDescriptor(0x400, 0, 1024, SW128)


def descriptor_bits(*, start=0, leading=0, stride=0, mode=0, version=1, base=0, lbo_mode=0) -> int:
    """The word from its fields, each at its place in the ISA's table."""
    word = 0
    for value, first in (
        (start >> 4, 0),
        (leading >> 4, 16),
        (stride >> 4, 32),
        (version, 46),
        (base, 49),
        (lbo_mode, 52),
        (mode, 61),
    ):
        word += value << first
    return word


@pytest.mark.parametrize(("mode", "swizzle"), [(0, NONE), (1, SW128_ATOM32), (2, SW128), (4, SW64), (6, SW32)])
@pytest.mark.parametrize("start", [0, 16, 0x400, 0x3FFF0])
def test_fields(mode, swizzle, start):
    word = descriptor_bits(start=start, leading=0x2010, stride=0x3FFF0, mode=mode)
    d = MatrixDescriptor.decode(word)
    assert (d.start_bytes, d.leading_bytes, d.stride_bytes, d.swizzle) == (start, 0x2010, 0x3FFF0, swizzle)
    assert d.encode() == word


def test_modes_are_those_of_the_isa():
    assert sorted(SWIZZLE_MODES) == [0, 1, 2, 4, 6]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (descriptor_bits(mode=3), r"swizzle mode \(bits 61:63\) is 3; allowed: 0, 1, 2, 4, 6"),
        (descriptor_bits(mode=5), "swizzle mode"),
        (descriptor_bits(mode=7), "swizzle mode"),
        (descriptor_bits(version=0), "bits 46:48 is 0; it must be 1"),
        (descriptor_bits(version=5), "bits 46:48 is 5; it must be 1"),
        (descriptor_bits(base=3), r"matrix base offset \(bits 49:51\) is 3"),
        (descriptor_bits(lbo_mode=1), r"LBO mode \(bit 52\) is 1"),
        (descriptor_bits() | 1 << 14, "bits 14:15, 30:31 and 53:60 must be 0"),
        (descriptor_bits() | 1 << 31, "must be 0"),
        (descriptor_bits() | 1 << 60, "must be 0"),
        (0, "it must be 1"),
    ],
)
def test_illegal_fields_are_named(word, text):
    with pytest.raises(ValueError, match=text):
        MatrixDescriptor.decode(word)


@pytest.mark.parametrize(("field", "value"), [("start_bytes", 8), ("leading_bytes", 1 << 18), ("stride_bytes", -16)])
def test_encode_refuses_what_has_no_code(field, value):
    fields = {"start_bytes": 0, "leading_bytes": 0, "stride_bytes": 0, field: value}
    with pytest.raises(ValueError, match=f"{field} = {value}; allowed: multiples of 16 below 262144"):
        MatrixDescriptor(**fields, swizzle=NONE).encode()


@pytest.mark.parametrize(
    ("d", "element_bytes", "mn_major", "row", "k", "address"),
    [
        (MatrixDescriptor(0x2000, 0, 1024, SW128), 1, False, 9, 40, 0x24B8),
        (MatrixDescriptor(0x2020, 0, 1024, SW128), 1, False, 9, 8, 0x24B8),  # one K step of 32 bytes on: the same byte
        (MatrixDescriptor(0x1000, 0, 512, SW64), 1, False, 5, 33, 0x1141),
        (MatrixDescriptor(0x1000, 0, 256, SW32), 1, False, 3, 17, 0x1071),
        (MatrixDescriptor(0x4000, 0x2000, 0x400, SW128), 2, True, 70, 11, 0x65BC),
        (MatrixDescriptor(0, 0x1000, 512, SW128_ATOM32), 4, True, 37, 6, 0x1354),
    ],
)
def test_published_vectors(d, element_bytes, mn_major, row, k, address):
    """Computed independently of this package, and checked against CUTLASS's layouts."""
    found = byte_addresses(d, 128, 64 * element_bytes, element_bytes, mn_major=mn_major)
    assert found[row, k] == address


CASES = [(major, s, size) for major in ("K", "MN") for s in (NONE, SW32, SW64, SW128) for size in (1, 2, 4)]
CASES += [("MN", SW128_ATOM32, 4)]


@pytest.mark.parametrize(("major", "swizzle", "element_bytes"), CASES, ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize(("start", "lbo", "sbo"), [(0x2000, 0x1000, 0x400), (0x2460, 0x90, 0x4450)])
def test_canonical_layouts(major, swizzle, element_bytes, start, lbo, sbo):
    """Every element of a 64-row operand, 32 bytes of K (MN-major: 16 elements) as one instruction reads it."""
    k = 32 // element_bytes if major == "K" else 16
    d = MatrixDescriptor(start, lbo, sbo, swizzle)
    found = byte_addresses(d, 64, k * element_bytes, element_bytes, mn_major=major == "MN")
    assert found.shape == (64, k)
    for (r, j), plain in canonical(major, swizzle.name, 64, k, element_bytes, lbo, sbo).items():
        assert found[r, j] == swizzled(start + plain, swizzle.name), (r, j)


def test_no_swizzle_without_a_leading_offset_takes_neighbouring_columns():
    """LBO 0 reads as 16: how scale-factor copies of one 16-byte column and public kernels write it (inferred)."""
    zero, sixteen = (byte_addresses(MatrixDescriptor(0, lbo, 128, NONE), 32, 32, 1, mn_major=False) for lbo in (0, 16))
    np.testing.assert_array_equal(zero, sixteen)


@pytest.mark.parametrize(("swizzle", "steps"), [(SW128, 4), (SW64, 2), (SW32, 1)])
def test_k_steps_inside_a_swizzled_row_add_to_the_start_address(swizzle, steps):
    """A row of the atom is read by several instructions, each with a start address 32 bytes further."""
    whole = byte_addresses(
        MatrixDescriptor(0x800 * 4, 0, 8 * swizzle.span_bytes, swizzle), 64, swizzle.span_bytes, 1, mn_major=False
    )
    for step in range(steps):
        d = MatrixDescriptor(0x800 * 4 + 32 * step, 0, 8 * swizzle.span_bytes, swizzle)
        np.testing.assert_array_equal(
            byte_addresses(d, 64, 32, 1, mn_major=False), whole[:, 32 * step : 32 * step + 32]
        )


@pytest.mark.parametrize("element_bytes", [1, 2])
def test_a_swizzled_tile_as_tma_writes_it(element_bytes):
    """128-byte rows one after another, each row's 16-byte chunks XORed with its number: both majors see that tile."""
    memory = np.full(64 * 128, -1)
    for r in range(64):
        for b in range(128):
            memory[128 * r + 16 * (b // 16 ^ r % 8) + b % 16] = 128 * r + b
    d = MatrixDescriptor(0, 64 * 128, 1024, SW128)
    k_major = byte_addresses(d, 64, 128, element_bytes, mn_major=False)
    np.testing.assert_array_equal(memory[k_major], np.arange(0, 64 * 128, element_bytes).reshape(64, -1))
    mn_major = byte_addresses(d, 128 // element_bytes, 64 * element_bytes, element_bytes, mn_major=True)
    np.testing.assert_array_equal(memory[mn_major], np.arange(0, 64 * 128, element_bytes).reshape(64, -1).T)
