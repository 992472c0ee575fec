"""Calls of the backward kernels as experiments: random operands with what a forward left, and the main kernel alone.

Needs the extra `kernels`; importing this does not.
"""

from __future__ import annotations

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
    import torch

    from mxfp8fa.kernels import MXOperand

    batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim = shape
    rng = np.random.default_rng(seed)
    q, do = (rng.standard_normal((batch, seqlen_q, heads_q, head_dim)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((batch, seqlen_k, heads_kv, head_dim)).astype(np.float32) for _ in range(2))
    square = options.resolved_qk_blocks(causal) == "square"

    def payload(x: Any, axes: tuple[int, ...]) -> Any:
        return quantize(x, axes=axes, tail="partial", rule=options.rule)

    payloads = {"q": payload(q, (1, 3) if square else (3,)), "k": payload(k, (1, 3) if square else (3,))}
    if not square:
        payloads |= {"q_second": payload(q, (1, 3)), "k_second": payload(k, (1, 3))}
    call: dict[str, Any] = {"softmax_scale": head_dim**-0.5, "causal": causal, "options": options}
    o, lse = attention_mxfp8(payloads["q"], payloads["k"], payload(v, (1,)), **call)
    payloads["v"] = payload(v, (3,))
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
