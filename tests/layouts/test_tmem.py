"""Tensor memory layouts against enumerations by hand, CuTe's printed layouts, and published single values."""

from __future__ import annotations

import numpy as np
import pytest

from mxfp8fa.layouts import tmem
from tests.layouts.cute_layout import offset

NUMBERS = [1, 2, 4, 8, 16, 32, 64, 128]


def test_split_address():
    assert tmem.split_address(0x0060_01FF) == (0x60, 0x1FF)
    assert tmem.split_address(0) == (0, 0)


def accumulator_by_hand(letter: str, row: int, column: int, n: int) -> tuple[int, int]:
    """(lane, column) as the ISA's figures of the layouts show it."""
    if letter in "AD":  # one lane for every row
        return row, column
    if letter == "F":  # 16 rows for each warp, in the lower half of its lanes
        return [*range(16), *range(32, 48), *range(64, 80), *range(96, 112)][row], column
    left = column < n // 2  # B: the left half of the columns in lanes 0-63, the right half in lanes 64-127
    return (row, column) if left else (row + 64, column - n // 2)


@pytest.mark.parametrize(("m", "group", "letter"), [(128, 1, "D"), (64, 1, "F"), (256, 2, "A"), (128, 2, "B")])
@pytest.mark.parametrize("n", [16, 32, 256])
def test_accumulator(m, group, letter, n):
    name, lanes, columns = tmem.accumulator_layout(m, n, group)
    assert name == letter and lanes.shape == columns.shape == (m // group, n)
    for row in range(m // group):
        for column in range(n):
            assert (lanes[row, column], columns[row, column]) == accumulator_by_hand(letter, row, column, n)
    np.testing.assert_array_equal(tmem.row_lanes(m, group), lanes[:, 0])


def test_two_accumulators_of_64_rows_share_columns():
    """At lanes 0 and 16 they fill every lane once."""
    _, lanes, _ = tmem.accumulator_layout(64, 8, 1)
    both = np.concatenate([lanes[:, 0], lanes[:, 0] + 16])
    np.testing.assert_array_equal(np.sort(both), np.arange(128))


@pytest.mark.parametrize("rows", [8, 32, 64, 77, 128, 256])
def test_scale_factors(rows):
    """Row r: lane r % 32 of every partition, column r / 32."""
    lanes, columns = tmem.scale_cells(rows)
    assert lanes.shape == columns.shape == (4, rows)
    for copy in range(4):
        for r in range(rows):
            assert (lanes[copy, r], columns[copy, r]) == (32 * copy + r % 32, r // 32)


def test_published_scale_factor_row():
    lanes, columns = tmem.scale_cells(128)
    assert sorted(lanes[:, 77]) == [13, 45, 77, 109] and set(columns[:, 77]) == {2}


@pytest.mark.parametrize("n", [32, 64, 256])
def test_split_scale_factors(n):
    """A pair with M = 128: the scales of the left half of N in lanes 0-63 twice, those of the right half in 64-127."""
    lanes, columns = tmem.scale_cells(n, split=True)
    assert lanes.shape == (2, n)
    for copy in range(2):
        for c in range(n):
            half, within = divmod(c, n // 2)
            assert (lanes[copy, c], columns[copy, c]) == (64 * half + 32 * copy + within % 32, within // 32)


def test_scale_factors_of_a_pair_with_128_rows():
    """SFA lies where the accumulator has the row: every partition sees its own rows and no others."""
    lanes, columns = tmem.scale_cells(64, own=True)
    _, rows_at, _ = tmem.accumulator_layout(128, 64, 2)
    for r in range(64):
        assert set(lanes[:, r] // 32) == set(rows_at[r] // 32)
        assert (lanes[:, r] % 32 == r % 32).all() and (columns[:, r] == r // 32).all()


# Bit layouts of one repeat, (thread, value bit) -> bit of a tile of rows x bits, as CUTLASS prints them (copy_traits_sm100).
FRAGMENTS = {
    "32x32b": (32, ((32,), 32), ((32,), 1), 32),
    "16x64b": (16, ((2, 2, 8), 32), ((8 * 64, 32, 64), 1), 64),
    "16x128b": (16, ((4, 8), (32, 2)), ((32, 128), (1, 8 * 128)), 128),
    "16x256b": (16, ((4, 8), (64, 2)), ((64, 256), (1, 8 * 256)), 256),
}


@pytest.mark.parametrize("shape", FRAGMENTS)
@pytest.mark.parametrize("number", NUMBERS)
def test_fragments_are_cutes(shape, number):
    """xN repeats the tile along the columns; registers of a repeat come first."""
    _, (thread_shape, value_shape), (thread_stride, value_stride), row_bits = FRAGMENTS[shape]
    per_repeat = {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    if per_repeat * number > 128:
        return
    lanes, columns = tmem.fragment_cells(shape, number)
    assert lanes.shape == (per_repeat * number, 32) and tmem.fragment_registers(shape, number) == per_repeat * number
    for j in range(per_repeat * number):
        for t in range(32):
            bit = offset(thread_shape, thread_stride, t) + offset(value_shape, value_stride, 32 * (j % per_repeat))
            expected = bit // row_bits, bit % row_bits // 32 + j // per_repeat * (row_bits // 32)
            assert (lanes[j, t], columns[j, t]) == expected


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("split", [0, 1, 64, 200])
@pytest.mark.parametrize("packed", [False, True])
def test_split_fragment(number, split, packed):
    """16x32bx2: threads 0-15 read lanes 0-15 from the address on, threads 16-31 the same lanes `split` columns further."""
    lanes, columns = tmem.fragment_cells("16x32bx2", number, packed=packed, split_columns=split)
    for j in range(number):
        for t in range(32):
            assert (lanes[j, t], columns[j, t]) == (t % 16, j * (1 + packed) + (split if t >= 16 else 0))


@pytest.mark.parametrize("shape", FRAGMENTS)
@pytest.mark.parametrize("packed", [False, True])
def test_fragments_cover_every_cell_once(shape, packed):
    rows, _, _, row_bits = FRAGMENTS[shape]
    lanes, columns = tmem.fragment_cells(shape, 4, packed=packed)
    cells = sorted(zip(lanes.reshape(-1).tolist(), columns.reshape(-1).tolist(), strict=True))
    step = 2 if packed else 1
    assert cells == [(r, step * c) for r in range(rows) for c in range(4 * row_bits // 32)]


def test_published_fragment_places():
    lanes, columns = tmem.fragment_cells("16x256b", 2)
    assert (lanes[6, 13], columns[6, 13]) == (11, 10)
    lanes, columns = tmem.fragment_cells("16x64b", 1)
    assert (lanes[0, 7], columns[0, 7]) == (9, 1)


def test_unknown_fragment():
    with pytest.raises(ValueError, match=r"shape '8x8b'; allowed: 32x32b, 16x64b, 16x128b, 16x256b, 16x32bx2"):
        tmem.fragment_cells("8x8b", 1)


@pytest.mark.parametrize(
    ("shape", "multicast", "lanes_of_row"),
    [
        ("128x256b", "", lambda i: [i]),
        ("128x128b", "", lambda i: [i]),
        ("4x256b", "", lambda i: [32 * i]),
        ("64x128b", "warpx2::02_13", lambda i: [i, 64 + i]),  # warps 0 and 2 get rows 0-31, warps 1 and 3 rows 32-63
        ("64x128b", "warpx2::01_23", lambda i: [i, 32 + i] if i < 32 else [32 + i, 64 + i]),
        ("32x128b", "warpx4", lambda i: [i, 32 + i, 64 + i, 96 + i]),
    ],
)
def test_copy_lanes(shape, multicast, lanes_of_row):
    found = tmem.copy_lanes(shape, multicast)
    rows = int(shape.partition("x")[0])
    assert found.shape[1] == rows == tmem.COPY_SHAPES[shape][0]
    assert tmem.COPY_SHAPES[shape][1] == int(shape.partition("x")[2][:-1]) // 8
    for i in range(rows):
        assert sorted(found[:, i]) == lanes_of_row(i)
