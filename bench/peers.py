"""Other people's attention as programs for `mxfp8fa inspect` and `mxfp8fa model`: functions that call them once.

Tensors are CPU tensors that call themselves CUDA tensors (`mxfp8fa.emulator.as_cuda`); call the programs inside
`emulator.active()` or `host.active()`. Needs the extra `peers`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import os
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mxfp8fa.emulator import as_cuda
from mxfp8fa.emulator.names import Names
from mxfp8fa.timing.programs import Program, Source, Tiling
from mxfp8fa.timing.shapes import AttentionShape

E4M3_IN, BF16_OUT = 0, 2  # cudnn.frost.tile_dsl.constants
ROLES = ("softmax0",) * 4 + ("softmax1",) * 4 + ("correction",) * 4 + ("mma", "epilogue", "load", "idle")
FORWARD_NAMES = Names(roles=dict(enumerate(ROLES)))
CUDNN_TEMPLATE = "sdpa/fwd/kernels/sm100/prefill_d128_mxfp8.py"


def flash_attention_forward(shape: AttentionShape, *, fp8: bool = False, two_cta: bool = False) -> Program:
    """flash-attn-4's forward."""
    flash_attn_func = _flash_attention(two_cta)
    tensors = [t.to(torch.float8_e4m3fn) if fp8 else t for t in _random(shape)]
    q, k, v = (as_cuda(t) for t in tensors)
    return Program(lambda: flash_attn_func(q, k, v, causal=shape.causal), names=FORWARD_NAMES)


def flash_attention_backward(shape: AttentionShape, *, two_cta: bool = False) -> Program:
    """flash-attn-4's backward (preprocess, main, postprocess), after its forward."""
    flash_attn_func = _flash_attention(two_cta)
    q, k, v = (as_cuda(t).requires_grad_() for t in _random(shape))

    def program() -> None:
        o = flash_attn_func(q, k, v, causal=shape.causal)
        (o[0] if isinstance(o, tuple) else o).backward(torch.ones_like(q))

    return Program(program)


