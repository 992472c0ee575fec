"""quack-kernels' softmax, cross-entropy and top-k, forward and backward, through their public functions.

Bounds: exp(x - max) is computed as ex2(x log2(e) - max log2(e)) in float32, so its relative error is at most
2^-23 + 4 2^-24 (|x| + |max|): two roundings of the exponent's terms and two of the difference, each worth
2^-24 |term| ln 2 log2(e). Online rescaling repeats that a few times at most: ONLINE. Sums as in test_quack_norms.
"""

import numpy as np
import pytest
from peer_check import BF16, F32, ROUNDOFF, Expected, cases

torch = pytest.importorskip("torch")

ONLINE = 3  # lane, warp and CTA each rescale once


def chain(width):
    return (width / 32 + 32) * F32


def shape_of(case):
    """`5x1000 bfloat16` and what else the case says."""
    return " ".join([f"{case[0]}x{case[1]}", *map(str, case[2:])])


def logits(rows, width, dtype, seed=0, scale=3.0):
    """Logits with another mean in every row."""
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, width, generator=g) * scale + torch.arange(rows)[:, None] * 4.0 - 8.0).to(dtype)


def exp_error(x):
    """Relative error of exp(x - max) per element, and of the row's sum."""
    peak = np.abs(x).max(axis=-1, keepdims=True)
    return ONLINE * (2 * F32 + 4 * F32 * (np.abs(x) + peak)), ONLINE * (6 + 8 * peak) * F32 + chain(x.shape[-1])


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


SOFTMAX = [(5, 1000, "bfloat16"), (4, 1024, "float32"), (3, 8192, "float16"), (2, 32768, "bfloat16")]


@pytest.mark.parametrize(("case", "schedules"), cases(SOFTMAX, small=[0]))
def test_softmax(quack, peer, case, schedules):
    from quack.softmax import softmax as quack_softmax

    rows, width, dtype = case
    x, dy = logits(rows, width, getattr(torch, dtype)), logits(rows, width, getattr(torch, dtype), 1, 1.0)
    p, u = softmax(x.double().numpy()), ROUNDOFF[dtype]
    element, total = exp_error(x.double().numpy())
    f32 = 1.01 * (element + total + 4 * F32) * p
    floor = 2.0**-25 if dtype == "float16" else 2.0**-126  # float16 subnormals; float32 ones are flushed

    def run():
        leaf = x.cuda().requires_grad_()
        y = quack_softmax(leaf)
        y.backward(dy.cuda())
        return {"y": y, "dx": leaf.grad}

    def expected(results):
        """The backward starts from the rounded y: dx = y (dy - sum(y dy))."""
        y, g = results["y"].astype(np.float64), dy.double().numpy()
        along = (y * g).sum(axis=-1, keepdims=True)
        along_error = (chain(width) + 2 * F32) * (y * np.abs(g)).sum(axis=-1, keepdims=True)
        dx = y * (g - along)
        bound = 1.01 * y * (along_error + 3 * F32 * (np.abs(g) + np.abs(along))) + u * np.abs(dx) + floor
        return {"y": Expected(p, f32 + u * p + floor), "dx": Expected(dx, bound)}

    peer("quack softmax forward + backward", shape_of(case), run, expected, schedules=schedules)


CROSS_ENTROPY = [(5, 1000, "bfloat16"), (4, 1024, "float32"), (2, 32768, "bfloat16")]


