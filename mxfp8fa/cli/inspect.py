"""What a kernel's binary says without running it: registers, spills, SASS per score element, compile time, CPU source lines.

TARGET is step2, step3, step5, step6, step7, forward, backward, backward-fp16 (dQ added up in FP16), a name of somebody
else's kernel (flash-attn-4, flash-attn-4-fp8, flash-attn-4-backward, cudnn, cudnn-backward: in a checkout, with the extra
`peers`), or FILE.py:FUNCTION as for `mxfp8fa trace`.

Every kernel is compiled here for sm_100a, and its cubin is disassembled (extra `timing`). Per score: SASS instructions of
one turn of the steady softmax loop, divided by the scores that a thread turns into probabilities in it (in a backward P
and dS are both converted, and a pair of query and key counts as two scores). Units are those
that execute the instruction; every instruction also takes an issue slot, so the total is what the schedulers see. Compile
time is CPU time measured on this machine; everything else is read off the binary.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mxfp8fa.cli.console import CommandError, table

if TYPE_CHECKING:
    from mxfp8fa.timing.facts import KernelFacts

_SHOWN = 20
_POLL = 8  # loops this short poll a barrier


@dataclass(frozen=True)
class Inspection:
    """One kernel as a column of the table.

    Attributes:
        target: as given.
        facts: of its main kernel.
        shipped: whether they come from the cubin that ships; else from a twin made by ptxas.
        differing: instructions in which the opcodes of the twin differ.
        compile_cpu_s: CPU seconds of `cute.compile`, measured here.
    """

    target: str
    facts: KernelFacts
    shipped: bool
    differing: int
    compile_cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Targets and options of the compiled kernel."""
    parser.add_argument("target", metavar="TARGET", help="the kernel: a name or FILE.py:FUNCTION, see above")
    parser.add_argument("--vs", metavar="TARGET", nargs="+", default=[], help="others beside it")
    parser.add_argument("--head-dim", type=int, default=128, help="head_dim of attention kernels (default: 128)")
    parser.add_argument("--causal", action="store_true", help="causal attention kernels")
    parser.add_argument("--two-cta", action="store_true", help="other people's kernels with CTA pairs")
    parser.add_argument("--loops", action="store_true", help="also every loop, and the steady one by opcode and line")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")


