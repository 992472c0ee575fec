"""The tour: quantize real and synthetic tensors, run MXFP8 attention forward and backward, compare with float64, draw.

No GPU is used; every number is emulated, that is computed in NumPy with rounding where a Blackwell kernel rounds.
"""

from __future__ import annotations

import argparse

from mxfp8fa.cli import sqnr
from mxfp8fa.cli.console import CommandError, Progress, add_output, output_folder, table, write_whole
from mxfp8fa.cli.figure_registry import FIGURES, render, require_matplotlib, why_not
from mxfp8fa.studies.attention import STANDARD
from mxfp8fa.studies.blocks import QuantizedTensor, example_inputs, quantized_tensors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--output and --no-figures."""
    add_output(parser)
    parser.add_argument("--no-figures", action="store_true", help="print the tables only")


def run(args: argparse.Namespace) -> int:
    """Tables on stdout as they are ready, progress on stderr, figures last."""
    figures = [] if args.no_figures else [name for name in FIGURES if not why_not(name)]
    missing = _why_no_figures() if figures else ""
    if missing:
        figures = []
    folder = output_folder(args.output) if figures else None
    inputs = example_inputs()
    progress = Progress(1 + len(STANDARD) + len(figures))
    with progress.step(f"quantize Q, K, V and dO of {len(inputs)} inputs to MXFP8"):
        tensors = quantized_tensors(inputs)
    print(f"\n1. Quantization to MXFP8 (emulated; E4M3, rule rceil)\n\n{quantization_table(tensors)}\n")
    for one in inputs:
        print(f"{one.name}: {one.origin}")
    print(flush=True)
    summary = sqnr.measure([configuration.name for configuration in STANDARD], progress)
    print(f"\n2. MXFP8 attention, forward and backward (emulated)\n\n{sqnr.report(summary)}\n", flush=True)
    if folder is not None:
        for name in figures:
            with progress.step(str(folder / f"{name}.png")):
                write_whole(folder / f"{name}.png", render(name))
        print(f"3. Figures: {len(figures)} PNG files in {folder}")
        for reason in filter(None, map(why_not, FIGURES)):
            print(f"   Skipped: {reason}")
    elif missing:
        print(f"3. No figures: {missing}")
    print("\nNext: `mxfp8fa sqnr --help` for single choices, `.venv/bin/jupyter lab notebooks` for the course.")
    return 0


def _why_no_figures() -> str:
    """What is missing to draw, or "" if nothing is: the tables do not need matplotlib."""
    try:
        require_matplotlib()
    except CommandError as error:
        return str(error)
    return ""


def quantization_table(tensors: list[QuantizedTensor]) -> str:
    """One row per tensor: its largest magnitude and the SQNR of both kinds of blocks, whole tensor and worst row."""
    header = ["tensor", "largest", "1x32 dB", "worst row", "square dB", "worst row", "subnormal or 0"]
    rows = []
    for t in tensors:
        share = "/".join(f"{100 * t.subnormal_share[kind]:.2f} %" for kind in ("1x32", "square"))
        numbers = [f"{value:.2f}" for kind in ("1x32", "square") for value in (t.db[kind], t.worst_row_db[kind])]
        rows.append([f"{t.inputs} {t.tensor}", f"{t.amax:.3g}", *numbers, share])
    return table(header, rows)
