"""`MXAttention`: an attention layer, hidden states in and out, whose attention is MXFP8 forward and backward.

    h = RMSNorm(x)                      BF16
    Q, K, V = h W^T                     the projection's epilogue quantizes: no BF16 copy of them exists
    O = softmax(Q K^T) V                MXFP8
    y = O W_o^T                         BF16

With RoPE or a norm of every head of Q and K (QK-norm) the projection writes Q and K in BF16 and they are quantized after it;
so it is with whatever has a bias.
The attention is chosen by one attribute, which changes no weight:

    layer.precision = "mxfp8"           "bf16": torch's attention in BF16. "float32": the same in float32, to compare with
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import torch
from torch import nn
from torch.nn import functional

from mxfp8fa.nn.layer_numerics import Inputs, Layer, Precision, Weights, attend_in_torch
from mxfp8fa.nn.products import without_autocast
from mxfp8fa.nn.sequences import Sequences, make_sequences
from mxfp8fa.numerics.operands import check_head_dim
from mxfp8fa.numerics.options import AttentionOptions

BACKENDS = ("auto", "kernels", "torch")
BIASES = (False, True, "qkv")


class MXAttention(nn.Module):
    """RMSNorm, projections, MXFP8 attention and output projection; trainable.

    Args:
        width: features of a token.
        num_heads: query heads.
        num_heads_kv: key heads, a divisor of num_heads; num_heads if None.
        head_dim: D, a multiple of 32 up to 256 (kernels: 64 or 128); width / num_heads if None.
        causal: a token sees itself and those before it.
        norm: whether x goes through an RMSNorm first; without it x is projected as it comes.
        qk_norm: RMSNorm of every head of Q and of K, with one weight for all heads of each.
        rope_base: base of rotary position embeddings on Q and K (after QK-norm); None for none. Positions start at 0 in
            every sequence.
        bias: of the projections: False for none, True for all four, "qkv" for all but the output's (Qwen2).
        context_width: features of a context's tokens: then keys and values are made of the context that every call brings
            (cross-attention), which is not normalized here. None: of x itself.
        options: how MXFP8 attention rounds; `AttentionOptions()` if None.
        bf16_heads: numbers of key heads that stay in BF16, with the query heads of their groups: a fallback for heads that
            eight bits do not suit.
        precision: "mxfp8", "bf16" or "float32"; may be set later.
        backend: of MXFP8. "kernels": producers and attention kernels, on a Blackwell GPU, or, for CPU tensors, in the
            emulator (some million times slower). "torch": the same numerics in torch, on any device. "auto": kernels on a
            Blackwell GPU, else torch.
        compiled: run the torch numerics through `torch.compile` (one compilation per shape).
        eps: of the norms.
        device: of the weights.
        dtype: of the weights; whatever it is, products take BF16, under `torch.autocast` too.
        dropout: of probabilities: 0. There is none, the kernels have no place for it.

    The state dict is that of plain torch modules of these names: `norm`, `q_norm`, `k_norm` (nn.RMSNorm), `q_proj`,
    `k_proj`, `v_proj`, `o_proj` (nn.Linear); but for `norm` they are those of a Llama or Qwen3 attention in Hugging Face
    transformers.

    Kept for the backward by the kernels: h in BF16, codes and scales of Q, K and V (once where blocks are square, else in
    both orientations), O in BF16, lse; and Q and K in BF16 where QK-norm has to be differentiated. By the torch numerics:
    h, O, and Q, K and V in float32.

    Raises:
        ValueError: sizes, options or names that are not allowed.
    """

    def __init__(
        self, width: int, num_heads: int, num_heads_kv: int | None = None, head_dim: int | None = None, *,
        causal: bool = False, norm: bool = True, qk_norm: bool = False, rope_base: float | None = None,
        bias: bool | str = False, context_width: int | None = None,
        options: AttentionOptions | None = None, bf16_heads: Sequence[int] = (), precision: Precision = "mxfp8",
        backend: str = "auto", compiled: bool = False, eps: float = 1e-6, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        head_dim = _check_sizes(width, num_heads, num_heads_kv, head_dim)
        self.width, self.num_heads, self.num_heads_kv, self.head_dim = width, num_heads, num_heads_kv, head_dim
        if options is not None and not isinstance(options, AttentionOptions):
            raise ValueError(f"options is a {type(options).__name__}; allowed: AttentionOptions or None")
        if rope_base is not None and not rope_base > 1:
            raise ValueError(f"rope_base = {rope_base}; allowed: numbers above 1, or None")
        if backend not in BACKENDS:
            raise ValueError(f"backend = {backend!r}; allowed: {', '.join(map(repr, BACKENDS))}")
        if bias not in BIASES:
            raise ValueError(f"bias = {bias!r}; allowed: {', '.join(map(repr, BIASES))}")
        if dropout != 0:
            raise ValueError(f"dropout = {dropout}; allowed: 0, MXFP8 attention drops no probabilities")
        _check_context(context_width, causal, rope_base)
        self.layer = Layer(
            head_dim, causal, rope_base, eps, 1 / math.sqrt(head_dim), options or AttentionOptions(), compiled
        )
        self.backend, self.precision = backend, precision
        self._head_groups = _head_groups(num_heads_kv, bf16_heads)
        factory = {"device": device, "dtype": dtype}
        self.norm = nn.RMSNorm(width, eps=eps, **factory) if norm else None
        self.context_width, width_kv = context_width, context_width or width
        self.q_proj = nn.Linear(width, num_heads * head_dim, bias=bool(bias), **factory)
        self.k_proj = nn.Linear(width_kv, num_heads_kv * head_dim, bias=bool(bias), **factory)
        self.v_proj = nn.Linear(width_kv, num_heads_kv * head_dim, bias=bool(bias), **factory)
        self.o_proj = nn.Linear(num_heads * head_dim, width, bias=bias is True, **factory)
        self.q_norm = nn.RMSNorm(head_dim, eps=eps, **factory) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim, eps=eps, **factory) if qk_norm else None

    @property
    def precision(self) -> Precision:
        """Of the attention: "mxfp8", "bf16" or "float32"."""
        return self._precision

    @precision.setter
    def precision(self, value: Precision) -> None:
        if value not in get_args(Precision):
            raise ValueError(f"precision = {value!r}; allowed: {', '.join(map(repr, get_args(Precision)))}")
        self._precision: Precision = value

    def forward(
        self, x: torch.Tensor, cu_seqlens: torch.Tensor | None = None, *, max_seqlen: int | None = None,
        context: torch.Tensor | None = None, cu_seqlens_context: torch.Tensor | None = None,
        max_seqlen_context: int | None = None, attn_mask: None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Attention among the tokens of each sequence, or from them to those of its context.

        Args:
            x: (B, S, width), or (T, width) with cu_seqlens: float32, float16 or bfloat16.
            cu_seqlens: (B + 1,) int32 or int64 cumulative lengths of sequences packed along axis 0 of x.
            max_seqlen: at least the longest of them. Then no value of a CUDA cu_seqlens is read by the host, nor checked; the
                torch numerics pad to this length.
            context: (B, Sk, context_width), or (Tk, context_width) with cu_seqlens_context, of the dtypes of x; of a layer
                that was made with context_width.
            cu_seqlens_context: of the contexts, as many as there are sequences; given exactly when cu_seqlens is.
            max_seqlen_context: as max_seqlen.
            attn_mask: None. Which keys a token sees, `causal` and cu_seqlens say.

        Returns:
            The shape and dtype of x, under `torch.autocast` too.

        Raises:
            ValueError: a shape, dtype or device that is not allowed, weights that are sharded, or a mask.
        """
        if attn_mask is not None:
            raise ValueError(
                "attn_mask is given; allowed: None. causal=True hides later tokens, cu_seqlens keeps sequences apart"
            )
        sequences = self._check_input("x", x, self.width, cu_seqlens, max_seqlen)
        sequences_k = self._check_context(x, context, sequences, cu_seqlens_context, max_seqlen_context)
        with without_autocast(x):
            h = x
            if self.norm is not None:
                h = functional.rms_norm(x.float(), (self.width,), self.norm.weight.float(), self.layer.eps)
            h = h.bfloat16()
            o = self._attend(Inputs(h, h if context is None else context.bfloat16(), sequences, sequences_k))
            bias = None if self.o_proj.bias is None else self.o_proj.bias.bfloat16()
            return functional.linear(o.flatten(-2), self.o_proj.weight.bfloat16(), bias).to(x.dtype)

    def _attend(self, inputs: Inputs) -> torch.Tensor:
        """O (..., num_heads, head_dim) in BF16, all heads at once or in two groups of different precision."""
        mxfp8, bf16 = self._head_groups
        if self.precision != "mxfp8" or not bf16:
            return self._attend_heads(inputs, None, self.precision)
        parts = [self._attend_heads(inputs, bf16, "bf16")]
        if mxfp8:
            parts.insert(0, self._attend_heads(inputs, mxfp8, "mxfp8"))
        group = self.num_heads // self.num_heads_kv
        placed = torch.cat([o.unflatten(-2, (-1, group)) for o in parts], dim=-3)  # (..., Hkv, group, D)
        order = sorted(range(self.num_heads_kv), key=(mxfp8 + bf16).__getitem__)
        # Slices, not an index tensor: that would have to be copied to the device, which a CUDA graph cannot capture.
        return torch.cat([placed.narrow(-3, i, 1) for i in order], dim=-3).flatten(-3, -2)

    def _attend_heads(self, inputs: Inputs, heads: list[int] | None, precision: Precision) -> torch.Tensor:
        """O of some key heads and the query heads of their groups; of all if None."""
        weights = self._weights(heads)
        if precision == "mxfp8" and self._uses_kernels(inputs.h):
            from mxfp8fa.nn.layer_kernels import attend_in_kernels

            return attend_in_kernels(inputs, weights, self.layer)
        return attend_in_torch(inputs, weights, self.layer, precision)

    def _weights(self, heads: list[int] | None) -> Weights:
        """Weights and biases in BF16."""

        def rows(parameter: torch.Tensor | None) -> torch.Tensor | None:
            if parameter is None or heads is None:
                return None if parameter is None else parameter.bfloat16()
            by_head = parameter.bfloat16().unflatten(0, (self.num_heads_kv, -1))
            return torch.cat([by_head[i] for i in heads])

        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (rows(projection.weight) for projection in projections)
        assert q is not None and k is not None and v is not None
        norms = (None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))
        return Weights(q, k, v, *(rows(projection.bias) for projection in projections), *norms)

    def _uses_kernels(self, h: torch.Tensor) -> bool:
        if self.backend != "auto":
            return self.backend == "kernels"
        from mxfp8fa.kernels.execution import TARGETS

        return h.is_cuda and torch.cuda.get_device_capability(h.device) in TARGETS

    def _check_input(
        self, name: str, x: torch.Tensor, width: int, cu_seqlens: torch.Tensor | None, max_seqlen: int | None
    ) -> Sequences | None:
        """The sequences of x or of the context, whose features are `width`."""
        ending = "" if name == "x" else "_context"
        rank = 3 if cu_seqlens is None else 2
        if x.ndim != rank or x.shape[-1] != width:
            shape = f"(B, S, {width})" if rank == 3 else f"(T, {width}) with cu_seqlens{ending}"
            raise ValueError(f"{name} is {tuple(x.shape)}; allowed: {shape}")
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"{name} is {x.dtype}; allowed: float32, float16, bfloat16")
        weight = self.q_proj.weight
        if type(weight).__name__ == "DTensor":
            raise ValueError(
                "the weights are sharded while they are used; allowed: fully_shard on this MXAttention or on a module around "
                "it, not on its projections, and a forward that is called as a module"
            )
        if x.device != weight.device or (cu_seqlens is not None and cu_seqlens.device != x.device):
            where = "" if cu_seqlens is None else f", cu_seqlens{ending} on {cu_seqlens.device}"
            raise ValueError(f"{name} is on {x.device}, weights on {weight.device}{where}; allowed: one device")
        return None if cu_seqlens is None else make_sequences(cu_seqlens, x.shape[0], max_seqlen)

    def _check_context(
        self, x: torch.Tensor, context: torch.Tensor | None, sequences: Sequences | None,
        cu_seqlens: torch.Tensor | None, max_seqlen: int | None,
    ) -> Sequences | None:  # fmt: skip
        """The sequences of keys: those of the context, or of x."""
        if self.context_width is None:
            if context is not None or cu_seqlens is not None or max_seqlen is not None:
                raise ValueError("a context is given to a layer without context_width; allowed: none")
            return sequences
        if context is None:
            raise ValueError(f"context is None; allowed: (B, Sk, {self.context_width}), context_width says so")
        if (cu_seqlens is None) != (sequences is None):
            raise ValueError("one of cu_seqlens and cu_seqlens_context is given; allowed: both or neither")
        found = self._check_input("context", context, self.context_width, cu_seqlens, max_seqlen)
        pair = (x.shape[0], context.shape[0]) if sequences is None or found is None else (sequences.count, found.count)
        if pair[0] != pair[1]:
            raise ValueError(f"{pair[0]} sequences with {pair[1]} contexts; allowed: one for each")
        return found

    def extra_repr(self) -> str:
        """What a printed model says of this layer."""
        heads = f"{self.num_heads} heads" + (
            f" over {self.num_heads_kv} key heads" if self.num_heads_kv != self.num_heads else ""
        )
        causal = ", causal" if self.layer.causal else ""
        causal += f", keys and values of a context of width {self.context_width}" if self.context_width else ""
        kept = f", key heads {self._head_groups[1]} in bf16" if self._head_groups[1] else ""
        return f"{heads} of {self.head_dim}{causal}, precision={self.precision!r}, backend={self.backend!r}{kept}"


