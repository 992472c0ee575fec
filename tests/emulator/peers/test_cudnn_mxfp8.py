"""nvidia-cudnn-frontend's MXFP8 forward kernels for sm_100, with another random power of two for every block.

cuDNN's own launcher passes native code the addresses; here the same compiled function (`compile_prepared` of the
kernel's template) is called with them. Q and K are scaled along D, V along the keys. P is stored in E4M3 with scale 1, by
the d128 and d64 kernel as 2^4 P (its cast bias), by the others as P.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from peer_attention import Problem, band, forward, polynomial_error, softmax, stack
from peer_blocks import pack_scales
from peer_check import BF16, E4M3, F32, FEW, Expected, cases

torch = pytest.importorskip("torch")

TEMPLATES = "sdpa/fwd/kernels/sm100"
D128 = "prefill_d128_mxfp8"
# The kernels with larger heads evaluate part of exp2 with these; they require Amax_O, the largest |O|.
EXP2 = {
    "prefill_d192_d128_mxfp8": polynomial_error(1, 0.66578507, 0.33010703),
    "prefill_d256_mxfp8": polynomial_error(1, 0.92249709),
}
E4M3_IN, BF16_OUT = 0, 2  # cudnn.frost.tile_dsl.constants
P_FLOOR = 2.0**-10  # half of E4M3's smallest step


@dataclass(frozen=True)
class Case:
    """One launch. Scales are 2^-2 .. 2^2, one per 32 elements."""

    name: str
    sq: int
    sk: int
    hq: int = 1
    hkv: int = 1
    d: int = 128
    dv: int = 0
    batch: int = 1
    ctas: int = 1
    template: dict = field(default_factory=dict)
    file: str = D128
    sm_count: int = 1

    @property
    def label(self):
        return self.name

    @property
    def shape(self):
        d = f"d {self.d}/{self.dv}" if self.dv else f"d {self.d}"
        tail = f"H {self.hq}:{self.hkv} {d} e4m3{self.mask}"
        return f"B {self.batch} Sq {self.sq} Sk {self.sk} {tail}"

    @property
    def mask(self):
        left, right = (self.template.get(side) for side in ("window_left", "window_right"))
        return f" window {left}:{right}" if left is not None else " causal" if right == 0 else ""

    def operand(self, seed, tokens, heads, d, axis):
        """Codes (B, H, tokens, D), scale codes (blocked along `axis`), and their values in float64."""
        g = np.random.default_rng(seed)
        shape = (self.batch, heads, tokens, d)
        codes = torch.from_numpy(g.normal(0, 1, shape).astype(np.float32)).to(torch.float8_e4m3fn)
        blocks = list(shape)
        blocks[axis] = -(-shape[axis] // 32)
        exponent = g.integers(-2, 3, blocks)
        each = np.repeat(exponent, 32, axis=axis).take(np.arange(shape[axis]), axis=axis)
        return codes, (exponent + 127).astype(np.uint8), codes.double().numpy() * 2.0**each

    def operands(self):
        return (
            self.operand(0, self.sq, self.hq, self.d, 3),
            self.operand(1, self.sk, self.hkv, self.d, 3),
            self.operand(2, self.sk, self.hkv, self.dv or self.d, 2),
        )

    def expected(self):
        values = [v.transpose(0, 2, 1, 3) for _, _, v in self.operands()]
        window = [self.template.get(side) for side in ("window_left", "window_right")]
        visible = band(self.sq, self.sk, *window, bottom=False)
        rest = {
            "visible": visible,
            "scale": 1 / math.sqrt(self.d),
            "p_roundoff": E4M3,
            "p_floor": P_FLOOR / (16 if self.file == D128 else 1),
        }
        rest |= {"exp2": EXP2[self.file]} if self.file in EXP2 else {}
        parts = [forward(Problem(*(v[b] for v in values), **rest)) for b in range(self.batch)]
        results = stack(parts, new_axis=True)
        if self.file != D128:
            largest, bound = np.abs(results["O"].reference).max(), np.max(results["O"].bound)
            results["amax"] = Expected(np.array([largest]), np.array([bound]))
        return results


CASES = [
    Case("1cta", 256, 256),
    Case("1cta-heads", 256, 256, hq=2, hkv=2),
    Case("1cta-causal", 384, 384, template={"window_right": 0}),
    Case("1cta-odd-gqa", 200, 300, hq=2, hkv=1, template={"kv_tail_mask": True}),
    Case("1cta-batch", 128, 256, batch=2),
    Case("2cta", 512, 256, hq=2, hkv=2, ctas=2, sm_count=2),
    Case("2cta-causal", 512, 512, ctas=2, template={"window_right": 0}, sm_count=2),
    Case("2cta-odd", 300, 333, ctas=2, template={"kv_tail_mask": True}, sm_count=2),
    Case("d64-1cta", 256, 384, d=64),
    Case("d64-causal", 300, 300, d=64, template={"window_right": 0}),
    Case("d192-128-1cta", 256, 256, d=192, dv=128, file="prefill_d192_d128_mxfp8"),
    Case("d192-128-2cta", 512, 256, d=192, dv=128, ctas=2, file="prefill_d192_d128_mxfp8", sm_count=2),
    Case("d256-window", 384, 640, d=256, template={"window_left": 300, "window_right": 200}, file="prefill_d256_mxfp8"),
]


def load_kernel(cudnn, case, *, again=None):
    """cuDNN's module of the specialised kernel, which cuDNN itself remembers; `again`: a name for another copy of it."""
    from cudnn.frost.template_loader import load_template
    from cudnn.sdpa.fwd.config_sm100 import TemplateParams

    has_amax = case.file != D128
    fields = {"dtype_qkv": E4M3_IN, "dtype_o": BF16_OUT, "cta_mma": case.ctas, "d_flavor": case.d}
    params = TemplateParams(**fields, exp2_fma_split=True, emit_amax_o=has_amax, **case.template)
    path = str(Path(cudnn.__file__).parent / TEMPLATES / f"{case.file}.py")
    return load_template(path, params, "peer", extra_key=again)


