"""The exponential of MXFP8 attention: ways to P, what they cost in accuracy, in SASS and in cycles.

accuracy   SQNR of O, dQ, dK, dV, worst row and bias of each way: by logit spread, by length, on real tensors (emulated;
           minutes)
degrees    exp2 by polynomials of degree 1 to 4 (emulated)
sass       SASS per score by execution unit in the steady loop of the forward kernel, for each way, and of flash-attn-4 and
           cuDNN where they are installed (compiled here; minutes)
cycles     cycles of one KV step by resource, from these counts (those that ship) and third-party rates (modelled)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from mxfp8fa.cli.console import CommandError, table

if TYPE_CHECKING:
    from mxfp8fa.studies.exponential import Accuracy
    from mxfp8fa.studies.step_costs import LoopCosts, Range

TABLES = ("accuracy", "degrees", "sass", "cycles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which table."""
    parser.add_argument("table", choices=TABLES, help="the table to print, one of those above")
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else on stdout")


def run(args: argparse.Namespace) -> int:
    """Make and print one table."""
    print({"accuracy": accuracy, "degrees": degrees, "sass": sass, "cycles": cycles}[args.table](args.json))
    return 0


def accuracy(as_json: bool) -> str:
    """Every way on every kind of case."""
    from mxfp8fa.studies.exponential import measure_groups

    groups = measure_groups()
    if as_json:
        rows = {name: [_rounded(asdict(each)) for each in group] for name, group in groups.items()}
        return json.dumps(rows, indent=1)
    return "\n\n".join(accuracy_table(name, group) for name, group in groups.items())


def _rounded(record: dict) -> dict:
    """Numbers with the digits that mean something."""
    db = {tensor: round(x, 3) for tensor, x in record["db"].items()}
    return record | {"db": db, "worst_row_db": round(record["worst_row_db"], 3), "bias": round(record["bias"], 6)}


def accuracy_table(name: str, group: Sequence[Accuracy]) -> str:
    """One row per case and way."""
    rows = []
    for each in group:
        db = [f"{each.db[t]:.2f}" if t in each.db else "" for t in ("O", "dQ", "dK", "dV")]
        rows.append([f"{each.case}: {each.way}", *db, f"{each.worst_row_db:.1f}", f"{100 * each.bias:+.3f} %"])
    return table([f"{name}; SQNR, dB", "O", "dQ", "dK", "dV", "worst row", "bias of O"], rows)


def degrees(as_json: bool) -> str:
    """Polynomials by degree."""
    from mxfp8fa.studies.exponential import polynomial_degrees

    found, exact = polynomial_degrees()
    if as_json:
        return json.dumps([asdict(each) for each in (exact, *found)], indent=1)
    rows = [
        ["exact" if each is exact else f"degree {each.degree}", f"{each.largest_error:.1e}", f"{each.codes_changed:.3%}",
         f"{each.db:.2f}", f"{each.p_only_db:.2f}"]
        for each in (exact, *found)
    ]  # fmt: skip
    return table(["exp2", "largest error", "codes changed", "SQNR of O, dB", "only P approximate"], rows)


def sass(as_json: bool) -> str:
    """Counts of compiled kernels."""
    from mxfp8fa.cli.exponential_kernels import compiled_loops
    from mxfp8fa.studies.step_costs import as_json as text_of
    from mxfp8fa.timing.binary import ToolError

    try:
        found = list(compiled_loops(lambda name: print(f"{name}: compiling", file=sys.stderr, flush=True)))
    except ToolError as error:
        raise CommandError(str(error)) from error
    return text_of(found).rstrip() if as_json else sass_table(found)


def sass_table(found: Sequence[LoopCosts]) -> str:
    """SASS per score by unit."""
    units = ("FMA", "ALU", "MUFU", "convert", "TMEM")
    rows = [
        [each.name, f"{each.per_score:.2f}", *(f"{each.units.get(unit, 0) / each.scores:.2f}" for unit in units)]
        for each in found
    ]
    return table(["SASS per score, steady loop", "all", *units], rows)


def cycles(as_json: bool) -> str:
    """Cycles of a step from the counts that ship."""
    from mxfp8fa.studies import step_costs as study

    loops = study.shipped_costs()
    pipes = [*study.PIPES.values()]
    if as_json:
        return json.dumps({each.name: {p: asdict(each.step(p)) for p in pipes} for each in loops}, indent=1)
    rows = [[each.name, f"{each.issue():.0f}", *(_range(each.step(pipe)) for pipe in pipes)] for each in loops]
    low, high = study.published_cycles()
    lines = [
        table(["cycles of a step, modelled", "issue", *pipes], rows),
        "",
        f"tensor core {study.tensor_cycles():.0f}; shared memory {study.shared_memory_cycles(pair=False):.0f} with one CTA, "
        f"{study.shared_memory_cycles(pair=True):.0f} with a pair",
        f"published speeds, 2.82 to 2.85 PF at 1.58 to 1.965 GHz: {low:.0f} to {high:.0f} cycles",
    ]
    return "\n".join(lines)


def _range(x: Range) -> str:
    return f"{x.value:.0f}" if x.low == x.high else f"{x.value:.0f} ({x.low:.0f}-{x.high:.0f})"
