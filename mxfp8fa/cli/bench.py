"""Measure kernels on this machine's CUDA GPU; every time is a median beside the ceiling it is compared with.

`producers` needs a Hopper or Blackwell GPU. The attention kernels need tensor memory, which only Blackwell has.

Without a GPU: `module` models the time of a whole attention module from rates with their sources; `stabilization` computes
what each option that steadies training does to the signal of O, dQ, dK and dV and to causality (emulated, half a minute),
beside what it did to a model in training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from dataclasses import asdict

from mxfp8fa.cli.console import CommandError, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and --json."""
    parser.add_argument("what", choices=["producers", "module", "stabilization"], help="what, see above")
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
    if args.what == "module":
        return _module(args.json)
    if args.what == "stabilization":
        return _stabilization(args.json)
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


def _module(as_json: bool) -> int:
    """The modelled module, forward and in training."""
    from mxfp8fa.studies.module_speed import MODELLED_RATES, PUBLISHED_RATES, STEPS, WAYS, Module, rows

    module, found = Module(), rows()
    crossovers = {
        step: {rates.name: {way: module.crossover(rates, way, step) for way in WAYS} for rates in (PUBLISHED_RATES, MODELLED_RATES)}
        for step in STEPS
    }
    if as_json:
        content = {"kind": "modelled", "width": module.width, "rows": [asdict(row) for row in found]}
        print(json.dumps({**content, "crossover_kv_tokens": crossovers}, indent=2))
        return 0
    header = ("rates", "quantization", "KV tokens", "gain over BF16", "published", "quantization takes")
    words = {"forward": "forward", "training": "training step, forward and backward (published: which of them is not stated)"}
    for step in STEPS:
        print(f"attention module, width {module.width}, {words[step]}: modelled for a B200 from rates, not timed")
        cells = [
            (each.rates, WAYS[each.way], f"{each.kv_tokens:,}", *(f"{x:.2f}x" for x in (each.gain, each.published)),
             f"{100 * each.eaten:.0f} %")
            for each in found if each.step == step
        ]  # fmt: skip
        print(table(header, cells))
        for name, by_way in crossovers[step].items():
            words_by_way = (f"{way}: {'never' if n is None else f'from {n:,.0f} KV tokens'}" for way, n in by_way.items())
            print(f"faster than BF16 with {name}: {'; '.join(words_by_way)}")
        print()
    return 0


def _stabilization(as_json: bool) -> int:
    """The emulated ablation."""
    from mxfp8fa.studies.stabilization import CASES, DO_SIZES_LOG2, ablation, dq_scales, in_training, leaks, lines

    if as_json:
        content = {"sqnr_db": {case: ablation(case) for case in CASES}, "leak": leaks(), "dq_scale_sqnr_db": dq_scales()}
        print(json.dumps({"kind": "emulated", **content}, indent=2))
        return 0
    for case in CASES:
        print(f"{case}: SQNR against float64 in dB; below the first row, the difference to it (emulated)")
        print(table(("option", "O", "dQ", "dK", "dV", "what it does"), lines(case)), flush=True)
    print("\nChange of earlier rows, causal, when a later token of Q, K or V grows by 2^8, over their largest element (emulated)")
    print(table(("option", "leak"), [(name, f"{x:.2g}") for name, x in leaks().items()]), flush=True)
    print("\ngaussian-d64-causal: SQNR of dQ summed in FP16, dB, by its scale and by the size of dO (emulated)")
    rows = [(name, *("overflow" if x is None else f"{x:.2f}" for x in by_size.values())) for name, by_size in dq_scales().items()]
    print(table(("scale", *(f"dO x 2^{size}" for size in DO_SIZES_LOG2)), rows))
    print("\nIn training (measured on an H200; `train-demo --task module --shipped` says how): loss at the end less BF16's, nats")
    print(table(("attention", "validation", "training", "gradient of Q, dB"), in_training()))
    return 0
