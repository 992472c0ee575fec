"""Recorded runs of the attention steps in the emulator. Needs the extra `kernels`."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.emulator import Report, Trace, run
from mxfp8fa.numerics import AttentionOptions, MXTensor, attention_mxfp8

Float32 = NDArray[np.float32]
SOFTMAX_WARPS = 4


@dataclass(frozen=True)
class AttentionRun:
    """One run of one head through a step.

    Attributes:
        o: (Sq, D).
        lse: (Sq,).
        report: of the emulator.
        trace: what happened, with the names of the step's roles, barriers and columns.
    """

    o: Float32
    lse: Float32
    report: Report
    trace: Trace


def compile_step(step: ModuleType, function: Any, q: MXTensor, k: MXTensor, v: MXTensor, softmax_scale: float) -> Any:
    """The step's host function compiled for (S, D) operands of this kind."""
    from mxfp8fa.kernels import compile_kernel

    arguments, _, _ = _arguments(step, q, k, v, softmax_scale)
    return compile_kernel(function, *arguments)


def run_step(
    step: ModuleType, compiled: Any, q: MXTensor, k: MXTensor, v: MXTensor, softmax_scale: float, **options: Any
) -> AttentionRun:
    """Run it on the CPU, with the race checker.

    Args:
        step: one of the modules `step5_attention_tile`, `step6_kv_loop`, `step7_warp_specialised`.
        compiled: from `compile_step`.
        q: (Sq, D) in E4M3, blocks along D or square.
        k: (Sk, D), likewise.
        v: (Sk, D), blocks along the keys or square.
        softmax_scale: factor on the scores.
        **options: of `emulator.run`.

    Raises:
        RuntimeError: the checker found something.
    """
    from mxfp8fa.kernels.names import names_of

    arguments, o, lse = _arguments(step, q, k, v, softmax_scale)
    trace = Trace.named(names_of(step))
    softmax = "softmax0" if hasattr(step, "MMA_WARP") else "all in order"
    roles = {warp: f"{softmax}, warp {warp}" for warp in range(SOFTMAX_WARPS)}
    trace.roles = roles | dict(trace.roles)
    report = run(compiled, *arguments, trace=trace, check="races", **options)
    if report.races:
        raise RuntimeError(str(report.races[0]))
    return AttentionRun(o.numpy(), lse.numpy(), report, trace)


def model(q: MXTensor, k: MXTensor, v: MXTensor, softmax_scale: float, **options: Any) -> tuple[Float32, Float32]:
    """O (Sq, D) and lse (Sq,) by `attention_mxfp8`; options are those of `AttentionOptions`."""
    heads = (_with_heads(x) for x in (q, k, v))
    o, lse = attention_mxfp8(*heads, softmax_scale=softmax_scale, options=AttentionOptions(**options))
    return o[0, :, 0], lse[0, 0]


def _with_heads(x: MXTensor) -> MXTensor:
    """(S, D) as (1, S, 1, D)."""
    codes, scale = (np.ascontiguousarray(a)[None, :, None] for a in (x.codes, x.scale_e8m0))
    return MXTensor(codes, scale, x.fmt, tuple(2 * axis + 1 for axis in x.axes))


def same_bits(a: Float32, b: Float32) -> bool:
    """Whether two float32 arrays agree in every bit."""
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def slack(trace: Trace) -> float:
    """The share of a run in which the tensor core has a product under way.

    Under schedule="lazy" a product is done only when no warp can go on without it, so this is the time that products may
    take with nobody waiting for them.
    """
    under_way = np.zeros(max(span.end for span in trace.spans), bool)
    for span in trace.spans:
        if span.what == "tcgen05.mma":
            under_way[span.start : span.end] = True
    return float(under_way.mean())


def _arguments(step: ModuleType, q: MXTensor, k: MXTensor, v: MXTensor, softmax_scale: float) -> tuple[Any, Any, Any]:
    import torch

    from mxfp8fa.kernels import MXOperand

    o, lse = torch.empty(q.shape), torch.empty(q.shape[0])
    operands = (MXOperand.from_mx_tensor(x) for x in (q, k, v))
    return step.arguments(*operands, o, lse, softmax_scale), o, lse
