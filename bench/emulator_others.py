"""The emulator beside two others: JAX's Pallas Mosaic-GPU interpret mode and Numba's CUDA simulator.

Run as `OMP_NUM_THREADS=1 python bench/emulator_others.py --others PYTHON [--write]`; PYTHON belongs to an environment with
jax, absl-py and numba (kept apart: they are no dependency). One product of 128 x 128 x 128 with operands brought by TMA, and one
elementwise kernel of 4,096 elements; seconds are of a call after the first, the best of five, by wall and CPU clock.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from bench_quantize import cpu_name

CLOCK = """
import time
def best(name, call):
    call()
    runs = []
    for _ in range(5):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    print("RESULT", name, *min(runs))
"""
OURS = """
import os
os.environ["CUTE_DSL_ARCH"] = "sm_100a"
import numpy as np, torch
from mxfp8fa.emulator import run, run_ptx
from mxfp8fa.kernels import compile_kernel
from mxfp8fa.kernels.steps import step2_k_loop as step
a, b = (torch.randn(128, 128).bfloat16() for _ in range(2))
d = torch.zeros(128, 128)
arguments = step.arguments(a, b, d)
compiled = compile_kernel(step.k_loop, *arguments)
best("product", lambda: run(compiled, *arguments))
assert torch.allclose(d, a.float() @ b.float().T, atol=1e-3)
PTX = '''.version 8.7
.target sm_100a
.address_size 64
.visible .entry f(.param .u64 x, .param .u64 y)
{
  .reg .b32 %i, %b, %t; .reg .f32 %v; .reg .b64 %x, %y, %o;
  mov.u32 %b, %ctaid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %b, 128, %t; mul.wide.u32 %o, %i, 4;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; add.u64 %x, %x, %o; add.u64 %y, %y, %o;
  ld.global.f32 %v, [%x]; fma.rn.f32 %v, %v, 0f40000000, 0f3F800000; st.global.f32 [%y], %v; ret;
}'''
x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
best("elementwise", lambda: run_ptx(PTX, "f", grid=32, block=128, params=[x, y]))
assert (y == 2 * x + 1).all()
"""
JAX = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as gpu
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
shape = (128, 128)
def body(a, b, d, sa, sb, sd, barrier):
    gpu.copy_gmem_to_smem(a, sa, barrier)
    gpu.copy_gmem_to_smem(b, sb, barrier)
    gpu.barrier_wait(barrier)
    def multiply(acc):
        gpu.wgmma(acc, sa, sb)
        return acc[...]
    sd[...] = pl.run_scoped(multiply, gpu.ACC(shape, jnp.float32))
    gpu.commit_smem()
    gpu.copy_smem_to_gmem(sd, d)
    gpu.wait_smem_to_gmem(0)
scratch = [gpu.SMEM(shape, jnp.bfloat16), gpu.SMEM(shape, jnp.bfloat16), gpu.SMEM(shape, jnp.float32)]
f = gpu.kernel(body, out_shape=jax.ShapeDtypeStruct(shape, jnp.float32), scratch_shapes=[*scratch, gpu.Barrier(num_arrivals=2)],
               grid=(1,), grid_names=("x",), num_threads=1, thread_name="t", interpret=InterpretGPUParams())
a, b = (jax.random.normal(jax.random.key(i), shape).astype(jnp.bfloat16) for i in range(2))
best("product", lambda: f(a, b).block_until_ready())
assert jnp.allclose(f(a, b), a.astype(jnp.float32) @ b.astype(jnp.float32), atol=1e-3)
"""
NUMBA = """
import os
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import numpy as np
from numba import cuda
@cuda.jit
def f(x, y):
    i = cuda.grid(1)
    y[i] = x[i] * 2 + 1
x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
best("elementwise", lambda: f[32, 128](x, y))
assert (y == 2 * x + 1).all()
"""


def results(python: str, program: str, environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """(CPU, wall) seconds by task of a program run by an interpreter; its last line of complaint where it fails."""
    done = subprocess.run([python, "-c", CLOCK + program], capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"{python}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return {name: (float(cpu), float(wall)) for name, cpu, wall in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", required=True, metavar="PYTHON")
    parser.add_argument("--write", action="store_true", help="also write bench/results/emulator_others.md")
    arguments = parser.parse_args()
    versions = subprocess.run(
        [arguments.others, "-c", "import jax, numba; print(f'jax {jax.__version__}, numba {numba.__version__}')"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    rows = []
    for name, python, program in (
        ("mxfp8fa", sys.executable, OURS),
        ("JAX Pallas Mosaic GPU, interpret mode (wgmma: it has no tcgen05.mma)", arguments.others, JAX),
        ("Numba CUDA simulator (no TMA, no MMA)", arguments.others, NUMBA),
    ):
        found = results(python, program, {"JAX_PLATFORMS": "cpu"})
        cells = [" / ".join(f"{1000 * s:.0f}" for s in found[t]) if t in found else "" for t in ("product", "elementwise")]
        rows.append("| " + " | ".join([name, *cells]) + " |")
    head = f"""\
        # This emulator beside others

        Emulated, {datetime.date.today()}: {cpu_name()}; {versions}.
        `OMP_NUM_THREADS=1 python bench/emulator_others.py --others PYTHON --write`, load average
        {os.getloadavg()[0]:.1f}: read CPU time, other work makes wall time long.

        Milliseconds of a call after the first, CPU / wall, best of five by CPU time: a product of 128 x 128 x 128 (BF16,
        operands by TMA), and y = 2 x + 1 on 4,096 float32 in 32 blocks of 128 threads. They do different work: this
        emulator executes the compiled PTX, JAX interprets Python's operations on whole tiles, Numba runs every thread as an
        OS thread in Python.

        | emulator | product, ms | elementwise, ms |
        |---|---|---|
        """
    text = textwrap.dedent(head) + "\n".join(rows) + "\n"
    print(text)
    if arguments.write:
        (Path(__file__).parent / "results" / "emulator_others.md").write_text(text)


if __name__ == "__main__":
    main()
