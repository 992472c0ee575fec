"""How fast the emulator is: flash-attn-4's BF16 forward and our MXFP8 forward by length, grid, engine and options.

Run as `OMP_NUM_THREADS=1 python bench/bench_emulator.py [--write]`; a few minutes. Seconds are those of the launch: the
DSL's compilation, reading and binding the PTX, and making machine code are timed apart, in the first run of a kernel.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import sys
import time
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("QUACK_CACHE_ENABLED", "0")

import torch
from bench_quantize import cpu_name

from mxfp8fa import emulator
from mxfp8fa.emulator import api
from mxfp8fa.studies.emulator_results import Launch, growth

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "bench" / "results" / "emulator_speed.md"
DATA = ROOT / "mxfp8fa" / "studies" / "data" / "emulator_speed.json"
SIZES = (256, 512, 1024, 2048, 4096)
HEADS = (1, 2, 4, 8)
REPEATS = 5
GOAL = 5e6  # warp-instructions a second, flash-attn-4's forward at 2048 x 2048


@dataclass(frozen=True)
class Kernel:
    """A forward: its name, how to call it with (q, k, v), and the context in which it is emulated."""

    name: str
    function: Callable[..., Any]
    context: Callable[..., AbstractContextManager[Any]]
    cuda: bool


def flash_attention() -> Any:
    """flash_attn_func; quack, which it imports, wants triton for benchmarks only."""
    import mxfp8fa.emulator.host  # noqa: F401  (from here on compiled functions keep their PTX)

    if importlib.util.find_spec("triton") is None:
        import torch._inductor.compile_fx
        import torch._inductor.runtime.triton_compat  # noqa: F401

        stub = types.ModuleType("triton")
        stub.runtime = types.SimpleNamespace(cache=types.SimpleNamespace(FileCacheManager=object))  # type: ignore[attr-defined]
        sys.modules["triton"] = stub
    import quack.cache
    from flash_attn.cute import flash_attn_func, utils

    quack.cache.CACHE_ENABLED = False
    utils._fa_disable_2cta_enabled = True
    return flash_attn_func


def kernels() -> tuple[Kernel, Kernel]:
    """flash-attn-4's forward, and ours."""
    from mxfp8fa.attention import emulation, flash_attn_func

    theirs = Kernel("flash-attn-4 forward, BF16", flash_attention(), emulator.active, cuda=True)
    return theirs, Kernel("our forward, MXFP8", flash_attn_func, emulation, cuda=False)


