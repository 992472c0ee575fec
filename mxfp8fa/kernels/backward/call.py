"""One call of the backward: checks, memory for the results, three launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cutlass
import torch

from mxfp8fa.emulator.names import Names
from mxfp8fa.kernels.backward import plan
from mxfp8fa.kernels.backward.checks import Shape, check_operands, check_rows
from mxfp8fa.kernels.backward.factor import dq_factor
from mxfp8fa.kernels.backward.main import ATOMS, PAYLOADS, main
from mxfp8fa.kernels.backward.names import names
from mxfp8fa.kernels.backward.plan import TILE_M, TILE_N
from mxfp8fa.kernels.backward.postprocess import postprocess
from mxfp8fa.kernels.backward.preprocess import preprocess
from mxfp8fa.kernels.execution import execute
from mxfp8fa.kernels.forward.tensors import rows
from mxfp8fa.kernels.jagged import Jagged
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.steps.step3_block_scaled import E4M3, E8M0
from mxfp8fa.kernels.supported import check_backward_options
from mxfp8fa.layouts import ATOM_BYTES
from mxfp8fa.numerics import AttentionOptions
from mxfp8fa.numerics.softmax import softmax_scale_log2


class Launch(NamedTuple):
    """One kernel of a call.

    Attributes:
        function: launches it.
        arguments: at run time.
        constants: compiled in.
        names: of its roles and barriers.
    """

    function: Any
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...] = ()
    names: Names | None = None


@dataclass(frozen=True)
class Gradients:
    """dQ, dK and dV, which is also what unpacking gives.

    Attributes:
        dQ: the shape of q; an `MXOperand` if quantized gradients were asked for (`flash_attn_backward`).
        dK: the shape of k, likewise.
        dV: the shape of v, likewise.
        dq_overflows: (1,) int32 on the device, added to what was there before: how many addends and how many sums of dQ are
            infinite in FP16. It stays what it was exactly if nothing overflowed; NaN of the inputs is not counted. None with
            FP32 sums.
        dq_factor: (1, 1) float32 on the device, the factor under which FP16 sums stood; None with FP32 sums.
    """

    dQ: Any
    dK: Any
    dV: Any
    dq_overflows: torch.Tensor | None = None
    dq_factor: torch.Tensor | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dQ, self.dK, self.dV))


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
    sequences: Jagged | None = None,
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
        dq_overflows: (1,) int32, a counter to add to with options.dq_accumulate = "float16" (see
            `Gradients`); a new one if None.
        sequences: which sequences are packed in all of these, (T, H, D) and (Hq, T) then; None for a dense call. Of queries
            that all share, (Sq, Hq, D), dQ is the sum over the sequences, in FP32 whatever dq_accumulate says; o, do and
            lse have B * Sq rows.

    Returns:
        The gradients. Queries that see no key have dQ = 0. On a GPU the order in which the tiles of keys are added up in
        dQ is that of arrival, and dQ not deterministic; dK and dV are. A NaN fills its square of dS and, as 0 * NaN,
        reaches what the tile touches: dK and dV of its keys, dQ of its queries; other heads, batches and tiles that it
        does not meet stay as they are.

    Raises:
        ValueError: shapes, dtypes, blocks, devices or options that are not allowed; before anything is compiled.
    """
    options = AttentionOptions() if options is None else options
    gradients, launches = make_call(
        q, k, v, o, lse, do, softmax_scale=softmax_scale, causal=causal, options=options, q_second=q_second,
        k_second=k_second, dlse=dlse, dtype=dtype, dq_overflows=dq_overflows,
        sequences=sequences,
    )  # fmt: skip
    for launch in launches:
        execute(
            launch.function, *launch.arguments, device=q.codes.device, constants=launch.constants, names=launch.names,
            accumulate=options.accumulate,
        )  # fmt: skip
    return gradients


