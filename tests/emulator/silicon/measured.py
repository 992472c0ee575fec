"""What was measured on a GPU: the kept results, and the table of all comparisons."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from silicon import sample

ROOT = Path(__file__).parents[3]


@lru_cache(maxsize=1)
def results() -> dict[str, Any]:
    return json.loads((ROOT / "bench/results/silicon_h200.json").read_text())


@lru_cache(maxsize=1)
def kept() -> tuple[dict[str, list[sample.Entry]], dict[str, sample.ProgramEntry]]:
    """(kept forms by opcode, kept programs by name)."""
    entries, programs = sample.load(Path(__file__).parent / "h200.npz")
    by_opcode: dict[str, list[sample.Entry]] = {}
    for entry in entries:
        by_opcode.setdefault(entry.key.partition(".")[0], []).append(entry)
    return by_opcode, programs
