"""The sample of silicon inputs and results that is kept in the repository, so that tests compare without a GPU.

Forms with the same kinds of operands share their inputs, which are stored once. Everything is one compressed file:
`index` (one line per form), `inputs` (per signature) and `outputs` (all forms, in order); of each program a checksum of
its results and a few of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxfp8fa.emulator.isa.snippets import Form
from mxfp8fa.emulator.lanes import LANES
from silicon import forms as silicon_forms
from silicon.inputs import EDGES, random_words
from silicon.programs import all_programs
from silicon.programs.code import Program

EDGE_SAMPLES, RANDOM_SAMPLES = 30, 22
GROUPING_PERIOD = 4  # the warps of a collective cycle through its groupings: one of each is kept
PROGRAM_WORDS = 64  # results of a program that are kept besides their checksum


@dataclass(frozen=True)
class Entry:
    """What is kept of one form: inputs, who took part (collectives), and the GPU's results."""

    key: str
    arrays: list[np.ndarray]
    active: np.ndarray
    outputs: list[np.ndarray]


def signature(form: Form) -> str:
    """What decides the inputs of a form: the form itself for collectives, else the kinds of its operands."""
    if form.collective:
        return form.key
    kinds = [silicon_forms.kind_of(o, form) for o in form.arrays]
    return " ".join(kinds + ["constants"] * bool(form.immediate))


def chosen(form: Form) -> np.ndarray:
    """Indices of the inputs that are kept."""
    arrays, active = silicon_forms.inputs(form)
    n = len(active)
    if form.collective:
        first = (random_words(form.key, GROUPING_PERIOD) % np.uint64(n // LANES)).astype(np.int64)
        first = first // GROUPING_PERIOD * GROUPING_PERIOD + np.arange(GROUPING_PERIOD)
        return (first[:, None] * LANES + np.arange(LANES)).reshape(-1)
    if form.immediate:
        return np.arange(8)
    edges = EDGES**2 if len(arrays) > 1 else min(EDGES, n)
    words = random_words(signature(form), EDGE_SAMPLES + RANDOM_SAMPLES)
    limit = np.where(np.arange(words.size) < EDGE_SAMPLES, min(edges, n), n).astype(np.uint64)
    return (words % limit).astype(np.int64)


def checksum(results: list[np.ndarray]) -> int:
    """CRC-32 of complete results."""
    value = 0
    for r in results:
        value = zlib.crc32(np.ascontiguousarray(r).view(np.uint8), value)
    return value


@dataclass(frozen=True)
class ProgramEntry:
    """What is kept of a program: the checksum of all results, and some of them for a first look."""

    checksum: int
    index: np.ndarray
    words: np.ndarray


def program_entry(program: Program, results: np.ndarray) -> ProgramEntry:
    """The kept part of a program's complete results, sorted where the ISA leaves their order open."""
    results = np.sort(results) if program.unordered else results
    index = np.linspace(0, len(results) - 1, min(PROGRAM_WORDS, len(results))).astype(np.int64)
    return ProgramEntry(checksum([results]), index, results[index])


def keep(form: Form, results: list[np.ndarray]) -> list[np.ndarray]:
    """The kept part of complete results: for each constant, the chosen inputs."""
    index = chosen(form)
    n = len(results[0]) // len(form.constants)
    where = (np.arange(len(form.constants))[:, None] * n + index).reshape(-1)
    return [r[where] for r in results]


def save(path: Path, kept: dict[str, list[np.ndarray]], programs: dict[str, np.ndarray]) -> None:
    """Write the sample of all forms in `kept` and the complete results of programs."""
    forms = silicon_forms.all_forms()
    lines, blob, inputs = [], [], {}
    for key, outputs in kept.items():
        form = forms[key]
        name = signature(form)
        if name not in inputs:
            arrays, active = silicon_forms.inputs(form)
            index = chosen(form)
            inputs[name] = [*(a[index] for a in arrays), active[index]]
        lines.append("\t".join([key, name, *(f"{o.dtype.name}:{o.size}" for o in outputs)]))
        blob += [_packed(o) for o in outputs]
    names = list(inputs)
    head = ["\t".join([n, *(f"{a.dtype.name}:{a.size}" for a in inputs[n])]) for n in names]
    entries = {n: program_entry(all_programs()[n], words) for n, words in programs.items()}
    np.savez_compressed(
        path,
        index=_text("\n".join(lines)),
        signatures=_text("\n".join(head)),
        inputs=_joined([_packed(a) for n in names for a in inputs[n]]),
        outputs=_joined(blob),
        programs=_text("\n".join(f"{n}\t{e.checksum}\t{len(e.words)}\t{len(programs[n])}" for n, e in entries.items())),
        program_words=np.concatenate([np.zeros(0, np.uint64), *(e.words for e in entries.values())]),
    )


def load(path: Path) -> tuple[Iterator[Entry], dict[str, ProgramEntry]]:
    """(the kept forms, the kept programs by name)."""
    with np.load(path) as stored:
        data = {k: stored[k] for k in stored.files}
    programs, at = {}, 0
    for line in data["programs"].tobytes().decode().splitlines():
        name, *numbers = line.split("\t")
        code, kept, total = (int(n) for n in numbers)
        index = np.linspace(0, total - 1, kept).astype(np.int64)
        programs[name] = ProgramEntry(code, index, data["program_words"][at : at + kept])
        at += kept
    return _entries(data), programs


def _entries(data: dict[str, np.ndarray]) -> Iterator[Entry]:
    take = _Reader(data["inputs"])
    inputs = {}
    for line in data["signatures"].tobytes().decode().splitlines():
        name, *arrays = line.split("\t")
        inputs[name] = [take(a) for a in arrays]
    take = _Reader(data["outputs"])
    for line in data["index"].tobytes().decode().splitlines():
        key, name, *outputs = line.split("\t")
        *arrays, active = inputs[name]
        yield Entry(key, arrays, active, [take(o) for o in outputs])


class _Reader:
    """Takes arrays, described as dtype:size, from a byte string one after the other."""

    def __init__(self, data: np.ndarray):
        self._data = data
        self._at = 0

    def __call__(self, description: str) -> np.ndarray:
        name, _, size = description.partition(":")
        count = int(size)
        length = -(-count // 8) if name == "bool" else count * np.dtype(name).itemsize
        raw = self._data[self._at : self._at + length]
        self._at += length
        return np.unpackbits(raw, count=count).astype(bool) if name == "bool" else raw.copy().view(name)


def _packed(array: np.ndarray) -> np.ndarray:
    return np.packbits(array) if array.dtype == bool else np.ascontiguousarray(array).view(np.uint8)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.uint8), *parts])


def _text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
