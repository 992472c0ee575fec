"""A warp whose registers lie in one block of memory and whose hot instructions run as compiled code."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.compiled.copies import Copies
from mxfp8fa.emulator.compiled.engine import Engine, engine_of
from mxfp8fa.emulator.compiled.layout import RegisterRows, RegisterShadows
from mxfp8fa.emulator.compiled.multiply import SCRATCH_WORDS
from mxfp8fa.emulator.compiled.runtime import Stop, dispatcher
from mxfp8fa.emulator.compiled.state import NEVER, STATE_WORDS, Blocked, Mode, State
from mxfp8fa.emulator.isa import mbarriers
from mxfp8fa.emulator.machine.barriers import arrival_mark
from mxfp8fa.emulator.machine.memory import Range
from mxfp8fa.emulator.machine.warp import BLOCKED, FULL, YIELD, Group, Warp, lanes_of
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.layouts.tmem import PARTITION_LANES

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.program import Program

MOVED = {
    State.SHARED_LOAD: "shared load",
    State.SHARED_STORE: "shared store",
    State.GLOBAL_LOAD: "global load",
    State.GLOBAL_STORE: "global store",
    State.TENSOR_LOAD: "tensor load",
    State.TENSOR_STORE: "tensor store",
    State.PARAMETER_LOAD: "param load",
}


@dataclass
class Workspace:
    """What the warps of a launch share.

    Attributes:
        scratch: operands of a product while it is made.
        spare_registers: memory of warps that have exited.
        copies: tensor maps and valid memory, if compiled code may load by itself.
    """

    scratch: np.ndarray = field(default_factory=lambda: np.zeros(SCRATCH_WORDS))
    spare_registers: list[np.ndarray] = field(default_factory=list)
    copies: Copies | None = None


class CompiledWarp(Warp):
    """As `Warp`; registers are rows, and nodes with a function run without Python."""

    def __init__(self, cta: CTA, index: int, bits: int, program: Program):
        super().__init__(cta, index, bits, program)
        self.engine: Engine = engine_of(program)
        self.workspace: Workspace = self.machine.evaluator.workspace  # type: ignore[attr-defined]
        spare = self.workspace.spare_registers
        self.rows = RegisterRows(self.engine.layout, cta.rank, spare.pop() if spare else None)
        self.shadows = RegisterShadows(self.engine.layout)
        self.regs, self.shadow = self.rows, self.shadows  # type: ignore[assignment]
        words = np.zeros(STATE_WORDS, np.int64)
        self._describe(words)
        self.state_address = words.ctypes.data
        self.state = words.data
        self._dispatch = dispatcher()
        self._range: Range | None = None
        self._steps = 0  # Python steps of this turn
        options = self.machine.options
        self._products_here = options.schedule == "eager" and options.accumulate == "float32"

    def _describe(self, words: np.ndarray) -> None:
        """Fill the state with what stays the same."""
        cta, machine = self.cta, self.machine
        words[State.REGISTERS], words[State.POISON] = self.rows.address, self.shadows.address
        words[State.NODES], words[State.RANK] = self.engine.nodes.ctypes.data, cta.rank
        options = machine.options
        words[State.DIRECT] = type(machine.watch) is Watch
        words[State.EAGER] = options.schedule == "eager" and options.wait_ld != "required"
        shared, tensor = cta.shared.words, cta.tensor
        words[State.SHARED], words[State.SHARED_SHADOW] = shared.data_address, shared.shadow_address
        words[State.SHARED_END] = shared.size_bytes
        words[State.TENSOR], words[State.TENSOR_SHADOW] = tensor.data_address, tensor.shadow_address
        words[State.TENSOR_OWNED] = tensor.owned.ctypes.data
        words[State.FIRST_LANE] = PARTITION_LANES * (self.index % 4)
        words[State.ARRIVALS] = cta.arrivals.ctypes.data
        words[State.MEANINGS] = self.engine.products.table.ctypes.data
        words[State.SCRATCH] = self.workspace.scratch.ctypes.data
        words[State.WARP_MARK] = arrival_mark(self.index, 0)
        if (copies := self.workspace.copies) is not None:
            words[State.MAPS], ranges = copies.table.ctypes.data, copies.ranges
            words[State.RANGES], words[State.RANGE_COUNT] = ranges.ctypes.data, len(ranges)
        words[State.BARRIERS], words[State.CTA] = cta.barrier_words.ctypes.data, cta.number
        words[State.THREADS], words[State.TOKEN], words[State.SPIN] = cta.threads_rounded, -1, -1

    def write(self, register: int, value: np.ndarray, bits: int, shadow: np.ndarray | None = None) -> None:
        """Write the lanes in bits; the others keep value and shadow."""
        if bits == FULL:
            self.rows[register] = value
            self.shadows[register] = shadow
            return
        np.copyto(self.rows.row(register), value, where=lanes_of(bits))
        self.shadows.merge(register, shadow, bits)

    def run(self, budget: int, left: int | None = None) -> int:
        """As `Warp.run`; instructions with compiled code run in it."""
        self._steps = 0
        executed = super().run(budget, left)
        self.engine.stepped(self._steps)
        if not self.groups:
            self._count_bytes()
        return executed

    @property
    def waits(self) -> bool:
        """As `Warp.waits`."""
        return self.state[State.BLOCKED] != Blocked.NOTHING or all(g.wait is not None for g in self.groups)

    def retired(self) -> None:
        """As `Warp.retired`; another warp takes the memory."""
        self.workspace.spare_registers.append(self.rows.memory)

    def signature(self) -> Any:
        """As `Warp.signature`."""
        groups = tuple((g.pc, g.bits, g.wait is None) for g in self.groups)
        return groups, hash(self.rows.memory.tobytes())

    def _execute(self, left: int) -> int:
        """Execute until nothing here can run or the turn is over; returns what is left of it (see `Warp.run`)."""
        program, ready, regions = self.program, self.engine.ready, self.engine.regions
        steps, counts, interior = program.steps, program.counts, program.interior
        while self.groups and not self.state[State.BLOCKED] and self.group.wait is None:
            group = self.group
            pc = group.pc
            if left <= 0 and not interior[pc]:
                break
            if ready[pc] and not group.timed_out and group.token is None and (not self.pending or self._prepare(pc)):
                executed, why = self._run_compiled(group, left)
                left -= executed
                if why == Stop.BLOCKED:
                    break
                met = why == Stop.GROUP and not executed  # and stays apart: it waits in the middle of this instruction
                if (why != Stop.STEP and not met) or self.group is not group:
                    continue
                pc = group.pc
                if left <= 0 and not interior[pc]:
                    break
            if pc in regions and not ready[pc]:
                self.engine.heated(regions[pc])
            if self.pending:
                self._settle(pc)
            counts[pc] += 1
            left -= 1
            self.executed += 1
            self._steps += 1
            outcome = steps[pc](self, group.bits)
            if outcome is None:
                group.pc = pc + 1
                if len(self.groups) > 1:
                    self._choose()
            elif outcome is BLOCKED:
                counts[pc] -= 1
                self._choose()
            elif outcome is YIELD:
                group.pc = pc + 1
                self._choose()
                break
        return left

    def _prepare(self, pc: int) -> bool:
        """With late loads pending: deliver those that the region at pc names; whether it may then run compiled."""
        if self.machine.options.wait_ld == "required":
            return False
        self._deliver(self.engine.named_until_boundary(pc))
        return True

    def _run_compiled(self, group: Group, left: int) -> tuple[int, Stop]:
        """Run compiled code from the group's instruction; returns instructions executed, and why it came back."""
        if self.pending:  # later regions may name registers of loads that are still to be delivered
            left = 1
        self.write_groups()
        self.state[State.LEFT] = left
        self.machine.enter_compiled()
        self.prepare()
        why = Stop(self._dispatch(self.state_address))
        self.read_groups()
        executed = left - self.state[State.LEFT]
        self.executed += executed
        self._publish()
        return executed, why

    def prepare(self) -> None:
        """Tell compiled code what may have changed since it ran last."""
        state = self.state
        if not state[State.PRODUCTS] and self.machine.tcgen05_group == "cta_group::1":
            state[State.PRODUCTS] = self._products_here
        if self._range is not self.machine.memory.last:
            self._set_range(self.machine.memory.last)

    # -- groups ---------------------------------------------------------------------------------------------------------

    def write_groups(self) -> None:
        """Groups to the state."""
        state, group = self.state, self.group
        state[State.PC], state[State.MASK], state[State.LIVE] = group.pc, group.bits, self.live
        others = [g for g in self.groups if g is not group]
        state[State.STOPS] = len(others)
        if not others:
            state[State.APART] = 0
            return
        for i, other in enumerate(others):
            state[State.STOP_AT + i], state[State.STOP_LANES + i] = other.pc, other.bits
        state[State.APART] = self._favoured is not None or any(
            g.wait is not None or g.token is not None or g.timed_out for g in self.groups
        )
        ahead = [g.pc for g in others if g.wait is None]
        state[State.STOP_FROM] = NEVER if self._favoured is group or not ahead else min(ahead)

    def read_groups(self) -> None:
        """Groups from the state, where compiled code may have changed them."""
        state, group = self.state, self.group
        group.pc, group.bits = state[State.PC], state[State.MASK]
        if state[State.TOKEN] >= 0 and not state[State.BLOCKED]:
            group.token, state[State.TOKEN] = state[State.TOKEN], -1
        if state[State.APART]:
            self._choose()
        elif state[State.STOPS] or len(self.groups) > 1:
            others = [Group(state[State.STOP_AT + i], state[State.STOP_LANES + i]) for i in range(state[State.STOPS])]
            self.groups = sorted([group, *others], key=lambda g: g.pc)

    def mode(self) -> Mode:
        """Who is to run this warp; if compiled code, the state is ready for it."""
        if self.state[State.BLOCKED]:
            return Mode.READY
        if all(g.wait is not None for g in self.groups):
            return Mode.WAITS
        if self.spinning or self.polls or self.quiet or self.spin_signatures or self.pending:
            return Mode.PYTHON
        self.write_groups()
        if self.state[State.APART] or self.group.timed_out or self.group.token is not None:
            return Mode.PYTHON
        self.prepare()
        return Mode.READY

    def show_wait(self) -> None:
        """What compiled code knows goes to the groups."""
        state = self.state
        if not self.groups:
            return
        self.read_groups()
        kind, key = state[State.BLOCKED], state[State.KEY]
        state[State.BLOCKED] = Blocked.NOTHING
        if kind == Blocked.MBARRIER:
            what = mbarriers.waits_for_parity(mbarriers.read(self.cta, key).phase)
            text = partial(mbarriers.waiting_text, self.cta, key, what)
            self.block(mbarriers.key(self.cta, key), text, may_time_out=True)
        elif kind == Blocked.NAMED:
            barrier = self.cta.barriers[key]
            self.group.token, state[State.TOKEN] = state[State.TOKEN], -1
            self.block(barrier.key, lambda: str(barrier))

    def _set_range(self, found: Range | None) -> None:
        """The range of global memory that compiled code may use."""
        self._range, state = found, self.state
        if found is not None:
            state[State.GLOBAL_FROM], state[State.GLOBAL_END] = found.address, found.end
            state[State.GLOBAL_WRITABLE] = found.writable

    def _publish(self) -> None:
        """Tell the machine what compiled code changed, and wake who waits for it in Python's records."""
        state = self.state
        self.machine.epoch += state[State.EPOCH]
        state[State.EPOCH] = 0
        self.publish_woken()

    def publish_woken(self) -> None:
        """Wake the groups that wait for phases which compiled code completed."""
        state = self.state
        for i in range(state[State.WOKEN]):
            key = state[State.WOKEN_AT + i]
            self.machine.wake(("mbarrier", self.cta.number, key) if key >= 0 else ("barrier", self.cta.number, -1 - key))
        state[State.WOKEN] = 0

    def _count_bytes(self) -> None:
        """Add the bytes that compiled code moved to the machine's."""
        for word, kind in MOVED.items():
            if self.state[word]:
                self.machine.count_bytes(kind, self.state[word])
                self.state[word] = 0