def run(args: argparse.Namespace) -> int:
    """Compile, disassemble, print."""
    from mxfp8fa.timing.binary import ToolError

    try:
        found = [inspect(name, args) for name in [args.target, *args.vs]]
    except (ToolError, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.json:
        print(json.dumps([as_json(each) for each in found], indent=2))
        return 0
    print(report(found))
    if args.loops:
        print("\n".join(loops(each) for each in found))
    return 0


def inspect(name: str, args: argparse.Namespace) -> Inspection:
    """Compile one target and read its binary."""
    from mxfp8fa.cli.programs import load_source
    from mxfp8fa.timing.shapes import AttentionShape

    shape = AttentionShape(seqlen_q=512, seqlen_k=512, head_dim=args.head_dim, causal=args.causal)
    source = load_source(name, causal=args.causal, two_cta=args.two_cta)
    print(f"{name}: compiling", file=sys.stderr, flush=True)
    return inspect_program(name, lambda: source.load(shape))


def inspect_program(name: str, load: Any) -> Inspection:
    """What a program compiles to; it is called, but nothing is launched."""
    from mxfp8fa.emulator import host
    from mxfp8fa.timing.binary import binaries_of, main_kernel
    from mxfp8fa.timing.compilations import compilations
    from mxfp8fa.timing.facts import facts_of

    with compilations() as compiled, host.cuda_shims(sm_count=148), host.active(lambda call: None):
        load().call()
    if not compiled:
        raise CommandError(f"{name} compiled nothing: has this process inspected it before?")
    pairs = [(binary, c.cpu_s) for c in compiled for binary in binaries_of(c.compiled).values()]
    main = main_kernel([binary for binary, _ in pairs])
    seconds = next(s for binary, s in pairs if binary is main)
    return Inspection(name, facts_of(main), main.shipped, main.differing, seconds)


def report(found: list[Inspection]) -> str:
    """The facts as rows, one column per kernel."""
    from mxfp8fa.timing.units import Unit

    def row(label: str, cell: Any) -> tuple[str, ...]:
        return (label, *(cell(each) for each in found))

    def per_score(unit: Unit | None) -> Any:
        def cell(each: Inspection) -> str:
            steady = each.facts.steady
            return f"{steady.per_score(unit):.2f}" if steady else "-"

        return cell

    rows = [
        row("registers at launch", lambda e: str(e.facts.resources.registers)),
        row("registers by role", lambda e: " ".join(map(str, sorted(set(e.facts.budgets), reverse=True))) or "-"),
        row("stack, bytes", lambda e: str(e.facts.resources.stack_bytes)),
        row("spill instructions", lambda e: str(e.facts.spills)),
        row("SASS instructions", lambda e: str(e.facts.instructions)),
        row("compile time, CPU s", lambda e: f"{e.compile_cpu_s:.1f}"),
        row("lines of the main file", lambda e: str(max(e.facts.files.values(), default=0))),
        row("lines of all its files", lambda e: str(e.facts.source_lines)),
        row("steady loop starts at", lambda e: e.facts.steady.source if e.facts.steady else "no softmax loop"),
        row("scores per thread and turn", lambda e: str(e.facts.steady.scores) if e.facts.steady else "-"),
        row("exponentials by MUFU", lambda e: str(e.facts.steady.exponentials) if e.facts.steady else "-"),
        row("SASS per score (issue)", per_score(None)),
        *(row(f"  {unit.value}", per_score(unit)) for unit in Unit),
    ]
    lines = [table(("", *(e.target for e in found)), rows)]
    lines += [
        f"{e.target}: read off a twin that ptxas made from the PTX; {e.differing} opcodes differ from the cubin that ships"
        for e in found
        if not e.shipped
    ]
    return "\n".join(lines)


def loops(each: Inspection) -> str:
    """Every loop of a kernel, without the loops inside it."""
    rows = [
        (
            f"{loop.address:#x}", loop.source, str(loop.instructions), str(loop.scores), str(loop.exponentials),
            ", ".join(f"{unit.value} {n}" for unit, n in loop.by_unit.most_common()),
        )
        for loop in each.facts.loops
        if loop.by_unit.total() > _POLL
    ]  # fmt: skip
    lines = [f"\n{each.target}", table(("loop", "source", "SASS", "scores", "EX2", "by unit"), rows)]
    steady = each.facts.steady
    if steady is not None:
        for what, counts in (("opcode", steady.by_opcode), ("line", steady.by_source)):
            shares = [(name, str(n), f"{n / steady.scores:.3f}") for name, n in counts.most_common(_SHOWN)]
            lines += ["", table((f"steady loop by {what}", "SASS", "per score"), shares)]
    return "\n".join(lines)


def as_json(each: Inspection) -> dict[str, Any]:
    """The facts as plain data."""
    facts, steady = each.facts, each.facts.steady
    return {
        "target": each.target,
        "kernel": facts.kernel,
        "registers": facts.resources.registers,
        "registers_by_role": list(facts.budgets),
        "stack_bytes": facts.resources.stack_bytes,
        "spill_instructions": facts.spills,
        "sass_instructions": facts.instructions,
        "compile_cpu_s": round(each.compile_cpu_s, 2),
        "source_lines": facts.files,
        "shipped_cubin": each.shipped,
        "steady_loop": None if steady is None else {
            "source": steady.source, "scores": steady.scores, "exponentials": steady.exponentials,
            "sass_per_score": round(steady.per_score(), 3),
            "by_unit": {unit.value: round(steady.per_score(unit), 3) for unit in steady.by_unit},
        },
    }  # fmt: skip
