"""`MXOperand`: a block-scaled tensor in torch, with its scales packed as the tensor core reads them.

What producers return and kernels take. `MXTensor` is its NumPy counterpart, with plain scales; each converts to the
other. Codes keep the data's shape and strides; scales lie in 128x4 atoms (`mxfp8fa.layouts.pack_scales`), once for each
orientation that the blocks serve:

    blocks along      rows of the atoms    serves products that contract
    last axis         tokens               the last axis (Q and K in S, dO and V in dP)
    token axis        head_dim             tokens (V in O, dO in dV, Q in dK, K in dQ)
    both (squares)    tokens and head_dim  either
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from mxfp8fa.kernels.jagged import OFFSET_DTYPES, host_may_look, tile_bound
from mxfp8fa.layouts import ATOM_BYTES, ATOM_ROWS, TILE_TOKENS, cu_tiles, pack_scales, unpack_scales
from mxfp8fa.numerics import MXTensor
from mxfp8fa.numerics.mx_tensor import normalize_cu_seqlens

_TOKEN_AXIS = {2: 0, 3: 0, 4: 1}  # of (S, D), (T, H, D) and (B, S, H, D)
_TILE_AXIS = {"tokens": -3, "head_dim": -2}  # of tiles of tokens, in packed scales


@dataclass(frozen=True, eq=False)
class MXOperand:
    """A block-scaled tensor.

    Attributes:
        codes: uint8, the data's shape: (S, D), (B, S, H, D) or, with cu_seqlens, (T, H, D).
        scales: uint8, by what the rows of their atoms are ("tokens", "head_dim"): the shapes that `pack_scales` lists.
        axes: blocked axes, ascending and not negative, as in `MXTensor`.
        fmt: element format, "e4m3" or "e5m2".
        cu_seqlens: int32 or int64 cumulative lengths of the sequences packed along axis 0, or None. Scales have at least the
            tiles of tokens that these make, and at most as many as B sequences of T tokens can make: who makes an operand on
            a GPU need not know how many there are. Values on a GPU are not looked at, and nobody waits for it.

    Raises:
        ValueError: dtypes, shapes, axes or orientations that do not fit together; cu_seqlens of a CPU tensor that do not
            start at 0, fall, or do not end at T.
    """

    codes: torch.Tensor
    scales: Mapping[str, torch.Tensor]
    axes: tuple[int, ...]
    fmt: str = "e4m3"
    cu_seqlens: torch.Tensor | None = field(default=None)

    def __post_init__(self) -> None:
        if self.codes.dtype != torch.uint8 or self.codes.ndim not in _TOKEN_AXIS:
            raise ValueError(
                f"codes is {self.codes.dtype} {tuple(self.codes.shape)}; allowed: torch.uint8 of rank 2, 3 or 4"
            )
        expected = packed_shapes(self.shape, self.axes, self._token_tiles())
        if set(self.scales) != set(expected):
            raise ValueError(
                f"scales has rows {sorted(self.scales)}; blocks along axes {self.axes} need {sorted(expected)}"
            )
        for rows, packed in self.scales.items():
            if packed.dtype != torch.uint8 or tuple(packed.shape) != expected[rows]:
                raise ValueError(
                    f"scales[{rows!r}] is {packed.dtype} {tuple(packed.shape)}; codes of shape {self.shape} need "
                    f"torch.uint8 {expected[rows]}"
                )

    def _token_tiles(self) -> int | None:
        """Tiles of tokens in the scales of packed sequences: as many as they have, or the nearest number allowed."""
        offsets = self.cu_seqlens
        if offsets is None or len(self.shape) != 3:
            return None
        if offsets.dtype not in OFFSET_DTYPES or offsets.ndim != 1 or len(offsets) < 1:
            raise ValueError(f"cu_seqlens is {offsets.dtype} {tuple(offsets.shape)}; allowed: int32 or int64 (B + 1,)")
        least = -(-self.shape[0] // TILE_TOKENS)
        if host_may_look(offsets.device):
            lengths = normalize_cu_seqlens(offsets.numpy(), self.shape)
            assert lengths is not None
            least = int(cu_tiles(lengths)[-1])
        found = [x.shape[_TILE_AXIS[rows]] for rows, x in self.scales.items() if rows in _TILE_AXIS and x.ndim == 4]
        return min(max([least, *found]), tile_bound(self.shape[0], len(offsets) - 1))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data."""
        return tuple(self.codes.shape)

    def scales_with_rows(self, rows: str) -> torch.Tensor:
        """The packed scales in one orientation.

        Raises:
            ValueError: the blocks do not serve it.
        """
        if rows not in self.scales:
            raise ValueError(
                f"blocks along axes {self.axes} of shape {self.shape} have scales with rows {sorted(self.scales)}; "
                f"{rows!r} was asked for"
            )
        return self.scales[rows]

    @staticmethod
    def from_mx_tensor(x: MXTensor) -> MXOperand:
        """The same tensor in torch; codes share their memory with `x` and keep its strides."""
        lengths = None if x.cu_seqlens is None else torch.from_numpy(x.cu_seqlens.copy())
        rows = packed_shapes(x.shape, x.axes, None if x.cu_seqlens is None else int(cu_tiles(x.cu_seqlens)[-1]))
        scales = {r: torch.from_numpy(pack_scales(x, rows=r)) for r in rows}
        return MXOperand(torch.from_numpy(x.codes), scales, x.axes, x.fmt, lengths)

    def to_mx_tensor(self) -> MXTensor:
        """The same tensor in NumPy."""
        lengths = None if self.cu_seqlens is None else self.cu_seqlens.cpu().numpy()
        rows, packed = next(iter(self.scales.items()))
        if lengths is not None:
            packed = packed.narrow(_TILE_AXIS[rows], 0, int(cu_tiles(lengths)[-1]))
        scale = unpack_scales(packed.cpu().numpy(), shape=self.shape, axes=self.axes, rows=rows, cu_seqlens=lengths)
        return MXTensor(self.codes.cpu().numpy(), scale, self.fmt, self.axes, lengths)


