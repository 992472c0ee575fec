"""Tensor-core products D = A B^T + C of block-scaled operands, in three degrees of faithfulness.

A K loop is a sequence of steps, one per instruction, over `k_slice` elements each (32 for 8-bit operands, 16 for 16-bit
ones, 8 for tf32); D of a step is C of the next. The accumulation models differ in what a step rounds:

    exact      nothing to float32: one float64 product over all of K, plus C.
    float32    acc = fl32(acc + fl32(dot)), nearest even: the dot product of a slice is formed in float64 and rounded
               once, then added in float32.
    blackwell  the published model of the B200 tensor core, in `mxfp8fa.numerics.tensor_core`.

Why "float32" multiplies in float64: products of E4M3 are multiples of 2^-18 below 2^18, so 32 of them, all scaled by
the same pair of powers of two, sum within 53 bits, exactly and in whatever order a BLAS adds them. The result is
therefore the same for every memory layout, matrix shape, number of threads and machine, and a kernel can be compared
with the model bit for bit. A float32 GEMM (41 bits into 24) would promise none of that. For E5M2 and wider formats, and
for a `k_slice` that spans several scales, the float64 sum may itself round, at 2^-53 of the largest term; another BLAS
could then, very rarely, change a last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import E8M0, FORMATS, TF32, Format, as_array, decode, get_format, to_float32
from mxfp8fa.numerics.mx_tensor import BLOCK, MXTensor
from mxfp8fa.numerics.tensor_core import TensorCoreOperand, tensor_core_step

ACCUMULATE = ("exact", "float32", "blackwell")
OPERAND_FORMATS = tuple(name for name in FORMATS if name != "e8m0")
_TF32_MASK = np.uint32(0xFFFFE000)


@overload
def mma(
    a: ArrayLike | MXTensor,
    b: ArrayLike | MXTensor,
    c: ArrayLike | None = None,
    *,
    a_scale: NDArray[np.uint8] | None = None,
    b_scale: NDArray[np.uint8] | None = None,
    a_fmt: str | Format = "e4m3",
    b_fmt: str | Format = "e4m3",
    k_slice: int = 32,
    accumulate: Literal["float32", "blackwell"] = "float32",
    d_fmt: Literal["f32"] = "f32",
) -> NDArray[np.float32]: ...


@overload
def mma(
    a: ArrayLike | MXTensor,
    b: ArrayLike | MXTensor,
    c: ArrayLike | None = None,
    *,
    a_scale: NDArray[np.uint8] | None = None,
    b_scale: NDArray[np.uint8] | None = None,
    a_fmt: str | Format = "e4m3",
    b_fmt: str | Format = "e4m3",
    k_slice: int = 32,
    accumulate: str = "float32",
    d_fmt: str = "f32",
) -> NDArray: ...


def mma(
    a: ArrayLike | MXTensor,
    b: ArrayLike | MXTensor,
    c: ArrayLike | None = None,
    *,
    a_scale: NDArray[np.uint8] | None = None,
    b_scale: NDArray[np.uint8] | None = None,
    a_fmt: str | Format = "e4m3",
    b_fmt: str | Format = "e4m3",
    k_slice: int = 32,
    accumulate: str = "float32",
    d_fmt: str = "f32",
) -> NDArray:
    """D = A B^T + C with block scales, accumulated along K as the module's docstring says.

    Args:
        a: (M, K) element values, without their scales, as float32, float16 or bfloat16; or an `MXTensor` of rank 2 in
            blocks along its last axis or in squares, which brings its scales and format.
        b: (N, K), likewise.
        c: (M, N) float32 accumulator, or None for zeros.
        a_scale: (M, ceil(K / 32)) uint8 E8M0 codes of A's blocks along K, or None for no scaling.
        b_scale: (N, ceil(K / 32)), likewise.
        a_fmt: format of A's values: "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "f16", "bf16" or "tf32". tf32 ignores the
            low 13 bits of its float32 container. "blackwell" requires values of the format; the other models take any.
        b_fmt: format of B's values.
        k_slice: elements of K in one step. A last, shorter slice counts as padded with zeros.
        accumulate: "exact" (returns float64), "float32" or "blackwell" (return `d_fmt`).
        d_fmt: "f32", or "f16" for 16-bit accumulators: D of every step is then rounded to float16, to nearest even.

    Returns:
        (M, N), a new array.

    Raises:
        ValueError: an unknown model or format, shapes or dtypes that do not fit, scales for a format that has none, an
            `MXTensor` with blocks along the wrong axis, or under "blackwell" a value its format does not have.
    """
    if accumulate not in ACCUMULATE:
        raise ValueError(f"accumulate = {accumulate!r}; allowed: {', '.join(ACCUMULATE)}")
    if d_fmt not in ("f32", "f16"):
        raise ValueError(f"d_fmt = {d_fmt!r}; allowed: f32, f16")
    if not isinstance(k_slice, int | np.integer) or k_slice < 1:
        raise ValueError(f"k_slice = {k_slice!r}; allowed: integers from 1")
    left = _operand("a", a, a_scale, a_fmt)
    right = _operand("b", b, b_scale, b_fmt)
    (rows, k), (columns, k_right) = left.values.shape, right.values.shape
    if k != k_right:
        raise ValueError(f"a has shape {(rows, k)} and b {(columns, k_right)}; both need the same length K of axis 1")
    start = _accumulator(c, (rows, columns))
    if accumulate == "exact":
        with np.errstate(over="ignore", invalid="ignore"):
            return left.dequantized() @ right.dequantized().T + start
    return (_mma_float32 if accumulate == "float32" else _mma_blackwell)(left, right, start, int(k_slice), d_fmt)


@dataclass(frozen=True)
class _Operand:
    """One operand, checked: element values and, if it is block scaled, one scale code per row and 32 columns."""

    name: str
    values: NDArray[np.float32]
    scale_e8m0: NDArray[np.uint8] | None
    fmt: Format

    def spread(self, per_block: NDArray) -> NDArray:
        """One entry per element, (rows, K), from one per block."""
        return np.repeat(per_block, BLOCK, axis=1)[:, : self.values.shape[1]]

    def dequantized(self) -> NDArray[np.float64]:
        """Element times scale, exact in float64."""
        values = self.values.astype(np.float64, order="C")
        if self.scale_e8m0 is None:
            return values
        scale = self.spread(decode(self.scale_e8m0, E8M0).astype(np.float64))
        with np.errstate(invalid="ignore"):
            return np.multiply(values, scale, out=values)

    def tensor_core(self) -> TensorCoreOperand:
        """The operand as significands and exponents."""
        exponent = np.zeros(1, np.int16)
        if self.scale_e8m0 is not None:
            exponent = self.spread(self.scale_e8m0.astype(np.int16) - np.int16(E8M0.bias))
        return TensorCoreOperand.split(self.name, self.values, self.dequantized(), exponent, self.fmt)


def _operand(name: str, x: ArrayLike | MXTensor, scale: NDArray[np.uint8] | None, fmt: str | Format) -> _Operand:
    if isinstance(x, MXTensor):
        if scale is not None:
            raise ValueError(f"{name}_scale is given and {name} is an MXTensor, which has scales; allowed: one of them")
        return _mx_operand(name, x)
    format_ = get_format(fmt)
    if format_ is E8M0:
        raise ValueError(f"{name}_fmt = 'e8m0' is a scale format; allowed: {', '.join(OPERAND_FORMATS)}")
    values = to_float32(x)
    if values.ndim != 2:
        raise ValueError(f"{name} has shape {values.shape}; allowed: rank 2, rows by K")
    if format_ is TF32:
        values = (values.view(np.uint32) & _TF32_MASK).view(np.float32)
    if scale is not None:
        _check_scale(name, scale, values.shape, format_)
    return _Operand(name, values, scale, format_)


def _mx_operand(name: str, x: MXTensor) -> _Operand:
    if x.axes not in ((1,), (0, 1)) or len(x.shape) != 2:
        raise ValueError(
            f"{name} is an MXTensor of shape {x.shape} in blocks along axes {x.axes}; "
            f"allowed: rank 2 with axes (1,), blocks along K, or (0, 1), squares"
        )
    scale = x.scale_e8m0
    if x.axes == (0, 1):
        scale = x.scale_of_rows(0)
    return _Operand(name, decode(x.codes, x.fmt), scale, get_format(x.fmt))


def _check_scale(name: str, scale: NDArray[np.uint8], shape: tuple[int, ...], fmt: Format) -> None:
    if fmt.bits > 8:
        raise ValueError(f"{name}_scale is given for {fmt.name}; allowed: formats of at most 8 bits (mxf8f6f4)")
    expected = (shape[0], -(-shape[1] // BLOCK))
    if not isinstance(scale, np.ndarray) or scale.dtype != np.uint8 or scale.shape != expected:
        given = f"{scale.dtype} {scale.shape}" if isinstance(scale, np.ndarray) else type(scale).__name__
        raise ValueError(f"{name}_scale is {given}; {name} of shape {shape} needs uint8 {expected}")


def _accumulator(c: ArrayLike | None, shape: tuple[int, int]) -> NDArray[np.float32]:
    """C as a new float32 array."""
    if c is None:
        return np.zeros(shape, np.float32)
    array = as_array(c, "c")
    if array.dtype != np.float32 or array.shape != shape:
        raise ValueError(f"c is {array.dtype} {array.shape}; allowed: float32 {shape}")
    return array.copy()


def _mma_float32(a: _Operand, b: _Operand, acc: NDArray[np.float32], k_slice: int, d_fmt: str) -> NDArray:
    left, right = a.dequantized(), b.dequantized()
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, left.shape[1], k_slice):
            part = slice(start, start + k_slice)
            np.add(acc, (left[:, part] @ right[:, part].T).astype(np.float32), out=acc)
            if d_fmt == "f16":
                acc = acc.astype(np.float16).astype(np.float32)
    return acc.astype(np.float16) if d_fmt == "f16" else acc


def _mma_blackwell(a: _Operand, b: _Operand, acc: NDArray[np.float32], k_slice: int, d_fmt: str) -> NDArray:
    left, right = a.tensor_core(), b.tensor_core()
    for start in range(0, a.values.shape[1], k_slice):
        part = slice(start, start + k_slice)
        acc = tensor_core_step(left.columns(part), right.columns(part), acc, half=d_fmt == "f16")
    return acc.astype(np.float16) if d_fmt == "f16" else acc
