"""Runs the kernels in the emulator's machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mxfp8fa.emulator.api import run_ptx
from mxfp8fa.emulator.isa.snippets import BLOCK_THREADS, Form, kernel, memory_type, module
from silicon.programs.code import ENTRY, Program

VERSION, TARGET = "8.8", "sm_90a"  # what the text says; the emulator has one machine


def run_program(program: Program, **options: Any) -> np.ndarray:
    """A program's results, as 64-bit words."""
    text = f".version {VERSION}\n.target {TARGET}\n.address_size 64\n{program.ptx}"
    output, given = np.full(program.output_words, 0xCDCDCDCDCDCDCDCD, np.uint64), _aligned(program.inputs)
    params: list[object] = [given, output]
    if program.tensor is not None:
        params.append(replace(program.tensor, address=given.ctypes.data + program.tensor.address).encode())
    shape: dict[str, Any] = {"grid": program.grid, "block": program.block, "cluster": program.cluster}
    run_ptx(text, ENTRY, params=params, **shape, **options)
    return output


def _aligned(words: np.ndarray, alignment: int = 64) -> np.ndarray:
    """A copy whose address is a multiple of `alignment`, as memory on a GPU is."""
    raw = np.empty(words.size + alignment // 8, np.uint64)
    start = -raw.ctypes.data % alignment // 8
    raw[start : start + words.size] = words
    return raw[start : start + words.size]


def run_form(form: Form, arrays: list[np.ndarray], active: np.ndarray) -> list[np.ndarray]:
    """A form's results, by its kernel in the machine; the number of elements must be a multiple of BLOCK_THREADS."""
    text = module([kernel(form, "form")], version=VERSION, target=TARGET)
    inputs = [_stored(a) for a in [*arrays, *([active] if form.collective else [])]]
    outputs = [np.zeros(len(active) * len(form.constants), memory_type(o).replace("u", "uint")) for o in form.outputs]
    run_ptx(
        text, "form", grid=len(active) // BLOCK_THREADS, block=BLOCK_THREADS, params=[*inputs, *outputs, len(active)]
    )
    return [o.astype(bool) if spec.type == "pred" else o for o, spec in zip(outputs, form.outputs, strict=True)]


def _stored(array: np.ndarray) -> np.ndarray:
    return array.astype(np.uint8) if array.dtype == bool else np.ascontiguousarray(array)
