"""How fast the emulator is: flash-attn-4's BF16 forward, one head, head_dim 128, by sequence length, engine and options.

Run as `OMP_NUM_THREADS=1 python bench/bench_emulator.py [--write]`; a few minutes. Seconds are those of the launch: the
DSL's compilation, reading and binding the PTX, and making machine code are timed apart, in the first run of the kernel.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import resource
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
os.environ.setdefault("QUACK_CACHE_ENABLED", "0")

from bench_quantize import cpu_name

from mxfp8fa import emulator
from mxfp8fa.emulator import api

RESULTS = Path(__file__).parent / "results"
SIZES = (256, 512, 1024, 2048)
REPEATS = 3


@dataclass(frozen=True)
class Line:
    """One configuration: sequence length, options, CTAs, warp-instructions, best wall and CPU seconds, peak memory."""

    seqlen: int
    options: str
    ctas: int
    warp_instructions: int
    wall_s: float
    cpu_s: float
    memory_mib: float

    @property
    def rate(self) -> float:
        """Warp-instructions a second of CPU time."""
        return self.warp_instructions / self.cpu_s


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


def call(function: Any, seqlen: int, **options: Any) -> tuple[Any, float, float]:
    """One call: the report, wall and CPU seconds of its launch."""
    import torch

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, 1, 128, generator=g).bfloat16() for _ in range(3))
    clock = Clock()
    with mock.patch.object(api, "run_machine", clock), emulator.active(**options) as report:
        function(*(x.cuda() for x in (q, k, v)))
    ((wall, cpu),) = clock.launches
    return report, wall, cpu


def measure(function: Any, seqlen: int, repeats: int = REPEATS, **options: Any) -> Line:
    """The best of a few calls, after two that make the machine code."""
    if options.get("engine") != "numpy":
        for _ in range(2):
            call(function, seqlen, **options)
    runs = [call(function, seqlen, **options) for _ in range(repeats)]
    report, wall, cpu = min(runs, key=lambda r: r[2])
    text = ", ".join(f"{k}={v}" for k, v in options.items()) or "default"
    (launch,) = report.launches
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    return Line(seqlen, text, ctas, report.warp_instructions, wall, cpu, memory)


def first_call(function: Any) -> str:
    """What the first call of the kernel costs beside the launch itself."""
    start = time.perf_counter()
    _, wall, cpu = call(function, 512)
    total = time.perf_counter() - start
    _, again, cpu_again = call(function, 512)
    return (
        f"First call at 512 x 512: {total:.1f} s, of which {wall:.1f} s are the launch (CPU {cpu:.1f} s; a second call takes "
        f"{again:.1f} s, CPU {cpu_again:.1f} s: the difference is machine code being made). The rest is the DSL's compilation "
        "and reading the PTX."
    )


def table(lines: list[Line], first: str) -> str:
    """The results file."""
    packages = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("flash-attn-4", "nvidia-cutlass-dsl", "llvmlite", "numpy")
    )
    rows = [
        f"| {x.seqlen} | {x.options} | {x.ctas} | {x.warp_instructions:,} | {x.wall_s:.2f} | {x.cpu_s:.2f} | {x.rate:,.0f} | "
        f"{x.memory_mib:,.0f} |"
        for x in lines
    ]
    return "\n".join(
        [
            "# Speed of the emulator",
            "",
            f"Emulated, {datetime.date.today()}: {cpu_name()}; Python {platform.python_version()}, {packages}.",
            "`OMP_NUM_THREADS=1 python bench/bench_emulator.py --write`, one thread, load average "
            f"{os.getloadavg()[0]:.1f}: other work ran beside it, so wall time says little and CPU time is an upper limit.",
            "",
            "flash-attn-4's BF16 forward, one head, head_dim 128, not causal, one CTA per tile pair. Best of "
            f"{REPEATS} launches, by CPU time; the rate is warp-instructions per second of CPU time. Memory is the peak of the "
            "process up to then, most of it torch and the DSL.",
            "",
            "| seqlen | options | CTAs | warp-instructions | wall s | CPU s | a second | peak MiB |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            first,
            "",
            "The goal for 2048 x 2048, 5 million a second, is missed. Registers, tensor memory and products are machine code; "
            "most of what is left is Python: turns of warps, waits, named barriers, branches that split a warp, TMA.",
            "",
            "![Time and memory by sequence length](emulator_speed.png)",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also write bench/results/emulator_speed.md and .png")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    function = flash_attention()
    first = first_call(function)
    growth = [measure(function, n) for n in arguments.sizes]
    others = [
        measure(function, 512, 1, engine="numpy"),
        measure(function, 512, 1, accumulate="blackwell"),
        measure(function, 512, 1, check="races"),
    ]
    text = table(growth + others, first)
    print(text)
    if arguments.write:
        from mxfp8fa.plots.emulator_speed import fig_emulator_speed
        from mxfp8fa.plots.style import png_bytes

        (RESULTS / "emulator_speed.md").write_text(text)
        figure = fig_emulator_speed([(x.seqlen, x.cpu_s, x.memory_mib) for x in growth])
        (RESULTS / "emulator_speed.png").write_bytes(png_bytes(figure))


if __name__ == "__main__":
    main()