def make_call(
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
    sequences: Jagged | None = None,
) -> tuple[Gradients, list[Launch]]:
    """The results of a call, nothing in them yet, and what has to be launched to fill them; arguments as for `backward`.

    Raises:
        ValueError: see `backward`.
    """
    options = AttentionOptions() if options is None else options
    if not isinstance(options, AttentionOptions):
        raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
    check_backward_options(options)
    second = {name: x for name, x in (("q_second", q_second), ("k_second", k_second)) if x is not None}
    shape = check_operands({"q": q, "k": k, "v": v, **second}, sequences)
    check_rows(shape, o, do, lse, dlse, dtype)
    device = q.codes.device
    dq, dk, dv = (torch.empty(x.shape, dtype=dtype, device=device) for x in (q, k, v))
    if sequences is not None and sequences.cu_seqlens_q is None:
        options = replace(options, dq_accumulate="float32")
    float16 = options.dq_accumulate == "float16"
    if dq_overflows is None:
        dq_overflows = torch.zeros(1, dtype=torch.int32, device=device)
    if shape.empty:
        gradients = Gradients(dq, dk, dv, dq_overflows if float16 else None)
        for x in gradients:
            x.zero_()
        return gradients, []

    factor = dq_factor(options, do, v, k_second or k, None if sequences is None else sequences.cu_seqlens_q)
    gradients = Gradients(dq, dk, dv, *((dq_overflows, factor) if float16 else ()))
    tables = _tables(sequences, causal)
    o_tiles = shape.q_tiles if tables["o"] is None else len(tables["o"]) - 1
    shared_q = sequences is not None and sequences.cu_seqlens_q is None
    q_tiles = shape.q_tiles if shared_q else o_tiles
    work_dtype = torch.float16 if float16 else torch.float32
    work = torch.empty(shape.batch, shape.heads_q, q_tiles, TILE_M * shape.head_dim, dtype=work_dtype, device=device)
    terms = torch.empty(shape.batch, shape.heads_q, o_tiles, 2 * TILE_M, device=device)
    if shared_q:
        work.zero_()
    before, do_codes, do_scales = preprocess_launch(
        shape, o, lse, dlse, do, terms, None if shared_q else work, tables["o"], options
    )
    operands = {"q": q, "k": k, "v": v, "q_t": q_second or q, "k_t": k_second or k}
    codes = {name: x.codes.contiguous() for name, x in operands.items()} | {"do": do_codes}
    scales = {name: _scales(x, name) for name, x in operands.items() if name in ATOMS} | do_scales
    shared = rows(factor), rows(dq_overflows.reshape(1, 1))
    payloads = [x for x in PAYLOADS if not x.endswith("_t") or second]
    arguments = (
        tuple(rows(codes[name], E4M3) for name in payloads),
        tuple(rows(scales[name], E8M0) for name in ATOMS),
        *map(rows, (terms, work, dk, dv)),
        *shared,
        _rows_or_none(tables["k"]),
        tuple(map(cutlass.Int32, (shape.batch, shape.seqlen_q, shape.seqlen_k, shape.heads_q, shape.heads_kv))),
        *map(cutlass.Float32, (float(softmax_scale_log2(softmax_scale)), softmax_scale)),
    )
    config = plan.Config(
        shape.head_dim, causal, options.p_offset, options.row_sum == "rounded", options.rule, bool(second),
        options.direct_columns, options.direct_bias, options.direct_codes == "subnormal",
    )  # fmt: skip
    q_table = None if shared_q else _rows_or_none(tables["o"])
    after = (rows(work), rows(dq), *shared, q_table, *_queries(shape, shape.seqlen_q), cutlass.Float32(softmax_scale))
    launches = [before, Launch(main, arguments, (config,), names(config)), Launch(postprocess, after)]
    return gradients, launches


def preprocess_launch(
    shape: Shape,
    o: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    do: torch.Tensor,
    terms: torch.Tensor,
    work: torch.Tensor | None,
    table: torch.Tensor | None,
    options: AttentionOptions,
) -> tuple[Launch, torch.Tensor, dict[str, torch.Tensor]]:
    """The launch that fills `terms` and `work` (see `preprocess.py`), codes of dO in square blocks, and their scales by the
    names of `main.ATOMS`.
    """
    codes = torch.empty(do.shape, dtype=torch.uint8, device=do.device)
    scales = torch.empty(2, *terms.shape[:-1], ATOM_BYTES // 4, dtype=torch.int32, device=do.device)
    arguments = (
        *(rows(x.contiguous()) for x in (do, o)),
        *(None if x is None else rows(x.contiguous().unsqueeze(-1)) for x in (lse, dlse)),
        rows(codes, E4M3),
        *map(rows, (scales, terms)),
        *map(_rows_or_none, (work, table)),
        *_queries(shape, shape.seqlen_o),
    )
    by_tokens, by_head_dim = scales.view(torch.uint8)
    constants = options.p_offset, options.rule, options.delta == "dequantized_dO"
    return Launch(preprocess, arguments, constants), codes, {"do": by_tokens, "do_t": by_head_dim}


def _tables(sequences: Jagged | None, causal: bool) -> dict[str, torch.Tensor | None]:
    """Work tables: tiles of keys, long ones first, and tiles of rows of O as they lie; None in a dense call."""
    if sequences is None:
        return {"k": None, "o": None}
    of_keys = sequences.work("k", TILE_N, causal=causal)
    return {"k": of_keys, "o": sequences.work("q", TILE_M, causal=causal, longest_first=False)}


def _rows_or_none(x: torch.Tensor | None) -> Any:
    return None if x is None else rows(x)


def _queries(shape: Shape, seqlen: int) -> tuple[cutlass.Int32, ...]:
    """B, S, Hq for a launch."""
    return tuple(map(cutlass.Int32, (shape.batch, seqlen, shape.heads_q)))


def _scales(x: MXOperand, name: str) -> torch.Tensor:
    return x.scales_with_rows("head_dim" if name.endswith("_t") else "tokens").contiguous()
