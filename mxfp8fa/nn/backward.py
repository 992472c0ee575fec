"""The backward of MXFP8 attention on (B, H, S, D) tensors: `mxfp8fa.numerics.backward`, all heads at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from mxfp8fa.nn.blocks import quantize
from mxfp8fa.nn.elementary import float32, fma, row_dot
from mxfp8fa.nn.forward import Call, pad_tokens, prepare_scores
from mxfp8fa.nn.products import product
from mxfp8fa.nn.softmax import probabilities
from mxfp8fa.numerics import softmax as model
from mxfp8fa.numerics.dq import AUTO_SCALE_MARGIN, FLOAT16_MAX
from mxfp8fa.numerics.operands import Blocks
from mxfp8fa.numerics.options import DQ_SCALE_LOG2_RANGE

LOG2_E = float(model.LOG2_E)
# Keys of a step where the order of dQ's sum does not matter: dS has squares of 32, so the codes do not depend on it.
CHUNK_KEYS = 1024


class _Operands(NamedTuple):
    """Values of everything the five products read; keys are padded to a multiple of 32 and repeated by query head."""

    q_d: torch.Tensor  # (B, Hq, Sq, D), for S
    k_d: torch.Tensor  # (B, Hq, Sk, D), for S
    v_d: torch.Tensor  # (B, Hq, Sk, D), for dP
    do_d: torch.Tensor  # (B, Hq, Sq, D), for dP
    q_tokens: torch.Tensor  # (B, Hq, Sq, D), for dK
    k_tokens: torch.Tensor  # (B, Hq, Sk, D), for dQ
    do_tokens: torch.Tensor  # (B, Hq, Sq, D), for dV
    lse_log2: torch.Tensor  # (B, Hq, Sq)


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    call: Call,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dQ, dK, dV), float32, in the shapes of q, k and v.

    Args:
        q: (B, Hq, Sq, D), as the forward got it; k and v likewise.
        k: (B, Hkv, Sk, D).
        v: likewise.
        o: (B, Hq, Sq, D) the forward's output, as it was stored.
        lse: (B, Hq, Sq) the forward's.
        do: (B, Hq, Sq, D) floats.
        call: the forward's.
    """
    q, do, k, v = (call.visibility.valid_rows(x, side) for x, side in ((q, "q"), (do, "q"), (k, "k"), (v, "k")))
    x, do_seen = _gather(q, k, v, do, lse, call)
    delta = _delta(x, do_seen, o, call)
    dk_tiles: dict[int, torch.Tensor] = {}
    dv_tiles: dict[int, torch.Tensor] = {}
    dq = _DqSum(x, call)
    for keys in _key_chunks(x.k_d.shape[-2], call):
        p, p_stored, dp = _recompute(x, keys, call)
        ds = quantize(p * (dp - delta[..., None]), "square", call.options.rule).values
        dv_tiles[keys.start] = product(p_stored.mT, x.do_tokens.mT)
        dk_tiles[keys.start] = product(ds.mT, x.q_tokens.mT)
        dq.add(product(ds, x.k_tokens[..., keys, :].mT))
    dk, dv = (_joined(tiles, x.k_d)[..., : k.shape[-2], :] for tiles in (dk_tiles, dv_tiles))
    dk, dv = (y.unflatten(1, (-1, call.group_size)).sum(2) if call.group_size > 1 else y for y in (dk, dv))
    scale = float32(call.softmax_scale)
    gradients = dq.total() * scale, dk * scale, dv
    if call.options.gradients == "float32":
        return gradients
    blocks: Blocks = "along_d" if call.options.gradients == "1x32" else "square"
    dq_out, dk_out, dv_out = (quantize(y, blocks, call.options.rule).values for y in gradients)
    return dq_out, dk_out, dv_out


