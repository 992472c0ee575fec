"""From normalized hidden states to O by producers and attention kernels: on a Blackwell GPU, or, for CPU tensors, in the
emulator.

    projection      `gemm_quantize`: the epilogue quantizes, Q, K and V leave as codes and scales
    RoPE, k_mean    the projection writes BF16, torch turns or centres it, `quantize` follows
    QK-norm         the projection writes BF16, `rmsnorm_quantize` follows

Two torch operators, so that autograd, `torch.compile` and FakeTensor see whole steps. Gradients go straight through what was
rounded. Kept for the backward: what the producers read (h in BF16, once for all three; Q and K in BF16 where they are
normalized), codes and scales of both orientations, O and lse; no float copy of what the epilogue quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from mxfp8fa.attention.checks import Call
from mxfp8fa.attention.estimate import announced
from mxfp8fa.kernels.execution import require_toolchain, target_of
from mxfp8fa.kernels.operands import MXOperand, packed_shapes
from mxfp8fa.kernels.supported import HEAD_DIMS, check_backward_options, check_forward_options
from mxfp8fa.nn.layer_numerics import Layer, Weights, positions_of, project, project_backward
from mxfp8fa.nn.sequences import Sequences, rotate
from mxfp8fa.numerics.options import AttentionOptions

PROJECT, NORM, QUANTIZE = "project", "norm", "quantize"  # how one of Q, K and V is made
Axes = tuple[int, ...]
_options_from = lru_cache(maxsize=256)(AttentionOptions.from_text)


def attend_in_kernels(h: torch.Tensor, weights: Weights, layer: Layer, sequences: Sequences | None) -> torch.Tensor:
    """O (..., Hq, D) in BF16: see `layer_numerics.attend_in_torch`. Packed sequences run one after another.

    Raises:
        ValueError: a head_dim, options or a device that the kernels do not take; nothing has been compiled then.
    """
    if layer.head_dim not in HEAD_DIMS:
        raise ValueError(
            f"head_dim = {layer.head_dim} is not supported by the kernels; allowed: {' and '.join(map(str, HEAD_DIMS))}, or "
            "backend='torch'"
        )
    if h.shape[-1] % 32:
        raise ValueError(f"width = {h.shape[-1]}; the quantizing projection takes multiples of 32; or backend='torch'")
    check_forward_options(layer.options)
    if torch.is_grad_enabled() and (h.requires_grad or weights.q.requires_grad):
        check_backward_options(layer.options)
    target_of(h.device)
    require_toolchain()
    if sequences is None:
        return _attend(h, weights, layer)
    parts = [_attend(part[None], weights, layer)[0] for part in h.split(sequences.lengths.tolist())]
    return torch.cat(parts)


def _attend(h: torch.Tensor, weights: Weights, layer: Layer) -> torch.Tensor:
    """Of one dense batch (B, S, width)."""
    sources, factors, ways = zip(*(_source(h, weights, layer, name) for name in ("q", "k", "v")), strict=True)
    options = replace(layer.options, k_mean=False)
    o, _, _ = layer_forward(
        *sources, *factors, ",".join(ways), layer.head_dim, layer.eps, layer.softmax_scale, layer.causal, options.text
    )
    return o


def _source(
    h: torch.Tensor, weights: Weights, layer: Layer, name: str
) -> tuple[torch.Tensor, torch.Tensor | None, str]:
    """What a producer reads, its weight, and which producer it is."""
    weight: torch.Tensor = getattr(weights, name)
    norm = getattr(weights, f"{name}_norm", None)
    turned = name != "v" and layer.rope_base is not None
    centred = name == "k" and layer.options.k_mean
    if norm is None and not turned and not centred:
        return h, weight, PROJECT
    x = project(h, weight).unflatten(-1, (-1, layer.head_dim))
    if norm is not None and not turned and not centred:
        return x, norm, NORM
    if norm is not None:
        x = torch.nn.functional.rms_norm(x.float(), (layer.head_dim,), norm.float(), layer.eps)
    if turned:
        assert layer.rope_base is not None
        x = rotate(x, positions_of(h, None), layer.rope_base).bfloat16()
    if centred:
        x = x.float() - x.float().mean(1, keepdim=True)
    return x, None, QUANTIZE


def _axes(options: AttentionOptions, causal: bool) -> list[list[Axes]]:
    """Blocked axes of the payloads of Q, K and V: the forward's first, then the backward's if it reads another one."""
    square = options.resolved_qk_blocks(causal) == "square"
    second: Axes = (1, 3) if options.grad_qk_blocks == "square" else (1,)
    qk: list[Axes] = [(1, 3)] if square else [(3,), second]
    v: Axes = (1,) if options.v_blocks == "1x32" else (1, 3)
    grad_v: Axes = (3,) if options.resolved_grad_v_blocks == "1x32" else (1, 3)
    return [qk, qk, [v] if v == grad_v else [v, grad_v]]


@torch.library.custom_op("mxfp8fa::layer_forward", mutates_args=())
def layer_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_factor: torch.Tensor | None,
    k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None,
    ways: str,
    head_dim: int,
    eps: float,
    softmax_scale: float,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """O (B, S, Hq, D) BF16, lse, and the payloads: codes and packed scales of Q, K and V, one after another."""
    from mxfp8fa.kernels.forward import forward

    chosen, payloads = _options_from(options), []
    for x, factor, way, axes in zip(
        (q, k, v), (q_factor, k_factor, v_factor), ways.split(","), _axes(chosen, causal), strict=True
    ):
        payloads.append(_produce(x, factor, way, axes, head_dim, eps, chosen.rule))
    operands = [made[0] for made in payloads]
    with announced(_call(operands, softmax_scale, causal, chosen)):
        o, lse = forward(
            *operands, softmax_scale=softmax_scale, causal=causal, options=chosen, out_dtype=torch.bfloat16
        )
    return o, lse, [part for made in payloads for operand in made for part in _parts(operand)]


def _call(operands: Sequence[MXOperand], softmax_scale: float, causal: bool, options: AttentionOptions) -> Call:
    """The attention of a layer as one call, to say how long it will take in the emulator."""
    q, k, v = (operand.codes for operand in operands)
    return Call((q, k, v), ((), (), ()), ((), (), ()), softmax_scale, causal, options)


def _produce(
    x: torch.Tensor, factor: torch.Tensor | None, way: str, axes: Sequence[Axes], head_dim: int, eps: float, rule: str
) -> list[MXOperand]:
    """The payloads of one operand."""
    from mxfp8fa.kernels.producers import gemm_quantize, quantize, rmsnorm_quantize

    if way == PROJECT:
        assert factor is not None
        found = gemm_quantize(x, factor, head_dim=head_dim, axes=axes, rule=rule)
        return [found] if isinstance(found, MXOperand) else list(found)
    if way == NORM:
        assert factor is not None
        return [rmsnorm_quantize(x, factor, axes=each, eps=eps, rule=rule).operand for each in axes]
    return [quantize(x, axes=each, rule=rule) for each in axes]


def _parts(operand: MXOperand) -> list[torch.Tensor]:
    return [operand.codes, *(operand.scales[rows] for rows in sorted(operand.scales))]


def _operands(parts: Sequence[torch.Tensor], axes: list[list[Axes]]) -> list[list[MXOperand]]:
    """The inverse of `_parts`, for all three."""
    rest, found = list(parts), []
    for kinds in axes:
        made = []
        for each in kinds:
            codes = rest.pop(0)
            names = sorted(packed_shapes(tuple(codes.shape), each, None))
            made.append(MXOperand(codes, {rows: rest.pop(0) for rows in names}, each))
        found.append(made)
    return found


@layer_forward.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_factor: torch.Tensor | None, k_factor: torch.Tensor | None,
    v_factor: torch.Tensor | None, ways: str, head_dim: int, eps: float, softmax_scale: float, causal: bool, options: str,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """Shapes of the results."""
    shapes = []
    for x, factor, way in zip((q, k, v), (q_factor, k_factor, v_factor), ways.split(","), strict=True):
        heads = factor.shape[0] // head_dim if way == PROJECT and factor is not None else x.shape[2]
        shapes.append((x.shape[0], x.shape[1], heads, head_dim))
    parts = []
    for shape, kinds in zip(shapes, _axes(_options_from(options), causal), strict=True):
        for each in kinds:
            packed = packed_shapes(shape, each, None)
            parts += [q.new_empty(s, dtype=torch.uint8) for s in (shape, *(packed[rows] for rows in sorted(packed)))]
    batch, tokens, heads, _ = shapes[0]
    return q.new_empty(shapes[0], dtype=torch.bfloat16), q.new_empty((batch, heads, tokens), dtype=torch.float32), parts


@torch.library.custom_op("mxfp8fa::layer_backward", mutates_args=())
def layer_backward(
    do: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    payloads: Sequence[torch.Tensor],
    softmax_scale: float,
    causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV in BF16."""
    from mxfp8fa.kernels.backward import backward

    chosen = _options_from(options)
    q, k, v = _operands(payloads, _axes(chosen, causal))
    q_second, k_second = (q[1], k[1]) if len(q) > 1 else (None, None)
    with announced(_call([q[0], k[0], v[0]], softmax_scale, causal, chosen), backward=True):
        dq, dk, dv = backward(
            q[0], k[0], v[-1], o, lse, do.contiguous(), softmax_scale=softmax_scale, causal=causal, options=chosen,
            dtype=torch.bfloat16, q_second=q_second, k_second=k_second,
        )  # fmt: skip
    return dq, dk, dv


