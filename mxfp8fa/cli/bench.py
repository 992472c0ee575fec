"""Measure kernels on this machine's CUDA GPU; every time is a median beside the ceiling it is compared with.

`producers` needs a Hopper or Blackwell GPU. The attention kernels need tensor memory, which only Blackwell has.
"""

from __future__ import annotations

import argparse
import importlib.util
import json

from mxfp8fa.cli.console import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and --json."""
    parser.add_argument("what", choices=["producers"], help="which kernels")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")


def not_run(target: str) -> str:
    """Which kernels of this package the GPU cannot run, or are not timed here."""
    if target == "sm_90a":
        return (
            "Not run: the tcgen05 main loop of gemm_quantize, the forward and the backward of attention; this GPU (compute "
            "capability 9.0) has no tensor memory."
        )
    return "Not run: the wgmma main loop of gemm_quantize; only compute capability 9.0 has wgmma."


def run(args: argparse.Namespace) -> int:
    """Measure and print, line by line or as JSON."""
    missing = [name for name in ("torch", "cutlass") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"timing kernels needs {', '.join(missing)}: pip install 'mxfp8fa[kernels]'")
    import torch

    from mxfp8fa.studies.producers import all_timings, as_record, line, surroundings

    if not torch.cuda.is_available():
        raise CommandError("there is no CUDA GPU here; committed results: bench/results/producers_h200.json")
    from mxfp8fa.kernels.producers.data import target_for

    try:
        target = target_for(torch.device("cuda"))
    except ValueError as error:
        raise CommandError(f"no producer runs on this GPU: {error}") from None
    timings = []
    for timing in all_timings():
        timings.append(timing)
        if not args.json:
            print(line(timing), flush=True)
    if args.json:
        print(json.dumps({**surroundings(), "timings": as_record(timings)}, indent=2))
    else:
        print(not_run(target))
    return 0
