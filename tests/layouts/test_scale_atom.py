"""The 128x4 atom byte by byte, the packed shapes of every operand, and what happens to padding."""

from itertools import pairwise

import numpy as np
import pytest

from mxfp8fa.layouts import cu_tiles, pack_atoms, pack_scales, scale_offset, unpack_atoms, unpack_scales
from mxfp8fa.numerics import MXTensor

SHAPES = [(1, 1), (128, 4), (129, 5), (300, 11), (31, 4), (256, 3)]


def scales(shape, seed=0):
    """Scale codes without 0, so that padding is told apart from data."""
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


def mx(shape, axes, seed=0, cu_seqlens=None):
    """An MXTensor with random scales; codes do not matter here."""
    spans = list(shape)
    for axis in axes:
        lengths = np.diff(cu_seqlens) if axis == 0 and cu_seqlens is not None else [shape[axis]]
        spans[axis] = int(sum(-(-n // 32) for n in lengths))
    return MXTensor(np.zeros(shape, np.uint8), scales(spans, seed), "e4m3", axes, cu_seqlens)


# The atom ------------------------------------------------------------------------------------------------------------


def test_offsets_inside_the_first_atom():
    """Rows 32 apart share 16 bytes, 4 columns each (PTX ISA)."""
    offsets = {(0, 0): 0, (0, 3): 3, (32, 0): 4, (64, 0): 8, (96, 3): 15, (1, 0): 16, (31, 0): 496, (127, 3): 511}
    assert {(r, c): scale_offset(r, c, 4) for r, c in offsets} == offsets
    assert [scale_offset(r, c, 5) for r, c in ((0, 4), (128, 0), (128, 4))] == [512, 1024, 1536]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_offsets_are_distinct_and_dense(shape):
    rows, columns = -(-shape[0] // 128) * 128, -(-shape[1] // 4) * 4
    r, c = np.mgrid[:rows, :columns]
    assert sorted(scale_offset(r, c, shape[1]).ravel()) == list(range(rows * columns))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack_puts_every_scale_at_its_offset_and_zero_elsewhere(shape):
    matrix = scales(shape)
    expected = np.zeros(-(-shape[0] // 128) * -(-shape[1] // 4) * 512, np.uint8)
    for r in range(shape[0]):
        for c in range(shape[1]):
            expected[scale_offset(r, c, shape[1])] = matrix[r, c]
    packed = pack_atoms(matrix)
    assert packed.shape == (-(-shape[0] // 128), -(-shape[1] // 4), 512)
    np.testing.assert_array_equal(packed.ravel(), expected)


@pytest.mark.peers
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pack_equals_torchao(shape):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils")
    matrix = scales(shape)
    peer = utils.to_blocked(torch.from_numpy(matrix)).numpy()
    np.testing.assert_array_equal(pack_atoms(matrix).ravel(), peer.ravel())


@pytest.mark.parametrize("shape", [*SHAPES, (0, 4), (4, 0), (2, 3, 130, 5), (2, 0, 130, 5)], ids=str)
def test_unpack_inverts_pack_whatever_the_padding_holds(shape):
    matrix = scales(shape)
    packed = pack_atoms(matrix)
    packed[packed == 0] = 0xFF
    np.testing.assert_array_equal(unpack_atoms(packed, *shape[-2:]), matrix)


def test_matrices_of_a_batch_are_packed_apart():
    matrix = scales((2, 3, 130, 5))
    packed = pack_atoms(matrix)
    assert packed.shape == (2, 3, 2, 2, 512)
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(packed[index], pack_atoms(matrix[index]))


# Operands ------------------------------------------------------------------------------------------------------------

BATCH, TOKENS, HEADS, DIM = 2, 200, 3, 160  # neither a multiple of 128; 7 token blocks, 5 along the head dimension


def test_tokens_as_rows():
    x = mx((BATCH, TOKENS, HEADS, DIM), (3,))
    packed = pack_scales(x)
    assert packed.shape == (BATCH, HEADS, 2, 2, 512)
    for b, h in np.ndindex(BATCH, HEADS):
        np.testing.assert_array_equal(packed[b, h], pack_atoms(x.scale_e8m0[b, :, h]))


def test_head_dimension_as_rows():
    x = mx((BATCH, TOKENS, HEADS, DIM), (1,))
    packed = pack_scales(x, rows="head_dim")
    assert packed.shape == (BATCH, HEADS, 2, 2, 512)
    for b, h in np.ndindex(BATCH, HEADS):
        np.testing.assert_array_equal(packed[b, h], pack_atoms(np.ascontiguousarray(x.scale_e8m0[b, :, h].T)))


def test_squares_are_repeated_along_the_rows_of_either_orientation():
    x = mx((BATCH, TOKENS, HEADS, DIM), (1, 3))
    for b, h in np.ndindex(BATCH, HEADS):
        square = x.scale_e8m0[b, :, h]
        by_tokens, by_dim = pack_scales(x)[b, h], pack_scales(x, rows="head_dim")[b, h]
        np.testing.assert_array_equal(by_tokens, pack_atoms(square.repeat(32, axis=0)[:TOKENS]))
        np.testing.assert_array_equal(by_dim, pack_atoms(square.T.repeat(32, axis=0)[:DIM]))


@pytest.mark.parametrize(
    ("axes", "rows"), [((1,), "tokens"), ((0,), "head_dim"), ((0, 1), "tokens"), ((0, 1), "head_dim")]
)
def test_plain_matrices(axes, rows):
    x = mx((TOKENS, DIM), axes)
    four = MXTensor(
        x.codes[None, :, None], x.scale_e8m0[None, :, None], "e4m3", tuple({0: 1, 1: 3}[axis] for axis in axes)
    )
    np.testing.assert_array_equal(pack_scales(x, rows=rows), pack_scales(four, rows=rows)[0, 0])


CU = np.array([0, 5, 5, 133, 389, 421], np.int32)  # lengths 5, 0, 128, 256, 32: tiles 1, 0, 1, 2, 1


@pytest.mark.parametrize(
    ("axes", "rows"), [((2,), "tokens"), ((0,), "head_dim"), ((0, 2), "tokens"), ((0, 2), "head_dim")]
)
def test_every_packed_sequence_has_its_own_tiles(axes, rows):
    x = mx((421, HEADS, DIM), axes, cu_seqlens=CU)
    packed = pack_scales(x, rows=rows)
    tiles = cu_tiles(CU)
    assert tiles.tolist() == [0, 1, 1, 2, 4, 5]
    assert packed.shape == ((HEADS, 5, 2, 512) if rows == "tokens" else (HEADS, 2, 5, 512))
    blocks = np.concatenate([[0], np.cumsum(-(-np.diff(CU) // 32))])
    spans = blocks if 0 in axes else CU
    for i, (start, stop) in enumerate(pairwise(CU)):
        own = x.scale_e8m0[spans[i] : spans[i + 1]]
        codes = np.zeros((1, stop - start, HEADS, DIM), np.uint8)
        alone = MXTensor(codes, own[None], "e4m3", tuple(axis + 1 for axis in axes))
        expected = pack_scales(alone, rows=rows)[0]
        span = slice(tiles[i], tiles[i + 1])
        np.testing.assert_array_equal(packed[:, span] if rows == "tokens" else packed[:, :, span], expected)


CASES = [
    ((TOKENS, DIM), (1,), "tokens", None),
    ((TOKENS, DIM), (0,), "head_dim", None),
    ((TOKENS, DIM), (0, 1), "tokens", None),
    ((TOKENS, DIM), (0, 1), "head_dim", None),
    ((BATCH, TOKENS, HEADS, DIM), (3,), "tokens", None),
    ((BATCH, TOKENS, HEADS, DIM), (1,), "head_dim", None),
    ((BATCH, TOKENS, HEADS, DIM), (1, 3), "tokens", None),
    ((BATCH, TOKENS, HEADS, DIM), (1, 3), "head_dim", None),
    ((BATCH, 0, HEADS, DIM), (1, 3), "tokens", None),
    ((0, TOKENS, HEADS, DIM), (3,), "tokens", None),
    ((421, HEADS, DIM), (2,), "tokens", CU),
    ((421, HEADS, DIM), (0,), "head_dim", CU),
    ((421, HEADS, DIM), (0, 2), "tokens", CU),
    ((421, HEADS, DIM), (0, 2), "head_dim", CU),
    ((421, DIM), (0, 1), "tokens", CU),
    ((0, HEADS, DIM), (2,), "tokens", np.array([0, 0], np.int32)),
]


@pytest.mark.parametrize(("shape", "axes", "rows", "cu"), CASES)
def test_unpack_inverts_pack_and_ignores_poisoned_padding(shape, axes, rows, cu):
    x = mx(shape, axes, cu_seqlens=cu)
    packed = pack_scales(x, rows=rows)
    poisoned = np.where(packed == 0, np.uint8(0xFF), packed)
    back = unpack_scales(poisoned, shape=shape, axes=axes, rows=rows, cu_seqlens=cu)
    np.testing.assert_array_equal(back, x.scale_e8m0)
    assert back.flags.c_contiguous


def test_square_rows_that_disagree_are_refused():
    x = mx((TOKENS, DIM), (0, 1))
    packed = pack_scales(x)
    packed.ravel()[scale_offset(40, 2, 5)] ^= 1
    with pytest.raises(ValueError, match="differ along axis 0 within a square"):
        unpack_scales(packed, shape=(TOKENS, DIM), axes=(0, 1))


# Errors --------------------------------------------------------------------------------------------------------------

MATRIX = mx((128, 128), (1,))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pack_scales(MATRIX, rows="columns"), ["'columns'", "tokens, head_dim"]),
        (lambda: pack_scales(MATRIX, rows="head_dim"), ["(1,)", "axis 0", "(0,)", "squares"]),
        (lambda: pack_scales(np.zeros((32, 32), np.uint8)), ["ndarray", "MXTensor", "pack_atoms"]),
        (lambda: pack_scales(mx((64, 2, 64), (2,))), ["(64, 2, 64)", "(S, D), (B, S, H, D)"]),
        (lambda: pack_scales(mx((1, 64, 2, 64), (3,), cu_seqlens=[0, 1])), ["(1, 64, 2, 64)", "(T, H, D)"]),
        (lambda: pack_scales(mx((2, 64, 2, 64), (2, 3))), ["(2, 3)", "(3,)", "(1, 3)"]),
        (lambda: pack_atoms(np.zeros((4, 4), np.int32)), ["int32", "uint8"]),
        (lambda: pack_atoms(np.zeros(4, np.uint8)), ["(4,)", "rank 2"]),
        (lambda: pack_atoms([[1]]), ["list", "uint8"]),
        (lambda: unpack_atoms(np.zeros((1, 1, 512), np.uint8), 129, 4), ["(1, 1, 512)", "(..., 2, 1, 512)"]),
        (lambda: unpack_atoms(np.zeros((1, 1, 256), np.uint8), 128, 4), ["(1, 1, 256)", "512"]),
        (
            lambda: unpack_scales(np.zeros((3, 1, 1, 512), np.uint8), shape=(128, 128), axes=(1,)),
            ["batch axes (3,)", "()"],
        ),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(call, said):
    with pytest.raises(ValueError) as error:
        call()
    for part in said:
        assert part in str(error.value)
