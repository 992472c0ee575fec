"""Two 16-bit elements in a 32-bit register: element 0 in bits 15:0, element 1 in bits 31:16."""

from __future__ import annotations

from mxfp8fa.emulator.values import Value


def halves(word: Value, t: str) -> tuple[Value, Value]:
    """Elements 0 and 1 of a u32, as 16-bit type t."""
    return word.to("u16").bits(t), (word >> 16).to("u16").bits(t)


def join(low: Value, high: Value) -> Value:
    """The u32 whose elements 0 and 1 are two values of 16 bits."""
    return low.bits("u16").to("u32") | (high.bits("u16").to("u32") << 16)
