"""MX block quantization in plain torch operations: any device, and code for code what `mxfp8fa.numerics.quantize` gives.

    quantize             torch tensor -> `MXOperand`: codes, and scales packed as the tensor core reads them
    quantize_blocks      torch tensor of any rank -> codes and plain scale codes
    dequantize           an `MXOperand`'s numbers
    pack_scales          plain scale codes -> 128x4 atoms

The scale rules, and what becomes of zeros, NaN and infinities, are those of `mxfp8fa.numerics.quantize`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from mxfp8fa.kernels.jagged import checked_offsets, tile_count, token_slots
from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.layouts import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS, TILE_TOKENS
from mxfp8fa.layouts.scale_atom import batch_first, matrix_axes
from mxfp8fa.numerics.formats import (
    FLOAT32_ABS_MASK,
    FLOAT32_BIAS,
    FLOAT32_INF_BITS,
    FLOAT32_MANTISSA_BITS,
    Format,
)
from mxfp8fa.numerics.mx_tensor import BLOCK, element_format, normalize_axes
from mxfp8fa.numerics.quantize import CODE_NAN, TAILS, check_whole_blocks
from mxfp8fa.numerics.scale_rules import SCALE_NAN, carry_of_rule, check_rule
from mxfp8fa.numerics.softmax import E8M0_BIAS

# Plain numbers: a compiler would take NumPy scalars for tensors.
ABS_MASK, INF_BITS = int(FLOAT32_ABS_MASK), int(FLOAT32_INF_BITS)
FLOAT8_DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def quantize(
    x: torch.Tensor,
    *,
    axes: int | Sequence[int],
    fmt: str | Format = "e4m3",
    rule: str = "rceil",
    tail: str = "error",
    cu_seqlens: torch.Tensor | None = None,
    validate: bool = False,
) -> MXOperand:
    """`x` in MXFP8 as kernels take it. `kernels.producers.quantize` gives the same in one pass, and copies no sequence.

    Args:
        x: float32, float16 or bfloat16, (S, D), (B, S, H, D) or, with cu_seqlens, (T, H, D); any device, any strides.
        axes: blocked axes: tokens, the last one, or both (squares).
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
        tail: "error" refuses a blocked length that is not a multiple of 32 (and reads cu_seqlens for it, which waits for a
            GPU, if the tokens are blocked); "partial" lets the last block be short.
        cu_seqlens: (B + 1,) int32 or int64 cumulative lengths of the sequences packed along axis 0; blocks of tokens restart
            at each.
        validate: look at cu_seqlens of CUDA tensors too, which waits for the device; of CPU tensors they always are.

    Returns:
        Contiguous codes, and the scales in each orientation that the blocks serve, on the device of `x`. Scales of packed
        sequences on a GPU have as many tiles as there may be, (T + 127 B) // 128; those past the last one are 0.

    Raises:
        ValueError: a dtype, rank, axis, format, rule or length that is not allowed; says which are.
    """
    check_floats(x)
    offsets = None
    if cu_seqlens is not None and x.ndim:
        offsets = checked_offsets(cu_seqlens, x.shape[0], x.device, validate=validate)
    if tail not in TAILS:
        raise ValueError(f"tail = {tail!r}; allowed: {', '.join(TAILS)}")
    positive = normalize_axes(axes, x.ndim)
    if tail == "error":
        read = offsets if 0 in positive else None
        check_whole_blocks(tuple(x.shape), positive, None if read is None else read.cpu().numpy())
    orientations = packed_shapes(tuple(x.shape), positive, None if offsets is None else tile_count(offsets, len(x)))
    codes, scale = quantize_blocks(x, axes=positive, fmt=fmt, rule=rule, cu_seqlens=offsets)
    scales = {
        rows: pack_scales(scale, shape=x.shape, axes=positive, rows=rows, cu_seqlens=offsets) for rows in orientations
    }
    return MXOperand(codes, scales, positive, element_format(fmt).name, offsets)


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
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Element codes and scale codes of a tensor of any rank, contiguous; the last block of an axis or a sequence may be short.

    No gradient flows through it.

    Args:
        x: float32, float16 or bfloat16.
        axes: one axis for 1x32 blocks along it, two for 32x32 squares over both.
        fmt: "e4m3" or "e5m2".
        rule: "floor", "ceil", "even" or "rceil".
        cu_seqlens: cumulative lengths of the sequences along axis 0, on the device of `x`, where blocks along it restart.

    Returns:
        codes, uint8 in the shape of `x`, and scale_e8m0, uint8, with every blocked axis divided by 32, rounded up (of packed
        sequences on a GPU as many blocks as there may be, those past the last one 0).

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


def dequantize(x: MXOperand) -> torch.Tensor:
    """The numbers that an operand holds, float64, in its shape and on its device; exact."""
    rows = "tokens" if "tokens" in x.scales else "head_dim"
    *_, head_dim = x.shape
    token = 1 if len(x.shape) == 4 else 0
    device, tokens = x.codes.device, x.shape[token]
    slots = torch.arange(tokens, device=device) if x.cu_seqlens is None else token_slots(x.cu_seqlens, tokens)
    column = torch.arange(head_dim, device=device)
    scale = _unpack_atoms(x.scales[rows])
    if rows == "tokens":
        scale = scale.index_select(-2, slots).index_select(-1, column // BLOCK)
    else:
        scale = scale.index_select(-2, column).index_select(-1, slots // BLOCK).transpose(-1, -2)
    powers = torch.where(scale == SCALE_NAN, torch.nan, torch.exp2(scale.double() - E8M0_BIAS))
    elements = x.codes.view(getattr(torch, FLOAT8_DTYPES[x.fmt])).double()
    return elements * (powers if powers.ndim == 2 else powers.transpose(-2, -3))  # (..., H, S, D) to (..., S, H, D)


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


def _whole_blocks(x: torch.Tensor, axes: tuple[int, ...], cu_seqlens: torch.Tensor | None) -> torch.Tensor:
    """`x` with zeros behind the last block of every blocked axis, and of every sequence if axis 0 is blocked."""
    if cu_seqlens is not None and 0 in axes:
        padded = x.new_zeros((tile_count(cu_seqlens, len(x), BLOCK) * BLOCK, *x.shape[1:]))
        x = padded.index_copy_(0, token_slots(cu_seqlens, len(x), BLOCK), x)
    missing = [-x.shape[axis] % BLOCK if axis in axes else 0 for axis in range(x.ndim)]
    if not any(missing):
        return x
    return pad(x, [n for length in reversed(missing) for n in (0, length)])


def _without_padding(
    x: torch.Tensor, shape: Sequence[int], axes: tuple[int, ...], cu_seqlens: torch.Tensor | None
) -> torch.Tensor:
    """The inverse of `_whole_blocks`; contiguous."""
    if cu_seqlens is not None and 0 in axes:
        x = x.index_select(0, token_slots(cu_seqlens, shape[0], BLOCK))
    for axis in axes:
        x = x.narrow(axis, 0, shape[axis])
    return x.reshape(-1).reshape(shape)  # contiguous, in its strides along axes of length 1 too


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
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scale codes in 128x4 atoms, with tokens or the head dimension as rows: `mxfp8fa.layouts.pack_scales` in torch.

    Args:
        scale_e8m0: uint8 scale codes of data of `shape` in blocks along `axes`.
        shape: of the data.
        axes: blocked axes, ascending and not negative.
        rows: "tokens" or "head_dim".
        cu_seqlens: cumulative lengths of the sequences along axis 0, on the device of the scales.

    Raises:
        ValueError: a rank other than those of `layouts.pack_scales`, or blocks that do not run along the contracted axis.
    """
    row_axis, k_axis = matrix_axes(tuple(shape), axes, cu_seqlens is not None, rows)
    if row_axis in axes and (row_axis or cu_seqlens is None):
        block = torch.arange(shape[row_axis], device=scale_e8m0.device) // BLOCK
        scale_e8m0 = scale_e8m0.index_select(row_axis, block)
    if cu_seqlens is not None:
        scale_e8m0 = _spread(scale_e8m0, shape[0], 0 in axes, rows, cu_seqlens)
    return _pack_atoms(scale_e8m0.permute(batch_first(row_axis, k_axis, scale_e8m0.ndim)))