def packed_shapes(
    shape: tuple[int, ...], axes: tuple[int, ...], token_tiles: int | None
) -> dict[str, tuple[int, ...]]:
    """Shapes of the packed scales, by orientation.

    Args:
        shape: of the data.
        axes: blocked axes.
        token_tiles: how many tiles of tokens packed sequences have in memory; None for data that is not packed.

    Raises:
        ValueError: a rank that `pack_scales` does not list or that does not fit `token_tiles`, or blocks along another axis
            than tokens and the last one.
    """
    if (len(shape) == 3) != (token_tiles is not None):
        raise ValueError(f"shape {shape}: rank 3 is packed sequences and needs cu_seqlens; ranks 2 and 4 have none")
    if len(shape) not in _TOKEN_AXIS:
        raise ValueError(f"shape {shape} has rank {len(shape)}; allowed: (S, D), (B, S, H, D), (T, H, D) with cu_seqlens")
    token, last = _TOKEN_AXIS[len(shape)], len(shape) - 1
    if not axes or not set(axes) <= {token, last}:
        raise ValueError(f"axes = {axes}; allowed for shape {shape}: {token}, {last} or both")
    batch = tuple(shape[axis] for axis in range(len(shape)) if axis not in (token, last))
    tokens = -(-shape[token] // TILE_TOKENS) if token_tiles is None else token_tiles
    head_dim = -(-shape[last] // ATOM_ROWS)
    found = {}
    if last in axes:
        found["tokens"] = (*batch, tokens, head_dim, ATOM_BYTES)
    if token in axes:
        found["head_dim"] = (*batch, head_dim, tokens, ATOM_BYTES)
    return found
