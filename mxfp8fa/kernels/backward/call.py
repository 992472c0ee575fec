"""One call of the backward: checks, memory for the results, three launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cutlass
import torch

from mxfp8fa.kernels.backward import plan
from mxfp8fa.kernels.backward.main import ATOMS, PAYLOADS, main
from mxfp8fa.kernels.backward.plan import HEAD_DIMS, TILE_M
from mxfp8fa.kernels.backward.postprocess import postprocess
from mxfp8fa.kernels.backward.preprocess import preprocess
from mxfp8fa.kernels.execution import execute
from mxfp8fa.kernels.forward.tensors import rows
from mxfp8fa.kernels.names import names_of
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.steps.step3_block_scaled import E4M3, E8M0
from mxfp8fa.kernels.supported import check_backward_options
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.softmax import softmax_scale_log2

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Q_SIDE = ("q", "q_second", "o", "do")


@dataclass(frozen=True)
class Gradients:
    """dQ, dK and dV, which is also what unpacking gives.

    Attributes:
        dQ: the shape of q.
        dK: the shape of k.
        dV: the shape of v.
        dq_overflows: (1,) int32 on the device: elements of dQ whose FP16 sum is infinite, added to what was there before;
            None with FP32 sums.
    """

    dQ: torch.Tensor
    dK: torch.Tensor
    dV: torch.Tensor
    dq_overflows: torch.Tensor | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.dQ, self.dK, self.dV))


@dataclass(frozen=True)
class _Shape:
    """Sizes of one call."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    head_dim: int

    @property
    def q_tiles(self) -> int:
        return -(-self.seqlen_q // TILE_M)

    @property
    def empty(self) -> bool:
        """Whether no query meets a key."""
        return 0 in (self.batch, self.seqlen_q, self.seqlen_k)

    def queries(self) -> tuple[cutlass.Int32, ...]:
        """B, Sq, Hq for a launch."""
        return tuple(map(cutlass.Int32, (self.batch, self.seqlen_q, self.heads_q)))


def backward(
    q: MXOperand,
    k: MXOperand,
    v: MXOperand,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    softmax_scale: float,
    causal: bool = False,
    options: AttentionOptions | None = None,
    q_second: MXOperand | None = None,
    k_second: MXOperand | None = None,
    dlse: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    dq_overflows: torch.Tensor | None = None,
) -> Gradients:
    """Gradients of sum(O * dO) + sum(lse * dlse). CPU tensors run in the emulator.

    Args:
        q: (B, Sq, Hq, D), what the forward read: square blocks, or blocks along d and `q_second` beside it.
        k: (B, Sk, Hkv, D), likewise.
        v: (B, Sk, Hkv, D) for dP = dO V^T: blocks along d, or square ones.
        o: (B, Sq, Hq, D) FP32, BF16 or FP16, as the forward stored it.
        lse: (B, Hq, Sq) FP32, natural logarithm; -inf where a query saw no key.
        do: the shape of o, FP32, BF16 or FP16.
        softmax_scale: the forward's.
        causal: the forward's.
        options: the forward's; `gradients` and `k_mean` are the caller's business, who quantizes results and operands.
        q_second: Q for dK = dS^T Q: square blocks, or blocks along the tokens; None if q is square.
        k_second: K for dQ = dS K, likewise.
        dlse: (B, Hq, Sq) FP32, gradient of lse, or None.
        dtype: of the gradients: FP32, BF16 or FP16.
        dq_overflows: (1,) int32, a counter to add to with options.dq_accumulate = "float16"; a new one if None.

    Returns:
        The gradients. Queries that see no key have dQ = 0. On a GPU the order in which the tiles of keys are added up in
        dQ is that of arrival, and dQ not deterministic; dK and dV are. A NaN fills its square of dS and, as 0 * NaN,
        reaches what the tile touches: dK and dV of its keys, dQ of its queries; other heads, batches and tiles that it
        does not meet stay as they are.

    Raises:
        ValueError: shapes, dtypes, blocks, devices or options that are not allowed; before anything is compiled.
    """
    options = AttentionOptions() if options is None else options
    if not isinstance(options, AttentionOptions):
        raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
    check_backward_options(options)
    second = {name: x for name, x in (("q_second", q_second), ("k_second", k_second)) if x is not None}
    shape = check_operands({"q": q, "k": k, "v": v, **second})
    check_rows(shape, o, do, lse, dlse, dtype)
    device = q.codes.device
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype, device=device) for x in (q, k, v))
    work_dtype = torch.float16 if options.dq_accumulate == "float16" else torch.float32
    if dq_overflows is None:
        dq_overflows = torch.zeros(1, dtype=torch.int32, device=device)
    gradients = Gradients(dq, dk, dv, dq_overflows if work_dtype == torch.float16 else None)
    if shape.empty:
        for x in gradients:
            x.zero_()
        return gradients

    do_operand, terms, work = run_preprocess(shape, o, lse, dlse, do, options, work_dtype)
    tensors = {"q": q, "k": k, "v": v, "do": do_operand, "q_t": q_second or q, "k_t": k_second or k, "do_t": do_operand}
    payloads = [x for x in PAYLOADS if not x.endswith("_t") or second]
    factor = float(2.0 ** int(options.dq_scale_log2)) if work_dtype == torch.float16 else 1.0
    scale = cutlass.Float32(softmax_scale)
    config = plan.Config(shape.head_dim, causal, options.p_offset, options.row_sum == "rounded", options.rule, bool(second))
    execute(
        main,
        tuple(rows(tensors[name].codes.contiguous(), E4M3) for name in payloads),
        tuple(rows(_scales(tensors[name], name), E8M0) for name in ATOMS),
        rows(terms),
        rows(work),
        rows(dk),
        rows(dv),
        tuple(map(cutlass.Int32, (shape.batch, shape.seqlen_q, shape.seqlen_k, shape.heads_q, shape.heads_kv))),
        cutlass.Float32(float(softmax_scale_log2(softmax_scale))),
        scale,
        cutlass.Float32(factor),
        device=device,
        constants=(config,),
        names=names_of(plan),
        accumulate=options.accumulate,
    )
    count = rows(dq_overflows.reshape(1, 1))
    execute(
        postprocess, rows(work), rows(dq), count, *shape.queries(), cutlass.Float32(1 / factor), scale, device=device
    )
    return gradients


