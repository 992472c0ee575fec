"""Three kernels, each without one fence, for the exercises of notebook 04. Do not imitate them.

    store       a tile is written by threads and stored by the TMA unit
    announce    a bulk copy completes on an mbarrier
    tensor      four warps pass values through tensor memory

Each module has make(), which returns (compiled, args) for `emulator.run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from mxfp8fa.emulator import EmulationError, run
from mxfp8fa.emulator.check import Finding
from mxfp8fa.studies.edited import edited

KERNELS = ("store", "announce", "tensor")


def broken(name: str) -> ModuleType:
    """One of the three kernels."""
    return importlib.import_module(f"mxfp8fa.kernels.broken.{name}")


def findings(module: ModuleType) -> list[Finding]:
    """What the checker says of a kernel, broken or repaired."""
    compiled, args = module.make()
    return run(compiled, *args, check="races").races


def repaired(name: str, answer: Callable[[], tuple[str, str] | None]) -> Callable[[], str | None]:
    """A function that inserts an answer (fence, statement that it follows) and says what the checker says then.

    It returns None for an answer of None, "silent" for a kernel that is in order.
    """

    def outcome() -> str | None:
        given = answer()
        if given is None:
            return None
        fence, after = given
        try:
            found = findings(edited(broken(name), insert=fence, after=after))
        except EmulationError as error:
            return type(error).__name__
        return f"{found[0].kind}: {found[0].what}" if found else "silent"

    outcome.__name__ = answer.__name__
    return outcome