@layer_backward.register_fake
def _(
    do: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, payloads: Sequence[torch.Tensor], softmax_scale: float, causal: bool,
    options: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Shapes of the results."""
    q, k, v = _operands(payloads, _axes(_options_from(options), causal))
    dq, dk, dv = (o.new_empty(x[0].shape) for x in (q, k, v))
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    tensors, (ways, _, eps, *rest) = inputs[:6], inputs[6:]
    o, lse, payloads = output
    ctx.save_for_backward(*tensors, o, lse, *payloads)
    ctx.ways, ctx.eps, ctx.arguments = ways.split(","), eps, rest


def _gradient(ctx: Any, do: torch.Tensor, _dlse: torch.Tensor, _dpayloads: Any) -> tuple[Any, ...]:
    *tensors, o, lse = ctx.saved_tensors[:8]
    gradients = layer_backward(do, o, lse, ctx.saved_tensors[8:], *ctx.arguments)
    sources, factors = [], []
    for x, factor, way, dy in zip(tensors[:3], tensors[3:], ctx.ways, gradients, strict=True):
        if way == PROJECT:
            found = project_backward(dy.flatten(-2), x, factor)
        elif way == NORM:
            found = _norm_backward(dy.float(), x.float(), factor, ctx.eps)
        else:
            found = (dy, None)
        sources.append(found[0].to(x.dtype))
        factors.append(found[1])
    return *sources, *factors, None, None, None, None, None, None


def _norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and of the weight from that of RMSNorm(x), in float32."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal, scaled = x * rstd, dy * weight.float()
    dx = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    return dx, (dy * normal).flatten(0, -2).sum(0).to(weight.dtype)


layer_forward.register_autograd(_gradient, setup_context=_keep)
