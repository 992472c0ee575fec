"""Comparing raw results: bit by bit, or by the distance in units in the last place for approximate functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from silicon.inputs import FLOATS, FloatKind

from mxfp8fa.emulator.isa.snippets import Form

EXAMPLES = 4
NOT_COMPARABLE = -1  # ulp distance between a NaN and a number
_APPROXIMATE = re.compile(r"\.approx|\.full\b")


@dataclass
class Outcome:
    """How one form compares.

    Attributes:
        compared: results compared.
        mismatches: results that differ (approximate functions: a NaN on one side only).
        max_ulp: largest distance, for approximate functions.
        histogram: results by distance, for approximate functions ("0", "1", "2", "3-4", "5-8", ...).
        examples: inputs and both results of the first few that differ (approximate functions: of the farthest).
    """

    compared: int = 0
    mismatches: int = 0
    max_ulp: int | None = None
    histogram: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What goes into the results file; empty entries are left out."""
        found = {"compared": self.compared, "mismatches": self.mismatches, "max_ulp": self.max_ulp}
        found |= {"histogram": self.histogram, "examples": self.examples}
        return {k: v for k, v in found.items() if k in ("compared", "mismatches") or v not in (None, {}, [])}


def approximate(form: Form) -> bool:
    """Whether the ISA states an error bound for a form instead of its result."""
    return bool(_APPROXIMATE.search(form.mnemonic))


def element_kind(form: Form) -> tuple[FloatKind, int]:
    """(format, number) of the elements of an approximate form's result."""
    types = [q for q in form.mnemonic.split(".") if q in FLOATS or q in ("f16x2", "bf16x2")]
    if not types:
        raise ValueError(f"{form.mnemonic}: an approximate function without a float type")
    name, packed = types[-1].removesuffix("x2"), types[-1].endswith("x2")
    return FLOATS[name], 2 if packed else 1


def ulp_distance(x: np.ndarray, y: np.ndarray, kind: FloatKind) -> np.ndarray:
    """Numbers of the format between two results, as int64 (f64: clipped); two NaNs: 0, one: NOT_COMPARABLE; -0 is 0."""
    magnitude = np.uint64((1 << (kind.bits - 1)) - 1)
    infinity = np.uint64(((1 << kind.exponent_bits) - 1) << kind.mantissa_bits)

    def ordered(bits: np.ndarray) -> np.ndarray:
        size = (bits & magnitude).astype(np.int64)
        return np.where(bits > magnitude, -size, size)

    x, y = x.astype(np.uint64), y.astype(np.uint64)
    nan_x, nan_y = (x & magnitude) > infinity, (y & magnitude) > infinity
    a, b = ordered(x), ordered(y)
    far = np.abs(a / 2 - b / 2) > 2.0**61
    distance = np.where(far, np.int64(2**62), np.abs(a - b))
    return np.where(nan_x & nan_y, 0, np.where(nan_x | nan_y, NOT_COMPARABLE, distance))


def _split(results: np.ndarray, kind: FloatKind, count: int) -> np.ndarray:
    """Elements of packed results, shape (count, n)."""
    mask = np.uint64((1 << kind.bits) - 1) if kind.bits < 64 else np.uint64(2**64 - 1)
    return np.stack([results.astype(np.uint64) >> np.uint64(kind.bits * i) & mask for i in range(count)])


def _bucket(distance: int) -> str:
    if distance <= 2:
        return str(distance)
    top = 1 << (distance - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def _example(form: Form, arrays: list[np.ndarray], silicon: list[np.ndarray], emulator: list[np.ndarray], i: int) -> dict[str, Any]:
    n = len(arrays[0]) if arrays else len(silicon[0])
    found: dict[str, Any] = {o.name: _hex(a[i % n]) for o, a in zip(form.arrays, arrays, strict=True)}
    if form.immediate:
        found[form.immediate] = form.constants[i // n]
    return found | {"silicon": [_hex(r[i]) for r in silicon], "emulator": [_hex(r[i]) for r in emulator]}


def _hex(x: Any) -> str:
    return str(bool(x)).lower() if x.dtype == bool else f"{int(x):#0{2 + x.dtype.itemsize * 2}x}"


def compare(form: Form, arrays: list[np.ndarray], silicon: list[np.ndarray], emulator: list[np.ndarray], defined: list[np.ndarray]) -> Outcome:
    """Compare all results of a form.

    Args:
        arrays: inputs, one per entry of form.arrays.
        silicon, emulator: results per output operand.
        defined: per output, where the ISA defines the result; the rest is not compared.
    """
    if approximate(form):
        return _compare_ulp(form, arrays, silicon, emulator)
    different = np.zeros(len(silicon[0]), bool)
    compared = np.zeros(len(silicon[0]), bool)
    for s, e, d in zip(silicon, emulator, defined, strict=True):
        different |= d & (s != e)
        compared |= d
    where = np.nonzero(different)[0]
    examples = [_example(form, arrays, silicon, emulator, int(i)) for i in _simplest(arrays, where)]
    return Outcome(int(compared.sum()), len(where), examples=examples)


def _simplest(arrays: list[np.ndarray], where: np.ndarray) -> np.ndarray:
    """The first few of `where` by number of one bits in the inputs: the smallest failing inputs."""
    if not arrays or not where.size:
        return where[:EXAMPLES]
    weight = sum(np.bitwise_count(a[where % len(a)].astype(np.uint64)).astype(np.int64) for a in arrays)
    return where[np.argsort(weight, kind="stable")[:EXAMPLES]]


def _compare_ulp(form: Form, arrays: list[np.ndarray], silicon: list[np.ndarray], emulator: list[np.ndarray]) -> Outcome:
    kind, count = element_kind(form)
    distance = ulp_distance(_split(silicon[0], kind, count), _split(emulator[0], kind, count), kind)
    worst = np.where(distance == NOT_COMPARABLE, np.iinfo(np.int64).max, distance).max(axis=0)
    comparable = distance[distance != NOT_COMPARABLE]
    buckets, numbers = np.unique(comparable, return_counts=True)
    histogram: dict[str, int] = {}
    for b, n in zip(buckets, numbers, strict=True):
        histogram[_bucket(int(b))] = histogram.get(_bucket(int(b)), 0) + int(n)
    order = np.argsort(-worst, kind="stable")[:EXAMPLES]
    examples = [_example(form, arrays, silicon, emulator, int(i)) for i in order if worst[i] > 0]
    return Outcome(distance.shape[1], int((distance == NOT_COMPARABLE).any(axis=0).sum()), int(comparable.max(initial=0)), histogram, examples)
