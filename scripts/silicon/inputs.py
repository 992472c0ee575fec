"""Input values for pure instructions: edge values in every combination of two, then seeded random ones.

All forms share their inputs: operand number p of kind k (`f32`, `i16`, `bf16x2`, ...) is always `pool(k, p)`. The first
EDGES**2 elements run through all pairs of edge values of operands 0 and 1; the rest is random, and a part of operands
1 and 2 is derived from the operands before, so that sums cancel and comparisons meet equal values.
The random numbers are SplitMix64 (G. Steele, D. Lea, C. Flood, 2014), written out here so that no library version can change them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

EDGES = 80
COUNT = 2 * EDGES**2  # a multiple of the block size of `snippets.kernel`
RANDOM = COUNT - EDGES**2
UNARY_COUNT = 1 << 16


@dataclass(frozen=True)
class FloatKind:
    """A float format's fields."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        """Width."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """Exponent of 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def dtype(self) -> type:
        """The unsigned dtype of its bits."""
        return getattr(np, f"uint{self.bits}")


FLOATS = {"f16": FloatKind(5, 10), "bf16": FloatKind(8, 7), "f32": FloatKind(8, 23), "f64": FloatKind(11, 52)}
PACKED = {"f16x2": ("f16", np.uint32), "bf16x2": ("bf16", np.uint32), "f32x2": ("f32", np.uint64)}
INTEGERS = {f"i{n}": n for n in (8, 16, 32, 64)}


def random_words(seed: str, count: int) -> np.ndarray:
    """`count` random 64-bit words (SplitMix64, started from a checksum of `seed`)."""
    gamma = 0x9E3779B97F4A7C15
    start = zlib.crc32(seed.encode()) * gamma & (2**64 - 1)
    with np.errstate(over="ignore"):
        z = np.uint64(start) + np.uint64(gamma) * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _pick(seed: str, count: int, below: int) -> np.ndarray:
    """Random integers 0 .. below - 1."""
    return (random_words(seed, count) >> np.uint64(11)) % np.uint64(below)


def _fill(values: list[int], seed: str, width: int) -> np.ndarray:
    """EDGES different words: the given ones first, random ones after."""
    found = list(dict.fromkeys(v & ((1 << width) - 1) for v in values))[:EDGES]
    more = (int(w) & ((1 << width) - 1) for w in random_words(f"{seed} edges", 4 * EDGES))
    while len(found) < EDGES:
        found.append(next(more))
    return np.array(found, np.uint64)


