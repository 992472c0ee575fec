"""Mutation testing: break one synchronisation instruction at a time and see whether the checker notices.

A kernel's launches are recorded once. Then, for every mutant, the same launches run with one instruction weakened, under
one schedule after another until one catches it. Caught means a finding of the checker or an error (deadlock, barrier,
poison, out of bounds); a merely wrong result does not count. What survives is either equivalent (some other edge orders
the same accesses; `check.witness` names it) or a blind spot of the checker or of the input.

    study = run_study(record(compiled, *args, sm_count=1))
    print(study)
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mxfp8fa.emulator.check import Checker, Finding
from mxfp8fa.emulator.check.allowed import reason_to_allow
from mxfp8fa.emulator.check.witness import Witness
from mxfp8fa.emulator.errors import EmulationError, Site
from mxfp8fa.emulator.launch import run_machine
from mxfp8fa.emulator.machine.binding import Step, bind
from mxfp8fa.emulator.machine.launch import LaunchSpec, Options
from mxfp8fa.emulator.machine.memory import GlobalMemory, Range
from mxfp8fa.emulator.machine.program import Program, load_program
from mxfp8fa.emulator.machine.warp import Warp
from mxfp8fa.emulator.names import Names
from mxfp8fa.emulator.ptx import syntax

SCHEDULES: tuple[tuple[str, int], ...] = (("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6)))
SCHEDULES_BEFORE_ARGUING = 3
OUTCOMES = ("caught", "equivalent", "survived", "not executed")
_FENCES = ("fence", "membar")


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
        outcome: "caught", "equivalent" (with a reason), "survived", or "not executed" by this input.
        caught_by: "race", "visibility", "barrier", ... (a finding), the name of an error, or "".
        schedule: the schedule that caught it: "eager", "lazy" or "random:3".
        message: first line of the finding or error; for an equivalent mutant the reason.
        wrong_output: whether a schedule gave another result, though nothing was reported.
    """

    mutant: Mutant
    outcome: str
    caught_by: str = ""
    schedule: str = ""
    message: str = ""
    wrong_output: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        site = self.mutant.site
        return {
            "change": self.mutant.change,
            "ptx_line": site.ptx_line,
            "source": site.source,
            "instruction": site.text,
            "outcome": self.outcome,
            "caught_by": self.caught_by,
            "schedule": self.schedule,
            "message": self.message,
            "wrong_output": self.wrong_output,
        }


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
    """Every mutant of a kernel that differs from it, in program order."""
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
        if _constant(i.operands[1], program) != 1:
            yield "count one less", _adjusted(i, program, 1, lambda value: max(value - 1, 1))
    elif head == "tcgen05.commit":
        yield "commit removed", _nothing
    elif head in (
        "tcgen05.wait::ld",
        "tcgen05.wait::st",
        "tcgen05.fence::before_thread_sync",
        "tcgen05.fence::after_thread_sync",
    ):
        yield f"{i.qualifiers[0]} removed", _nothing
    elif i.opcode in _FENCES or head == "griddepcontrol.wait":
        yield f"{head} removed", _nothing
    elif head in ("cp.async", "cp.async.bulk") and any(q.startswith("wait") for q in i.qualifiers):
        yield "group wait removed", _nothing
    elif i.opcode in ("bar", "barrier") and i.qualifiers[0] != "warp":
        yield "thread barrier removed", _nothing


def _constant(operand: Any, program: Program) -> int | None:
    """The value of an operand that is a constant, or a register that is only ever given one; None otherwise."""
    if isinstance(operand, syntax.Immediate):
        return int(operand.value)
    makers = [i for i in program.instructions if i.operands and i.operands[0] == operand and i.opcode != "st"]
    if len(makers) == 1 and makers[0].opcode == "mov":
        source = makers[0].operands[1]
        return _constant(source, program) if source != operand else None
    return None


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


# -- the unbroken kernel ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Baseline:
    """What is known of the unbroken kernel.

    Attributes:
        benign: its own findings, as (kind, PTX line): they do not count.
        executed: (kernel, index) of every instruction that the input reaches.
        unused: (kernel, index) of every mbarrier.init whose barriers nobody ever uses.
        inputs, outputs: bytes of every writable range before and after the run.
    """

    benign: frozenset[tuple[str, int]]
    executed: frozenset[tuple[str, int]]
    unused: frozenset[tuple[str, int]]
    inputs: list[bytes]
    outputs: list[bytes]


