"""Run a kernel and draw what happened: who ran and waited when, what tensor and shared memory held, who waits for whom.

Writes into the output folder: timeline.png, tensor_memory.png, shared_ring.png, barriers.png and trace.json, which
https://ui.perfetto.dev and chrome://tracing open. Time is counted in steps of the emulation: an order, not cycles.

TARGET is step2 or step3 (matrix products of this package), step6 or step7 (its attention loops), forward (the
attention kernel), backward and backward-fp16 (the main kernel of its gradient, dQ added up in FP32 or FP16), jagged and
jagged-backward (the same on packed sequences), flash-attn-4 (in a checkout, with the extra `peers`), or FILE.py:FUNCTION,
a function that returns (compiled, args) or (compiled, args, names).
Exit status: 0; 3 when the kernel did something wrong.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mxfp8fa.cli.console import CommandError, output_folder, write_whole
from mxfp8fa.emulator.machine.asynchronous import SCHEDULES

if TYPE_CHECKING:
    from mxfp8fa.emulator import Trace

_KERNEL_ERROR = 3
_PICTURES = {
    "timeline": ("fig_timeline", "What each warp and each asynchronous agent did"),
    "tensor_memory": ("fig_tensor_memory", "Who wrote and who read which columns of tensor memory"),
    "shared_ring": ("fig_shared_ring", "What TMA brought into shared memory, and how long it was needed"),
    "barriers": ("fig_barriers", "Who arrives on which mbarrier, and who waits for it"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Target, folder, and how to run."""
    parser.add_argument("target", metavar="TARGET", help="a name from the list above or FILE.py:FUNCTION")
    parser.add_argument(
        "--out", metavar="DIR", default="trace", help="folder for the files, made if missing (default: trace)"
    )
    parser.add_argument(
        "--schedule", choices=SCHEDULES, default="random", help="when asynchronous work completes (default: random)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of --schedule random (default: 1)")
    parser.add_argument("--sm-count", type=int, default=1, help="SMs of the device (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Run the target once and write the files."""
    from mxfp8fa.cli.targets import load_target
    from mxfp8fa.emulator import EmulationError, Trace
    from mxfp8fa.emulator import run as emulate

    if args.sm_count < 1:
        raise CommandError(f"--sm-count {args.sm_count}: at least 1")
    folder = output_folder(args.out)
    target = load_target(args.target)
    trace = Trace.named(target.names)
    how = {"schedule": args.schedule, "seed": args.seed, "sm_count": args.sm_count, **target.options}
    try:
        report = emulate(target.compiled, *target.args, trace=trace, **how)
    except EmulationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _KERNEL_ERROR
    write_whole(folder / "trace.json", trace.to_perfetto().encode())
    schedule = args.schedule + (f" (seed {args.seed})" if args.schedule == "random" else "")
    drawn = draw(trace, f"{args.target}, schedule {schedule}, {report.warp_instructions:,} warp-instructions")
    for name, png in drawn.items():
        write_whole(folder / f"{name}.png", png)
    print("\n".join(str(folder / name) for name in [*(f"{name}.png" for name in drawn), "trace.json"]))
    return 0


def draw(trace: Trace, parameters: str) -> dict[str, bytes]:
    """The pictures that have something to show: name -> PNG."""
    from matplotlib import pyplot as plt

    from mxfp8fa.plots import pipeline
    from mxfp8fa.plots.style import png_bytes

    shown = {"timeline": trace.spans, "tensor_memory": trace.tensor_accesses, "shared_ring": trace.stays(),
             "barriers": trace.barrier_graph()}  # fmt: skip
    files = {}
    for name, (function, finding) in _PICTURES.items():
        if shown[name]:
            figure = getattr(pipeline, function)(trace, finding=finding, parameters=parameters)
            files[name] = png_bytes(figure)
            plt.close(figure)
    return files
