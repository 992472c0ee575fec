"""Train the byte model: the same weights, batches and schedule for every attention, resumable, one graph replay a step.

Runs of several seeds go side by side (`train`): on a GPU each has a stream of its own, and kernels too small to fill the
device run beside those of the others.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mxfp8fa.nn.byte_model import ByteModel, make_attention

WARM_UP_STEPS = 3  # steps before a graph is captured, on a side stream (PyTorch, CUDA graphs)
LOSS_EVERY = 10  # training losses are averaged over this many steps when written
WAIT_EVERY = 20  # steps after which the host waits for the device, so that a deadline means what it says


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Attributes:
        steps: optimizer steps.
        batch: sequences of a step.
        learning_rate: the highest one; linear warm-up, then a cosine down to a tenth.
        warm_up: steps of the warm-up.
        validate_every: steps between two validations.
        validation_batches: batches of one.
    """

    steps: int = 3000
    batch: int = 32
    learning_rate: float = 1e-3
    warm_up: int = 200
    validate_every: int = 250
    validation_batches: int = 36

    def rates(self) -> torch.Tensor:
        """(steps,) float32 learning rates."""
        step = torch.arange(self.steps, dtype=torch.float64)
        rise = ((step + 1) / self.warm_up).clamp(max=1.0)
        progress = ((step - self.warm_up) / max(1, self.steps - self.warm_up)).clamp(min=0.0)
        return (self.learning_rate * rise * (0.55 + 0.45 * torch.cos(math.pi * progress))).float()


class Trainer:
    """One run: a model, its optimizer, and everything a step needs as tensors on the device.

    Args:
        attention: name in `ATTENTION_OPTIONS`.
        seed: of the weights and of the order of the batches, the same for every attention.
        size: of the model, a `ModelSize` for bytes.
        schedule: of the training.
        corpus: what to learn: a `Corpus`, or for other tasks what their trainers take.
        device: "cuda" trains by compiled attention and graph replay, "cpu" eagerly.
        captured: on a GPU, replay a CUDA graph of a step; False launches its operations one by one.
    """

    task = "bytes"

    def __init__(
        self, attention: str, seed: int, size: Any, schedule: Schedule, corpus: Any, device: str, *, captured: bool = True
    ) -> None:
        self.attention, self.seed, self.size, self.schedule, self.corpus = attention, seed, size, schedule, corpus
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        self.captured = on_gpu and captured
        self.stream = torch.cuda.Stream() if on_gpu else None
        torch.manual_seed(seed)
        self.model = self.make_model(compiled=on_gpu).to(self.device)
        decayed = [p for p in self.model.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if p.ndim != 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        rate = torch.zeros((), device=self.device)
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=on_gpu, capturable=on_gpu)
        self._prepare()
        self.rates = schedule.rates().to(self.device)
        self.losses = torch.zeros(schedule.steps, device=self.device)
        self.step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.done = 0
        self.validation: list[tuple[int, float]] = []
        self.gradient_sqnr: list[dict[str, Any]] = []
        self._advance: Callable[[], None] | None = None

    def make_model(self, *, compiled: bool) -> nn.Module:
        """The model, whose `loss` takes what `training_batch` gives."""
        return ByteModel(self.size, make_attention(self.attention, compiled=compiled))

    def _prepare(self) -> None:
        """Put the data on the device, and decide what every step takes of it."""
        self.bytes = self.corpus.train.to(self.device)
        generator = torch.Generator().manual_seed(self.seed)
        schedule, context = self.schedule, self.size.context
        shape = schedule.steps, schedule.batch
        self.places = torch.randint(len(self.corpus.train) - context, shape, generator=generator).to(self.device)
        self.window = torch.arange(context + 1, device=self.device)

    def training_batch(self) -> Any:
        """(batch, context + 1) bytes of the present step, which only the device knows."""
        places = self.places.index_select(0, self.step)[0]  # a plain index would be read by the host
        return self.bytes[places[:, None] + self.window]

    def validation_batches(self) -> list[Any]:
        """The first batches of what is not trained on."""
        length, count = self.size.context + 1, self.schedule.batch
        chunks = self.corpus.validation[: len(self.corpus.validation) // length * length].reshape(-1, length)
        batches = chunks[: self.schedule.validation_batches * count].split(count)
        whole = [batch for batch in batches if len(batch) == count] or [chunks[:count]]
        return [batch.to(self.device) for batch in whole]

    def probe(self) -> None:
        """Measure gradients at the present weights, if the task does."""

    def advance(self) -> None:
        """One step, by graph replay on a GPU once the first few are done; it is launched, not waited for."""
        if self._advance is None:
            self._advance = self._capture() if self.captured else self._step
        with self._on_stream():
            self._advance()
        self.done += 1

    def wait(self) -> None:
        """Until the steps launched so far are done."""
        if self.stream is not None:
            self.stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def look(self) -> float:
        """Validate, and measure gradients if the task does; the validation loss."""
        self.wait()
        self.validation.append((self.done, self.validate()))
        self.probe()
        return self.validation[-1][1]

    def validate(self) -> float:
        """Mean loss over the validation batches, in nats per byte or event."""
        with torch.no_grad():
            return float(torch.stack([self.model.loss(batch) for batch in self.validation_batches()]).mean())

    def _step(self) -> None:
        """One optimizer step, with nothing that the host has to see."""
        step = self.step
        batch = self.training_batch()
        for group in self.optimizer.param_groups:
            group["lr"].copy_(self.rates.index_select(0, step)[0])
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.index_copy_(0, step, loss.detach()[None])
        self.step += 1

    def _capture(self) -> Callable[[], None]:
        """`_step` as a replayed CUDA graph; the steps of the warm-up are undone."""
        before = self.state()
        torch.cuda.synchronize()
        with self._on_stream():
            for _ in range(WARM_UP_STEPS):
                self._step()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):  # its own: cuBLAS has one workspace a stream
            self._step()
        self.restore(before)
        return graph.replay

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs, copied."""
        self.wait()
        named = {"model": self.model.state_dict(), "losses": self.losses, "step": self.step}
        copies = {k: _copied(v) for k, v in named.items()}
        moments = {i: _copied(s) for i, s in enumerate(self._moments())}
        lists = {"validation": list(self.validation), "gradient_sqnr": list(self.gradient_sqnr)}
        return copies | lists | {"moments": moments, "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`, in place, so that a captured graph goes on with it."""
        self.wait()
        self.model.load_state_dict(state["model"])
        for own, saved in zip(self._moments(), state["moments"].values(), strict=True):
            if not own:
                own.update({name: value.to(self.device) for name, value in saved.items()})
            for name, value in own.items():
                value.copy_(saved[name]) if saved else value.zero_()
        self.losses.copy_(state["losses"])
        self.step.copy_(state["step"])
        self.done, self.validation = state["done"], list(state["validation"])
        self.gradient_sqnr = list(state["gradient_sqnr"])
        if self.stream is not None:
            torch.cuda.synchronize()

    def _moments(self) -> list[dict[str, torch.Tensor]]:
        """Per parameter, what AdamW keeps; empty before its first step."""
        return [self.optimizer.state[p] for group in self.optimizer.param_groups for p in group["params"]]

    def identity(self) -> dict[str, Any]:
        """What a run is: two runs with the same identity on the same device differ by nothing."""
        return {
            "task": self.task,
            "attention": self.attention,
            "seed": self.seed,
            "size": asdict(self.size),
            "schedule": asdict(self.schedule),
            "corpus": self.corpus.about,
        }

    def result(self, seconds: float) -> dict[str, Any]:
        """What is written down about a finished run."""
        losses = self.losses.double().cpu().reshape(-1)[: self.done]
        means = [float(part.mean()) for part in losses.split(LOSS_EVERY)]
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"
        return (
            self.identity()
            | {
                "device": name,
                "torch": torch.__version__,
                "date": datetime.date.today().isoformat(),
                "seconds": round(seconds, 1),
                "validation_loss": [[step, round(loss, 5)] for step, loss in self.validation],
                "train_loss_every_10": [round(x, 4) for x in means],
            }
            | ({"gradient_sqnr": self.gradient_sqnr} if self.gradient_sqnr else {})
        )


