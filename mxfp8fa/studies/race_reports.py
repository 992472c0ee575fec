"""Findings of the race checker for a reader: who, where in the Python source, and what stands there."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mxfp8fa.emulator.check import Finding
from mxfp8fa.emulator.errors import Site

_WIDTH = 112


def race_report(findings: Iterable[Finding]) -> str:
    """A few lines per pair of Python lines; "silent" if nothing was found."""
    merged: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        sides = [
            side[1].source or str(side[1].ptx_line) for side in (finding.first, finding.second) if side is not None
        ]
        key = (finding.kind, finding.what, *sides)
        before = merged.get(key)
        merged[key] = finding if before is None else replace(before, count=before.count + finding.count)
    return "\n".join(map(_one, merged.values())) if merged else "silent"


def _one(finding: Finding) -> str:
    times = f", {finding.count} times" if finding.count > 1 else ""
    lines = [f"{finding.kind}{times}: {finding.what}", f"   at {_without_cta(finding.where)}"]
    for label, side in (("first", finding.first), ("then", finding.second)):
        if side is not None:
            actor, site = side
            where, text = _source(site)
            lines.append(f"   {label:5} {_without_cta(actor)}: {text or site.text}"[:_WIDTH])
            lines.append(f"         {where}{_instruction(site)}")
    return "\n".join(lines)


def _without_cta(text: str) -> str:
    return re.sub(r"(^CTA \(\d+, \d+, \d+\) )|( of CTA \(\d+, \d+, \d+\))", "", text)


def _instruction(site: Site) -> str:
    """Opcode and first qualifiers."""
    text = re.sub(r"^@!?%\w+\s+", "", site.text)
    return ".".join(text.split()[0].rstrip(";").split(".")[:4])


def _source(site: Site) -> tuple[str, str]:
    """("file.py:12, ", the line of Python), without its folder; ("", "") without line information."""
    path, _, line = site.source.rpartition(":")
    if not path:
        return "", ""
    where = f"{Path(path).name}:{line}" if "ipykernel" not in path else f"its cell, line {line}"
    return f"{where}, ", linecache.getline(path, int(line)).strip()
