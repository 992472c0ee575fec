"""Offsets of packed sequences against a loop over them."""

from itertools import pairwise

import numpy as np
import pytest

from mxfp8fa.layouts import block_starts, cu_blocks, cu_tiles, padded_index

CU_SEQLENS = [
    [0],
    [0, 0],
    [0, 128],
    [0, 1, 129, 129, 257, 512],
    [0, 0, 31, 63, 96, 96, 300, 300],
]
every_batch = pytest.mark.parametrize("cu", CU_SEQLENS, ids=str)


def sequences(cu):
    return list(pairwise(cu))


@every_batch
@pytest.mark.parametrize("tile", [1, 32, 128])
def test_cu_tiles(cu, tile):
    expected = [0]
    for start, stop in sequences(cu):
        expected.append(expected[-1] + len(range(start, stop, tile)))
    got = cu_tiles(cu, tile)
    assert got.dtype == np.int32
    assert got.tolist() == expected


@every_batch
def test_defaults_are_128_and_32_tokens(cu):
    np.testing.assert_array_equal(cu_tiles(cu), cu_tiles(cu, 128))
    np.testing.assert_array_equal(cu_blocks(cu), cu_tiles(cu, 32))


@every_batch
def test_padded_index(cu):
    tiles = cu_tiles(cu)
    expected = [128 * tiles[i] + t for i, (start, stop) in enumerate(sequences(cu)) for t in range(stop - start)]
    assert padded_index(cu, 128).tolist() == expected


@every_batch
def test_block_starts(cu):
    expected = [token for start, stop in sequences(cu) for token in range(start, stop, 32)]
    assert block_starts(cu).tolist() == expected


def test_offsets_beyond_int32_tokens_are_not_wrapped():
    """Arithmetic only: 40 sequences of 10^8 tokens, 4 * 10^9 in all, still few tiles."""
    cu = np.arange(41, dtype=np.int64) * 10**8
    assert cu_tiles(cu)[-1] == 40 * 781250


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cu_tiles([1, 2]), ["[1, 2]", "start at 0"]),
        (lambda: cu_tiles([0, 5, 3]), ["[0, 5, 3]", "never decrease"]),
        (lambda: cu_tiles([]), ["non-empty"]),
        (lambda: cu_tiles([[0, 1]]), ["(1, 2)"]),
        (lambda: cu_tiles([0.0, 1.0]), ["float64", "integer"]),
        (lambda: cu_tiles([0, 5], 0), ["tile_tokens = 0", "from 1"]),
        (lambda: cu_tiles([0, 5], 1.5), ["tile_tokens = 1.5", "integers"]),
        (lambda: cu_tiles([0, 2**40]), ["8589934592 tiles", "2^31 - 1"]),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, said):
    with pytest.raises(ValueError) as error:
        call()
    for part in said:
        assert part in str(error.value)
