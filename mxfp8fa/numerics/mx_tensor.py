"""`MXTensor`, a block-scaled tensor, and how its blocks are laid out over the data.

    value = scale * element        scale = 2^(scale_e8m0 - 127), element = one E4M3 or E5M2 code

Blocks are 32 elements along one axis, or squares of 32 x 32 over two; OCP MX v1.0 has the former, and a square is a
stack of 32 of them that happen to have the same scale. Only the block at the end of an axis or of a sequence may be
shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mxfp8fa.numerics.formats import E8M0, Format, as_array, decode, get_format

BLOCK = 32  # OCP MX v1.0, section 5.2: k = 32 for every MX format
ELEMENT_FORMATS = ("e4m3", "e5m2")


@dataclass(frozen=True, eq=False)
class MXTensor:
    """A block-scaled tensor: element codes and one scale code per block.

    Attributes:
        codes: uint8, the data's shape.
        scale_e8m0: uint8, the data's shape with every blocked axis divided by 32, rounded up; with `cu_seqlens` a
            blocked axis 0 has sum(ceil(len / 32)) entries, because blocks restart at every sequence.
        fmt: element format, "e4m3" or "e5m2".
        axes: blocked axes, ascending and not negative; one (1x32 blocks along it) or two (squares over both).
        cu_seqlens: int32 cumulative lengths of the sequences packed along axis 0, or None.

    Raises:
        ValueError: dtypes, shapes or axes that do not fit together.
    """

    codes: NDArray[np.uint8]
    scale_e8m0: NDArray[np.uint8]
    fmt: str = "e4m3"
    axes: tuple[int, ...] = (-1,)
    cu_seqlens: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        for name in ("codes", "scale_e8m0"):
            array = getattr(self, name)
            plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
            if not plain or array.dtype != np.uint8:
                given = array.dtype if plain else type(array).__name__
                raise ValueError(f"{name} is {given}; allowed: a uint8 array")
        object.__setattr__(self, "fmt", element_format(self.fmt).name)
        object.__setattr__(self, "axes", normalize_axes(self.axes, self.codes.ndim))
        object.__setattr__(self, "cu_seqlens", normalize_cu_seqlens(self.cu_seqlens, self.codes.shape))
        expected = scale_shape(self.codes.shape, self.axes, self.cu_seqlens)
        if self.scale_e8m0.shape != expected:
            raise ValueError(
                f"scale_e8m0 has shape {self.scale_e8m0.shape}; codes of shape {self.codes.shape} in blocks along axes "
                f"{self.axes} need {expected}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the data."""
        return self.codes.shape

    @cached_property
    def cu_blocks(self) -> NDArray[np.int64]:
        """First row of `scale_e8m0` of every sequence, and the number of rows, when axis 0 is blocked: (sequences + 1,)."""
        if self.cu_seqlens is None or 0 not in self.axes:
            raise ValueError(f"cu_seqlens = {self.cu_seqlens}, axes = {self.axes}: only packed sequences have cu_blocks")
        return np.concatenate([[0], np.cumsum(-(-np.diff(self.cu_seqlens) // BLOCK))])

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray:
        """The values, scale times element.

        float64 is exact for every code. float32 is exact too except at and above 2^128, which becomes infinity: only
        blocks whose largest input exceeded about 1.94 * 2^127 can round up to that, and no scale rule avoids it.

        Raises:
            ValueError: dtype is neither float32 nor float64.
        """
        try:
            dtype = np.dtype(dtype)
        except TypeError:  # no dtype at all
            raise ValueError(f"dtype = {dtype!r}; allowed: float32, float64") from None
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype = {dtype}; allowed: float32, float64")
        values = decode(self.codes, self.fmt).astype(dtype, copy=False)
        scale = decode(self.scale_e8m0, E8M0).astype(dtype, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in regions(self.codes.shape, self.axes, self.cu_seqlens):
                view = tile.split(values[tile.data])
                np.multiply(view, tile.split_scale(scale[tile.scale]), out=view)
        return values

    def scale_of_rows(self, axis: int) -> NDArray[np.uint8]:
        """The scale codes with those along the blocked `axis` repeated, so that every row along it has its own.

        Square blocks as the tensor core wants them: one code per row and 32 elements of the other axis.

        Raises:
            ValueError: `axis` is not blocked.
        """
        given, rank = axis, self.codes.ndim
        axis = axis + rank if isinstance(axis, Integral) and axis < 0 else axis
        if axis not in self.axes:
            raise ValueError(f"axis = {given} is not blocked; allowed: {self.axes}")
        bounds = [0, self.shape[axis]] if axis or self.cu_seqlens is None else self.cu_seqlens.tolist()
        repeats = [min(BLOCK, stop - row) for start, stop in pairwise(bounds) for row in range(start, stop, BLOCK)]
        return np.repeat(self.scale_e8m0, repeats, axis=axis)

    def transpose(self, *order: int | Sequence[int]) -> MXTensor:
        """The tensor with its axes in the given order (reversed by default): the same codes and scales, moved.

        As for `ndarray.transpose`, the order is some integers or one sequence of them.

        Raises:
            ValueError: `order` is not a permutation of the axes, or moves the packed axis 0 of a jagged tensor.
        """
        moved = _permutation(order, self.codes.ndim)
        if self.cu_seqlens is not None and moved[0] != 0:
            raise ValueError(f"order = {moved} moves axis 0, along which cu_seqlens packs sequences; it has to stay")
        axes = tuple(moved.index(axis) for axis in self.axes)
        return MXTensor(
            self.codes.transpose(moved), self.scale_e8m0.transpose(moved), self.fmt, axes, self.cu_seqlens
        )

    @property
    def T(self) -> MXTensor:
        """The tensor with all axes reversed, as `ndarray.T`; square blocks stay square blocks."""
        return self.transpose()


def _permutation(order: Sequence[Any], rank: int) -> tuple[int, ...]:
    """An order of axes, given as integers or as one sequence of them, from 0 on; reversed if empty.

    Raises:
        ValueError: not a permutation of the axes.
    """
    given = tuple(order[0]) if len(order) == 1 and isinstance(order[0], Sequence) else tuple(order)
    integers = all(isinstance(axis, int | np.integer) and -rank <= axis < rank for axis in given)
    positive = tuple(int(axis) % rank for axis in given) if integers else ()
    if given and sorted(positive) != list(range(rank)):
        raise ValueError(f"order = {given} is not a permutation of the axes 0 to {rank - 1}")
    return positive or tuple(range(rank))[::-1]


def element_format(fmt: str | Format) -> Format:
    name = fmt.name if isinstance(fmt, Format) else fmt
    if not isinstance(name, str) or name.lower() not in ELEMENT_FORMATS:
        raise ValueError(f"fmt = {name!r} is not an MXFP8 element format; allowed: {', '.join(ELEMENT_FORMATS)}")
    return get_format(name)


def normalize_axes(axes: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Blocked axes as ascending, non-negative integers.

    Raises:
        ValueError: not one or two axes, out of range, or the same one twice.
    """
    given = axes
    axes = axes.tolist() if isinstance(axes, np.ndarray) else axes
    axes = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    if len(axes) not in (1, 2):
        raise ValueError(f"axes = {given!r} names {len(axes)} axes; allowed: one (1x32 blocks) or two (32x32 squares)")
    for axis in axes:
        if not isinstance(axis, int | np.integer) or not -rank <= axis < rank:
            raise ValueError(f"axes = {given!r}: {axis!r} is no axis of an array of rank {rank}")
    positive = tuple(sorted(int(axis) % rank for axis in axes))
    if len(set(positive)) != len(positive):
        raise ValueError(f"axes = {given!r} names axis {positive[0]} twice; two axes must differ")
    return positive


def normalize_cu_seqlens(cu_seqlens: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.int32] | None:
    """Cumulative sequence lengths as a read-only int32 array, or None.

    Raises:
        ValueError: not a 1-D integer array that starts at 0, never decreases and ends at `shape[0]`.
    """
    if cu_seqlens is None:
        return None
    array = as_array(cu_seqlens, "cu_seqlens")
    if array.ndim != 1 or array.size < 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"cu_seqlens has shape {array.shape} and dtype {array.dtype}; allowed: a non-empty 1-D integer array"
        )
    if not shape:
        raise ValueError("cu_seqlens needs data with an axis 0; the data is a scalar")
    if array[0] != 0 or array[-1] != shape[0] or np.any(array[1:] < array[:-1]):
        raise ValueError(f"cu_seqlens = {array.tolist()} must start at 0, never decrease and end at {shape[0]}")
    array = array.astype(np.int32)
    array.flags.writeable = False
    return array


def scale_shape(
    shape: tuple[int, ...], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None = None
) -> tuple[int, ...]:
    """Shape of `scale_e8m0` for data of `shape` blocked along `axes` (normalized)."""
    blocks = list(shape)
    for axis in axes:
        lengths = [shape[axis]] if cu_seqlens is None or axis else np.diff(cu_seqlens).tolist()
        blocks[axis] = sum(-(-length // BLOCK) for length in lengths)
    return tuple(blocks)


@dataclass(frozen=True)
class Region:
    """A rectangle of data in which every block has the same extent, and the rectangle of scales that belongs to it."""

    data: tuple[slice, ...]
    scale: tuple[slice, ...]
    axes: tuple[int, ...]
    extent: tuple[int, ...]  # of a block, along each of `axes`

    def split(self, array: NDArray) -> NDArray:
        """View of a data-shaped array in which every blocked axis is two: block number, element in the block."""
        shape: list[int] = []
        for axis, length in enumerate(array.shape):
            extent = dict(zip(self.axes, self.extent, strict=True)).get(axis)
            shape += [length] if extent is None else [length // extent, extent]
        return array.reshape(shape)

    def split_scale(self, array: NDArray) -> NDArray:
        """View of a scale-shaped array that broadcasts against `split` of the data."""
        return np.expand_dims(array, tuple(axis + i + 1 for i, axis in enumerate(self.axes)))

    def inner_axes(self) -> tuple[int, ...]:
        """Axes of `split` that run inside a block."""
        return tuple(axis + i + 1 for i, axis in enumerate(self.axes))


def regions(
    shape: tuple[int, ...], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None
) -> Iterator[Region]:
    """The data cut into regions of equal blocks: whole blocks, and what is left at the end of an axis or sequence."""
    segments: list[list[tuple[slice, slice, int]]] = []
    for axis, length in enumerate(shape):
        if axis not in axes:
            segments.append([(slice(0, length), slice(0, length), 0)])
            continue
        bounds = [0, length] if cu_seqlens is None or axis else cu_seqlens.tolist()
        segments.append(list(_axis_segments(bounds)))
    for parts in product(*segments):
        extent = tuple(parts[axis][2] for axis in axes)
        yield Region(tuple(p[0] for p in parts), tuple(p[1] for p in parts), axes, extent)


def _axis_segments(bounds: list[int]) -> Iterator[tuple[slice, slice, int]]:
    """Data range, scale range and block extent of the whole blocks and of the last short block of each sequence."""
    block = 0
    for start, stop in pairwise(bounds):
        whole, rest = divmod(stop - start, BLOCK)
        if whole:
            yield slice(start, start + whole * BLOCK), slice(block, block + whole), BLOCK
        if rest:
            yield slice(stop - rest, stop), slice(block + whole, block + whole + 1), rest
        block += whole + (rest > 0)
