"""`flash_attn_func`: the call, in the form that users of flash-attn know."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, TypeAlias, overload

import torch

from mxfp8fa.attention.operators import attention_forward
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.numerics.options import AttentionOptions

DEFAULT_OPTIONS = AttentionOptions()
Input: TypeAlias = "torch.Tensor | MXOperand"


@overload
def flash_attn_func(
    q: Input, k: Input, v: Input, softmax_scale: float | None = None, causal: bool = False,
    return_lse: Literal[False] = False, *, options: AttentionOptions | None = None,
) -> torch.Tensor: ...  # fmt: skip


@overload
def flash_attn_func(
    q: Input, k: Input, v: Input, softmax_scale: float | None = None, causal: bool = False,
    return_lse: Literal[True] = ..., *, options: AttentionOptions | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip


def flash_attn_func(
    q: Input,
    k: Input,
    v: Input,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    *,
    options: AttentionOptions | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(softmax_scale * Q K^T) V in MXFP8.

    CUDA tensors run on a Blackwell GPU, CPU tensors in the emulator, which is some million times slower: a call that
    takes long says so first, on stderr, and then how far it is. The kernel is compiled once for each head_dim, dtype and
    the like, whatever the lengths, batch and number of heads. Works under `torch.compile`.

    Differentiable in q, k, v for floats, through O and lse, straight through their quantization: the backward is five
    products in MXFP8 (`mxfp8fa.kernels.backward`). For it the forward keeps q, k, v, O and lse: of its own making are O and
    lse, for 16-bit tensors 2 D + 4 bytes a query and head. `MXOperand`s go to `flash_attn_backward`.

    Args:
        q: (B, Sq, Hq, D), D = 64 or 128. Floats (bfloat16, float16, float32; any strides) are quantized first, as
            `options` says. An `MXOperand` is taken as it is: blocks along D, or square over tokens and D.
        k: (B, Sk, Hkv, D), likewise; Hkv divides Hq, and query head h reads key head h // (Hq / Hkv).
        v: the shape of k; an `MXOperand` has blocks along the tokens, or square ones.
        softmax_scale: 1 / sqrt(D) if None.
        causal: query i sees key j when j <= i + Sk - Sq (bottom-right aligned).
        return_lse: also return lse.
        options: how it rounds; `AttentionOptions()` if None.

    Returns:
        O, the shape of q, in options.out_dtype: by default q's dtype, bfloat16 for an `MXOperand`. With return_lse also
        lse, (B, Hq, Sq) float32, natural logarithm. A query that sees no key has O = 0 and lse = -inf.

    Raises:
        ValueError: something that is not allowed, or a device that no kernel runs on; says what is allowed. Nothing has
            been compiled then.
        NotImplementedError: a second derivative is asked for.
        ModuleNotFoundError: the extra `kernels` is not installed.
    """
    options, scale = checked_choices(options, softmax_scale, causal=causal, return_lse=return_lse)
    parts = [parts_of(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    tensors, scales, axes = zip(*parts, strict=True)
    o, lse = attention_forward(*tensors, *scales, *axes, scale, causal, options.text)
    return (o, lse) if return_lse else o


def checked_choices(
    options: AttentionOptions | None, softmax_scale: float | None, **choices: Any
) -> tuple[AttentionOptions, float | None]:
    """Options and scale of a call.

    Raises:
        ValueError: options of another type, a scale that is no number, a choice that is neither True nor False.
    """
    options = DEFAULT_OPTIONS if options is None else options
    if not isinstance(options, AttentionOptions):
        raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
    for name, value in choices.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r} must be True or False")
    if softmax_scale is not None and (isinstance(softmax_scale, bool) or not isinstance(softmax_scale, Real)):
        raise ValueError(f"softmax_scale = {softmax_scale!r} must be a finite number above 0")
    return options, None if softmax_scale is None else float(softmax_scale)


def parts_of(name: str, x: Any, *, packed: bool = False) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
    """What a torch operator can be given: floats or codes, packed scales, blocked axes.

    Raises:
        ValueError: neither a tensor nor an MXOperand, or one with cu_seqlens where there are none, or the reverse.
    """
    if isinstance(x, MXOperand):
        if x.fmt != "e4m3" or (x.cu_seqlens is None) is packed:
            raise ValueError(
                f"{name} is an MXOperand in {x.fmt} {'without' if x.cu_seqlens is None else 'with'} cu_seqlens; allowed: "
                f"e4m3 {'with' if packed else 'without'} cu_seqlens"
            )
        return x.codes, [x.scales[rows] for rows in sorted(x.scales)], list(x.axes)
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name} is a {type(x).__name__}; allowed: a torch tensor or an MXOperand")
    return x, [], []
