"""Mutation study of the race checker: how many broken synchronisation instructions it notices.

Run as `OMP_NUM_THREADS=1 python bench/mutation.py TARGET... [--write]`; TARGET is what `mxfp8fa mutate` takes (step2, step3,
forward, flash-attn-4). --write puts each table into bench/results/mutation_TARGET.md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import sys
import time
from pathlib import Path

from bench_quantize import cpu_name

from mxfp8fa.cli.mutate import report
from mxfp8fa.cli.targets import load_target
from mxfp8fa.emulator.mutate import SCHEDULES, Study, Verdict, run_study

RESULTS = Path(__file__).parent / "results"
ABOUT = {
    "step2": "our TMA + tcgen05 GEMM (`mxfp8fa.kernels.steps.step2_k_loop`), BF16, 256 x 128 x 448: two CTAs, a ring of three "
    "stages around seven tiles of K",
    "step3": "our block-scaled GEMM (`mxfp8fa.kernels.steps.step3_block_scaled`), MXFP8, 128 x 128 x 896: a ring of three "
    "stages around seven tiles of K",
    "forward": "our MXFP8 attention, forward (`mxfp8fa.kernels.forward`, d = 64, not causal), four heads of 130 queries x 200 "
    "keys, one after another in one persistent CTA, and then one head of 130 x 40",
    "backward": "our MXFP8 attention, main kernel of the backward (`mxfp8fa.kernels.backward`, d = 64, not causal), 500 queries x "
    "100 keys: four tiles of queries, so that every ring comes around",
    "backward-fp16": "our MXFP8 attention, main kernel of the backward with dQ added up in FP16 (`dq_accumulate`; d = 64, not "
    "causal), 500 queries x 100 keys: four tiles of queries, so that every ring comes around",
    "jagged": "our MXFP8 attention, forward, on packed sequences (d = 64, not causal): 130, 20, 0 and 40 queries x 200, 0, 30 and "
    "70 keys, three heads, all in one persistent CTA, and then one head of one sequence, 130 x 40",
    "jagged-backward": "our MXFP8 attention, main kernel of the backward, on packed sequences (d = 64, not causal): 400, 0, 20 and "
    "130 queries x 70, 5, 0 and 30 keys, a CTA for every tile of keys",
    "step6": "our attention loop (`mxfp8fa.kernels.steps.step6_kv_loop`), MXFP8, 128 queries x 600 keys, d = 64",
    "step7": "our warp-specialised attention loop (`mxfp8fa.kernels.steps.step7_warp_specialised`), MXFP8, 128 queries x 600 "
    "keys, d = 64: rings of two stages around five tiles of keys",
    "flash-attn-4": "flash-attn-4's BF16 forward (`FlashAttentionForwardSm100`, d = 128, not causal), three heads of 256 "
    "queries x 384 keys, one after another in one persistent CTA",
}


def run(name: str) -> tuple[Study, float]:
    """All mutants of a target under all schedules, and the seconds it took."""
    target, start = load_target(name), time.perf_counter()

    def progress(done: int, total: int, verdict: Verdict) -> None:
        if verdict.outcome != "caught":
            print(f"{name} {done}/{total} {verdict.outcome}: PTX line {verdict.mutant.site.ptx_line}", file=sys.stderr)

    study = run_study(target.record(sm_count=1), names=target.names, progress=progress, **target.options)
    return study, time.perf_counter() - start


def page(name: str, study: Study, seconds: float) -> str:
    """What is committed."""
    schedules = ", ".join(kind if kind != "random" else f"random:{seed}" for kind, seed in SCHEDULES)
    versions = ", ".join(
        f"{p} {importlib.metadata.version(p)}"
        for p in ("nvidia-cutlass-dsl", *(("flash-attn-4",) if name == "flash-attn-4" else ()))
    )
    text = report(name, study)
    for folder in (str(Path(__file__).resolve().parents[1]) + "/", sys.prefix + "/"):
        text = text.replace(folder, "")
    text = "\n".join(line.replace("lib/python3.11/site-packages/", "") for line in text.splitlines())
    return "\n".join([
        f"# Mutation study: {name}",
        "",
        f"Emulated: {ABOUT.get(name, name)}.",
        f"{datetime.date.today()}, {cpu_name()}; Python {platform.python_version()}, {versions}; {seconds:.0f} s.",
        f"`OMP_NUM_THREADS=1 python bench/mutation.py {name} --write`. Schedules, until one catches the mutant: {schedules}.",
        "",
        "```",
        text,
        "```",
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    parser.add_argument("--write", action="store_true", help="write bench/results/mutation_TARGET.md")
    arguments = parser.parse_args()
    for name in arguments.targets:
        text = page(name, *run(name))
        print(text)
        if arguments.write:
            (RESULTS / f"mutation_{Path(name).name}.md").write_text(text)


if __name__ == "__main__":
    main()
