"""The load warp: K and V once, Q and dO tile after tile, each with its scales."""

from types import SimpleNamespace

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels.backward.tables import STAGES, TILE_M
from mxfp8fa.kernels.steps.step6_kv_loop import expect
from mxfp8fa.layouts import ATOM_BYTES

TERMS_BYTES = 2 * TILE_M * 4  # addend and delta of 128 queries


@cute.jit
def load(
    copies: dict,
    atoms: dict,
    mTerms: cute.Tensor,
    scales: dict,
    sTerms: cute.Tensor,
    events: SimpleNamespace,
    place: tuple,
    q_tiles: tuple,
) -> None:
    """Everything of one CTA.

    Args:
        copies: by payload, a TMA copy, its destination (TMA, stages) and its source (TMA, tiles, heads, batch).
        atoms: by scale, its atoms in global memory (B, H, tiles, 512).
        mTerms: (B, Hq, tiles, 2 * 128) addend and delta.
        scales: by scale, its stages in shared memory.
        sTerms: (2 * 128, stages).
        events: see `tables.BARRIERS`.
        place: tile of keys, head of keys, batch.
        q_tiles: first tile of queries, tiles, query heads for each head of keys.
    """
    (kv_tile, kv_head, batch), (first, tiles, group) = place, q_tiles
    load_codes_and_scales(
        copies, atoms, scales, ("k", "k_t", "v"), ("k", "k_t", "v"), 0, kv_tile, kv_head, batch, 0, events.kv_full.at(0)
    )
    t = cutlass.Int32(0)
    for head in cutlass.range(kv_head * group, (kv_head + 1) * group, unroll=1):
        for tile in cutlass.range(first, tiles, unroll=1):
            stage = t % STAGES
            events.q_empty.wait_one_turn_before(t)
            q_full = events.q_full.at(t)
            load_codes_and_scales(
                copies, atoms, scales, ("q", "q_t"), ("q", "q_t"), TERMS_BYTES, tile, head, batch, stage, q_full
            )
            bulk_load(mTerms[batch, head, tile, None], sTerms[None, stage], q_full, TERMS_BYTES)
            events.do_empty.wait_one_turn_before(t)
            load_codes_and_scales(
                copies, atoms, scales, ("do",), ("do", "do_t"), 0, tile, head, batch, stage, events.do_full.at(t)
            )
            t += 1


@cute.jit
def load_codes_and_scales(
    copies: dict,
    atoms: dict,
    scales: dict,
    payloads: cutlass.Constexpr[tuple],
    atom_names: cutlass.Constexpr[tuple],
    more_bytes: cutlass.Constexpr[int],
    tile: cutlass.Int32,
    head: cutlass.Int32,
    batch: cutlass.Int32,
    stage: cutlass.Int32,
    full: cute.Pointer,
) -> None:
    """A tile of some payloads and of some scales into a stage; `full` counts their bytes and `more_bytes`."""
    present = tuple(name for name in payloads if name in copies)
    tx_bytes = more_bytes + len(atom_names) * ATOM_BYTES
    for name in present:
        tx_bytes += cute.size(copies[name][1], mode=[0])  # a code is a byte
    expect(full, tx_bytes)
    for name in present:
        tma, tXsX, tXgX = copies[name]
        cute.copy(tma, tXgX[None, tile, head, batch], tXsX[None, stage], tma_bar_ptr=full)
    for name in atom_names:
        sAtoms = cute.make_tensor(scales[name].iterator, cute.make_layout((ATOM_BYTES, STAGES)))
        bulk_load(atoms[name][batch, head, tile, None], sAtoms[None, stage], full, ATOM_BYTES)


@cute.jit
def bulk_load(gX: cute.Tensor, sX: cute.Tensor, full: cute.Pointer, size_bytes: cutlass.Constexpr[int]) -> None:
    """Contiguous bytes, without a tensor map."""
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), gX.element_type, num_bits_per_copy=8 * size_bytes)
    with cute.arch.elect_one():
        cute.copy(bulk, gX, sX, mbar_ptr=full)
