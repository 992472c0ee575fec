"""The 64-bit shared-memory matrix descriptor of tcgen05.mma and tcgen05.cp, and the addresses it describes.

Field positions: PTX ISA, "tcgen05: Shared memory descriptor". The address formulas are the canonical layouts of that
chapter written out; where the ISA only draws them, they were inferred from public kernels (see `byte_addresses`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.layouts.swizzle import NONE, SW32, SW64, SW128, SW128_ATOM32, Swizzle

SWIZZLE_MODES = {0: NONE, 1: SW128_ATOM32, 2: SW128, 4: SW64, 6: SW32}
_ADDRESS_BITS = 14  # the fields hold addresses and offsets in units of 16 bytes
_UNIT_BYTES = 16


@dataclass(frozen=True)
class MatrixDescriptor:
    """A decoded descriptor.

    Attributes:
        start_bytes: shared address of the matrix, within the CTA (18 bits).
        leading_bytes: LBO, leading-dimension byte offset.
        stride_bytes: SBO, stride-dimension byte offset.
        swizzle: swizzle mode.
    """

    start_bytes: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle

    @staticmethod
    def decode(word: int) -> MatrixDescriptor:
        """The descriptor in 64 bits.

        Raises:
            ValueError: names the field, what it holds and what is allowed.
        """
        mode = word >> 61 & 7
        if mode not in SWIZZLE_MODES:
            raise ValueError(f"descriptor {word:#018x}: swizzle mode (bits 61:63) is {mode}; allowed: 0, 1, 2, 4, 6")
        version, base, lbo_mode = word >> 46 & 7, word >> 49 & 7, word >> 52 & 1
        if version != 1:
            raise ValueError(f"descriptor {word:#018x}: the constant in bits 46:48 is {version}; it must be 1")
        if base:
            raise ValueError(
                f"descriptor {word:#018x}: matrix base offset (bits 49:51) is {base}; only 0 is supported (its effect on "
                "the swizzle is not documented precisely enough)"
            )
        if lbo_mode:
            raise ValueError(f"descriptor {word:#018x}: LBO mode (bit 52) is 1, which sm_100a does not have")
        reserved = word >> 14 & 3 or word >> 30 & 3 or word >> 53 & 0xFF
        if reserved:
            raise ValueError(f"descriptor {word:#018x}: bits 14:15, 30:31 and 53:60 must be 0")
        mask = (1 << _ADDRESS_BITS) - 1
        start, leading, stride = ((word >> at & mask) * _UNIT_BYTES for at in (0, 16, 32))
        return MatrixDescriptor(start, leading, stride, SWIZZLE_MODES[mode])

    def encode(self) -> int:
        """The 64 bits."""
        for name, value in (
            ("start", self.start_bytes),
            ("leading", self.leading_bytes),
            ("stride", self.stride_bytes),
        ):
            if value % _UNIT_BYTES or not 0 <= value < _UNIT_BYTES << _ADDRESS_BITS:
                raise ValueError(
                    f"{name}_bytes = {value}; allowed: multiples of 16 below {_UNIT_BYTES << _ADDRESS_BITS}"
                )
        mode = next(m for m, s in SWIZZLE_MODES.items() if s == self.swizzle)
        fields = (self.start_bytes // 16) | (self.leading_bytes // 16) << 16 | (self.stride_bytes // 16) << 32
        return fields | 1 << 46 | mode << 61


def byte_addresses(
    d: MatrixDescriptor, rows: int, k_bytes: int, element_bytes: int, *, mn_major: bool
) -> NDArray[np.int64]:
    """Shared addresses of a matrix operand's elements.

    Args:
        d: its descriptor.
        rows: extent along M (operand A) or N (operand B).
        k_bytes: extent along K, in bytes.
        element_bytes: size of an element in shared memory (1 for every 8-, 6- and 4-bit type of kind f8f6f4, which sit
            in 16-byte groups; packed 4-bit pairs count as one element).
        mn_major: whether M (or N) is the contiguous dimension.

    Returns:
        (rows, k_bytes // element_bytes) address of each element's first byte, swizzled.

    Source: PTX ISA canonical layouts; the swap of LBO and SBO between MN-major without and with swizzle, and the 32-byte
    atoms of tf32, inferred from CUTLASS and DeepGEMM descriptors.
    """
    row = np.arange(rows, dtype=np.int64)[:, None]
    k = np.arange(k_bytes // element_bytes, dtype=np.int64)[None, :]
    plain = (_mn_major if mn_major else _k_major)(d, row, k, element_bytes)
    return d.swizzle(d.start_bytes + plain)


def _k_major(
    d: MatrixDescriptor, row: NDArray[np.int64], k: NDArray[np.int64], element_bytes: int
) -> NDArray[np.int64]:
    byte = k * element_bytes
    if d.swizzle is NONE:  # columns of 16 bytes, LBO apart; LBO 0 counts as 16 (inferred)
        return row % 8 * 16 + row // 8 * d.stride_bytes + byte // 16 * max(d.leading_bytes, 16) + byte % 16
    return row % 8 * d.swizzle.span_bytes + row // 8 * d.stride_bytes + byte


def _mn_major(
    d: MatrixDescriptor, row: NDArray[np.int64], k: NDArray[np.int64], element_bytes: int
) -> NDArray[np.int64]:
    byte, span = row * element_bytes, d.swizzle.span_bytes
    if d.swizzle is NONE:
        return byte % 16 + byte // 16 * d.stride_bytes + k % 8 * 16 + k // 8 * d.leading_bytes
    depth = 4 if d.swizzle is SW128_ATOM32 else 8  # rows of K in an atom
    return byte % span + byte // span * d.leading_bytes + k % depth * span + k // depth * d.stride_bytes
