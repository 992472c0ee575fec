"""Redraw the pictures of figures/, each from data computed now."""

from __future__ import annotations

import argparse
import sys

from mxfp8fa.cli.console import CommandError, Progress, add_output, output_folder, write_whole
from mxfp8fa.cli.figure_registry import FIGURES, render, require_matplotlib, why_not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--only and --output."""
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(FIGURES),
        metavar="NAME",
        help="draw these and no others; the names are listed below (default: all for which everything is installed)",
    )
    add_output(parser)
    width = max(map(len, FIGURES))
    lines = [f"  {name:{width}}  {function.__doc__}" for name, function in FIGURES.items()]
    parser.epilog = "figures:\n" + "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Draw the figures asked for."""
    require_matplotlib()
    reasons = {name: reason for name in args.only or FIGURES if (reason := why_not(name))}
    if args.only and reasons:
        raise CommandError("; ".join(reasons.values()))
    names = [name for name in args.only or FIGURES if name not in reasons]
    folder = output_folder(args.output)
    progress = Progress(len(names))
    for reason in reasons.values():
        print(f"skipped: {reason}", file=sys.stderr)
    for name in names:
        path = folder / f"{name}.png"
        with progress.step(str(path)):
            write_whole(path, render(name))
    return 0