class Clock:
    """Wall and CPU seconds of every launch, without host code."""

    def __init__(self) -> None:
        self.launches: list[tuple[float, float]] = []
        self._run = api.run_machine

    def __call__(self, *arguments: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        machine = self._run(*arguments)
        self.launches.append((time.perf_counter() - wall, time.process_time() - cpu))
        return machine


def call(kernel: Kernel, seqlen: int, heads: int = 1, **options: Any) -> tuple[Any, float, float]:
    """One call: the report, wall and CPU seconds of its longest launch."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, heads, 128, generator=g).bfloat16() for _ in range(3))
    clock = Clock()
    with mock.patch.object(api, "run_machine", clock), kernel.context(**options) as report:
        kernel.function(*((x.cuda() for x in (q, k, v)) if kernel.cuda else (q, k, v)))
    return report, *max(clock.launches)


def measure(kernel: Kernel, seqlen: int, heads: int = 1, repeats: int = REPEATS, **options: Any) -> Launch:
    """The best of a few calls, after two that make the machine code."""
    if options.get("engine") != "numpy":
        for _ in range(2):
            call(kernel, seqlen, heads, **options)
    runs = [call(kernel, seqlen, heads, **options) for _ in range(repeats)]
    report, wall, cpu = min(runs, key=lambda r: r[1])
    text = ", ".join(f"{k}={v}" for k, v in options.items()) or "default"
    launch = max(report.launches, key=lambda x: x.warp_instructions)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = Launch(
        kernel.name, seqlen, heads, text, launch.grid[0] * launch.grid[1] * launch.grid[2], launch.warp_instructions,
        wall, cpu, memory,
    )  # fmt: skip
    print(f"{found.kernel}, {seqlen} tokens, {heads} heads, {text}: {wall:.3f} s, {found.rate:,.0f} a second", flush=True)
    return found


def first_call(kernel: Kernel) -> str:
    """What the first call of a kernel costs beside the launch itself."""
    start = time.perf_counter()
    _, wall, cpu = call(kernel, 512)
    total = time.perf_counter() - start
    call(kernel, 512)
    _, again, cpu_again = call(kernel, 512)
    return (
        f"First call of {kernel.name} at 512 x 512: {total:.1f} s, of which {wall:.2f} s are the launch (CPU {cpu:.2f} s; a "
        f"third call takes {again:.2f} s, CPU {cpu_again:.2f} s: the difference is machine code being made). The rest is the "
        "DSL's compilation and reading the PTX."
    )


def page(launches: list[Launch], firsts: list[str], record: dict[str, Any]) -> str:
    """The results file."""
    rows = [
        f"| {x.kernel} | {x.seqlen} | {x.heads} | {x.options} | {x.ctas} | {x.warp_instructions:,} | {x.wall_s:.3f} "
        f"| {x.cpu_s:.3f} | {x.rate:,.0f} | {x.memory_mib:,.0f} |"
        for x in launches
    ]
    at_goal = next(x for x in growth(launches, launches[0].kernel) if x.seqlen == 2048)
    verdict = "met" if at_goal.rate >= GOAL else "missed"
    return "\n".join(
        [
            "# Speed of the emulator",
            "",
            f"Emulated, {record['date']}: {record['machine']}; {record['versions']}.",
            "`OMP_NUM_THREADS=1 python bench/bench_emulator.py --write`, one thread, load average "
            f"{record['load']:.1f} at the start.",
            "",
            f"One forward, head_dim 128, not causal, one CTA per tile pair. Best of {REPEATS} launches (1 where a row has "
            "options) by wall time; the rate is warp-instructions per second of wall time. Memory is the peak of the process up "
            "to then, most of it torch and the DSL.",
            "",
            "| kernel | tokens | heads | options | CTAs | warp-instructions | wall s | CPU s | a second | peak MiB |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            *[line for text in firsts for line in (text, "")],
            f"The goal for flash-attn-4 at 2048 x 2048, {GOAL / 1e6:.0f} million warp-instructions a second on 2 cores, is "
            f"{verdict} with one thread: {at_goal.rate / 1e6:.2f} million. Under `accumulate=blackwell`, with the checker and "
            "under other schedules memory accesses and products are Python steps, and so much slower.",
            "",
            "![Time and memory by sequence length and grid](../../figures/emulator_speed.png)",
            "",
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also write the page in bench/results and the figure's data")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    packages = ("flash-attn-4", "nvidia-cutlass-dsl", "llvmlite", "numpy")
    record: dict[str, Any] = {
        "date": str(datetime.date.today()), "machine": cpu_name(), "load": os.getloadavg()[0],
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages),
    }  # fmt: skip
    both = kernels()
    firsts = [first_call(kernel) for kernel in both]
    launches = [measure(kernel, n) for n in arguments.sizes for kernel in both]
    launches += [measure(kernel, 512, heads) for heads in HEADS[1:] for kernel in both]
    slow: tuple[dict[str, Any], ...] = ({"engine": "numpy"}, {"accumulate": "blackwell"}, {"check": "races"}, {"schedule": "lazy"})
    launches += [measure(kernel, 512, repeats=1, **options) for kernel in both for options in slow]
    launches.sort(key=lambda x: (x.options != "default", x.kernel, x.heads, x.seqlen))
    text = page(launches, firsts, record)
    print(text)
    if arguments.write:
        PAGE.write_text(text)
        DATA.write_text(json.dumps(record | {"launches": [asdict(x) for x in launches]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
