"""nvidia-cudnn-frontend's MXFP8 backward for sm_100 (head_dim 256, CTA pairs): scale repacking, dQ, fused dK and dV.

The plan is made and compiled by cuDNN's own adapter; its launcher passes native code the addresses, so here the compiled
function is called with them. Q, K and dO are quantised twice, along D and along the tokens, from inputs with another
power of two in every 32 x 32 block. The kernels store P as 2^8 P and dS with a scale per block of 32, both in E4M3.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from peer_attention import BlockScaled, Problem, backward, band, softmax, stack
from peer_blocks import pack_scales
from peer_check import BF16, E4M3, F32, cases

torch = pytest.importorskip("torch")

D = 256
ROLES = (
    "q", "k", "v", "o", "do", "stats", "dq", "dk", "dv", "q_T", "k_T", "do_T", "do_f16", "sf_q", "sf_q_T", "sf_k", "sf_k_T",
    "sf_v", "sf_do", "sf_do_T",
)  # fmt: skip
NO_SCALE = 127


@dataclass(frozen=True)
class Case:
    name: str
    sq: int
    sk: int
    hq: int = 1
    hkv: int = 1
    causal: bool = False

    @property
    def label(self):
        return self.name

    @property
    def shape(self):
        return f"Sq {self.sq} Sk {self.sk} H {self.hq}:{self.hkv} d {D} e4m3{' causal' if self.causal else ''}"


CASES = [Case("d256", 128, 256), Case("d256-causal", 256, 256, causal=True), Case("d256-gqa", 128, 128, hq=2, hkv=1)]


def inputs(seed, tokens, heads):
    """(heads, tokens, D) with a power of two per 32 x 32 block."""
    g = np.random.default_rng(seed)
    powers = 2.0 ** g.integers(-2, 3, (heads, tokens // 32, D // 32))
    return g.normal(0, 1, (heads, tokens, D)) * np.repeat(np.repeat(powers, 32, 1), 32, 2)


def quantize(x, axis):
    """(codes, scale codes with the blocks last, values) of blocks of 32 along an axis; scales round up."""
    moved = np.moveaxis(x, axis, -1)
    blocks = moved.reshape(*moved.shape[:-1], -1, 32)
    exponent = np.ceil(np.log2(np.abs(blocks).max(axis=-1) / 448)).astype(int)
    codes = torch.from_numpy((blocks / 2.0 ** exponent[..., None]).astype(np.float32)).to(torch.float8_e4m3fn)
    values = (codes.double().numpy() * 2.0 ** exponent[..., None]).reshape(moved.shape)
    codes = codes.view(torch.uint8).numpy().reshape(moved.shape)
    return np.moveaxis(codes, -1, axis), (exponent + 127).astype(np.uint8), np.moveaxis(values, -1, axis)


def storage(x, dtype):
    """(heads, tokens, D) in cuDNN's layout (1, tokens, heads, D), with the strides a fresh tensor has."""
    tensor = torch.empty(1, x.shape[1], x.shape[0], D, dtype=dtype)
    bits = torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))[None]
    (tensor.view(torch.uint8) if x.dtype == np.uint8 else tensor).copy_(bits)
    return tensor


