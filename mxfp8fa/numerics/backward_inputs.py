"""What the backward works on: every tensor in the payload that its GEMMs need, lse and delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.fma import fma
from mxfp8fa.numerics.forward import as_payload, prepare_forward
from mxfp8fa.numerics.operands import (
    SERVES,
    Blocks,
    Contraction,
    flatten,
    payload_blocks,
    quantize_payload,
    shape_and_array,
)
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.problem import AttentionProblem, as_float_array
from mxfp8fa.numerics.quantize import MXTensor
from mxfp8fa.numerics.softmax import SUM_LANES, tree_sum

Float32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class SecondPayloads:
    """Payloads for the other orientation, for callers that bring `MXTensor`s whose blocks are not square.

    Attributes:
        q: for dK = dS^T Q: blocks along the tokens, or square.
        k: for dQ = dS K: likewise.
        v: for dP = dO V^T: blocks along d, or square.
        dO: for dV = P^T dO: blocks along the tokens, or square.
    """

    q: MXTensor | None = None
    k: MXTensor | None = None
    v: MXTensor | None = None
    dO: MXTensor | None = None


@dataclass(frozen=True)
class BackwardInputs:
    """Checked and quantized inputs of one backward call; payloads (T, H, D) are named by what they are contracted over.

    Attributes:
        problem: shapes, mask and scale.
        q_d: Q for S.
        k_d: K for S.
        v_d: V for dP.
        do_d: dO for dP.
        q_tokens: Q for dK.
        k_tokens: K for dQ.
        do_tokens: dO for dV.
        lse: (Hq, Tq) float32, natural log, of the scores of q_d and k_d; +inf where a query sees no key, so that P = 0.
        delta: (Hq, Tq) float32 rowsum(dO * O); None if it is to be taken from P and dP.
    """

    problem: AttentionProblem
    q_d: MXTensor
    k_d: MXTensor
    v_d: MXTensor
    do_d: MXTensor
    q_tokens: MXTensor
    k_tokens: MXTensor
    do_tokens: MXTensor
    lse: Float32
    delta: Float32 | None


def prepare_backward(
    tensors: dict[str, Any],
    O: Any,
    lse: Any,
    call: dict[str, Any],
    options: AttentionOptions,
    second: SecondPayloads,
) -> BackwardInputs:
    """Check the arguments of a backward call and quantize what is not quantized yet.

    Args:
        tensors: "q", "k", "v", "dO", floats or `MXTensor`s.
        O: the forward's output.
        lse: the forward's lse.
        call: softmax_scale, causal and the offsets, as keyword arguments of `prepare_forward`.
        options: the forward's.
        second: payloads for the other orientation.

    Raises:
        ValueError: see `attention_mxfp8_backward`.
    """
    if not isinstance(second, SecondPayloads):
        raise ValueError(f"second is a {type(second).__name__}; allowed: SecondPayloads or None")
    forward = prepare_forward(tensors["q"], tensors["k"], tensors["v"], **call, options=options)
    problem = forward.problem
    do, do_shape = shape_and_array(tensors["dO"], "dO")
    o, lse = (as_float_array(x, name, allow_float64=True) for x, name in ((O, "O"), (lse, "lse")))
    _check_shapes({"dO": do_shape, "O": o.shape}, lse.shape, _shape(tensors["q"]), problem)
    for name, x in tensors.items():
        given = getattr(second, name)
        if given is not None and given.shape != _shape(x):
            raise ValueError(f"second.{name} has shape {given.shape} and {name} {_shape(x)}; they must be equal")
    square_qk = options.grad_qk_blocks == "square" or options.resolved_qk_blocks(problem.causal) == "square"
    grad_qk: Blocks = "square" if square_qk else "along_tokens"
    grad_v: Blocks = "square" if options.resolved_grad_v_blocks == "square" else "along_d"
    do_first: Blocks = "square" if options.do_blocks == "square" else "along_d"
    do_second: Blocks = "square" if options.do_blocks == "square" else "along_tokens"
    chooser = _Chooser(problem, options.rule, second)
    do_d = as_payload(do, "dO", "d", do_first, problem, options.rule)
    q_float = None if isinstance(tensors["q"], MXTensor) else np.asarray(tensors["q"])
    v_float = None if isinstance(tensors["v"], MXTensor) else np.asarray(tensors["v"])
    lse32 = problem.flatten_lse(lse).astype(np.float32)
    unseen = lse32 == -np.inf
    delta = _delta(do, do_d, o, options)
    return BackwardInputs(
        problem,
        q_d=forward.q,
        k_d=forward.k,
        v_d=chooser.choose("v", forward.v, v_float, "d", grad_v),
        do_d=do_d,
        q_tokens=chooser.choose("q", forward.q, q_float, "tokens", grad_qk),
        k_tokens=chooser.choose("k", forward.k, forward.k_float, "tokens", grad_qk),
        do_tokens=chooser.choose("dO", do_d, None if isinstance(do, MXTensor) else do, "tokens", do_second),
        lse=np.where(unseen, np.float32(np.inf), lse32 - forward.lse_shift),
        delta=None if delta is None else np.where(unseen, np.float32(0), delta),
    )


def _check_shapes(
    like_q: dict[str, tuple[int, ...]], lse: tuple[int, ...], q: tuple[int, ...], problem: AttentionProblem
) -> None:
    for name, shape in like_q.items():
        if shape != q:
            raise ValueError(f"{name} has shape {shape} and q {q}; they must be equal")
    expected = (q[1], q[0]) if problem.jagged else (q[0], q[2], q[1])
    if lse != expected:
        layout = "(Hq, Tq)" if problem.jagged else "(B, Hq, Sq)"
        raise ValueError(f"lse has shape {lse}; it must be {layout} = {expected}")


def _shape(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, MXTensor) else np.shape(x)


@dataclass(frozen=True)
class _Chooser:
    """Finds the payload of a tensor for its second orientation."""

    problem: AttentionProblem
    rule: str
    second: SecondPayloads

    def choose(
        self, name: str, first: MXTensor, x: NDArray[Any] | None, contraction: Contraction, blocks: Blocks
    ) -> MXTensor:
        """The caller's second payload if there is one, else `first` where it serves, else `x` quantized again."""
        given = getattr(self.second, name)
        if given is not None:
            return as_payload(given, name, contraction, blocks, self.problem, self.rule)
        if payload_blocks(first) == blocks or (x is None and payload_blocks(first) in SERVES[contraction]):
            return first
        if x is None:
            raise ValueError(
                f"{name} has blocks {payload_blocks(first)}, which do not serve the backward's contraction along "
                f"{contraction}; allowed are square blocks, or SecondPayloads({name}=...) in {blocks} beside it"
            )
        cu_seqlens = self.problem.cu_seqlens_q if name in ("q", "dO") else self.problem.cu_seqlens_k
        return quantize_payload(flatten(x), blocks, cu_seqlens, self.rule)


def _delta(do: Any, do_d: MXTensor, o: NDArray[Any], options: AttentionOptions) -> Float32 | None:
    """(Hq, Tq) rowsum(dO * O), or None for delta="sum_P_dP"."""
    if options.delta == "sum_P_dP":
        return None
    if options.delta == "unquantized_dO":
        if isinstance(do, MXTensor):
            raise ValueError("delta = 'unquantized_dO' needs dO as floats; dO is an MXTensor")
        values = flatten(do)
    else:
        values = do_d.dequantize()
    with np.errstate(all="ignore"):
        return row_dot(values, o.reshape(values.shape).astype(np.float32)).T


def row_dot(a: Float32, b: Float32) -> Float32:
    """(..., D), (..., D) -> (...): eight lanes of fma over every eighth column, then the tree of `lane_sum`."""
    lanes = np.zeros((*a.shape[:-1], SUM_LANES), np.float32)
    for start in range(0, a.shape[-1], SUM_LANES):
        lanes = fma(a[..., start : start + SUM_LANES], b[..., start : start + SUM_LANES], lanes)
    return tree_sum(lanes)
