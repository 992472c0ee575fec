"""The results file, the table in the documentation and the sample for the tests, from what a session on a GPU wrote."""

from __future__ import annotations

import json
import lzma
import pickle
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from mxfp8fa.emulator.errors import EmulationError
from silicon import forms as silicon_forms
from silicon import sample
from silicon.comparison import approximate, compare
from silicon.emulated import run_program
from silicon.explanations import FORMS, NOTES, PROGRAMS, explain
from silicon.programs import all_programs

COMMAND = "python scripts/silicon run --out DIR, then python scripts/silicon report DIR"


def write(folder: Path, json_path: Path, table_path: Path, sample_path: Path) -> str:
    """Compare the GPU's results with the emulator as it is now and write all three files; returns a summary."""
    measured = json.loads((folder / "results.json").read_text())
    results = {"about": measured["about"], "command": COMMAND} | _forms(folder, measured["forms"])
    results["programs"] = _programs(folder, measured["failed"])
    results["faults"] = fault_verdicts({n: _fault(m) for n, m in measured["faults"].items()})
    for path in (json_path, table_path, sample_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(to_json(results))
    table_path.write_text(page(results))
    shutil.copyfile(folder / "sample.npz", sample_path)
    differ = [n for n, p in results["programs"].items() if p.get("mismatches", 1)]
    forms = f"{len(results['agree'])} forms agree, {len(results['differ'])} differ"
    return f"{forms}; {len(results['programs'])} programs, {len(differ)} differ"


def _forms(folder: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """agree: results compared, by form; approximate, differ: outcomes; not_on_device: the compiler's messages."""
    complete: dict[str, list[np.ndarray]] = {}
    for path in sorted(folder.glob("complete_*.xz")):
        complete |= pickle.loads(lzma.decompress(path.read_bytes()))
    found: dict[str, dict[str, Any]] = {"agree": {}, "approximate": {}, "differ": {}, "not_on_device": {}}
    for key, form in silicon_forms.all_forms().items():
        entry = measured.get(key)
        if entry is None:
            continue
        if "refused" in entry:
            found["not_on_device"][key] = entry["refused"]
            continue
        arrays, active = silicon_forms.inputs(form)
        emulator = silicon_forms.emulate(form, arrays, active)
        outcome = entry["outcome"]
        if key in complete:
            outcome = compare(
                form, arrays, complete[key], emulator, silicon_forms.defined(form, arrays, active)
            ).as_dict()
        elif not outcome.get("unspecified_different") and sample.checksum(emulator) != entry["checksum"]:
            outcome = {
                "compared": outcome["compared"],
                "mismatches": None,
            }  # equal when measured; the emulator has changed
        if outcome["mismatches"] != 0:
            found["differ"][key] = outcome | {"explanation": explain(key, FORMS)}
        elif approximate(form):
            found["approximate"][key] = outcome
        else:
            found["agree"][key] = outcome["compared"]
    return found


def _programs(folder: Path, failed: dict[str, str]) -> dict[str, Any]:
    """For each program what it covers and how many results differ."""
    with np.load(folder / "programs.npz") as stored:
        silicon = {n: stored[n] for n in stored.files}
    found: dict[str, Any] = {}
    for name, program in all_programs().items():
        if name in silicon:
            found[name] = {"covers": program.covers} | _compare_program(name, silicon[name])
        elif name in failed:
            found[name] = {"covers": program.covers, "failed": failed[name]}
    return found


def _compare_program(name: str, silicon: np.ndarray) -> dict[str, Any]:
    program = all_programs()[name]
    try:
        emulator = run_program(program)
    except EmulationError as error:
        return {"refused": error.message.split("\n")[0], "explanation": explain(name, PROGRAMS)}
    if program.unordered:
        silicon, emulator = np.sort(silicon), np.sort(emulator)
    where = np.nonzero(silicon != emulator)[0]
    found: dict[str, Any] = {"compared": len(silicon), "mismatches": len(where)}
    if where.size:
        first = int(where[0])
        found["first"] = {
            "thread": first // program.results,
            "result": first % program.results,
            "silicon": hex(int(silicon[first])),
            "emulator": hex(int(emulator[first])),
        }
        found["explanation"] = explain(name, PROGRAMS)
    return found


def fault_verdicts(measured: dict[str, str]) -> dict[str, Any]:
    """For each forbidden thing what the GPU and what the emulator say."""
    found = {}
    for name, gpu in measured.items():
        program = all_programs().get(name)
        if program is None:
            continue
        try:
            run_program(program)
            emulator = "no error"
        except EmulationError as error:
            emulator = type(error).__name__
        found[name] = {"covers": program.covers, "gpu": gpu, "emulator": emulator}
        if (gpu == "no fault") != (emulator == "no error"):
            found[name]["explanation"] = explain(name, PROGRAMS)
    return found


def _fault(message: str) -> str:
    """The driver's words without the exception around them."""
    return message.rpartition("error ")[2] if "error " in message else message


def to_json(results: dict[str, Any]) -> str:
    """One line per form and program."""
    parts = []
    for key, value in results.items():
        if isinstance(value, dict) and key != "about":
            lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


# -- the page --------------------------------------------------------------------------------------------------------


def page(results: dict[str, Any]) -> str:
    """The Markdown page."""
    about = results["about"]
    where = f"compute capability {about['compute_capability']}, driver {about['driver']}, PTX {about['ptx']}"
    lines = ["# The emulator against silicon", ""]
    lines += [f"Measured on one {about['device']} ({where}, target {about['target']}), {about['date']}."]
    lines += [f"Made by `{COMMAND}`. Numbers by form: `bench/results/silicon_h200.json`.", "", *_totals(results)]
    for part in (_by_opcode, _approximate, _differences, _program_table, _fault_table, _not_on_device):
        lines += ["", *part(results)]
    return "\n".join([*lines, "", "## Learned from the GPU", "", *(f"- {n}" for n in NOTES), ""])


def _totals(results: dict[str, Any]) -> list[str]:
    agree, approximated, differ = (results[k] for k in ("agree", "approximate", "differ"))
    compared = sum(agree.values()) + sum(o["compared"] for o in [*differ.values(), *approximated.values()])
    programs = results["programs"].values()
    same = sum(p.get("mismatches") == 0 for p in programs)
    return [
        f"- {len(agree)} instruction forms agree bit for bit, {len(approximated)} approximate ones are compared by distance, "
        f"{len(differ)} differ for some inputs; {compared:,} results in all.",
        f"- {len(results['not_on_device'])} forms do not exist on this GPU: what the emulator does there is documented "
        "or inferred, not measured.",
        f"- {same} of {len(programs)} hand-written kernels (memory, atomics, barriers, asynchronous copies, tensor copies, "
        "control flow) agree in every result.",
    ]


def _opcode(key: str) -> str:
    return re.match(r"\w+", key)[0]  # type: ignore[index]


def _by_opcode(results: dict[str, Any]) -> list[str]:
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for key, compared in results["agree"].items():
        rows[_opcode(key)].update(forms=1, results=compared)
    for kind in ("approximate", "differ"):
        for key, outcome in results[kind].items():
            rows[_opcode(key)].update({"forms": 1, "results": outcome["compared"], kind: 1})
    for key in results["not_on_device"]:
        rows[_opcode(key)].update(absent=1)
    lines = [
        "## Instructions",
        "",
        "| opcode | forms compared | results | approximate | differ somewhere | not on this GPU |",
        "|---|---|---|---|---|---|",
    ]
    for opcode in sorted(rows):
        r = rows[opcode]
        lines.append(
            f"| {opcode} | {r['forms']} | {r['results']:,} | {r['approximate'] or ''} | {r['differ'] or ''} | {r['absent'] or ''} |"
        )
    return lines


def _approximate(results: dict[str, Any]) -> list[str]:
    lines = [
        "## Approximate functions",
        "",
        "The emulator rounds correctly. Distances are in units in the last place of the result type; for .approx.ftz.f64, "
        "of its upper word; for .ftz, zero and the smallest normal number are neighbours.",
        "",
        "| form | results | largest distance | exact | 1 | 2 | more | largest absolute error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, o in results["approximate"].items():
        cells = [f"`{key.partition('/')[0]}`", f"{o['compared']:,}", *_distances(o)]
        lines.append(
            f"| {' | '.join(cells)} | {o['max_absolute']:.3g} |"
            if "max_absolute" in o
            else f"| {' | '.join(cells)} |  |"
        )
    return [
        *lines,
        "",
        "Where an absolute error is given, the ISA bounds that: for sin and cos between -pi and pi (the only inputs compared), "
        "for lg2 between 0.5 and 2 (its distances are for the rest).",
    ]


def _distances(outcome: dict[str, Any]) -> list[str]:
    """Largest distance, and results at distance 0, 1, 2 and beyond."""
    if "max_ulp" not in outcome:
        return [""] * 5
    histogram = outcome["histogram"]
    more = sum(n for k, n in histogram.items() if k not in ("0", "1", "2"))
    return [str(outcome["max_ulp"]), *(f"{histogram.get(k, 0):,}" for k in ("0", "1", "2")), f"{more:,}"]


def _differences(results: dict[str, Any]) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, outcome in results["differ"].items():
        groups[outcome["explanation"] or "not explained"].append(key)
    lines = ["## Differences", ""]
    for text, keys in groups.items():
        outcome = results["differ"][keys[0]]
        example = outcome.get("examples", [{}])[0]
        named = ", ".join(f"`{k.partition('/')[0]}`" for k in keys[:6]) + (
            f" and {len(keys) - 6} more" if len(keys) > 6 else ""
        )
        lines.append(f"- {text}: {named}. For example {', '.join(f'{k} = {v}' for k, v in example.items())}.")
    return lines if groups else [*lines, "None."]


def _program_table(results: dict[str, Any]) -> list[str]:
    lines = ["## Kernels", "", "| kernel | covers | results | verdict |", "|---|---|---|---|"]
    for name, p in results["programs"].items():
        if p.get("mismatches") == 0:
            verdict = "agrees"
        elif "refused" in p:
            verdict = f"refused by the emulator: {p['explanation'] or p['refused']}"
        elif "failed" in p:
            verdict = f"failed on the GPU: {p['failed']}"
        else:
            verdict = f"{p['mismatches']} differ: {p['explanation'] or 'not explained'}"
        lines.append(f"| {name} | {p['covers'].replace('|', '/')} | {p.get('compared', '')} | {verdict} |")
    return lines


def _fault_table(results: dict[str, Any]) -> list[str]:
    lines = ["## Forbidden things", "", "| kernel | does | GPU | emulator | |", "|---|---|---|---|---|"]
    for name, f in results["faults"].items():
        lines.append(f"| {name} | {f['covers']} | {f['gpu']} | {f['emulator']} | {f.get('explanation', '')} |")
    return lines


def _not_on_device(results: dict[str, Any]) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, message in results["not_on_device"].items():
        groups[_opcode(key)].append(f"`{key.partition('/')[0]}`: {message}")
    lines = ["## Not on this GPU", "", "| opcode | forms | what the compiler says, for example |", "|---|---|---|"]
    return lines + [f"| {o} | {len(texts)} | {texts[0].replace('|', '/')} |" for o, texts in sorted(groups.items())]
