"""Run a peer under several schedules and hold its results against a float64 reference with a derived bound.

Unit roundoffs: a float32 operation is off by at most 2^-24 of its result, a bfloat16 rounding by 2^-8, a float16 one by
2^-11, an E4M3 one by 2^-4, an E5M2 one by 2^-3. A sum of n float32 terms, in any order, is off by at most n 2^-24 sum|terms|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import mxfp8fa.emulator as emulator

F32, BF16, F16, E4M3, E5M2 = 2.0**-24, 2.0**-8, 2.0**-11, 2.0**-4, 2.0**-3
ROUNDOFF = {"float32": F32, "bfloat16": BF16, "float16": F16}

FEW = ("eager", "lazy", "random 1")
ALL = ("eager", "lazy", *(f"random {seed}" for seed in range(10)))


@dataclass(frozen=True)
class Expected:
    """What one result should be.

    Attributes:
        reference: float64 values, or the exact values.
        bound: largest |result - reference| allowed, per element: a worst case of the kernel's arithmetic. 0: equal.
        rms: largest root mean square of the differences, from the roundings as independent random variables.
        any_order: the kernel adds atomically, so the last bits may differ between schedules.
    """

    reference: Any
    bound: Any = 0.0
    rms: float | None = None
    any_order: bool = False


def as_numpy(tensor: Any) -> np.ndarray:
    """A tensor's values, exact: bfloat16, float16 and FP8 become float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype.is_floating_point and tensor.element_size() < 4 else tensor).numpy().copy()


def difference(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """|value - reference|, 0 where both are the same infinity or both NaN."""
    same = (value == reference) | (np.isnan(value) & np.isnan(reference))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(value - reference))


def compare(name: str, value: np.ndarray, expected: Expected) -> tuple[float, float, float]:
    """Largest and rms error, and the largest share of the bound that was used; AssertionError beyond the bounds."""
    reference = np.asarray(expected.reference, np.float64)
    assert value.shape == reference.shape, f"{name}: shape {value.shape} instead of {reference.shape}"
    error = difference(value.astype(np.float64), reference)
    bound = np.broadcast_to(np.asarray(expected.bound, np.float64), error.shape)
    bad = ~(error <= bound)
    assert not bad.any(), (
        f"{name}: {int(bad.sum())} of {bad.size} elements beyond the bound; the first at "
        f"{[int(i[0]) for i in np.nonzero(bad)]}: {value[bad][0]:.6g}, reference {reference[bad][0]:.6g}, "
        f"bound {bound[bad][0]:.3g}; largest error {np.nanmax(error):.3g}"
    )
    rms = float(np.sqrt(np.mean(error**2))) if error.size else 0.0
    if expected.rms is not None:
        assert rms <= expected.rms, f"{name}: rms error {rms:.3g}, bound {expected.rms:.3g}"
    share = float(np.max(np.divide(error, bound, out=np.zeros_like(error), where=bound > 0), initial=0.0))
    return float(error.max(initial=0.0)), rms, share


def check(
    run: Callable[[], Mapping[str, Any]],
    expected: Mapping[str, Expected] | Callable[[dict[str, np.ndarray]], Mapping[str, Expected]],
    *,
    schedules: Sequence[str],
    **options: Any,
) -> dict[str, Any]:
    """Call `run` inside `emulator.active` once per schedule.

    Args:
        run: calls the peer with CUDA tensors and returns its results.
        expected: per result name; or a function that makes it from the results of the first run, for a backward whose
            inputs are rounded results of the forward. Results of all schedules must be the same bits unless `any_order`.
        schedules: "eager", "lazy", "random SEED".
        **options: for `emulator.active`.

    Returns:
        The line of the table: schedules, errors per result, counts and seconds of the first run; and of the same once more
        at the end ("again"), when the machine code is made and the bits have to be the same.
    """
    first: dict[str, np.ndarray] = {}
    line: dict[str, Any] = {}
    for schedule in (*schedules, schedules[0]):
        name, _, seed = schedule.partition(" ")
        with emulator.active(schedule=name, seed=int(seed or 0), **options) as report:
            results = {key: as_numpy(value) for key, value in run().items()}
        if not first:
            assert report.launches, "nothing was launched"
            expected = expected(results) if callable(expected) else expected
            assert set(results) == set(expected)
            line = {
                "launches": [facts(launch) for launch in report.launches],
                "errors": {key: compare(f"{key} ({schedule})", results[key], expected[key]) for key in results},
                "warp_instructions": report.warp_instructions,
                "seconds": report.seconds,
            }
            first = results
            continue
        line["again"] = report.seconds
        for key, value in results.items():
            if expected[key].any_order:
                compare(f"{key} ({schedule})", value, expected[key])
            else:
                assert value.tobytes() == first[key].tobytes(), f"{key}: {schedule} and {schedules[0]} differ"
    return {"schedules": list(schedules), **line}


def facts(launch: Any) -> dict[str, Any]:
    """What tests look at, in plain types: the table travels between processes."""
    mma = sum(n for mnemonic, n in launch.counts.items() if mnemonic.startswith("tcgen05.mma"))
    return {"kernel": launch.kernel, "grid": launch.grid, "cluster": launch.cluster, "tcgen05.mma": mma}


def cases(params: Sequence[Any], *, small: Sequence[int] = ()) -> list[Any]:
    """Parametrisation (case, schedules): every case under all schedules, marked slow; those in `small` also quickly."""
    import pytest

    quick = [pytest.param(params[i], FEW, id=f"{label(params[i])}-few") for i in small]
    return quick + [pytest.param(p, ALL, id=f"{label(p)}-all", marks=pytest.mark.slow) for p in params]


def label(case: Any) -> str:
    """A case as part of a test's name."""
    return case if isinstance(case, str) else getattr(case, "label", None) or "-".join(map(str, case))
