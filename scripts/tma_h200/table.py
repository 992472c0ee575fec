"""Compares what a GPU gave with the emulator as it is now; writes the results file and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from silicon.emulated import run_program

from mxfp8fa.emulator.errors import EmulationError
from tma_h200.programs import all_programs

COMMAND = "python scripts/tma_h200 run --out bench/results/tma_h200.npz, then python scripts/tma_h200 report bench/results/tma_h200.npz"


def load(measured: Path) -> tuple[dict[str, str], dict[str, np.ndarray | str]]:
    """(device, driver, date, ...; results or the driver's message by kernel)."""
    with np.load(measured) as stored:
        head = json.loads(str(stored["about"]))
        results = {n: stored[n] for n in stored.files if n != "about"}
    return head["about"], results | head["messages"]


def emulated(name: str, **options: Any) -> np.ndarray | str:
    """The emulator's results, or what it says."""
    try:
        return run_program(all_programs()[name], **options)
    except EmulationError as error:
        return error.message.split("\n")[0]


def compare(name: str, silicon: np.ndarray | str) -> dict[str, Any]:
    """How one kernel compares."""
    program, emulator = all_programs()[name], emulated(name)
    found: dict[str, Any] = {"covers": program.covers}
    if isinstance(silicon, str) or isinstance(emulator, str):
        found["gpu"] = silicon.rpartition("error ")[2] if isinstance(silicon, str) else "ran"
        found["emulator"] = emulator if isinstance(emulator, str) else "ran"
        found["agrees"] = isinstance(silicon, str) == isinstance(emulator, str)
    else:
        different = np.nonzero(silicon != emulator)[0]
        found |= {"compared": len(silicon), "mismatches": len(different), "agrees": not len(different)}
        if len(different):
            first = int(different[0])
            place = {"thread": first // program.results, "result": first % program.results}
            found["first"] = place | {"gpu": hex(int(silicon[first])), "emulator": hex(int(emulator[first]))}
    return found


def write(measured: Path, json_path: Path, table_path: Path) -> str:
    """Write both files; returns a summary."""
    about, results = load(measured)
    compared = {n: compare(n, results[n]) for n in all_programs() if n in results}
    for path in (json_path, table_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(c)}" for n, c in compared.items())
    head = f'"about": {json.dumps(about)},\n "command": {json.dumps(COMMAND)}'
    json_path.write_text(f'{{\n {head},\n "kernels": {{\n{lines}\n }}\n}}\n')
    table_path.write_text(page(about, compared))
    return "\n".join(
        [f"{sum(c['agrees'] for c in compared.values())} of {len(compared)} agree"]
        + [f"{n}: {c}" for n, c in compared.items() if not c["agrees"]]
    )


def page(about: dict[str, str], compared: dict[str, Any]) -> str:
    """The Markdown page."""
    agree = sum(c["agrees"] for c in compared.values())
    results = sum(c.get("compared", 0) for c in compared.values())
    lines = [
        "# TMA against silicon", "",
        f"Measured on one {about['device']} (compute capability {about['compute_capability']}, driver {about['driver']}, PTX {about['ptx']}, "
        f"target {about['target']}), {about['date']}. Made by `{COMMAND}`. These kernels go where those of `docs/silicon.md` do not: "
        "absolute addresses, narrow boxes, multicast, odd reductions, maps edited on the device.", "",
        f"{agree} of {len(compared)} kernels agree ({results:,} 64-bit results compared bit for bit; a fault agrees with a refusal).", "",
        "| kernel | covers | GPU and emulator |", "|---|---|---|",
    ]  # fmt: skip
    for name, c in compared.items():
        if "compared" in c:
            verdict = f"{c['compared']} results" + (" agree" if c["agrees"] else f", {c['mismatches']} differ")
        else:
            verdict = f"GPU: {c['gpu']}; emulator: {c['emulator']}" + ("" if c["agrees"] else " (differs)")
        lines.append(f"| {name} | {c['covers']} | {verdict.replace('|', '/')} |")
    return "\n".join([*lines, ""])
