"""The load warp: K and V once, Q and dO tile after tile, each with its scales."""

import cutlass
from cutlass import cute
from cutlass.cute.nvgpu import cpasync

from mxfp8fa.kernels.backward.plan import STAGES, TILE_M
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.steps.step6_kv_loop import expect
from mxfp8fa.layouts import ATOM_BYTES

TERMS_BYTES = 2 * TILE_M * 4  # addend and delta of 128 queries


@cute.jit
def load(cta: Fixed, sources: Fixed, mTerms: cute.Tensor) -> None:
    """Everything of one CTA.

    Args:
        cta: see `main.main_kernel`.
        sources: `copies`, by payload a TMA copy, its destination (TMA, stages) and its source (TMA, tiles, heads)
            of the CTA's sequence); `atoms`, by name scales in global memory (B, H, tiles, 512).
        mTerms: (B, Hq, tiles, 256) addend and delta.
    """
    events, work = cta.events, cta.work
    k_second, q_second = (("k_t",), ("q_t",)) if cta.config.second else ((), ())
    of_kv = ("k", *k_second, "v"), ("k", "k_t", "v")  # payloads, scales
    of_q, of_do = (("q", *q_second), ("q", "q_t")), (("do",), ("do", "do_t"))
    if work.count > 0:  # nobody would wait for them: a CTA must not end before its copies have
        load_tile(cta, sources, of_kv, work.kv_tile, work.kv_head, 0, 0, events.kv_full.at(0))
    t = cutlass.Int32(0)
    for head in cutlass.range(work.kv_head * work.group, (work.kv_head + 1) * work.group, unroll=1):
        for tile in cutlass.range(work.first, work.q_tiles, unroll=1):
            stage, q_full = t % STAGES, events.q_full.at(t)
            events.empty.wait_one_turn_before(t)
            load_tile(cta, sources, of_q, tile, head, stage, TERMS_BYTES, q_full)
            bulk_load(work.o.tile(mTerms, head, tile), cta.sTerms[None, stage], q_full, TERMS_BYTES)
            load_tile(cta, sources, of_do, tile, head, stage, 0, events.do_full.at(t))
            t += 1


def place_of(work: Fixed, name: str) -> Fixed:
    """Where the CTA's sequence lies in an operand: K and V, Q, or dO."""
    return work.o if name.startswith("do") else work.q if name.startswith("q") else work.k


@cute.jit
def load_tile(
    cta: Fixed,
    sources: Fixed,
    names: cutlass.Constexpr[tuple],
    tile: cutlass.Int32,
    head: cutlass.Int32,
    stage: cutlass.Int32,
    more_bytes: cutlass.Constexpr[int],
    full: cute.Pointer,
) -> None:
    """A tile of some payloads and of some scales into a stage; `full` counts their bytes and `more_bytes`."""
    payloads, atoms = names
    copies = [sources.copies[name] for name in payloads]
    code_bytes = sum(cute.size(tXsX, mode=[0]) for _, tXsX, _ in copies)
    expect(full, code_bytes + len(atoms) * ATOM_BYTES + more_bytes)
    for tma, tXsX, tXgX in copies:
        cute.copy(tma, tXgX[None, tile, head], tXsX[None, stage], tma_bar_ptr=full)
    for name in atoms:
        sAtoms = cute.make_tensor(cta.scales[name].iterator, cute.make_layout((ATOM_BYTES, STAGES)))
        bulk_load(place_of(cta.work, name).tile(sources.atoms[name], head, tile), sAtoms[None, stage], full, ATOM_BYTES)


@cute.jit
def bulk_load(gX: cute.Tensor, sX: cute.Tensor, full: cute.Pointer, size_bytes: cutlass.Constexpr[int]) -> None:
    """Contiguous bytes, without a tensor map."""
    bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), gX.element_type, num_bits_per_copy=8 * size_bytes)
    with cute.arch.elect_one():
        cute.copy(bulk, gX, sX, mbar_ptr=full)
