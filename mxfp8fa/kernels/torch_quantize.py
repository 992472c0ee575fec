"""MX block quantization in plain torch operations: any device, and code for code what `mxfp8fa.numerics.quantize` gives.

    quantize             torch tensor -> `MXOperand`: codes, and scales packed as the tensor core reads them
    quantize_blocks      torch tensor of any rank -> codes and plain scale codes
    dequantize_blocks    and back
    pack_scales          plain scale codes -> 128x4 atoms

The scale rules, and what becomes of zeros, NaN and infinities, are those of `mxfp8fa.numerics.quantize`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS, cu_blocks, padded_index
from mxfp8fa.layouts.scale_atom import batch_first, matrix_axes, token_slots
from mxfp8fa.numerics.formats import (
    E8M0,
    FLOAT32_ABS_MASK,
    FLOAT32_BIAS,
    FLOAT32_INF_BITS,
    FLOAT32_MANTISSA_BITS,
    Format,
    decode_table,
)
from mxfp8fa.numerics.mx_tensor import BLOCK, element_format, normalize_axes, normalize_cu_seqlens
from mxfp8fa.numerics.quantize import CODE_NAN, TAILS, check_whole_blocks
from mxfp8fa.numerics.scale_rules import SCALE_NAN, carry_of_rule, check_rule

# Plain numbers: a compiler would take NumPy scalars for tensors.
ABS_MASK, INF_BITS = int(FLOAT32_ABS_MASK), int(FLOAT32_INF_BITS)
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def quantize(
    x: torch.Tensor,
    *,
    axes: int | Sequence[int],
    fmt: str | Format = "e4m3",
    rule: str = "rceil",
    tail: str = "error",
    cu_seqlens: torch.Tensor | None = None,
) -> MXOperand:
    """`x` in MXFP8 as kernels take it.

    Args:
        x: float32, float16 or bfloat16, (S, D), (B, S, H, D) or, with cu_seqlens, (T, H, D); any device, any strides.
        axes: blocked axes: tokens, the last one, or both (squares).
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
        tail: "error" refuses a blocked length that is not a multiple of 32; "partial" lets the last block be short.
        cu_seqlens: cumulative lengths of the sequences packed along axis 0; blocks of tokens restart at each.

    Returns:
        Contiguous codes, and the scales in each orientation that the blocks serve, on the device of `x`.

    Raises:
        ValueError: a dtype, rank, axis, format, rule or length that is not allowed; says which are.
    """
    check_floats(x)
    lengths = None if cu_seqlens is None else normalize_cu_seqlens(cu_seqlens.cpu().numpy(), tuple(x.shape))
    if tail not in TAILS:
        raise ValueError(f"tail = {tail!r}; allowed: {', '.join(TAILS)}")
    positive = normalize_axes(axes, x.ndim)
    if tail == "error":
        check_whole_blocks(tuple(x.shape), positive, lengths)
    kept = None if lengths is None else torch.from_numpy(lengths.copy()).to(x.device)
    orientations = packed_shapes(tuple(x.shape), positive, kept)
    codes, scale = quantize_blocks(x, axes=positive, fmt=fmt, rule=rule, cu_seqlens=lengths)
    scales = {
        rows: pack_scales(scale, shape=x.shape, axes=positive, rows=rows, cu_seqlens=lengths) for rows in orientations
    }
    return MXOperand(codes, scales, positive, element_format(fmt).name, kept)


def check_floats(x: torch.Tensor, name: str = "x") -> None:
    """Refuse what cannot be quantized.

    Raises:
        ValueError: not a tensor of float32, float16 or bfloat16.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in FLOAT_DTYPES:
        given = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"{name} is {given}; allowed: a tensor of {', '.join(map(str, FLOAT_DTYPES))}")


