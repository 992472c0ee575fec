"""What `flash_attn_func` accepts. Everything here is decided from shapes, types and strides, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from mxfp8fa.kernels.execution import require_toolchain, target_of
from mxfp8fa.kernels.jagged import Jagged
from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.kernels.supported import HEAD_DIMS, check_forward_options
from mxfp8fa.kernels.torch_quantize import check_floats
from mxfp8fa.numerics.operands import check_softmax_scale
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import check_scale_and_mask, check_shapes

NO_PARTS: tuple[list[Any], ...] = ([], [], [])  # scales, or axes, of floats: operators have no other way to leave them out
options_from = lru_cache(maxsize=256)(AttentionOptions.from_text)  # operators take options as text
MAX_ELEMENTS = 2**31 - 1  # of one tensor: kernels count in 32 bits
TMA_ALIGNMENT_BYTES = 16  # CUDA driver API, cuTensorMapEncodeTiled: globalAddress and globalStrides
NAMES = ("q", "k", "v")
# The orientation of its scales that the product reads each operand in.
ROWS = {"q": "tokens", "k": "tokens", "v": "head_dim"}


@dataclass(frozen=True)
class Call:
    """One checked call.

    Attributes:
        tensors: q, k, v: floats, or the codes of an MXOperand.
        scales: of each, its packed scales in the order of their names, or nothing for floats.
        axes: of each, its blocked axes, or nothing for floats.
        softmax_scale: a number.
        causal: bottom-right aligned mask.
        options: of the attention.
        sequences: which sequences are packed in (T, H, D) tensors; None for (B, S, H, D).
    """

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    scales: tuple[Sequence[torch.Tensor], ...]
    axes: tuple[tuple[int, ...], ...]
    softmax_scale: float
    causal: bool
    options: AttentionOptions
    sequences: Jagged | None = None

    @property
    def token_axis(self) -> int:
        """The axis of tokens; that of D is two further on."""
        return 1 if self.sequences is None else 0

    def cu_seqlens(self, name: str) -> torch.Tensor | None:
        """Of q, k or v; None in a dense call, and where all sequences share one block of queries."""
        if self.sequences is None:
            return None
        if name != "q":
            return self.sequences.cu_seqlens_k
        if self.sequences.cu_seqlens_q is not None:
            return self.sequences.cu_seqlens_q
        return torch.arange(2, device=self.tensors[0].device) * self.sequences.tokens_q

    @property
    def out_dtype(self) -> torch.dtype:
        """dtype of O."""
        if self.options.out_dtype != "auto":
            return getattr(torch, self.options.out_dtype)
        q = self.tensors[0]
        return q.dtype if q.is_floating_point() else torch.bfloat16

    def empty_output(self) -> tuple[torch.Tensor, torch.Tensor]:
        """O and lse, nothing in them yet."""
        q = self.tensors[0]
        if self.sequences is not None:
            tokens, heads = self.sequences.tokens_o, q.shape[1]
            o = torch.empty((tokens, *q.shape[1:]), dtype=self.out_dtype, device=q.device)
            return o, torch.empty((heads, tokens), dtype=torch.float32, device=q.device)
        batch, seqlen_q, num_heads_q, _ = q.shape
        o = torch.empty(q.shape, dtype=self.out_dtype, device=q.device)
        return o, torch.empty((batch, num_heads_q, seqlen_q), dtype=torch.float32, device=q.device)

    def operand(self, index: int) -> MXOperand:
        """q, k or v as the MXOperand that it was given as."""
        codes, axes, lengths = self.tensors[index], self.axes[index], self.cu_seqlens(NAMES[index])
        names = sorted(packed_shapes(tuple(codes.shape), axes, None if lengths is None else 0))
        return MXOperand(codes, dict(zip(names, self.scales[index], strict=True)), axes, cu_seqlens=lengths)

    def check_device(self) -> None:
        """Refuse a device that no kernel runs on, and addresses that TMA cannot take: for tensors with data.

        Raises:
            ValueError: such a device or address.
            ModuleNotFoundError: kernels cannot be compiled here.
        """
        target_of(self.tensors[0].device)
        require_toolchain()
        for name, x, axes in zip(NAMES, self.tensors, self.axes, strict=True):
            if axes and x.data_ptr() % TMA_ALIGNMENT_BYTES:
                raise ValueError(
                    f"codes of {name} start at an address that is not a multiple of {TMA_ALIGNMENT_BYTES} bytes, which TMA "
                    "cannot take; copy them with .clone()"
                )


def check_call(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scales: tuple[Sequence[torch.Tensor], ...],
    axes: tuple[Sequence[int], ...],
    softmax_scale: float | None,
    causal: bool,
    options: AttentionOptions,
    sequences: Jagged | None = None,
) -> Call:
    """Check the parts of a call against each other.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    q, k, v = tensors
    check_shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape), sequences is not None)
    head_dim = q.shape[-1]
    if head_dim not in HEAD_DIMS:
        raise ValueError(
            f"head_dim = {head_dim} is not supported; allowed: {' and '.join(map(str, HEAD_DIMS))} (zero-pad D, and pass the "
            "softmax_scale of the original head_dim)"
        )
    softmax_scale = 1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale
    check_scale_and_mask(softmax_scale, causal)
    check_softmax_scale(softmax_scale)
    _check_kinds(tensors, axes, 1 if sequences is None else 0)
    check_forward_options(options)
    if options.k_mean and axes[1]:
        raise ValueError(
            "options.k_mean = True needs k as floats; k is an MXOperand (subtract the mean before quantizing)"
        )
    for name, x in zip(NAMES, tensors, strict=True):
        if x.numel() > MAX_ELEMENTS:
            raise ValueError(f"{name} has {x.numel()} elements; allowed: at most 2^31 - 1")
    return Call(tensors, scales, tuple(map(tuple, axes)), softmax_scale, causal, options, sequences)


def _check_kinds(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], axes: tuple[Sequence[int], ...], token: int
) -> None:
    """Devices, dtypes, and blocks and strides of what is quantized already."""
    devices = {name: x.device for name, x in zip(NAMES, tensors, strict=True)}
    if len(set(devices.values())) > 1:
        given = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"{given}; allowed: all on one device")
    floats = {}
    for name, x, blocked in zip(NAMES, tensors, axes, strict=True):
        if not blocked:
            check_floats(x, name)
            floats[name] = x.dtype
            continue
        contracted, shape = token if name == "v" else token + 2, "(B, S, H, D)" if token else "(T, H, D)"
        if contracted not in blocked:
            raise ValueError(
                f"{name} has blocks along axes {tuple(blocked)} of {shape}, but the product contracts axis {contracted}; "
                f"allowed: ({contracted},), or ({token}, {token + 2}) for squares"
            )
        _check_strides(name, x)
    if len(set(floats.values())) > 1:
        given = ", ".join(f"{name} is {dtype}" for name, dtype in floats.items())
        raise ValueError(f"{given}; allowed: one dtype")


def _check_strides(name: str, codes: torch.Tensor) -> None:
    """TMA needs elements along D side by side, and all else a multiple of 16 bytes apart."""
    outer = [stride for length, stride in zip(codes.shape[:-1], codes.stride()[:-1], strict=True) if length > 1]
    if codes.stride(-1) != 1 or any(stride % TMA_ALIGNMENT_BYTES or stride < 1 for stride in outer):
        raise ValueError(
            f"codes of {name} of shape {tuple(codes.shape)} have strides {codes.stride()}, which TMA cannot take; allowed: 1 for "
            f"the last axis and multiples of {TMA_ALIGNMENT_BYTES} for the others (.contiguous() copies them)"
        )
