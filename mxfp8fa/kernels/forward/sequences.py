"""Where the tokens of one sequence lie: what the roles ask, and the one thing that dense and jagged calls differ in.

A dense call has (B, S, ...) and a sequence is an index. In a jagged call sequences lie end to end, (1, T, ...), and a copy
of the last tile of one would take the first rows of the next along; a NaN there reaches everything, since 0 * NaN is NaN,
and a store would write there. So every copy has to end where the sequence does. A tensor map has one end for all, but it
may have a mode for every end: its memory starts a whole T before the tensor, and it has one more mode, the end:

    (T, ..., T + 1) : (row, ..., row)      element (T - length + i, ..., start + length) is row i of the sequence

T - length + i reaches T, where the map ends, when i reaches the length. TMA fills rows behind that with zeros and does
not store them. Cost: nothing at run time, the map has as many modes as the dense one; no map is built or changed on the
device, no warp cleans up a tail in shared memory; a tile that straddles the end moves its bytes as in a dense tail.
"""

import cutlass
from cutlass import cute

from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.jagged import COLUMNS

END = 3  # the mode of a matrix that is the batch of a dense call, and the end of a sequence in a jagged one


def endings(mX: cute.Tensor, tokens: int) -> cute.Tensor:
    """A matrix of four modes, a batch of 1 the last of them, with a mode of ends in its place; `tokens` is the mode of T."""
    shape, stride = list(mX.shape), list(mX.stride)
    length, row = shape[tokens], stride[tokens]
    shape[END], stride[END] = length + 1, row
    before = (mX.iterator - length * row).align(mX.iterator.alignment)
    return cute.make_tensor(before, cute.make_layout(tuple(shape), stride=tuple(stride)))


class InBatch(Fixed):
    """A sequence of a dense call."""

    def __init__(self, batch: cutlass.Int32) -> None:
        super().__init__(batch=batch)

    def rows(self, mX: cute.Tensor, tokens: int) -> cute.Tensor:
        """Its part of a matrix as TMA sees it, which ends where the sequence does; `tokens` is the mode of its rows."""
        return mX[None, None, None, self.batch]

    def tile(self, mX: cute.Tensor, head: cutlass.Int32, tile: cutlass.Int32) -> cute.Tensor:
        """Tile number `tile` of (B, H, tiles, elements): atoms of scales, and whatever else is padded to tiles."""
        return mX[self.batch, head, tile, None]

    def row(self, i: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
        """Row i of the sequence in (B, S, ...)."""
        return self.batch, i


class Packed(Fixed):
    """A sequence of a jagged call.

    Args:
        start: its first row among all.
        length: of the sequence.
        first_tile: of the tiles that are its own.
    """

    def __init__(self, start: cutlass.Int32, length: cutlass.Int32, first_tile: cutlass.Int32) -> None:
        super().__init__(start=start, length=length, first_tile=first_tile)

    def rows(self, mX: cute.Tensor, tokens: int) -> cute.Tensor:
        """See `InBatch.rows`."""
        shift: list = [0, 0, 0]
        shift[tokens] = cute.size(mX, mode=[tokens]) - self.length
        return cute.domain_offset(tuple(shift), mX[None, None, None, self.start + self.length])

    def tile(self, mX: cute.Tensor, head: cutlass.Int32, tile: cutlass.Int32) -> cute.Tensor:
        """See `InBatch.tile`."""
        return mX[0, head, self.first_tile + tile, None]

    def row(self, i: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
        """See `InBatch.row`."""
        return cutlass.Int32(0), self.start + i


def work_row(mTable: cute.Tensor, number: cutlass.Int32) -> Fixed:
    """Row `number` of a work table (`mxfp8fa.kernels.jagged`) by name, and the places of its sequence in Q, K and O."""
    row = {name: mTable[number + 1, i] for i, name in enumerate(COLUMNS)}
    return Fixed(
        tile=row["tile"], seqlen_q=row["seqlen_q"], seqlen_k=row["seqlen_k"],
        q=Packed(row["q_start"], row["seqlen_q"], row["q_tile"]),
        k=Packed(row["k_start"], row["seqlen_k"], row["k_tile"]),
        o=Packed(row["o_start"], row["seqlen_q"], row["o_tile"]),
    )  # fmt: skip
