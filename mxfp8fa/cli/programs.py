"""What `inspect` and `model` take as TARGET: a program that launches a kernel once, at a shape that may be chosen.

Ours: step2, step3 (matrix products), step5, step6, step7 (attention of one head), forward, backward (dQ added up in FP32)
and backward-fp16. Other people's, in a checkout with the extra `peers`: the names in bench/peers.py. FILE.py:FUNCTION is as
for `mxfp8fa trace`.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.cli.console import CommandError
from mxfp8fa.cli.targets import CHECKOUT, load_target, require_kernels
from mxfp8fa.timing.programs import Program, Source, Tiling
from mxfp8fa.timing.shapes import AttentionShape

if TYPE_CHECKING:
    from mxfp8fa.numerics import AttentionOptions

PEERS_FILE = "bench/peers.py"
_PEERS_MODULE = "mxfp8fa_bench_peers"


_compiled: dict[Any, Any] = {}  # kept here: what others compiled has no line information


def step(name: str) -> Callable[..., Program]:
    """A step that computes the attention of one head."""

    def make(shape: AttentionShape, options: AttentionOptions | None) -> Program:
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


def forward(shape: AttentionShape, options: AttentionOptions | None) -> Program:
    """The forward kernel, on random operands; one cluster works on all tiles."""
    import torch

    from mxfp8fa.kernels.forward import plan
    from mxfp8fa.kernels.forward.call import make_call
    from mxfp8fa.kernels.forward.kernel import attention_forward
    from mxfp8fa.kernels.names import names_of

    operands = _operands(shape, q=(3,), k=(3,), v=(1,))
    call = make_call(
        **operands, softmax_scale=shape.head_dim**-0.5, causal=shape.causal, options=options, out_dtype=torch.bfloat16, ctas=1
    )
    compiled = _compile_once(attention_forward, call.arguments, call.constants, options)
    return Program(lambda: compiled(*call.arguments), names=names_of(plan))


def backward(shape: AttentionShape, options: AttentionOptions | None) -> Program:
    """The backward's three kernels, on random operands; square blocks of Q and K beside 1x32 ones where it is causal."""
    import torch

    from mxfp8fa.kernels.backward import plan
    from mxfp8fa.kernels.backward.call import make_call
    from mxfp8fa.kernels.names import names_of

    axes = {"q": (1, 3), "k": (1, 3), "v": (3,)}
    if shape.causal:
        axes = {"q": (3,), "k": (3,), "v": (3,), "q_second": (1, 3), "k_second": (1, 3)}
    generator = torch.Generator().manual_seed(0)
    like_q = shape.batch, shape.seqlen_q, shape.num_heads_q, shape.head_dim
    o, do = (torch.randn(like_q, generator=generator).bfloat16() for _ in range(2))
    lse = torch.full((shape.batch, shape.num_heads_q, shape.seqlen_q), float(np.log(shape.seqlen_k)))
    _, launches = make_call(
        **_operands(shape, **axes), o=o, lse=lse, do=do, softmax_scale=shape.head_dim**-0.5, causal=shape.causal,
        options=options, dtype=torch.bfloat16,
    )  # fmt: skip
    calls = [partial(_compile_once(x.function, x.arguments, x.constants, options), *x.arguments) for x in launches]
    return Program(lambda: [call() for call in calls], names=names_of(plan))


def _operands(shape: AttentionShape, **axes: tuple[int, ...]) -> dict[str, Any]:
    """Random quantized tensors by name; those that begin with "q" have the queries' size."""
    from mxfp8fa.kernels import MXOperand
    from mxfp8fa.numerics import quantize

    made = {}
    for name, blocks in axes.items():
        queries = name.startswith("q")
        tokens, heads = (shape.seqlen_q, shape.num_heads_q) if queries else (shape.seqlen_k, shape.num_heads_kv)
        x = np.random.default_rng("qkv".index(name[0])).standard_normal((shape.batch, tokens, heads, shape.head_dim))
        made[name] = MXOperand.from_mx_tensor(quantize(x.astype(np.float32), axes=blocks, tail="partial"))
    return made


def _compile_once(
    function: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...], options: AttentionOptions | None
) -> Any:
    """Sizes are left open; types of tensors follow from the options."""
    from mxfp8fa.kernels.launch import compile_kernel

    key = function, len(arguments[0]) if isinstance(arguments[0], tuple) else 0, constants, options
    if key not in _compiled:
        _compiled[key] = compile_kernel(function, *arguments, *constants)
    return _compiled[key]


# Beside the backward's main kernel: dO and O read (16 bits each), codes of dO written and dQ cleared; dQ read and converted.
_BACKWARD_TILING = Tiling(rows=128, backward=True, grouped=True, around_bytes=2 + 2 + 1 + 4 + 4 + 2, around_launches=2)
OWN: dict[str, tuple[Callable[..., Program], Tiling]] = {
    **{name: (step(name), Tiling(rows=128)) for name in ("step5", "step6", "step7")},
    "forward": (forward, Tiling(rows=256, persistent=True)),
    "backward": (backward, _BACKWARD_TILING),
    "backward-fp16": (backward, replace(_BACKWARD_TILING, around_bytes=_BACKWARD_TILING.around_bytes - 4)),
}
WITH_OPTIONS = ("forward", "backward", "backward-fp16")


def attention_options(pairs: Sequence[str]) -> AttentionOptions:
    """From "exp=direct", "direct_share=0.5", ...

    Raises:
        CommandError: no such option, or a value that is not allowed.
    """
    from mxfp8fa.numerics import AttentionOptions

    names = [f.name for f in fields(AttentionOptions)]
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in names:
            raise CommandError(f"--options {pair}: allowed are NAME=VALUE with {', '.join(names)}")
        try:
            given[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            given[name] = value
    try:
        return AttentionOptions(**given)
    except ValueError as error:
        raise CommandError(f"--options: {error}") from error


def load_source(text: str, *, causal: bool = False, two_cta: bool = False, options: Sequence[str] = ()) -> Source:
    """Where the programs of a name come from.

    Args:
        text: the name.
        causal: causal attention.
        two_cta: other people's kernels with CTA pairs.
        options: of our forward and backward, as for `attention_options`.

    Raises:
        CommandError: no such name, something it needs is missing, or the kernel does not have what is asked for.
    """
    require_kernels()
    if options and text not in WITH_OPTIONS:
        raise CommandError(f"--options: {text} has none; allowed for {', '.join(WITH_OPTIONS)}")
    if text in OWN:
        if two_cta:
            raise CommandError(f"--two-cta: {text} has no CTA pairs; allowed for other people's kernels")
        if causal and text.startswith("step"):
            raise CommandError(f"--causal: {text} has no mask; allowed for forward, backward and other people's kernels")
        if text == "backward" and "dq_accumulate=float16" in options:
            return load_source("backward-fp16", causal=causal, options=options)
        make, tiling = OWN[text]
        given = ["dq_accumulate=float16", *options] if text == "backward-fp16" else options
        chosen = attention_options(given) if given else None
        return Source(" ".join([text, *options]), partial(make, options=chosen), tiling)
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
