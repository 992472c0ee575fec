"""Tiles of a projection and how they are loaded: what the two main loops of `gemm_quantize` share.

    D (tokens, N) = x (tokens, K) weight (N, K)^T, in tiles of 128 tokens by 256 columns, 64 of K at a time

CTAs stay on their SM and take every so manieth tile. Tiles of tokens never cross a batch or a packed sequence; rows of x
behind its end are loaded, multiplied and dropped.

TMA moves rows of 128 bytes wherever they are told to go, and so it permutes both operands on the way, for nothing:

    columns  Row n of a block of 32 rows of the B operand is row 8 (n % 8 // 2) + 2 (n // 8) + n % 2 of the weight. An
             accumulator gives a thread columns 8 j + 2 (lane % 4) + {0, 1}; these are now columns 8 (lane % 4) + 0..7
             of D: a quarter of a scale block, contiguous, and one store (`fragment`).
    tokens   wgmma has 64 rows, 16 a warp. Warp w takes tokens 32 w to 32 w + 15 from its first product and the next 16
             from its second, so that it holds whole blocks of 32 tokens. tcgen05.mma has 128 rows, 32 a warp.
"""

from typing import NamedTuple

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from mxfp8fa.kernels.producers.quantize_kernel import tile_tokens
from mxfp8fa.numerics.mx_tensor import BLOCK

TILE_M, TILE_N, TILE_K = 128, 256, 64
HALF_N = 128  # columns of a warpgroup
STAGES = 4
STAGE_BYTES = (TILE_M + TILE_N) * TILE_K * 2
THREADS = 384  # a warpgroup that feeds, two that write
GROUP_M = 16  # tiles of tokens that are taken with all their columns before the next ones: what L2 holds
BLOCK_ROWS = (2, 4, 4)  # rows of a block of 32 columns of D, in the order of the operand, ...
BLOCK_STRIDES = (1, 8, 2)  # ... and their distances in the weight


class Operands(NamedTuple):
    """Tensor maps of x and of the weight, and the stages that they fill."""

    tma_a: cute.CopyAtom
    mA: cute.Tensor
    tma_b: cute.CopyAtom
    mB: cute.Tensor


def smem_layout(rows: int, stages: int) -> cute.ComposedLayout:
    """(rows, 64, stages) BF16 in shared memory: rows of 128 bytes, swizzled."""
    return hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (rows, TILE_N, TILE_K), cutlass.BFloat16, stages)


def make_operands(
    pX: cute.Pointer, pWeight: cute.Pointer, sizes: tuple[cutlass.Int32, ...], stride: cutlass.Int64, box_rows: int
) -> Operands:
    """Tensor maps.

    Args:
        pX: first element of x.
        pWeight: of the weight, contiguous.
        sizes: rows of x, N, K.
        stride: from row to row of x, in elements.
        box_rows: rows of x that one copy takes.
    """
    rows, n, k = sizes
    k = cute.assume(k, divby=BLOCK)
    mX = cute.make_tensor(pX, cute.make_layout((rows, k), stride=(cute.assume(stride, divby=8), 1)))
    load = cpasync.CopyBulkTensorTileG2SOp()
    one = cute.select(smem_layout(box_rows, 1), mode=[0, 1])
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mX, one, (box_rows, TILE_K))
    shape = ((*BLOCK_ROWS, n // BLOCK), k)
    strides = ((*(s * k for s in BLOCK_STRIDES), BLOCK * k), 1)
    mW = cute.make_tensor(pWeight, cute.make_layout(shape, stride=strides))
    one = cute.select(smem_layout(TILE_N, 1), mode=[0, 1])
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mW, one, ((*BLOCK_ROWS, TILE_N // BLOCK), TILE_K))
    return Operands(tma_a, mA, tma_b, mB)


class Place(NamedTuple):
    """Where a tile lies."""

    batch: cutlass.Int32
    tile: cutlass.Int32  # of tokens, in the batch
    tile_n: cutlass.Int32  # of columns
    row: cutlass.Int32  # its first, of x
    tokens: cutlass.Int32  # how many exist


@cute.jit
def place(
    index: cutlass.Int32, pTiles: cute.Pointer | None, seqlen: cutlass.Int32, tiles: cutlass.Int32, sizes: tuple
) -> Place:
    """The tile of an index: `GROUP_M` tiles of tokens with all their columns, then the next ones."""
    all_tiles, tiles_n = sizes
    group = index // (GROUP_M * tiles_n)
    wide = cutlass.min(all_tiles - group * GROUP_M, GROUP_M)
    within = index - group * GROUP_M * tiles_n
    tile_m, tile_n = group * GROUP_M + within % wide, within // wide
    batch, tile = tile_m // tiles, tile_m % tiles
    first, tokens = tile_tokens(pTiles, tile, seqlen)
    return Place(batch, tile, tile_n, batch * seqlen + first, tokens)


@cute.jit
def load_tile(
    operands: Operands,
    sA: cute.Tensor,
    sB: cute.Tensor,
    place: Place,
    barriers: tuple[cute.Pointer, cute.Pointer],
    k_tiles: cutlass.Int32,
    count: cutlass.Int32,
    box_rows: cutlass.Constexpr[int],
) -> None:
    """The load warp: fill a stage for every 64 of K.

    Args:
        operands: tensor maps.
        sA: (128, 64, stages).
        sB: (256, 64, stages).
        place: of the tile.
        barriers: first of those of filled and of read stages.
        k_tiles: tiles of K.
        count: stages filled so far.
        box_rows: rows of x that one copy takes.
    """
    full, empty = barriers
    gA = cute.local_tile(cute.domain_offset((place.row, 0), operands.mA), (box_rows, TILE_K), (None, None))
    gB = cute.local_tile(operands.mB, ((*BLOCK_ROWS, TILE_N // BLOCK), TILE_K), ((0, 0, 0, place.tile_n), None))
    boxes = TILE_M // box_rows
    one = smem_layout(box_rows, 1)
    for k in cutlass.range(k_tiles, unroll=1):
        stage, turn = (count + k) % STAGES, (count + k) // STAGES
        cute.arch.mbarrier_wait(empty + stage, (turn + 1) % 2)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, STAGE_BYTES)
        for box in cutlass.range_constexpr(boxes):
            to = sA.iterator + (stage * TILE_M + box * box_rows) * TILE_K
            sBox = cute.make_tensor(to, one.outer)
            tile = box if boxes == 1 else box % 4 * 2 + box // 4  # tokens 32 w + 0..15 of all warps first
            tAsA, tAgA = cpasync.tma_partition(
                operands.tma_a,
                0,
                cute.make_layout(1),
                cute.group_modes(sBox, 0, 2),
                cute.group_modes(gA, 0, 2),
            )
            cute.copy(operands.tma_a, tAgA[None, tile, k], tAsA[None, 0], tma_bar_ptr=full + stage)
        tBsB, tBgB = cpasync.tma_partition(
            operands.tma_b, 0, cute.make_layout(1), cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2)
        )
        cute.copy(operands.tma_b, tBgB[None, k], tBsB[None, stage], tma_bar_ptr=full + stage)