def cudnn_forward(shape: AttentionShape, *, two_cta: bool = False) -> Program:
    """cuDNN's MXFP8 forward, by its template of the open frontend; all scales are 1."""
    os.environ["CUDNN_FRONTEND_DISABLE_COMPILED_CACHE"] = "1"  # functions from a disk cache have no PTX
    _stub_triton()
    import cudnn
    from cudnn.frost.template_loader import load_template
    from cudnn.sdpa.fwd.config_sm100 import TemplateParams

    masked = {"window_right": 0} if shape.causal else {}
    tail = {"kv_tail_mask": True} if shape.seqlen_k % 128 else {}
    params = TemplateParams(
        dtype_qkv=E4M3_IN, dtype_o=BF16_OUT, cta_mma=1 + two_cta, d_flavor=shape.head_dim, exp2_fma_split=True,
        **masked, **tail,
    )  # fmt: skip
    module = load_template(str(Path(cudnn.__file__).parent / CUDNN_TEMPLATE), params, "peer")
    q, k, v = (as_cuda(t.to(torch.float8_e4m3fn).view(torch.uint8)) for t in _random(shape))
    q_tiles, k_tiles = -(-shape.seqlen_q // 128), -(-shape.seqlen_k // 128)
    b, hq, hkv = shape.batch, shape.num_heads_q, shape.num_heads_kv
    scales = [
        as_cuda(torch.full((b, h, tiles, 512), 127, dtype=torch.uint8))
        for h, tiles in ((hq, q_tiles), (hkv, k_tiles), (hkv, k_tiles))
    ]
    o = as_cuda(torch.empty(b, shape.seqlen_q, hq, shape.head_dim, dtype=torch.bfloat16))
    lse = as_cuda(torch.empty(b, hq, shape.seqlen_q))

    def program() -> None:
        function = module.compile_prepared(has_amax=False)
        none_ragged = (0, 0, None, None, None, None, None, None, (0, 0), None, 0)
        function(
            *(t.data_ptr() for t in (q, k, v, o, lse)), 0, 0, 0, (b, hq, hkv, shape.seqlen_q, shape.seqlen_k, 0),
            *(tuple(t.stride()[:3]) for t in (q, k, v, o, lse)), 0, math.log2(math.e) / math.sqrt(shape.head_dim),
            *none_ragged, *(t.data_ptr() for t in scales), (q_tiles, k_tiles, k_tiles), 0, None, None, None, (0, 0, 0),
            stream=0,
        )  # fmt: skip

    return Program(program, memory=[q, k, v, o, lse, *scales], names=FORWARD_NAMES)


def cudnn_backward(shape: AttentionShape, *, two_cta: bool = True) -> Program:
    """cuDNN's MXFP8 backward of the open frontend: head_dim 256 only, CTA pairs, one kernel for dQ, one for dK and dV.

    Compiled, not launched: eleven scale tensors in an order of their own would have to be made first.
    """
    if not two_cta or shape.head_dim != 256:
        raise ValueError(f"cudnn-backward has head_dim 256 and CTA pairs; given: head_dim {shape.head_dim}, {two_cta = }")
    os.environ["CUDNN_FRONTEND_DISABLE_COMPILED_CACHE"] = "1"
    _stub_triton()
    import cutlass
    from cudnn.sdpa.bwd.api_dsl_mxfp8_sm100 import _ROLES, SdpaBwdDslSm100Mxfp8, ws_align
    from cudnn.sdpa.bwd.kernels.sm100.bprop_dkdv_d256_mxfp8 import BlackwellFmhaBackwardDKDV256
    from cudnn.sdpa.bwd.kernels.sm100.bprop_dq_d256_mxfp8 import BlackwellFmhaBackwardDQ256
    from cudnn.sdpa.bwd.kernels.sm100.bprop_sf_repack_mxfp8 import Mxfp8SfRepackSm100
    from cudnn.sdpa.bwd.kernels.sm100.prepared_mxfp8_host import compile_host

    plan = object.__new__(SdpaBwdDslSm100Mxfp8)  # its shapes, without the tensors that its constructor looks at
    plan.batch_size, plan.h_q, plan.h_kv, plan.head_dim_qk = shape.batch, shape.num_heads_q, shape.num_heads_kv, 256
    plan.s_q_max, plan.s_k_max, plan.is_causal = shape.seqlen_q, shape.seqlen_k, shape.causal
    plan._gqa_group = shape.num_heads_q // shape.num_heads_kv
    repacks, offset = [], plan._kernel_workspace_bytes()
    regions = [(0, (offset,), (1,))]
    for _, source, rows, groups, planes, layout, plane_major in plan._sf_plan():
        repack = Mxfp8SfRepackSm100(rows, groups, planes, layout, src_plane_major=plane_major)
        repacks.append((repack, _ROLES[13:].index(source)))
        offset = ws_align(offset)
        regions.append((offset, (repack.dst_bytes,), (1,)))
        offset += repack.dst_bytes
    kernels = [
        kind(cutlass.BFloat16, cutlass.Float32, (128, 128, 256), False, mask, is_persistent=False, online_ds_scale=True)
        for kind, mask in zip(
            (BlackwellFmhaBackwardDQ256, BlackwellFmhaBackwardDKDV256), plan._mask_types(), strict=True
        )
    ]
    problem = shape.seqlen_q, shape.seqlen_k, 256, ((plan._gqa_group, shape.num_heads_kv), shape.batch)
    arguments = tuple(repacks), *kernels, problem, plan._kernel_view_geoms(), tuple(regions), shape.causal
    return Program(lambda: compile_host(*arguments, cutlass.BFloat16, 100, repr(problem)))


def peer(name: str, *, causal: bool = False, two_cta: bool = False) -> Source:
    """Somebody else's kernel by the name of `PEERS`."""
    make, options, tiling = PEERS[name]
    pairs = 1 + two_cta
    persistent = name.startswith("flash") and not tiling.backward and not causal
    chosen = replace(tiling, rows=tiling.rows * pairs, cluster=pairs, persistent=persistent)
    return Source(name, lambda shape: make(shape, **options, two_cta=two_cta), chosen)


PEERS: dict[str, tuple[Callable[..., Program], dict[str, Any], Tiling]] = {
    "flash-attn-4": (flash_attention_forward, {}, Tiling(rows=256)),
    "flash-attn-4-fp8": (flash_attention_forward, {"fp8": True}, Tiling(rows=256)),
    # delta = rowsum(O * dO) and dQ cleared before (16 + 16 bits read, 32 written), dQ converted after (32 read, 16 written)
    "flash-attn-4-backward": (
        flash_attention_backward, {}, Tiling(rows=128, backward=True, around_bytes=2 + 2 + 4 + 4 + 2, around_launches=2),
    ),
    "cudnn": (cudnn_forward, {}, Tiling(rows=256)),
    "cudnn-backward": (cudnn_backward, {}, Tiling(rows=128, backward=True)),
}


def _random(shape: AttentionShape) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((shape.seqlen_q, shape.num_heads_q), (shape.seqlen_k, shape.num_heads_kv), (shape.seqlen_k, shape.num_heads_kv))
    return [
        torch.randn(shape.batch, tokens, heads, shape.head_dim, generator=generator).to(torch.bfloat16)
        for tokens, heads in sizes
    ]


def _flash_attention(two_cta: bool) -> Callable[..., Any]:
    os.environ["QUACK_CACHE_ENABLED"] = "0"  # functions from a disk cache have no PTX
    _stub_triton()
    import flash_attn.cute
    import quack.cache
    from flash_attn.cute import utils

    quack.cache.CACHE_ENABLED = False
    utils._fa_disable_2cta_enabled = not two_cta
    return flash_attn.cute.flash_attn_func


def _stub_triton() -> None:
    """quack, which both import, uses triton to tune; nothing is tuned here."""
    if importlib.util.find_spec("triton") is None and "triton" not in sys.modules:
        import torch._inductor.compile_fx
        import torch._inductor.runtime.triton_compat  # noqa: F401  (torch's compiler would take the stub for triton)

        stub = types.ModuleType("triton")
        stub.__spec__ = importlib.machinery.ModuleSpec("triton", None)
        stub.runtime = types.SimpleNamespace(cache=types.SimpleNamespace(FileCacheManager=object))  # type: ignore[attr-defined]
        sys.modules["triton"] = stub
