"""A whole comparison on the GPU machine: starts the workers, collects what they found, writes the files."""

from __future__ import annotations

import datetime
import json
import lzma
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from silicon import forms as silicon_forms
from silicon import sample
from silicon.cuda import Device
from silicon.programs import all_programs

SHARES = 12  # processes for the ordinary forms
FORMS_SECONDS, ALONE_SECONDS = 240, 40
COMPLETE_FILE_BYTES = 10 << 20


def _work(task: str, names: list[str], folder: Path, label: str) -> tuple[dict[str, Any], str]:
    """(results, what went wrong or "") of one worker process."""
    path = folder / f"{label}.pickle"
    (folder / f"{label}.names").write_text("\n".join(names))
    command = [sys.executable, str(Path(__file__).parent), "worker", task, str(folder / f"{label}.names"), str(path)]
    seconds = FORMS_SECONDS if len(names) > 1 else ALONE_SECONDS
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {}, f"did not end within {seconds} s"
    if done.returncode or not path.exists():
        last = (done.stderr.strip().split("\n") or [""])[-1]
        return {}, last or f"ended with code {done.returncode}"
    return pickle.loads(path.read_bytes()), ""


def _tasks(pattern: str) -> list[tuple[str, list[str]]]:
    forms = {k: f for k, f in silicon_forms.all_forms().items() if pattern in k}
    ordinary = [k for k, f in forms.items() if not f.collective]
    tasks = [("forms", ordinary[i::SHARES]) for i in range(SHARES) if ordinary[i::SHARES]]
    tasks += [("forms", [k]) for k, f in forms.items() if f.collective]
    return tasks + [("program", [n]) for n in all_programs() if pattern in n]


def run(out: Path, pattern: str = "") -> dict[str, Any]:
    """Compare everything whose name contains `pattern`; write results.json, sample.npz, programs.npz and complete_*.xz to `out`."""
    device = Device()
    about = {
        "device": device.name,
        "compute_capability": "{}.{}".format(*device.capability),
        "driver": device.driver,
        "ptx": device.ptx_version,
        "target": device.target,
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(about), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    forms: dict[str, dict[str, Any]] = {}
    programs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    capability = 10 * device.capability[0] + device.capability[1]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        tasks = [(t, n) for t, n in _tasks(pattern) if t == "forms" or all_programs()[n[0]].minimum <= capability]
        jobs = [pool.submit(_work, task, names, Path(folder), f"task{i}") for i, (task, names) in enumerate(tasks)]
        for (task, names), job in zip(tasks, jobs, strict=True):
            results, problem = job.result()
            (forms if task == "forms" else programs).update(results)
            failed |= {n: problem for n in names if problem}
    faults = {
        n: failed.pop(n, "no fault") for n, p in all_programs().items() if p.illegal and (n in failed or n in programs)
    }
    programs = {n: words for n, words in programs.items() if n not in faults}
    complete = {k: v.pop("complete") for k, v in forms.items() if "complete" in v}
    _write_complete(out, complete)
    kept = {k: v.pop("kept") for k, v in forms.items() if "kept" in v}
    sample.save(out / "sample.npz", kept, programs)
    np.savez_compressed(out / "programs.npz", **programs)
    results = {"about": about, "forms": forms, "failed": failed, "faults": faults}
    (out / "results.json").write_text(json.dumps(results))
    return results


def _write_complete(out: Path, complete: dict[str, Any]) -> None:
    """Complete results in files of limited size; as many as fit into five."""
    part: dict[str, Any] = {}
    files, size = 0, 0
    for key in [*sorted(complete, key=lambda k: sum(r.nbytes for r in complete[k])), None]:
        length = 0 if key is None else sum(r.nbytes for r in complete[key])
        if part and (key is None or size + length > COMPLETE_FILE_BYTES) and files < 5:
            (out / f"complete_{files}.xz").write_bytes(lzma.compress(pickle.dumps(part), preset=1))
            files, part, size = files + 1, {}, 0
        if key is not None:
            part[key] = complete[key]
            size += length


def summary(results: dict[str, Any]) -> str:
    """A few lines for the terminal: totals, then every form that differs."""
    forms = results["forms"]
    refused = {k: v for k, v in forms.items() if "refused" in v}
    differ = {k: v["outcome"] for k, v in forms.items() if "outcome" in v and v["outcome"]["mismatches"]}
    counts = f"{len(forms) - len(refused) - len(differ)} agree, {len(differ)} differ, {len(refused)} refused"
    lines = [f"{len(forms)} forms: {counts}; failed: {results['failed']}", f"forbidden things: {results['faults']}"]
    for key, outcome in sorted(differ.items()):
        lines.append(f"{key}: {outcome['mismatches']} of {outcome['compared']}: {outcome['examples'][:1]}")
    return "\n".join(lines)