def _joined(tiles: dict[int, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Tiles by their first key, in the order of the keys; no keys of the shape of `like` if there are none."""
    return torch.cat([like[..., :0, :], *(tiles[start] for start in sorted(tiles))], dim=-2)


def _gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, call: Call
) -> tuple[_Operands, torch.Tensor]:
    """The operands, and dO as delta takes it."""
    options, rule = call.options, call.options.rule
    scored = prepare_scores(q, k, call)
    square_qk = options.grad_qk_blocks == "square" or call.qk_blocks == "square"
    grad_qk: Blocks = "square" if square_qk else "along_tokens"
    same_qk = grad_qk == call.qk_blocks
    q_tokens = scored.q if same_qk else quantize(q, grad_qk, rule).values
    k_tokens = scored.k if same_qk else quantize(scored.k_float, grad_qk, rule).values
    v_d = quantize(v, "square" if options.resolved_grad_v_blocks == "square" else "along_d", rule).values
    do_d = quantize(do, "square" if options.do_blocks == "square" else "along_d", rule).values
    do_tokens = do_d if options.do_blocks == "square" else quantize(do, "along_tokens", rule).values
    inner = lse if scored.lse_shift is None else lse - scored.lse_shift
    lse_log2 = torch.where(lse == -math.inf, math.inf, inner) * LOG2_E
    k_d, v_d, k_tokens = (call.by_query_head(pad_tokens(y)) for y in (scored.k, v_d, k_tokens))
    seen = do.float() if options.delta == "unquantized_dO" else do_d
    return _Operands(scored.q, k_d, v_d, do_d, q_tokens, k_tokens, do_tokens, lse_log2), seen


def _delta(x: _Operands, do_seen: torch.Tensor, o: torch.Tensor, call: Call) -> torch.Tensor:
    """(B, Hq, Sq) rowsum(dO * O), or the sum of P * dP."""
    if call.options.delta != "sum_P_dP":
        return torch.where(torch.isinf(x.lse_log2), 0.0, row_dot(do_seen, o.float()))
    delta = torch.zeros(o.shape[:-1], dtype=torch.float64, device=o.device)
    for keys in _key_chunks(x.k_d.shape[-2], call):
        p, _, dp = _recompute(x, keys, call)
        delta = delta + (p.double() * dp).sum(-1)
    return delta.float()


def _recompute(x: _Operands, keys: slice, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P as options.row_sum has it, P as its codes have it, and dP; (B, Hq, Sq, n) each."""
    options = call.options
    s = call.visibility.mask(product(x.q_d, x.k_d[..., keys, :]), keys.start)

    def exponents(gain: int, addend: float) -> torch.Tensor:
        constant = float32(options.p_offset + float32(addend))
        intercept = gain * (constant - x.lse_log2)
        return fma(s, gain * call.scale_log2, intercept[..., None])

    p, codes = probabilities(exponents, options, s.shape[-1])
    unit = 2.0**-options.p_offset
    return p * unit, codes.view(torch.float8_e4m3fn).float() * unit, product(x.do_d, x.v_d[..., keys, :])


def _key_chunks(keys: int, call: Call) -> Iterator[slice]:
    """Keys step by step: tiles in the order in which dQ is added up when that order shows, else larger steps."""
    by_tile = call.options.dq_accumulate == "float16"
    step = call.options.tile_n if by_tile else CHUNK_KEYS
    starts = range(0, keys, step)
    for start in starts if call.options.dq_order == "ascending" or not by_tile else reversed(starts):
        yield slice(start, min(start + step, keys))


class _DqSum:
    """dQ / softmax_scale: float32, or float16 tiles times a static power of two, added up in float16."""

    def __init__(self, x: _Operands, call: Call) -> None:
        self.half = call.options.dq_accumulate == "float16"
        dtype = torch.float16 if self.half else torch.float32
        self.sum = torch.zeros(x.q_d.shape, dtype=dtype, device=x.q_d.device)
        self.factor = _dq_factor(x, call) if self.half else None

    def add(self, tile: torch.Tensor) -> None:
        """Add a (B, Hq, Sq, D) tile."""
        self.sum = self.sum + (tile if self.factor is None else (tile * self.factor).half())

    def total(self) -> torch.Tensor:
        """The sum, the static factor taken out again."""
        return self.sum if self.factor is None else self.sum.float() / self.factor


def _dq_factor(x: _Operands, call: Call) -> torch.Tensor:
    """The static factor on the float16 sum; "auto" is the bound of `mxfp8fa.numerics.dq.dq_scale_log2`."""
    if call.options.dq_scale_log2 != "auto":
        return torch.full((), 2.0**call.options.dq_scale_log2, device=x.q_d.device)
    do_norm, v_norm = (y.double().square().sum(-1).amax().sqrt() for y in (x.do_d, x.v_d))
    bound = 2 * AUTO_SCALE_MARGIN * do_norm * v_norm * x.k_tokens.double().abs().amax()
    exponent = torch.floor(torch.log2(FLOAT16_MAX / bound)).clamp(*DQ_SCALE_LOG2_RANGE)
    usable = torch.isfinite(bound) & (bound > 0)
    return torch.exp2(torch.where(usable, exponent, 0.0)).float()
