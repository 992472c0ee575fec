"""Excerpts of PTX: the instructions that a lesson is about, without the rest."""

from __future__ import annotations

import re


def ptx_lines(ptx: str, *patterns: str, before: int = 0) -> list[str]:
    """The instructions whose text matches one of the regular expressions, in order.

    Args:
        ptx: a PTX text.
        *patterns: searched in each instruction.
        before: how many instructions before a match to keep too.

    Returns:
        One string an instruction, without indentation, line information and labels.
    """
    lines = [line.strip() for line in ptx.splitlines()]
    code = [line for line in lines if line.endswith(";") and not line.startswith((".", "//"))]
    wanted = re.compile("|".join(f"(?:{p})" for p in patterns))
    kept: set[int] = set()
    for i, line in enumerate(code):
        if wanted.search(line):
            kept.update(range(max(i - before, 0), i + 1))
    return [re.sub(r"\s+", " ", code[i]) for i in sorted(kept)]
