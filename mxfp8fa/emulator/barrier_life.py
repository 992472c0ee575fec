"""The life of mbarriers: who did what to them, and their state after it.

life = BarrierLife(names={0x1800: "loaded"})
run_ptx(..., trace=life)
print(life)
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mxfp8fa.emulator.errors import BarrierError
from mxfp8fa.emulator.machine.mbarrier import MBarrier
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.emulator.trace import agent_name

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.warp import Warp

Place = tuple[tuple[int, int, int], int]  # CTA, shared offset
Doer = tuple[str, str, int]  # who, what, PTX line
_UNTOLD = ("shared", "global", "release", "acquire", "relaxed", "cta", "cluster")  # qualifiers that tables leave out


@dataclass(frozen=True)
class BarrierStep:
    """One event.

    Attributes:
        barrier: its name.
        actor: "warp 0", "TMA", "tensor core".
        what: what it does to the barrier: opcode, qualifiers and numbers of the instruction, without types and names.
        ptx_line: line of the instruction.
        outcome: "" or what came of it: "phase 0 completes", "passes", "not yet".
        phase, pending, expected, tx: state of the barrier after it; phase is its parity.
    """

    barrier: str
    actor: str
    what: str
    ptx_line: int
    outcome: str
    phase: int
    pending: int
    expected: int
    tx: int


@dataclass
class BarrierLife(Watch):
    """Follows the mbarriers of a launch. Prints itself as a table.

    Attributes:
        names: shared offset -> what to call the barrier; others are called by their offset.
        steps: what happened, in order. A wait that is tried again and again is one step, as is one by several lanes.
    """

    names: dict[int, str] = field(default_factory=dict)
    steps: list[BarrierStep] = field(default_factory=list)
    _actor: Doer = ("", "", 0)
    _stack: list[Doer] = field(default_factory=list)
    _warp: Warp | None = None
    _states: dict[Place, MBarrier] = field(default_factory=dict)
    _touched: tuple[CTA, int, Doer] | None = None
    _waiting: dict[tuple[Place, str], str] = field(default_factory=dict)

    # -- who acts -----------------------------------------------------------------------------------------------------

    def run_warp(self, warp: Warp) -> None:
        """A turn of a warp begins."""
        self._warp = warp

    def ran_warp(self, warp: Warp) -> None:
        """A turn of a warp ends."""
        self._settle()
        self._warp = None

    def begin(self, op: AsyncOp) -> None:
        """An asynchronous operation acts."""
        self._settle()
        self._stack.append(self._actor)
        self._actor = agent_name(op.queue), _short(op.site.text), op.site.ptx_line

    def end(self, op: AsyncOp) -> None:
        """It is over."""
        self._settle()
        self._actor = self._stack.pop()

    def _doer(self) -> Doer:
        if self._stack or self._warp is None:
            return self._actor
        warp, site = self._warp, self._warp.site(self._warp.group.pc)
        alone = len(warp.machine.resident) == 1 and len(warp.cta.cluster.ctas) == 1
        name = f"warp {warp.index}" if alone else f"CTA {warp.cta.index} warp {warp.index}"
        return name, _short(site.text), site.ptx_line

    # -- what happens -------------------------------------------------------------------------------------------------

    def barrier_initialised(self, cta: CTA, offset: int) -> None:
        """A barrier begins; its state is there when the instruction is over."""
        self._settle()
        self._states.pop((cta.index, offset), None)
        self._touched = (cta, offset, self._doer())

    def barrier_used(self, cta: CTA, offset: int) -> None:
        """Something is about to happen to a barrier."""
        self._settle()
        self._touched = (cta, offset, self._doer())

    def _settle(self) -> None:
        """Note what the last instruction that touched a barrier has made of it."""
        if self._touched is None:
            return
        (cta, offset, doer), self._touched = self._touched, None
        word, poison = cta.shared.words.load_word(offset)
        try:
            new = None if poison else MBarrier.decode(word)
        except BarrierError:  # other data lies there by now
            new = None
        old = self._states.get((cta.index, offset))
        if new is not None and new != old:
            self._states[cta.index, offset] = new
            self._note(offset, doer, f"phase {old.phase} completes" if old and old.phase != new.phase else "", new)

    def acquire(self, key: Hashable) -> None:
        """A wait is satisfied."""
        self._waited(key, "passes")

    def barrier_missed(self, cta: CTA, offset: int, parity: int) -> None:
        """A wait is not satisfied."""
        self._waited(("mbarrier", cta.number, offset), "not yet")

    def _waited(self, key: Hashable, outcome: str) -> None:
        if not isinstance(key, tuple) or key[0] != "mbarrier" or self._touched is None:
            return
        cta, offset, doer = self._touched
        place = (cta.index, offset)
        state = self._states.get(place)
        said = f"{outcome} {doer} {state}"
        if state is not None and self._waiting.get((place, doer[0])) != said:
            self._waiting[place, doer[0]] = said
            self._note(offset, doer, outcome, state)

    def _note(self, offset: int, doer: Doer, outcome: str, state: MBarrier) -> None:
        name = self.names.get(offset, f"mbarrier {offset:#x}")
        self.steps.append(BarrierStep(name, *doer, outcome, state.phase, state.pending, state.expected, state.tx))

    def of(self, barrier: str) -> BarrierLife:
        """The steps of one barrier."""
        return BarrierLife(self.names, [step for step in self.steps if step.barrier == barrier])

    def __str__(self) -> str:
        head = ("line", "who", "does", "barrier", "phase", "pending", "tx-count", "")
        rows = [
            (f"{s.ptx_line:4}", s.actor, s.what, s.barrier, str(s.phase), f"{s.pending} of {s.expected}", f"{s.tx:8}", s.outcome)
            for s in self.steps
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (head, *rows))
        return "\n".join(line.rstrip() for line in lines)


def _short(text: str) -> str:
    """For example "mbarrier.arrive.expect_tx 512" of "@%p mbarrier.arrive.expect_tx.shared.b64 _, [full], 512;"."""
    mnemonic, _, operands = re.sub(r"^@!?%\S+\s+", "", text.rstrip(";")).partition(" ")
    words = mnemonic.split(".")
    kept = next(
        (i for i, w in enumerate(words) if "::" in w or w in _UNTOLD or re.fullmatch(r"[bu]\d+", w)), len(words)
    )
    numbers = re.findall(r"(?<![\w%.+-])(?:0x[0-9a-fA-F]+|\d+)(?![\w.])", re.sub(r"\[[^]]*\]", "", operands))
    return " ".join([".".join(words[:kept]), *numbers])
