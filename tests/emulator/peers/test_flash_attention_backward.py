"""flash-attn-4's backward for sm_100: preprocess and postprocess alone, then whole through autograd, unmodified.

Bounds: peer_attention. dQ (and dK, dV with several query heads per key head) is summed by bulk reductions in any order
unless the backward is deterministic.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from peer_attention import Problem, backward, band, forward, stack
from peer_check import F32, FEW, Expected, cases

torch = pytest.importorskip("torch")


@pytest.fixture
def two_cta(flash_attn, monkeypatch):
    """Sets what FA_DISABLE_2CTA sets when it is read at import."""
    from flash_attn.cute import utils

    return lambda on: monkeypatch.setattr(utils, "_fa_disable_2cta_enabled", not on)


def random(*shape, seed, dtype=None):
    tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return tensor.to(dtype or torch.bfloat16)


@pytest.mark.parametrize("tokens", [256, 200])
def test_preprocess(flash_attn, peer, tokens):
    """delta = rowsum(O * dO), the LSE in base 2, a cleared accumulator; rows up to the tile's end are padding."""
    from cutlass import BFloat16
    from flash_attn.cute.interface import _bwd_preprocess

    rounded = -(-tokens // 128) * 128
    o, do = (random(1, tokens, 2, 128, seed=seed) for seed in (0, 1))
    lse = random(1, 2, tokens, seed=2, dtype=torch.float32)
    lse[0, 1, 7] = -math.inf  # a row without keys
    products = (o.double() * do.double()).numpy()[0].transpose(1, 0, 2)
    padding = ((0, 0), (0, rounded - tokens))
    delta = np.pad(products.sum(axis=-1), padding)[None]
    # 16 threads share a row: 8 products each, then 4 shuffles.
    delta_bound = np.pad(16 * F32 * np.abs(products).sum(axis=-1), padding)[None]
    log2 = lse.double().numpy() * math.log2(math.e)
    log2 = np.pad(np.where(np.isinf(log2), 0.0, log2)[0], padding, constant_values=np.inf)[None]

    def run():
        results = {
            "delta": torch.full((1, 2, rounded), math.nan).cuda(),
            "LSE log2": torch.full((1, 2, rounded), math.nan).cuda(),
            "dQ accumulator": torch.full((1, 2, rounded * 128), math.nan).cuda(),
        }
        delta, lse_log2, accumulator = results.values()
        _bwd_preprocess(
            o.cuda(), do.cuda(), delta, lse.cuda(), lse_log2, accumulator, None, None, None, BFloat16, 128, 128, 128,
            fake_mode=False,
        )  # fmt: skip
        return results

    expected = {
        "delta": Expected(delta, delta_bound),
        "LSE log2": Expected(log2, 2 * F32 * np.abs(np.where(np.isinf(log2), 0.0, log2))),
        "dQ accumulator": Expected(np.zeros((1, 2, rounded * 128))),
    }
    peer("flash-attn-4 backward preprocess", f"B 1 S {tokens} H 2 d 128 bf16", run, expected, schedules=FEW)


def fragment_offsets(rows, columns, *, pair):
    """Where the accumulator keeps dQ[row, column]: the two orders of flash_attn.cute.bwd_accum_tile."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
    if not pair:
        return 4 * row + column % 4 + column // 4 * 4 * rows
    half = rows // 2
    offset = 4 * (row % half) + row // half * half * columns + column % 4
    return offset + column % (columns // 2) // 4 * 8 * half + column // (columns // 2) * 4 * half


@pytest.mark.parametrize("pair", [False, True], ids=["1cta", "2cta"])
def test_postprocess(flash_attn, peer, pair):
    """dQ = round(scale * accumulator), exactly, in the order the tensor core's fragments have."""
    from cutlass import BFloat16
    from flash_attn.cute.flash_bwd_sm100 import FlashAttentionBackwardSm100
    from flash_attn.cute.interface import _bwd_postprocess_convert

    tokens, scale = 200, 0.08837890625
    accumulator = random(1, 2, 2 * 128 * 128, seed=3, dtype=torch.float32)
    order = FlashAttentionBackwardSm100.accum_tile_orders(pair, 128)[0]
    tiles = accumulator.reshape(2, 2, -1)[:, :, torch.from_numpy(fragment_offsets(128, 128, pair=pair))]
    rows = (tiles.reshape(2, 256, 128)[:, :tokens] * torch.tensor(scale)).bfloat16().permute(1, 0, 2)

    def run():
        dq = torch.full((1, tokens, 2, 128), math.nan, dtype=torch.bfloat16).cuda()
        _bwd_postprocess_convert(
            accumulator.cuda(), dq, scale, None, None, 100, BFloat16, 128, 128, 128, 1, False,
            use_2cta_instrs=pair, cluster_size=1, accum_order=order, fake_mode=False,
        )  # fmt: skip
        return {"dQ": dq}

    expected = {"dQ": Expected(rows.double().numpy()[None])}
    kernel = f"flash-attn-4 backward postprocess, {order.value}"
    peer(kernel, f"B 1 S {tokens} H 2 d 128 bf16", run, expected, schedules=FEW)


@dataclass(frozen=True)
class Case:
    """Forward and backward of one call."""

    name: str
    sq: int
    sk: int
    hq: int = 1
    hkv: int = 1
    d: int = 128
    dv: int = 0
    causal: bool = False
    two_cta: bool = False
    deterministic: bool = False
    sm_count: int = 1

    @property
    def label(self):
        return self.name

    @property
    def shape(self):
        d = f"d {self.d}" if self.dv in (0, self.d) else f"d {self.d}/{self.dv}"
        return f"Sq {self.sq} Sk {self.sk} H {self.hq}:{self.hkv} {d} bf16{' causal' if self.causal else ''}"

    def inputs(self):
        """q, k, v, dO."""
        dv = self.dv or self.d
        shapes = (
            (self.sq, self.hq, self.d),
            (self.sk, self.hkv, self.d),
            (self.sk, self.hkv, dv),
            (self.sq, self.hq, dv),
        )
        return [random(1, *shape, seed=seed) for seed, shape in enumerate(shapes)]


CASES = [
    Case("1cta", 256, 256),
    Case("1cta-causal", 256, 384, causal=True),
    Case("2cta", 256, 256, two_cta=True, sm_count=2),
    Case("2cta-causal", 256, 384, two_cta=True, causal=True, sm_count=2),
    Case("d64", 256, 256, d=64),
    Case("gqa", 256, 256, hq=2, hkv=1),
    Case("odd-causal", 257, 200, causal=True),
    Case("deterministic", 256, 384, deterministic=True),
    Case("deterministic-2cta", 256, 512, two_cta=True, deterministic=True, sm_count=2),
    Case("d192-128-2cta", 256, 256, d=192, dv=128, two_cta=True, sm_count=2),
    Case("d256-2cta", 256, 256, d=256, two_cta=True, sm_count=2),
]


def gradients(problem, o, do, *, any_order, gqa):
    """O, dQ, dK and dV of one sequence; o is what the forward stored."""
    results = forward(problem)
    lse = results.pop("LSE")
    parts = backward(problem, o, do, float(np.max(lse.bound, initial=0.0)))
    loose = {"dQ"} | ({"dK", "dV"} if gqa else set())
    return results | {n: replace(e, any_order=any_order and n in loose) for n, e in parts.items()}


@pytest.mark.parametrize(("case", "schedules"), cases(CASES))
def test_backward(flash_attn, peer, two_cta, case, schedules):
    two_cta(case.two_cta)
    q, k, v, do = (t.double().numpy()[0] for t in case.inputs())
    visible = band(case.sq, case.sk, None, 0 if case.causal else None)
    problem = Problem(q, k, v, visible, 1 / math.sqrt(case.d))

    def run():
        q, k, v, do = (t.cuda() for t in case.inputs())
        q, k, v = (t.requires_grad_() for t in (q, k, v))
        o = flash_attn.flash_attn_func(q, k, v, causal=case.causal, deterministic=case.deterministic)[0]
        o.backward(do)
        return {"O": o, "dQ": q.grad, "dK": k.grad, "dV": v.grad}

    def expected(results):
        o = results["O"][0].astype(np.float64)
        loose = {"any_order": not case.deterministic, "gqa": case.hq != case.hkv}
        return stack([gradients(problem, o, do, **loose)], new_axis=True)

    kernel = f"flash-attn-4 forward + backward, {case.name}"
    line = peer(kernel, case.shape, run, expected, schedules=schedules, sm_count=case.sm_count)
    assert {launch["cluster"][0] for launch in line["launches"]} == ({1, 2} if case.two_cta else {1})


@pytest.mark.slow
def test_varlen_backward(flash_attn, peer, two_cta):
    """Packed sequences, one without queries."""
    two_cta(False)
    lengths_q, lengths_k = (60, 0, 140), (70, 30, 130)
    ends_q, ends_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k))
    q, do = (random(sum(lengths_q), 1, 128, seed=seed) for seed in (0, 1))
    k, v = (random(sum(lengths_k), 1, 128, seed=seed) for seed in (2, 3))

    def run():
        leaves = [t.cuda().requires_grad_() for t in (q, k, v)]
        longest = {"max_seqlen_q": max(lengths_q), "max_seqlen_k": max(lengths_k)}
        o = flash_attn.flash_attn_varlen_func(
            *leaves, cu_seqlens_q=ends_q.cuda(), cu_seqlens_k=ends_k.cuda(), causal=True, **longest
        )[0]
        o.backward(do.cuda())
        return {"O": o, "dQ": leaves[0].grad, "dK": leaves[1].grad, "dV": leaves[2].grad}

    def expected(results):
        parts = []
        for i, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
            r, c = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
            values = (t.double().numpy() for t in (q[r], k[c], v[c]))
            problem = Problem(*values, band(rows, keys, None, 0), 1 / math.sqrt(128))
            o = results["O"][r].astype(np.float64)
            parts.append(gradients(problem, o, do[r].double().numpy(), any_order=True, gqa=False))
        return stack(parts, new_axis=False)

    shape = f"lengths {lengths_q} x {lengths_k} H 1 d 128 bf16 causal"
    schedules = ("eager", "lazy", *(f"random {seed}" for seed in range(3)))
    peer("flash-attn-4 forward + backward, varlen", shape, run, expected, schedules=schedules, sm_count=1)