class _Users(Checker):
    """A checker that notes which mbarriers are used after they were initialised."""

    def __init__(self, options: Options):
        super().__init__(**_assumptions(options))
        self.used: dict[int, bool] = {}  # index of an mbarrier.init -> whether a barrier of it is used
        self._made_by: dict[tuple[int, int], int] = {}

    def barrier_initialised(self, cta: Any, offset: int) -> None:
        """A barrier begins, unused."""
        super().barrier_initialised(cta, offset)
        if self._warp is not None:
            pc = self._made_by[cta.number, offset] = self._warp.group.pc
            self.used.setdefault(pc, False)

    def barrier_used(self, cta: Any, offset: int) -> None:
        """Somebody uses it."""
        super().barrier_used(cta, offset)
        if (cta.number, offset) in self._made_by:
            self.used[self._made_by[cta.number, offset]] = True


def _assumptions(options: Options) -> dict[str, Any]:
    return {
        "assume_mma_cp_order": options.assume_mma_cp_order,
        "assume_tcgen05_order": options.assume_tcgen05_order,
        "assume_read_order": options.assume_read_order,
    }


def baseline(launches: Sequence[Recorded], **options: Any) -> Baseline:
    """Run the unbroken launches once."""
    executed: set[tuple[str, int]] = set()
    unused: set[tuple[str, int]] = set()
    findings: list[Finding] = []
    chosen, inputs = Options(**options), _contents(launches)
    for recorded in launches:
        name, watch = recorded.program.kernel.name, _Users(chosen)
        _run(recorded, chosen, watch)
        executed |= {(name, pc) for pc, n in enumerate(recorded.program.counts) if n}
        unused |= {(name, pc) for pc, used in watch.used.items() if not used}
        findings += watch.findings()
    keys = frozenset(map(finding_key, findings))
    return Baseline(keys, frozenset(executed), frozenset(unused), inputs, _contents(launches))


def equivalence(launches: Sequence[Recorded], mutant: Mutant, known: Baseline, names: Names, **options: Any) -> str:
    """Why a mutant that survived is equivalent for this input, or "" if nothing shows it.

    For a deleted wait, fence or barrier the unbroken kernel runs once more under the eye of a `Witness`.
    """
    if (mutant.kernel, mutant.pc) in known.unused:
        return "nobody arrives on this barrier or waits for it"
    if "wait::ld" in mutant.change:
        return "the first use of a loaded register orders the load (only under wait_ld=dependency)"
    flipped = mutant.change == "parity flipped"
    if not flipped and not mutant.change.endswith("removed"):
        return ""
    chosen, arguments = Options(**options), []
    _restore(launches, known.inputs)
    for recorded in launches:
        if recorded.program.kernel.name == mutant.kernel:
            witness = Witness(mutant.pc, names, **_assumptions(chosen))
            _run(recorded, chosen, witness)
            arguments.append(witness.argument(known.benign))
    if not arguments or not all(arguments):
        return ""
    if mutant.change in ("arrive removed", "expect_tx removed", "commit removed"):
        return "no wait needs the phase that it belongs to, and nobody needs the order that it gives"
    return (
        f"with the other parity it never blocks, and the wait is not needed: {arguments[0]}"
        if flipped
        else arguments[0]
    )


def finding_key(finding: Finding) -> tuple[str, int]:
    """What identifies a finding of the unbroken kernel: its kind and the later PTX line."""
    side = finding.second or finding.first
    return finding.kind, side[1].ptx_line if side is not None else 0


# -- running ----------------------------------------------------------------------------------------------------------


class _Found(Exception):
    """The checker found something; the rest of the run does not matter."""


class _Impatient(Checker):
    """A checker that ends the run at the first finding that counts."""

    def __init__(self, benign: frozenset[tuple[str, int]], options: Options):
        super().__init__(**_assumptions(options))
        self._benign = benign
        self.first: Finding | None = None

    def _report(self, key: Any, finding: Finding) -> None:
        if finding_key(finding) not in self._benign and not reason_to_allow(finding):
            self.first = finding
            raise _Found


def run_mutant(
    launches: Sequence[Recorded], mutant: Mutant, known: Baseline, *,
    schedules: Sequence[tuple[str, int]] = SCHEDULES, names: Names | None = None, **options: Any,
) -> Verdict:  # fmt: skip
    """Run a mutant under one schedule after another until it is caught.

    One that survives the first three (eager, lazy, random) is equivalent if `equivalence` has an argument; what has none
    is run under all of them.

    Args:
        launches: what `record` returned.
        mutant: one of `mutants` of one of the launches' programs.
        known: what `baseline` said of the unbroken launches.
        schedules: (schedule, seed) pairs.
        names: roles and barriers, for arguments.
        **options: further `Options`.
    """
    if (mutant.kernel, mutant.pc) not in known.executed:
        return Verdict(mutant, "not executed")
    wrong = False
    for i, (schedule, seed) in enumerate(schedules):
        name = schedule if schedule != "random" else f"random:{seed}"
        _restore(launches, known.inputs)
        try:
            found = _replay(launches, mutant, Options(schedule=schedule, seed=seed, **options), known.benign)
        except EmulationError as error:
            return Verdict(mutant, "caught", type(error).__name__, name, error.message.split("\n")[0])
        if found is not None:
            return Verdict(mutant, "caught", found.kind, name, str(found).split("\n")[0])
        wrong = wrong or _contents(launches) != known.outputs
        if i + 1 == min(SCHEDULES_BEFORE_ARGUING, len(schedules)) and not wrong:
            reason = equivalence(launches, mutant, known, names or Names(), **options)
            if reason:
                return Verdict(mutant, "equivalent", message=reason)
    return Verdict(mutant, "survived", wrong_output=wrong)