@cache
def integer_edges(width: int) -> np.ndarray:
    """Edge values of an integer type: small numbers, shift amounts around the widths, extremes, bit patterns."""
    top = 1 << width
    values = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        4,
        5,
        7,
        8,
        9,
        15,
        16,
        17,
        24,
        31,
        32,
        33,
        48,
        63,
        64,
        65,
        127,
        128,
        129,
        255,
        256,
        257,
        288,
    ]
    values += [top // 2 - 1, top // 2, top // 2 + 1, top - 3, top // 4, 1 << width // 2, (1 << width // 2) - 1]
    values += [
        int("55" * 8, 16),
        int("AA" * 8, 16),
        int("0F" * 8, 16),
        int("8000" * 4, 16),
        int("7FFF" * 4, 16),
        int("FF00" * 4, 16),
    ]
    values += [-128, -129, -32768, -32769, 32767, 65535, 65536, 0x7654, 0x3210, 0xFEDC, 0x1F1F, 0x010203, 0x80FF7F01]
    return _fill(values, f"i{width}", width)


def _random_integers(width: int, seed: str) -> np.ndarray:
    """Small numbers, powers of two and neighbours, numbers of random length, and uniform ones."""
    words = random_words(seed, RANDOM)
    choice = _pick(seed + " choice", RANDOM, 16)
    length = _pick(seed + " length", RANDOM, width)
    power = (np.uint64(1) << length) + _pick(seed + " nudge", RANDOM, 3) - np.uint64(1)
    short = words >> (np.uint64(63) - length)
    short = np.where(words & np.uint64(1), short, ~short)
    values = np.where(
        choice < 4, words % np.uint64(81), np.where(choice < 6, power, np.where(choice < 10, short, words))
    )
    return values & np.uint64((1 << width) - 1)


@cache
def float_edges(name: str) -> np.ndarray:
    """Edge values of a float format: zeros, subnormals, ends of the range, values around 1, integers' limits, NaNs."""
    kind = FLOATS[name]
    m, one, inf = (
        kind.mantissa_bits,
        kind.bias << kind.mantissa_bits,
        ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits,
    )
    quiet = 1 << (m - 1)
    positive = [
        0,
        1,
        2,
        (1 << m) - 1,
        1 << m,
        (1 << m) + 1,
        one,
        one + 1,
        one - 1,
        one + quiet,
        one - (1 << m),
        one + (1 << m),
        inf - 1,
        inf,
    ]
    positive += [inf | quiet, inf | 1, inf | quiet | 5, inf | ((1 << m) - 1)]
    values = [p | sign << (kind.bits - 1) for p in positive for sign in (0, 1)]
    for x in (2.5, 3.5, 127.5, 255.5, 448.0, 464.0, 480.0, 32767.5, 57344.0, 61440.0, 65504.0, 65519.0, 65520.0, 2.0**31, 2.0**32, 2.0**63, 2.0**64,
              2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-14, 2.0**-17, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 3.0, 6.0, 7.0, 28.0):  # fmt: skip
        values.append(_encode(x, kind))
    values += [_encode(-x, kind) for x in (0.5, 2.5, 128.5, 448.0, 2.0**31)]
    reciprocal_of_smallest = _encode(2.0 ** (kind.bias - 1), kind)
    values += [reciprocal_of_smallest + n for n in (-1, 0, 1)]
    if name == "f64":  # where conversion to f32 rounds up to the smallest normal number, to a subnormal, to infinity
        values += [
            _encode(x, kind)
            for x in (
                2.0**-126 * (1 - 2.0**-25),
                2.0**-126 * (1 - 2.0**-24),
                2.0**-150,
                2.0**-150 * (1 + 2.0**-40),
                2.0**128 * (1 - 2.0**-25),
            )
        ]
    return _fill(values, name, kind.bits)


def _encode(x: float, kind: FloatKind) -> int:
    """The bits of x in a format, by way of float64; a value too large for it becomes infinity."""
    return int(from_float64(np.array([x]), kind)[0])


def from_float64(x: np.ndarray, kind: FloatKind) -> np.ndarray:
    """Float64 numbers in a format, rounded by NumPy or, for bf16, cut off: any near value will do as an input."""
    with np.errstate(all="ignore"):
        if kind.bits == 64:
            return x.astype(np.float64).view(np.uint64)
        if kind.bits == 32:
            return x.astype(np.float32).view(np.uint32).astype(np.uint64)
        if kind.exponent_bits == 5:
            return x.astype(np.float16).view(np.uint16).astype(np.uint64)
        return (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint64)


def to_float64(bits: np.ndarray, kind: FloatKind) -> np.ndarray:
    """Values of a format's bits (NaNs as NaN)."""
    with np.errstate(all="ignore"):
        if kind.bits == 64:
            return bits.astype(np.uint64).view(np.float64)
        if kind.bits == 32:
            return bits.astype(np.uint32).view(np.float32).astype(np.float64)
        if kind.exponent_bits == 5:
            return bits.astype(np.uint16).view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _random_floats(kind: FloatKind, seed: str) -> np.ndarray:
    """Exponents over the whole range or near 1; mantissas random, or a few bits and a tie pattern below them."""
    words, choice = random_words(seed, RANDOM), _pick(seed + " choice", RANDOM, 8)
    span = min(2 * kind.bias, 80)
    near = np.uint64(kind.bias) + _pick(seed + " near", RANDOM, span) - np.uint64(span // 2)
    anywhere = _pick(seed + " exponent", RANDOM, 1 << kind.exponent_bits)
    exponent = np.where(choice < 3, anywhere, near & np.uint64((1 << kind.exponent_bits) - 1))
    cut = _pick(seed + " cut", RANDOM, kind.mantissa_bits)
    ones = (np.uint64(1) << cut) - np.uint64(1)
    mantissa = words & np.uint64((1 << kind.mantissa_bits) - 1)
    tie = (mantissa & ~((ones << np.uint64(1)) | np.uint64(1))) | (np.uint64(1) << cut)
    tie = tie + _pick(seed + " nudge", RANDOM, 3) - np.uint64(1)  # just below, at, just above the middle
    mantissa = np.where(choice % 2 == 0, mantissa, tie) & np.uint64((1 << kind.mantissa_bits) - 1)
    sign = words >> np.uint64(63)
    return sign << np.uint64(kind.bits - 1) | exponent << np.uint64(kind.mantissa_bits) | mantissa


def _related(values: np.ndarray, before: list[np.ndarray], width: int, kind: FloatKind | None, seed: str) -> np.ndarray:
    """values, half of them replaced by something near what the operands before combine to."""
    words = random_words(seed + " related", RANDOM)
    nudge = (words >> np.uint64(8)) % np.uint64(5) - np.uint64(2)
    nudge = np.where(words >> np.uint64(16) & np.uint64(1), nudge, np.uint64(0))
    target = before[0] if kind is None else _float_target(before, kind, words >> np.uint64(24))
    flip = (words >> np.uint64(20) & np.uint64(1)) << np.uint64(width - 1) if kind is not None else np.uint64(0)
    near = ((target ^ flip) + nudge) & np.uint64((1 << width) - 1)
    return np.where(words & np.uint64(1), near, values)


def _float_target(before: list[np.ndarray], kind: FloatKind, choice: np.ndarray) -> np.ndarray:
    """Second operand: the first (sums cancel), or what makes product or quotient the smallest normal number; third: the
    product of the first two, or its distance from the smallest normal number."""
    smallest = to_float64(np.array([1 << kind.mantissa_bits], np.uint64), kind)[0]
    a = to_float64(before[0], kind)
    with np.errstate(all="ignore"):
        if len(before) == 1:
            options = [before[0], from_float64(smallest / a, kind), from_float64(a / smallest, kind)]
        else:
            product = a * to_float64(before[1], kind)
            options = [from_float64(product, kind), from_float64(product, kind), from_float64(smallest - product, kind)]
    return np.choose((choice % np.uint64(3)).astype(np.int64), options)


def _edge_index(position: int) -> np.ndarray:
    i = np.arange(EDGES**2)
    if position == 0:
        return i // EDGES
    if position == 1:
        return i % EDGES
    return _pick(f"edge {position}", EDGES**2, EDGES).astype(np.int64)


@cache
def _words(name: str, position: int) -> np.ndarray:
    """pool(name, position) of a scalar kind, as 64-bit words."""
    kind, seed = FLOATS.get(name), f"{name} {position}"
    width = kind.bits if kind is not None else INTEGERS[name]
    edges = float_edges(name) if kind is not None else integer_edges(width)
    values = _random_floats(kind, seed) if kind is not None else _random_integers(width, seed)
    if position in (1, 2):
        values = _related(values, [_words(name, p)[EDGES**2 :] for p in range(position)], width, kind, seed)
    return np.concatenate([edges[_edge_index(position)], values])


@cache
def pool(kind: str, position: int) -> np.ndarray:
    """COUNT inputs of a kind for operand number `position`, as unsigned bits of its width (bool for pred).

    Kinds: pred; i8 i16 i32 i64; f16 bf16 f32 f64; f16x2 bf16x2 f32x2.
    """
    if kind == "pred":
        return (random_words(f"pred {position}", COUNT) & np.uint64(1)).astype(bool)
    if kind in PACKED:
        element, dtype = PACKED[kind]
        low, high = _words(element, position), np.roll(_words(element, position), EDGES * 5 + 3)
        return (low | high << np.uint64(FLOATS[element].bits)).astype(dtype)
    width = FLOATS[kind].bits if kind in FLOATS else INTEGERS[kind]
    return _words(kind, position).astype(getattr(np, f"uint{width}"))


@cache
def unary_pool(kind: str) -> np.ndarray:
    """Inputs for an instruction with one operand: every value of up to 16 bits (in each half, if packed), else UNARY_COUNT."""
    if kind == "pred":
        return np.arange(128) % 2 == 1
    if kind in ("i8", "i16", "f16", "bf16"):
        width = 8 if kind == "i8" else 16
        return np.arange(1 << width).astype(getattr(np, f"uint{width}"))
    every = np.arange(UNARY_COUNT, dtype=np.uint64)
    if kind in ("f16x2", "bf16x2"):
        return (every | (every * np.uint64(40503) & np.uint64(0xFFFF)) << np.uint64(16)).astype(np.uint32)
    if kind == "f32x2":
        low = unary_pool("f32").astype(np.uint64)
        return low | np.roll(low, 12345) << np.uint64(32)
    width = FLOATS[kind].bits if kind in FLOATS else INTEGERS[kind]
    edges = float_edges(kind) if kind in FLOATS else integer_edges(width)
    parts = [edges]
    for k in range(-(-UNARY_COUNT // RANDOM)):
        seed = f"{kind} unary {k}"
        parts.append(_random_floats(FLOATS[kind], seed) if kind in FLOATS else _random_integers(width, seed))
    return np.concatenate(parts)[:UNARY_COUNT].astype(getattr(np, f"uint{width}"))
