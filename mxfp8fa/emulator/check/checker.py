"""The race checker: a `Watch` that keeps vector clocks and the history of every memory cell.

Granularity: bytes of shared and global memory (words, as long as whole words are accessed); 16 lanes x 1 column of tensor
memory. The threads of a warp are one actor (races within a warp are not seen). Reports are collected, never raised: the run
goes on.

Order that counts: program order of a warp; arrive and complete_tx (release) to a successful wait (acquire); named and
cluster barriers; tcgen05.commit; wait::ld, wait::st or a register dependency; bulk and cp.async groups; issue order in a
tensor pipe; at one address a release (st, red, atom; or a relaxed one after a fence) to an acquire (or a relaxed or volatile
read before a fence); griddepcontrol.wait. fence.proxy.async makes what its warp knows visible to the asynchronous proxy (PTX
ISA, "Causality order": across proxies, order needs a proxy fence); fence.mbarrier_init what it initialised.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mxfp8fa.emulator.check.actors import Actors
from mxfp8fa.emulator.check.allowed import reason_to_allow
from mxfp8fa.emulator.check.clocks import (
    GLOBAL,
    NOTHING,
    ORDER,
    PENDING,
    ROWS,
    SHARED,
    TENSOR,
    Actor,
    Knowledge,
    Meetings,
)  # fmt: skip
from mxfp8fa.emulator.check.findings import Finding
from mxfp8fa.emulator.check.initialised import Initialised
from mxfp8fa.emulator.check.places import Places
from mxfp8fa.emulator.check.protocol import Protocol
from mxfp8fa.emulator.check.shadow import WORD_BYTES, Access, Cells, Conflict, Shadow
from mxfp8fa.emulator.check.sites import Side, Sites
from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.emulator.names import Names, agent_name
from mxfp8fa.layouts.tmem import COLUMNS, LANES

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.asynchronous import AsyncOp
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.warp import Warp

GROUP_LANES = 16  # an M = 64 accumulator uses 16 of a partition's 32 lanes
PAGE_BYTES = 4096
IN_ORDER = ("tensor", "bulk store", "cp.async", "tcgen05.st")  # queues whose operations follow one another
GENERIC = ("cp.async", "tcgen05.st", "st.async", "red.async")  # agents that use the generic proxy
_PREDECESSOR = "the launch before"


class Checker(Watch):
    """Happens-before over one launch.

    Args:
        assume_mma_cp_order: tcgen05.mma before a later tcgen05.cp of one thread counts as ordered. Real kernels rely on
            it; the ISA does not promise it.
        assume_tcgen05_order: barriers and mbarriers order tcgen05 instructions of different threads by themselves. The ISA
            asks for tcgen05.fence::before_thread_sync and ::after_thread_sync around them; kernels of today have neither.
        assume_read_order: a thread's read is ordered before the asynchronous write that overwrites it by a barrier alone.
            The ISA asks for fence.proxy.async there too; rings that TMA fills and threads read have none.
        names: roles, barriers and buffers, for reports.
        predecessor: the checker of the launch before, if this one may overlap it (programmatic dependent launch).
    """

    watching = True

    def __init__(
        self, *, assume_mma_cp_order: bool = True, assume_tcgen05_order: bool = True, assume_read_order: bool = True,
        names: Names | None = None, predecessor: Checker | None = None,
    ):  # fmt: skip
        self._assume_mma_cp_order = assume_mma_cp_order
        self._assume_tcgen05_order = assume_tcgen05_order
        self._assume_read_order = assume_read_order
        self._places = Places(names or Names())
        self._actors = Actors()
        self._current = Actor(0, "nobody", False)
        self._stack: list[tuple[Actor, Warp | None, AsyncOp | None]] = []
        self._warp: Warp | None = None
        self._op: AsyncOp | None = None
        self._meetings = Meetings()
        self._sites: Sites = Sites(predecessor._sites if predecessor is not None else None)
        self._shared: dict[int, Shadow] = {}
        self._tensor: dict[int, Shadow] = {}
        self._pages: dict[int, Shadow] = {}
        self._found: dict[Hashable, Finding] = {}
        self._protocol = Protocol(self._report, self._places, self._sites)
        self._initialised = Initialised()
        self._predecessor: Actor | None = None
        if predecessor is not None:
            self._follow(predecessor)

    def findings(self) -> list[Finding]:
        """What was found and is not allowed, in the order of first sight."""
        return [f for f in self._found.values() if not f.allowed]

    def allowed(self) -> list[Finding]:
        """What was found and is known to be benign; `allowed` of each says why."""
        return [f for f in self._found.values() if f.allowed]

    # -- actors -------------------------------------------------------------------------------------------------------

    def _follow(self, before: Checker) -> None:
        """Everything that the launch before did is done by one actor, whom nobody knows before griddepcontrol.wait."""
        self._predecessor = self._actors.begin("predecessor", _PREDECESSOR, asynchronous=True)
        self._pages = {page: shadow.by(self._predecessor) for page, shadow in before._pages.items()}

    def run_warp(self, warp: Warp) -> None:
        """A warp acts."""
        self._warp, self._op = warp, None
        key = ("warp", warp.cta.index, warp.index)
        if key not in self._actors:
            name, cluster = self._places.warp(warp), warp.cta.cluster.number
            self._actors.begin(key, name, asynchronous=False, cluster=cluster).sites = self._sites.of_warp(name, warp)
        self._current = self._actors[key]

    def issued(self, op: AsyncOp) -> None:
        """Everything up to the issue is known to the operation."""
        op.clock = self._current.known
        cluster = self._warp.cta.cluster.number if self._warp is not None else None
        if cluster is None and self._op is not None:
            cluster = self._actors.cluster_of(self._agent(self._op))
        self._actors.issued(self._agent(op), cluster)
        self._current.advance()

    def _agent(self, op: AsyncOp) -> Hashable:
        """Who carries the operation out. Without `assume_mma_cp_order` a tensor pipe is three agents."""
        if self._assume_mma_cp_order or _kind(op) != "tensor":
            return "agent", op.agent or op.queue
        return "agent", (op.queue, {"tcgen05.mma": "mma", "tcgen05.commit": "commit"}.get(op.what, "cp"))

    def begin(self, op: AsyncOp) -> None:
        """The operation's agent acts."""
        self._stack.append((self._current, self._warp, self._op))
        kind, key = _kind(op), self._agent(op)
        learnt: Knowledge = op.clock
        if kind == "tensor" and not self._assume_mma_cp_order:
            learnt = self._learnt_by_pipe(op, learnt)
        if key not in self._actors:
            self._actors.begin(key, agent_name(op.queue), asynchronous=kind not in GENERIC)
        actor = self._actors[key]
        if kind in IN_ORDER:
            actor.learn(learnt)
        else:
            actor.forget_but(learnt)
        actor.advance()
        self._current, self._warp, self._op = actor, None, op

    def _learnt_by_pipe(self, op: AsyncOp, learnt: Knowledge) -> Knowledge:
        """Without the assumption: cp knows no earlier mma; mma knows earlier cp; commit knows both."""
        others = {"tcgen05.mma": ["cp"], "tcgen05.commit": ["mma", "cp"]}.get(op.what, [])
        for other in others:
            key = ("agent", (op.queue, other))
            if key in self._actors:
                learnt = learnt.join(self._actors[key].known)
        return learnt

    def end(self, op: AsyncOp) -> None:
        """The operation's knowledge stays with it for those who wait for it."""
        op.clock, key = self._current.known, self._agent(op)
        if self._actors.completed(key):
            self._retire(key)
        self._current, self._warp, self._op = self._stack.pop()

    def waited(self, op: AsyncOp) -> None:
        """The warp learns what the operation did."""
        if op.done and op.clock is not None:
            self._current.learn(op.clock)

    # -- synchronisation ----------------------------------------------------------------------------------------------

    def release(self, key: Hashable, *, relaxed: bool = False) -> None:
        """Give what the actor knows to the object's running phase."""
        meeting = self._meetings[key]
        given = self._current.fenced if relaxed else self._current.known
        if not self._assume_tcgen05_order and self._warp is not None:  # tcgen05.commit implies before_thread_sync
            given = given.replaced(TENSOR, self._current.before)
        meeting.gathering = meeting.gathering.join(given)
        self._current.advance()
        self._protocol.arrived(key)

    def publish(self, key: Hashable) -> None:
        """The phase's knowledge becomes available."""
        meeting = self._meetings[key]
        meeting.publish()
        self._protocol.completed(key, meeting.published, lambda: self._places.barrier(key))

    def acquire(self, key: Hashable) -> None:
        """Take what the latest completed phase published."""
        self._learn_by_thread(self._meetings[key].published)
        self._protocol.observed(key, self._current, self._site())

    def _learn_by_thread(self, published: Knowledge) -> None:
        """Acquire; tcgen05 instructions may have to wait for tcgen05.fence::after_thread_sync."""
        actor = self._current
        if not self._assume_tcgen05_order and self._warp is not None:
            actor.after = Knowledge(np.zeros((ROWS, 1), np.int32)).raised(ORDER, actor.after).raised(
                ORDER, published.rows[TENSOR]
            ).vector  # fmt: skip
            published = published.replaced(TENSOR, np.zeros(1, np.int32))
        actor.learn(published)

    def fence(self, kind: str) -> None:
        """Proxy fences make what the warp knows visible; any fence lets relaxed releases carry it.

        kind: "proxy.async" (also ".global", ".shared::cta", ...), "mbarrier_init", "tcgen05.fence::before_thread_sync",
        "tcgen05.fence::after_thread_sync", "griddepcontrol.wait"; others order threads only.
        """
        actor = self._current
        if kind.startswith("proxy.async"):
            for row, space in ((SHARED, "shared"), (GLOBAL, "global")):
                if kind == "proxy.async" or space in kind:
                    actor.known = actor.known.raised(row, actor.known.vector)
        if kind == "mbarrier_init" or (kind.startswith("proxy.async") and "global" not in kind):
            self._initialised.fenced(actor)
        if kind == "tcgen05.fence::before_thread_sync":
            actor.before = actor.known.rows[TENSOR]
        elif kind == "tcgen05.fence::after_thread_sync":
            actor.known = actor.known.raised(TENSOR, actor.after)
        elif kind == "griddepcontrol.wait" and self._predecessor is not None:
            actor.learn(self._predecessor.known)
        elif kind == "threads":
            actor.learn(actor.observed)
        actor.fenced = actor.known
        actor.advance()  # what it does from here comes after the fence

    def barrier_initialised(self, cta: CTA, offset: int) -> None:
        """A write of the barrier's eight bytes."""
        self._protocol.initialised(cta, offset, self._here())
        self.shared(cta, slice(offset, offset + 8), 8, write=True)
        self._initialised.begins(cta, offset, self._current, self._here())

    def barrier_used(self, cta: CTA, offset: int) -> None:
        """The use must come after the initialisation; the asynchronous proxy must also see it."""
        shadow = self._shared_shadow(cta)
        unordered = False
        for conflict in shadow.conflicts(shadow.cells(slice(offset, offset + 8), 8), self._current, Access(write=False)):
            unordered = True
            self._race(conflict, self._places.shared(cta, offset), "an mbarrier is used", write=False)
        if self._current.asynchronous and not unordered:
            by = self._initialised.hidden_from(cta, offset, self._current)
            if by is not None:
                text = (
                    "an mbarrier is initialised and then used by the asynchronous proxy: ordered, but not visible to it "
                    "(fence.mbarrier_init or fence.proxy.async is missing between them)"
                )
                finding = Finding("visibility", text, self._places.shared(cta, offset), by, self._here())
                self._report(("init", by[1].ptx_line), finding)

    def barrier_split(self, cta: CTA, offset: int) -> None:
        """Lanes of one arrival fell into two phases: the count fits no number of warps that arrive."""
        here = self._here()
        text = "the arrivals of one warp-instruction fall into two phases of an mbarrier: its count does not fit"
        self._report(
            ("split", here[1].ptx_line), Finding("barrier", text, self._places.shared(cta, offset), second=here)
        )

    def barrier_missed(self, cta: CTA, offset: int, parity: int) -> None:
        """A warp waits: it must not miss the phase."""
        key = ("mbarrier", cta.number, offset)
        self._protocol.missed(key, self._current.number, self._here(), self._places.shared(cta, offset))

    # -- accesses -----------------------------------------------------------------------------------------------------

    def _conflicts(self, shadow: Shadow, cells: Cells, access: Access) -> Iterator[Conflict]:
        """Earlier accesses that the present one conflicts with."""
        return shadow.conflicts(cells, self._current, access)

    def shared(
        self, cta: CTA, offsets: np.ndarray | slice, size_bytes: int, *, write: bool, atomic: bool = False
    ) -> None:
        """Check and remember an access to shared memory."""
        shadow = self._shared_shadow(cta)
        cells = shadow.cells(offsets, size_bytes)
        for conflict in self._conflicts(shadow, cells, self._access(SHARED, write=write, atomic=atomic)):
            self._race(conflict, self._places.shared(cta, shadow.byte_of(conflict.cell)), "shared memory", write=write)
        shadow.record(cells, self._current, self._site(), self._current.clock, write=write, atomic=atomic)
        if atomic and isinstance(offsets, np.ndarray):
            self._synchronise(("shared atomic", cta.number), offsets, write=write)

    def memory(self, addresses: np.ndarray, size_bytes: int, *, write: bool, atomic: bool = False) -> None:
        """Check and remember an access to global memory."""
        access = self._access(GLOBAL, write=write, atomic=atomic)
        where = addresses.reshape(-1).astype(np.int64)
        if PAGE_BYTES % size_bytes:  # 12 bytes (TMA's 16 elements of 6 bits) may lie in two pages
            where = (where[:, None] + np.arange(0, size_bytes, WORD_BYTES)).reshape(-1)
            size_bytes = WORD_BYTES
        pages = where // PAGE_BYTES
        for page in np.unique(pages).tolist():
            shadow = self._pages.get(page)
            if shadow is None:
                shadow = self._pages[page] = Shadow(PAGE_BYTES // WORD_BYTES)
            cells = shadow.cells(where[pages == page] - page * PAGE_BYTES, size_bytes)
            for conflict in self._conflicts(shadow, cells, access):
                place = self._places.memory(page * PAGE_BYTES + shadow.byte_of(conflict.cell))
                self._race(conflict, place, "global memory", write=write)
            shadow.record(cells, self._current, self._site(), self._current.clock, write=write, atomic=atomic)
            self._current.pages.add(page)
        if atomic:
            self._synchronise(("global atomic",), addresses, write=write)

    def _access(self, visible: int, *, write: bool, atomic: bool) -> Access:
        return Access(write, atomic, visible=visible, reads_too=not self._assume_read_order)

    def _synchronise(self, space: tuple[Hashable, ...], addresses: np.ndarray, *, write: bool) -> None:
        """What a strong access teaches by itself (.acquire, .release) or together with a fence (.relaxed, .volatile)."""
        if self._warp is None:  # bulk and asynchronous reductions are relaxed, and agents have no fences
            return
        actor, words = self._current, self._warp.program.instructions[self._warp.group.pc].qualifiers
        given = actor.known if "release" in words or "acq_rel" in words else actor.fenced
        acquires = "acquire" in words or "acq_rel" in words
        for address in np.unique(addresses).tolist():
            meeting = self._meetings[space, address]
            if not write:
                actor.observed = actor.observed.join(meeting.published)
            elif given is not NOTHING:
                meeting.published = meeting.published.join(given)
        if write and given is not NOTHING:
            if space == ("global atomic",):
                self._actors.told(given.vector)
            actor.advance()
        if acquires:
            actor.learn(actor.observed)

    def tensor(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, *, write: bool) -> None:
        """Check and remember an access to tensor memory; a warp's own reads were checked when they began."""
        if not write and self._op is None:
            cells, shadow = self._tensor_cells(cta, lanes, columns)
            shadow.finish_read(cells, self._current)
            return
        self._tensor_access(cta, lanes, columns, self._current.clock, write=write)

    def tensor_pending(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray) -> None:
        """A tcgen05.ld reads from now until it is waited for: until then its clock is one that nobody knows."""
        self._tensor_access(cta, lanes, columns, int(PENDING), write=False)

    def _tensor_cells(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, Shadow]:
        touched = np.zeros((LANES // GROUP_LANES, COLUMNS), bool)
        touched[lanes // GROUP_LANES, columns] = True
        return np.flatnonzero(touched), self._tensor.setdefault(cta.number, Shadow(touched.size))

    def _tensor_access(self, cta: CTA, lanes: np.ndarray, columns: np.ndarray, clock: int, *, write: bool) -> None:
        cells, shadow = self._tensor_cells(cta, lanes, columns)
        order = ORDER if self._assume_tcgen05_order else TENSOR
        for conflict in self._conflicts(shadow, cells, Access(write, order=order)):
            lane, column = conflict.cell // COLUMNS * GROUP_LANES, conflict.cell % COLUMNS
            fenced = order == TENSOR and conflict.clock <= self._current.known.entry(conflict.actor)
            self._race(
                conflict, self._places.tensor(cta, lane, column), "tensor memory", write=write, without_fence=fenced
            )
        shadow.record(cells, self._current, self._site(), clock, write=write, atomic=False)

    def _shared_shadow(self, cta: CTA) -> Shadow:
        if cta.number not in self._shared:
            self._shared[cta.number] = Shadow((SHARED_BASE + cta.shared.size_bytes) // WORD_BYTES + 1)
        return self._shared[cta.number]

    # -- reports ------------------------------------------------------------------------------------------------------

    def _here(self) -> Side:
        """Who acts, and where."""
        if self._op is not None:
            return self._current.name, self._op.site
        assert self._warp is not None
        return self._current.name, self._warp.site(self._warp.group.pc)

    def _site(self) -> int:
        """The number of the present site."""
        if self._op is not None:
            return self._sites.of_operation(self._current.name, self._op.site)
        assert self._warp is not None
        return self._current.sites + self._warp.group.pc

    def _race(self, conflict: Conflict, where: str, what: str, *, write: bool, without_fence: bool = False) -> None:
        first, second = self._sites[conflict.site], self._here()
        pair = f"{'write' if conflict.wrote else 'read'} and {'write' if write else 'read'} of {what}"
        kind = "visibility" if conflict.visible_only or without_fence else "race"
        if conflict.visible_only:
            text = f"{pair}: ordered, but not visible to the asynchronous proxy (fence.proxy.async is missing between them)"
        elif without_fence:
            text = f"{pair}: ordered, but not for tcgen05 instructions (tcgen05.fence before or after the barrier is missing)"
        elif self._predecessor is not None and conflict.actor == self._predecessor.number:
            text = f"{pair} are not ordered: the launch before may still run (griddepcontrol.wait is missing)"
            first = _PREDECESSOR, first[1]
        else:
            text = f"{pair} are not ordered"
        key = (kind, first[1].ptx_line, second[1].ptx_line, conflict.wrote, write)
        self._report(key, Finding(kind, text, where, first, second))

    def _report(self, key: Hashable, finding: Finding) -> None:
        if key in self._found:
            self._found[key].count += 1
        else:
            finding.allowed = reason_to_allow(finding)
            self._found[key] = finding

    # -- ends ---------------------------------------------------------------------------------------------------------

    def cta_done(self, cta: CTA) -> None:
        """Nothing asynchronous may still use the CTA's memory; everything allocated must be free."""
        last = Actor(0, "the end of the CTA", False)
        for warp in cta.cluster.warps:
            key = ("warp", warp.cta.index, warp.index)
            if key in self._actors:
                last.learn(self._actors[key].known)
        for shadow, memory in (
            (self._shared.pop(cta.number, None), "shared"),
            (self._tensor.pop(cta.number, None), "tensor"),
        ):
            if shadow is not None:
                self._outstanding(shadow, last, cta, memory)
        self._protocol.cta_done(cta)
        if cta.tensor.allocated:
            columns = sum(cta.tensor.allocated.values())
            self._report(
                ("leak", "tmem"),
                Finding("leak", f"{columns} columns of tensor memory were never deallocated", str(cta)),
            )
        self._meetings.forget(cta.number)
        self._initialised.forget(cta)
        if cta is cta.cluster.ctas[-1]:
            self._meetings.forget(cta.cluster.number)
            for gone in self._actors.end_cluster(cta.cluster.number):
                self._retire(gone)

    def _outstanding(self, shadow: Shadow, last: Actor, cta: CTA, memory: str) -> None:
        """Report asynchronous accesses that no thread of the cluster waited for."""
        for number, wrote in shadow.unordered_sites(last).items():
            actor, site = self._sites[number]
            if not actor.startswith("CTA"):
                text = f"{'a write to' if wrote else 'a read of'} {memory} memory may still be running when the CTA exits"
                self._report(("outstanding", site.ptx_line), Finding("outstanding", text, str(cta), (actor, site)))

    def _retire(self, key: Hashable) -> None:
        """An actor is gone."""
        self._initialised.forget_actor(self._actors.retire(key, self._pages).number)


def _kind(op: AsyncOp) -> Hashable:
    """The kind of agent that carries an operation out."""
    return op.queue[0] if isinstance(op.queue, tuple) else op.queue
