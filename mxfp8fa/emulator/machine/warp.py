"""A warp: 32 threads, their registers, and the groups they have diverged into.

Threads with the same program counter form a `Group`. The warp runs its runnable group with the lowest program counter
and merges groups that meet, which reconverges structured code at the earliest point; a group that has run for a whole
quantum gives way to the next, so threads may wait for threads of their own warp. (The hardware's policy is not
documented beyond that guarantee of progress; no correct program can depend on more.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mxfp8fa.emulator.errors import EmulationError, IllegalOperation, Site

if TYPE_CHECKING:
    from mxfp8fa.emulator.machine.cluster import CTA
    from mxfp8fa.emulator.machine.machine import Machine
    from mxfp8fa.emulator.machine.program import Program

WARP_LANES = 32
FULL = (1 << WARP_LANES) - 1


class Outcome(Enum):
    """What a step tells the warp, other than None (go on with the next instruction)."""

    JUMP = "the step set the group's program counter"
    BLOCKED = "the group waits; run the same instruction again when woken"
    YIELD = "go on, but let other warps run first"


JUMP, BLOCKED, YIELD = Outcome.JUMP, Outcome.BLOCKED, Outcome.YIELD


@lru_cache(maxsize=4096)
def lanes_of(bits: int) -> np.ndarray:
    """The bool mask of a lane bit set."""
    mask = np.unpackbits(np.array([bits], np.uint32).view(np.uint8), bitorder="little").astype(bool)
    mask.flags.writeable = False
    return mask


@lru_cache(maxsize=4096)
def indices_of(bits: int) -> np.ndarray:
    """The lane numbers of a lane bit set, ascending."""
    index = np.nonzero(lanes_of(bits))[0]
    index.flags.writeable = False
    return index


def bits_of(mask: np.ndarray) -> int:
    """The lane bit set of a bool mask."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@dataclass
class Wait:
    """Why a group is blocked.

    Attributes:
        key: identity of the awaited thing; `Machine.wake(key)` makes the group runnable.
        text: what a deadlock report prints, or how to find it then.
        may_time_out: the instruction may give up (mbarrier.try_wait returns false after a time limit).
    """

    key: Any
    text: str | Callable[[], str]
    may_time_out: bool = False

    @property
    def reason(self) -> str:
        """A sentence for a person."""
        return self.text if isinstance(self.text, str) else self.text()


@dataclass(frozen=True)
class Late:
    """What an instruction returns whose result comes later (tcgen05.ld).

    Attributes:
        read: reads the result.
        done: tells an observer that the read is over.
    """

    read: Callable[[], Any]
    done: Callable[[], None]


@dataclass(eq=False)
class Group:
    """Threads of a warp that run together.

    Attributes:
        pc: index of the next instruction.
        bits: the threads, one bit per lane.
        wait: why the group is blocked, or None.
        token: what a blocking instruction remembers between its first execution and its last.
        timed_out: set by the scheduler when a wait that may time out did.
    """

    pc: int
    bits: int
    wait: Wait | None = None
    token: Any = None
    timed_out: bool = False

    @property
    def lanes(self) -> list[int]:
        """Lane numbers."""
        return [i for i in range(WARP_LANES) if self.bits >> i & 1]


