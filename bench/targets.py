"""Other people's kernels as targets of `mxfp8fa mutate` and `mxfp8fa trace` (see mxfp8fa.cli.targets)."""

from __future__ import annotations

import math
import sys
import types
from typing import TYPE_CHECKING

import cuda.bindings.driver as cuda
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

from mxfp8fa.cli.targets import Target
from mxfp8fa.emulator.host import cuda_shims
from mxfp8fa.emulator.machine.memory import SHARED_BASE
from mxfp8fa.emulator.names import Names

if TYPE_CHECKING:
    from flash_attn.cute.flash_fwd_sm100 import FlashAttentionForwardSm100

SM_COUNT = 1  # one CTA works on all tiles, one after another
ROLES = ("softmax0",) * 4 + ("softmax1",) * 4 + ("correction",) * 4 + ("mma", "epilogue", "load", "idle")


def flash_attention_4(
    tokens_q: int = 256, tokens_k: int = 384, heads: int = 3, head_dim: int = 128, *, causal: bool = False
) -> Target:
    """flash-attn-4's BF16 forward: by default three tiles of 256 x 384, one after another in one CTA."""
    _without_triton()
    from flash_attn.cute.flash_fwd_sm100 import FlashAttentionForwardSm100
    from flash_attn.cute.utils import AuxData

    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, tokens, heads, head_dim, generator=generator).to(torch.bfloat16)
        for tokens in (tokens_q, tokens_k, tokens_k)
    )
    o, lse = torch.zeros_like(q), torch.zeros(1, heads, tokens_q)
    with cuda_shims(sm_count=SM_COUNT):
        kernel = FlashAttentionForwardSm100(
            head_dim, head_dim, qhead_per_kvhead=1, is_causal=causal, is_local=False, pack_gqa=False, m_block_size=128,
            n_block_size=128, q_stage=2,
        )  # fmt: skip
        tensors = [_dynamic(x, 16) for x in (q, k, v, o)]
        args = (
            *tensors, _dynamic(lse, 4), 1 / math.sqrt(head_dim), *[None] * 10, AuxData(None, None), *[None] * 8,
            cuda.CUstream(0),
        )  # fmt: skip
        compiled = cute.compile(kernel, *args, options="--gpu-arch=sm_100a --generate-line-info")
    return Target(compiled, args, Names(roles=dict(enumerate(ROLES)), barriers=_barriers(kernel)))


def _barriers(kernel: FlashAttentionForwardSm100) -> dict[int, str]:
    """Offsets of its mbarriers, in the order of its SharedStorage: per pipeline the full ones, then the empty ones."""
    stages = kernel.s_p_o_stage
    pipelines = {"q": kernel.q_stage, "kv": kernel.kv_stage} | dict.fromkeys(
        ("s_full_p_full_o_rescaled", "p_full_lastsplit", "o_full", "softmax_stats"), stages
    )
    pipelines |= {"o_epi": kernel.q_stage} | ({"load_epi": 1} if kernel.overlap_sO_sQ else {}) | {"s0_s1_sequence": 2}
    names = [f"{name}.{end}[{i}]" for name, n in pipelines.items() for end in ("full", "empty") for i in range(n)]
    return {SHARED_BASE + 8 * i: name for i, name in enumerate(names)}


def _dynamic(tensor: torch.Tensor, alignment_bytes: int) -> cute.Tensor:
    return from_dlpack(tensor, assumed_align=alignment_bytes).mark_layout_dynamic(leading_dim=tensor.ndim - 1)


def _without_triton() -> None:
    """quack, which flash-attn-4 imports, tunes with triton; nothing is tuned here."""
    tuner = types.ModuleType("quack.autotuner")
    tuner.autotune = lambda *a, **k: lambda function: function  # type: ignore[attr-defined]
    tuner.AutotuneConfig = type("AutotuneConfig", (), {"__init__": lambda self, **k: None})  # type: ignore[attr-defined]
    sys.modules.setdefault("quack.autotuner", tuner)