def train(
    trainers: Sequence[Trainer],
    *,
    deadline: float | None = None,
    report: Callable[[Trainer, float], None] | None = None,
) -> bool:
    """Train to the ends of the schedules, a step of each in turn, or until `time.monotonic()` passes the deadline.

    Args:
        trainers: runs that share nothing.
        deadline: None for no limit.
        report: called after each validation with the run and its loss in nats per byte or event.

    Returns:
        Whether all schedules are finished.
    """
    while going := [trainer for trainer in trainers if trainer.done < trainer.schedule.steps]:
        if deadline is not None and time.monotonic() > deadline:
            return False
        for trainer in going:
            trainer.advance()
        for trainer in going:
            if trainer.done % WAIT_EVERY == 0:
                trainer.wait()
            if trainer.done % trainer.schedule.validate_every == 0 or trainer.done == trainer.schedule.steps:
                loss = trainer.look()
                if report is not None:
                    report(trainer, loss)
    return True


def _copied(x: Any) -> Any:
    """A copy of a tensor or of a dict of tensors."""
    return x.detach().clone() if isinstance(x, torch.Tensor) else {k: _copied(v) for k, v in x.items()}


def save(trainer: Trainer, path: Path, seconds: float) -> None:
    """Write a checkpoint in one move, so that an interruption leaves the old one.

    Args:
        trainer: the run.
        path: where to.
        seconds: it has trained so far.
    """
    part = path.with_suffix(".part")
    torch.save({"of": trainer.identity(), "seconds": seconds, "state": trainer.state()}, part)
    part.replace(path)


def load(trainer: Trainer, path: Path) -> float:
    """Put a run where its checkpoint is; returns the seconds it has trained.

    Raises:
        ValueError: the checkpoint is of another run, size, schedule or corpus.
    """
    saved = torch.load(path, map_location=trainer.device, weights_only=True)
    for name, value in trainer.identity().items():
        if saved["of"][name] != value:
            raise ValueError(f"{path.name} was made with {name} = {saved['of'][name]}; this run has {value}")
    trainer.restore(saved["state"])
    return float(saved["seconds"])


def write_result(trainer: Trainer, path: Path, seconds: float) -> None:
    """Write the result of a finished run as JSON."""
    path.write_text(json.dumps(trainer.result(seconds)) + "\n")
