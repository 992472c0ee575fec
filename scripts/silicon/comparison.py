"""Comparing raw results: bit by bit, or by the distance in units in the last place for approximate functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mxfp8fa.emulator.isa.snippets import Form
from silicon.forms import kind_of
from silicon.inputs import FLOATS, FloatKind, to_float64

EXAMPLES = 4
MANY = 4096  # larger distances share a row of the histogram
NOT_COMPARABLE = -1  # ulp distance between a NaN and a number
SET_ASIDE = -2  # lg2 where the ISA bounds the absolute error instead
_APPROXIMATE = re.compile(r"\.approx|\.full\b")
_UPPER_WORD = re.compile(r"\.approx\.ftz\.f64")  # PTX ISA: the lower 32 bits of input and result are taken as zero
# Where the ISA bounds the absolute error instead of the relative one: -pi .. pi, and 0.5 .. 2. Elsewhere sin and cos of
# the GPU lose digits in the range reduction, while the emulator rounds correctly: not compared.
_ABSOLUTE = {"sin": (-np.pi, np.pi), "cos": (-np.pi, np.pi), "lg2": (0.5, 2.0)}


@dataclass
class Outcome:
    """How one form compares.

    Attributes:
        compared: results compared.
        mismatches: results that differ (approximate functions: a NaN on one side only).
        nan_only: those of them that are NaN on both sides, with different bits.
        unspecified: results that the ISA leaves open (not compared); `unspecified_different`: how many of them differ.
        max_ulp: largest distance, for approximate functions.
        max_absolute: largest absolute error in the range where the ISA bounds that (sin, cos, lg2).
        histogram: results by distance, for approximate functions ("0", "1", "2", "3-4", "5-8", ...).
        examples: inputs and both results of the first few that differ (approximate functions: of the farthest).
    """

    compared: int = 0
    mismatches: int = 0
    nan_only: int = 0
    unspecified: int = 0
    unspecified_different: int = 0
    max_ulp: int | None = None
    max_absolute: float | None = None
    histogram: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """What goes into the results file; empty entries are left out."""
        found = {
            "compared": self.compared,
            "mismatches": self.mismatches,
            "nan_only": self.nan_only or None,
            "max_ulp": self.max_ulp,
        }
        found |= {"unspecified": self.unspecified or None, "unspecified_different": self.unspecified_different or None}
        found |= {"max_absolute": self.max_absolute, "histogram": self.histogram, "examples": self.examples}
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


def ulp_distance(x: np.ndarray, y: np.ndarray, kind: FloatKind, *, flushed: bool = False) -> np.ndarray:
    """Numbers of the format between two results, as int64 (f64: clipped); two NaNs: 0, one: NOT_COMPARABLE; -0 is 0.

    With `flushed` (.ftz) the subnormal numbers do not count: the smallest normal number is next to zero.
    """
    magnitude = np.uint64((1 << (kind.bits - 1)) - 1)

    def ordered(bits: np.ndarray) -> np.ndarray:
        size = (bits & magnitude).astype(np.int64)
        if flushed:
            size = np.maximum(size - (1 << kind.mantissa_bits) + 1, 0)
        return np.where(bits > magnitude, -size, size)

    x, y = x.astype(np.uint64), y.astype(np.uint64)
    nan_x, nan_y = _is_nan(x, kind), _is_nan(y, kind)
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
    if distance > MANY:
        return f"over {MANY}"
    top = 1 << (distance - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def _example(
    form: Form, arrays: list[np.ndarray], silicon: list[np.ndarray], emulator: list[np.ndarray], i: int
) -> dict[str, Any]:
    n = len(arrays[0]) if arrays else len(silicon[0])
    found: dict[str, Any] = {o.name: _hex(a[i % n]) for o, a in zip(form.arrays, arrays, strict=True)}
    if form.immediate:
        found[form.immediate] = form.constants[i // n]
    return found | {"silicon": [_hex(r[i]) for r in silicon], "emulator": [_hex(r[i]) for r in emulator]}


def _hex(x: Any) -> str:
    return str(bool(x)).lower() if x.dtype == bool else f"{int(x):#0{2 + x.dtype.itemsize * 2}x}"


def compare(
    form: Form,
    arrays: list[np.ndarray],
    silicon: list[np.ndarray],
    emulator: list[np.ndarray],
    defined: list[np.ndarray],
) -> Outcome:
    """Compare all results of a form.

    Args:
        arrays: inputs, one per entry of form.arrays.
        silicon, emulator: results per output operand.
        defined: per output, where the ISA defines the result; the rest is not compared.
    """
    if approximate(form):
        return _compare_ulp(form, arrays, silicon, emulator)
    different, beyond_nan = np.zeros(len(silicon[0]), bool), np.zeros(len(silicon[0]), bool)
    compared, left_open = np.zeros(len(silicon[0]), bool), np.zeros(len(silicon[0]), bool)
    for operand, s, e, d in zip(form.outputs, silicon, emulator, defined, strict=True):
        different |= d & (s != e)
        beyond_nan |= d & (s != e) & ~_both_nan(kind_of(operand, form, output=True), s, e)
        compared |= d
        left_open |= ~d & (s != e)
    where = np.nonzero(beyond_nan if beyond_nan.any() else different)[0]
    examples = [_example(form, arrays, silicon, emulator, int(i)) for i in _simplest(arrays, where)]
    unspecified = int((~np.logical_and.reduce(defined)).sum())
    return Outcome(
        int(compared.sum()),
        int(different.sum()),
        int((different & ~beyond_nan).sum()),
        unspecified,
        int(left_open.sum()),
        examples=examples,
    )


def _both_nan(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether every element in which two results differ is NaN in both."""
    element = FLOATS.get(kind.removesuffix("x2"))
    if element is None:
        return np.zeros(len(x), bool)
    count = 2 if kind.endswith("x2") else 1
    a, b = _split(x, element, count), _split(y, element, count)
    return ((a == b) | (ulp_distance(a, b, element) == 0) & _is_nan(a, element)).all(axis=0)


