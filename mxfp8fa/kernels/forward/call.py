"""One call of the forward: arguments checked, memory for the results, launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import torch

from mxfp8fa.kernels.execution import compile_once, execute, sm_count
from mxfp8fa.kernels.forward import plan
from mxfp8fa.kernels.forward.kernel import attention_forward
from mxfp8fa.kernels.forward.names import names
from mxfp8fa.kernels.forward.scheduler import L2_BYTES, WORK_ROWS
from mxfp8fa.kernels.forward.tensors import rows
from mxfp8fa.kernels.jagged import Jagged
from mxfp8fa.kernels.launch import gmem
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.steps.step3_block_scaled import E4M3, E8M0
from mxfp8fa.kernels.supported import HEAD_DIMS, check_forward_options
from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.softmax import softmax_scale_log2

OUT_DTYPES = {
    torch.float32: cutlass.Float32, torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16,
}  # fmt: skip


class Call(NamedTuple):
    """What the kernel takes, and where it writes.

    Attributes:
        arguments: at run time.
        constants: compiled in.
        o: (B, Sq, Hq, D).
        lse: (B, Hq, Sq) float32.
    """

    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]
    o: torch.Tensor
    lse: torch.Tensor


def forward(
    q: MXOperand,
    k: MXOperand,
    v: MXOperand,
    *,
    softmax_scale: float,
    causal: bool,
    options: AttentionOptions,
    out_dtype: torch.dtype,
    sequences: Jagged | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O and lse of attention: CPU tensors in the emulator, CUDA tensors on a B200.

    Args:
        q: (B, Sq, Hq, D) in E4M3, D 64 or 128, with blocks along D or square ones; (Tq, Hq, D) with `sequences`, or
            (Sq, Hq, D) if they share their queries.
        k: (B, Sk, Hkv, D), likewise, (Tk, Hkv, D) with `sequences`; Hkv divides Hq.
        v: the shape of k, with blocks along the keys or square ones.
        softmax_scale: factor on the scores.
        causal: query i sees key j only where j <= i + Sk - Sq.
        options: how P is rounded and summed.
        out_dtype: of O: float32, bfloat16 or float16.
        sequences: which sequences are packed in q, k and v; None for a dense call.

    Returns:
        O (B, Sq, Hq, D), and lse (B, Hq, Sq) float32, natural logarithm; (To, Hq, D) and (Hq, To) with `sequences`, To
        being Tq, or B * Sq if they share their queries.

    Raises:
        ValueError: shapes, formats, blocks or options that the kernel does not take.
    """
    call = make_call(
        q, k, v, softmax_scale=softmax_scale, causal=causal, options=options, out_dtype=out_dtype, sequences=sequences
    )
    if k.codes.numel() == 0:
        return call.o.zero_(), call.lse.fill_(-float("inf"))
    if call.o.numel():
        execute(
            attention_forward, *call.arguments, device=q.codes.device, constants=call.constants,
            names=names(q.shape[-1]), accumulate=options.accumulate,
        )  # fmt: skip
    return call.o, call.lse


def compile_forward(call: Call) -> Any:
    """The compiled kernel: one for all sizes of a head_dim, mask, output dtype and options."""
    return compile_once(attention_forward, *call.arguments, constants=call.constants)


def forward_arguments(q: MXOperand, k: MXOperand, v: MXOperand, **keywords: Any) -> tuple[Any, tuple[Any, ...], Call]:
    """(compiled, arguments, call) for `emulator.run`; keywords as for `make_call`."""
    call = make_call(q, k, v, **keywords)
    return compile_forward(call), call.arguments, call


