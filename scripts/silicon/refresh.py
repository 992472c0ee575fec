"""The results file brought up to date with the emulator as it is now, from what the repository keeps of a GPU's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import EmulationError
from silicon import forms as silicon_forms
from silicon import sample
from silicon.comparison import approximate, compare
from silicon.emulated import run_program
from silicon.explanations import FORMS, PROGRAMS, explain
from silicon.programs import all_programs
from silicon.report import fault_verdicts, page, to_json


def write(json_path: Path, table_path: Path, sample_path: Path) -> str:
    """Compare the kept results with the emulator, rewrite the results file and the page; returns a summary."""
    results = json.loads(json_path.read_text())
    entries, programs = sample.load(sample_path)
    for entry in entries:
        _form(results, entry)
    for name, kept in programs.items():
        if name in all_programs():
            results["programs"][name] = _program(name, results["programs"][name], kept)
    results["faults"] = fault_verdicts({n: f["gpu"] for n, f in results["faults"].items()})
    json_path.write_text(to_json(results))
    table_path.write_text(page(results))
    differ = [n for n, p in results["programs"].items() if p.get("mismatches") != 0]
    return f"forms that differ: {sorted(results['differ'])}; programs that differ: {differ}"


def _form(results: dict[str, Any], entry: sample.Entry) -> None:
    """Move a form between `agree` and `differ` as its kept results and recorded examples say."""
    form = silicon_forms.all_forms().get(entry.key)
    if form is None or approximate(form):
        return
    emulator = silicon_forms.emulate(form, entry.arrays, entry.active)
    defined = silicon_forms.defined(form, entry.arrays, entry.active)
    outcome = compare(form, entry.arrays, entry.outputs, emulator, defined)
    recorded = results["differ"].get(entry.key)
    if recorded is not None and not outcome.mismatches and _examples_agree(entry.key, recorded["examples"]):
        results["agree"][entry.key] = results["differ"].pop(entry.key)["compared"]
    elif recorded is None and outcome.mismatches:
        compared = results["agree"].pop(entry.key)
        found = {"compared": compared, "mismatches": None, "examples": outcome.examples}
        results["differ"][entry.key] = found | {"explanation": explain(entry.key, FORMS)}


def _examples_agree(key: str, examples: list[dict[str, Any]]) -> bool:
    form = silicon_forms.all_forms()[key]
    if form.collective or form.immediate:
        return True  # the kept results are whole warps and all constants
    for example in examples:
        arrays = [np.array([_number(example[o.name])]).astype(_dtype(o.type)) for o in form.arrays]
        results = silicon_forms.emulate(form, arrays, np.ones(1, bool))
        if any(int(r[0]) != _number(s) for r, s in zip(results, example["silicon"], strict=True)):
            return False
    return True


def _number(text: str) -> np.uint64:
    return np.uint64({"true": 1, "false": 0}[text] if text in ("true", "false") else int(text, 16))


def _dtype(value_type: str) -> str:
    return "bool" if value_type == "pred" else f"u{int(value_type[1:]) // 8}"


def _program(name: str, recorded: dict[str, Any], kept: sample.ProgramEntry) -> dict[str, Any]:
    """The recorded verdict, unless the checksum of all results says otherwise."""
    program = all_programs()[name]
    compared = {"covers": program.covers, "compared": program.output_words}
    try:
        found = sample.program_entry(program, run_program(program))
    except EmulationError as error:
        refused = {"covers": program.covers, "refused": error.message.split("\n")[0]}
        return refused | {"explanation": explain(name, PROGRAMS)}
    if found.checksum == kept.checksum:
        return compared | {"mismatches": 0}
    if recorded.get("mismatches"):
        return recorded
    return compared | {"mismatches": None, "explanation": explain(name, PROGRAMS)}
