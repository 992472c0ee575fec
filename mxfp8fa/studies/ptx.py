"""Kernels written by hand: the frame around a body of PTX, its lines with numbers, and how a run of it ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from mxfp8fa.emulator import EmulationError, Report

_FRAME = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel({parameters})
{{
.reg .b32 %thread; mov.u32 %thread, %tid.x;
{loads}
{body}
ret;
}}
"""


def kernel(body: str, params: str) -> str:
    """A PTX text with one entry point, `kernel`.

    Args:
        body: what it does, with the declarations that it needs. The register %thread holds the thread's number.
        params: names of its parameters, "A B idesc:u32": 64 bits wide unless they say otherwise. Each is loaded into
            the register of its name.
    """
    typed = [(name, kind or "u64") for name, _, kind in (p.partition(":") for p in params.split())]
    parameters = ", ".join(f".param .{kind} {name}" for name, kind in typed)
    loads = "\n".join(f".reg .{kind} %{name}; ld.param.{kind} %{name}, [{name}];" for name, kind in typed)
    return _FRAME.format(parameters=parameters, loads=loads, body=body.strip("\n"))


def registers(name: str, count: int, first: int = 0) -> str:
    """{%d0, %d1, ...}: a vector operand."""
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def numbered(text: str, lines: Iterable[int] | None = None) -> str:
    """Lines of a text with their numbers, as error messages count them; all of them, or those asked for."""
    wanted = None if lines is None else set(lines)
    found = [(i, line) for i, line in enumerate(text.splitlines(), 1) if wanted is None or i in wanted]
    return "\n".join(f"{i:3}  {line}" for i, line in found)


def masked(text: object) -> str:
    """A message without addresses of global memory, which differ from run to run."""
    return re.sub(r"\b0x[0-9a-f]{9,16}\b(\.\.\.)?", "0x...", str(text))


def error_of(run: Callable[[], Any]) -> str:
    """The error that a run ends in, kind and message, without addresses of global memory.

    Raises:
        ValueError: it ends without one.
    """
    try:
        run()
    except EmulationError as error:
        return f"{type(error).__name__}: {masked(error)}"
    raise ValueError("the run ended without an error")


def outcome(run: Callable[[], Report], right: Callable[[], bool]) -> tuple[str, list[str]]:
    """How a run ended, in a word, and the kinds of what the checker found.

    Args:
        run: starts it.
        right: whether its result is right; asked after a run without an error.

    Returns:
        "right", "wrong" or the name of the error; and "race", "visibility", ... in the order of first sight.
    """
    try:
        report = run()
    except EmulationError as error:
        return type(error).__name__, []
    return ("right" if right() else "wrong"), list(dict.fromkeys(finding.kind for finding in report.races))
