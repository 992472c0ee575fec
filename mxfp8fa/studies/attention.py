"""MXFP8 attention against float64 by configuration: the SQNR of O, dQ, dK and dV, and the strict summary over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.backward import attention_mxfp8_backward
from mxfp8fa.numerics.forward import attention_mxfp8
from mxfp8fa.numerics.inputs import AttentionInputs, load_real, synthetic_llm
from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.quantize import MXTensor
from mxfp8fa.numerics.reference import attention_reference, attention_reference_backward
from mxfp8fa.numerics.sqnr import SqnrEntry, StrictSummary, sqnr_db, worst_row_sqnr_db

TENSORS = ("O", "dQ", "dK", "dV")
Tensors = Mapping[str, NDArray]


@dataclass(frozen=True)
class Case:
    """One attention problem, and its exact answer, computed once.

    Attributes:
        inputs: Q, K, V, dO.
        causal: bottom-right aligned causal mask.
        cu_seqlens: offsets if the inputs, of batch 1, are packed sequences; else None.
    """

    inputs: AttentionInputs
    causal: bool = False
    cu_seqlens: tuple[int, ...] | None = None

    @property
    def _arrays(self) -> list[NDArray[np.float32]]:
        """q, k, v, dO: (B, S, H, D), or (T, H, D) when packed."""
        arrays = list(self.inputs.tensors().values())
        return arrays if self.cu_seqlens is None else [array[0] for array in arrays]

    @property
    def _arguments(self) -> dict:
        offsets = None if self.cu_seqlens is None else np.array(self.cu_seqlens, np.int32)
        return {"causal": self.causal, "cu_seqlens_q": offsets, "cu_seqlens_k": offsets}

    def forward(self, options: AttentionOptions) -> NDArray:
        """O by the MXFP8 attention under these options."""
        q, k, v, _ = self._arrays
        return attention_mxfp8(q, k, v, options=options, **self._arguments)[0]

    def forward_sqnr(self, options: AttentionOptions) -> float:
        """SQNR of O alone, in dB."""
        return sqnr_db(self.forward(options), self.reference["O"])

    @cached_property
    def reference(self) -> Tensors:
        """O, dQ, dK, dV in float64."""
        q, k, v, do = self._arrays
        o, _ = attention_reference(q, k, v, **self._arguments)
        gradients = attention_reference_backward(q, k, v, do, **self._arguments)
        return dict(zip(TENSORS, (o, *gradients), strict=True))

    def mxfp8(self, options: AttentionOptions) -> Tensors:
        """O, dQ, dK, dV by the MXFP8 attention under these options."""
        q, k, v, do = self._arrays
        o, lse = attention_mxfp8(q, k, v, options=options, **self._arguments)
        gradients = attention_mxfp8_backward(q, k, v, do, o, lse, options=options, **self._arguments)
        values = [x.dequantize() if isinstance(x, MXTensor) else x for x in gradients]
        return dict(zip(TENSORS, (o, *values), strict=True))

    def sqnr(self, options: AttentionOptions, name: str = "") -> tuple[SqnrEntry, ...]:
        """Grades of O, dQ, dK, dV under these options, under the given name."""
        return graded(name, self.mxfp8(options), self.reference)


def graded(name: str, found: Tensors, reference: Tensors) -> tuple[SqnrEntry, ...]:
    """Grades of O, dQ, dK, dV under a name."""
    pairs = [(tensor, found[tensor], reference[tensor]) for tensor in TENSORS]
    return tuple(SqnrEntry(name, t, sqnr_db(x, ref), worst_row_sqnr_db(x, ref)[0]) for t, x, ref in pairs)


@dataclass(frozen=True)
class Configuration:
    """One named case with the options it is computed with.

    Attributes:
        name: for the command line, tables and figures.
        about: one line on what it is there to show.
        make: makes the case.
        options: of the MXFP8 attention; the defaults are the shipped kernel's.
    """

    name: str
    about: str
    make: Callable[[], Case]
    options: AttentionOptions = field(default_factory=AttentionOptions)


@cache
def _gaussian() -> Case:
    """Gaussian, head_dim 128, S = 1024: the case the extra configurations vary the options of."""
    return Case(synthetic_llm(head_dim=128, seed=1))


@cache
def _k_mean() -> Case:
    return Case(synthetic_llm(head_dim=128, k_mean=4.0, seed=5))


# The six whose 24 tensors make the strict summary, in the order of the table.
STANDARD = (
    Configuration("gaussian-d128", "Gaussian, head_dim 128, 1024 tokens, 2 heads", _gaussian),
    Configuration(
        "gaussian-d64-causal",
        "Gaussian, head_dim 64, 1024 tokens, 2 heads, causal",
        lambda: Case(synthetic_llm(head_dim=64, seed=2), causal=True),
    ),
    Configuration(
        "jagged-d128-grouped",
        "packed sequences of 33, 95, 256, 0 and 640 tokens, 4 query heads on 2 key heads, logit std 2",
        lambda: Case(
            synthetic_llm(num_heads_q=4, num_heads_kv=2, logit_std=2.0, seed=3), cu_seqlens=(0, 33, 128, 384, 384, 1024)
        ),
    ),
    Configuration(
        "llm-d128-causal",
        "logit std 4, 4 outlier channels x4, K mean 1, V mean 0.5, 1024 tokens, 2 heads, causal",
        lambda: Case(
            synthetic_llm(logit_std=4.0, outlier_channels=4, outlier_gain=4.0, k_mean=1.0, v_mean=0.5, seed=4),
            causal=True,
        ),
    ),
    Configuration(
        "minilm-layer0",
        "real tensors of all-MiniLM-L6-v2, head_dim 32, 512 tokens, 3 heads",
        lambda: Case(load_real()["minilm-layer0"]),
    ),
    Configuration(
        "minilm-layer3",
        "real tensors of all-MiniLM-L6-v2, head_dim 32, 512 tokens, 3 heads",
        lambda: Case(load_real()["minilm-layer3"]),
    ),
)

# One choice changed at a time; run by name.
EXTRA = (
    Configuration("v-square", "gaussian-d128 with V in square blocks", _gaussian, AttentionOptions(v_blocks="square")),
    Configuration("qk-1x32", "gaussian-d128 with Q and K 1x32 along d", _gaussian, AttentionOptions(qk_blocks="1x32")),
    Configuration("floor", "gaussian-d128 with the OCP floor rule", _gaussian, AttentionOptions(rule="floor")),
    Configuration("unscaled-p", "gaussian-d128 with P stored unscaled", _gaussian, AttentionOptions(p_offset=0)),
    Configuration("dynamic-p", "gaussian-d128, one scale per 32 of P", _gaussian, AttentionOptions(p_scale="dynamic")),
    Configuration(
        "direct-codes",
        "gaussian-d128, codes of P without exponential",
        _gaussian,
        AttentionOptions(exp="direct", row_sum="rounded"),
    ),
    Configuration(
        "rounded-sum",
        "gaussian-d128, rows divided by the sum of rounded P",
        _gaussian,
        AttentionOptions(row_sum="rounded"),
    ),
    Configuration(
        "fp16-dq", "gaussian-d128, dQ added up in FP16", _gaussian, AttentionOptions(dq_accumulate="float16")
    ),
    Configuration("k-mean", "each channel of K with a mean of 4 standard deviations", _k_mean),
    Configuration("k-mean-removed", "k-mean with the mean subtracted first", _k_mean, AttentionOptions(k_mean=True)),
)
CONFIGURATIONS = {configuration.name: configuration for configuration in STANDARD + EXTRA}


@cache
def standard_case(name: str) -> Case:
    """The case of a configuration, made once.

    Raises:
        KeyError: no configuration has that name.
    """
    return CONFIGURATIONS[name].make()


@cache
def run_configuration(name: str) -> tuple[SqnrEntry, ...]:
    """SQNR of O, dQ, dK and dV of a configuration against float64, computed once.

    Raises:
        KeyError: no configuration has that name.
    """
    return standard_case(name).sqnr(CONFIGURATIONS[name].options, name)


def summarize(names: Sequence[str] | None = None) -> StrictSummary:
    """The strict summary over configurations; the six standard ones if None."""
    names = [configuration.name for configuration in STANDARD] if names is None else names
    return StrictSummary(tuple(entry for name in names for entry in run_configuration(name)))
