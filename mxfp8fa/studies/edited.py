"""Copies of a module with a statement taken out or put in: kernels broken on purpose, and repaired."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

_folder: tempfile.TemporaryDirectory[str] | None = None
_copies = 0


def edited(module: ModuleType, *, without: str = "", insert: str = "", after: str = "") -> ModuleType:
    """Import a copy of a module, changed by one statement.

    Args:
        module: the original; it stays as it is.
        without: a statement to take out.
        insert: a statement to put in, on a line of its own with the indentation of `after`.
        after: the statement that it follows.

    Raises:
        ValueError: a statement does not stand in the module exactly once.
    """
    assert module.__file__ is not None
    path = Path(module.__file__)
    lines = path.read_text().splitlines()
    if without:
        at = _line(lines, without, path.name)
        lines[at] = _indentation(lines[at]) + "pass"
    if insert:
        at = _line(lines, after, path.name)
        lines.insert(at + 1, _indentation(lines[at]) + insert)
    return _import("\n".join(lines) + "\n", path.name)


def _line(lines: list[str], statement: str, name: str) -> int:
    found = [i for i, line in enumerate(lines) if line.split("#")[0].strip() == statement.strip()]
    if len(found) != 1:
        raise ValueError(f"{statement!r} stands {len(found)} times in {name}; it must be there once, as a whole line")
    return found[0]


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _import(text: str, name: str) -> ModuleType:
    """Compiling a kernel needs its source in a file; it goes when Python ends."""
    global _folder, _copies
    _folder = _folder or tempfile.TemporaryDirectory(prefix="mxfp8fa-")
    _copies += 1
    path = Path(_folder.name) / f"copy{_copies}" / name
    path.parent.mkdir()
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{_copies}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
