"""Train a small model with MXFP8 attention beside BF16, with the same weights, batches and schedule.

--task bytes: a causal model of bytes (6 layers, 4 heads of 128, 512 bytes of context by default) on the source text of
the running Python's standard library. The attention is torch's in BF16, or MXFP8 emulated in torch (forward and
backward round where the kernels round) with P by exact exponentials and an unrounded sum, the same with the sum of the
rounded P, or direct codes.

--task module: the same bytes, a decoder of `MXAttention` layers with RoPE (4 layers, 4 heads of 64, 256 bytes by default).
--task jagged: the next event in packed histories of synthetic users, 8 to 385 events long, with the same decoder
(`mxfp8fa.nn.histories` describes them). Both also compare gradients with those of float32 attention as they go.

One JSON file per attention and seed goes into --out. Runs that are finished there are skipped, a run that was
interrupted (also by --stop-after) goes on from its checkpoint, so every command can be kept short and repeated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mxfp8fa.cli.console import CommandError, table
from mxfp8fa.studies.training import ATTENTIONS, TASKS, UNITS, Run, compare, runs_in, seed_spread, shipped_runs

if TYPE_CHECKING:
    from mxfp8fa.nn.training import Trainer

# Layers, heads, head_dim, context and steps where they are not given.
DEFAULTS = {"bytes": (6, 4, 128, 512, 3000), "module": (4, 4, 64, 256, 2000), "jagged": (4, 4, 64, 384, 1500)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, how long, and where the results go."""
    parser.add_argument("--task", choices=list(TASKS), default="bytes", help="what to learn (default: bytes)")
    parser.add_argument("--attention", nargs="+", choices=list(ATTENTIONS), metavar="NAME",
                        help="attentions to train with, see below (default: all of the task)")  # fmt: skip
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2], metavar="N",
                        help="one run for each seed (default: 0 1 2)")  # fmt: skip
    parser.add_argument("--steps", type=int, help="optimizer steps (default: bytes 3000, module 2000, jagged 1500)")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step (default: 32)")
    parser.add_argument("--layers", type=int, help="transformer layers (default: bytes 6, module 4, jagged 4)")
    parser.add_argument("--heads", type=int, help="heads of attention (default: bytes 4, module 4, jagged 4)")
    parser.add_argument("--head-dim", type=int, help="dimension of a head (default: bytes 128, module 64, jagged 64)")
    parser.add_argument("--context", type=int, help="tokens of a sequence, at most (default: bytes 512, module 256, jagged 384)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="where to train (default: cuda if there is one)")
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
    for seed in args.seed:
        for attention in attentions:
            if not _train(args, attention, seed, device, deadline):
                print("stopped; the same command goes on from here")
                return 0
    print(report(runs_in(args.out, args.task)))
    return 0


def _train(args: argparse.Namespace, attention: str, seed: int, device: str, deadline: float | None) -> bool:
    """One run from where it stands; whether it is finished."""
    from mxfp8fa.nn.training import save, write_result

    stem = args.out / f"{args.task}-{attention}-seed{seed}"
    if stem.with_suffix(".json").exists():
        return True
    trainer, seconds = _trainer(args, attention, seed, device, stem)
    start = time.monotonic()

    def say(step: int, loss: float) -> None:
        rate = (time.monotonic() - start) / max(1, step - first)
        print(f"{stem.name}  step {step:5}  validation {loss:.4f} {UNITS[args.task]}  {rate * 1e3:.1f} ms a step", flush=True)

    first = trainer.done
    finished = trainer.train(deadline=deadline, report=say)
    seconds += time.monotonic() - start
    checkpoint = stem.with_suffix(".pt")
    if finished:
        write_result(trainer, stem.with_suffix(".json"), seconds)
        checkpoint.unlink(missing_ok=True)
    else:
        save(trainer, checkpoint, seconds)
    return finished


def _trainer(
    args: argparse.Namespace, attention: str, seed: int, device: str, stem: Path
) -> tuple[Trainer, float]:
    """A trainer, at its checkpoint if there is one, and the seconds it has trained."""
    from mxfp8fa.nn.byte_model import ModelSize
    from mxfp8fa.nn.corpus import standard_library
    from mxfp8fa.nn.decoder import DecoderSize
    from mxfp8fa.nn.histories import ITEMS, make_users
    from mxfp8fa.nn.module_training import JaggedTrainer, ModuleTrainer
    from mxfp8fa.nn.training import Schedule, Trainer, load

    given = (args.layers, args.heads, args.head_dim, args.context, args.steps)
    chosen = (default if x is None else x for x, default in zip(given, DEFAULTS[args.task], strict=True))
    layers, heads, head_dim, context, steps = chosen
    try:
        schedule = Schedule(steps=steps, batch=args.batch)
        if args.task == "bytes":
            trainer = Trainer(attention, seed, ModelSize(layers, heads, head_dim, context), schedule, standard_library(), device)
        elif args.task == "module":
            decoder = DecoderSize(layers, heads, head_dim, context)
            trainer = ModuleTrainer(attention, seed, decoder, schedule, standard_library(), device)
        else:
            users = make_users(context=context)
            trainer = JaggedTrainer(attention, seed, DecoderSize(layers, heads, head_dim, context, ITEMS), schedule, users, device)
        checkpoint = stem.with_suffix(".pt")
        return trainer, load(trainer, checkpoint) if checkpoint.exists() else 0.0
    except ValueError as error:
        raise CommandError(str(error)) from None


def report(runs: Sequence[Run]) -> str:
    """Final validation loss by attention and seed, and how far each attention is from BF16 beside the spread of seeds."""
    finals = {(run.attention, run.seed): run.final for run in runs}
    seeds = sorted({seed for _, seed in finals})
    apart = {
        each.attention: f"{each.mean:+.4f}" + (f" ± {each.standard_error:.4f}" if len(each.differences) > 1 else "")
        for each in compare(runs)
    }
    rows = []
    unit = UNITS[runs[0].origin["task"]] if runs else "nats"
    for attention in [name for name in ATTENTIONS if any(run.attention == name for run in runs)]:
        losses = [finals.get((attention, seed)) for seed in seeds]
        row = [attention, *("" if x is None else f"{x:.4f}" for x in losses), apart.get(attention, "")]
        rows.append(row)
    lines = [table([f"validation loss, {unit}", *(f"seed {s}" for s in seeds), "less bf16, same seeds"], rows)]
    if len(seeds) > 1:
        lines += ["", f"± is the standard error over seeds; the seeds of bf16 alone spread by {seed_spread(runs):.4f}"]
    return "\n".join(lines)


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
