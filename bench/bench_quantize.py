"""Quantize 4096 x 4096 float32 to MXFP8 (E4M3, 1x32, rceil): time, extra memory and edge blocks, beside torchao.

torchao's contender is its eager RCEIL, `to_mx(..., ScaleCalculationMode.RCEIL)`, with one and with two threads; ours is
NumPy on one. The contenders take turns within the same process, so that all see the same machine. Edge blocks are
compared with exact rational arithmetic (`quantize_block_scalar`). Needs the extra `peers`.

    python bench/bench_quantize.py [--rounds 15] [--write bench/results/quantize.md]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mxfp8fa.numerics import MXTensor, decode, quantize, quantize_block_scalar

SIDE = 4096
FLT_MAX = float(np.finfo(np.float32).max)
OURS, ONE_THREAD, TWO_THREADS = "mxfp8fa, 1 thread", "torchao eager RCEIL, 1 thread", "torchao eager RCEIL, 2 threads"


def ours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q = quantize(x)
    return q.codes, q.scale_e8m0


def torchao_rceil(threads: int) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    def run(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        torch.set_num_threads(threads)
        scale, codes = to_mx(torch.from_numpy(x), torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
        return codes.view(torch.uint8).numpy(), scale.view(torch.uint8).numpy()

    return run


CONTENDERS = {
    OURS: lambda: ours,
    ONE_THREAD: lambda: torchao_rceil(1),
    TWO_THREADS: lambda: torchao_rceil(2),
}


def times_ms(rounds: int, x: np.ndarray) -> dict[str, list[float]]:
    runs = {name: make() for name, make in CONTENDERS.items()}
    for run in runs.values():
        run(x)
    result: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run(x)
            result[name].append(1e3 * (time.perf_counter() - start))
    return result


def extra_memory_mb(name: str) -> float:
    """Growth of peak resident memory by one call, results included, in a fresh process (Linux)."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_extra_memory_mb, (name,))


def _extra_memory_mb(name: str) -> float:
    run = CONTENDERS[name]()
    run(np.ones((64, 64), np.float32))  # imports and one-time allocations
    x = data()
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is resident now
    before = _status_kb("VmRSS")
    run(x)
    return (_status_kb("VmHWM") - before) / 1024


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def data() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)


def edge_blocks() -> dict[str, np.ndarray]:
    """Blocks of 32 by name: the named magnitude, then half, a third and minus a fifth of it, then zeros."""
    just_below = lambda v: float(np.nextafter(np.float32(v), np.float32(0)))  # noqa: E731
    just_above = lambda v: float(np.nextafter(np.float32(v), np.float32(np.inf)))  # noqa: E731
    amax = {"zeros": 0.0, "448": 448.0, "449": 449.0, "464": 464.0, "480": 480.0, "511.99": 511.99, "512": 512.0}
    amax |= {"1.75": 1.75, "next above 1.75": just_above(1.75), "1.875": 1.875, "next below 1": just_below(1.0)}
    amax |= {"3.99": 3.99, "next below 8": just_below(8.0), "2^127": 2.0**127, "FLT_MAX": FLT_MAX}
    amax |= {f"2^{k}": 2.0**k for k in (-118, -119, -120, -122, -124, -126, -127, -130, -133, -136, -149)}
    blocks = {}
    for name, value in amax.items():
        block = np.zeros(32, np.float32)
        block[:4] = np.array([value, value / 2, value / 3, -value / 5]).astype(np.float32)
        blocks[name] = block
    for name, value in {"minus zeros": -0.0, "one NaN": np.nan, "one inf": np.inf, "one -inf": -np.inf}.items():
        block = np.full(32, value if name == "minus zeros" else 1.0, np.float32)
        block[7] = value
        blocks[name] = block
    return blocks


def wrong_edge_blocks(run: Callable) -> list[str]:
    """Names of the blocks whose scale code or values (any NaN is NaN) differ from exact arithmetic."""
    wrong = []
    for name, block in edge_blocks().items():
        scale, codes = quantize_block_scalar(block.tolist())
        got_codes, got_scale = run(np.tile(block, (1, 4)))
        got = MXTensor(np.ascontiguousarray(got_codes[:, :32]), np.ascontiguousarray(got_scale[:, :1]))
        expected = decode(np.array(codes, np.uint8), "e4m3").astype(np.float64) * float(decode(np.uint8(scale), "e8m0"))
        if got_scale[0, 0] != scale or not np.array_equal(got.dequantize(np.float64)[0], expected, equal_nan=True):
            wrong.append(name)
    return wrong


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    return f"{model}, {os.cpu_count()} vCPUs, AVX-512 {'yes' if 'avx512f' in flags else 'no'}"


def report(rounds: int) -> str:
    x = data()
    load = os.getloadavg()[0]
    measured = times_ms(rounds, x)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "torch", "torchao"))
    lines = [
        "# Quantizing 4096 x 4096 float32 to MXFP8 (E4M3, 1x32, rceil)",
        "",
        f"Measured {datetime.date.today()} on {cpu_name()}; Python {platform.python_version()}, {versions}.",
        f"{rounds} rounds, contenders in turn in one process; load average of the machine before: {load:.1f}.",
        f"`python bench/bench_quantize.py --rounds {rounds}`",
        "Extra memory is the growth of peak resident memory, results (17 MB) included, in a fresh process.",
        "",
        "| | median ms | best ms | GB/s of input at best | extra MB | edge blocks wrong |",
        "|---|---|---|---|---|---|",
    ]
    details = []
    for name, make in CONTENDERS.items():
        wrong = wrong_edge_blocks(make())
        best = min(measured[name])
        lines.append(
            f"| {name} | {statistics.median(measured[name]):.0f} | {best:.0f} | {x.nbytes / best / 1e6:.2f} | "
            f"{extra_memory_mb(name):.0f} | {len(wrong)} of {len(edge_blocks())} |"
        )
        if wrong and name != TWO_THREADS:
            details.append(f"{name.split(',')[0]} is wrong on blocks whose largest magnitude is: {', '.join(wrong)}.")
    return "\n".join([*lines, "", *details]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of every contender (default 15)")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    text = report(arguments.rounds)
    print(text)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
