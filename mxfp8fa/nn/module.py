"""`MXAttention`: an attention layer, hidden states in and out, whose attention is MXFP8 forward and backward.

    h = RMSNorm(x)                      BF16
    Q, K, V = h W^T                     the projection's epilogue quantizes: no BF16 copy of them exists
    O = softmax(Q K^T) V                MXFP8
    y = O W_o^T                         BF16

With RoPE or a norm of every head of Q and K (QK-norm) the projection writes Q and K in BF16 and they are quantized after it.
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

from mxfp8fa.nn.layer_numerics import Layer, Precision, Weights, attend_in_torch
from mxfp8fa.nn.sequences import Sequences, make_sequences
from mxfp8fa.numerics.operands import check_head_dim
from mxfp8fa.numerics.options import AttentionOptions

BACKENDS = ("auto", "kernels", "torch")


class MXAttention(nn.Module):
    """RMSNorm, projections, MXFP8 attention and output projection; trainable, without biases.

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
        dtype: of the weights; whatever it is, products take BF16.

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
        options: AttentionOptions | None = None, bf16_heads: Sequence[int] = (), precision: Precision = "mxfp8",
        backend: str = "auto", compiled: bool = False, eps: float = 1e-6, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
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
        self.layer = Layer(
            head_dim, causal, rope_base, eps, 1 / math.sqrt(head_dim), options or AttentionOptions(), compiled
        )
        self.backend, self.precision = backend, precision
        self._head_groups = _head_groups(num_heads_kv, bf16_heads)
        factory = {"device": device, "dtype": dtype}
        self.norm = nn.RMSNorm(width, eps=eps, **factory) if norm else None
        self.q_proj = nn.Linear(width, num_heads * head_dim, bias=False, **factory)
        self.k_proj = nn.Linear(width, num_heads_kv * head_dim, bias=False, **factory)
        self.v_proj = nn.Linear(width, num_heads_kv * head_dim, bias=False, **factory)
        self.o_proj = nn.Linear(num_heads * head_dim, width, bias=False, **factory)
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
        self, x: torch.Tensor, cu_seqlens: torch.Tensor | None = None, *, max_seqlen: int | None = None
    ) -> torch.Tensor:
        """Attention among the tokens of each sequence.

        Args:
            x: (B, S, width), or (T, width) with cu_seqlens: float32, float16 or bfloat16.
            cu_seqlens: (B + 1,) int32 or int64 cumulative lengths of sequences packed along axis 0 of x.
            max_seqlen: at least the longest of them. Then no value of cu_seqlens is read by the host or checked; the torch
                numerics pad to this length.

        Returns:
            The shape and dtype of x.

        Raises:
            ValueError: a shape, dtype or device that is not allowed, or weights that are sharded.
        """
        sequences = self._check_input(x, cu_seqlens, max_seqlen)
        h = (
            x
            if self.norm is None
            else functional.rms_norm(x.float(), (self.width,), self.norm.weight.float(), self.layer.eps)
        )
        o = self._attend(h.bfloat16(), sequences)
        return functional.linear(o.flatten(-2), self.o_proj.weight.bfloat16()).to(x.dtype)

    def _attend(self, h: torch.Tensor, sequences: Sequences | None) -> torch.Tensor:
        """O (..., num_heads, head_dim) in BF16, all heads at once or in two groups of different precision."""
        mxfp8, bf16 = self._head_groups
        if self.precision != "mxfp8" or not bf16:
            return self._attend_heads(h, sequences, None, self.precision)
        parts = [self._attend_heads(h, sequences, bf16, "bf16")]
        if mxfp8:
            parts.insert(0, self._attend_heads(h, sequences, mxfp8, "mxfp8"))
        group = self.num_heads // self.num_heads_kv
        placed = torch.cat([o.unflatten(-2, (-1, group)) for o in parts], dim=-3)  # (..., Hkv, group, D)
        order = sorted(range(self.num_heads_kv), key=(mxfp8 + bf16).__getitem__)
        # Slices, not an index tensor: that would have to be copied to the device, which a CUDA graph cannot capture.
        return torch.cat([placed.narrow(-3, i, 1) for i in order], dim=-3).flatten(-3, -2)

    def _attend_heads(
        self, h: torch.Tensor, sequences: Sequences | None, heads: list[int] | None, precision: Precision
    ) -> torch.Tensor:
        """O of some key heads and the query heads of their groups; of all if None."""
        weights = self._weights(heads)
        if precision == "mxfp8" and self._uses_kernels(h):
            from mxfp8fa.nn.layer_kernels import attend_in_kernels

            return attend_in_kernels(h, weights, self.layer, sequences)
        return attend_in_torch(h, weights, self.layer, sequences, precision)

    def _weights(self, heads: list[int] | None) -> Weights:
        """Weights in BF16."""

        def rows(linear: nn.Linear) -> torch.Tensor:
            weight = linear.weight.bfloat16()
            if heads is None:
                return weight
            by_head = weight.unflatten(0, (self.num_heads_kv, -1))
            return torch.cat([by_head[i] for i in heads])

        q_norm, k_norm = (None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))
        return Weights(rows(self.q_proj), rows(self.k_proj), rows(self.v_proj), q_norm, k_norm)

    def _uses_kernels(self, h: torch.Tensor) -> bool:
        if self.backend != "auto":
            return self.backend == "kernels"
        from mxfp8fa.kernels.execution import TARGETS

        return h.is_cuda and torch.cuda.get_device_capability(h.device) in TARGETS

    def _check_input(
        self, x: torch.Tensor, cu_seqlens: torch.Tensor | None, max_seqlen: int | None
    ) -> Sequences | None:
        rank = 3 if cu_seqlens is None else 2
        if x.ndim != rank or x.shape[-1] != self.width:
            shape = f"(B, S, {self.width})" if rank == 3 else f"(T, {self.width}) with cu_seqlens"
            raise ValueError(f"x is {tuple(x.shape)}; allowed: {shape}")
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"x is {x.dtype}; allowed: float32, float16, bfloat16")
        weight = self.q_proj.weight
        if type(weight).__name__ == "DTensor":
            raise ValueError(
                "the weights are sharded while they are used; allowed: fully_shard on this MXAttention or on a module around "
                "it, not on its projections, and a forward that is called as a module"
            )
        if x.device != weight.device or (cu_seqlens is not None and cu_seqlens.device != x.device):
            where = "" if cu_seqlens is None else f", cu_seqlens on {cu_seqlens.device}"
            raise ValueError(f"x is on {x.device}, weights on {weight.device}{where}; allowed: one device")
        return None if cu_seqlens is None else make_sequences(cu_seqlens, x.shape[0], max_seqlen)

    def extra_repr(self) -> str:
        """What a printed model says of this layer."""
        heads = f"{self.num_heads} heads" + (
            f" over {self.num_heads_kv} key heads" if self.num_heads_kv != self.num_heads else ""
        )
        causal = ", causal" if self.layer.causal else ""
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


def _head_groups(num_heads_kv: int, bf16_heads: Sequence[int]) -> tuple[list[int], list[int]]:
    """Key heads in MXFP8 and in BF16."""
    chosen = sorted(set(bf16_heads))
    if len(chosen) != len(bf16_heads) or any(not 0 <= head < num_heads_kv for head in chosen):
        raise ValueError(
            f"bf16_heads = {tuple(bf16_heads)}; allowed: different numbers of key heads, 0 to {num_heads_kv - 1}"
        )
    return [head for head in range(num_heads_kv) if head not in chosen], chosen
