"""Mutation testing: break one synchronisation instruction at a time and see whether the checker notices.

A kernel's launches are recorded once. Then, for every mutant, the same launches run with one instruction weakened, under
one schedule after another until one catches it. Caught means a finding of the checker or an error (deadlock, barrier,
poison, out of bounds); a merely wrong result does not count. What survives is either equivalent (some other edge orders
the same accesses) or a blind spot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mxfp8fa.emulator.check import Checker
from mxfp8fa.emulator.errors import EmulationError, Site
from mxfp8fa.emulator.machine.binding import Step, bind
from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
from mxfp8fa.emulator.machine.machine import run_machine
from mxfp8fa.emulator.machine.memory import GlobalMemory, Range
from mxfp8fa.emulator.machine.program import Program, load_program
from mxfp8fa.emulator.machine.warp import Warp
from mxfp8fa.emulator.ptx import syntax

SCHEDULES: tuple[tuple[str, int], ...] = (("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6)))


@dataclass(frozen=True)
class Mutant:
    """One weakened instruction.

    Attributes:
        kernel: name of the kernel.
        pc: index of the instruction.
        change: what was done to it ("wait removed", "parity flipped", ...).
        site: where it stands.
        step: the weakened step.
    """

    kernel: str
    pc: int
    change: str
    site: Site
    step: Step = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared.

    Attributes:
        mutant: which.
        caught_by: "race", "visibility", "barrier", ... (a finding), the name of an error, or "" when it survived.
        schedule: the schedule that caught it, "eager", "lazy" or "random:3".
        message: first line of the finding or error.
        wrong_output: whether a schedule gave another result (by `same`), though nothing was reported.
    """

    mutant: Mutant
    caught_by: str
    schedule: str
    message: str
    wrong_output: bool = False


@dataclass(frozen=True)
class Recorded:
    """A launch that can be run again."""

    program: Program
    spec: LaunchSpec
    ranges: list[Range]


def record(compiled: Any, *args: Any, sm_count: int = 148, allow: Sequence[Any] = ()) -> list[Recorded]:
    """The launches of a compiled function, not run. Several launches are replayed in order."""
    from mxfp8fa.emulator.api import launch_spec
    from mxfp8fa.emulator.host import Device, HostCall

    call = HostCall(compiled, args, {})
    ranges = [Range(r.address, r.size_bytes, r.name, r.writable, r) for r in call.memory_ranges(allow)]
    found: list[Recorded] = []

    def on_launch(launch: Any) -> None:
        program = load_program(launch.ptx, launch.kernel)
        found.append(Recorded(program, launch_spec(program, launch), ranges))

    call.execute(on_launch, device=Device(sm_count=sm_count), allow=allow)
    return found


# -- mutants ----------------------------------------------------------------------------------------------------------


def mutants(program: Program) -> Iterator[Mutant]:
    """Every mutant of a kernel, in program order."""
    for i in program.instructions:
        for change, step in _weakened(i, program):
            yield Mutant(program.kernel.name, i.index, change, program.site(i.index, (0, 0, 0), 0, None), step)


def _nothing(warp: Warp, bits: int) -> None:
    """A deleted instruction."""


def _weakened(i: syntax.Instruction, program: Program) -> Iterator[tuple[str, Step]]:
    """The ways to weaken an instruction."""
    head = ".".join((i.opcode, *i.qualifiers[:1]))
    if head in ("mbarrier.try_wait", "mbarrier.test_wait"):
        yield "wait removed", _always(i, program)
        yield "parity flipped", _adjusted(i, program, 2, lambda value: value ^ 1)
    elif head in ("mbarrier.arrive", "mbarrier.arrive_drop"):
        if "expect_tx" in i.qualifiers:
            yield "expect_tx removed", _bind(_without_expect(i), program)
        yield "arrive removed", _nothing
    elif head == "mbarrier.expect_tx":
        yield "expect_tx removed", _nothing
    elif head == "mbarrier.init":
        yield "count one more", _adjusted(i, program, 1, lambda value: value + 1)
        yield (
            "count one less",
            _adjusted(i, program, 1, lambda value: max(value - 1, 1)),
        )  # a count of 1 stays: equivalent
    elif head == "tcgen05.commit":
        yield "commit removed", _nothing
    elif head.startswith(("tcgen05.wait", "tcgen05.fence")) or head in ("fence.proxy", "fence.mbarrier_init"):
        yield f"{i.opcode}.{i.qualifiers[0]} removed", _nothing
    elif head in ("cp.async", "cp.async.bulk") and any(q.startswith("wait") for q in i.qualifiers):
        yield "group wait removed", _nothing
    elif i.opcode in ("bar", "barrier") and i.qualifiers[0] != "warp" and i.mnemonic != "bar.warp.sync":
        yield f"{i.opcode} removed", _nothing