class Call:
    """Tensors of one call, by role, and what it should give."""

    def __init__(self, case):
        f8, bf16 = torch.float8_e4m3fn, torch.bfloat16
        raw = {"q": inputs(0, case.sq, case.hq) / 2, "k": inputs(1, case.sk, case.hkv) / 2}
        raw |= {"v": inputs(2, case.sk, case.hkv), "do": inputs(3, case.sq, case.hq)}
        self.tensors, values = {}, {}
        for name, x in raw.items():
            codes, scale, values[name] = quantize(x, 2)
            self.tensors[name] = storage(codes, f8)
            self.tensors["sf_" + name] = torch.from_numpy(pack_scales(scale, NO_SCALE))
        for name in ("q", "k", "do"):
            codes, scale, values[name + "_T"] = quantize(raw[name], 1)
            self.tensors[name + "_T"] = storage(codes, f8)
            tiles = pack_scales(
                scale, NO_SCALE
            )  # (heads, tiles of D, tiles of tokens, 512); the tiles of D lie outside
            self.tensors[f"sf_{name}_T"] = torch.from_numpy(tiles.transpose(1, 0, 2, 3).copy())
        by_token = {name: x.transpose(1, 0, 2) for name, x in values.items()}
        visible = band(case.sq, case.sk, None, 0 if case.causal else None, bottom=False)
        problem = Problem(by_token["q"], by_token["k"], by_token["v"], visible, 1 / math.sqrt(D), p_roundoff=E4M3)
        x = softmax(problem)
        o = torch.from_numpy(x.p @ problem.per_head(by_token["v"])).to(bf16)
        self.tensors["o"] = storage(o.float().numpy(), bf16)
        self.tensors["do_f16"] = storage(raw["do"].astype(np.float32), bf16)
        self.tensors["stats"] = torch.from_numpy(x.lse.astype(np.float32))[None, ..., None].contiguous()
        for name, (tokens, heads) in {
            "dq": (case.sq, case.hq),
            "dk": (case.sk, case.hkv),
            "dv": (case.sk, case.hkv),
        }.items():
            self.tensors[name] = torch.full((1, tokens, heads, D), math.nan, dtype=bf16)
        exact = self.tensors["do_f16"].double().numpy()[0]
        # E4M3's smallest step is 2^-9: P is stored over 2^8, dS over a scale that brings a block's largest above 224.
        # The products O * dO are rounded to bfloat16 before they are added up.
        steps = {"p_floor": 2.0**-18, "ds_floor": 2.0**-10 / 224, "delta_roundoff": BF16}
        second = BlockScaled(by_token["q_T"], by_token["k_T"], by_token["do_T"], exact, **steps)
        results = backward(
            problem, o.double().numpy().transpose(1, 0, 2), by_token["do"], F32 * np.abs(x.lse).max(), second
        )
        self.expected = stack([results], new_axis=True)


def compile_plan(call, case):
    """cuDNN's plan for tensors like these."""
    from cudnn.sdpa.bwd.api_dsl_mxfp8_sm100 import SdpaBwdDslSm100Mxfp8

    from mxfp8fa.emulator.host import as_cuda

    def sample(name):
        tensor = as_cuda(call.tensors[name])
        return tensor if name == "stats" or name.startswith("sf_") else tensor.transpose(1, 2)

    keywords = {"sample_" + name: sample(name) for name in ROLES[9:]}
    plan = SdpaBwdDslSm100Mxfp8(*(sample(name) for name in ROLES[:9]), is_causal=case.causal, **keywords)
    plan.check_support()
    return plan.compile()


@pytest.mark.parametrize(("case", "schedules"), cases(CASES))
def test_mxfp8_backward(cudnn, peer, case, schedules):
    import mxfp8fa.emulator as emulator

    call = Call(case)
    with emulator.active():
        plan = compile_plan(call, case)
    workspace = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8)
    aligned = -(-workspace.data_ptr() // 256) * 256

    def run():
        for name in ("dq", "dk", "dv"):
            call.tensors[name].fill_(math.nan)
        plan.entry(*(call.tensors[name].data_ptr() for name in ROLES), aligned, 1 / math.sqrt(D), stream=0)
        return {"dQ": call.tensors["dq"], "dK": call.tensors["dk"], "dV": call.tensors["dv"]}

    kernel = f"cuDNN MXFP8 backward, {case.name}"
    allow = [*call.tensors.values(), workspace]
    line = peer(kernel, case.shape, run, call.expected, schedules=schedules, sm_count=2, allow=allow)
    assert {2} <= {launch["cluster"][0] for launch in line["launches"]}