def compile_kernel(cudnn, case):
    """The specialised function."""
    return load_kernel(cudnn, case).compile_prepared(has_amax=case.file != D128)


@dataclass
class Tensors:
    """Inputs (Q K V in BSHD, their packed scales) and results of one launch."""

    inputs: list[torch.Tensor]
    results: dict[str, torch.Tensor]

    @classmethod
    def of(cls, case):
        operands = case.operands()
        inputs = [codes.transpose(1, 2).contiguous().view(torch.uint8) for codes, _, _ in operands]
        sfq, sfk, sfv = (scale for _, scale, _ in operands)
        tiles = pack_scales(sfv.transpose(0, 1, 3, 2))  # (B, H, tiles of D, tiles of keys, 512); tiles of D lie outside
        inputs += [torch.from_numpy(pack_scales(s)) for s in (sfq, sfk)]
        inputs.append(torch.from_numpy(np.ascontiguousarray(tiles.transpose(2, 0, 1, 3, 4))))
        o = torch.empty(case.batch, case.sq, case.hq, case.dv or case.d, dtype=torch.bfloat16)
        results = {"O": o, "LSE": torch.empty(case.batch, case.hq, case.sq)}
        return cls(inputs, results | ({} if case.file == D128 else {"amax": torch.empty(1)}))

    @property
    def all(self):
        return [*self.inputs, *self.results.values()]

    def launch(self, function, case):
        """Call it with addresses, in the order of cudnn.sdpa.fwd.kernels._mxfp8_host.host; results start as NaN."""
        for result in self.results.values():
            result.fill_(math.nan)
        q, k, v, *scales = self.inputs
        views = (q, k, v, self.results["O"], self.results["LSE"])
        q_tiles, k_tiles = -(-case.sq // 128), -(-case.sk // 128)
        scale = math.log2(math.e) / math.sqrt(case.d)
        no_sinks, no_lengths, no_descriptors = 0, 0, 0
        size = (case.batch, case.hq, case.hkv, case.sq, case.sk, 0)
        ragged_and_paged = (0, 0, None, None, None, None, None, None, (0, 0), None, 0)
        amax = self.results["amax"].data_ptr() if "amax" in self.results else 0
        no_gate = (None, None, None, (0, 0, 0))
        function(
            *(t.data_ptr() for t in views), no_sinks, no_lengths, no_descriptors, size,
            *(tuple(t.stride()[:3]) for t in views), 0, scale, *ragged_and_paged, *(t.data_ptr() for t in scales),
            (q_tiles, k_tiles, k_tiles), amax, *no_gate, stream=0,
        )  # fmt: skip


@pytest.mark.parametrize(("case", "schedules"), cases(CASES, small=[0]))
def test_mxfp8_forward(cudnn, peer, case, schedules):
    tensors = Tensors.of(case)

    def run():
        tensors.launch(compile_kernel(cudnn, case), case)
        return tensors.results

    kernel = f"cuDNN MXFP8 forward, {case.name}"
    options = {"sm_count": case.sm_count, "allow": tensors.all}
    line = peer(kernel, case.shape, run, case.expected(), schedules=schedules, **options)
    assert line["launches"][-1]["cluster"][0] == case.ctas


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

    tensors = Tensors.of(case)

    def run():
        tensors.launch(compile_kernel(cudnn, case), case)
        return {"O": tensors.results["O"]}

    expected = {"O": Expected(o[None, :, None], bound[None, :, None], rms)}
    kernel = f"cuDNN MXFP8 forward, one tile, accumulate {accumulate}"
    peer(kernel, case.shape, run, expected, schedules=FEW, allow=tensors.all, accumulate=accumulate)
