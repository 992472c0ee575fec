"""Training of the decoder of `MXAttention`: on bytes (task module) and on packed histories (task jagged).

After each validation gradients are compared at the present weights: those that the attention gives against those of float32
attention, everything else alike, as SQNR of every layer's projections. BF16 attention beside it is the yardstick.
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import nn

from mxfp8fa.nn.decoder import LAYERS, NO_TARGET, Decoder, Histories
from mxfp8fa.nn.layer_numerics import Precision
from mxfp8fa.nn.module import MXAttention, set_precision
from mxfp8fa.nn.sequences import Sequences
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
        own: Precision = LAYERS[self.attention].get("precision", "mxfp8")
        measured = [p for p in get_args(Precision) if p != "mxfp8" or own == "mxfp8"]
        found = {precision: self._gradients(batch, precision) for precision in measured}
        set_precision(self.model, own)
        exact = found.pop("float32")
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
        set_precision(self.model, precision)
        layers = [module for module in self.model.modules() if isinstance(module, MXAttention)]
        weights = [getattr(layer, name).weight for layer in layers for name in PROJECTIONS]
        return list(torch.autograd.grad(self.model.loss(batch), weights))


class JaggedTrainer(ModuleTrainer):
    """Next event of histories of very different lengths, packed; size is a `DecoderSize`, corpus a `Users`.

    A step takes one user of each of `batch` classes of length, equally many in each, so that all users are equally likely
    and the events of all steps are equally many but for less than one context. What is missing to the largest number is
    filled by sequences that have no targets: shapes are the same in every step, as a CUDA graph needs them.
    """

    task = "jagged"

    def _prepare(self) -> None:
        users, batch = self.corpus, self.schedule.batch
        lengths = users.lengths - 1  # events with one after them
        trained = len(lengths) - users.validation
        by_length = _classes(lengths[:trained], batch)  # (batch, users of a class)
        others = trained + _classes(lengths[trained:], batch)
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randint(by_length.shape[1], (self.schedule.steps, batch), generator=generator)
        self.places = by_length.gather(1, drawn.T).T.contiguous().to(self.device)
        self.held_out = others.T.contiguous().to(self.device)  # (batches, batch)
        class_lengths, sums = lengths[by_length], lengths[others].sum(0)
        self.tokens = int(max(class_lengths.amax(1).sum(), sums.max()))
        fewest = int(min(class_lengths.amin(1).sum(), sums.min()))
        self.fillers = -(-(self.tokens - fewest) // self.size.context)
        self.events, self.lengths = users.events.to(self.device), lengths.to(self.device)

    def training_batch(self) -> Histories:
        """The histories of the present step, which only the device knows."""
        return self._pack(self.places.index_select(0, self.step)[0])

    def validation_batches(self) -> list[Histories]:
        """Those of users who are not trained on."""
        return [self._pack(users) for users in self.held_out[: self.schedule.validation_batches]]

    def _pack(self, users: torch.Tensor) -> Histories:
        """(batch,) users, packed, and the fillers after them; no value is read by the host."""
        context = self.size.context
        ends = self.lengths[users].cumsum(0)
        filled = ends[-1] + context * torch.arange(1, self.fillers + 1, device=self.device)
        cu_seqlens = torch.cat([torch.zeros_like(ends[:1]), ends, filled.clamp(max=self.tokens)])
        sequences = Sequences(cu_seqlens, context, self.tokens)
        number, position = sequences.number(), sequences.positions()
        user = torch.cat([users, users.new_zeros(self.fillers)])[number]
        targets = torch.where(number < len(users), self.events[user, position + 1], NO_TARGET)
        return Histories(self.events[user, position], targets, cu_seqlens, context)


def _classes(lengths: torch.Tensor, count: int) -> torch.Tensor:
    """(count, n) numbers of users in classes of rising length, equally many in each; the longest that are over are left out.

    Raises:
        ValueError: fewer users than classes.
    """
    if len(lengths) < count:
        raise ValueError(f"batch = {count} with {len(lengths)} users; allowed: at most one history of each")
    each = len(lengths) // count
    return lengths.argsort(stable=True)[: each * count].reshape(count, each)


def _sqnr(found: torch.Tensor, exact: torch.Tensor) -> float:
    """In dB."""
    noise = (found.double() - exact.double()).square().sum()
    return round(float(10 * torch.log10(exact.double().square().sum() / noise)), 2)
