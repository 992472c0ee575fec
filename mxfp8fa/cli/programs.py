"""What `inspect` and `model` take as TARGET: a program that launches a kernel once, at a shape that may be chosen.

Ours: step2, step3 (matrix products), step5, step6, step7 (attention of one head), forward, backward (dQ added up in FP32)
and backward-fp16. Other people's, in a checkout with the extra `peers`: the names in bench/peers.py. FILE.py:FUNCTION is as
for `mxfp8fa trace`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from mxfp8fa.cli.console import CommandError
from mxfp8fa.cli.targets import CHECKOUT, load_target, require_kernels
from mxfp8fa.timing.programs import Program, Source, Tiling
from mxfp8fa.timing.shapes import AttentionShape

PEERS_FILE = "bench/peers.py"
_PEERS_MODULE = "mxfp8fa_bench_peers"


def step(name: str) -> Callable[[AttentionShape], Program]:
    """A step that computes the attention of one head."""

    def make(shape: AttentionShape) -> Program:
        import torch

        from mxfp8fa.kernels import MXOperand, compile_kernel
        from mxfp8fa.kernels.names import names_of
        from mxfp8fa.kernels.steps import step5_attention_tile, step6_kv_loop, step7_warp_specialised
        from mxfp8fa.numerics import quantize
        from mxfp8fa.numerics.inputs import synthetic_llm

        module, function = {
            "step5": (step5_attention_tile, "attention_tile"),
            "step6": (step6_kv_loop, "kv_loop"),
            "step7": (step7_warp_specialised, "warp_specialised"),
        }[name]
        tokens = dict(seqlen_q=128, seqlen_k=128 if name == "step5" else shape.seqlen_k)
        x = synthetic_llm(**tokens, num_heads_q=1, head_dim=shape.head_dim)
        operands = [
            MXOperand.from_mx_tensor(quantize(t[0, :, 0], axes=axes)) for t, axes in ((x.q, 1), (x.k, 1), (x.v, 0))
        ]
        o, lse = torch.empty(tokens["seqlen_q"], shape.head_dim), torch.empty(tokens["seqlen_q"])
        args = module.arguments(*operands, o, lse, x.softmax_scale)
        compiled = compile_kernel(getattr(module, function), *args)
        return Program(lambda: compiled(*args), names=names_of(module))

    return make


def forward(shape: AttentionShape) -> Program:
    """The forward kernel, on random operands; one cluster works on all tiles."""
    import torch

    from mxfp8fa.kernels import MXOperand
    from mxfp8fa.kernels.forward import plan
    from mxfp8fa.kernels.forward.call import forward_arguments
    from mxfp8fa.kernels.names import names_of
    from mxfp8fa.numerics import quantize

    rng = np.random.default_rng(0)
    sizes = [(shape.seqlen_q, shape.num_heads_q), *[(shape.seqlen_k, shape.num_heads_kv)] * 2]
    tensors = [rng.standard_normal((shape.batch, s, h, shape.head_dim), np.float32) for s, h in sizes]
    operands = [MXOperand.from_mx_tensor(quantize(x, axes=axis)) for x, axis in zip(tensors, (3, 3, 1), strict=True)]
    compiled, args, _ = forward_arguments(
        *operands, softmax_scale=shape.head_dim**-0.5, causal=shape.causal, out_dtype=torch.bfloat16, ctas=1
    )
    return Program(lambda: compiled(*args), names=names_of(plan))


def backward(dq_accumulate: Literal["float32", "float16"]) -> Callable[[AttentionShape], Program]:
    """The backward's three kernels, on random operands, dQ added up in a format."""

    def make(shape: AttentionShape) -> Program:
        from mxfp8fa.kernels.backward import plan
        from mxfp8fa.kernels.names import names_of
        from mxfp8fa.numerics import AttentionOptions
        from mxfp8fa.studies.backward_runs import random_call, whole_call

        sizes = (shape.batch, shape.seqlen_q, shape.seqlen_k, shape.num_heads_q, shape.num_heads_kv, shape.head_dim)
        options = AttentionOptions(dq_accumulate=dq_accumulate)
        call = random_call(sizes, causal=shape.causal, options=options, forward=False)
        return Program(whole_call(call), names=names_of(plan))

    return make


OWN: dict[str, tuple[Callable[[AttentionShape], Program], Tiling]] = {
    **{name: (step(name), Tiling(rows=128)) for name in ("step5", "step6", "step7")},
    "forward": (forward, Tiling(rows=256, persistent=True)),
    "backward": (backward("float32"), Tiling(rows=128, backward=True)),
    "backward-fp16": (backward("float16"), Tiling(rows=128, backward=True)),
}


def load_source(text: str, *, causal: bool = False, two_cta: bool = False) -> Source:
    """Where the programs of a name come from.

    Raises:
        CommandError: no such name, or something it needs is missing.
    """
    require_kernels()
    if text in OWN:
        return Source(text, *OWN[text])
    peers = peers_module()
    if peers is not None and text in peers.PEERS:
        found: Source = peers.peer(text, causal=causal, two_cta=two_cta)
        return found
    if text not in ("step2", "step3") and ":" not in text:
        known = ", ".join(["step2", "step3", *OWN, *(peers.PEERS if peers is not None else ())])
        raise CommandError(f"{text}: there is no such target; allowed are {known}, and FILE.py:FUNCTION")

    def load(shape: AttentionShape) -> Program:
        target = load_target(text)
        return Program(lambda: target.compiled(*target.args), names=target.names)

    return Source(text, load)


def peers_module() -> Any:
    """bench/peers.py, or None outside a checkout."""
    path = CHECKOUT / PEERS_FILE
    if not path.is_file():
        return None
    if _PEERS_MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(_PEERS_MODULE, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_PEERS_MODULE] = module
        spec.loader.exec_module(module)
    return sys.modules[_PEERS_MODULE]
