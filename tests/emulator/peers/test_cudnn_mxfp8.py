"""nvidia-cudnn-frontend's MXFP8 forward kernels for sm_100, with another random power of two for every block.

cuDNN's own launcher passes native code the addresses; here the same compiled function (`compile_prepared` of the
kernel's template) is called with them. Q and K are scaled along D, V along the keys. The kernel stores P as
2^4 P in E4M3 (its cast bias) with scale 1 and keeps the running maximum within 2^4 of the true one.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from peer_attention import Problem, band, forward, softmax, stack
from peer_blocks import pack_scales
from peer_check import BF16, E4M3, F32, FEW, Expected, cases

torch = pytest.importorskip("torch")

TEMPLATE = "sdpa/fwd/kernels/sm100/prefill_d128_mxfp8.py"
E4M3_IN, BF16_OUT = 0, 2  # cudnn.frost.tile_dsl.constants
P_FLOOR = 2.0**-14  # half of E4M3's smallest step, over the bias 2^4


@dataclass(frozen=True)
class Case:
    """One launch. Scales are 2^-2 .. 2^2, one per 32 elements."""

    name: str
    sq: int
    sk: int
    hq: int = 1
    hkv: int = 1
    d: int = 128
    batch: int = 1
    ctas: int = 1
    causal: bool = False
    template: dict = field(default_factory=dict)
    sm_count: int = 1

    @property
    def label(self):
        return self.name

    @property
    def shape(self):
        heads = f"H {self.hq}:{self.hkv}"
        return f"B {self.batch} Sq {self.sq} Sk {self.sk} {heads} d {self.d} e4m3{' causal' if self.causal else ''}"

    def operand(self, seed, tokens, heads, axis):
        """Codes (B, H, tokens, D), scale codes (blocked along `axis`), and their values in float64."""
        g = np.random.default_rng(seed)
        shape = (self.batch, heads, tokens, self.d)
        codes = torch.from_numpy(g.normal(0, 1, shape).astype(np.float32)).to(torch.float8_e4m3fn)
        blocks = list(shape)
        blocks[axis] = -(-shape[axis] // 32)
        exponent = g.integers(-2, 3, blocks)
        each = np.repeat(exponent, 32, axis=axis).take(np.arange(shape[axis]), axis=axis)
        return codes, (exponent + 127).astype(np.uint8), codes.double().numpy() * 2.0**each

    def operands(self):
        return (
            self.operand(0, self.sq, self.hq, 3),
            self.operand(1, self.sk, self.hkv, 3),
            self.operand(2, self.sk, self.hkv, 2),
        )

    def expected(self):
        values = [v.transpose(0, 2, 1, 3) for _, _, v in self.operands()]
        visible = band(self.sq, self.sk, None, 0 if self.causal else None, bottom=False)
        rest = (visible, 1 / math.sqrt(self.d), E4M3, P_FLOOR)
        return stack([forward(Problem(*(v[b] for v in values), *rest)) for b in range(self.batch)], new_axis=True)


CASES = [
    Case("1cta", 256, 256),
    Case("1cta-heads", 256, 256, hq=2, hkv=2),
    Case("1cta-causal", 384, 384, causal=True, template={"window_right": 0}),
    Case("1cta-odd-gqa", 200, 300, hq=2, hkv=1, template={"kv_tail_mask": True}),
    Case("1cta-batch", 128, 256, batch=2),
    Case("2cta", 512, 256, hq=2, hkv=2, ctas=2, sm_count=2),
    Case("2cta-causal", 512, 512, ctas=2, causal=True, template={"window_right": 0}, sm_count=2),
    Case("2cta-odd", 300, 333, ctas=2, template={"kv_tail_mask": True}, sm_count=2),
    Case("d64-1cta", 256, 384, d=64),
    Case("d64-causal", 300, 300, d=64, causal=True, template={"window_right": 0}),
]


def compile_kernel(cudnn, case):
    """The specialised function; cuDNN itself remembers it."""
    from cudnn.frost.template_loader import load_template
    from cudnn.sdpa.fwd.config_sm100 import TemplateParams

    params = TemplateParams(
        dtype_qkv=E4M3_IN, dtype_o=BF16_OUT, cta_mma=case.ctas, d_flavor=case.d, exp2_fma_split=True, emit_amax_o=False,
        **case.template,
    )  # fmt: skip
    module = load_template(str(Path(cudnn.__file__).parent / TEMPLATE), params, "peer")
    return module.compile_prepared(has_amax=False)


def launch(function, case, storages, o, lse):
    """Call it with addresses, in the order of cudnn.sdpa.fwd.kernels._mxfp8_host.host."""
    q, k, v, sfq, sfk, sfv = storages
    at = [t.data_ptr() for t in (q, k, v, o, lse)]
    strides = [tuple(t.stride()[:3]) for t in (q, k, v, o, lse)]
    q_tiles, k_tiles = -(-case.sq // 128), -(-case.sk // 128)
    scale = math.log2(math.e) / math.sqrt(case.d)
    no_sinks, no_lengths, no_descriptors = 0, 0, 0
    size = (case.batch, case.hq, case.hkv, case.sq, case.sk, 0)
    ragged_and_paged = (0, 0, None, None, None, None, None, None, (0, 0), None, 0)
    scales = (sfq.data_ptr(), sfk.data_ptr(), sfv.data_ptr(), (q_tiles, k_tiles, k_tiles))
    no_amax_and_no_gate = (0, None, None, None, (0, 0, 0))
    function(
        *at, no_sinks, no_lengths, no_descriptors, size, *strides, 0, scale, *ragged_and_paged, *scales,
        *no_amax_and_no_gate, stream=0,
    )  # fmt: skip


def tensors(case):
    """(Q K V in BSHD, their packed scales), and (O, LSE)."""
    (q, sfq, _), (k, sfk, _), (v, sfv, _) = case.operands()
    storages = [t.transpose(1, 2).contiguous().view(torch.uint8) for t in (q, k, v)]
    storages += [torch.from_numpy(pack_scales(s)) for s in (sfq, sfk, sfv.transpose(0, 1, 3, 2))]
    o = torch.empty(case.batch, case.sq, case.hq, case.d, dtype=torch.bfloat16)
    return storages, (o, torch.empty(case.batch, case.hq, case.sq))


@pytest.mark.parametrize(("case", "schedules"), cases(CASES, small=[0]))
def test_mxfp8_forward(cudnn, peer, case, schedules):
    storages, (o, lse) = tensors(case)

    def run():
        function = compile_kernel(cudnn, case)
        o.fill_(math.nan), lse.fill_(math.nan)
        launch(function, case, storages, o, lse)
        return {"O": o, "LSE": lse}

    options = {"sm_count": case.sm_count, "allow": [*storages, o, lse]}
    line = peer(f"cuDNN MXFP8 forward, {case.name}", case.shape, run, case.expected(), schedules=schedules, **options)
    assert line["launches"][0]["cluster"][0] == case.ctas


def e4m3(x):
    """Rounded to E4M3, ties to even; by torch."""
    return torch.from_numpy(x.astype(np.float32)).to(torch.float8_e4m3fn).double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["float32", "blackwell"])
def test_one_tile_to_the_last_bit_of_p(cudnn, peer, accumulate):
    """One tile of keys: the maximum is exact, so every code of P is known, but for exponents next to a tie.

    That leaves the rounding of O to bfloat16, fine enough to notice a single wrong scale of V.
    """
    case = Case("one-tile", 256, 128)
    q, k, v = (values[0, 0] for _, _, values in case.operands())
    x = softmax(Problem(*(t[:, None] for t in (q, k, v)), band(256, 128), 1 / math.sqrt(128)))
    total = x.p[0].max(axis=-1, keepdims=True)  # 1 / sum of exp(S - max)
    stored, slack = 16 * x.p[0] / total, 1 + x.relative[0]
    codes = e4m3(stored)
    step = e4m3(stored * slack) - e4m3(stored / slack)
    o = codes / 16 @ v * total
    bound = (step / 16 @ np.abs(v) + (codes / 16 * (x.relative[0] + 128 * F32)) @ np.abs(v)) * total
    bound += BF16 * np.abs(o) + (x.p[0] * x.relative[0]).sum(axis=-1, keepdims=True) * np.abs(o)
    rms = float(np.sqrt(np.mean(BF16**2 / 3 * o**2 + (bound - BF16 * np.abs(o)) ** 2)))

    storages, results = tensors(case)

    def run():
        launch(compile_kernel(cudnn, case), case, storages, *results)
        return {"O": results[0]}

    expected = {"O": Expected(o[None, :, None], bound[None, :, None], rms)}
    kernel = f"cuDNN MXFP8 forward, one tile, accumulate {accumulate}"
    allow = [*storages, *results]
    peer(kernel, case.shape, run, expected, schedules=FEW, allow=allow, accumulate=accumulate)
