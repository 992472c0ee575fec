"""quack-kernels' RMSNorm and LayerNorm, forward and backward, through their public functions.

Bounds: everything is computed in float32 and rounded once to the output's type. A row of N elements is summed by
threads, warps and CTAs; no addition chain is longer than N / 32 + 32 (a thread of a warp-wide row has N / 32 elements,
then shuffles, warps and CTAs follow), so a sum is off by CHAIN(N) = (N / 32 + 32) 2^-24 of the sum of magnitudes.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from peer_check import BF16, F32, ROUNDOFF, Expected, cases

torch = pytest.importorskip("torch")


def chain(width):
    return (width / 32 + 32) * F32


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Norm:
    rows: int
    width: int
    x: str = "bfloat16"
    weight: str | None = "float32"
    bias: bool = False
    residual: str | None = None

    @property
    def label(self):
        parts = [f"{self.rows}x{self.width}", self.x, f"weight {self.weight}" if self.weight else "no weight"]
        parts += ["bias"] * self.bias + ([f"residual {self.residual}"] if self.residual else [])
        return " ".join(parts)

    def tensor(self, generator, shape, dtype, scale=1.0, offset=0.0):
        return (torch.randn(shape, generator=generator) * scale + offset).to(getattr(torch, dtype))

    def inputs(self, seed):
        """x with a different power of two per row, weight near 1, bias, residual; None where the case has none."""
        g = torch.Generator().manual_seed(seed)
        scales = 2.0 ** (torch.arange(self.rows) % 7 - 3)[:, None]
        x = self.tensor(g, (self.rows, self.width), self.x, scales)
        weight = self.tensor(g, (self.width,), self.weight, 0.25, 1.0) if self.weight else None
        bias = self.tensor(g, (self.width,), self.weight, 0.5) if self.bias else None
        residual = self.tensor(g, (self.rows, self.width), self.residual, scales) if self.residual else None
        return x, weight, bias, residual


def rms_forward(case, eps):
    """y, residual_out and their bounds."""
    x, weight, bias, residual = (None if t is None else t.double().numpy() for t in case.inputs(0))
    u = ROUNDOFF[case.x]
    total = x if residual is None else x + residual
    # residual_out is rounded on its way out only: the norm uses the float32 sum.
    out_residual = Expected(total, ROUNDOFF[case.residual or case.x] * np.abs(total) * 1.001)
    rstd = 1 / np.sqrt(np.mean(total**2, axis=-1, keepdims=True) + eps)
    scaled = total * rstd * (1.0 if weight is None else weight)
    y = scaled + (0.0 if bias is None else bias)
    # rstd: half the error of the sum and 2 units of rsqrt.approx; then two products, an addition, and the rounding.
    inner = (chain(case.width) / 2 + 8 * F32) * np.abs(scaled) + F32 * np.abs(y)
    return Expected(y, inner * (1 + u) + u * np.abs(y)), out_residual


FORWARD = [
    Norm(5, 1000),
    Norm(5, 1024, weight=None),
    Norm(6, 512, x="float32", weight="bfloat16", bias=True),
    Norm(3, 4096, x="float16", residual="float32"),
    Norm(2, 32768),
    Norm(2, 65536, weight=None),
]


@pytest.mark.parametrize(("case", "schedules"), cases(FORWARD, small=[0, 4]))
def test_rmsnorm_forward(quack, peer, case, schedules):
    from quack.rmsnorm import rmsnorm

    y, residual_out = rms_forward(case, 1e-6)

    def run():
        x, weight, bias, residual = (None if t is None else t.cuda() for t in case.inputs(0))
        out = rmsnorm(x, weight, bias, residual, eps=1e-6, prenorm=residual is not None)
        return {"y": out[0], "residual": out[1]} if residual is not None else {"y": out}

    expected = {"y": y, "residual": residual_out} if case.residual else {"y": y}
    peer("quack rmsnorm forward", case.label, run, expected, schedules=schedules)


def gradients(case, x, weight, dout, *, eps, center):
    """dx, dweight, dbias of a norm of x, and their bounds; weight gradients are sums over rows in float32."""
    mean = x.mean(axis=-1, keepdims=True) if center else 0.0
    rstd = 1 / np.sqrt(np.mean((x - mean) ** 2, axis=-1, keepdims=True) + eps)
    normed, scaled = (x - mean) * rstd, dout * weight
    along = np.mean(normed * scaled, axis=-1, keepdims=True)
    across = np.mean(scaled, axis=-1, keepdims=True) if center else 0.0
    dx = (scaled - across - normed * along) * rstd
    # Every term of dx is off by a few roundings and by the error of the sums over the row it contains.
    magnitude = np.abs(scaled) + np.abs(normed) * np.mean(np.abs(normed * scaled), axis=-1, keepdims=True)
    magnitude = magnitude + (np.mean(np.abs(scaled), axis=-1, keepdims=True) if center else 0.0)
    offset = np.abs(mean) * rstd  # the subtraction of the mean costs its own magnitude
    f32 = (3 * chain(case.width) + 16 * F32) * (magnitude + offset * np.abs(along)) * rstd
    dx = Expected(dx, f32 * 1.01 + ROUNDOFF[case.x] * np.abs(dx))
    dweight = (dout * normed).sum(axis=0)
    f32 = (chain(case.width) + (case.rows + 16) * F32) * (np.abs(dout) * (np.abs(normed) + offset)).sum(axis=0)
    dweight = Expected(dweight, f32 * 1.01 + ROUNDOFF[case.weight] * np.abs(dweight))
    dbias = dout.sum(axis=0)
    dbias = Expected(dbias, (case.rows + 1) * F32 * np.abs(dout).sum(axis=0) + ROUNDOFF[case.weight] * np.abs(dbias))
    return dx, dweight, dbias


BACKWARD = [
    Norm(9, 1024),
    Norm(9, 1000, bias=True),
    Norm(6, 512, x="float32", weight="bfloat16"),
    Norm(4, 16384),
]


@pytest.mark.parametrize(("case", "schedules"), cases(BACKWARD, small=[0]))
def test_rmsnorm_backward(quack, peer, case, schedules):
    """Forward and backward by autograd; two SMs, so that the persistent backward loops over rows."""
    from quack.rmsnorm import rmsnorm

    dout = Norm(case.rows, case.width, x=case.x).inputs(1)[0]
    x, weight, _, _ = (None if t is None else t.double().numpy() for t in case.inputs(0))
    dx, dweight, dbias = gradients(case, x, weight, dout.double().numpy(), eps=1e-6, center=False)

    def run():
        leaves = [None if t is None else t.cuda().requires_grad_() for t in case.inputs(0)[:3]]
        y = rmsnorm(*leaves, eps=1e-6)
        y.backward(dout.cuda())
        results = {"y": y, "dx": leaves[0].grad, "dweight": leaves[1].grad}
        return results | ({"dbias": leaves[2].grad} if case.bias else {})

    expected = {"y": rms_forward(case, 1e-6)[0], "dx": dx, "dweight": dweight}
    expected |= {"dbias": dbias} if case.bias else {}
    peer("quack rmsnorm forward + backward", case.label, run, expected, schedules=schedules, sm_count=2)


LAYERNORM = [Norm(5, 1000), Norm(5, 1024, bias=True), Norm(2, 32768)]


@pytest.mark.parametrize(("case", "schedules"), cases(LAYERNORM))
def test_layernorm(quack, peer, case, schedules):
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd

    dout = Norm(case.rows, case.width).inputs(1)[0]
    x, weight, bias, _ = (None if t is None else t.double().numpy() for t in case.inputs(0))
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    scaled = (x - mean) * rstd * weight
    y = scaled + (0.0 if bias is None else bias)
    dx, dweight, dbias = gradients(case, x, weight, dout.double().numpy(), eps=1e-6, center=True)
    mean_error = chain(case.width) * np.mean(np.abs(x), axis=-1, keepdims=True)
    f32 = (chain(case.width) + 8 * F32) * np.abs(scaled) + mean_error * rstd * np.abs(weight) + F32 * np.abs(y)

    def run():
        x, weight, bias, _ = (None if t is None else t.cuda() for t in case.inputs(0))
        y, rstd, mean = layernorm_fwd(x, weight, bias, eps=1e-6, return_rstd=True, return_mean=True)
        dx, dweight, dbias = layernorm_bwd(x, weight, dout.cuda(), rstd, mean, has_bias=bias is not None)
        results = {"y": y, "rstd": rstd, "mean": mean, "dx": dx, "dweight": dweight}
        return results | ({"dbias": dbias} if bias is not None else {})

    expected = {
        "y": Expected(y, 1.01 * f32 + BF16 * np.abs(y)),
        "rstd": Expected(rstd[:, 0], (2 * chain(case.width) * rstd)[:, 0]),
        "mean": Expected(mean[:, 0], mean_error[:, 0] + F32 * np.abs(mean[:, 0])),
        "dx": dx,
        "dweight": dweight,
    }
    expected |= {"dbias": dbias} if case.bias else {}
    peer("quack layernorm forward + backward", case.label, run, expected, schedules=schedules, sm_count=2)
