"""Operands of tcgen05.mma made without the package: codes and values, rows of bytes, and where they lie."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.layouts.cute_layout import canonical, swizzled

# Exponent bits, mantissa bits, bias (OCP OFP8 and MX v1.0).
SMALL = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e2m1": (2, 1, 1)}
BITS = {"e2m3": 6, "e3m2": 6, "e2m1": 4}
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
SPAN_BYTES = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B, 32-byte atoms": 128}
SWIZZLE_CODES = {"none": 0, "128B, 32-byte atoms": 1, "128B": 2, "64B": 4, "32B": 6}


def small_value(code: int, fmt: str) -> float:
    """Value of a code of a small format, specials included."""
    exponent_bits, mantissa_bits, bias = SMALL[fmt]
    bits = 1 + exponent_bits + mantissa_bits
    sign = -1.0 if code >> (bits - 1) & 1 else 1.0
    exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
    if fmt == "e4m3" and code & 0x7F == 0x7F:
        return float("nan")
    if fmt == "e5m2" and exponent == 31:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if exponent == 0:
        return sign * 2.0 ** (1 - bias) * mantissa / (1 << mantissa_bits)
    return sign * 2.0 ** (exponent - bias) * (1 + mantissa / (1 << mantissa_bits))


@cache
def table(fmt: str) -> np.ndarray:
    """Values of all codes of a small format."""
    return np.array([small_value(c, fmt) for c in range(1 << BITS.get(fmt, 8))])


def random_raw(rng: np.random.Generator, fmt: str, shape: tuple[int, ...]) -> np.ndarray:
    """Raw elements: finite, of both signs, zeros and subnormals among them, and products that float64 adds exactly."""
    if fmt in ("s8", "u8"):
        return rng.integers(0, 256, shape, np.uint8)
    if fmt == "e5m2":  # 2^-8 .. 2^8, and the subnormals
        codes = np.concatenate([np.arange(7 << 2, 24 << 2), [0, 0x80]])
        return (rng.choice(codes, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)
    if fmt in SMALL:
        return rng.choice(np.nonzero(np.isfinite(table(fmt)))[0], shape).astype(np.uint8)
    mantissa_bits = {"f16": 10, "bf16": 7, "tf32": 10}[fmt]
    values = rng.integers(-(2 << mantissa_bits) + 1, 2 << mantissa_bits, shape) * 2.0 ** rng.integers(
        -mantissa_bits - 2, -mantissa_bits + 3, shape
    )
    values[rng.random(shape) < 0.05] = 0.0
    if fmt == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if fmt == "bf16" else bits


def values_of(raw: np.ndarray, fmt: str) -> np.ndarray:
    """float64 values of raw elements."""
    if fmt in ("s8", "u8"):
        return raw.view(np.int8 if fmt == "s8" else np.uint8).astype(np.float64)
    if fmt in SMALL:
        return table(fmt)[raw]
    if fmt == "f16":
        return raw.view(np.float16).astype(np.float64)
    if fmt == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def padded_groups(codes: np.ndarray, bits: int) -> np.ndarray:
    """4- or 6-bit codes (rows, K) in groups of 16: element i at bit i * bits, then padding up to 16 bytes (0xEE here)."""
    rows, k = codes.shape
    found = np.full((rows, k), 0xEE, np.uint8)
    for r in range(rows):
        for g in range(0, k, 16):
            number = 0
            for i in range(16):
                number |= int(codes[r, g + i]) << bits * i
            found[r, g : g + 2 * bits] = np.frombuffer(number.to_bytes(2 * bits, "little"), np.uint8)
    return found


def nibble_pairs(codes: np.ndarray) -> np.ndarray:
    """Packed 4-bit codes: the element of lower k in the low nibble."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def shared_rows(raw: np.ndarray, fmt: str, *, packed: bool) -> np.ndarray:
    """(rows, bytes): an operand's rows along K as K-major shared memory holds them."""
    if packed:
        return nibble_pairs(raw)
    if fmt in BITS:
        return padded_groups(raw, BITS[fmt])
    return np.ascontiguousarray(raw).view(np.uint8).reshape(raw.shape[0], -1)


def tensor_rows(raw: np.ndarray, fmt: str, *, packed: bool) -> np.ndarray:
    """(rows, words): an operand's rows along K as tensor memory holds them: 4- and 6-bit elements one to a byte."""
    if fmt in BITS and not packed:
        return (raw << (2 if BITS[fmt] == 4 else 0)).astype(np.uint8).view(np.uint32)
    return np.ascontiguousarray(shared_rows(raw, fmt, packed=packed)).view(np.uint32)


@cache
def offsets(major: str, swizzle: str, rows: int, k: int, element_bytes: int, lbo: int, sbo: int) -> np.ndarray:
    """(rows, k) plain offsets of the canonical layout."""
    found = canonical(major, swizzle, rows, k, element_bytes, lbo, sbo)
    return np.array([[found[r, j] for j in range(k)] for r in range(rows)])


@cache
def addresses(
    start: int, major: str, swizzle: str, rows: int, k: int, element_bytes: int, lbo: int, sbo: int
) -> np.ndarray:
    """(rows, k, element_bytes) shared addresses of an operand's bytes."""
    plain = start + offsets(major, swizzle, rows, k, element_bytes, lbo, sbo)[..., None] + np.arange(element_bytes)
    return np.array([swizzled(a, swizzle) for a in plain.reshape(-1).tolist()]).reshape(plain.shape)


def place(
    image: np.ndarray, start: int, rows: np.ndarray, element_bytes: int, major: str, swizzle: str, lbo: int, sbo: int
) -> None:
    """Write an operand, given as rows of bytes, into shared memory; image[i] is the byte at address 0x400 + i."""
    unit = 1 if major == "K" else element_bytes
    elements = rows.reshape(rows.shape[0], -1, unit)
    image[addresses(start, major, swizzle, *elements.shape, lbo, sbo) - 0x400] = elements


def descriptor(start: int, lbo: int, sbo: int, swizzle: str) -> int:
    """The 64 bits."""
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | SWIZZLE_CODES[swizzle] << 61