class Warp:
    """One warp of a CTA. Registers are lists indexed by register number.

    Attributes:
        regs: 32-lane arrays of raw unsigned bits (bool for predicates); never modified in place.
        executed: instructions of the present turn.
        shadow: None, or an array of the register's dtype whose one bits are poison.
        group: the group that runs now.
    """

    def __init__(self, cta: CTA, index: int, bits: int, program: Program):
        self.cta = cta
        self.index = index
        self.program = program
        self.machine: Machine = cta.machine
        self.number = self.machine.next_number()
        self.start_bits = bits
        self.live = bits
        self.regs: list[np.ndarray] = list(program.blank_registers)
        self.shadow: list[np.ndarray | None] = list(program.blank_shadow)
        self.group = Group(0, bits)
        self.groups = [self.group]
        self._favoured: Group | None = None
        self.instructions = 0
        self.executed = 0
        self.local: Any = None
        self.extra: dict[str, Any] = {}
        self.pending: list[tuple[frozenset[int], Callable[[], None]]] = []
        self._late: set[int] = set()  # registers that are poison until wait::ld, and those they were moved to
        self._late_moves: list[tuple[int, int]] = []  # (pc, threads)
        self.spin_signatures: set[Any] = set()
        self.spin_epoch = -1
        self.spinning = False
        self.polls = False  # whether its latest turns repeated themselves
        self.quiet = 0  # instructions since something that others can see changed by it

    @property
    def done(self) -> bool:
        """Whether every thread has exited."""
        return not self.groups

    @property
    def runnable(self) -> bool:
        """Whether some group can execute an instruction now."""
        return not (self.spinning and self.spin_epoch == self.machine.epoch) and not self.waits

    @property
    def waits(self) -> bool:
        """Whether no thread can go on: all wait, or have exited."""
        return all(g.wait is not None for g in self.groups)

    def retired(self) -> None:
        """The warp's cluster is done: nobody will look at its registers any more."""

    # -- registers ----------------------------------------------------------------------------------------------------

    def write(self, register: int, value: np.ndarray, bits: int, shadow: np.ndarray | None = None) -> None:
        """Write the lanes in bits; the others keep value and shadow."""
        if bits == FULL:
            self.regs[register] = value
            self.shadow[register] = shadow
            return
        mask = lanes_of(bits)
        old = self.shadow[register]
        self.regs[register] = np.where(mask, value, self.regs[register])
        if old is not None or shadow is not None:
            zero = value.dtype.type(0)
            merged = np.where(mask, zero if shadow is None else shadow, zero if old is None else old)
            self.shadow[register] = merged if merged.any() else None

    # -- loads that complete late ---------------------------------------------------------------------------------------

    def defer(self, registers: frozenset[int], deliver: Callable[[], None], done: Callable[[], None]) -> None:
        """A load into `registers` was issued: deliver now (eager), or when a register is named or the load is waited for.

        The addresses it reads may change until then, as they may on the hardware. Under wait_ld="required" the registers
        are poison until the wait; moves of them in between are made good then, because compilers pack registers into
        pairs before the wait.
        """
        options = self.machine.options

        def complete() -> None:
            deliver()
            done()

        if options.wait_ld == "required":
            for register in registers:
                self.write(register, self.regs[register], self.group.bits, ~np.zeros_like(self.regs[register]))
            self.pending.append((frozenset(), complete))
            self._late |= registers
        elif options.schedule == "eager" or (options.schedule == "random" and self.machine.rng.random() < 0.5):
            deliver()
            if self.machine.watch.watching:
                self.pending.append((registers, done))
        else:
            self.pending.append((registers, complete))

    def settle_all(self) -> None:
        """Deliver every late load."""
        pending, self.pending = self.pending, []
        for _, deliver in pending:
            deliver()
        moves, self._late_moves = self._late_moves, []
        self._late.clear()
        for pc, bits in moves:
            self.program.steps[pc](self, bits)

    def _settle(self, pc: int) -> None:
        """Deliver the late loads whose registers instruction pc names."""
        named = self.program.registers_named(pc)
        if self._late & named and self.program.instructions[pc].mnemonic.startswith("mov."):
            self._late |= named
            self._late_moves.append((pc, self.group.bits))
        self._deliver(named)

    def _deliver(self, named: frozenset[int]) -> None:
        """Deliver the late loads of these registers."""
        due = [item for item in self.pending if item[0] & named]
        self.pending = [item for item in self.pending if not item[0] & named]
        for _, deliver in due:
            deliver()

    # -- divergence ---------------------------------------------------------------------------------------------------

    def branch(self, taken: int, target: int) -> Outcome:
        """Send the threads in `taken` to `target`; the rest of the group falls through."""
        group = self.group
        if taken == group.bits:
            group.pc = target
        elif taken:
            rest = Group(group.pc + 1, group.bits & ~taken)
            self.groups.append(rest)
            group.bits, group.pc = taken, target
        else:
            group.pc += 1
        self._choose()
        return JUMP

    def scatter(self, parts: list[tuple[int, int]], rest: int) -> Outcome:
        """Send several sets of threads to targets of their own; `rest` falls through."""
        group = self.group
        self.groups.remove(group)
        self.groups += [Group(target, bits) for target, bits in parts if bits]
        if rest:
            self.groups.append(Group(group.pc + 1, rest))
        self._choose()
        return JUMP

    def retire(self, bits: int) -> Outcome:
        """Threads exit."""
        self.live &= ~bits
        self.group.bits &= ~bits
        if not self.group.bits:
            self.groups.remove(self.group)
        else:
            self.group.pc += 1
        self.cta.on_exit(self, bits)
        for group in self.groups:  # whoever waited for these threads to converge waits no longer
            if group.wait is not None and group.wait.key == ("converge", self.number):
                group.wait = None
        self._choose()
        return JUMP

    def _choose(self) -> None:
        """Merge groups that meet; run the runnable one with the lowest program counter.

        A favoured group that meets another stays favoured, wherever it came from: which one lives on must not depend on
        how often this is called, which is less often where machine code runs.
        """
        if len(self.groups) > 1:
            self.groups.sort(key=lambda g: (g.pc, g is not self._favoured, g.bits & -g.bits))
            merged = [self.groups[0]]
            for g in self.groups[1:]:
                last = merged[-1]
                if g.pc == last.pc and g.token is None and last.token is None:
                    last.bits |= g.bits
                    last.wait = None
                    last.timed_out = False
                else:
                    merged.append(g)
            self.groups = merged
        if len(self.groups) < 2 or self._favoured not in self.groups or self._favoured.wait is not None:
            self._favoured = None
        runnable = (g for g in self.groups if g.wait is None)
        self.group = self._favoured or next(runnable, self.groups[0] if self.groups else self.group)

    def _take_turns(self) -> None:
        """Favour another group for the next quantum: threads that poll must not starve those they wait for."""
        runnable = [g for g in self.groups if g.wait is None]
        if len(runnable) > 1:
            at = runnable.index(self.group) if self.group in runnable else -1
            self._favoured = runnable[(at + 1) % len(runnable)]

    def converged(self, needed: int, what: str) -> bool:
        """Whether every live thread in `needed` is in the running group; if not, block until they arrive.

        `.sync` instructions wait for the threads named by their mask (PTX ISA, "membermask").
        """
        missing = needed & self.live & ~self.group.bits
        if not missing:
            return True
        lanes = [i for i in range(WARP_LANES) if missing >> i & 1]
        self.group.wait = Wait(("converge", self.number), f"{what} waits for lanes {lanes} of its own warp")
        return False

    def members_here(self, bits: int, masks: np.ndarray, what: str) -> bool:
        """`converged` for all threads named by the membermasks of the lanes in `bits`, each of which must name itself.

        PTX ISA: "the behavior is undefined if the executing thread is not in the membermask".
        """
        named = 0
        for lane in indices_of(bits).tolist():  # parts of a warp may use masks of their own
            mine = int(masks[lane])
            if not mine >> lane & 1:
                raise IllegalOperation(
                    f"{what}: lane {lane} executes it but is not in its membermask {mine:#010x}", lane=lane
                )
            named |= mine
        return self.converged(named, what)

    # -- execution ----------------------------------------------------------------------------------------------------

    def run(self, budget: int, left: int | None = None) -> int:
        """Execute until nothing here can run or `budget` instructions are spent; returns the instructions executed.

        A turn ends only at a boundary (`Program.interior`), so a few more instructions than the budget may be executed.
        `left`: of a turn that has begun, what remains of its budget.
        """
        left = budget if left is None else left
        self.executed = budget - left
        self._choose()
        try:
            left = self._execute(left)
        except EmulationError as error:
            if error.site is None:
                error.site = self.site(self.group.pc, error.lane)
            raise
        if left <= 0:
            self._take_turns()
        self.instructions += budget - left
        return budget - left

    def _execute(self, left: int) -> int:
        """Execute until nothing here can run or the turn is over; returns what is left of the budget."""
        steps, counts, interior = self.program.steps, self.program.counts, self.program.interior
        while self.groups and self.group.wait is None:
            group = self.group
            pc = group.pc
            if left <= 0 and not interior[pc]:
                break
            if self.pending:
                self._settle(pc)
            counts[pc] += 1
            left -= 1
            self.executed += 1
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

    def describe(self, pc: int) -> str:
        """An instruction of this warp, for reports."""
        return f"CTA {self.cta.index} warp {self.index} at PTX line {self.program.instructions[pc].ptx_line}"

    def site(self, pc: int, lane: int | None = None) -> Site:
        """Where instruction `pc` of this warp stands."""
        return self.program.site(pc, self.cta.index, self.index, lane)

    def signature(self) -> Any:
        """Program counters and every register: equal signatures with unchanged memory mean an endless loop."""
        groups = tuple((g.pc, g.bits, g.wait is None) for g in self.groups)
        return groups, hash(tuple(r.tobytes() for r in self.regs))

    def block(self, key: Any, reason: str | Callable[[], str], *, may_time_out: bool = False) -> Outcome:
        """Block the running group until `key` is woken; what it waits for is in `reason`."""
        self.group.wait = Wait(key, reason, may_time_out)
        self.machine.waiting.setdefault(key, []).append(self.group)
        return BLOCKED

    def require_full(self, bits: int, what: str) -> None:
        """IllegalOperation unless all live threads of the warp execute this instruction together."""
        if bits != self.live:
            raise IllegalOperation(f"{what} is .aligned: all threads of the warp must execute it together")
