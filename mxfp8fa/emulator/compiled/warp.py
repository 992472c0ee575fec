"""A warp whose registers lie in one block of memory and whose hot instructions run as compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.compiled.engine import Engine, engine_of
from mxfp8fa.emulator.compiled.layout import RegisterRows, RegisterShadows
from mxfp8fa.emulator.compiled.multiply import SCRATCH_WORDS
from mxfp8fa.emulator.compiled.runtime import Stop, dispatcher
from mxfp8fa.emulator.compiled.state import STATE_WORDS, State
from mxfp8fa.emulator.machine.cluster import ARRIVAL_WARP_SHIFT
from mxfp8fa.emulator.machine.memory import Range
from mxfp8fa.emulator.machine.warp import BLOCKED, FULL, YIELD, Group, Warp, lanes_of
from mxfp8fa.emulator.machine.watch import Watch
from mxfp8fa.layouts.tmem import PARTITION_LANES

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.program import Program

NEVER = 1 << 62
MOVED = {
    State.SHARED_LOAD: "shared load",
    State.SHARED_STORE: "shared store",
    State.GLOBAL_LOAD: "global load",
    State.GLOBAL_STORE: "global store",
    State.TENSOR_LOAD: "tensor load",
    State.TENSOR_STORE: "tensor store",
    State.PARAMETER_LOAD: "param load",
}


class CompiledWarp(Warp):
    """As `Warp`; registers are rows, and nodes with a function run without Python."""

    def __init__(self, cta: CTA, index: int, bits: int, program: Program):
        super().__init__(cta, index, bits, program)
        self.engine: Engine = engine_of(program)
        self.rows = RegisterRows(self.engine.layout, cta.rank)
        self.shadows = RegisterShadows(self.engine.layout)
        self.regs, self.shadow = self.rows, self.shadows  # type: ignore[assignment]
        words = np.zeros(STATE_WORDS, np.int64)
        self._describe(words)
        self._state_address = words.ctypes.data
        self._state = words.data
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
        if machine.scratch is None:
            machine.scratch = np.zeros(SCRATCH_WORDS)
        words[State.MEANINGS], words[State.SCRATCH] = self.engine.products.table.ctypes.data, machine.scratch.ctypes.data
        words[State.WARP_MARK] = (self.index + 1) << ARRIVAL_WARP_SHIFT

    def write(self, register: int, value: np.ndarray, bits: int, shadow: np.ndarray | None = None) -> None:
        """Write the lanes in bits; the others keep value and shadow."""
        if bits == FULL:
            self.rows[register] = value
            self.shadows[register] = shadow
            return
        np.copyto(self.rows.row(register), value, where=lanes_of(bits))
        self.shadows.merge(register, shadow, bits)

    def run(self, budget: int) -> int:
        """As `Warp.run`; instructions with compiled code run in it."""
        self._steps = 0
        executed = super().run(budget)
        self.engine.stepped(self._steps)
        if not self.groups:
            self._count_bytes()
        return executed

    def signature(self) -> Any:
        """As `Warp.signature`."""
        groups = tuple((g.pc, g.bits, g.wait is None) for g in self.groups)
        return groups, hash(self.rows.memory.tobytes())

    def _execute(self, left: int) -> int:
        """Execute until nothing here can run or the turn is over; returns what is left of it (see `Warp.run`)."""
        program, ready, regions = self.program, self.engine.ready, self.engine.regions
        steps, counts, interior = program.steps, program.counts, program.interior
        while self.groups and self.group.wait is None:
            group = self.group
            pc = group.pc
            if left <= 0 and not interior[pc]:
                break
            if ready[pc] and not group.timed_out and (not self.pending or self._prepare(pc)):
                executed, step_next = self._run_compiled(group, left)
                left -= executed
                if not step_next or self.group is not group:
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

    def _run_compiled(self, group: Group, left: int) -> tuple[int, bool]:
        """Run compiled code from the group's instruction; returns instructions executed, and whether a step is next."""
        state = self._state
        if self.pending:  # later regions may name registers of loads that are still to be delivered
            left = 1
        state[State.PC], state[State.MASK], state[State.LEFT], state[State.LIVE] = group.pc, group.bits, left, self.live
        state[State.STOPS] = state[State.WAITING] = 0
        if len(self.groups) > 1:
            self._set_stops(group)
        if not state[State.PRODUCTS] and self.machine.tcgen05_group == "cta_group::1":
            state[State.PRODUCTS] = self._products_here
        if self._range is not self.machine.memory.last:
            self._set_range(self.machine.memory.last)
        why = self._dispatch(self._state_address)
        executed = left - state[State.LEFT]
        if state[State.EPOCH]:
            self._publish()
        self.executed += executed
        group.pc = state[State.PC]
        if len(self.groups) > 1:
            self._choose()
        return executed, why == Stop.STEP

    def _set_range(self, found: Range | None) -> None:
        """The range of global memory that compiled code may use."""
        self._range, state = found, self._state
        if found is not None:
            state[State.GLOBAL_FROM], state[State.GLOBAL_END] = found.address, found.end
            state[State.GLOBAL_WRITABLE] = found.writable

    def _publish(self) -> None:
        """Tell the machine what compiled code changed, and wake who waits for it."""
        state = self._state
        self.machine.epoch += state[State.EPOCH]
        state[State.EPOCH] = 0
        for i in range(state[State.WOKEN]):
            self.machine.wake(("mbarrier", self.cta.number, state[State.WOKEN_AT + i]))
        state[State.WOKEN] = 0

    def _count_bytes(self) -> None:
        """Add the bytes that compiled code moved to the machine's."""
        for word, kind in MOVED.items():
            if self._state[word]:
                self.machine.count_bytes(kind, self._state[word])
                self._state[word] = 0

    def _set_stops(self, group: Group) -> None:
        """Where this group must stop because of the warp's others: where it meets one, or another one comes first."""
        state, others = self._state, [g for g in self.groups if g is not group]
        state[State.STOPS], state[State.WAITING] = len(others), sum(g.wait is not None for g in others)
        for i, other in enumerate(others):
            state[State.STOP_AT + i] = other.pc
        ahead = [g.pc for g in others if g.wait is None]
        state[State.STOP_FROM] = NEVER if self._favoured is group or not ahead else min(ahead)
