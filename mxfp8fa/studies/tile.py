"""One tile of one attention head with every matrix a kernel holds for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxfp8fa.numerics import AttentionOptions, ForwardTile, MXTensor, attention_mxfp8, attention_reference, quantize
from mxfp8fa.numerics.inputs import AttentionInputs


@dataclass(frozen=True)
class AttentionTile:
    """The first query tile against the first key tile of one head.

    Attributes:
        q: (tile_m, D) in square blocks.
        k: (tile_n, D) in square blocks.
        v: (tile_n, D) in 1x32 blocks along the keys.
        s: (tile_m, tile_n) scores, times softmax_scale.
        p_codes: (tile_m, tile_n) E4M3 codes of 2^p_offset P.
        o: (tile_m, D) after all key tiles.
        o_exact: (tile_m, D) in float64.
        parameters: in words, for captions.
    """

    q: MXTensor
    k: MXTensor
    v: MXTensor
    s: NDArray[np.float32]
    p_codes: NDArray[np.uint8]
    o: NDArray[np.float32]
    o_exact: NDArray[np.float64]
    parameters: str

    def stored_bytes(self) -> Mapping[str, tuple[int, int]]:
        """Operand -> bytes of codes, bytes of scales; P has one constant scale per 32 keys of a row."""
        found = {name: (x.codes.size, x.scale_e8m0.size) for name, x in (("Q", self.q), ("K", self.k), ("V", self.v))}
        return found | {"P": (self.p_codes.size, self.p_codes.size // 32)}


def attention_tile(inputs: AttentionInputs, *, head: int = 0, options: AttentionOptions | None = None) -> AttentionTile:
    """Run one head and keep its first tile; the first sequence is taken, no mask."""
    options = options or AttentionOptions()
    q, k, v = (x[:1, :, head : head + 1] for x in (inputs.q, inputs.k, inputs.v))
    kept: list[ForwardTile] = []
    q = q[:, : options.tile_m]
    o, _ = attention_mxfp8(q, k, v, options=options, on_tile=lambda tile: kept.append(tile))
    (first,) = [tile for tile in kept if tile.kv_tile == 0]
    exact, _ = attention_reference(q, k, v)
    keys = slice(0, options.tile_n)
    return AttentionTile(
        q=quantize(q[0, :, 0], axes=(0, 1), rule=options.rule),
        k=quantize(k[0, keys, 0], axes=(0, 1), rule=options.rule),
        v=quantize(v[0, keys, 0], axes=0, rule=options.rule),
        s=first.s * np.float32(inputs.softmax_scale),
        p_codes=first.p_codes,
        o=o[0, :, 0],
        o_exact=exact[0, :, 0],
        parameters=f"{inputs.name}, head {head}, queries and keys 0 to {options.tile_n - 1}; {inputs.origin}",
    )