def make_call(
    q: MXOperand,
    k: MXOperand,
    v: MXOperand,
    *,
    softmax_scale: float,
    causal: bool = False,
    options: AttentionOptions | None = None,
    out_dtype: torch.dtype = torch.float32,
    sequences: Jagged | None = None,
    ctas: int | None = None,
    interleave: bool = True,
) -> Call:
    """Arguments of the kernel for one call; nothing is compiled or run.

    Args:
        q: as for `forward`.
        k: likewise.
        v: likewise.
        softmax_scale: likewise.
        causal: likewise.
        options: likewise; `AttentionOptions()` if None.
        out_dtype: likewise.
        sequences: likewise.
        ctas: how many run at the same time; as many as the device has SMs if None.
        interleave: see `plan.Config`; False only serves to show what it buys.

    Raises:
        ValueError: see `forward`.
    """
    options = AttentionOptions() if options is None else options
    check(q, k, v, options, out_dtype, sequences)
    heads_q, head_dim = q.shape[-2:]
    heads_kv = k.shape[-2]
    o_shape: tuple[int, ...]
    lse_shape: tuple[int, ...]
    if sequences is None:
        batch, seqlen_q, seqlen_k = *q.shape[:2], k.shape[1]
        o_shape, lse_shape = q.shape, (batch, heads_q, seqlen_q)
    else:
        batch, seqlen_q, seqlen_k = 1, sequences.tokens_q, sequences.tokens_k
        o_shape, lse_shape = (sequences.tokens_o, heads_q, head_dim), (heads_q, sequences.tokens_o)
    device = q.codes.device
    o = torch.empty(o_shape, dtype=out_dtype, device=device)
    lse = torch.empty(lse_shape, dtype=torch.float32, device=device)
    ctas = sm_count(device) if ctas is None else ctas
    dynamic = options.p_scale == "dynamic"
    config = plan.Config(
        head_dim, OUT_DTYPES[out_dtype], causal, 0 if dynamic else options.p_offset, options.rescale_threshold,
        options.row_sum == "rounded", options.sum_format == "float16", options.polynomial_columns,
        options.direct_columns, options.direct_bias, options.direct_codes == "subnormal", dynamic, interleave,
    )  # fmt: skip
    if not o.numel() or not seqlen_k:
        return Call((), (config,), o, lse)
    group = max(1, L2_BYTES // (2 * seqlen_k * head_dim)) * (heads_q // heads_kv)
    sizes = (batch, seqlen_q, seqlen_k, heads_q, heads_kv, min(group, batch * heads_q))
    scales = q.scales_with_rows("tokens"), k.scales_with_rows("tokens"), v.scales_with_rows("head_dim")
    arguments = (
        tuple(rows(x.codes.contiguous(), E4M3) for x in (q, k, v)),
        tuple(rows(x.contiguous(), E8M0) for x in scales),
        rows(o),
        gmem(lse.reshape(-1), divisible_by=(1,)),
        None if sequences is None else rows(sequences.work("q", WORK_ROWS, causal=causal)),
        tuple(map(cutlass.Int32, sizes)),
        cutlass.Int32(ctas),
        cutlass.Float32(float(softmax_scale_log2(softmax_scale))),
    )
    return Call(arguments, (config,), o, lse)


def check(
    q: MXOperand,
    k: MXOperand,
    v: MXOperand,
    options: AttentionOptions,
    out_dtype: torch.dtype,
    sequences: Jagged | None = None,
) -> None:
    """Refuse what the kernel does not do.

    Raises:
        ValueError: says what was given and what is allowed.
    """
    shape, heads = ("(B, S, H, D)", 2) if sequences is None else ("(T, H, D)", 1)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.fmt != "e4m3" or len(x.shape) != heads + 2:
            raise ValueError(f"{name} is {x.fmt} of shape {x.shape}; allowed: e4m3 {shape}")
    if q.shape[-1] not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {q.shape[-1]}; allowed: {HEAD_DIMS}")
    batches = q.shape[: heads - 1], k.shape[: heads - 1]
    fits = k.shape == v.shape and batches[0] == batches[1] and q.shape[-1] == k.shape[-1]
    if not fits or q.shape[heads] % k.shape[heads]:
        raise ValueError(
            f"q has shape {q.shape}, k {k.shape}, v {v.shape}; allowed: {shape} and twice the same with S or T of its own "
            "and Hkv heads, a divisor of Hq"
        )
    if out_dtype not in OUT_DTYPES:
        raise ValueError(f"out_dtype = {out_dtype}; allowed: {', '.join(map(str, OUT_DTYPES))}")
    check_forward_options(options)
