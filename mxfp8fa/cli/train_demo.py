"""Train a small model with MXFP8 attention beside BF16, with the same weights, batches and schedule.

--task bytes: a causal model of bytes (6 layers, 4 heads of 128, 512 bytes of context by default) on the source text of
the running Python's standard library. The attention is torch's in BF16, or MXFP8 emulated in torch (forward and
backward round where the kernels round) with P by exact exponentials and an unrounded sum, the same with the sum of the
rounded P, or direct codes.

--task module: the same bytes, a decoder of `MXAttention` layers with RoPE (4 layers, 4 heads of 64, 256 bytes by default).
--task jagged: the next event in packed histories of synthetic users, 8 to 257 events long, with the same decoder
(`mxfp8fa.nn.histories` describes them). Both also compare gradients with those of float32 attention as they go.

The seeds of an attention train side by side. One JSON file per attention and seed goes into --out. Runs that are
finished there are skipped, a run that was interrupted (also by --stop-after) goes on from its checkpoint, so every
command can be kept short and repeated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mxfp8fa.cli.console import CommandError, table
from mxfp8fa.studies.training import (
    ATTENTIONS,
    LAST_STEPS,
    PROJECTIONS,
    TASKS,
    UNITS,
    Run,
    compare,
    gradient_signal,
    runs_in,
    seed_spread,
    shipped_runs,
    with_error,
)

if TYPE_CHECKING:
    from mxfp8fa.nn.training import Trainer

# Layers, heads, head_dim, context and steps where they are not given.
DEFAULTS = {"bytes": (6, 4, 128, 512, 3000), "module": (4, 4, 64, 256, 3000), "jagged": (4, 4, 64, 256, 3000)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, how long, and where the results go."""
    parser.add_argument("--task", choices=list(TASKS), default="bytes", help="what to learn (default: bytes)")
    parser.add_argument("--attention", nargs="+", choices=list(ATTENTIONS), metavar="NAME",
                        help="attentions to train with, see below (default: all of the task)")  # fmt: skip
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], metavar="N",
                        help="one run for each seed (default: 0 1 2)")  # fmt: skip
    parser.add_argument("--steps", type=int, help="optimizer steps (default: 3000)")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step (default: 32)")
    parser.add_argument("--layers", type=int, help="transformer layers (default: bytes 6, else 4)")
    parser.add_argument("--heads", type=int, help="heads of attention (default: 4)")
    parser.add_argument("--head-dim", type=int, help="dimension of a head (default: bytes 128, else 64)")
    parser.add_argument("--context", type=int, help="tokens of a sequence, at most (default: bytes 512, else 256)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="where to train (default: cuda if there is one)")
    parser.add_argument("--no-graph", action="store_true", help="on a GPU: launch a step's operations, replay no CUDA graph")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="write a checkpoint and stop")
    parser.add_argument("--out", type=Path, default=Path("train-demo"), help="folder of results (default: train-demo)")
    parser.add_argument("--shipped", action="store_true", help="train nothing; print the results that come with the package")
    words = [f"  {name:8} {about}" for name, about in ATTENTIONS.items()]
    small = "`--steps 20 --layers 1 --heads 1 --context 64` is quick on a CPU."
    parser.epilog = "\n".join(["attentions, all of them by default:", *words, small])


def run(args: argparse.Namespace) -> int:
    """Train what is not finished yet and print the table of what is."""
    if args.shipped:
        runs = shipped_runs(args.task)
        print(f"{report(runs)}\n{origin(runs)}")
        return 0
    try:
        import torch
    except ModuleNotFoundError:
        raise CommandError("train-demo needs torch: pip install 'mxfp8fa[kernels]'") from None
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    attentions = TASKS[args.task] if args.attention is None else args.attention
    unknown = [name for name in attentions if name not in TASKS[args.task]]
    if unknown:
        raise CommandError(f"--attention {unknown[0]}: task {args.task} knows {', '.join(TASKS[args.task])}")
    deadline = None if args.stop_after is None else time.monotonic() + args.stop_after
    for attention in attentions:
        if not _train(args, attention, device, deadline):
            print("stopped; the same command goes on from here")
            return 0
    print(report(runs_in(args.out, args.task)))
    return 0


