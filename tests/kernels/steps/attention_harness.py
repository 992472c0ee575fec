"""Data, model and checks that the attention steps share."""

import numpy as np
import torch
from step_harness import assert_same_bits, empty, run_step

from mxfp8fa.kernels import MXOperand, compile_kernel
from mxfp8fa.layouts import unpack_scales
from mxfp8fa.numerics import AttentionOptions, MXTensor, attention_mxfp8, quantize
from mxfp8fa.studies.scale_way import misplace


def blocks(rows, k, seed, *, nan=True, huge=True):
    """(rows, k) normal values whose 32-blocks along k have powers of two of their own, and special rows.

    Row 1 has a zero block, row 2 a block at the edge of its scale, row 3 tiny values, row 4 huge ones, row 5 a NaN.
    """
    rng = np.random.default_rng(seed)
    power = 2.0 ** (np.arange(rows * -(-k // 32)).reshape(rows, -1) % 7 - 3)
    x = (rng.standard_normal((rows, k)) * power.repeat(32, axis=1)[:, :k]).astype(np.float32)
    last = slice((k - 1) // 32 * 32, k)
    x[1:2, last], x[2:3, :32] = 0, 448 * 2.0**-9
    x[3:4, last] *= 2.0**-120
    if huge:
        x[4:5, :32] *= 2.0**60
    if nan:
        x[5:6, k - 1] = np.nan
    return x


def operands(seqlen_q, seqlen_k, head_dim, *, square=False, nan_in_k=False):
    """Quantized Q, K, V: K without NaN unless asked for, and without huge values, which no other key would outweigh."""
    q = blocks(seqlen_q, head_dim, 1)
    k = blocks(seqlen_k, head_dim, 2, nan=nan_in_k, huge=False)
    v = blocks(head_dim, seqlen_k, 3).T
    axes = ((0, 1),) * 3 if square else (1, 1, 0)
    return tuple(
        quantize(np.ascontiguousarray(x), axes=a, tail="partial") for x, a in zip((q, k, v), axes, strict=True)
    )


def model(q, k, v, softmax_scale, accumulate="float32"):
    """O (Sq, D) and lse (Sq,) of `attention_mxfp8` for one head."""
    options = AttentionOptions(accumulate=accumulate)
    o, lse = attention_mxfp8(*map(with_heads, (q, k, v)), softmax_scale=softmax_scale, options=options)
    return o[0, :, 0], lse[0, 0]


def with_heads(x):
    """(S, D) as (1, S, 1, D)."""
    codes, scale = (np.ascontiguousarray(a)[None, :, None] for a in (x.codes, x.scale_e8m0))
    return MXTensor(codes, scale, x.fmt, tuple(2 * axis + 1 for axis in x.axes))


def run_attention(step, compiled, q, k, v, softmax_scale, **options):
    """Run a step; returns O, lse and the report. Operands are MXTensors or MXOperands."""
    q, k, v = (x if isinstance(x, MXOperand) else MXOperand.from_mx_tensor(x) for x in (q, k, v))
    o, lse = empty(*q.shape), empty(q.shape[0])
    report = run_step(compiled, step.arguments(q, k, v, o, lse, softmax_scale), **options)
    return o, lse, report


def check_attention(step, compiled, q, k, v, softmax_scale, *, accumulate="float32", **options):
    """Run a step and compare with the model, bit for bit; returns O, lse and the report."""
    o, lse, report = run_attention(step, compiled, q, k, v, softmax_scale, accumulate=accumulate, **options)
    expected_o, expected_lse = model(q, k, v, softmax_scale, accumulate)
    assert_same_bits(lse, expected_lse)
    assert_same_bits(o, expected_o)
    return o, lse, report


def compile_attention(step, function, softmax_scale):
    """A function of head_dim that compiles a step when first asked for it."""
    kept = {}

    def get(head_dim):
        if head_dim not in kept:
            ones = np.ones((128, head_dim), np.float32)
            q, k, v = (MXOperand.from_mx_tensor(quantize(ones, axes=axis)) for axis in (1, 1, 0))
            arguments = step.arguments(q, k, v, empty(128, head_dim), empty(128), softmax_scale)
            kept[head_dim] = compile_kernel(function, *arguments)
        return kept[head_dim]

    return get


def misplaced(x, rows, way):
    """An operand with its scales in the wrong places (see `misplace`), and the MXTensor that these mean."""
    scales = {rows: misplace(MXOperand.from_mx_tensor(x).scales[rows], way)}
    plain = unpack_scales(scales[rows].numpy(), shape=x.shape, axes=x.axes, rows=rows)
    return MXOperand(torch.from_numpy(x.codes), scales, x.axes), MXTensor(x.codes, plain, axes=x.axes)
