"""A second way to say where data lies: nested shape:stride layouts as CuTe and the PTX ISA print them, evaluated naively."""

from __future__ import annotations

from itertools import product
from typing import Any

Nested = Any  # an int, or a tuple of Nested


def offset(shape: Nested, stride: Nested, index: int) -> int:
    """Offset of a linear index: the leftmost mode counts fastest (CuTe, "Layout Algebra")."""
    if isinstance(shape, int):
        assert 0 <= index < shape
        return index * stride
    total = 0
    for s, d in zip(shape, stride, strict=True):
        n = size(s)
        total += offset(s, d, index % n)
        index //= n
    assert index == 0
    return total


def size(shape: Nested) -> int:
    """Number of indices."""
    if isinstance(shape, int):
        return shape
    n = 1
    for s in shape:
        n *= size(s)
    return n


# What a swizzle XORs: address bit <- address bit (PTX ISA, tables of "Swizzling Modes", written out bit by bit).
SWIZZLE_BITS = {
    "none": {},
    "32B": {4: 7},
    "64B": {4: 7, 5: 8},
    "128B": {4: 7, 5: 8, 6: 9},
    "128B, 32-byte atoms": {5: 7, 6: 8},
    "128B, 64-byte atoms": {6: 7},
}


def swizzled(address: int, name: str) -> int:
    """An address with every bit of SWIZZLE_BITS XORed by its partner."""
    result = address
    for to, source in SWIZZLE_BITS[name].items():
        if address >> source & 1:
            result ^= 1 << to
    return result


def canonical(
    major: str, swizzle: str, rows: int, k: int, element_bytes: int, lbo: int, sbo: int
) -> dict[tuple[int, int], int]:
    """Plain byte offset of every element (row, k) of a matrix operand, from the ISA's table of canonical layouts.

    The table writes strides in elements, T elements being 16 bytes; here they are bytes. "row" is M for A and N for B.
    """
    t = 16 // element_bytes
    span = {"none": 1, "32B": 2, "64B": 4, "128B": 8}.get(swizzle, 8)  # 16-byte chunks of a swizzled row
    if major == "K" and swizzle == "none":
        mn_shape, mn_stride = (8, rows // 8), (16, sbo)
        k_shape, k_stride = (t, k // t), (element_bytes, lbo)
    elif major == "K":
        mn_shape, mn_stride = (8, rows // 8), (16 * span, sbo)
        k_shape, k_stride = (t, k // t), (element_bytes, 16)
    elif swizzle == "none":
        mn_shape, mn_stride = (t, rows // t), (element_bytes, sbo)
        k_shape, k_stride = (8, k // 8), (16, lbo)
    else:
        depth = 4 if swizzle == "128B, 32-byte atoms" else 8
        repeats = max(rows // (t * span), 1)
        mn_shape, mn_stride = (t, span, repeats), (element_bytes, 16, lbo)
        k_shape, k_stride = (depth, k // depth), (16 * span, sbo)
    return {
        (r, j): offset(mn_shape, mn_stride, r) + offset(k_shape, k_stride, j) for r, j in product(range(rows), range(k))
    }
