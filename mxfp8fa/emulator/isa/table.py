"""The table of modelled instructions, docs/instructions.md, generated from the definitions (see COMMAND)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import groupby

import mxfp8fa.emulator.isa  # noqa: F401  (fills the registry)
from mxfp8fa.emulator.isa.registry import CONFIDENCE, REGISTRY, Definition

COMMAND = "python -m mxfp8fa.emulator.isa.table > docs/instructions.md"
MEANING = {
    "documented": "the PTX ISA says so",
    "inferred": "from ptxas, other documents, or the only sensible reading",
    "unknown": "a choice the emulator had to make",
}
HEAD = """# What the emulator executes

Generated from the definitions by `{command}`; do not edit.

Alternatives stand in braces; what may be left out carries its dot inside them, `add{{.sat}}.s32`. Sections are those of
the PTX ISA 9.x. An instruction or modifier that is not listed here is refused before the kernel starts.

{legend}
"""


def form(definition: Definition) -> str:
    """The PTX spelling with its alternatives filled in: ``mul.hi.{u16,s16,u32} d, a, b``."""

    def alternatives(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        words = definition.choices.get(name, (name,))
        text = words[0] if len(words) == 1 else "{" + ",".join(words) + "}"
        return f"{{.{text}}}" if match[1] else f".{text}"

    mnemonic, space, operands = definition.pattern.partition(" ")
    spelled = re.sub(r"\{\.([^}]+)\}|\.([\w:]+)", alternatives, mnemonic)
    return spelled + space + re.sub(r":\w+", "", operands)


def families() -> list[tuple[str, str, list[list[Definition]]]]:
    """(name, description, instructions in source order) per module; an instruction is all forms of one function."""

    def module(d: Definition) -> str:
        return d.function.__module__

    def place(d: Definition) -> tuple[str, int, str]:
        return module(d), d.function.__code__.co_firstlineno, d.function.__qualname__

    every = sorted((d for definitions in REGISTRY.values() for d in definitions), key=place)
    found = []
    for name, members in groupby(every, module):
        description = (sys.modules[name].__doc__ or "").strip().split("\n")[0]
        found.append((name.rsplit(".", 1)[-1], description, [list(forms) for _, forms in groupby(members, place)]))
    return found


def _cell(parts: Iterable[str]) -> str:
    """Distinct texts of one table cell, each on its own line; pipes would end the cell."""
    return "<br>".join(dict.fromkeys(p.replace("|", "\\|") for p in parts if p))


def _row(forms: list[Definition]) -> str:
    cells = (
        _cell(f"`{form(d)}`" for d in forms),
        _cell([forms[0].summary]),
        _cell(d.section for d in forms),
        _cell(d.confidence for d in forms),
        _cell(d.not_modelled for d in forms),
    )
    return "| " + " | ".join(cells) + " |"


def markdown() -> str:
    """The whole table, one section per family."""
    every = [d for definitions in REGISTRY.values() for d in definitions]
    counts = {c: sum(d.confidence == c for d in every) for c in CONFIDENCE}
    legend = "\n".join(f"- {c} ({counts[c]} forms): {MEANING[c]}" for c in CONFIDENCE)
    parts = [HEAD.format(command=COMMAND, legend=legend)]
    for name, description, instructions in families():
        rows = "\n".join(map(_row, instructions))
        head = "| form | what it does | section | confidence | not modelled |\n|---|---|---|---|---|"
        parts.append(f"## {name}\n\n{description}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(markdown())
