"""From normalized hidden states to O by producers and attention kernels: on a Blackwell GPU, or, for CPU tensors, in the
emulator.

    projection      `gemm_quantize`: the epilogue quantizes, Q, K and V leave as codes and scales
    RoPE, k_mean    the projection writes BF16, torch turns or centres it, `quantize` follows; also where there is a bias
    QK-norm         the projection writes BF16, `rmsnorm_quantize` follows
    packed          every one of them, and attention, takes sequences of any lengths in one launch

Two torch operators, so that autograd, `torch.compile` and FakeTensor see whole steps. Gradients go straight through what was
rounded. Kept for the backward: what the producers read (h in BF16, once for all three; Q and K in BF16 where they are
normalized), codes and scales of both orientations, O and lse; no float copy of what the epilogue quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mxfp8fa.attention.checks import Call, options_from
from mxfp8fa.attention.estimate import announced
from mxfp8fa.kernels.execution import require_toolchain, target_of
from mxfp8fa.kernels.jagged import Jagged, host_may_look
from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.kernels.supported import HEAD_DIMS, check_backward_options, check_forward_options
from mxfp8fa.layouts import ATOM_BYTES, ATOM_ROWS
from mxfp8fa.nn.layer_numerics import Inputs, Layer, Weights, attend_in_torch, positions_of, project, project_backward
from mxfp8fa.nn.products import without_autocast
from mxfp8fa.nn.sequences import Sequences, rotate
from mxfp8fa.numerics.options import AttentionOptions

PROJECT, NORM, QUANTIZE = "project", "norm", "quantize"  # how one of Q, K and V is made
Axes = tuple[int, ...]


def attend_in_kernels(inputs: Inputs, weights: Weights, layer: Layer) -> torch.Tensor:
    """O (..., Hq, D) in BF16: see `layer_numerics.attend_in_torch`.

    Raises:
        ValueError: a head_dim, options or a device that the kernels do not take; nothing has been compiled then.
    """
    h, context, sequences = inputs.h, inputs.context, inputs.sequences
    if layer.head_dim not in HEAD_DIMS:
        raise ValueError(
            f"head_dim = {layer.head_dim} is not supported by the kernels; allowed: {' and '.join(map(str, HEAD_DIMS))}, or "
            "backend='torch'"
        )
    for x in (h, context):
        if x.shape[-1] % 32:
            raise ValueError(f"width = {x.shape[-1]}; the quantizing projection takes multiples of 32; or backend='torch'")
    check_forward_options(layer.options)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (h, context, weights.q, weights.k, weights.v)):
        check_backward_options(layer.options)
    target_of(h.device)
    require_toolchain()
    if h.shape[:-1].numel() == 0 or context.shape[:-1].numel() == 0:
        return attend_in_torch(inputs, weights, layer, "mxfp8")  # nothing to launch a kernel for
    sources, factors, ways = zip(*(_source(inputs, weights, layer, n) for n in ("q", "k", "v")), strict=True)
    options = replace(layer.options, k_mean=False)
    lengths = (None if each is None else each.cu_seqlens for each in (sequences, inputs.sequences_k))
    o, _, _ = layer_forward(
        *sources, *factors, *lengths, ",".join(ways), layer.head_dim, layer.eps, layer.softmax_scale, layer.causal,
        options.text,
    )  # fmt: skip
    return o


def _source(inputs: Inputs, weights: Weights, layer: Layer, name: str) -> tuple[torch.Tensor, torch.Tensor | None, str]:
    """What a producer reads, its weight, and which producer it is."""
    h, sequences = (inputs.h, inputs.sequences) if name == "q" else (inputs.context, inputs.sequences_k)
    weight: torch.Tensor = getattr(weights, name)
    bias, norm = (getattr(weights, name + kind, None) for kind in ("_bias", "_norm"))
    turned = name != "v" and layer.rope_base is not None
    centred = name == "k" and layer.options.k_mean
    if bias is None and norm is None and not turned and not centred:
        return h, weight, PROJECT
    x = project(h, weight, bias).unflatten(-1, (-1, layer.head_dim))
    if norm is not None and not turned and not centred:
        return x, norm, NORM
    if norm is not None:
        x = torch.nn.functional.rms_norm(x.float(), (layer.head_dim,), norm.float(), layer.eps)
    if turned:
        assert layer.rope_base is not None
        x = rotate(x, positions_of(h, sequences), layer.rope_base).bfloat16()
    if centred:
        x = x.float() - _mean(x.float(), sequences)
    return x, None, QUANTIZE


def _mean(x: torch.Tensor, sequences: Sequences | None) -> torch.Tensor:
    """Over the tokens of each sequence, for every token of it (B, 1, H, D) or (T, H, D)."""
    if sequences is None:
        return x.mean(1, keepdim=True)
    number = sequences.number()
    sums = x.new_zeros((sequences.count, *x.shape[1:])).index_add(0, number, x)
    return (sums / sequences.lengths.clamp(min=1)[:, None, None]).index_select(0, number)


def _axes(options: AttentionOptions, causal: bool, packed: bool) -> list[list[Axes]]:
    """Blocked axes of the payloads of Q, K and V: the forward's first, then the backward's if it reads another one."""
    tokens: Axes = (0,) if packed else (1,)
    d: Axes = (2,) if packed else (3,)
    square = tokens + d
    second = square if options.grad_qk_blocks == "square" else tokens
    qk: list[Axes] = [square] if options.resolved_qk_blocks(causal) == "square" else [d, second]
    v = tokens if options.v_blocks == "1x32" else square
    grad_v = d if options.resolved_grad_v_blocks == "1x32" else square
    return [qk, qk, [v] if v == grad_v else [v, grad_v]]


def _jagged(
    cu_seqlens: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor
) -> Jagged | None:
    """The sequences of a call; q and k have their tokens along axis 0."""
    if cu_seqlens is None or cu_seqlens_k is None:
        return None
    return Jagged(cu_seqlens, cu_seqlens_k, len(q), len(k), exact=host_may_look(q.device))


@torch.library.custom_op("mxfp8fa::layer_forward", mutates_args=())
def layer_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_factor: torch.Tensor | None,
    k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    ways: str,
    head_dim: int,
    eps: float,
    softmax_scale: float,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """O (B, S, Hq, D) BF16, lse, and the payloads: codes and packed scales of Q, K and V, one after another.

    With cu_seqlens tokens are packed, (T, Hq, D), and those of K and V by cu_seqlens_k.
    """
    from mxfp8fa.kernels.forward import forward

    chosen, payloads = options_from(options), []
    kinds, lengths = _axes(chosen, causal, cu_seqlens is not None), (cu_seqlens, cu_seqlens_k, cu_seqlens_k)
    made_of = zip((q, k, v), (q_factor, k_factor, v_factor), ways.split(","), kinds, lengths, strict=True)
    for x, factor, way, axes, each in made_of:
        payloads.append(_produce(x, factor, way, axes, head_dim, eps, chosen.rule, each))
    operands, sequences = [made[0] for made in payloads], _jagged(cu_seqlens, cu_seqlens_k, q, k)
    with announced(_call(operands, softmax_scale, causal, chosen, sequences)):
        o, lse = forward(
            *operands, softmax_scale=softmax_scale, causal=causal, options=chosen, out_dtype=torch.bfloat16,
            sequences=sequences,
        )  # fmt: skip
    return o, lse, [part for made in payloads for operand in made for part in _parts(operand)]


def _call(
    operands: Sequence[MXOperand], softmax_scale: float, causal: bool, options: AttentionOptions, sequences: Jagged | None
) -> Call:
    """The attention of a layer as one call, to say how long it will take in the emulator."""
    q, k, v = (operand.codes for operand in operands)
    return Call((q, k, v), ((), (), ()), ((), (), ()), softmax_scale, causal, options, sequences)


def _produce(
    x: torch.Tensor, factor: torch.Tensor | None, way: str, axes: Sequence[Axes], head_dim: int, eps: float, rule: str,
    cu_seqlens: torch.Tensor | None,
) -> list[MXOperand]:  # fmt: skip
    """The payloads of one operand."""
    from mxfp8fa.kernels.producers import gemm_quantize, quantize, rmsnorm_quantize

    lengths: dict[str, Any] = {"rule": rule, "cu_seqlens": cu_seqlens}
    if way == PROJECT:
        assert factor is not None
        found = gemm_quantize(x, factor, head_dim=head_dim, axes=axes, **lengths)
        return [found] if isinstance(found, MXOperand) else list(found)
    if way == NORM:
        assert factor is not None
        return [rmsnorm_quantize(x, factor, axes=each, eps=eps, **lengths).operand for each in axes]
    return [quantize(x, axes=each, **lengths) for each in axes]


def _parts(operand: MXOperand) -> list[torch.Tensor]:
    return [operand.codes, *(operand.scales[rows] for rows in sorted(operand.scales))]


def _names(axes: Axes, rank: int) -> list[str]:
    """Orientations of the packed scales of codes of this rank, in order."""
    return [name for name, axis in (("head_dim", rank - 3), ("tokens", rank - 1)) if axis in axes]


def _operands(
    parts: Sequence[torch.Tensor], axes: list[list[Axes]], cu_seqlens: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None
) -> list[list[MXOperand]]:
    """The inverse of `_parts`, for all three."""
    rest, found = list(parts), []
    for kinds, lengths in zip(axes, (cu_seqlens, cu_seqlens_k, cu_seqlens_k), strict=True):
        made = []
        for each in kinds:
            codes = rest.pop(0)
            scales = {rows: rest.pop(0) for rows in _names(each, codes.ndim)}
            made.append(MXOperand(codes, scales, each, cu_seqlens=lengths))
        found.append(made)
    return found


@layer_forward.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_factor: torch.Tensor | None, k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None, cu_seqlens: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, ways: str,
    head_dim: int, eps: float, softmax_scale: float, causal: bool, options: str,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """Shapes of the results."""
    packed, shapes = cu_seqlens is not None, []
    for x, factor, way in zip((q, k, v), (q_factor, k_factor, v_factor), ways.split(","), strict=True):
        heads = factor.shape[0] // head_dim if way == PROJECT and factor is not None else x.shape[-2]
        shapes.append((*x.shape[: 1 if packed else 2], heads, head_dim))
    parts = []
    for shape, kinds in zip(shapes, _axes(options_from(options), causal, packed), strict=True):
        for each in kinds:
            parts.append(q.new_empty(shape, dtype=torch.uint8))
            parts += [q.new_empty(size, dtype=torch.uint8) for size in _scale_shapes(shape, each)]
    *batch, tokens, heads, _ = shapes[0]
    return q.new_empty(shapes[0], dtype=torch.bfloat16), q.new_empty((*batch, heads, tokens), dtype=torch.float32), parts


def _scale_shapes(shape: tuple[int, ...], axes: Axes) -> list[tuple[Any, ...]]:
    """Of packed scales; how many tiles packed sequences have, only their lengths say."""
    if len(shape) == 4:
        found = packed_shapes(shape, axes, None)
        return [found[rows] for rows in _names(axes, 4)]
    tiles = torch.library.get_ctx().new_dynamic_size
    head_dim = -(-shape[2] // ATOM_ROWS)
    sizes = {"tokens": lambda: (tiles(), head_dim), "head_dim": lambda: (head_dim, tiles())}
    return [(shape[1], *sizes[rows](), ATOM_BYTES) for rows in _names(axes, 3)]


@torch.library.custom_op("mxfp8fa::layer_backward", mutates_args=())
def layer_backward(
    do: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    payloads: Sequence[torch.Tensor],
    cu_seqlens: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    softmax_scale: float,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV in BF16."""
    from mxfp8fa.kernels.backward import backward

    chosen = options_from(options)
    q, k, v = _operands(payloads, _axes(chosen, causal, cu_seqlens is not None), cu_seqlens, cu_seqlens_k)
    sequences = _jagged(cu_seqlens, cu_seqlens_k, o, k[0].codes)
    packed: dict[str, Any] = {} if sequences is None else {"sequences": sequences}
    q_second, k_second = (q[1], k[1]) if len(q) > 1 else (None, None)
    with announced(_call([q[0], k[0], v[0]], softmax_scale, causal, chosen, sequences), backward=True):
        dq, dk, dv = backward(
            q[0], k[0], v[-1], o, lse, do.contiguous(), softmax_scale=softmax_scale, causal=causal, options=chosen,
            dtype=torch.bfloat16, q_second=q_second, k_second=k_second, **packed,
        )  # fmt: skip
    return dq, dk, dv