def _spread(scale: torch.Tensor, tokens: int, blocked: bool, rows: str, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Scale codes along axis 0 where every sequence has whole tiles: one for a token, or for 32 if those are contracted.

    Args:
        scale: one for a token, or, if `blocked`, for every block of 32 of a sequence.
        tokens: T.
        blocked: see scale.
        rows: as for `pack_scales`.
        cu_seqlens: likewise.
    """
    if blocked:
        scale = scale.index_select(0, token_slots(cu_seqlens, tokens, BLOCK) // BLOCK)
    unit = 1 if rows == "tokens" else BLOCK  # then 32 tokens write the same number to the same place
    padded = scale.new_zeros((tile_count(cu_seqlens, tokens) * TILE_TOKENS // unit, *scale.shape[1:]))
    return padded.index_copy_(0, token_slots(cu_seqlens, tokens) // unit, scale)


def _unpack_atoms(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `_pack_atoms`, padding included: (..., 128 row tiles, 4 column tiles)."""
    split = packed.unflatten(-1, (32, 4, ATOM_COLUMNS))  # (..., row tiles, column tiles, 32, 4, 4)
    order = (*range(packed.ndim - 3), -5, -2, -3, -4, -1)
    return split.permute(order).flatten(-5, -3).flatten(-2)


def _pack_atoms(scale: torch.Tensor) -> torch.Tensor:
    """(..., R, C) scale matrices as (..., ceil(R/128), ceil(C/4), 512): `mxfp8fa.layouts.pack_atoms` in torch."""
    *batch, rows, columns = scale.shape
    row_tiles, column_tiles = -(-rows // ATOM_ROWS), -(-columns // ATOM_COLUMNS)
    padded = pad(scale, (0, column_tiles * ATOM_COLUMNS - columns, 0, row_tiles * ATOM_ROWS - rows))
    split = padded.reshape(math.prod(batch), row_tiles, 4, 32, column_tiles, ATOM_COLUMNS)
    return split.permute(0, 1, 4, 3, 2, 5).reshape(*batch, row_tiles, column_tiles, ATOM_BYTES)
