"""What the backward accepts: decided from shapes, dtypes and blocks, before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mxfp8fa.kernels.backward.plan import TILE_M
from mxfp8fa.kernels.jagged import Jagged
from mxfp8fa.kernels.operands import MXOperand
from mxfp8fa.kernels.supported import HEAD_DIMS

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Q_SIDE = ("q", "q_second")


@dataclass(frozen=True)
class Shape:
    """Sizes of one call; with packed sequences B is 1 and S is T."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    head_dim: int
    sequences: Jagged | None = None

    @property
    def q_tiles(self) -> int:
        """Tiles of 128 queries of a dense call, or of queries that all sequences share."""
        return -(-self.seqlen_q // TILE_M)

    @property
    def empty(self) -> bool:
        """Whether no query meets a key."""
        return 0 in (self.batch, self.seqlen_q, self.seqlen_k, self.seqlen_o)

    @property
    def seqlen_o(self) -> int:
        """Rows of O in a batch."""
        return self.seqlen_q if self.sequences is None else self.sequences.tokens_o


def check_operands(operands: dict[str, MXOperand], sequences: Jagged | None = None) -> Shape:
    """Shapes, formats, blocks and devices of the operands.

    Raises:
        ValueError: says which operand, what was given and what is allowed.
    """
    layout, batched = ("(B, S, H, D)", 1) if sequences is None else ("(T, H, D)", 0)
    for name, x in operands.items():
        if not isinstance(x, MXOperand):
            raise ValueError(f"{name} is a {type(x).__name__}; allowed: an MXOperand")
        if x.fmt != "e4m3" or len(x.shape) != 3 + batched:
            raise ValueError(f"{name} is {x.fmt} of shape {x.shape}; allowed: e4m3 {layout}")
    q, k = operands["q"], operands["k"]
    (seqlen_q, heads_q, head_dim), (seqlen_k, heads_kv, _) = q.shape[batched:], k.shape[batched:]
    batch = q.shape[0] if batched else 1
    for name, x in operands.items():
        expected = q.shape if name in Q_SIDE else (*q.shape[:batched], seqlen_k, heads_kv, head_dim)
        if x.shape != expected:
            raise ValueError(f"{name} has shape {x.shape}; beside q {q.shape} and k {k.shape} it must be {expected}")
        if x.codes.device != q.codes.device:
            raise ValueError(f"{name} is on {x.codes.device} and q on {q.codes.device}; all must be on one device")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {head_dim}; allowed: {HEAD_DIMS}")
    if heads_kv < 1 or heads_q % heads_kv:
        raise ValueError(f"Hq = {heads_q} is not a multiple of Hkv = {heads_kv}")
    _check_blocks(operands, batched)
    return Shape(batch, seqlen_q, seqlen_k, heads_q, heads_kv, head_dim, sequences)


def _check_blocks(operands: dict[str, MXOperand], token: int) -> None:
    if ("q_second" in operands) != ("k_second" in operands):
        raise ValueError("q_second and k_second: give both or none of them")
    for name in ("q", "k", "v"):
        if token + 2 not in operands[name].axes:
            raise ValueError(
                f"{name} has blocks along axes {operands[name].axes}; allowed: ({token + 2},) or ({token}, {token + 2})"
            )
    for name, alone in (("q", "q_second"), ("k", "k_second")):
        x = operands.get(alone, operands[name])
        if token not in x.axes:
            given = alone if alone in operands else name
            raise ValueError(
                f"{given} has blocks along axes {x.axes}, which do not serve products over tokens; allowed: "
                f"({token}, {token + 2}), or {alone} beside it with ({token},) or ({token}, {token + 2})"
            )


def check_rows(
    shape: Shape,
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
    batch = (shape.batch,) if shape.sequences is None else ()
    like_q = (*batch, shape.seqlen_o, shape.heads_q, shape.head_dim)
    like_lse = (*batch, shape.heads_q, shape.seqlen_o)
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
