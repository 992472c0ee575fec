"""Runs forms and programs on the GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import c_uint, c_uint64

import numpy as np

from mxfp8fa.emulator.isa.snippets import BLOCK_THREADS, Form, kernel, memory_type, module
from silicon import forms as silicon_forms
from silicon.cuda import AssemblyError, Device, Module
from silicon.programs.code import ENTRY, Program

_LINE = re.compile(r"line (\d+); (?:error|fatal)\s*: (.*)")


def assemble(device: Device, forms: Sequence[Form]) -> tuple[Module | None, dict[str, str], dict[str, str]]:
    """One module with a kernel for each form that the driver's compiler takes.

    Returns:
        (module, entry names by form key, the compiler's message for each form it refused). Refused kernels are found
        by the line numbers in the log; where it gives none, the forms are tried one by one.
    """
    refused: dict[str, str] = {}
    remaining = list(forms)
    while remaining:
        text, owners = _module_text(device, remaining)
        try:
            return device.load(text), {f.key: _entry(i) for i, f in enumerate(remaining)}, refused
        except AssemblyError as error:
            found = {owners[int(n)]: message for n, message in reversed(_LINE.findall(error.log)) if int(n) in owners}
            refused |= found or _one_by_one(device, remaining)
            remaining = [f for f in remaining if f.key not in refused]
    return None, {}, refused


def _entry(i: int) -> str:
    return f"form{i}"


def _module_text(device: Device, forms: Sequence[Form]) -> tuple[str, dict[int, str]]:
    """A module, and the form that each of its lines (from 1) belongs to."""
    entries = [kernel(f, _entry(i)) for i, f in enumerate(forms)]
    text = module(entries, version=device.ptx_version, target=device.target)
    line = text[: text.index(".visible")].count("\n") + 1
    owners = {}
    for form, entry in zip(forms, entries, strict=True):
        for _ in range(entry.count("\n") + 1):
            owners[line] = form.key
            line += 1
    return text, owners


def _one_by_one(device: Device, forms: Sequence[Form]) -> dict[str, str]:
    refused = {}
    for form in forms:
        try:
            device.load(_module_text(device, [form])[0]).unload()
        except AssemblyError as error:
            refused[form.key] = error.log.strip().split("\n")[0]
    if not refused:
        raise AssemblyError("the forms assemble one by one, but not together")
    return refused


def run_form(
    device: Device, loaded: Module, entry: str, form: Form, arrays: list[np.ndarray], active: np.ndarray
) -> list[np.ndarray]:
    """A form's raw results."""
    inputs = [a.astype(np.uint8) if a.dtype == bool else a for a in [*arrays, *([active] if form.collective else [])]]
    count = len(active)
    types = [getattr(np, memory_type(o).replace("u", "uint")) for o in form.outputs]
    held = [device.upload(a) for a in inputs]
    held += [device.allocate(count * len(form.constants) * np.dtype(t).itemsize) for t in types]
    if count % BLOCK_THREADS:
        raise ValueError(f"{form}: {count} inputs are not a multiple of {BLOCK_THREADS}")
    grid, block = (count // BLOCK_THREADS, 1, 1), (BLOCK_THREADS, 1, 1)
    device.launch(loaded.function(entry), grid, block, [*held, c_uint(count)])
    results = [
        device.download(address, count * len(form.constants), t)
        for address, t in zip(held[len(inputs) :], types, strict=True)
    ]
    for address in held:
        device.free(address)
    return [r.astype(bool) if o.type == "pred" else r for r, o in zip(results, form.outputs, strict=True)]


def run_program(device: Device, program: Program) -> np.ndarray:
    """A program's results, as 64-bit words."""
    text = f".version {device.ptx_version}\n.target {device.target}\n.address_size 64\n{program.ptx}"
    loaded = device.load(text)
    given, output = device.upload(program.inputs), device.allocate(8 * program.output_words)
    parameters: list[object] = [c_uint64(given.value), c_uint64(output.value)]
    if program.tensor is not None:
        parameters.append(device.tensor_map(program.tensor, given.value))
    grid, block, cluster = ((n, 1, 1) for n in (program.grid, program.block, program.cluster))
    device.launch(loaded.function(ENTRY), grid, block, parameters, cluster=cluster)
    return device.download(output, program.output_words, np.uint64)


def form_results(device: Device, forms: Sequence[Form]) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """(results by key, the compiler's message by key for what it refused)."""
    loaded, entries, refused = assemble(device, forms)
    results = {}
    for form in forms:
        if loaded is not None and form.key in entries:
            arrays, active = silicon_forms.inputs(form)
            results[form.key] = run_form(device, loaded, entries[form.key], form, arrays, active)
    return results, refused