def _train(args: argparse.Namespace, attention: str, device: str, deadline: float | None) -> bool:
    """All seeds of an attention, side by side, from where they stand; whether they are finished."""
    from mxfp8fa.nn.training import load, save, train, write_result

    stems = {seed: args.out / f"{args.task}-{attention}-seed{seed}" for seed in args.seed}
    stems = {seed: stem for seed, stem in stems.items() if not stem.with_suffix(".json").exists()}
    if not stems:
        return True
    try:
        trainers = _trainers(args, attention, device, list(stems))
        saved = [stem.with_suffix(".pt") for stem in stems.values()]
        before = [load(t, path) if path.exists() else 0.0 for t, path in zip(trainers, saved, strict=True)]
    except ValueError as error:
        raise CommandError(str(error)) from None
    start, first = time.monotonic(), {trainer.seed: trainer.done for trainer in trainers}

    def say(trainer: Trainer, loss: float) -> None:
        rate = (time.monotonic() - start) / max(1, trainer.done - first[trainer.seed])
        of, name = UNITS[args.task], stems[trainer.seed].name
        print(f"{name}  step {trainer.done:5}  validation {loss:.4f} {of}  {rate * 1e3:.1f} ms a step", flush=True)

    finished = train(trainers, deadline=deadline, report=say)
    for trainer, path, seconds in zip(trainers, saved, before, strict=True):
        seconds += time.monotonic() - start
        if trainer.done == trainer.schedule.steps:
            write_result(trainer, path.with_suffix(".json"), seconds)
            path.unlink(missing_ok=True)
        else:
            save(trainer, path, seconds)
    return finished


def _trainers(args: argparse.Namespace, attention: str, device: str, seeds: Sequence[int]) -> list[Trainer]:
    """Runs at their start, one for each seed."""
    from mxfp8fa.nn.byte_model import ModelSize
    from mxfp8fa.nn.corpus import standard_library
    from mxfp8fa.nn.decoder import DecoderSize
    from mxfp8fa.nn.histories import ITEMS, make_users
    from mxfp8fa.nn.module_training import JaggedTrainer, ModuleTrainer
    from mxfp8fa.nn.training import Schedule, Trainer

    given = (args.layers, args.heads, args.head_dim, args.context, args.steps)
    chosen = (default if x is None else x for x, default in zip(given, DEFAULTS[args.task], strict=True))
    layers, heads, head_dim, context, steps = chosen
    shape, schedule = (layers, heads, head_dim, context), Schedule(steps=steps, batch=args.batch)
    corpus = make_users(context=context) if args.task == "jagged" else standard_library()
    kind: type[Trainer] = {"bytes": Trainer, "module": ModuleTrainer, "jagged": JaggedTrainer}[args.task]
    sizes = {"bytes": ModelSize(*shape), "module": DecoderSize(*shape), "jagged": DecoderSize(*shape, ITEMS)}
    given_size, captured = sizes[args.task], not args.no_graph
    return [kind(attention, seed, given_size, schedule, corpus, device, captured=captured) for seed in seeds]


def report(runs: Sequence[Run]) -> str:
    """Final validation loss by attention and seed, how far each is from BF16, at the end of training too, and gradients."""
    finals = {(run.attention, run.seed): run.final for run in runs}
    seeds = sorted({seed for _, seed in finals})
    apart = {each.attention: (with_error(each.differences), with_error(each.training)) for each in compare(runs)}
    names = [name for name in ATTENTIONS if any(run.attention == name for run in runs)]
    losses = {name: [finals.get((name, seed)) for seed in seeds] for name in names}
    rows = [(name, *("" if x is None else f"{x:.4f}" for x in losses[name]), *apart.get(name, ("", ""))) for name in names]
    unit = UNITS[runs[0].origin["task"]] if runs else "nats"
    header = (f"validation loss, {unit}", *(f"seed {s}" for s in seeds), "less bf16, same seeds", "training loss, likewise")
    lines = [table(header, rows)]
    if len(seeds) > 1:
        lines.append(
            f"± is the standard error over seeds; the seeds of bf16 alone spread by {seed_spread(runs):.4f}; training loss: "
            f"mean of the last {LAST_STEPS} steps, on equal batches"
        )
    measured = [name for name in names if any(run.attention == name and run.gradient_sqnr for run in runs)]
    if measured:
        signals = {name: gradient_signal(runs, name) for name in measured}
        lines.append(table(("SQNR of gradients at the end, dB", *PROJECTIONS, "worst layer"),
                           [(name, *(f"{x:.1f}" for x in signals[name].values())) for name in measured]))  # fmt: skip
        lines.append("against float32 attention at the weights of each run, mean over layers and seeds")
    return "\n\n".join(lines)


def origin(runs: Sequence[Run]) -> str:
    """How the runs were made, from the first of them."""
    of = runs[0].origin
    tokens = "events at most" if of["task"] == "jagged" else "bytes"
    size, schedule, corpus = of["size"], of["schedule"], of["corpus"]
    return (
        f"measured {of['date']} on {of['device']}, torch {of['torch']}: {size['layers']} layers, {size['heads']} heads of "
        f"{size['head_dim']}, {schedule['steps']} steps of {schedule['batch']} x {size['context']} {tokens}; "
        f"{corpus['corpus']}" + (f", SHA-256 {corpus['sha256'][:12]}" if "sha256" in corpus else "")
    )