def _replay(
    launches: Sequence[Recorded], mutant: Mutant, options: Options, benign: frozenset[tuple[str, int]]
) -> Finding | None:
    """Run all launches, one instruction of one kernel replaced; the first finding, if any."""
    for recorded in launches:
        steps = recorded.program.steps
        kept = steps[mutant.pc]
        if mutant.kernel == recorded.program.kernel.name:
            steps[mutant.pc] = mutant.step
        watch = _Impatient(benign, options)
        try:
            _run(recorded, options, watch)
        except _Found:
            return watch.first
        finally:
            steps[mutant.pc] = kept
    return None


def _run(recorded: Recorded, options: Options, watch: Checker) -> None:
    recorded.program.begin(recorded.spec.params)
    memory = GlobalMemory(recorded.program.ranges() + recorded.ranges)
    run_machine(recorded.program, recorded.spec, memory, options, watch=watch)


def _writable(launches: Sequence[Recorded]) -> list[Range]:
    """Every writable range of any of the launches, once."""
    ranges = [r for recorded in launches for r in recorded.ranges if r.writable]
    return list({(r.address, r.size_bytes): r for r in ranges}.values())


def _contents(launches: Sequence[Recorded]) -> list[bytes]:
    """The bytes of every writable range."""
    return [ctypes.string_at(r.address, r.size_bytes) for r in _writable(launches)]


def _restore(launches: Sequence[Recorded], contents: list[bytes]) -> None:
    """Put them back: a kernel may overwrite what it reads."""
    for r, data in zip(_writable(launches), contents, strict=True):
        ctypes.memmove(r.address, data, r.size_bytes)


# -- studies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """All mutants of some launches. Prints itself as a table."""

    verdicts: list[Verdict]

    def count(self, outcome: str, change: str | None = None) -> int:
        """How many mutants, of one kind of change or of all, had this outcome."""
        return sum(v.outcome == outcome and change in (None, v.mutant.change) for v in self.verdicts)

    @property
    def score(self) -> float:
        """Caught, of those executed and not shown to be equivalent; 1.0 if there are none."""
        caught, survived = self.count("caught"), self.count("survived")
        return caught / (caught + survived) if caught + survived else 1.0

    @property
    def caught_by(self) -> Counter[str]:
        """Caught mutants by what caught them."""
        return Counter(v.caught_by for v in self.verdicts if v.outcome == "caught")

    def rows(self) -> list[tuple[str, ...]]:
        """Per kind of change: mutants, then how many had each outcome."""
        changes = list(dict.fromkeys(v.mutant.change for v in self.verdicts))
        return [
            (change, str(sum(v.mutant.change == change for v in self.verdicts)),
             *(str(self.count(outcome, change)) for outcome in OUTCOMES))
            for change in sorted(changes)
        ]  # fmt: skip

    def of(self, outcome: str) -> list[Verdict]:
        """The mutants with this outcome."""
        return [v for v in self.verdicts if v.outcome == outcome]


def run_study(
    launches: Sequence[Recorded], *, schedules: Sequence[tuple[str, int]] = SCHEDULES,
    select: Callable[[list[Mutant]], list[Mutant]] | None = None, names: Names | None = None,
    progress: Callable[[int, int, Verdict], None] | None = None, **options: Any,
) -> Study:  # fmt: skip
    """Run every mutant of every kernel.

    Args:
        launches: what `record` returned.
        schedules: (schedule, seed) pairs, tried in this order.
        select: chooses some of the mutants; None takes all.
        names: roles and barriers, for arguments.
        progress: called after each mutant with (done, total, verdict).
        **options: further `Options`.
    """
    known = baseline(launches, **options)
    programs = {recorded.program.kernel.name: recorded.program for recorded in launches}
    chosen = [m for program in programs.values() for m in mutants(program)]
    chosen = chosen if select is None else select(chosen)
    verdicts = []
    for done, mutant in enumerate(chosen, 1):
        verdicts.append(run_mutant(launches, mutant, known, schedules=schedules, names=names, **options))
        if progress is not None:
            progress(done, len(chosen), verdicts[-1])
    return Study(verdicts)