def set_precision(model: nn.Module, precision: Precision) -> int:
    """Switch every `MXAttention` in a model; returns how many there are."""
    layers = [module for module in model.modules() if isinstance(module, MXAttention)]
    for layer in layers:
        layer.precision = precision
    return len(layers)


def _check_sizes(width: int, num_heads: int, num_heads_kv: int, head_dim: int | None) -> int:
    """head_dim."""
    for name, value in (("width", width), ("num_heads", num_heads), ("num_heads_kv", num_heads_kv)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r}; allowed: positive integers")
    if num_heads % num_heads_kv:
        raise ValueError(f"num_heads_kv = {num_heads_kv} does not divide num_heads = {num_heads}")
    if head_dim is None:
        if width % num_heads:
            raise ValueError(f"width = {width} is not a multiple of num_heads = {num_heads}; give head_dim")
        head_dim = width // num_heads
    check_head_dim(head_dim)
    return head_dim


def _check_context(context_width: int | None, causal: bool, rope_base: float | None) -> None:
    if context_width is None:
        return
    if isinstance(context_width, bool) or not isinstance(context_width, int) or context_width < 1:
        raise ValueError(f"context_width = {context_width!r}; allowed: a positive integer, or None")
    if causal or rope_base is not None:
        raise ValueError(
            f"context_width = {context_width} with causal = {causal} and rope_base = {rope_base}; allowed: neither, a token has "
            "no place in its context"
        )


def _head_groups(num_heads_kv: int, bf16_heads: Sequence[int]) -> tuple[list[int], list[int]]:
    """Key heads in MXFP8 and in BF16."""
    chosen = sorted(set(bf16_heads))
    if len(chosen) != len(bf16_heads) or any(not 0 <= head < num_heads_kv for head in chosen):
        raise ValueError(
            f"bf16_heads = {tuple(bf16_heads)}; allowed: different numbers of key heads, 0 to {num_heads_kv - 1}"
        )
    return [head for head in range(num_heads_kv) if head not in chosen], chosen
