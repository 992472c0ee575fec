"""Time of the numerics on one 128 x 128 tile: exp2, encode, decode, and mma over K = 128 in its three models.

Run as `OMP_NUM_THREADS=1 python bench/bench_tiles.py [--write bench/results/tiles.md]`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import timeit
from pathlib import Path

import numpy as np
from bench_quantize import cpu_name

from mxfp8fa.numerics import decode, encode, exp2, mma, quantize

SIDE = 128


def operations() -> dict:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(2))
    a, b = quantize(x), quantize(y)
    codes = encode(x, "e4m3")
    return {
        "exp2": lambda: exp2(x),
        "encode to E4M3": lambda: encode(x, "e4m3"),
        "decode from E4M3": lambda: decode(codes, "e4m3"),
        "quantize, 1x32": lambda: quantize(x),
        'mma, "exact"': lambda: mma(a, b, accumulate="exact"),
        'mma, "float32"': lambda: mma(a, b, accumulate="float32"),
        'mma, "blackwell"': lambda: mma(a, b, accumulate="blackwell"),
    }


def report() -> str:
    lines = [
        "# One 128 x 128 tile (mma: K = 128) in NumPy",
        "",
        f"Measured {datetime.date.today()} on {cpu_name()}; Python {platform.python_version()}, "
        f"numpy {importlib.metadata.version('numpy')}; best of 20 times 10 calls,",
        "`OMP_NUM_THREADS=1 python bench/bench_tiles.py`.",
        "",
        "| operation | ms |",
        "|---|---|",
    ]
    for name, run in operations().items():
        run()
        lines.append(f"| {name} | {min(timeit.repeat(run, number=10, repeat=20)) * 100:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    text = report()
    print(text)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
