"""Signal-to-quantization-noise ratio, its worst row, and a strict pass / borderline / fail summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxfp8fa.numerics.formats import as_array

# Our reading of a strict summary; the published one (23 pass, 1 borderline, 0 fail over 18.84 to 28.02 dB) states no
# thresholds. 20 dB is an error norm of a tenth of the signal's, 15 dB of 0.178.
PASS_DB = 20.0
BORDERLINE_DB = 15.0

Verdict = Literal["pass", "borderline", "fail"]


def sqnr_db(x: ArrayLike, reference: ArrayLike) -> float:
    """10 log10(sum(reference^2) / sum((x - reference)^2)) over all elements, in dB.

    Args:
        x: the approximation; any floating dtype.
        reference: the shape of x.

    Returns:
        +inf when every element is equal (also when there is none, or all are zero); -inf when the reference is zero
        and x is not. Positions where both are NaN, or the same infinity, agree and count as no error; a NaN or infinity
        on one side only is an infinite error, -inf.

    Raises:
        ValueError: different shapes, or arrays that are not of real numbers.
    """
    x64, ref64 = _pair(x, reference)
    return float(_sqnr_rows(x64.reshape(1, -1), ref64.reshape(1, -1))[0])


def row_sqnr_db(x: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """`sqnr_db` of every row along the last axis: (..., D) -> (...,)."""
    x64, ref64 = _pair(x, reference)
    if x64.ndim == 0:
        raise ValueError("x and reference are scalars; rows need at least one axis")
    rows = _sqnr_rows(x64.reshape(-1, x64.shape[-1]), ref64.reshape(-1, x64.shape[-1])) if x64.size else np.empty(0)
    return rows.reshape(x64.shape[:-1]) if x64.size else np.full(x64.shape[:-1], np.inf)


def worst_row_sqnr_db(x: ArrayLike, reference: ArrayLike) -> tuple[float, tuple[int, ...]]:
    """The smallest `row_sqnr_db` and the index of its row; (inf, ()) if there is no row.

    A global SQNR hides a few ruined rows among many good ones.
    """
    rows = row_sqnr_db(x, reference)
    if rows.size == 0:
        return math.inf, ()
    index = np.unravel_index(int(np.argmin(rows)), rows.shape)
    return float(rows[index]), tuple(int(i) for i in index)


def verdict(db: float) -> Verdict:
    """The grade of an SQNR: pass from 20 dB up, borderline from 15 dB, else fail (NaN included)."""
    if db >= PASS_DB:
        return "pass"
    return "borderline" if db >= BORDERLINE_DB else "fail"


@dataclass(frozen=True)
class SqnrEntry:
    """One graded tensor.

    Attributes:
        configuration: name of the configuration that produced it.
        tensor: "O", "dQ", "dK" or "dV".
        db: global SQNR in dB.
        worst_row_db: SQNR of the worst row in dB.
    """

    configuration: str
    tensor: str
    db: float
    worst_row_db: float

    @property
    def verdict(self) -> Verdict:
        """The grade of `db`."""
        return verdict(self.db)


@dataclass(frozen=True)
class StrictSummary:
    """Grades of all tensors of all configurations; prints as a table.

    Attributes:
        entries: one per configuration and tensor.
    """

    entries: tuple[SqnrEntry, ...]

    def count(self, grade: Verdict) -> int:
        """How many entries have this grade."""
        return sum(entry.verdict == grade for entry in self.entries)

    @property
    def range_db(self) -> tuple[float, float]:
        """Smallest and largest SQNR in dB; (inf, inf) if there is no entry."""
        values = [entry.db for entry in self.entries] or [math.inf]
        return min(values), max(values)

    def __str__(self) -> str:
        width = max([len(entry.configuration) for entry in self.entries] + [len("configuration")])
        lines = [f"{'configuration':{width}}  tensor  SQNR dB  worst row  grade"]
        for e in self.entries:
            lines.append(f"{e.configuration:{width}}  {e.tensor:6}  {e.db:7.2f}  {e.worst_row_db:9.2f}  {e.verdict}")
        low, high = self.range_db
        counts = ", ".join(f"{self.count(grade)} {grade}" for grade in ("pass", "borderline", "fail"))
        thresholds = f"pass >= {PASS_DB:g} dB, borderline >= {BORDERLINE_DB:g} dB"
        lines.append(f"{low:.2f} to {high:.2f} dB: {counts} ({thresholds})")
        return "\n".join(lines)


def strict_summary(results: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]]) -> StrictSummary:
    """Grade tensors against their references.

    Args:
        results: {configuration: {tensor name: (x, reference)}}.
    """
    return StrictSummary(tuple(_entries(results)))


def _entries(results: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]]) -> Iterable[SqnrEntry]:
    for configuration, tensors in results.items():
        for tensor, (x, reference) in tensors.items():
            yield SqnrEntry(configuration, tensor, sqnr_db(x, reference), worst_row_sqnr_db(x, reference)[0])


def _pair(x: ArrayLike, reference: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x64, ref64 = _real("x", x), _real("reference", reference)
    if x64.shape != ref64.shape:
        raise ValueError(f"x has shape {x64.shape} and reference {ref64.shape}; they must be equal")
    return x64, ref64


def _real(name: str, x: ArrayLike) -> NDArray[np.float64]:
    array = as_array(x, name)
    # "V" is the kind of dtypes that packages add to NumPy, bfloat16 and the like; an MXTensor would be an object.
    if array.dtype.kind not in "fiuV" or array.dtype.names is not None:
        raise ValueError(f"{name} has dtype {array.dtype}; allowed: real numbers (an MXTensor: its dequantize())")
    return array.astype(np.float64)


def _sqnr_rows(x: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R, N), (R, N) -> (R,) dB."""
    finite = np.isfinite(x) & np.isfinite(reference)
    agree = finite | (np.isnan(x) & np.isnan(reference)) | (x == reference)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(reference), axis=1, keepdims=True, initial=0.0, where=finite)
        unit = np.where(largest > 0, largest, 1.0)  # squares of gradients as small as 1e-200 must not underflow
        signal = _sum_of_squares(reference / unit, finite)
        noise = _sum_of_squares((x - reference) / unit, finite)
        db = 10.0 * np.log10(signal / noise)
    db = np.where(noise == 0, np.inf, np.where(signal == 0, -np.inf, db))
    return np.where(agree.all(axis=1), db, -np.inf)


def _sum_of_squares(x: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.sum(np.square(x), axis=1, where=where)
