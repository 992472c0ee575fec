"""Rules of mbarriers that are not about memory order: re-initialisation in use, phases missed, transactions left over.

A wait names a phase by its parity only. Who waits for phase p must have gone on before phase p + 1 completes: after that the
parity is again what it was before p, and the wait lasts until phase p + 2, or forever. So the arrivals that complete p + 1
must know that every waiter has seen p.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mxfp8fa.emulator.check.clocks import Actor, Knowledge
from mxfp8fa.emulator.check.findings import Finding
from mxfp8fa.emulator.check.places import Places
from mxfp8fa.emulator.check.sites import Side, Sites
from mxfp8fa.emulator.errors import BarrierError
from mxfp8fa.emulator.machine.mbarrier import MBarrier

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA

Report = Callable[[Hashable, Finding], None]


@dataclass
class _Barrier:
    """What happened to one mbarrier.

    Attributes:
        phases: completed so far.
        arrivals: in the running phase.
        waiting: actor -> (phases completed when it began to wait, where).
        seen: actor -> (phases completed when its wait was satisfied, its clock then, site).
    """

    phases: int = 0
    arrivals: int = 0
    waiting: dict[int, tuple[int, Side, str]] = field(default_factory=dict)
    seen: dict[int, tuple[int, int, int]] = field(default_factory=dict)


class Protocol:
    """Follows every mbarrier of a launch."""

    def __init__(self, report: Report, places: Places, sites: Sites):
        self._report = report
        self._sites = sites
        self._places = places
        self._barriers: dict[Hashable, _Barrier] = {}

    def initialised(self, cta: CTA, offset: int, here: Side) -> None:
        """A barrier begins; an earlier one at this place must not be in use."""
        key = ("mbarrier", cta.number, offset)
        old = self._barriers.get(key)
        if old is not None and (old.arrivals or old.waiting):
            place = self._places.shared(cta, offset)
            text = f"an mbarrier is initialised again with {old.arrivals} arrivals in its phase and {len(old.waiting)} waiting"
            self._report(("reinit", here[1].ptx_line), Finding("barrier", text, place, second=here))
        self._barriers[key] = _Barrier()

    def arrived(self, key: Hashable) -> None:
        """An arrival or a completion of bytes."""
        if key in self._barriers:
            self._barriers[key].arrivals += 1

    def completed(self, key: Hashable, told: Knowledge, place: Callable[[], str]) -> None:
        """A phase ends, by arrivals that know `told`. Whoever waited since before the phase that ended has missed one."""
        barrier = self._barriers.get(key)
        if barrier is None:
            return
        for actor, (phases, clock, site) in barrier.seen.items():
            if phases == barrier.phases and told.entry(actor) < clock:
                text = "a wait for an mbarrier can miss a whole phase: nothing keeps the next one from completing before it looks"
                side = self._sites[site]
                self._report(("missed", side[1].ptx_line), Finding("barrier", text, place(), second=side))
        barrier.phases += 1
        barrier.arrivals = 0
        for since, side, where in barrier.waiting.values():
            if barrier.phases - since >= 2:
                text = "a wait for an mbarrier can miss a whole phase: two phases completed before it was satisfied"
                self._report(("missed", side[1].ptx_line), Finding("barrier", text, where, second=side))

    def missed(self, key: Hashable, actor: int, here: Side, place: str) -> None:
        """A wait that was not satisfied."""
        barrier = self._barriers.get(key)
        if barrier is not None:
            barrier.waiting.setdefault(actor, (barrier.phases, here, place))

    def observed(self, key: Hashable, actor: Actor, site: int) -> None:
        """A wait that was satisfied."""
        barrier = self._barriers.get(key)
        if barrier is not None:
            barrier.waiting.pop(actor.number, None)
            barrier.seen[actor.number] = (barrier.phases, actor.clock, site)

    def passed_by(self, key: Hashable, actor: Actor) -> None:
        """A wait that was satisfied, by somebody whom it does not concern."""
        if key in self._barriers:
            self._barriers[key].waiting.pop(actor.number, None)

    def cta_done(self, cta: CTA) -> None:
        """No transaction may be left over; an expect_tx whose copy never began and that nobody awaits is harmless.

        (A pipeline's producer tail arms the next stage and ends.)
        """
        for key in [k for k in self._barriers if isinstance(k, tuple) and k[1] == cta.number]:
            offset = key[2]
            word, poison = cta.shared.words.load_word(offset)
            followed = self._barriers.pop(key)
            try:
                barrier = None if poison else MBarrier.decode(word)
            except BarrierError:  # overwritten by data
                barrier = None
            if barrier is not None and barrier.tx and (followed.arrivals > 1 or followed.waiting):
                text = f"an mbarrier ends with a transaction count of {barrier.tx}: expect_tx and the bytes copied do not match"
                self._report(("tx", offset), Finding("barrier", text, self._places.shared(cta, offset)))
