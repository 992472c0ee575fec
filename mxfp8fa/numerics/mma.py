"""Tensor-core products D = A B^T + C of block-scaled operands, in three degrees of faithfulness.

Every step of a K loop is one instruction over `k_slice` elements (32 for 8-bit operands), and D of one step is C of the
next. The three accumulation models differ only in what a step rounds:

    exact      float64 throughout; nothing is rounded to float32.
    float32    acc = fl32(acc + fl32(dot)): the dot product of a slice is formed in float64 and rounded once to float32
               (nearest even), then added in float32 (nearest even).
    blackwell  the published model of the B200 tensor core; see `mma`.

Why "float32" multiplies in float64: products of E4M3 are multiples of 2^-18 below 2^18, so a slice of 32, scaled by one
pair of powers of two, fits 53 bits and its dot product is exact in whatever order a BLAS adds it. The result is therefore
the same for every memory layout, matrix shape, number of threads and machine, and the emulator can be compared with the
model bit for bit. A float32 GEMM (41 bits into 24) would promise none of that. For wider formats and for a `k_slice`
that spans several scales the float64 sum itself rounds, at 2^-53; then a different BLAS can, rarely, change a last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.formats import E8M0, Format, decode, get_format
from mxfp8fa.numerics.quantize import BLOCK, MXTensor

ACCUMULATE = ("exact", "float32", "blackwell")
OPERAND_FORMATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "f16", "bf16", "tf32")


@dataclass(frozen=True)
class _Operand:
    """One operand, checked: element values and, if it is block scaled, one scale code per row and 32 columns."""

    values: NDArray[np.float32]
    scale_e8m0: NDArray[np.uint8] | None
    fmt: Format

    def scales(self) -> NDArray[np.float64] | None:
        """Scale of every element, (rows, K), or None."""
        if self.scale_e8m0 is None:
            return None
        per_block = decode(self.scale_e8m0, E8M0).astype(np.float64)
        return np.repeat(per_block, BLOCK, axis=1)[:, : self.values.shape[1]]

    def dequantized(self) -> NDArray[np.float64]:
        """Element times scale, exact in float64; C-contiguous."""
        values = self.values.astype(np.float64, order="C")
        scales = self.scales()
        return values if scales is None else np.multiply(values, scales, out=values)


def mma(
    a: NDArray[np.float32] | MXTensor,
    b: NDArray[np.float32] | MXTensor,
    c: NDArray[np.float32] | None = None,
    *,
    a_scale: NDArray[np.uint8] | None = None,
    b_scale: NDArray[np.uint8] | None = None,
    a_fmt: str | Format = "e4m3",
    b_fmt: str | Format = "e4m3",
    k_slice: int = 32,
    accumulate: str = "float32",
) -> NDArray:
    """D = A B^T + C, slice by slice along K."""
    if accumulate not in ACCUMULATE:
        raise ValueError(f"accumulate = {accumulate!r}; allowed: {', '.join(ACCUMULATE)}")
    left = _operand("a", a, a_scale, a_fmt)
    right = _operand("b", b, b_scale, b_fmt)
    if accumulate == "exact":
        product = left.dequantized() @ right.dequantized().T
        return product if c is None else product + c
    return _mma_float32(left, right, c, k_slice)


def _operand(name: str, x: NDArray[np.float32] | MXTensor, scale: NDArray[np.uint8] | None, fmt: str | Format) -> _Operand:
    if isinstance(x, MXTensor):
        codes_scale = np.repeat(x.scale_e8m0, BLOCK, axis=0)[: x.shape[0]] if x.axes == (0, 1) else x.scale_e8m0
        return _Operand(decode(x.codes, x.fmt), codes_scale, get_format(x.fmt))
    return _Operand(x, scale, get_format(fmt))


def _mma_float32(a: _Operand, b: _Operand, c: NDArray[np.float32] | None, k_slice: int) -> NDArray[np.float32]:
    left, right = a.dequantized(), b.dequantized()
    acc = np.zeros((left.shape[0], right.shape[0]), np.float32) if c is None else c.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, left.shape[1], k_slice):
            dot = left[:, start : start + k_slice] @ right[:, start : start + k_slice].T
            acc += dot.astype(np.float32)
    return acc