@pytest.mark.parametrize(("case", "schedules"), cases(CROSS_ENTROPY, small=[0]))
def test_cross_entropy(quack, peer, case, schedules):
    """The first row's target is ignore_index: loss and gradient 0."""
    from quack.cross_entropy import cross_entropy

    rows, width, dtype = case
    x = logits(rows, width, getattr(torch, dtype))
    target = torch.tensor([-100, width - 1, 0, width // 2, 17][:rows])
    dloss = torch.linspace(0.5, 2.0, rows)
    values, valid = x.double().numpy(), target.numpy() >= 0
    picked = np.maximum(target.numpy(), 0)
    peak = values.max(axis=-1)
    lse = peak + np.log(np.exp(values - peak[:, None]).sum(axis=-1))
    element, total = exp_error(values)
    # log(sum) turns the sum's relative error into an absolute one; then the products and sums of lse and loss.
    lse_error = (total[:, 0] + 8 * F32 * (np.abs(peak) + np.abs(lse) + width.bit_length())) * 1.01
    loss = np.where(valid, lse - values[np.arange(rows), picked], 0.0)
    loss_error = np.where(valid, lse_error + 2 * F32 * (np.abs(lse) + np.abs(loss)), 0.0)
    p = np.exp(values - lse[:, None])
    one_hot = np.eye(width)[picked]
    scale = (dloss.double().numpy() * valid)[:, None]
    dx = (p - one_hot) * scale
    dx_error = scale * (p * (element + lse_error[:, None] + 4 * F32 * np.abs(lse)[:, None]) + 2 * F32 * (p + one_hot))

    def run():
        leaf = x.cuda().requires_grad_()
        loss = cross_entropy(leaf, target.cuda(), reduction="none")
        loss.backward(dloss.cuda())
        return {"loss": loss, "dx": leaf.grad}

    expected = {
        "loss": Expected(loss, loss_error),
        "dx": Expected(dx, 1.01 * dx_error + ROUNDOFF[dtype] * np.abs(dx) + 2.0**-126),
    }
    peer("quack cross-entropy forward + backward", shape_of(case), run, expected, schedules=schedules)


TOPK = [(5, 1024, "k=16"), (9, 256, "k=8", "softmax"), (3, 4096, "k=32")]


@pytest.mark.parametrize(("case", "schedules"), cases(TOPK, small=[1]))
def test_topk(quack, peer, case, schedules):
    """Distinct bfloat16 values, so that both values and indices are determined."""
    from quack.topk import topk

    rows, width, k, *rest = case
    k, with_softmax = int(k.removeprefix("k=")), bool(rest)
    g = torch.Generator().manual_seed(0)
    # bfloat16 patterns 0x3C00 + i and their negatives: neighbours differ in the last bit.
    order = torch.stack([torch.randperm(width, generator=g) for _ in range(rows)])
    x = ((order // 2 + 0x3C00) | (order % 2 << 15)).to(torch.int16).view(torch.bfloat16)
    values = x.double().numpy()
    indices = np.argsort(-values, axis=-1)[:, :k]
    top = np.take_along_axis(values, indices, axis=-1)
    dvalues = torch.randn(rows, k, generator=g).to(torch.bfloat16)

    def run():
        leaf = x.cuda().requires_grad_()
        y, where = topk(leaf, k, softmax=with_softmax)
        y.backward(dvalues.cuda())
        return {"values": y, "indices": where, "dx": leaf.grad}

    def expected(results):
        gradient, dx, bound = dvalues.double().numpy(), np.zeros_like(values), np.zeros_like(values)
        forward = Expected(top)
        if with_softmax:  # the backward starts from the rounded probabilities, as in test_softmax
            forward = Expected(softmax(top), (BF16 + 64 * F32) * softmax(top))
            p = results["values"].astype(np.float64)
            magnitude = p * (np.abs(gradient) + (p * np.abs(gradient)).sum(axis=-1, keepdims=True))
            gradient = p * (gradient - (p * gradient).sum(axis=-1, keepdims=True))
            np.put_along_axis(bound, indices, 64 * F32 * magnitude + BF16 * np.abs(gradient), axis=-1)
        np.put_along_axis(dx, indices, gradient, axis=-1)
        return {"values": forward, "indices": Expected(indices), "dx": Expected(dx, bound)}

    peer("quack top-k forward + backward", shape_of(case), run, expected, schedules=schedules)
