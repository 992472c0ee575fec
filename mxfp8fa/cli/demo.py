"""The tour: quantize real tensors, run the compiled attention kernel on them, compare with float64, draw what happened.

No GPU is used. The kernel is compiled for sm_100a, and its PTX is executed by the emulator; the other numbers are
computed in NumPy, with rounding where a Blackwell kernel rounds. All of them are emulated.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mxfp8fa.cli import sqnr
from mxfp8fa.cli.console import CommandError, Progress, add_output, output_folder, table, write_whole
from mxfp8fa.cli.figure_registry import FIGURES, render, require_matplotlib, why_not
from mxfp8fa.studies.attention import STANDARD
from mxfp8fa.studies.blocks import QuantizedTensor, example_inputs, quantized_tensors

if TYPE_CHECKING:
    from mxfp8fa.studies.forward_runs import RealRun

KERNEL_PACKAGES = ("torch", "cutlass", "llvmlite")


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
    missing_packages = [name for name in KERNEL_PACKAGES if importlib.util.find_spec(name) is None]
    inputs = example_inputs()
    progress = Progress(1 + 2 * (not missing_packages) + len(STANDARD) + len(figures))
    with progress.step(f"quantize Q, K, V and dO of {len(inputs)} inputs to MXFP8"):
        tensors = quantized_tensors(inputs)
    print(f"\n1. Quantization to MXFP8 (emulated; E4M3, rule rceil)\n\n{quantization_table(tensors)}\n")
    for one in inputs:
        print(f"{one.name}: {one.origin}")
    print("\n2. The kernel: MXFP8 FlashAttention-4, compiled for sm_100a, its PTX executed here (emulated)\n", flush=True)
    print(_run_kernel(progress) if not missing_packages else _without_kernels(missing_packages), flush=True)
    summary = sqnr.measure([configuration.name for configuration in STANDARD], progress)
    print(f"\n3. MXFP8 attention in NumPy, forward and backward (emulated)\n\n{sqnr.report(summary)}\n", flush=True)
    if folder is not None:
        for name in figures:
            with progress.step(str(folder / f"{name}.png")), _quiet():
                write_whole(folder / f"{name}.png", render(name))
        print(f"4. Figures: {len(figures)} PNG files in {folder}")
        for reason in filter(None, map(why_not, FIGURES)):
            print(f"   Skipped: {reason}")
        if not missing_packages:
            print("   forward_timeline and forward_tensor_memory show the kernel of part 2 at work.")
    elif missing:
        print(f"4. No figures: {missing}")
    print("\nNext: `mxfp8fa sqnr --help` for single choices, `.venv/bin/jupyter lab notebooks` for the course.")
    return 0


def _run_kernel(progress: Progress) -> str:
    """Compile, run, compare."""
    with _quiet():
        with progress.step("load the CuTe DSL and compile the forward kernel for sm_100a"):
            from mxfp8fa.studies.forward_runs import compile_for_real_run, real_run

            compile_for_real_run()
        with progress.step("execute its PTX on Q, K and V of minilm-layer0"):
            found = real_run()
    return kernel_report(found)


def kernel_report(found: RealRun) -> str:
    """What the run of the kernel gave, in sentences."""
    (launch,) = found.report.launches
    _, seqlen, heads, head_dim = found.inputs.q.shape
    same = "bit for bit those of the NumPy model" if found.equal_to_model else "NOT those of the NumPy model"
    padding = "zero" if found.padding_is_zero else "NOT zero"
    return (
        f"{found.inputs.name}: {heads} heads, {seqlen} queries and keys, head_dim {head_dim}, zero-padded to 64 (the kernel "
        f"takes 64 and 128);\nsoftmax_scale = 1 / sqrt({head_dim}) is that of the unpadded head. Columns of O beyond "
        f"{head_dim}: {padding}.\n"
        f"{launch.grid[0]} CTAs of {launch.block[0]} threads, {launch.warp_instructions:,} warp-instructions.\n"
        f"O and lse: {same}.\n"
        f"SQNR of O against float64: {found.sqnr_db:.2f} dB, worst row {found.worst_row_db:.1f} dB."
    )


def _without_kernels(missing: list[str]) -> str:
    return f"Skipped: it needs {', '.join(missing)}: pip install 'mxfp8fa[kernels]' (published for Linux only)"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of the CuTe DSL and of the emulator about its progress: the steps here have their own."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        yield


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
