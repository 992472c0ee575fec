"""flash-attn-4's forward kernels for sm_100 through flash_attn_func and flash_attn_varlen_func, unmodified.

Bounds: peer_attention. `sm_count` is small, so that persistent kernels loop over tiles.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from peer_attention import Problem, band, forward, stack
from peer_check import BF16, E4M3, E5M2, F16, Expected, cases

torch = pytest.importorskip("torch")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn, "fp8 e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Dense:
    """One call of flash_attn_func."""

    name: str
    sq: int
    sk: int
    hq: int = 1
    hkv: int = 1
    d: int = 128
    dv: int = 0
    batch: int = 1
    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    dtype: str = "bf16"
    two_cta: bool = False
    clc: bool = False
    splits: int = 1
    sm_count: int = 1

    @property
    def label(self):
        return self.name

    @property
    def shape(self):
        heads = f"H {self.hq}" if self.hq == self.hkv else f"H {self.hq}:{self.hkv}"
        d = f"d {self.d}" if self.dv in (0, self.d) else f"d {self.d}/{self.dv}"
        return f"B {self.batch} Sq {self.sq} Sk {self.sk} {heads} {d} {self.dtype}{' causal' if self.causal else ''}"

    def inputs(self):
        g = torch.Generator().manual_seed(0)
        shapes = ((self.sq, self.hq, self.d), (self.sk, self.hkv, self.d), (self.sk, self.hkv, self.dv or self.d))
        return [torch.randn(self.batch, *s, generator=g).to(DTYPES[self.dtype]) for s in shapes]

    def expected(self):
        left, right = (None, 0) if self.causal else self.window
        p_roundoff = {"bf16": BF16, "fp16": F16, "fp8": E4M3, "fp8 e5m2": E5M2}[self.dtype]
        kinds = {
            "visible": band(self.sq, self.sk, left, right),
            "scale": 1 / math.sqrt(self.d),
            "p_roundoff": p_roundoff,
            # 2^8 P is stored; half of E4M3's 2^-9, of E5M2's 2^-16
            "p_floor": {"fp8": 2.0**-18, "fp8 e5m2": 2.0**-25}.get(self.dtype, 0.0),
            "roundoff": F16 if self.dtype == "fp16" else BF16,
        }
        q, k, v = (t.double().numpy() for t in self.inputs())
        return stack([forward(Problem(q[b], k[b], v[b], **kinds)) for b in range(self.batch)], new_axis=True)


DENSE = [
    Dense("dense", 256, 256, hq=2, hkv=2),
    Dense("causal", 384, 384, causal=True),
    Dense("d64", 256, 384, d=64),
    Dense("d64-causal", 300, 300, d=64, causal=True),
    Dense("gqa-causal-odd", 133, 260, hq=4, hkv=2, causal=True),
    Dense("batch-rows-without-keys", 150, 129, hq=2, hkv=1, batch=2, causal=True),
    Dense("one-query", 1, 130, hq=2, hkv=1),
    Dense("short-q", 100, 300),
    Dense("2cta", 512, 256, hq=2, hkv=2, two_cta=True, sm_count=2),
    Dense("2cta-gqa-odd", 270, 200, hq=2, hkv=1, two_cta=True, sm_count=2),
    Dense("fp8", 256, 384, dtype="fp8"),
    Dense("fp8-causal-gqa", 200, 256, hq=2, hkv=1, dtype="fp8", causal=True),
    Dense("fp8-2cta", 512, 256, dtype="fp8", two_cta=True, sm_count=2),
    Dense("fp8-d64", 256, 384, d=64, dtype="fp8"),
    Dense("fp8-d64-causal", 300, 300, d=64, dtype="fp8", causal=True),
    Dense("fp8-e5m2", 256, 256, dtype="fp8 e5m2"),
    Dense("window", 300, 300, window=(64, 32)),
    Dense("split-kv", 64, 512, splits=2),
    Dense("clc-causal", 260, 260, hq=2, hkv=2, causal=True, clc=True, sm_count=2),
    Dense("fp16", 256, 256, dtype="fp16"),
    Dense("d96", 256, 256, d=96),
    Dense("d192-128", 256, 256, d=192, dv=128),
    Dense("d256-2cta", 256, 256, d=256, two_cta=True, sm_count=2),
]


@pytest.fixture
def switches(flash_attn, monkeypatch):
    """Sets what FA_DISABLE_2CTA and FA_CLC set when they are read at import."""
    from flash_attn.cute import utils

    def set_switches(*, two_cta, clc=False):
        monkeypatch.setattr(utils, "_fa_disable_2cta_enabled", not two_cta)
        monkeypatch.setattr(utils, "_fa_clc_enabled", clc)

    return set_switches


@pytest.mark.parametrize(("case", "schedules"), cases(DENSE, small=[1]))
def test_dense(flash_attn, peer, switches, case, schedules):
    switches(two_cta=case.two_cta, clc=case.clc)

    def run():
        q, k, v = (t.cuda() for t in case.inputs())
        o, lse = flash_attn.flash_attn_func(
            q, k, v, causal=case.causal, window_size=case.window, num_splits=case.splits, return_lse=True
        )
        return {"O": o, "LSE": lse}

    kernel = f"flash-attn-4 forward, {case.name}"
    line = peer(kernel, case.shape, run, case.expected(), schedules=schedules, sm_count=case.sm_count)
    main = line["launches"][0]
    assert main["cluster"][0] == (2 if case.two_cta else 1) and main["tcgen05.mma"] > 0


@dataclass(frozen=True)
class Ragged:
    """One call of flash_attn_varlen_func."""

    name: str
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    hq: int
    hkv: int
    causal: bool = False

    @property
    def label(self):
        return self.name

    def inputs(self):
        g = torch.Generator().manual_seed(0)
        shapes = ((sum(self.lengths_q), self.hq), (sum(self.lengths_k), self.hkv), (sum(self.lengths_k), self.hkv))
        q, k, v = (torch.randn(*s, 128, generator=g).bfloat16() for s in shapes)
        ends = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (self.lengths_q, self.lengths_k)]
        return q, k, v, *ends

    def problems(self):
        q, k, v, ends_q, ends_k = self.inputs()
        for i in range(len(self.lengths_q)):
            rows, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
            parts = (q[rows], k[keys], v[keys])
            visible = band(self.lengths_q[i], self.lengths_k[i], None, 0 if self.causal else None)
            yield Problem(*(t.double().numpy() for t in parts), visible, 1 / math.sqrt(128))


RAGGED = [
    Ragged("varlen-zero-lengths", (0, 0, 200, 130, 5), (0, 100, 260, 0, 1), 2, 1),
    Ragged("varlen-causal", (100, 0, 140), (150, 80, 140), 2, 2, causal=True),
]


@pytest.mark.parametrize(("case", "schedules"), cases(RAGGED))
def test_varlen(flash_attn, peer, switches, case, schedules):
    switches(two_cta=False)
    expected = stack([forward(p) for p in case.problems()], {"O": 0, "LSE": 1}, new_axis=False)

    def run():
        q, k, v, ends_q, ends_k = (t.cuda() for t in case.inputs())
        longest = {"max_seqlen_q": max(case.lengths_q), "max_seqlen_k": max(case.lengths_k)}
        o, lse = flash_attn.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=ends_q, cu_seqlens_k=ends_k, causal=case.causal, return_lse=True, **longest
        )
        return {"O": o, "LSE": lse}

    shape = f"lengths {case.lengths_q} x {case.lengths_k} H {case.hq}:{case.hkv} d 128"
    peer(f"flash-attn-4 forward, {case.name}", shape, run, expected, schedules=schedules, sm_count=1)


@pytest.mark.slow
def test_descale_factors(flash_attn, peer, switches):
    """FP8 with a factor per head for Q K and V: the result is that of the scaled inputs."""
    switches(two_cta=False)
    case = Dense("fp8-descale", 128, 256, hq=2, hkv=2, dtype="fp8")
    factors = torch.tensor([[0.5, 1.5]]), torch.tensor([[2.0, 0.25]]), torch.tensor([[3.0, 0.125]])
    q, k, v = (t.double().numpy()[0] * f.numpy()[0, :, None] for t, f in zip(case.inputs(), factors, strict=True))
    rest = (band(128, 256), 1 / math.sqrt(128), E4M3, 2.0**-18)
    expected = stack([forward(Problem(q, k, v, *rest))], new_axis=True)

    def run():
        from flash_attn.cute.interface import _flash_attn_fwd

        descale = dict(zip(("q_descale", "k_descale", "v_descale"), (f.cuda() for f in factors), strict=True))
        o, lse = _flash_attn_fwd(*(t.cuda() for t in case.inputs()), return_lse=True, **descale)[:2]
        return {"O": o, "LSE": lse}

    peer(f"flash-attn-4 forward, {case.name}", case.shape, run, expected, schedules=("eager", "lazy", "random 0"))


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["exact", "blackwell"])
def test_other_accumulation(flash_attn, peer, switches, accumulate):
    """The hardware's published model of a sum, and the exact sum, stay within the same bounds."""
    switches(two_cta=False)
    case = Dense(f"accumulate {accumulate}", 128, 256)

    def run():
        o, lse = flash_attn.flash_attn_func(*(t.cuda() for t in case.inputs()), return_lse=True)
        return {"O": o, "LSE": lse}

    kernel = f"flash-attn-4 forward, {case.name}"
    peer(kernel, case.shape, run, case.expected(), schedules=("eager",), sm_count=1, accumulate=accumulate)


