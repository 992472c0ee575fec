"""Numbers for who accessed memory and where, so that a memory cell can remember both in one integer.

A warp gets as many numbers as its program has instructions; an asynchronous operation gets one for the place where it was
issued. Names and sites are made only for what is reported.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

from mxfp8fa.emulator.errors import Site

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.warp import Warp

Side = tuple[str, Site]


class Sites:
    """The numbers of one launch; with `before`, they go on where those of the launch before end."""

    def __init__(self, before: Sites | None = None):
        self._next: int = before._next if before is not None else 1
        self._first: list[int] = list(before._first) if before is not None else []
        self._entries: list[tuple[Any, ...]] = list(before._entries) if before is not None else []
        self._of_operation: dict[Side, int] = {}

    def of_warp(self, name: str, warp: Warp) -> int:
        """The number of the warp's instruction 0; the others follow."""
        end = len(warp.program.instructions)  # the site behind the last instruction
        return self._add((name, warp.program, warp.cta.index, warp.index), end + 1)

    def of_operation(self, name: str, site: Site) -> int:
        """The number of an asynchronous operation."""
        key = name, site
        if key not in self._of_operation:
            self._of_operation[key] = self._add(key, 1)
        return self._of_operation[key]

    def _add(self, entry: tuple[Any, ...], count: int) -> int:
        first = self._next
        self._first.append(first)
        self._entries.append(entry)
        self._next += count
        return first

    def __getitem__(self, number: int) -> Side:
        """Who, and where."""
        at = bisect.bisect_right(self._first, number) - 1
        name, *rest = self._entries[at]
        if len(rest) == 1:
            return name, rest[0]
        program, cta, warp = rest
        return name, program.site(number - self._first[at], cta, warp, None)
