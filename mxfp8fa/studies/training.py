"""Finished runs of `mxfp8fa train-demo`: those that ship, read back, and how far apart attentions and seeds are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHIPPED = "training_{}.jsonl"
BASELINE = "bf16"
# Names of `--attention`, and what they are in words.
ATTENTIONS = {
    "bf16": "BF16",
    "float32": "float32: what another rounding of the same does",
    "exact": "MXFP8, exact exponential, unrounded sum",
    "rounded": "MXFP8, exact exponential, rounded sum",
    "direct": "MXFP8, direct codes, rounded sum",
    "k_mean": "MXFP8, mean of K subtracted",
    "delta": "MXFP8, delta from unquantized dO",
    "sum_P_dP": "MXFP8, delta as the sum of P dP",
    "dq16": "MXFP8, dQ summed in FP16, safe scale",
    "dq16_raw": "MXFP8, dQ summed in FP16, no scale",
    "square": "MXFP8, square blocks (leak)",
    "bf16_head": "MXFP8, one head of four in BF16",
    "coarse": "MXFP8, coarse on purpose: floor, P unscaled, delta",
    "static": "control: dO in E4M3, times 2^6",
    "unscaled": "control: dO in E4M3, no scale",
}
CONTROLS = ("static", "unscaled")  # harmful on purpose: an experiment that does not see them sees nothing
BYTES = ("bf16", "exact", "rounded", "direct")  # of the task bytes
TASKS = {"bytes": BYTES, "module": tuple(ATTENTIONS), "jagged": tuple(ATTENTIONS)}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
LAST_STEPS = 200  # over which the training loss at the end is averaged; every attention sees the same batches
UNITS = {"bytes": "nats per byte", "module": "nats per byte", "jagged": "nats per event"}


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        attention: a key of `ATTENTIONS`.
        seed: of weights and batches.
        steps: (N,) steps at which the validation loss was taken.
        validation: (N,) in nats per byte or event.
        training: mean training loss of the last `LAST_STEPS` steps.
        gradient_sqnr: what `nn.module_training` measured after each validation, or nothing.
        origin: task, size, schedule, corpus, device, torch and date, as written by the command.
    """

    attention: str
    seed: int
    steps: NDArray[np.int64]
    validation: NDArray[np.float64]
    training: float
    origin: dict[str, Any]
    gradient_sqnr: tuple[dict[str, Any], ...] = ()

    @property
    def final(self) -> float:
        """The last validation loss."""
        return float(self.validation[-1])

    @classmethod
    def of(cls, record: dict[str, Any]) -> Run:
        """From what `mxfp8fa train-demo` writes."""
        steps, losses = zip(*record["validation_loss"], strict=True)
        left_out = ("validation_loss", "train_loss_every_10", "attention", "seed", "gradient_sqnr")
        origin = {name: value for name, value in record.items() if name not in left_out}
        curve = np.array(steps), np.array(losses, np.float64)
        training = float(np.mean(record["train_loss_every_10"][-LAST_STEPS // 10 :]))
        probes = tuple(record.get("gradient_sqnr", ()))
        return cls(record["attention"], record["seed"], *curve, training, origin, probes)


def shipped_runs(task: str = "bytes") -> tuple[Run, ...]:
    """The runs of a task that are in the package, by attention and seed."""
    text = (resources.files("mxfp8fa.studies") / "data" / SHIPPED.format(task)).read_text()
    return tuple(Run.of(json.loads(line)) for line in text.splitlines())


def runs_in(folder: Path, task: str = "bytes") -> tuple[Run, ...]:
    """The finished runs of a task in a folder of `mxfp8fa train-demo`."""
    return tuple(Run.of(json.loads(path.read_text())) for path in sorted(folder.glob(f"{task}-*.json")))


@dataclass(frozen=True)
class Comparison:
    """One attention against BF16 with the same seeds.

    Attributes:
        attention: a key of `ATTENTIONS`.
        differences: (seeds,) final validation loss less that of BF16 with the same seed, nats per byte or event.
        training: (seeds,) the same of the training loss at the end.
    """

    attention: str
    differences: NDArray[np.float64]
    training: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean difference of the validation loss."""
        return float(self.differences.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, from the spread over seeds; NaN for fewer than two."""
        return standard_error(self.differences)


def standard_error(values: NDArray[np.float64]) -> float:
    """Of the mean of independent values; NaN for fewer than two."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def with_error(differences: NDArray[np.float64]) -> str:
    """A mean, and its standard error if there is one: "+0.0061 ± 0.0179"."""
    error = f" ± {standard_error(differences):.4f}" if len(differences) > 1 else ""
    return f"{differences.mean():+.4f}{error}"


def compare(runs: Sequence[Run]) -> tuple[Comparison, ...]:
    """Every attention but BF16 against it, over the seeds that both have."""
    baseline = {run.seed: run for run in runs if run.attention == BASELINE}
    found = []
    for attention in ATTENTIONS:
        others = {run.seed: run for run in runs if run.attention == attention}
        pairs = [(others[seed], baseline[seed]) for seed in sorted(set(others) & set(baseline))]
        if attention != BASELINE and pairs:
            differences = np.array([a.final - b.final for a, b in pairs])
            found.append(Comparison(attention, differences, np.array([a.training - b.training for a, b in pairs])))
    return tuple(found)


def gradient_signal(runs: Sequence[Run], attention: str) -> dict[str, float]:
    """SQNR in dB of an attention's gradients at the end of its runs: of every projection the mean over layers and seeds,
    and "worst", the lowest of all.

    Raises:
        ValueError: no run of that attention measured gradients.
    """
    chosen = [run for run in runs if run.attention == attention and run.gradient_sqnr]
    if not chosen:
        raise ValueError(f"no run of {attention} measured gradients")
    precision = "mxfp8" if "mxfp8" in chosen[0].gradient_sqnr[-1] else "bf16"
    values = np.array([[run.gradient_sqnr[-1][precision][name] for run in chosen] for name in PROJECTIONS])
    means = {name: float(mean) for name, mean in zip(PROJECTIONS, values.mean((1, 2)), strict=True)}
    return means | {"worst": float(values.min())}


def seed_spread(runs: Sequence[Run], attention: str = BASELINE) -> float:
    """Standard deviation of the final loss over the seeds of one attention, nats per byte; NaN for fewer than two."""
    finals = [run.final for run in runs if run.attention == attention]
    return float(np.std(finals, ddof=1)) if len(finals) > 1 else float("nan")
