"""Inputs shared by the attention tests."""

import numpy as np

from mxfp8fa.numerics import (
    attention_mxfp8,
    attention_mxfp8_backward,
    attention_reference,
    attention_reference_backward,
    sqnr_db,
)


def gaussian(shape_q, shape_k=None, *, seed=0, logit_std=1.0):
    """q, k, v, dO in float32; scores softmax_scale * q.k have standard deviation logit_std."""
    rng = np.random.default_rng(seed)
    shape_k = shape_q if shape_k is None else shape_k
    q, k, v, dO = (rng.standard_normal(s) for s in (shape_q, shape_k, shape_k, shape_q))
    gain = np.sqrt(logit_std)
    return tuple(x.astype(np.float32) for x in (q * gain, k * gain, v, dO))


def block_gains(shape, axis):
    """One power of two, 2^(i mod 7 - 3), per 32 elements along `axis`: a swapped or stale scale is an error >= 2x."""
    blocks = np.arange(shape[axis]) // 32
    gains = 2.0 ** (blocks % 7 - 3)
    return gains.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))]).astype(np.float32)


def both(q, k, v, dO, *, options=None, on_tile=None, dq_tile_order=None, **call):
    """(O, gradients) of forward and backward under the same options."""
    o, lse = attention_mxfp8(q, k, v, options=options, **call)
    extra = {"on_tile": on_tile, "dq_tile_order": dq_tile_order}
    return o, attention_mxfp8_backward(q, k, v, dO, o, lse, options=options, **extra, **call)


def grade(results, q, k, v, dO, **call):
    """SQNR in dB of (O, dQ, dK, dV) against the float64 reference."""
    references = (attention_reference(q, k, v, **call)[0], *attention_reference_backward(q, k, v, dO, **call))
    return [sqnr_db(x, reference) for x, reference in zip(results, references, strict=True)]
