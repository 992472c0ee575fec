"""Every run of bench/results/training.md on one GPU, several at a time, in commands of limited length.

    python bench/training.py --out runs --seconds 530                       again until it says that nothing is left
    python bench/training.py --out toy --seconds 60 -- --device cpu --steps 4 --layers 1 --heads 1 --head-dim 32 --context 32

Each task and attention is a process of `mxfp8fa train-demo` with its seeds side by side. When the seconds are over all of
them write checkpoints and stop. What comes first in `JOBS` is trained first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FIRST = ("bf16", "exact", "unscaled", "direct", "float32")
OTHERS = ("dq16", "k_mean", "delta", "square", "rounded", "bf16_head", "dq16_raw", "sum_P_dP", "coarse", "static")
TASKS = ("module", "jagged")
SEEDS, MORE_SEEDS = (0, 1, 2), (3, 4, 5)
JOBS = [
    *((task, attention, SEEDS) for attention in FIRST for task in TASKS),
    *(("module", attention, SEEDS) for attention in OTHERS),
    *(("module", attention, MORE_SEEDS) for attention in ("bf16", "exact", "float32")),
    *(("jagged", attention, SEEDS) for attention in OTHERS[:6]),
]
STOPPING_SECONDS = 15  # from a run's deadline to its checkpoints on the disk
SHORTEST_SECONDS = 90  # a run that would have less is not begun: compiling takes about as long


@dataclass
class Job:
    """One process.

    Attributes:
        task: of `train-demo`.
        attention: likewise.
        seeds: side by side.
        tries: how often it was started by this command.
        process: while it runs.
    """

    task: str
    attention: str
    seeds: tuple[int, ...]
    tries: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Of its log."""
        return f"{self.task}-{self.attention}-seeds{''.join(map(str, self.seeds))}"

    def finished(self, out: Path) -> bool:
        """Whether every seed has its result."""
        return all((out / f"{self.task}-{self.attention}-seed{seed}.json").exists() for seed in self.seeds)

    def start(self, out: Path, seconds: float, extra: list[str]) -> None:
        """Begin or go on; the second try does without CUDA graphs."""
        command = [sys.executable, "-m", "mxfp8fa", "train-demo", "--task", self.task, "--attention", self.attention,
                   "--seed", *map(str, self.seeds), "--out", str(out), "--stop-after", f"{seconds:.0f}", *extra]  # fmt: skip
        if self.tries:
            command.append("--no-graph")
        self.tries += 1
        quiet = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        with (out / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **quiet})


def main() -> int:
    """Start jobs while there is time for them; wait; say what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results, checkpoints and logs")
    parser.add_argument("--seconds", type=float, default=530, help="how long this command may take (default: 530)")
    parser.add_argument("--processes", type=int, default=6, help="jobs at a time (default: 6)")
    parser.add_argument("extra", nargs="*", help="after --: passed on to train-demo")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    jobs = [Job(*job) for job in JOBS]
    waiting = (job for job in jobs if not job.finished(args.out))
    running: list[Job] = []
    try:
        while time.monotonic() < deadline:
            running = [job for job in running if still_runs(job, args, deadline)]
            running += fill(waiting, args, deadline, args.processes - len(running))
            if not running:
                break
            time.sleep(0.5)
    finally:
        for job in running:
            if job.process is not None and job.process.poll() is None:
                job.process.kill()
    left = [job.name for job in jobs if not job.finished(args.out)]
    print("left:", ", ".join(left) if left else "nothing")
    return 0


def fill(waiting: Iterator[Job], args: argparse.Namespace, deadline: float, places: int) -> list[Job]:
    """Start as many jobs as there are places for, if there is time."""
    started: list[Job] = []
    while len(started) < places and (seconds := deadline - time.monotonic() - STOPPING_SECONDS) > SHORTEST_SECONDS:
        if (job := next(waiting, None)) is None:
            break
        job.start(args.out, seconds, args.extra)
        started.append(job)
    return started


def still_runs(job: Job, args: argparse.Namespace, deadline: float) -> bool:
    """False once it is done; a job that failed is begun once more."""
    assert job.process is not None
    code = job.process.poll()
    if code is None:
        return True
    print(f"{job.name}: exit {code}, {deadline - time.monotonic():.0f} s before the end", flush=True)
    seconds = deadline - time.monotonic() - STOPPING_SECONDS
    if code and job.tries == 1 and seconds > SHORTEST_SECONDS:
        job.start(args.out, seconds, args.extra)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
