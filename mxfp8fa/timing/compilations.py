"""What the CuTe DSL compiles while a program runs, and the time each compilation takes."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mxfp8fa.emulator  # noqa: F401  (from here on compiled functions keep their PTX)


@dataclass(frozen=True)
class Compilation:
    """One call of `cute.compile`.

    Attributes:
        compiled: what it returned.
        cpu_s: CPU seconds of this process, tracing included; measured on this machine (wall time is that at least, and
            more when the machine is busy).
    """

    compiled: Any
    cpu_s: float


@contextlib.contextmanager
def compilations() -> Iterator[list[Compilation]]:
    """While open, every `cute.compile` is timed and kept, and compiles line information in.

    Yields:
        A list that grows with every compilation.
    """
    from cutlass.base_dsl.compiler import CompileCallable

    original, found = CompileCallable._compile, []

    @functools.wraps(original)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        with _line_information(args):
            compiled = original(self, *args, **kwargs)
        found.append(Compilation(compiled, time.process_time() - start))
        return compiled

    CompileCallable._compile = timed
    try:
        yield found
    finally:
        CompileCallable._compile = original


@contextlib.contextmanager
def _line_information(args: tuple[Any, ...]) -> Iterator[None]:
    """Switch the DSL's line information on: the environment variable behind it is read once per process."""
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    before, settings.lineinfo = settings.lineinfo, True
    try:
        yield
    finally:
        settings.lineinfo = before
