"""The six configurations of the strict summary, O, dQ, dK and dV computed by the compiled kernels in the emulator.

Needs the extra `kernels`; importing this does not.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics.options import AttentionOptions
from mxfp8fa.numerics.sqnr import SqnrEntry
from mxfp8fa.studies.attention import CONFIGURATIONS, TENSORS, Case, Tensors, graded, standard_case

HEAD_DIMS = (64, 128)  # others are padded with zeros, which change nothing in what is not padding


@cache
def run_configuration(name: str) -> tuple[SqnrEntry, ...]:
    """SQNR of O, dQ, dK and dV of a configuration against float64.

    Raises:
        KeyError: no configuration has that name.
        ValueError: its options are not in the kernels.
    """
    case = standard_case(name)
    return graded(name, by_kernels(case, CONFIGURATIONS[name].options), case.reference)


def by_kernels(case: Case, options: AttentionOptions) -> Tensors:
    """O, dQ, dK, dV through `flash_attn_func` and its gradient; packed sequences one after another."""
    arrays = list(case.inputs.tensors().values())
    offsets = (0, arrays[0].shape[1]) if case.cu_seqlens is None else case.cu_seqlens
    found: list[list[NDArray[np.float32]]] = [[] for _ in TENSORS]
    for start, stop in pairwise(offsets):
        results = _attention([x[:, start:stop] for x in arrays], case, options)
        for parts, result in zip(found, results, strict=True):
            parts.append(result)
    whole = [np.concatenate(parts, axis=1) for parts in found]
    return dict(zip(TENSORS, whole if case.cu_seqlens is None else [x[0] for x in whole], strict=True))


def _attention(tensors: list[NDArray[np.float32]], case: Case, options: AttentionOptions) -> list[Any]:
    """O, dQ, dK, dV of sequences of one length."""
    import torch

    from mxfp8fa.attention import flash_attn_func

    head_dim = tensors[0].shape[-1]
    room = min(d for d in HEAD_DIMS if d >= head_dim) - head_dim
    q, k, v, do = (torch.from_numpy(np.pad(x, ((0, 0),) * 3 + ((0, room),))) for x in tensors)
    for x in (q, k, v):
        x.requires_grad_()
    o = flash_attn_func(q, k, v, case.inputs.softmax_scale, case.causal, options=options)
    o.backward(do)
    return [x.detach()[..., :head_dim].numpy() for x in (o, q.grad, k.grad, v.grad)]
