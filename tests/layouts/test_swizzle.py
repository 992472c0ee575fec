"""Swizzles against the ISA's tables bit by bit, against the picture of chunks and rows, and on absolute addresses."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.layouts.swizzle import NONE, SW32, SW64, SW128, SW128_ATOM32, SW128_ATOM64
from tests.layouts.cute_layout import swizzled

ALL = (NONE, SW32, SW64, SW128, SW128_ATOM32, SW128_ATOM64)
NAMES = [s.name for s in ALL]


@pytest.mark.parametrize("swizzle", ALL, ids=NAMES)
def test_every_address_bit(swizzle):
    """The low 13 bits decide; all of them, and the bits above stay."""
    addresses = np.arange(1 << 13)
    expected = np.array([swizzled(int(a), swizzle.name) for a in addresses])
    np.testing.assert_array_equal(swizzle(addresses), expected)
    assert swizzle(0x3_0000 | 0x3FF) == 0x3_0000 | swizzled(0x3FF, swizzle.name)


@pytest.mark.parametrize(
    ("swizzle", "chunk_bytes", "rows"), [(SW128, 16, 8), (SW128_ATOM32, 32, 4), (SW128_ATOM64, 64, 2)]
)
def test_rows_of_128_bytes(swizzle, chunk_bytes, rows):
    """Row r of a tile that starts at a multiple of 1024 holds chunk c at place c XOR r."""
    for r in range(16):
        for c in range(128 // chunk_bytes):
            assert (
                swizzle(0x2000 + 128 * r + chunk_bytes * c + 5) == 0x2000 + 128 * r + chunk_bytes * (c ^ r % rows) + 5
            )


@pytest.mark.parametrize(("swizzle", "row_bytes", "rows_per_step"), [(SW64, 64, 2), (SW32, 32, 4)])
def test_short_rows(swizzle, row_bytes, rows_per_step):
    """With 64- and 32-byte rows the pattern changes every 128 bytes: every 2nd or 4th row."""
    chunks = row_bytes // 16
    for r in range(32):
        for c in range(chunks):
            place = c ^ (r // rows_per_step) % chunks
            assert swizzle(0x4000 + row_bytes * r + 16 * c) == 0x4000 + row_bytes * r + 16 * place


@pytest.mark.parametrize("swizzle", ALL, ids=NAMES)
def test_permutes_each_repeat_and_undoes_itself(swizzle):
    n = swizzle.repeat_bytes
    assert n == {NONE: 16, SW32: 256, SW64: 512, SW128: 1024, SW128_ATOM32: 512, SW128_ATOM64: 256}[swizzle]
    addresses = 7 * n + np.arange(n)
    there = swizzle(addresses)
    np.testing.assert_array_equal(np.sort(there), addresses)
    np.testing.assert_array_equal(swizzle(there), addresses)
    np.testing.assert_array_equal(swizzle(addresses + n), there + n)


@pytest.mark.parametrize("swizzle", ALL[1:], ids=NAMES[1:])
def test_the_absolute_address_counts(swizzle):
    """A tile that starts inside a repeat is not the shifted picture of one that starts at its beginning."""
    start = swizzle.repeat_bytes // 2
    offsets = np.arange(swizzle.repeat_bytes)
    assert (swizzle(start + offsets) != start + swizzle(offsets)).any()
