"""One process on the GPU machine: a share of the forms, or one collective or program, which could hang."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from mxfp8fa.emulator.isa.snippets import Form
from silicon import forms as silicon_forms
from silicon import gpu, sample
from silicon.comparison import approximate, compare
from silicon.cuda import Device
from silicon.programs import all_programs

BATCH = 100  # forms per module


def judge(form: Form, silicon: list[np.ndarray]) -> dict[str, Any]:
    """What is reported about a form, with the complete results where they may be needed again."""
    arrays, active = silicon_forms.inputs(form)
    emulator = silicon_forms.emulate(form, arrays, active)
    outcome = compare(form, arrays, silicon, emulator, silicon_forms.defined(form, arrays, active))
    found: dict[str, Any] = {
        "outcome": outcome.as_dict(),
        "checksum": sample.checksum(silicon),
        "kept": sample.keep(form, silicon),
    }
    if outcome.mismatches or outcome.unspecified_different or approximate(form) or form.collective:
        found["complete"] = silicon
    return found


def run_forms(device: Device, keys: list[str]) -> dict[str, dict[str, Any]]:
    """Results of forms, by key."""
    every = silicon_forms.all_forms()
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(keys), BATCH):
        results, refused = gpu.form_results(device, [every[k] for k in keys[start : start + BATCH]])
        found |= {k: {"refused": message} for k, message in refused.items()}
        found |= {k: judge(every[k], r) for k, r in results.items()}
    return found


def run(task: str, names: list[str], path: Path) -> None:
    """Do a task ("forms" or "program") and write its results, pickled, to `path`."""
    device = Device()
    results: Any
    if task == "forms":
        results = run_forms(device, names)
    else:
        results = {n: gpu.run_program(device, all_programs()[n]) for n in names}
    path.write_bytes(pickle.dumps(results))
