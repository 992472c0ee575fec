"""`flash_attn_varlen_func`: packed sequences of any lengths, in the form that users of flash-attn know."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from mxfp8fa.attention.api import Input, checked_choices, parts_of
from mxfp8fa.attention.checks import NAMES, NO_PARTS, Call, check_call, options_from
from mxfp8fa.attention.gradient import empty_gradients, keep, run_backward
from mxfp8fa.attention.operators import no_second_gradient
from mxfp8fa.attention.payloads import payloads
from mxfp8fa.kernels.jagged import OFFSET_DTYPES, Jagged, host_may_look
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.numerics.options import AttentionOptions

MAX_TOKENS = 2**31 - 1
_FLOATS = NO_PARTS, NO_PARTS


def flash_attn_varlen_func(
    q: Input,
    k: Input,
    v: Input,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    *,
    broadcast_q: bool = False,
    validate: bool = False,
    options: AttentionOptions | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(softmax_scale * Q K^T) V in MXFP8 for every sequence of a packed batch.

    Sequences lie end to end. Nothing is gathered or padded but scales, of which every sequence has whole tiles of 128 tokens;
    each gets bit for bit what `flash_attn_func` gives it alone. Lengths are any, 0 too, on either side. Differentiable in
    q, k, v for floats, as `flash_attn_func` is; the gradient of a q that sequences share is their sum, added up in FP32
    whatever options.dq_accumulate says.

    Nobody waits for a GPU: tables of work and of tiles are made there, and memory is taken by a bound.

    Args:
        q: (Tq, Hq, D), D = 64 or 128; with broadcast_q one block (Sq, Hq, D) that all sequences share. Floats are
            quantized first, blocks along the tokens restarting at every sequence; an `MXOperand` has the same cu_seqlens.
        k: (Tk, Hkv, D); Hkv divides Hq.
        v: the shape of k.
        cu_seqlens_q: (B + 1,) int32 or int64, where every sequence's queries begin, and Tq; None with broadcast_q.
        cu_seqlens_k: (B + 1,), where its keys begin, and Tk.
        max_seqlen_q: the longest sequence of queries, or more. As in flash-attn; the kernels do not need it.
        max_seqlen_k: of keys.
        softmax_scale: 1 / sqrt(D) if None.
        causal: query i sees key j when j <= i + seqlen_k - seqlen_q, in every sequence.
        return_lse: also return lse.
        broadcast_q: all sequences share their queries.
        validate: look at the offsets of CUDA tensors too, which waits for the device; those of CPU tensors are always
            looked at. Offsets that are wrong and not looked at make the result undefined.
        options: how it rounds; `AttentionOptions()` if None.

    Returns:
        O, the shape of q, or (B * Sq, Hq, D) with broadcast_q, in options.out_dtype; with return_lse also lse (Hq, rows of O)
        float32. A query that sees no key has O = 0 and lse = -inf.

    Raises:
        ValueError: something that is not allowed; says what is. Nothing has been compiled then.
        NotImplementedError: a second derivative is asked for.
        ModuleNotFoundError: the extra `kernels` is not installed.
    """
    options, scale = checked_choices(
        options, softmax_scale, causal=causal, return_lse=return_lse, broadcast_q=broadcast_q, validate=validate
    )
    if broadcast_q != (cu_seqlens_q is None):
        given = "None" if cu_seqlens_q is None else "a tensor"
        raise ValueError(
            f"cu_seqlens_q is {given} and broadcast_q = {broadcast_q}; allowed: None exactly if broadcast_q"
        )
    _check_kinds(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    parts = [parts_of(name, x, packed=True) for name, x in (("q", q), ("k", k), ("v", v))]
    tensors, scales, axes = zip(*parts, strict=True)
    o, lse = attention_varlen_forward(
        *tensors,
        *scales,
        *axes,
        [x.cu_seqlens for x in (q, k, v) if isinstance(x, MXOperand) and x.cu_seqlens is not None],
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale,
        causal,
        validate,
        options.text,
    )
    return (o, lse) if return_lse else o


def _check_kinds(cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any) -> None:
    """What an operator's schema would refuse in words of its own."""
    for name, longest in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if isinstance(longest, bool) or not isinstance(longest, int | torch.SymInt) or longest < 0:
            raise ValueError(f"{name} = {longest!r}; allowed: an integer, 0 or more")
    for name, offsets in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(offsets, torch.Tensor) and (offsets is not None or name == "cu_seqlens_k"):
            raise ValueError(f"{name} is a {type(offsets).__name__}; allowed: a torch tensor")


@torch.library.custom_op("mxfp8fa::attention_varlen_forward", mutates_args=())
def attention_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scales: Sequence[torch.Tensor],
    k_scales: Sequence[torch.Tensor],
    v_scales: Sequence[torch.Tensor],
    q_axes: Sequence[int],
    k_axes: Sequence[int],
    v_axes: Sequence[int],
    own_cu_seqlens: Sequence[torch.Tensor],
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    validate: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and lse: see `flash_attn_varlen_func`. Scales and axes are empty for floats, own_cu_seqlens are the operands'."""
    parts = (q, k, v), (q_scales, k_scales, v_scales), (q_axes, k_axes, v_axes)
    call = _call(parts, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, options)
    if validate or host_may_look(q.device):
        check_values(call, max_seqlen_q, max_seqlen_k)
    _check_own(call, own_cu_seqlens, look=validate or host_may_look(q.device))
    o, lse = call.empty_output()
    if o.numel() == 0:
        return o, lse
    if k.numel() == 0:
        return o.zero_(), lse.fill_(float("-inf"))
    call.check_device()
    operands, lse_shift = payloads(call)

    from mxfp8fa.attention.estimate import announced
    from mxfp8fa.kernels.forward import forward

    with announced(call):
        o, lse = forward(
            *operands, softmax_scale=call.softmax_scale, causal=causal, options=call.options, out_dtype=call.out_dtype,
            sequences=call.sequences,
        )  # fmt: skip
    return o, lse if lse_shift is None else lse + lse_shift


@attention_varlen_forward.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scales: Sequence[torch.Tensor],
    k_scales: Sequence[torch.Tensor],
    v_scales: Sequence[torch.Tensor],
    q_axes: Sequence[int],
    k_axes: Sequence[int],
    v_axes: Sequence[int],
    own_cu_seqlens: Sequence[torch.Tensor],
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    validate: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results, with the checks that need no values."""
    parts = (q, k, v), (q_scales, k_scales, v_scales), (q_axes, k_axes, v_axes)
    return _call(parts, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, options).empty_output()


@torch.library.custom_op("mxfp8fa::attention_varlen_backward", mutates_args=())
def attention_varlen_backward(
    do: torch.Tensor,
    dlse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV of a call on floats: see `flash_attn_varlen_func`."""
    call = _call(((q, k, v), *_FLOATS), cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, options)
    return run_backward(call, o, lse, do, dlse)


@attention_varlen_backward.register_fake
def _(
    do: torch.Tensor,
    dlse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    return empty_gradients(_call(((q, k, v), *_FLOATS), cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, options))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *given, _, cu_seqlens_q, cu_seqlens_k, _, _, softmax_scale, causal, _, options = inputs
    parts = tuple(given[:3]), tuple(given[3:6]), tuple(given[6:])
    keep(ctx, _call(parts, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, options), *output, softmax_scale)
    ctx.save_for_backward(*parts[0], *output, cu_seqlens_q, cu_seqlens_k)


def _gradient(ctx: Any, do: torch.Tensor, dlse: torch.Tensor) -> tuple[Any, ...]:
    gradients = attention_varlen_backward(do, dlse, *ctx.saved_tensors, *ctx.arguments)
    return *gradients, *NO_PARTS, *NO_PARTS, [], *[None] * 8


attention_varlen_forward.register_autograd(_gradient, setup_context=_keep)
attention_varlen_backward.register_autograd(no_second_gradient)  # else the operator would cut the graph in silence


def _call(
    parts: tuple[Any, Any, Any],
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    options: str,
) -> Call:
    """The checked call, by shapes, dtypes and devices.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    q, k, _ = parts[0]
    chosen = options_from(options)
    lengths = None
    for name, x in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if x is None:
            continue
        if x.dtype not in OFFSET_DTYPES or x.ndim != 1 or len(x) < 1:
            raise ValueError(f"{name} is {x.dtype} {tuple(x.shape)}; allowed: int32 or int64 (B + 1,)")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device} and q on {q.device}; allowed: one device")
        if lengths is not None and len(x) != lengths:
            raise ValueError(f"cu_seqlens_q has {lengths} elements and cu_seqlens_k {len(x)}; allowed: B + 1 each")
        lengths = len(x)
    tokens_q, tokens_k = (x.shape[0] if x.ndim else 0 for x in (q, k))
    for name, tokens in (("q", tokens_q), ("k", tokens_k)):
        if lengths == 1 and tokens:
            raise ValueError(f"cu_seqlens are of 0 sequences, but {name} has {tokens} tokens; allowed: B + 1 elements")
    sequences = Jagged(cu_seqlens_q, cu_seqlens_k, tokens_q, tokens_k, exact=host_may_look(q.device))
    if max(sequences.tokens_o, tokens_k) > MAX_TOKENS:
        raise ValueError(f"there are {max(sequences.tokens_o, tokens_k)} tokens; allowed: at most 2^31 - 1")
    return check_call(*parts, softmax_scale, causal, chosen, sequences)


def check_values(call: Call, max_seqlen_q: int, max_seqlen_k: int) -> None:
    """Look at the offsets, wherever they are.

    Raises:
        ValueError: they do not start at 0, fall, do not end at the number of tokens, or a sequence is longer than said.
    """
    sequences = call.sequences
    assert sequences is not None
    q, k, _ = call.tensors
    given = (("q", sequences.cu_seqlens_q, len(q), max_seqlen_q), ("k", sequences.cu_seqlens_k, len(k), max_seqlen_k))
    for side, offsets, tokens, longest in given:
        lengths = [tokens]
        if offsets is not None:
            values = offsets.tolist()
            lengths = [b - a for a, b in pairwise(values)]
            falls = next((i for i, n in enumerate(lengths) if n < 0), None)
            name = f"cu_seqlens_{side}"
            if values[0] != 0:
                raise ValueError(f"{name} starts at {values[0]}; allowed: 0")
            if falls is not None:
                raise ValueError(
                    f"{name} falls from {values[falls]} to {values[falls + 1]} at sequence {falls}; it must not"
                )
            if values[-1] != tokens:
                raise ValueError(f"{name} ends at {values[-1]}; allowed: {tokens}, the number of tokens of {side}")
        if lengths and max(lengths) > longest:
            raise ValueError(f"max_seqlen_{side} = {longest}; the longest sequence has {max(lengths)} tokens")


def _check_own(call: Call, own: Sequence[torch.Tensor], *, look: bool) -> None:
    """Operands were quantized for the sequences that the call is about, as far as can be said, if not `look`, without values.

    Raises:
        ValueError: they were quantized for others.
    """
    quantized = [name for name, axes in zip(NAMES, call.axes, strict=True) if axes]
    for name, given in zip(quantized, own, strict=True):
        said = call.cu_seqlens(name)
        assert said is not None
        what = f"{name} is an MXOperand of {len(given) - 1} sequences and the call is about {len(said) - 1}"
        if len(given) != len(said):
            raise ValueError(f"{what}; allowed: the same")
        pairs = enumerate(zip(given.tolist(), said.tolist(), strict=True)) if look else ()
        differs = next((i for i, (a, b) in pairs if a != b), None)
        if differs is not None:
            raise ValueError(f"{what}; cu_seqlens differ at {differs}; allowed: the same")
