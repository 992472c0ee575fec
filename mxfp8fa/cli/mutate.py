"""Break a kernel's synchronisation one instruction at a time, and see whether the race checker notices.

Every wait, arrival, expected byte count, commit, fence and barrier of TARGET is deleted or weakened in turn, and the
kernel is run with the checker, under one schedule after another until one catches it. Caught: a race, deadlock, barrier
or poison report; a wrong result alone does not count. A mutant that survives is called equivalent where another edge is
known to order the same accesses; that edge is named. Progress goes to stderr.

TARGET is step2 or step3 (matrix products of this package), step6 or step7 (its attention loops), forward (the
attention kernel), backward and backward-fp16 (the main kernel of its gradient, dQ added up in FP32 or FP16), jagged and
jagged-backward (the same on packed sequences), flash-attn-4 (in a checkout, with the extra `peers`), or FILE.py:FUNCTION,
a function that returns (compiled, args).
Exit status: 0; 1 when mutants survived that nothing shows to be equivalent; 3 when the kernel itself is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import TYPE_CHECKING, Any

from mxfp8fa.cli.console import CommandError, table

if TYPE_CHECKING:
    from mxfp8fa.emulator.mutate import Mutant, Study

_SURVIVED, _KERNEL_ERROR = 1, 3
_TEXT_WIDTH = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Target, size of the sample, schedules, output."""
    parser.add_argument("target", metavar="TARGET", help="a name from the list above or FILE.py:FUNCTION")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, chosen by --seed (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument(
        "--schedules",
        type=int,
        default=8,
        metavar="N",
        help="schedules to try: eager, lazy, random:0, ... (default: 8)",
    )
    parser.add_argument(
        "--sm-count",
        type=int,
        default=1,
        help="SMs that the device reports (default: 1, so that persistent kernels loop)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the study and print it."""
    from mxfp8fa.cli.targets import load_target
    from mxfp8fa.emulator import EmulationError
    from mxfp8fa.emulator.mutate import SCHEDULES, Verdict, run_study

    if not 1 <= args.schedules <= len(SCHEDULES):
        raise CommandError(f"--schedules {args.schedules}: allowed are 1 to {len(SCHEDULES)}")
    if args.sample is not None and args.sample < 1:
        raise CommandError(f"--sample {args.sample}: at least 1")
    if args.sm_count < 1:
        raise CommandError(f"--sm-count {args.sm_count}: at least 1")
    target = load_target(args.target)

    def progress(done: int, total: int, verdict: Verdict) -> None:
        mutant = verdict.mutant
        print(
            f"[{done:3d}/{total}] {verdict.outcome}: {mutant.change}, PTX line {mutant.site.ptx_line}", file=sys.stderr
        )

    def select(mutants: list[Mutant]) -> list[Mutant]:
        if args.sample is None or args.sample >= len(mutants):
            return mutants
        chosen = set(random.Random(args.seed).sample(range(len(mutants)), args.sample))
        return [m for i, m in enumerate(mutants) if i in chosen]

    try:
        study = run_study(
            target.record(args.sm_count),
            schedules=SCHEDULES[: args.schedules], select=select, names=target.names,
            progress=progress, **target.options,
        )  # fmt: skip
    except EmulationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _KERNEL_ERROR
    print(json.dumps(as_json(args.target, study), indent=2) if args.json else report(args.target, study))
    return _SURVIVED if study.count("survived") else 0


def as_json(name: str, study: Study) -> dict[str, Any]:
    """The study as plain data."""
    from mxfp8fa.emulator.mutate import OUTCOMES

    counts = {outcome.replace(" ", "_"): study.count(outcome) for outcome in OUTCOMES}
    return {"target": name, **counts, "score": study.score, "mutants": [v.as_dict() for v in study.verdicts]}


def report(name: str, study: Study) -> str:
    """Tables: mutants by kind and outcome, what caught them, and every mutant that was not caught."""
    from mxfp8fa.emulator.mutate import OUTCOMES

    total = ("all", str(len(study.verdicts)), *(str(study.count(outcome)) for outcome in OUTCOMES))
    caught, survived = study.count("caught"), study.count("survived")
    lines = [
        table(("change", "mutants", *OUTCOMES), [*study.rows(), total]),
        "",
        f"{name}: {caught} of {caught + survived} mutants that are executed and not shown to be equivalent are caught "
        f"({100 * study.score:.1f} %)",
        "caught by: " + ", ".join(f"{kind} {n}" for kind, n in study.caught_by.most_common()),
    ]
    for outcome in OUTCOMES[1:]:
        for verdict in study.of(outcome):
            site = verdict.mutant.site
            wrong = " (and the result is wrong)" if verdict.wrong_output else ""
            lines += [
                "",
                f"{outcome}{wrong}: {verdict.mutant.change}, PTX line {site.ptx_line}: {site.text[:_TEXT_WIDTH]}",
                *([f"    {site.source}"] if site.source else []),
                *([f"    {verdict.message}"] if verdict.message else []),
            ]
    return "\n".join(lines)
