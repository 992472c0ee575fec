"""Runs the kernels in the emulator's machine."""

from __future__ import annotations

import numpy as np
from silicon.programs.code import ENTRY, Program

from mxfp8fa.emulator.api import run_ptx
from mxfp8fa.emulator.isa.snippets import BLOCK_THREADS, Form, kernel, memory_type, module

VERSION, TARGET = "8.8", "sm_90a"  # what the text says; the emulator has one machine


def run_program(program: Program, **options: object) -> np.ndarray:
    """A program's results, as 64-bit words."""
    text = f".version {VERSION}\n.target {TARGET}\n.address_size 64\n{program.ptx}"
    output, given = np.full(program.output_words, 0xCDCDCDCDCDCDCDCD, np.uint64), program.inputs.copy()
    run_ptx(
        text, ENTRY, grid=program.grid, block=program.block, cluster=program.cluster, params=[given, output], **options  # type: ignore[arg-type]
    )
    return output


def run_form(form: Form, arrays: list[np.ndarray], active: np.ndarray) -> list[np.ndarray]:
    """A form's results, by its kernel in the machine; the number of elements must be a multiple of BLOCK_THREADS."""
    text = module([kernel(form, "form")], version=VERSION, target=TARGET)
    inputs = [_stored(a) for a in [*arrays, *([active] if form.collective else [])]]
    outputs = [np.zeros(len(active) * len(form.constants), memory_type(o).replace("u", "uint")) for o in form.outputs]
    run_ptx(text, "form", grid=len(active) // BLOCK_THREADS, block=BLOCK_THREADS, params=[*inputs, *outputs, len(active)])
    return [o.astype(bool) if spec.type == "pred" else o for o, spec in zip(outputs, form.outputs, strict=True)]


def _stored(array: np.ndarray) -> np.ndarray:
    return array.astype(np.uint8) if array.dtype == bool else np.ascontiguousarray(array)
