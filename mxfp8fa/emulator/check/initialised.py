"""Whether the asynchronous proxy sees that an mbarrier was initialised.

mbarrier.init is a write of the generic proxy; TMA and tcgen05.commit use the barrier through the asynchronous one. Between
them the initialising thread needs fence.mbarrier_init or fence.proxy.async, before the barrier that tells the others (PTX
ISA, "membar, fence"; CUDA C++ Programming Guide, "Asynchronous data copies using TMA").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxfp8fa.emulator.check.clocks import SHARED, Actor
from mxfp8fa.emulator.check.sites import Side

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA



@dataclass
class _Init:
    """Who initialised a barrier and when; `fenced` is the clock of the first fence after it, or None."""

    actor: int
    clock: int
    by: Side
    fenced: int | None = None


class Initialised:
    """Every mbarrier.init of a launch."""

    def __init__(self) -> None:
        self._inits: dict[tuple[int, int], _Init] = {}
        self._unfenced: dict[int, list[_Init]] = {}

    def begins(self, cta: CTA, offset: int, actor: Actor, by: Side) -> None:
        """An mbarrier.init."""
        init = self._inits[cta.number, offset] = _Init(actor.number, actor.clock, by)
        self._unfenced.setdefault(actor.number, []).append(init)

    def fenced(self, actor: Actor) -> None:
        """A fence that makes the actor's initialisations visible."""
        for init in self._unfenced.pop(actor.number, ()):
            init.fenced = actor.clock

    def hidden_from(self, cta: CTA, offset: int, actor: Actor) -> Side | None:
        """Who initialised the barrier, if an asynchronous agent that uses it need not see that; else None."""
        init = self._inits.get((cta.number, offset))
        if init is None or actor.known.entry(init.actor, SHARED) >= init.clock:
            return None
        if init.fenced is not None and actor.known.entry(init.actor) >= init.fenced:
            return None
        return init.by

    def forget(self, cta: CTA) -> None:
        """The CTA ends."""
        for key in [k for k in self._inits if k[0] == cta.number]:
            del self._inits[key]

    def forget_actor(self, number: int) -> None:
        """A warp or an agent ends."""
        self._unfenced.pop(number, None)