def test_bounds_reject_a_wrong_result():
    """The bounds are tight enough to notice one key left out of one row."""
    from peer_check import compare

    case = Dense("dense", 64, 256)
    expected = case.expected()
    q, k, v = (t.double().numpy()[0] for t in case.inputs())
    visible = np.ones((64, 256), bool)
    visible[3, 200] = False
    wrong = forward(Problem(q, k, v, visible, 1 / math.sqrt(128)))
    for name in ("O", "LSE"):
        compare(name, expected[name].reference, expected[name])
        with pytest.raises(AssertionError, match="beyond the bound"):
            compare(name, wrong[name].reference[None], expected[name])
    assert isinstance(expected["O"], Expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"schedule": "lazy"}, {"schedule": "random", "seed": 1}, {"check": "races"}])
@pytest.mark.parametrize("case", [DENSE[0], DENSE[4], DENSE[9], DENSE[11]], ids=lambda c: c.name)
def test_both_engines(flash_attn, switches, case, options):
    """Python steps and machine code: not a bit of memory, not a count differs."""
    import sys
    from pathlib import Path

    from mxfp8fa import emulator

    sys.path.insert(0, str(Path(__file__).parents[1] / "compiled"))
    from both_engines import both_engines

    switches(two_cta=case.two_cta, clc=case.clc)
    with both_engines() as programs, emulator.active(sm_count=case.sm_count, **options):
        flash_attn.flash_attn_func(*(t.cuda() for t in case.inputs()), causal=case.causal)
    assert programs