def run_preprocess(
    shape: _Shape,
    o: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    do: torch.Tensor,
    options: AttentionOptions,
    work_dtype: torch.dtype,
) -> tuple[MXOperand, torch.Tensor, torch.Tensor]:
    """dO in square blocks; addend and delta of each query; an empty workspace for dQ."""
    tiled = shape.batch, shape.heads_q, shape.q_tiles
    codes = torch.empty(do.shape, dtype=torch.uint8, device=do.device)
    scales = torch.empty(2, *tiled, ATOM_BYTES // 4, dtype=torch.int32, device=do.device)
    terms = torch.empty(*tiled, 2 * TILE_M, device=do.device)
    work = torch.empty(*tiled, TILE_M * shape.head_dim, dtype=work_dtype, device=do.device)
    execute(
        preprocess,
        rows(do.contiguous()),
        rows(o.contiguous()),
        rows(lse.contiguous().unsqueeze(-1)),
        None if dlse is None else rows(dlse.contiguous().unsqueeze(-1)),
        rows(codes, E4M3),
        rows(scales),
        rows(terms),
        rows(work),
        *shape.queries(),
        device=do.device,
        constants=(options.p_offset, options.rule, options.delta == "dequantized_dO"),
    )
    by_tokens, by_head_dim = scales.view(torch.uint8)
    packed = {"tokens": by_tokens.unsqueeze(3), "head_dim": by_head_dim.unsqueeze(2)}
    return MXOperand(codes, packed, (1, 3)), terms, work


def _scales(x: MXOperand, name: str) -> torch.Tensor:
    return x.scales_with_rows("head_dim" if name.endswith("_t") else "tokens").contiguous()


def check_operands(operands: dict[str, MXOperand]) -> _Shape:
    """Shapes, formats, blocks and devices of the operands.

    Raises:
        ValueError: says which operand, what was given and what is allowed.
    """
    for name, x in operands.items():
        if not isinstance(x, MXOperand):
            raise ValueError(f"{name} is a {type(x).__name__}; allowed: an MXOperand")
        if x.fmt != "e4m3" or len(x.shape) != 4:
            raise ValueError(f"{name} is {x.fmt} of shape {x.shape}; allowed: e4m3 (B, S, H, D)")
    q, k = operands["q"], operands["k"]
    (batch, seqlen_q, heads_q, head_dim), (_, seqlen_k, heads_kv, _) = q.shape, k.shape
    for name, x in operands.items():
        expected = q.shape if name in Q_SIDE else (batch, seqlen_k, heads_kv, head_dim)
        if x.shape != expected:
            raise ValueError(f"{name} has shape {x.shape}; beside q {q.shape} and k {k.shape} it must be {expected}")
        if x.codes.device != q.codes.device:
            raise ValueError(f"{name} is on {x.codes.device} and q on {q.codes.device}; all must be on one device")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {head_dim}; allowed: {HEAD_DIMS}")
    if heads_kv < 1 or heads_q % heads_kv:
        raise ValueError(f"Hq = {heads_q} is not a multiple of Hkv = {heads_kv}")
    _check_blocks(operands)
    return _Shape(batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim)


def _check_blocks(operands: dict[str, MXOperand]) -> None:
    if ("q_second" in operands) != ("k_second" in operands):
        raise ValueError("q_second and k_second: give both or none of them")
    for name in ("q", "k", "v"):
        if 3 not in operands[name].axes:
            raise ValueError(f"{name} has blocks along axes {operands[name].axes}; allowed: (3,) or (1, 3)")
    for name, alone in (("q", "q_second"), ("k", "k_second")):
        x = operands.get(alone, operands[name])
        if 1 not in x.axes:
            given = alone if alone in operands else name
            raise ValueError(
                f"{given} has blocks along axes {x.axes}, which do not serve products over tokens; allowed: (1, 3), or "
                f"{alone} beside it with (1,) or (1, 3)"
            )


def check_rows(
    shape: _Shape,
    o: torch.Tensor,
    do: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    dtype: torch.dtype,
) -> None:
    """Shapes and dtypes of O, dO and what there is one of per query.

    Raises:
        ValueError: says which, what was given and what is allowed.
    """
    like_q = (shape.batch, shape.seqlen_q, shape.heads_q, shape.head_dim)
    like_lse = (shape.batch, shape.heads_q, shape.seqlen_q)
    for name, x, expected, dtypes in (
        ("o", o, like_q, FLOATS),
        ("do", do, like_q, FLOATS),
        ("lse", lse, like_lse, (torch.float32,)),
        ("dlse", dlse, like_lse, (torch.float32,)),
    ):
        if x is not None and (tuple(x.shape) != expected or x.dtype not in dtypes):
            allowed = " or ".join(map(str, dtypes))
            raise ValueError(f"{name} is {x.dtype} {tuple(x.shape)}; allowed: {allowed} {expected}")
    if dtype not in FLOATS:
        raise ValueError(f"dtype = {dtype}; allowed: {', '.join(map(str, FLOATS))}")
