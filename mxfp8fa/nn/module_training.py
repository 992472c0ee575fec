"""Training of the decoder of `MXAttention`: on bytes (task module) and on packed histories (task jagged).

After each validation gradients are compared at the present weights: those that the attention gives against those of float32
attention, everything else alike, as SQNR of every layer's projections. BF16 attention beside it is the yardstick.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import nn

from mxfp8fa.nn.decoder import Decoder, Histories
from mxfp8fa.nn.layer_numerics import Precision
from mxfp8fa.nn.module import MXAttention, set_precision
from mxfp8fa.nn.training import Trainer

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class ModuleTrainer(Trainer):
    """Bytes, in dense batches; size is a `DecoderSize`."""

    task = "module"

    def make_model(self, *, compiled: bool) -> nn.Module:
        """The decoder."""
        return Decoder(self.size, self.attention, compiled=compiled)

    def probe(self) -> None:
        """SQNR in dB of the gradients of every layer's projections, by precision of the attention."""
        batch = self.validation_batches()[0]
        found = {precision: self._gradients(batch, precision) for precision in get_args(Precision)}
        set_precision(self.model, "bf16" if self.attention == "bf16" else "mxfp8")
        exact = found.pop("float32")
        if self.attention == "bf16":
            del found["mxfp8"]
        of_all = {p: [_sqnr(a, b) for a, b in zip(found[p], exact, strict=True)] for p in found}
        layers = len(exact) // len(PROJECTIONS)
        by_layer = {
            precision: {
                name: [of_all[precision][layer * len(PROJECTIONS) + i] for layer in range(layers)]
                for i, name in enumerate(PROJECTIONS)
            }
            for precision in found
        }
        self.gradient_sqnr.append({"step": self.done, **by_layer})

    def _gradients(self, batch: Any, precision: Precision) -> list[torch.Tensor]:
        """Of the projections, layer by layer; what the optimizer sees is not touched."""
        if precision == "mxfp8" and self.attention == "bf16":
            return []
        set_precision(self.model, precision)
        layers = [module for module in self.model.modules() if isinstance(module, MXAttention)]
        weights = [getattr(layer, name).weight for layer in layers for name in PROJECTIONS]
        return list(torch.autograd.grad(self.model.loss(batch), weights))


class JaggedTrainer(ModuleTrainer):
    """Next event of histories of very different lengths, packed; size is a `DecoderSize`, corpus a `Users`."""

    task = "jagged"
    captures = False  # every step has another number of events

    def _prepare(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        trained = len(self.corpus.lengths) - self.corpus.validation
        self.places = torch.randint(trained, (self.schedule.steps, self.schedule.batch), generator=generator)

    def training_batch(self) -> Histories:
        """The histories of the present step."""
        return self._pack(self.places[self.done])

    def validation_batches(self) -> list[Histories]:
        """Those of the users who are not trained on."""
        count = len(self.corpus.lengths)
        users = torch.arange(count - self.corpus.validation, count).split(self.schedule.batch)
        return [
            self._pack(part) for part in users[: self.schedule.validation_batches] if len(part) == self.schedule.batch
        ]

    def _pack(self, users: torch.Tensor) -> Histories:
        lengths = self.corpus.lengths[users] - 1
        inside = torch.arange(self.size.context) < lengths[:, None]
        events = self.corpus.events[users]
        cu_seqlens = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        tokens, targets, ends = (x.to(self.device) for x in (events[:, :-1][inside], events[:, 1:][inside], cu_seqlens))
        return Histories(tokens, targets, ends, self.size.context)


def _sqnr(found: torch.Tensor, exact: torch.Tensor) -> float:
    """In dB."""
    noise = (found.double() - exact.double()).square().sum()
    return round(float(10 * torch.log10(exact.double().square().sum() / noise)), 2)
