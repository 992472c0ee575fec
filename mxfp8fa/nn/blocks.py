"""MX blocks as the numerics in torch take them: the kernels' quantizer, and the values that its codes stand for.

Tokens are axis -2 and the head dimension axis -1 here, so that the two kinds of blocks and the squares are one reshape.
Nothing looks at values on the host, so every function can be captured in a CUDA graph and compiled as a whole.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch.nn import functional

from mxfp8fa.kernels.torch_quantize import quantize_blocks
from mxfp8fa.numerics.formats import FLOAT32_MANTISSA_BITS
from mxfp8fa.numerics.mx_tensor import BLOCK
from mxfp8fa.numerics.operands import Blocks
from mxfp8fa.numerics.quantize import CODE_NAN
from mxfp8fa.numerics.scale_rules import SCALE_NAN

Rule = Literal["rceil", "floor", "ceil", "even"]
AXES: dict[Blocks, tuple[int, ...]] = {"along_d": (-1,), "along_tokens": (-2,), "square": (-2, -1)}


class Payload(NamedTuple):
    """A block-scaled tensor (..., tokens, D).

    Attributes:
        codes: uint8 E4M3 codes, the data's shape.
        scale_e8m0: uint8, every blocked axis divided by 32, rounded up.
        values: float32, scale times element.
    """

    codes: torch.Tensor
    scale_e8m0: torch.Tensor
    values: torch.Tensor


def quantize(x: torch.Tensor, blocks: Blocks, rule: Rule = "rceil") -> Payload:
    """E4M3 codes, scale codes and the values they stand for; the last block of an axis may be short.

    Args:
        x: (..., tokens, D) float32, float16 or bfloat16.
        blocks: what shares a scale: 32 elements "along_d", 32 "along_tokens", or a "square" of 32 x 32.
        rule: scale rule, see `mxfp8fa.numerics.scale_rules`.
    """
    codes, scale = quantize_blocks(x, axes=AXES[blocks], rule=rule)
    tokens, head_dim = x.shape[-2:]
    pad = [-n % BLOCK if axis in AXES[blocks] else 0 for axis, n in ((-1, head_dim), (-2, tokens))]
    whole = functional.pad(codes, (0, pad[0], 0, pad[1])) if any(pad) else codes
    return Payload(codes, scale, dequantize(whole, scale, blocks)[..., :tokens, :head_dim])


def dequantize(codes: torch.Tensor, scale_e8m0: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """Values of E4M3 codes (..., tokens, D) whose blocked axes are multiples of 32."""
    scale = scale_e8m0.to(torch.int32)
    scale = scale[..., :, None, :, None] if blocks == "square" else scale.unsqueeze(_inner_axes(blocks)[0])
    return (decode(_split(codes, blocks)) * decode_scale(scale)).reshape(codes.shape)


def encode(x: torch.Tensor) -> torch.Tensor:
    """uint8 E4M3 codes of float32 values of at most 448, to nearest even; NaN is 0x7F."""
    codes = x.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(torch.isnan(x), CODE_NAN, codes)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of uint8 E4M3 codes."""
    return codes.view(torch.float8_e4m3fn).float()


def decode_scale(scale: torch.Tensor) -> torch.Tensor:
    """float32 values of int32 E8M0 codes: 2^(code - 127), NaN for 0xFF."""
    bits = torch.where(scale == 0, 1 << (FLOAT32_MANTISSA_BITS - 1), scale << FLOAT32_MANTISSA_BITS)
    return torch.where(scale == SCALE_NAN, float("nan"), bits.view(torch.float32))


def _inner_axes(blocks: Blocks) -> tuple[int, ...]:
    """Axes of a `_split` array that run inside a block."""
    return {"along_d": (-1,), "along_tokens": (-2,), "square": (-3, -1)}[blocks]


def _split(x: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """(..., tokens, D) with every blocked axis split into blocks and places in a block."""
    if blocks == "along_tokens":
        return x.unflatten(-2, (-1, BLOCK))
    split = x.unflatten(-1, (-1, BLOCK))
    return split.unflatten(-3, (-1, BLOCK)) if blocks == "square" else split
