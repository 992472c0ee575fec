"""How long an emulated call will take, said before it begins."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator

from mxfp8fa.attention.checks import Call
from mxfp8fa.kernels.execution import emulated_rate, progress_lines
from mxfp8fa.numerics.forward import visited_kv_tiles
from mxfp8fa.numerics.problem import Sequence

# Warp-instructions of the forward kernel for 128 x 128 scores, and for a tile of 128 queries besides, by head_dim.
TILE_INSTRUCTIONS = {64: 3_400, 128: 3_600}
QUERY_TILE_INSTRUCTIONS = {64: 4_600, 128: 5_000}
# Of the three backward kernels for 128 x 128 scores.
BACKWARD_TILE_INSTRUCTIONS = {64: 15_000, 128: 18_000}
QUIET_SECONDS = 10.0


@contextlib.contextmanager
def announced(call: Call, *, backward: bool = False) -> Iterator[None]:
    """Say on stderr what is coming and then how far it is, if it runs in the emulator and takes long."""
    if call.tensors[0].device.type != "cpu":
        yield
        return
    instructions = warp_instructions(call, backward=backward)
    seconds = instructions / emulated_rate()
    if seconds < QUIET_SECONDS:
        yield
        return
    with progress_lines(lambda line: print(f"mxfp8fa: {line}", file=sys.stderr, flush=True)) as show:
        if show is not None:
            what = "gradient of attention" if backward else "attention"
            show(
                f"{what} of {tuple(call.tensors[0].shape)} in the emulator: about {instructions / 1e6:.1f} million "
                f"warp-instructions, about {_duration(seconds)} (a GPU needs microseconds)"
            )
        yield


def warp_instructions(call: Call, *, backward: bool = False) -> int:
    """An estimate, from the tiles that the forward or the backward visits."""
    (num_heads_q, head_dim), tile_m = call.tensors[0].shape[-2:], call.options.tile_m
    q_tiles = tiles = 0
    for (seqlen_q, seqlen_k), count in _lengths(call).items():
        sequence = Sequence(0, 0, seqlen_q, 0, seqlen_k, call.causal)
        own = range(-(-seqlen_q // tile_m))
        q_tiles += count * len(own)
        tiles += count * sum(len(visited_kv_tiles(sequence, q_tile, call.options)) for q_tile in own)
    if backward:
        return num_heads_q * tiles * BACKWARD_TILE_INSTRUCTIONS[head_dim]
    return num_heads_q * (q_tiles * QUERY_TILE_INSTRUCTIONS[head_dim] + tiles * TILE_INSTRUCTIONS[head_dim])


def _lengths(call: Call) -> Counter[tuple[int, int]]:
    """How many sequences there are of every (seqlen_q, seqlen_k)."""
    q, k, _ = call.tensors
    if call.sequences is None:
        return Counter({(q.shape[1], k.shape[1]): q.shape[0]})
    return Counter(zip(*(x.diff().tolist() for x in call.sequences.offsets()), strict=True))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