def _bind(i: syntax.Instruction, program: Program) -> Step:
    return bind(i, program)


def _always(i: syntax.Instruction, program: Program) -> Step:
    """The wait's predicate is simply true."""
    true = syntax.Immediate(1, "int", 1)
    return _bind(
        replace(i, opcode="mov", qualifiers=("pred",), mnemonic="mov.pred", operands=(i.operands[0], true)), program
    )


def _without_expect(i: syntax.Instruction) -> syntax.Instruction:
    """arrive.expect_tx as a plain arrive."""
    qualifiers = tuple(q for q in i.qualifiers if q != "expect_tx")
    return replace(i, qualifiers=qualifiers, mnemonic=".".join((i.opcode, *qualifiers)), operands=i.operands[:-1])


def _adjusted(i: syntax.Instruction, program: Program, position: int, change: Callable[[int], int]) -> Step:
    """The instruction with another value of one operand, which may be a constant or a register."""
    operand = i.operands[position]
    if isinstance(operand, syntax.Immediate):
        value = change(int(operand.value))
        operands = list(i.operands)
        operands[position] = syntax.Immediate(value, "int", value)
        return _bind(replace(i, operands=tuple(operands)), program)
    assert isinstance(operand, syntax.Register)
    step, register = _bind(i, program), operand.id

    def run(warp: Warp, bits: int) -> Any:
        kept = warp.regs[register]
        changed = kept.copy()
        changed[:] = [change(int(x)) for x in kept]
        warp.regs[register] = changed
        try:
            return step(warp, bits)
        finally:
            warp.regs[register] = kept

    return run


# -- running ----------------------------------------------------------------------------------------------------------


def run_mutant(
    launches: Sequence[Recorded], mutant: Mutant, *, schedules: Sequence[tuple[str, int]] = SCHEDULES,
    benign: frozenset[tuple[str, int]] = frozenset(), prepare: Callable[[], None] | None = None,
    same: Callable[[], bool] | None = None, **options: Any,
) -> Verdict:  # fmt: skip
    """Run a mutant under one schedule after another until it is caught.

    Args:
        launches: what `record` returned.
        mutant: one of `mutants` of one of the launches' programs.
        schedules: (schedule, seed) pairs.
        benign: findings of the unbroken kernel, as (kind, PTX line), that do not count.
        prepare: called before every run (to clear outputs).
        same: whether the outputs are those of the unbroken kernel; called after a run without findings.
        **options: further `Options`.
    """
    wrong = False
    for schedule, seed in schedules:
        name = schedule if schedule != "random" else f"random:{seed}"
        if prepare is not None:
            prepare()
        try:
            found = _replay(launches, mutant, Options(schedule=schedule, seed=seed, **options))
        except EmulationError as error:
            return Verdict(mutant, type(error).__name__, name, error.message.split("\n")[0])
        found = [f for f in found if finding_key(f) not in benign]
        if found:
            return Verdict(mutant, found[0].kind, name, str(found[0]).split("\n")[0])
        wrong = wrong or (same is not None and not same())
    return Verdict(mutant, "", "", "", wrong)


def finding_key(finding: Any) -> tuple[str, int]:
    """What identifies a finding of the unbroken kernel: its kind and the later PTX line."""
    side = finding.second or finding.first
    return finding.kind, side[1].ptx_line if side is not None else 0


def baseline(launches: Sequence[Recorded], **options: Any) -> frozenset[tuple[str, int]]:
    """Findings of the unbroken kernel."""
    return frozenset(finding_key(f) for f in _replay(launches, None, Options(**options)))


def _replay(launches: Sequence[Recorded], mutant: Mutant | None, options: Options) -> list[Any]:
    findings: list[Any] = []
    for recorded in launches:
        program = recorded.program
        program.begin(recorded.spec.params)
        mine = mutant is not None and mutant.kernel == program.kernel.name
        kept = program.steps[mutant.pc] if mutant is not None and mine else None
        if mutant is not None and mine:
            program.steps[mutant.pc] = mutant.step
        try:
            memory = GlobalMemory(program.ranges() + recorded.ranges)
            watch = Checker(assume_mma_cp_order=options.assume_mma_cp_order)
            run_machine(program, recorded.spec, memory, options, watch=watch)
            findings += watch.findings()
        finally:
            if mutant is not None and kept is not None:
                program.steps[mutant.pc] = kept
    return findings
