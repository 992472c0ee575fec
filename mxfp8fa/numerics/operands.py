"""Quantized tensors of one attention call, and the MMA operands that tiles are cut from.

Inside, every tensor is a jagged (T, H, D) `MXTensor` with token offsets, a *payload*; a dense batch is B sequences of
equal length. What its scales cover decides which GEMMs it can enter, because a block has to run along the contraction:

    blocks         axes of (T, H, D)   contraction along d (S, dP)   along tokens (O, dV, dQ, dK)
    along_d        (2,)                yes                           no
    along_tokens   (0,)                no                            yes
    square         (0, 2)              yes                           yes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import decode, to_float32
from mxfp8fa.numerics.mma import mma
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import AttentionProblem, Side, as_float_array
from mxfp8fa.numerics.quantize import BLOCK, MXTensor, quantize

HEAD_DIM_MAX = 256
# softmax_scale * log2(e), and 8 times it for direct codes, have to be normal float32 numbers.
SOFTMAX_SCALE_LOG2_RANGE = (-126, 123)

Blocks = Literal["along_d", "along_tokens", "square"]
Contraction = Literal["d", "tokens"]
_AXES: dict[Blocks, tuple[int, ...]] = {"along_d": (2,), "along_tokens": (0,), "square": (0, 2)}
_BLOCKS = {axes: blocks for blocks, axes in _AXES.items()}
SERVES: dict[Contraction, tuple[Blocks, ...]] = {"d": ("along_d", "square"), "tokens": ("along_tokens", "square")}


@dataclass(frozen=True)
class Operand:
    """One matrix operand of `mma`: the contraction runs along axis 1.

    Attributes:
        values: (rows, K) float32 elements, before scaling.
        scale_e8m0: (rows, K / 32) uint8, one scale code per row and 32 elements.
    """

    values: NDArray[np.float32]
    scale_e8m0: NDArray[np.uint8]

    def rows(self, start: int, size: int) -> Operand:
        """`size` rows from `start` on."""
        return Operand(self.values[start : start + size], self.scale_e8m0[start : start + size])

    def depth(self, start: int, size: int) -> Operand:
        """`size` elements of the contraction axis from `start` on; both are multiples of 32."""
        blocks = slice(start // BLOCK, (start + size) // BLOCK)
        return Operand(self.values[:, start : start + size], self.scale_e8m0[:, blocks])


def multiply(a: Operand, b: Operand, c: NDArray[Any] | None, accumulate: str) -> NDArray[Any]:
    """The product a b^T + c by `mma`: float32, or float64 under accumulate="exact"."""
    if accumulate == "exact":
        product = mma(a.values, b.values, a_scale=a.scale_e8m0, b_scale=b.scale_e8m0, accumulate=accumulate)
        return product if c is None else product + c
    return mma(a.values, b.values, c, a_scale=a.scale_e8m0, b_scale=b.scale_e8m0, accumulate=accumulate)


def accumulator_dtype(options: AttentionOptions) -> type[np.floating]:
    """dtype of what `multiply` returns: float64 under accumulate="exact", else float32."""
    return np.float64 if options.accumulate == "exact" else np.float32


def check_head_dim(head_dim: int) -> None:
    """Refuse a head_dim that is not whole blocks.

    Raises:
        ValueError: not a multiple of 32 from 32 to 256.
    """
    if head_dim % BLOCK or not BLOCK <= head_dim <= HEAD_DIM_MAX:
        raise ValueError(
            f"head_dim = {head_dim} is not supported; allowed are multiples of {BLOCK} up to {HEAD_DIM_MAX} "
            "(zero-pad D, and pass the softmax_scale of the original head_dim)"
        )


def check_softmax_scale(softmax_scale: float) -> None:
    """Refuse a softmax_scale that float32, in which the kernel holds it, cannot.

    Raises:
        ValueError: below 2^-126 or above 2^123.
    """
    low, high = SOFTMAX_SCALE_LOG2_RANGE
    if not 2.0**low <= softmax_scale <= 2.0**high:
        raise ValueError(
            f"softmax_scale = {softmax_scale} does not fit the float32 of the kernel; allowed are 2^{low} to 2^{high}"
        )


def payload_blocks(payload: MXTensor) -> Blocks:
    """What one scale of a flattened payload covers."""
    return _BLOCKS[payload.axes]


def shape_and_array(x: Any, name: str) -> tuple[MXTensor | NDArray[Any], tuple[int, ...]]:
    """The given x as an MXTensor in E4M3 or a float array of at most 32 bits, and its shape.

    Raises:
        ValueError: another dtype or element format.
    """
    if isinstance(x, MXTensor):
        if x.fmt != "e4m3":
            raise ValueError(f"{name} is an MXTensor in {x.fmt}; attention operands are e4m3")
        return x, x.shape
    array = as_float_array(x, name, allow_float64=False)
    return array, array.shape


def flatten(x: NDArray[Any]) -> NDArray[np.float32]:
    """A float array (B, S, H, D) or (T, H, D) as float32 (T, H, D)."""
    return to_float32(np.ascontiguousarray(x)).reshape(-1, *x.shape[-2:])


def quantize_payload(x: NDArray[np.float32], blocks: Blocks, cu_seqlens: NDArray[np.int64], rule: str) -> MXTensor:
    """Flattened floats to a payload; the last block of a sequence may be short."""
    return quantize(x, axes=_AXES[blocks], rule=rule, tail="partial", cu_seqlens=cu_seqlens)


def flatten_payload(x: MXTensor, name: str, problem: AttentionProblem, cu_seqlens: NDArray[np.int64]) -> MXTensor:
    """The caller's MXTensor as a payload.

    Raises:
        ValueError: blocks along other axes than tokens and d, or other sequences than the call's.
    """
    axes = x.axes if problem.jagged else tuple(axis - 1 for axis in x.axes)
    if axes not in _BLOCKS:
        allowed = ["(2,)", "(0,)", "(0, 2)"] if problem.jagged else ["(3,)", "(1,)", "(1, 3)"]
        raise ValueError(f"{name} has blocks along axes {x.axes}; allowed are {', '.join(allowed)}")
    if problem.jagged and 0 in axes and (x.cu_seqlens is None or not np.array_equal(x.cu_seqlens, cu_seqlens)):
        given = None if x.cu_seqlens is None else x.cu_seqlens.tolist()
        raise ValueError(f"{name} was quantized with cu_seqlens = {given}; the call has {cu_seqlens.tolist()}")
    codes, scale = (a.reshape(-1, *a.shape[-2:]) for a in (x.codes, x.scale_e8m0))
    return MXTensor(codes, scale, x.fmt, axes, cu_seqlens.astype(np.int32))


def unflatten_payload(x: MXTensor, problem: AttentionProblem, side: Side) -> MXTensor:
    """The inverse of `flatten_payload`."""
    if problem.jagged:
        return x
    axes = tuple(axis + 1 for axis in x.axes)
    scale = problem.unflatten(x.scale_e8m0, side, tokens_per_row=BLOCK if 0 in x.axes else 1)
    return MXTensor(problem.unflatten(x.codes, side), scale, x.fmt, axes)


def head_operand(payload: MXTensor, sequence: int, head: int, contraction: Contraction, padded: int) -> Operand:
    """One head of one sequence as an MMA operand, its tokens padded to `padded` with zeros under scale code 0.

    Args:
        payload: flattened payload whose blocks serve the contraction.
        sequence: number of the sequence.
        head: number of the head.
        contraction: "d" gives (padded, D), "tokens" gives (D, padded).
        padded: padded number of tokens, a multiple of 32.
    """
    assert payload.cu_seqlens is not None
    start, stop = payload.cu_seqlens[sequence : sequence + 2].tolist()
    head_dim = payload.shape[-1]
    values = np.zeros((padded, head_dim), np.float32)
    values[: stop - start] = decode(payload.codes[start:stop, head], payload.fmt)
    blocks = payload_blocks(payload)
    if contraction == "d":
        scale = np.zeros((padded, head_dim // BLOCK), np.uint8)
        given = payload.scale_e8m0[start:stop] if blocks == "along_d" else _token_block_scales(payload, sequence)
        rows = given[:, head] if blocks == "along_d" else np.repeat(given[:, head], BLOCK, axis=0)[: stop - start]
        scale[: len(rows)] = rows
        return Operand(values, scale)
    scale = np.zeros((head_dim, padded // BLOCK), np.uint8)
    columns = _token_block_scales(payload, sequence)[:, head].T  # (D or D / 32, token blocks)
    scale[:, : columns.shape[1]] = columns if blocks == "along_tokens" else np.repeat(columns, BLOCK, axis=0)
    return Operand(values.T, scale)


def _token_block_scales(payload: MXTensor, sequence: int) -> NDArray[np.uint8]:
    """(token blocks of the sequence, H, ...) of a payload that is blocked along tokens."""
    start, stop = payload.cu_blocks[sequence : sequence + 2].tolist()
    return payload.scale_e8m0[start:stop]


def padded_length(length: int, tile: int) -> int:
    """A length rounded up to whole tiles."""
    return -(-length // tile) * tile