def _is_nan(bits: np.ndarray, kind: FloatKind) -> np.ndarray:
    magnitude = np.uint64((1 << (kind.bits - 1)) - 1)
    return (bits & magnitude) > np.uint64(((1 << kind.exponent_bits) - 1) << kind.mantissa_bits)


def _simplest(arrays: list[np.ndarray], where: np.ndarray) -> np.ndarray:
    """The first few of `where` by number of one bits in the inputs: the smallest failing inputs."""
    if not arrays or not where.size:
        return where[:EXAMPLES]
    weight = sum(np.bitwise_count(a[where % len(a)].astype(np.uint64)).astype(np.int64) for a in arrays)
    return where[np.argsort(weight, kind="stable")[:EXAMPLES]]


def _compare_ulp(
    form: Form, arrays: list[np.ndarray], silicon: list[np.ndarray], emulator: list[np.ndarray]
) -> Outcome:
    kind, count = element_kind(form)
    x, y = _split(silicon[0], kind, count), _split(emulator[0], kind, count)
    upper = bool(_UPPER_WORD.search(form.mnemonic))
    distance = ulp_distance(x, y, kind, flushed=".ftz" in form.mnemonic and not upper)
    if upper:
        distance = np.where(distance > 0, distance >> 32, distance)
    one_sided = int((distance == NOT_COMPARABLE).any(axis=0).sum())
    outcome = Outcome(distance.shape[1], one_sided)
    if form.definition.opcode in _ABSOLUTE:
        inside, error = _absolute_errors(form, arrays[0], x[0], y[0], kind)
        outcome.max_absolute = float(error.max(initial=0))
        if form.definition.opcode != "lg2":
            outcome.compared = int(inside.sum())
            return outcome
        distance[:, inside] = SET_ASIDE
    worst = np.where(distance == NOT_COMPARABLE, np.iinfo(np.int64).max, distance).max(axis=0)
    comparable = distance[distance >= 0]
    buckets, numbers = np.unique(comparable, return_counts=True)
    for b, n in zip(buckets, numbers, strict=True):
        outcome.histogram[_bucket(int(b))] = outcome.histogram.get(_bucket(int(b)), 0) + int(n)
    outcome.max_ulp = int(comparable.max(initial=0))
    order = np.argsort(-worst, kind="stable")[:EXAMPLES]
    outcome.examples = [_example(form, arrays, silicon, emulator, int(i)) for i in order if worst[i] > 0]
    return outcome


def _absolute_errors(
    form: Form, a: np.ndarray, x: np.ndarray, y: np.ndarray, kind: FloatKind
) -> tuple[np.ndarray, np.ndarray]:
    """(where the ISA bounds the absolute error, the errors there)."""
    low, high = _ABSOLUTE[form.definition.opcode]
    value = to_float64(a, kind)
    inside = (value >= low) & (value <= high)
    return inside, np.abs(to_float64(x, kind)[inside] - to_float64(y, kind)[inside])