def quantize_blocks(
    x: torch.Tensor,
    *,
    axes: int | Sequence[int],
    fmt: str | Format = "e4m3",
    rule: str = "rceil",
    cu_seqlens: NDArray[np.int32] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Element codes and scale codes of a tensor of any rank, contiguous; the last block of an axis or a sequence may be short.

    No gradient flows through it.

    Args:
        x: float32, float16 or bfloat16.
        axes: one axis for 1x32 blocks along it, two for 32x32 squares over both.
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
        cu_seqlens: cumulative lengths of the sequences along axis 0, where blocks along it restart.

    Returns:
        codes, uint8 in the shape of `x`, and scale_e8m0, uint8, with every blocked axis divided by 32, rounded up.

    Raises:
        ValueError: a dtype, axis, format or rule that is not allowed.
    """
    check_floats(x)
    element, axes = element_format(fmt), normalize_axes(axes, x.ndim)
    check_rule(rule)
    bits = x.detach().to(torch.float32).view(torch.int32)
    bits = _whole_blocks(bits, axes, cu_seqlens)
    split, inner = _split(bits.shape, axes)
    codes, scale = _quantize_split(bits.reshape(split), inner, element, rule)
    codes = _without_padding(codes.reshape(bits.shape), x.shape, axes, cu_seqlens)
    return codes, scale.squeeze(inner)


def dequantize_blocks(
    codes: torch.Tensor,
    scale_e8m0: torch.Tensor,
    *,
    axes: int | Sequence[int],
    fmt: str | Format = "e4m3",
    cu_seqlens: NDArray[np.int32] | None = None,
) -> torch.Tensor:
    """The float32 values that `quantize_blocks` describes; exact but at and above 2^128, which is infinity.

    Args:
        codes: uint8.
        scale_e8m0: uint8, the shape of codes with every blocked axis divided by 32, rounded up.
        axes: blocked axes.
        fmt: element format.
        cu_seqlens: as for `quantize_blocks`.

    Raises:
        ValueError: an axis or format that is not allowed.
    """
    element, axes = element_format(fmt), normalize_axes(axes, codes.ndim)
    elements = torch.from_numpy(decode_table(element).copy()).to(codes.device)[codes.int()]
    elements = _whole_blocks(elements, axes, cu_seqlens)
    split, inner = _split(elements.shape, axes)
    scale = torch.from_numpy(decode_table(E8M0).copy()).to(codes.device)[scale_e8m0.int()]
    for axis in inner:
        scale = scale.unsqueeze(axis)
    values = (elements.reshape(split) * scale).reshape(elements.shape)
    return _without_padding(values, codes.shape, axes, cu_seqlens)


def _quantize_split(
    bits: torch.Tensor, inner: tuple[int, ...], fmt: Format, rule: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 codes and scale codes of float32 bit patterns in which `inner` are the axes that run inside a block."""
    magnitude = bits & ABS_MASK
    # As integers a NaN is above infinity, so the maximum propagates it.
    largest = magnitude.amax(inner, keepdim=True)
    nan = largest >= INF_BITS
    field = (largest.clamp(max=INF_BITS) + carry_of_rule(rule, fmt)) >> FLOAT32_MANTISSA_BITS
    scale = torch.where(nan, SCALE_NAN, (field - fmt.max_exponent).clamp(min=0))
    reciprocal = ((2 * FLOAT32_BIAS - scale) << FLOAT32_MANTISSA_BITS).view(torch.float32)
    codes = _round_magnitudes(magnitude.view(torch.float32) * reciprocal, fmt)
    codes = torch.where(nan, CODE_NAN, codes | torch.where(bits < 0, 0x80, 0))
    return codes.to(torch.uint8), scale.to(torch.uint8)


def _round_magnitudes(values: torch.Tensor, fmt: Format) -> torch.Tensor:
    """int32 codes, saturated, of non-negative float32 values: `numerics.formats.round_magnitudes` explains the steps."""
    shift = FLOAT32_MANTISSA_BITS - fmt.mantissa_bits
    smallest = (FLOAT32_BIAS + 1 - fmt.bias) << FLOAT32_MANTISSA_BITS  # bits of the smallest normal number
    power = (values.view(torch.int32) & INF_BITS).clamp(min=smallest) + (shift << FLOAT32_MANTISSA_BITS)
    steps = (values + power.view(torch.float32)).view(torch.int32) - power
    excess = ((FLOAT32_BIAS + shift - fmt.bias) << fmt.mantissa_bits) + (1 << fmt.mantissa_bits)
    return (steps + (power >> shift) - excess).clamp(max=fmt.max_code)


def _whole_blocks(
    x: torch.Tensor, axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None
) -> torch.Tensor:
    """`x` with zeros behind the last block of every blocked axis, and of every sequence if axis 0 is blocked."""
    if cu_seqlens is not None and 0 in axes:
        slots, count = _block_slots(cu_seqlens)
        padded = x.new_zeros((count, *x.shape[1:]))
        padded[slots.to(x.device)] = x
        x = padded
    missing = [-x.shape[axis] % BLOCK if axis in axes else 0 for axis in range(x.ndim)]
    if not any(missing):
        return x
    return pad(x, [n for length in reversed(missing) for n in (0, length)])


def _without_padding(
    x: torch.Tensor, shape: Sequence[int], axes: tuple[int, ...], cu_seqlens: NDArray[np.int32] | None
) -> torch.Tensor:
    """The inverse of `_whole_blocks`; contiguous."""
    if cu_seqlens is not None and 0 in axes:
        x = x[_block_slots(cu_seqlens)[0].to(x.device)]
    for axis in axes:
        x = x.narrow(axis, 0, shape[axis])
    return x.reshape(-1).reshape(shape)  # contiguous, in its strides along axes of length 1 too


def _block_slots(cu_seqlens: NDArray[np.int32]) -> tuple[torch.Tensor, int]:
    """Where every token goes when sequences are padded to whole blocks, and how many places there are."""
    return torch.from_numpy(padded_index(cu_seqlens, BLOCK)), int(cu_blocks(cu_seqlens)[-1]) * BLOCK


def _split(shape: Sequence[int], axes: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Every blocked axis as two, block number and element in the block: the new shape, and the elements' axes."""
    split: list[int] = []
    inner = []
    for axis, length in enumerate(shape):
        split += [length // BLOCK, BLOCK] if axis in axes else [length]
        if axis in axes:
            inner.append(len(split) - 1)
    return split, tuple(inner)


def pack_scales(
    scale_e8m0: torch.Tensor,
    *,
    shape: Sequence[int],
    axes: tuple[int, ...],
    rows: str,
    cu_seqlens: NDArray[np.int32] | None = None,
) -> torch.Tensor:
    """Scale codes in 128x4 atoms, with tokens or the head dimension as rows: `mxfp8fa.layouts.pack_scales` in torch.

    Args:
        scale_e8m0: uint8 scale codes of data of `shape` in blocks along `axes`.
        shape: of the data.
        axes: blocked axes, ascending and not negative.
        rows: "tokens" or "head_dim".
        cu_seqlens: cumulative lengths of the sequences along axis 0.

    Raises:
        ValueError: a rank other than those of `layouts.pack_scales`, or blocks that do not run along the contracted axis.
    """
    row_axis, k_axis = matrix_axes(tuple(shape), axes, cu_seqlens, rows)
    if row_axis in axes:
        scale_e8m0 = _repeat_rows(scale_e8m0, row_axis, shape[row_axis], cu_seqlens)
    matrix = scale_e8m0.permute(batch_first(row_axis, k_axis, scale_e8m0.ndim))
    if cu_seqlens is not None:
        side, index, size = token_slots(cu_seqlens, rows)
        sizes = list(matrix.shape)
        sizes[side] = size
        spread = matrix.new_zeros(sizes)
        matrix = spread.index_copy_(side, torch.from_numpy(index).to(matrix.device), matrix)
    return _pack_atoms(matrix)


def _repeat_rows(
    scale: torch.Tensor, axis: int, length: int, cu_seqlens: NDArray[np.int32] | None
) -> torch.Tensor:
    """Scale codes of blocks along `axis`, one for every row of it."""
    block = np.arange(length) // BLOCK
    if cu_seqlens is not None and axis == 0:
        block = padded_index(cu_seqlens, BLOCK) // BLOCK
    return scale.index_select(axis, torch.from_numpy(block).to(scale.device))


def _pack_atoms(scale: torch.Tensor) -> torch.Tensor:
    """(..., R, C) scale matrices as (..., ceil(R/128), ceil(C/4), 512): `mxfp8fa.layouts.pack_atoms` in torch."""
    *batch, rows, columns = scale.shape
    row_tiles, column_tiles = -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS)
    padded = pad(scale, (0, column_tiles * ATOM_COLUMNS - columns, 0, row_tiles * ATOM_ROWS - rows))
    split = padded.reshape(math.prod(batch), row_tiles, 4, 32, column_tiles, ATOM_COLUMNS)
    return split.permute(0, 1, 4, 3, 2, 5).reshape(*batch, row_tiles, column_tiles, ATOM_BYTES)
