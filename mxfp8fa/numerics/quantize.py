"""MX block quantization: 32 elements (or a 32x32 square of them) share one power-of-two scale.

The scale comes from the block's largest magnitude by one of four rules (`mxfp8fa.numerics.scale_rules`). Elements are
divided by it, which is exact, and rounded once: to nearest, ties to even, saturating. For every rule:

    * a block of zeros has scale code 0, and zeros keep their signs;
    * a NaN or an infinity anywhere in a block gives scale code 0xFF and makes every code of the block 0x7F;
    * otherwise the scale code is clamped to 0..254, and elements that still do not fit saturate.

`quantize_block_scalar` says the same about one block, in exact rational arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import (
    CHUNK,
    FLOAT32_ABS_MASK,
    FLOAT32_MANTISSA_BITS,
    Format,
    RoundWork,
    as_array,
    round_magnitudes,
    to_float32,
)
from mxfp8fa.numerics.mx_tensor import (
    BLOCK,
    MXTensor,
    Region,
    element_format,
    normalize_axes,
    normalize_cu_seqlens,
    regions,
    scale_shape,
)
from mxfp8fa.numerics.scale_rules import SCALE_NAN, check_rule, scale_codes_of_bits

CODE_NAN = 0x7F
TAILS = ("error", "partial")


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
    array = as_array(x)
    element = element_format(fmt)
    check_rule(rule)
    if tail not in TAILS:
        raise ValueError(f"tail = {tail!r}; allowed: {', '.join(TAILS)}")
    to_float32(array[:0] if array.ndim else array)  # refuses other dtypes
    positive = normalize_axes(axes, array.ndim)
    lengths = normalize_cu_seqlens(cu_seqlens, array.shape)
    if tail == "error":
        check_whole_blocks(array.shape, positive, lengths)
    codes = np.empty(array.shape, np.uint8)
    scale = np.empty(scale_shape(array.shape, positive, lengths), np.uint8)
    work = _Work(min(CHUNK, array.size), element)
    with np.errstate(invalid="ignore", under="ignore"):  # NaN and infinities are legal input
        for region in regions(array.shape, positive, lengths):
            views = array[region.data], codes[region.data], scale[region.scale]
            _quantize_region(*views, region, element, rule, work)
    return MXTensor(codes, scale, element.name, positive, lengths)


def check_whole_blocks(shape: tuple[int, ...], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None) -> None:
    """Refuse blocked lengths, of axes or of sequences, that are not multiples of 32.

    Raises:
        ValueError: the first such length.
    """
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
    region: Region,
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
    tile_scale = scale_codes_of_bits(_block_max(magnitude, shape, inner, work), fmt, rule)
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
