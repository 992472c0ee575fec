"""The kernels whose steady loops `mxfp8fa exponential sass` counts: ours by way to P, then other people's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mxfp8fa.cli.programs import load_source, peers_module
from mxfp8fa.cli.targets import require_kernels
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.studies.step_costs import LoopCosts, loop_costs
from mxfp8fa.timing.shapes import AttentionShape

PEERS = ("cudnn", "flash-attn-4-fp8", "flash-attn-4")
_HALF: dict[str, Any] = {"row_sum": "rounded", "sum_format": "float16"}
_DIRECT: dict[str, Any] = {"exp": "direct", **_HALF}
OURS: dict[str, AttentionOptions] = {
    "exact": AttentionOptions(),
    "exact, rounded sum": AttentionOptions(row_sum="rounded"),
    "exact, float16 sum": AttentionOptions(**_HALF),
    "exact, dynamic scale": AttentionOptions(p_scale="dynamic"),
    "25 % polynomial": AttentionOptions(exp2=0.25),
    "25 % direct": AttentionOptions(**_DIRECT, direct_share=0.25),
    "50 % direct": AttentionOptions(**_DIRECT, direct_share=0.5),
    "direct": AttentionOptions(**_DIRECT),
    "direct by subnormals": AttentionOptions(**_DIRECT, direct_codes="subnormal"),
}


def compiled_loops(announce: Callable[[str], None]) -> Iterator[LoopCosts]:
    """Compile each kernel for sm_100a and read its steady loop.

    Args:
        announce: called with the name of each before it is compiled.

    Raises:
        CommandError: what kernels need is not installed.
        ToolError: the disassembler is not.
    """
    require_kernels()
    shape = AttentionShape(seqlen_q=512, seqlen_k=512, head_dim=128)
    for name, options in OURS.items():
        announce(name)
        yield forward_loop(name, options)
    peers = peers_module()
    for name in PEERS if peers is not None else ():
        announce(name)
        yield loop_costs(name, _binaries(load_source(name).load, shape))


def forward_loop(name: str, options: AttentionOptions) -> LoopCosts:
    """The steady loop of our forward kernel under these options."""
    import torch

    from mxfp8fa.kernels import MXOperand
    from mxfp8fa.kernels.forward.call import forward_arguments
    from mxfp8fa.numerics import quantize
    from mxfp8fa.numerics.inputs import synthetic_llm
    from mxfp8fa.timing.binary import binaries_of

    x = synthetic_llm(seqlen_q=256, num_heads_q=1)
    axes = ((x.q, 3), (x.k, 3), (x.v, 1))
    operands = [MXOperand.from_mx_tensor(quantize(tensor, axes=axis)) for tensor, axis in axes]
    compiled, *_ = forward_arguments(*operands, softmax_scale=128**-0.5, options=options, out_dtype=torch.bfloat16)
    return loop_costs(name, list(binaries_of(compiled).values()))


def _binaries(load: Callable[[AttentionShape], Any], shape: AttentionShape) -> list[Any]:
    """Every kernel that a program compiles; it is called, but nothing is launched."""
    from mxfp8fa.emulator import host
    from mxfp8fa.timing.binary import binaries_of
    from mxfp8fa.timing.compilations import compilations

    with compilations() as compiled, host.cuda_shims(sm_count=148), host.active(lambda call: None):
        load(shape).call()
    return [binary for each in compiled for binary in binaries_of(each.compiled).values()]
