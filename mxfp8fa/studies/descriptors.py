"""The two descriptors of a tcgen05.mma, field by field: the instruction's (32 bits) and an operand's (64 bits).

Bit positions: PTX ISA, "tcgen05: Instruction descriptor" (tables for kind::f16 and kind::mxf8f6f4) and "Shared memory
descriptor".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BitField:
    """Some bits of a word.

    Attributes:
        name: what the bits are called; "" for bits that have to be zero.
        low, high: first and last bit, inclusive.
        value: what they hold.
        meaning: in words.
    """

    name: str
    low: int
    high: int
    value: int
    meaning: str


_Meaning = Callable[[int], str]
_Layout = Sequence[tuple[str, int, int, _Meaning]]
_MAJOR = ("K-major", "MN-major")
_SWIZZLES = {0: "none", 1: "128 bytes, 32-byte atoms", 2: "128 bytes", 4: "64 bytes", 6: "32 bytes"}


def _one_of(names: Mapping[int, str] | Sequence[str]) -> _Meaning:
    known = dict(names) if isinstance(names, Mapping) else dict(enumerate(names))
    return lambda value: known.get(value, "not defined")


def _times(factor: int, unit: str = "") -> _Meaning:
    return lambda value: f"{value * factor}{unit}"


def _zero(value: int) -> str:
    return "must be 0" if value else ""


_E4M3 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
INSTRUCTION: Mapping[str, _Layout] = {
    "f16": (
        ("sparsity", 0, 2, _one_of({0: "dense"})),
        ("saturate", 3, 3, _one_of(("no", "yes"))),
        ("D", 4, 5, _one_of(("f16", "f32", "s32"))),
        ("", 6, 6, _zero),
        ("A", 7, 9, _one_of(("f16", "bf16"))),
        ("B", 10, 12, _one_of(("f16", "bf16"))),
        ("-A", 13, 13, _one_of(("as is", "negated"))),
        ("-B", 14, 14, _one_of(("as is", "negated"))),
        ("major A", 15, 15, _one_of(_MAJOR)),
        ("major B", 16, 16, _one_of(_MAJOR)),
        ("N / 8", 17, 22, _times(8)),
        ("", 23, 23, _zero),
        ("M / 16", 24, 28, _times(16)),
        ("", 29, 29, _zero),
        ("shift", 30, 31, _one_of({0: "none"})),
    ),
    "mxf8f6f4": (
        ("sparsity", 0, 2, _one_of({0: "dense"})),
        ("", 3, 3, _zero),
        ("SFB id", 4, 5, _times(1)),
        ("", 6, 6, _zero),
        ("A", 7, 9, _one_of(_E4M3)),
        ("B", 10, 12, _one_of(_E4M3)),
        ("-A", 13, 13, _one_of(("as is", "negated"))),
        ("-B", 14, 14, _one_of(("as is", "negated"))),
        ("major A", 15, 15, _one_of(_MAJOR)),
        ("major B", 16, 16, _one_of(_MAJOR)),
        ("N / 8", 17, 22, _times(8)),
        ("scales", 23, 23, _one_of(("not defined", "ue8m0"))),
        ("M / 16", 24, 28, _times(16)),
        ("SFA id", 29, 30, _times(1)),
        ("", 31, 31, _zero),
    ),
}
MATRIX: _Layout = (
    ("start / 16", 0, 13, _times(16, " bytes")),
    ("", 14, 15, _zero),
    ("LBO / 16", 16, 29, _times(16, " bytes")),
    ("", 30, 31, _zero),
    ("SBO / 16", 32, 45, _times(16, " bytes")),
    ("constant", 46, 48, _one_of({1: "always 1"})),
    ("base", 49, 51, _times(1)),
    ("LBO mode", 52, 52, _one_of(("offset",))),
    ("", 53, 60, _zero),
    ("swizzle", 61, 63, _one_of(_SWIZZLES)),
)


def instruction_fields(word: int, kind: str) -> list[BitField]:
    """The fields of an instruction descriptor.

    Args:
        word: its 32 bits.
        kind: "f16" or "mxf8f6f4".

    Raises:
        ValueError: another kind, or more than 32 bits.
    """
    if kind not in INSTRUCTION:
        raise ValueError(f"kind = {kind!r}; allowed: {', '.join(INSTRUCTION)}")
    return _fields(word, INSTRUCTION[kind], 32)


def matrix_fields(word: int) -> list[BitField]:
    """The fields of a shared-memory matrix descriptor, 64 bits.

    Raises:
        ValueError: more than 64 bits.
    """
    return _fields(word, MATRIX, 64)


def _fields(word: int, layout: _Layout, bits: int) -> list[BitField]:
    if not 0 <= word < 1 << bits:
        raise ValueError(f"word = {word:#x}; allowed: {bits} bits")
    found = []
    for name, low, high, meaning in layout:
        value = word >> low & ((1 << (high - low + 1)) - 1)
        found.append(BitField(name, low, high, value, meaning(value)))
    return found


def field_table(fields: Sequence[BitField]) -> str:
    """The named fields as lines of text: bits, name, value, meaning."""
    named = [f for f in fields if f.name]
    width = max(len(f.name) for f in named)
    return "\n".join(f"{f.low:2}:{f.high:<2}  {f.name:{width}}  {f.value:6}  {f.meaning}" for f in named)


@dataclass(frozen=True)
class SharedTile:
    """A matrix operand in shared memory.

    Attributes:
        name: for the title of its panel.
        addresses: (rows, K) shared address of each element.
        element_bytes: size of an element.
        mn_major: whether the row index runs fastest in memory.
    """

    name: str
    addresses: NDArray[np.int64]
    element_bytes: int
    mn_major: bool = False

    def chunks(self, line: int, first: int) -> list[tuple[int, int]]:
        """(row, k) of the first element in each of the eight 16-byte chunks of a 128-byte line.

        Args:
            line: which line, counted from `first`.
            first: address of line 0.
        """
        found = []
        for chunk in range(8):
            at = np.argwhere(self.addresses == first + 128 * line + 16 * chunk)
            found.append((int(at[0][0]), int(at[0][1])) if len(at) else (-1, -1))
        return found
