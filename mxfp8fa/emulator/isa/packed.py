"""Packed registers: two elements in one word, element 0 in the low half (PTX ISA, 5.2.5 "Packed Data Types").

`halves` and `join` are for 16-bit elements, `singles` and `join_singles` for two f32 in 64 bits. The last two functions
say how uninitialised bits spread through packed instructions: from an element to the same element only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mxfp8fa.emulator.values import Value

ShadowRule = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], list[np.ndarray]]


def halves(word: Value, t: str) -> tuple[Value, Value]:
    """Elements 0 and 1 of a u32, as 16-bit type t."""
    return word.to("u16").bits(t), (word >> 16).to("u16").bits(t)


def join(low: Value, high: Value) -> Value:
    """The u32 whose elements 0 and 1 are two values of 16 bits."""
    return low.bits("u16").to("u32") | (high.bits("u16").to("u32") << 16)


def per_half(function: Callable[..., Value], *words: Value) -> Value:
    """function (of u16 operands, to u16) on elements 0 and on elements 1 of u32 operands."""
    pairs = [halves(word, "u16") for word in words]
    return join(function(*(low for low, _ in pairs)), function(*(high for _, high in pairs)))


def singles(word: Value) -> tuple[Value, Value]:
    """Elements 0 and 1 of a u64 as f32."""
    return word.to("u32").bits("f32"), (word >> 32).to("u32").bits("f32")


def join_singles(low: Value, high: Value) -> Value:
    """The u64 whose elements 0 and 1 are two f32."""
    return low.bits("u32").to("u64") | (high.bits("u32").to("u64") << 32)


def per_single(function: Callable[..., Value], *words: Value) -> Value:
    """function (of f32) on elements 0 and on elements 1 of u64 operands."""
    pairs = [singles(word) for word in words]
    return join_singles(function(*(low for low, _ in pairs)), function(*(high for _, high in pairs)))


def elementwise_shadow(values: Sequence[np.ndarray], shadows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Poison of an instruction on pairs in u32 or u64: an uninitialised bit in element i spoils element i."""
    half: type[np.uint16 | np.uint32] = np.uint16 if shadows[0].itemsize == 4 else np.uint32
    bad = np.zeros(shadows[0].size * 2, bool)
    for shadow in shadows:
        bad |= np.ascontiguousarray(shadow).view(half).astype(bool)
    return [np.where(bad, ~half(0), half(0)).view(shadows[0].dtype)]


def packing_shadow(width: int, dtype: type) -> ShadowRule:
    """Poison of an instruction (a, b) -> d with a in the upper and b in the lower `width` bits: each spoils its own."""

    def rule(values: Sequence[np.ndarray], shadows: Sequence[np.ndarray]) -> list[np.ndarray]:
        field = dtype((1 << width) - 1)
        high, low = (np.where(s.astype(bool), field, dtype(0)) for s in shadows[:2])
        return [(high << dtype(width)) | low]

    return rule
