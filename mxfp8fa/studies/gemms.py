"""The six GEMMs of attention forward and backward: what each contracts, and so along which axis its blocks must run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gemm:
    """One GEMM, result = left right, contracted over one axis.

    Attributes:
        result: name of the result.
        formula: as it is written.
        left: tensor whose rows are the rows of the result.
        right: tensor whose columns are the columns of the result.
        rows: axis along the rows of the result: "queries", "keys" or "d".
        columns: axis along its columns.
        contracted: axis that is summed over.
        backward: whether it belongs to the backward.
    """

    result: str
    formula: str
    left: str
    right: str
    rows: str
    columns: str
    contracted: str
    backward: bool = True


GEMMS = (
    Gemm("S", "S = Q Kᵀ", "Q", "K", "queries", "keys", "d", backward=False),
    Gemm("O", "O = P V", "P", "V", "queries", "d", "keys", backward=False),
    Gemm("dP", "dP = dO Vᵀ", "dO", "V", "queries", "keys", "d"),
    Gemm("dV", "dV = Pᵀ dO", "P", "dO", "keys", "d", "queries"),
    Gemm("dQ", "dQ = dS K", "dS", "K", "queries", "d", "keys"),
    Gemm("dK", "dK = dSᵀ Q", "dS", "Q", "keys", "d", "queries"),
)
OPERANDS = ("Q", "K", "V", "dO", "P", "dS")


def block_axes() -> dict[str, dict[str, list[str]]]:
    """Operand -> axis its blocks must run along -> the GEMMs that ask for it."""
    needed: dict[str, dict[str, list[str]]] = {name: {} for name in OPERANDS}
    for gemm in GEMMS:
        for operand in (gemm.left, gemm.right):
            needed[operand].setdefault(gemm.contracted, []).append(gemm.result)
    return needed
