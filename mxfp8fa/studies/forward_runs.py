"""Runs of the forward kernel in the emulator: real activations through the API, and recorded ones to look at.

Needs the extra `kernels`; importing this does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.emulator import Report, Trace
from mxfp8fa.numerics import attention_mxfp8, attention_reference, sqnr_db, worst_row_sqnr_db
from mxfp8fa.numerics.inputs import AttentionInputs, load_real

PADDED_HEAD_DIM = 64  # the smallest that the kernel takes; the real activations have 32


@dataclass(frozen=True)
class RealRun:
    """Attention of real activations by the compiled kernel.

    Attributes:
        inputs: what it was given, before padding.
        o: (B, Sq, Hq, D) float32, padding cut off.
        report: what the emulator did.
        sqnr_db: of O, against float64 on the unpadded inputs.
        worst_row_db: of its worst row.
        equal_to_model: whether O and lse have the bits of the NumPy model.
        padding_is_zero: whether O is 0 where V was padded.
    """

    inputs: AttentionInputs
    o: NDArray[np.float32]
    report: Report
    sqnr_db: float
    worst_row_db: float
    equal_to_model: bool
    padding_is_zero: bool


def _silent(_line: str) -> None:
    """Progress for nobody: callers announce what they do."""


def zero_padded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """(B, S, H, D) with zeros up to the head_dim of the kernel: they add nothing to Q K^T, and make columns of O zero."""
    return np.pad(x, ((0, 0), (0, 0), (0, 0), (0, PADDED_HEAD_DIM - x.shape[-1])))


def compile_for_real_run() -> None:
    """Compile the kernel that `real_run` needs, so that its time can be told apart: attention of one token."""
    import torch

    from mxfp8fa.attention import flash_attn_func

    flash_attn_func(*torch.zeros(3, 1, 1, 1, PADDED_HEAD_DIM))


@cache
def real_run(name: str = "minilm-layer0") -> RealRun:
    """Attention of a layer of all-MiniLM-L6-v2 by the compiled kernel, all heads and tokens.

    The head_dim is padded from 32 to 64; softmax_scale stays that of 32.
    """
    import torch

    from mxfp8fa.attention import emulation, flash_attn_func

    x = load_real()[name]
    q, k, v = map(zero_padded, (x.q, x.k, x.v))
    softmax_scale = x.head_dim**-0.5
    with emulation(progress=_silent) as report:
        q_t, k_t, v_t = (torch.from_numpy(a) for a in (q, k, v))
        o, lse = flash_attn_func(q_t, k_t, v_t, softmax_scale, return_lse=True)
    model_o, model_lse = attention_mxfp8(q, k, v, softmax_scale=softmax_scale)
    exact, _ = attention_reference(x.q, x.k, x.v)
    ours = o.numpy()[..., : x.head_dim]
    return RealRun(
        x,
        ours,
        report,
        sqnr_db(ours, exact),
        worst_row_sqnr_db(ours, exact)[0],
        np.array_equal(o.numpy(), model_o) and np.array_equal(lse.numpy(), model_lse),
        not o.numpy()[..., x.head_dim :].any(),
    )


@dataclass(frozen=True)
class RecordedRun:
    """One CTA of the kernel, recorded.

    Attributes:
        trace: what happened.
        report: what the emulator did, findings of the checker included.
        names: columns of tensor memory: name -> first and last.
        parameters: what was run, for captions.
    """

    trace: Trace
    report: Report
    names: dict[str, tuple[int, int]]
    parameters: str


@cache
def recorded_head(name: str = "minilm-layer0", *, schedule: str = "random", seed: int = 1) -> RecordedRun:
    """The first head of the real activations on a device with one SM: 512 queries are two work tiles for one CTA."""
    import torch

    from mxfp8fa.attention import emulation, flash_attn_func
    from mxfp8fa.kernels.forward.names import names

    x = load_real()[name]
    q, k, v = (torch.from_numpy(zero_padded(a[:, :, :1])) for a in (x.q, x.k, x.v))
    trace = Trace.named(names(PADDED_HEAD_DIM))
    with emulation(progress=_silent, trace=trace, check="races", sm_count=1, schedule=schedule, seed=seed) as report:
        flash_attn_func(q, k, v, x.head_dim**-0.5)
    how = schedule if schedule != "random" else f"random (seed {seed})"
    parameters = f"kernels/forward, one CTA, one head of {name} (512 tokens, head_dim 32 padded to 64), schedule {how}"
    return RecordedRun(trace, report, dict(trace.columns), parameters)
