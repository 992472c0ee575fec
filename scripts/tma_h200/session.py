"""Runs the kernels on the GPU. A fault ends a process's use of the GPU, so every kernel has a process of its own."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from silicon import gpu
from silicon.cuda import Device

from tma_h200.programs import all_programs

WORKERS, SECONDS = 10, 60


def run_one(name: str, path: Path) -> None:
    """One kernel's results, or what the driver said, as a file."""
    device = Device()
    try:
        np.save(path, gpu.run_program(device, all_programs()[name]))
    except Exception as error:  # the driver's message is the result
        path.with_suffix(".txt").write_text(str(error).strip().split("\n")[0])


def _launch(name: str, folder: Path) -> np.ndarray | str:
    path = folder / f"{name}.npy"
    command = [sys.executable, str(Path(__file__).parent), "one", name, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} s"
    if path.exists():
        return np.load(path)
    said = path.with_suffix(".txt")
    return said.read_text() if said.exists() else f"ended with code {done.returncode}: {done.stderr.strip()[-200:]}"


def run(out: Path) -> str:
    """Run everything; write results by name, messages, and where they come from."""
    device = Device()
    about = {"device": device.name, "compute_capability": "{}.{}".format(*device.capability), "driver": device.driver,
             "ptx": device.ptx_version, "target": device.target, "date": datetime.date.today().isoformat()}  # fmt: skip
    names = list(all_programs())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        found = dict(zip(names, pool.map(lambda n: _launch(n, Path(folder)), names), strict=True))
    messages = {n: r for n, r in found.items() if isinstance(r, str)}
    words = {n: r for n, r in found.items() if not isinstance(r, str)}
    np.savez_compressed(out, about=json.dumps({"about": about, "messages": messages}), **words)
    lines = [json.dumps(about), f"{len(words)} kernels ran, {len(messages)} did not:"]
    return "\n".join([*lines, *(f"  {n}: {m}" for n, m in messages.items())])
