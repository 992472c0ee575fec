"""Errors of the emulator. Each says what happened and where: CTA, warp, lane, PTX line and, with line info, the source line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Site:
    """Where in the grid and in the program something happened.

    Attributes:
        kernel: kernel name.
        cta: block index (x, y, z).
        warp: warp index within the CTA; -1 for an asynchronous agent.
        lane: lane index, or None when the whole warp is meant.
        ptx_line: 1-based line of the PTX text.
        text: the instruction as written.
        source: "file.py:123" of the kernel's source when it was compiled with line info, else "".
    """

    kernel: str
    cta: tuple[int, int, int]
    warp: int
    lane: int | None
    ptx_line: int
    text: str
    source: str = ""

    def __str__(self) -> str:
        lane = "" if self.lane is None else f" lane {self.lane}"
        source = f", {self.source}" if self.source else ""
        return f"CTA {self.cta} warp {self.warp}{lane}, PTX line {self.ptx_line}{source}: {self.text}"


class EmulationError(RuntimeError):
    """Base of everything the emulated program did wrong.

    Attributes:
        site: where.
        lane: which lane, when known.
        findings: what the race checker had found before, if it ran; often the cause.
    """

    def __init__(self, message: str, *, lane: int | None = None, site: Site | None = None):
        super().__init__(message)
        self.message = message
        self.lane = lane
        self.site = site
        self.findings: list[Any] = []

    def __str__(self) -> str:
        lines = [f"{self.message}\n  at {self.site}" if self.site else self.message]
        if self.findings:
            lines += ["the checker had found before:", *(f"  {finding}" for finding in self.findings)]
        return "\n".join(lines)


class UnsupportedInstruction(EmulationError):
    """The kernel contains an instruction or modifier that has no definition; raised before the first instruction runs."""


class OutOfBounds(EmulationError):
    """An access outside every valid allocation of its memory."""


class Misaligned(EmulationError):
    """An access whose address is not a multiple of its size."""


class PoisonError(EmulationError):
    """A value that was never written reached a branch, an address, a barrier or global memory."""


class BarrierError(EmulationError):
    """A barrier used against its rules."""


class IllegalOperation(EmulationError):
    """An instruction executed with operands or in a state that the ISA does not allow."""


class DeadlockError(EmulationError):
    """No warp can run and nothing is pending."""


class SpinError(DeadlockError):
    """Warps poll memory that nobody left can write."""


class Trap(EmulationError):
    """The kernel executed trap."""


class LaunchError(EmulationError):
    """A launch that the device would refuse."""
