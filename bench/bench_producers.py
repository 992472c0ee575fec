"""Times of the producers on a CUDA GPU, with ceilings beside them; raw results as JSON.

Run as `python bench/bench_producers.py [--write bench/results/producers_h200.json]`. Medians of CUDA graph replays over
rotating inputs (`mxfp8fa.studies.producers`). Where quack-kernels is installed, its RMSNorm runs beside ours. Minutes on an
H200, most of them compilations.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from mxfp8fa.kernels.producers import quantize
from mxfp8fa.studies.producers import (
    Timing,
    all_timings,
    as_record,
    inputs,
    line,
    measure,
    quantize_bytes,
    surroundings,
)

QUACK_SHAPES = ((16384, 4096), (65536, 4096), (131072, 8192))


def time_quack(shape: tuple[int, int]) -> Timing:
    """quack's RMSNorm, which writes BF16, followed by our quantizer, last axis; launched from the host."""
    from quack.rmsnorm import rmsnorm_fwd

    weight = torch.randn(shape[1], device="cuda").bfloat16()

    def run(x: torch.Tensor) -> object:
        return quantize(rmsnorm_fwd(x, weight, store_rstd=True)[0], axes=(1,))

    us, spread = measure([lambda x=x: run(x) for x in inputs(shape, 2)], graph=False)
    return Timing("rmsnorm_quantize", "quack, then ours", shape, us, spread, quantize_bytes(shape, "last axis") + 4 * shape[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="also write the results to this file")
    parser.add_argument("--only", nargs="+", help="operations, of those that the table names")
    arguments = parser.parse_args()
    timings = []

    def every() -> Iterator[Timing]:
        yield from all_timings(arguments.only)
        if importlib.util.find_spec("quack") is not None:
            yield from map(time_quack, QUACK_SHAPES)

    for timing in every():
        timings.append(timing)
        print(line(timing), flush=True)
        if arguments.write:
            record = {**surroundings(), "timings": as_record(timings)}
            arguments.write.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