@layer_backward.register_fake
def _(
    do: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, payloads: Sequence[torch.Tensor],
    cu_seqlens: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None, softmax_scale: float, causal: bool, options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Shapes of the results."""
    place, found = 0, []
    for kinds in _axes(options_from(options), causal, cu_seqlens is not None):
        found.append(o.new_empty(payloads[place].shape))
        place += sum(1 + len(_names(each, o.ndim)) for each in kinds)
    dq, dk, dv = found
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, (cu_seqlens, cu_seqlens_k, ways, _, eps, *rest) = inputs[:6], inputs[6:]
    o, lse, payloads = output
    ctx.save_for_backward(*tensors, o, lse, cu_seqlens, cu_seqlens_k, *payloads)
    ctx.ways, ctx.eps, ctx.arguments = ways.split(","), eps, rest


def _gradient(ctx: Any, do: torch.Tensor, _dlse: torch.Tensor, _dpayloads: Any) -> tuple[Any, ...]:
    *tensors, o, lse, cu_seqlens, cu_seqlens_k = ctx.saved_tensors[:10]
    gradients = layer_backward(do, o, lse, ctx.saved_tensors[10:], cu_seqlens, cu_seqlens_k, *ctx.arguments)
    sources, factors = [], []
    for x, factor, way, dy in zip(tensors[:3], tensors[3:], ctx.ways, gradients, strict=True):
        if way == PROJECT:
            with without_autocast(dy):
                found = project_backward(dy.flatten(-2), x, factor)
        elif way == NORM:
            found = _norm_backward(dy.float(), x.float(), factor, ctx.eps)
        else:
            found = (dy, None)
        sources.append(found[0].to(x.dtype))
        factors.append(found[1])
    return *sources, *factors, *[None] * 8


def _norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and of the weight from that of RMSNorm(x), in float32."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal, scaled = x * rstd, dy * weight.float()
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx, (dy * normal).flatten(0, -2).sum(0).to(weight.dtype)


layer_forward.register_autograd(_gradient, setup_context=_keep)
