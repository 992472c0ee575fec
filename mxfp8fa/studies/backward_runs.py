"""Calls of the backward kernels as experiments: random operands with what a forward left, and the main kernel alone.

Needs the extra `kernels`; importing this does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxfp8fa.emulator import Trace, run
from mxfp8fa.emulator.names import Names
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, quantize

SQUARE = AttentionOptions(qk_blocks="square")


@dataclass(frozen=True)
class MainLaunch:
    """The main kernel, compiled, with operands that the preprocess kernel has made.

    Attributes:
        compiled: the function.
        arguments: its arguments.
        names: of its roles and barriers.
        gradients: dQ, dK and dV: dK and dV are written by it, dQ by the kernel after it.
    """

    compiled: Any
    arguments: tuple[Any, ...]
    names: Names
    gradients: Any

    def traced(self, **options: Any) -> Trace:
        """One run, recorded."""
        trace = Trace.named(self.names)
        run(self.compiled, *self.arguments, wait_ld="required", trace=trace, names=self.names, **options)
        return trace


def random_call(
    shape: tuple[int, int, int, int, int, int],
    *,
    causal: bool = False,
    options: AttentionOptions = SQUARE,
    seed: int = 0,
) -> dict[str, Any]:
    """Keyword arguments of `mxfp8fa.kernels.backward.backward` for normal Q, K, V and dO; O and lse are the NumPy model's.

    Args:
        shape: (B, Sq, Sk, Hq, Hkv, D).
        causal: bottom-right aligned mask.
        options: of both directions.
        seed: of the operands.
    """
    batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim = shape
    arrays = _random_arrays((batch, seqlen_q, heads_q, head_dim), (batch, seqlen_k, heads_kv, head_dim), seed)
    return _call(arrays, causal, options, {})


def random_packed_call(
    queries: Sequence[int],
    keys: Sequence[int],
    *,
    heads: int = 1,
    head_dim: int = 64,
    causal: bool = False,
    options: AttentionOptions = SQUARE,
    seed: int = 0,
) -> dict[str, Any]:
    """The same for packed sequences of these lengths."""
    import torch

    from mxfp8fa.kernels.jagged import Jagged

    cu_q, cu_k = (np.cumsum((0, *lengths), dtype=np.int32) for lengths in (queries, keys))
    arrays = _random_arrays((int(cu_q[-1]), heads, head_dim), (int(cu_k[-1]), heads, head_dim), seed)
    sequences = Jagged(torch.from_numpy(cu_q), torch.from_numpy(cu_k), int(cu_q[-1]), int(cu_k[-1]), exact=True)
    return _call(arrays, causal, options, {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}) | {"sequences": sequences}


def _random_arrays(q_shape: tuple[int, ...], k_shape: tuple[int, ...], seed: int) -> tuple[Any, ...]:
    """q, do, k and v."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in (q_shape, q_shape, k_shape, k_shape))


def _call(
    arrays: tuple[Any, ...], causal: bool, options: AttentionOptions, offsets: dict[str, Any]
) -> dict[str, Any]:
    """Operands for the backward, and what the NumPy model's forward leaves."""
    import torch

    from mxfp8fa.kernels import MXOperand

    q, do, k, v = arrays
    square = options.resolved_qk_blocks(causal) == "square"
    tokens, last = q.ndim - 3, q.ndim - 1

    def payload(x: Any, *axes: int) -> Any:
        cu_seqlens = offsets.get("cu_seqlens_q" if x is q else "cu_seqlens_k")
        return quantize(x, axes=axes, tail="partial", rule=options.rule, cu_seqlens=cu_seqlens)

    qk_axes = (tokens, last) if square else (last,)
    payloads = {"q": payload(q, *qk_axes), "k": payload(k, *qk_axes)}
    if not square:
        payloads |= {"q_second": payload(q, tokens, last), "k_second": payload(k, tokens, last)}
    call: dict[str, Any] = {"softmax_scale": q.shape[-1] ** -0.5, "causal": causal, "options": options}
    o, lse = attention_mxfp8(payloads["q"], payloads["k"], payload(v, tokens), **call, **offsets)
    payloads["v"] = payload(v, last)
    operands = {name: MXOperand.from_mx_tensor(x) for name, x in payloads.items()}
    return operands | {"o": torch.from_numpy(o), "lse": torch.from_numpy(lse), "do": torch.from_numpy(do)} | call


def main_launch(call: dict[str, Any]) -> MainLaunch:
    """Run the preprocess kernel of a call in the emulator, and compile its main kernel."""
    from mxfp8fa.kernels.backward.call import make_call
    from mxfp8fa.kernels.execution import compile_once

    gradients, (before, main, _) = make_call(**call)
    run(compile_once(before.function, *before.arguments, constants=before.constants), *before.arguments)
    compiled = compile_once(main.function, *main.arguments, constants=main.constants)
    assert main.names is not None
    return MainLaunch(compiled, main.arguments, main.names, gradients)
