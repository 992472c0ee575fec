"""MX block quantization: 32 elements (or a 32x32 square of them) share one power-of-two scale.

    value = scale * element        scale = 2^(scale_e8m0 - 127), element = one E4M3 or E5M2 code

The scale comes from the largest magnitude of the block, `amax`, by integer arithmetic on its float32 bits: no
logarithm, no division, so nothing depends on a math library. With E the exponent field of amax and m its mantissa bits:

    rule     scale_e8m0 (E4M3; for E5M2 15 replaces 8)       where it comes from
    floor    E - 8                                           OCP MX v1.0, section 6.3; may clip the largest elements
    ceil     E - 8 + (m > 0)                                 never clips, wastes up to one bit
    even     (E, m rounded to the element's mantissa) - 8    floor after rounding amax like an element
    rceil    E - 8 + (m > 0x600000)                          smallest scale at which amax fits (448 is 1.75 * 2^8)

Contract, for every rule:
    * a block of zeros has scale code 0, and zeros keep their signs;
    * a NaN or an infinity anywhere in a block gives scale code 0xFF and makes every code of the block 0x7F;
    * otherwise the scale code is clamped to 0..254, and elements that still do not fit saturate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from mxfp8fa.numerics.formats import (
    CHUNK,
    E8M0,
    FLOAT32_ABS_MASK,
    FLOAT32_INF_BITS,
    FLOAT32_MANTISSA_BITS,
    Format,
    RoundWork,
    decode,
    get_format,
    round_magnitudes,
    to_float32,
)

BLOCK = 32  # OCP MX v1.0, section 5.2: k = 32 for every MX format
SCALE_NAN = 0xFF
CODE_NAN = 0x7F
ELEMENT_FORMATS = ("e4m3", "e5m2")
SCALE_RULES = ("floor", "ceil", "even", "rceil")
TAILS = ("error", "partial")


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
            if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
                given = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise ValueError(f"{name} is {given}; allowed: a uint8 array")
        object.__setattr__(self, "fmt", _element_format(self.fmt).name)
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

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray:
        """The values, scale times element.

        float64 is exact for every code. float32 is exact too except at and above 2^128, which becomes infinity: only
        blocks whose largest input exceeded about 1.94 * 2^127 can round up to that, and no scale rule avoids it.

        Raises:
            ValueError: dtype is neither float32 nor float64.
        """
        dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype = {dtype}; allowed: float32, float64")
        values = decode(self.codes, self.fmt).astype(dtype, copy=False)
        scale = decode(self.scale_e8m0, E8M0).astype(dtype, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in _grid(self.codes.shape, self.axes, self.cu_seqlens):
                view = tile.split(values[tile.data])
                np.multiply(view, tile.split_scale(scale[tile.scale]), out=view)
        return values

    def scale_of_rows(self, axis: int) -> NDArray[np.uint8]:
        """The scale codes with those along the blocked `axis` repeated, so that every row along it has its own.

        Square blocks as the tensor core wants them: one code per row and 32 elements of the other axis.

        Raises:
            ValueError: `axis` is not blocked.
        """
        axis = axis % self.codes.ndim
        if axis not in self.axes:
            raise ValueError(f"axis = {axis} is not blocked; allowed: {self.axes}")
        bounds = [0, self.shape[axis]] if axis or self.cu_seqlens is None else self.cu_seqlens.tolist()
        repeats = [min(BLOCK, stop - row) for start, stop in pairwise(bounds) for row in range(start, stop, BLOCK)]
        return np.repeat(self.scale_e8m0, repeats, axis=axis)

    def transpose(self, *order: int) -> MXTensor:
        """The tensor with its axes in the given order (reversed by default): the same codes and scales, moved.

        Raises:
            ValueError: `order` is not a permutation of the axes, or moves the packed axis 0 of a jagged tensor.
        """
        rank = self.codes.ndim
        order = tuple(axis % rank if -rank <= axis < rank else axis for axis in order) or tuple(range(rank))[::-1]
        if sorted(order) != list(range(rank)):
            raise ValueError(f"order = {order} is not a permutation of the axes 0 to {rank - 1}")
        if self.cu_seqlens is not None and order[0] != 0:
            raise ValueError(f"order = {order} moves axis 0, along which cu_seqlens packs sequences; it has to stay")
        axes = tuple(order.index(axis) for axis in self.axes)
        return MXTensor(
            self.codes.transpose(order), self.scale_e8m0.transpose(order), self.fmt, axes, self.cu_seqlens
        )

    @property
    def T(self) -> MXTensor:
        """The tensor with all axes reversed, as `ndarray.T`; square blocks stay square blocks."""
        return self.transpose()


def _element_format(fmt: str | Format) -> Format:
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
    axes = (axes,) if isinstance(axes, int | np.integer) else tuple(axes)
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
    array = np.asarray(cu_seqlens)
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
class _Region:
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


def _grid(
    shape: tuple[int, ...], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None
) -> Iterator[_Region]:
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
        yield _Region(tuple(p[0] for p in parts), tuple(p[1] for p in parts), axes, extent)


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


def scale_codes(amax: ArrayLike, fmt: str | Format = "e4m3", rule: str = "rceil") -> NDArray[np.uint8]:
    """Scale codes of blocks whose largest magnitudes are `amax` (float32, float16 or bfloat16, any shape).

    Raises:
        ValueError: unknown format, rule or dtype, or a negative `amax`.
    """
    values = to_float32(amax)
    if np.any(values < 0):
        raise ValueError(f"amax = {values.min()} is negative; allowed: largest magnitudes")
    bits = np.atleast_1d(values).view(np.int32) & FLOAT32_ABS_MASK
    return _scale_codes_of_bits(bits, _element_format(fmt), rule).reshape(values.shape)


def _scale_codes_of_bits(amax_bits: NDArray[np.int32], fmt: Format, rule: str) -> NDArray[np.uint8]:
    """Scale codes from the float32 bit patterns of amax.

    Every rule adds its own amount to the bit pattern so that a carry out of the mantissa bumps the exponent field:
    nothing (floor), just less than one (ceil), half a unit of the element's last place (even), a quarter (rceil).
    """
    _check_rule(rule)
    one = 1 << FLOAT32_MANTISSA_BITS
    carry = {"floor": 0, "ceil": one - 1, "even": one >> (fmt.mantissa_bits + 1), "rceil": one // 4 - 1}[rule]
    # NaN and infinities overflow here, harmlessly; they are told apart afterwards. Nothing else exceeds code 247: the
    # clamp at 254 is the format's, float32 never needs it.
    codes = np.add(amax_bits, np.int32(carry))
    np.right_shift(codes, np.int32(FLOAT32_MANTISSA_BITS), out=codes)
    np.subtract(codes, np.int32(fmt.max_exponent), out=codes)
    np.maximum(codes, np.int32(0), out=codes)
    np.copyto(codes, np.int32(SCALE_NAN), where=amax_bits >= FLOAT32_INF_BITS)
    return codes.astype(np.uint8)


def _check_rule(rule: str) -> None:
    if rule not in SCALE_RULES:
        raise ValueError(f"rule = {rule!r} is not a scale rule; allowed: {', '.join(SCALE_RULES)}")


def quantize(
    x: ArrayLike,
    *,
    fmt: str | Format = "e4m3",
    axes: int | Sequence[int] = (-1,),
    rule: str = "rceil",
    tail: str = "error",
    cu_seqlens: ArrayLike | None = None,
) -> MXTensor:
    """`x` in MXFP8: element codes and one E8M0 scale code per block of 32, or per square of 32x32.

    The module's docstring states the scale rules and what becomes of zeros, NaN and infinities. Elements are
    x / scale, exactly scaled and then rounded once (nearest even, saturating).

    Args:
        x: float32, float16 or bfloat16 array of any rank from 1, any strides.
        fmt: "e4m3" or "e5m2".
        axes: one axis for 1x32 blocks along it, two for squares over both: (1, 3) for (B, S, H, D).
        rule: "floor", "ceil", "even" or "rceil".
        tail: "error" refuses a blocked length that is not a multiple of 32; "partial" lets the last block be short.
        cu_seqlens: cumulative lengths, (number of sequences + 1,) integers from 0 to x.shape[0], of the sequences
            packed along axis 0. If axis 0 is blocked, blocks restart at every sequence, and `tail` judges each length.

    Returns:
        The `MXTensor`; its arrays are C-contiguous.

    Raises:
        ValueError: a dtype, format, rule, axis, length or `cu_seqlens` that is not allowed; says which are.
    """
    array = np.asarray(x)
    element = _element_format(fmt)
    _check_rule(rule)
    if tail not in TAILS:
        raise ValueError(f"tail = {tail!r}; allowed: {', '.join(TAILS)}")
    to_float32(array[:0] if array.ndim else array)  # refuses other dtypes
    positive = normalize_axes(axes, array.ndim)
    lengths = normalize_cu_seqlens(cu_seqlens, array.shape)
    if tail == "error":
        _check_whole_blocks(array.shape, positive, lengths)
    codes = np.empty(array.shape, np.uint8)
    scale = np.empty(scale_shape(array.shape, positive, lengths), np.uint8)
    work = _Work(min(CHUNK, array.size), element)
    with np.errstate(invalid="ignore", under="ignore"):  # NaN and infinities are legal input
        for region in _grid(array.shape, positive, lengths):
            views = array[region.data], codes[region.data], scale[region.scale]
            _quantize_region(*views, region, element, rule, work)
    return MXTensor(codes, scale, element.name, positive, lengths)


def _check_whole_blocks(shape: tuple[int, ...], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None) -> None:
    for axis in axes:
        if axis == 0 and cu_seqlens is not None:
            lengths = np.diff(cu_seqlens)
            bad = np.flatnonzero(lengths % BLOCK)
            where, length = (f"axis 0, sequence {bad[0]}", lengths[bad[0]]) if bad.size else ("", 0)
        else:
            where, length = f"axis {axis}", shape[axis]
        if length % BLOCK:
            raise ValueError(
                f"{where} has length {length}, not a multiple of the block length {BLOCK}; "
                f'tail="partial" allows a short last block'
            )


def _tiles(shape: tuple[int, ...], whole: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array into rectangles of about `limit` elements, in memory order; axes `whole` stay uncut."""
    step = [length if axis in whole else 1 for axis, length in enumerate(shape)]
    size = int(np.prod(step))
    for axis in reversed(range(len(shape))):
        if axis not in whole:
            step[axis] = max(1, min(shape[axis], limit // max(1, size)))
            size *= step[axis]
    ranges = (range(0, length, max(1, s)) for length, s in zip(shape, step, strict=True))
    for start in product(*ranges):
        yield tuple(slice(a, a + s) for a, s in zip(start, step, strict=True))


class _Work:
    """Scratch and constants for rectangles of up to `size` elements."""

    def __init__(self, size: int, fmt: Format) -> None:
        self.values = np.empty(size, np.float32)
        self.magnitude = np.empty(size, np.int32)
        self.negative = np.empty(size, np.bool_)
        self.codes = np.empty(size, np.uint8)
        self.max_code = np.full(size, fmt.max_code, np.uint8)
        self.block_starts = np.arange(0, size, BLOCK)
        self.round = RoundWork(size, fmt)


def _quantize_region(
    x: NDArray,
    codes: NDArray[np.uint8],
    scale: NDArray[np.uint8],
    region: _Region,
    fmt: Format,
    rule: str,
    work: _Work,
) -> None:
    """Quantize one region of equal blocks, given as views of the data and of both results."""
    x, codes, scale = region.split(x), region.split(codes), region.split_scale(scale)
    inner = region.inner_axes()
    for tile in _tiles(x.shape, inner, CHUNK):
        scale_tile = tuple(slice(None) if axis in inner else s for axis, s in enumerate(tile))
        _quantize_tile(x[tile], codes[tile], scale[scale_tile], inner, fmt, rule, work)


def _quantize_tile(
    x: NDArray,
    codes: NDArray[np.uint8],
    scale: NDArray[np.uint8],
    inner: tuple[int, ...],
    fmt: Format,
    rule: str,
    work: _Work,
) -> None:
    """Quantize whole blocks: `inner` are the axes that run inside a block; `scale` keeps them with length 1."""
    size, shape = x.size, x.shape
    bits = _float32_bits(x, work)
    magnitude = work.magnitude[:size]
    np.bitwise_and(bits, FLOAT32_ABS_MASK, out=magnitude.reshape(shape))
    tile_scale = _scale_codes_of_bits(_block_max(magnitude, shape, inner, work), fmt, rule)
    scale[...] = tile_scale

    # 2^(127 - code) as bit patterns, spread over the elements: a broadcast operand would slow the multiplication down.
    # Blocks with NaN are overwritten below, whatever comes out for them.
    reciprocal = (254 - tile_scale.astype(np.int32)) << FLOAT32_MANTISSA_BITS
    spread = work.round.power[:size]
    np.copyto(spread.reshape(shape), reciprocal)
    values = magnitude.view(np.float32)
    np.multiply(values, spread.view(np.float32), out=values)
    code, sign = work.codes[:size], work.negative[:size].view(np.uint8)
    round_magnitudes(magnitude, code, work.round)
    np.minimum(code, work.max_code[:size], out=code)

    np.less(bits, np.int32(0), out=work.negative[:size].reshape(shape))
    np.multiply(sign, np.uint8(0x80), out=sign)
    np.bitwise_or(code.reshape(shape), sign.reshape(shape), out=codes)
    nan = tile_scale == SCALE_NAN
    if nan.any():
        np.copyto(codes, np.uint8(CODE_NAN), where=nan)


def _float32_bits(x: NDArray, work: _Work) -> NDArray[np.int32]:
    """Bit patterns of `x` as float32: a view of it, or of the scratch array it is widened into."""
    if x.dtype == np.float32:
        return x.view(np.int32)
    values = work.values[: x.size].reshape(x.shape)
    if x.dtype == np.float16:
        np.copyto(values, x)
        return values.view(np.int32)
    widened = values.view(np.uint32)
    np.left_shift(x.view(np.uint16), np.uint32(16), out=widened)
    return widened.view(np.int32)


def _block_max(
    magnitude: NDArray[np.int32], shape: tuple[int, ...], inner: tuple[int, ...], work: _Work
) -> NDArray[np.int32]:
    """Maximum over the axes `inner`, kept with length 1. As integers a NaN is above infinity, so it propagates."""
    if inner[-1] != len(shape) - 1:
        return np.maximum.reduce(magnitude.reshape(shape), axis=inner, keepdims=True)
    # Along contiguous elements `reduceat` is twice as fast as `reduce`.
    starts = work.block_starts if shape[-1] == BLOCK else np.arange(0, magnitude.size, shape[-1])
    rows = np.maximum.reduceat(magnitude, starts[: magnitude.size // shape[-1]]).reshape(*shape[:-1], 1)
    return np.maximum.reduce(rows, axis=inner[:-1], keepdims=True) if len(inner) == 2 else rows
