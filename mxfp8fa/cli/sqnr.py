"""SQNR of MXFP8 attention against float64: O, dQ, dK and dV by configuration, with verdicts.

The numbers are emulated: computed in NumPy, rounding where a Blackwell kernel rounds, or with --kernels by the compiled
kernels themselves in the emulator, which takes minutes. Without --config the six standard configurations run, whose 24
tensors make the strict summary.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable

from mxfp8fa.cli.console import CommandError, Progress, table
from mxfp8fa.numerics.sqnr import BORDERLINE_DB, PASS_DB, SqnrEntry, StrictSummary
from mxfp8fa.published import BY_KEY
from mxfp8fa.studies.attention import CONFIGURATIONS, STANDARD, TENSORS, run_configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--config, --kernels and --json."""
    parser.add_argument(
        "--config",
        nargs="+",
        choices=list(CONFIGURATIONS),
        metavar="NAME",
        default=[configuration.name for configuration in STANDARD],
        help="run these configurations, listed below (default: the six standard ones)",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="compute by the compiled kernels in the emulator (minutes; needs the extra `kernels`)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object (configurations, tensors, dB, verdicts) and nothing else on stdout",
    )
    width = max(map(len, CONFIGURATIONS))
    standard = {configuration.name for configuration in STANDARD}
    lines = [
        f"{'*' if name in standard else ' '} {name:{width}}  {configuration.about}"
        for name, configuration in CONFIGURATIONS.items()
    ]
    parser.epilog = "configurations (* standard):\n" + "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Run the configurations asked for and print a table or JSON."""
    names = list(dict.fromkeys(args.config))
    by = "compiled kernels in the emulator" if args.kernels else "NumPy model"
    try:
        summary = measure(names, one=by_kernels() if args.kernels else run_configuration)
    except ValueError as error:
        raise CommandError(str(error)) from error
    print(json.dumps(as_json(summary, by), indent=2) if args.json else report(summary))
    return 0


def by_kernels() -> Callable[[str], tuple[SqnrEntry, ...]]:
    """Runs a configuration by the compiled kernels.

    Raises:
        CommandError: they cannot be compiled here.
    """
    from mxfp8fa.cli.targets import require_kernels
    from mxfp8fa.studies import kernel_sqnr

    require_kernels()
    return kernel_sqnr.run_configuration


def measure(
    names: list[str],
    progress: Progress | None = None,
    one: Callable[[str], tuple[SqnrEntry, ...]] = run_configuration,
) -> StrictSummary:
    """Run configurations, each by `one`, with progress on stderr."""
    progress = progress or Progress(len(names))
    entries: list[SqnrEntry] = []
    for name in names:
        with progress.step(f"attention forward and backward, {name}"):
            entries += one(name)
    return StrictSummary(tuple(entries))


def report(summary: StrictSummary) -> str:
    """The table and the summary line beside the published one."""
    return "\n".join([sqnr_table(summary), "", *summary_lines(summary)])


def sqnr_table(summary: StrictSummary) -> str:
    """One row per configuration: SQNR of each tensor with a mark at what is not a pass, and the worst row of all."""
    names = list(dict.fromkeys(entry.configuration for entry in summary.entries))
    rows = []
    for name in names:
        entries = {entry.tensor: entry for entry in summary.entries if entry.configuration == name}
        worst = min(entry.worst_row_db for entry in entries.values())
        rows.append([name, *(_marked(entries[tensor]) for tensor in TENSORS), f"{worst:.1f} "])
    return table(["SQNR against float64, dB", *(f"{tensor} " for tensor in TENSORS), "worst row "], rows)


def _marked(entry: SqnrEntry) -> str:
    return f"{entry.db:.2f}" + {"pass": " ", "borderline": "~", "fail": "!"}[entry.verdict]


def summary_lines(summary: StrictSummary) -> list[str]:
    """Counts and range, ours and the published ones, and what the marks and kinds mean."""
    low, high = summary.range_db
    counts = ", ".join(f"{summary.count(grade)} {grade}" for grade in ("pass", "borderline", "fail"))
    return [
        f"emulated here    {low:.2f} to {high:.2f} dB   {counts}",
        f"published, B200  {BY_KEY['sqnr'].text()}   {BY_KEY['strict_summary'].text()}",
        f"pass: {PASS_DB:g} dB or more; ~ borderline: {BORDERLINE_DB:g} dB or more; ! fail: less.",
        "The published summary states neither its thresholds nor its shapes; configurations and thresholds are ours.",
    ]


def as_json(summary: StrictSummary, by: str = "NumPy model") -> dict:
    """Everything the table shows, as one object; a dB value that is not finite (an exact result) is null."""
    configurations = []
    for name in dict.fromkeys(entry.configuration for entry in summary.entries):
        tensors = {entry.tensor: _tensor(entry) for entry in summary.entries if entry.configuration == name}
        configurations.append({"name": name, "about": CONFIGURATIONS[name].about, "tensors": tensors})
    low, high = summary.range_db
    return {
        "kind": "emulated",
        "computed_by": by,
        "thresholds_db": {"pass": PASS_DB, "borderline": BORDERLINE_DB},
        "configurations": configurations,
        "summary": {
            "lowest_db": _finite(low),
            "highest_db": _finite(high),
            **{grade: summary.count(grade) for grade in ("pass", "borderline", "fail")},
        },
        "published": {"sqnr_db": list(BY_KEY["sqnr"].values), "summary": BY_KEY["strict_summary"].text()},
    }


def _tensor(entry: SqnrEntry) -> dict:
    return {"sqnr_db": _finite(entry.db), "worst_row_db": _finite(entry.worst_row_db), "verdict": entry.verdict}


def _finite(db: float) -> float | None:
    return round(db, 4) if math.isfinite(db) else None
