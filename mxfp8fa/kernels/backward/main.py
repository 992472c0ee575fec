"""The main kernel: a CTA takes 128 keys of one head and loops over the queries that see one of them, of all query heads
that share the keys.

Scores are held transposed, keys in lanes, so that P^T and dS^T are the left operands of dV and dK where they stand:

    product       A                        B                        accumulator
    S^T = K Q^T   K, SMEM                  Q, SMEM                  S
    dP^T = V dO^T V, SMEM                  dO, SMEM                 dP
    dV += P^T dO  P, TMEM                  dO, SMEM, d contiguous   dV
    dK += dS^T Q  dS, TMEM                 Q, SMEM, d contiguous    dK
    dQ = dS K     dS, SMEM, q contiguous   K, SMEM, d contiguous    dP, added up in global memory

With square blocks one payload of Q, K and dO serves two products each: the bytes that are K-major for one are MN-major
for the other. What differs are the scales, packed once for each (`tables.py`).
"""

from types import SimpleNamespace

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.backward.compute import compute
from mxfp8fa.kernels.backward.epilogue import store_gradients
from mxfp8fa.kernels.backward.events import WarpEvent
from mxfp8fa.kernels.backward.load import load
from mxfp8fa.kernels.backward.mma import multiply
from mxfp8fa.kernels.backward.reduce import reduce_dq
from mxfp8fa.kernels.backward.scales import BLOCKS, assemble_scales
from mxfp8fa.kernels.backward.tables import (
    BARRIERS,
    COMPUTE_WARP,
    DQ_COLUMNS,
    DQ_STAGES,
    LOAD_WARP,
    MMA_WARP,
    REDUCE_WARPS,
    SCALES_WARP,
    STAGES,
    THREADS,
    TILE_M,
    TILE_N,
    TMEM,
)
from mxfp8fa.kernels.backward.tensors import unfold
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem, tma_tiles
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3, E8M0, TILE, make_tiled_mma
from mxfp8fa.kernels.steps.step4_quantizer import make_tiled_mma_from_tmem
from mxfp8fa.numerics.softmax import E8M0_BIAS

PAYLOADS = ("q", "k", "v", "do", "q_t", "k_t")  # in the order of `main`'s arguments; the last two may be missing
ATOMS = ("q", "q_t", "k", "k_t", "v", "do", "do_t")
KEY_SIDE = ("k", "k_t", "v")
STAGED = ("q", "q_t", "do", "do_t")  # what comes tile after tile; the rest comes once


@cute.jit
def main(
    payloads: tuple,
    atoms: tuple,
    mTerms: cute.Tensor,
    mWork: cute.Tensor,
    mdK: cute.Tensor,
    mdV: cute.Tensor,
    sizes: tuple,
    scale_log2: cutlass.Float32,
    softmax_scale: cutlass.Float32,
    dq_factor: cutlass.Float32,
    causal: cutlass.Constexpr[bool],
    p_offset: cutlass.Constexpr[int],
    rounded: cutlass.Constexpr[bool],
) -> None:
    """Choose instructions, layouts and copies; launch a CTA per tile of keys, head of keys and batch.

    Tensors come as rows (`tensors.py`).

    Args:
        payloads: `PAYLOADS`: "q" and "do" (B, Sq, Hq, D), "k" and "v" (B, Sk, Hkv, D) E4M3; "q_t" and "k_t" for dK and
            dQ, both or none: without them these read "q" and "k".
        atoms: `ATOMS`: their scales (B, H, tiles, 512) E8M0, tokens as rows, and head_dim as rows for names with "_t".
        mTerms: (B, Hq, tiles, 2 * 128) FP32, addend and delta of the queries (`preprocess.py`).
        mWork: (B, Hq, tiles, 128 * D) FP32 or FP16, where dQ / softmax_scale is added up.
        mdK: (B, Sk, Hkv, D) FP32, BF16 or FP16, out.
        mdV: likewise.
        sizes: B, Sq, Sk, Hq, Hkv.
        scale_log2: softmax_scale * log2(e).
        softmax_scale: factor on dK.
        dq_factor: static factor on FP16 sums.
        causal: whether query i sees key j only where j <= i + Sk - Sq.
        p_offset: log2 of the factor on P.
        rounded: whether dS takes P as rounded to E4M3.
    """
    batch, seqlen_q, seqlen_k, heads_q, heads_kv = sizes
    q_tiles, kv_tiles = cute.ceil_div(seqlen_q, TILE_M), cute.ceil_div(seqlen_k, TILE_N)
    head_dim = cute.size(mdK, mode=[1])
    products = make_products(head_dim)
    layouts = make_layouts(products, head_dim)
    load_op = cpasync.CopyBulkTensorTileG2SOp()
    tma, matrices = [], []
    for name, payload in zip(PAYLOADS, payloads, strict=False):
        size = (batch, seqlen_k, heads_kv) if name in KEY_SIDE else (batch, seqlen_q, heads_q)
        mX = unfold(payload, *size)
        mX = cute.make_tensor(mX.iterator, cute.select(mX.layout, mode=[1, 3, 2, 0]))  # (S, D, H, B)
        make = cute.nvgpu.make_tiled_tma_atom_A if name in KEY_SIDE else cute.nvgpu.make_tiled_tma_atom_B
        layout = layouts[name.removesuffix("_t")]
        copy, matrix = make(load_op, mX, layout, (TILE_M, TILE_N, head_dim), products["s"])
        tma.append(copy)
        matrices.append(matrix)
    atom_tiles = [(batch, heads_kv, kv_tiles) if n in KEY_SIDE else (batch, heads_q, q_tiles) for n in ATOMS]
    atoms = tuple(unfold(x, *size) for x, size in zip(atoms, atom_tiles, strict=True))
    mTerms, mWork = (unfold(x, batch, heads_q, q_tiles) for x in (mTerms, mWork))
    mdK, mdV = (unfold(x, batch, seqlen_k, heads_kv) for x in (mdK, mdV))
    main_kernel(
        tuple(tma), tuple(matrices), atoms, mTerms, mWork, mdK, mdV, (seqlen_q, seqlen_k),
        scale_log2, softmax_scale, dq_factor, causal, p_offset, rounded,
    ).launch(grid=(kv_tiles, heads_kv, batch), block=(THREADS, 1, 1))  # fmt: skip


def make_products(head_dim: int) -> dict:
    """The instructions: S and dP; dV and dK, A from tensor memory; dQ, both operands with their rows contiguous."""
    dq = tcgen05.MmaMXF8F6F4Op(
        E4M3, E4M3, (TILE_M, head_dim, BLOCK), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM,
        OperandMajorMode.MN, OperandMajorMode.MN,
    )  # fmt: skip
    products = {name: make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K) for name in ("s", "dp")}
    products |= {name: make_tiled_mma_from_tmem(head_dim, OperandMajorMode.MN) for name in ("dv", "dk")}
    return products | {"dq": cute.make_tiled_mma(dq)}


def make_layouts(products: dict, head_dim: int) -> dict:
    """Of the payloads in shared memory, as each product reads them; "q" and "q_t" are the same bytes."""
    s, dk, dq = products["s"], products["dk"], products["dq"]
    scores, gradient = (TILE_N, TILE_M, head_dim), (TILE_N, head_dim, TILE_M)
    rows_a, rows_b = blackwell.make_smem_layout_a, blackwell.make_smem_layout_b
    return {
        "k": rows_a(s, scores, E4M3, 1),
        "v": rows_a(s, scores, E4M3, 1),
        "q": rows_b(s, scores, E4M3, STAGES),
        "do": rows_b(s, scores, E4M3, STAGES),
        "q_t": rows_b(dk, gradient, E4M3, STAGES),
        "do_t": rows_b(dk, gradient, E4M3, STAGES),
        "k_t": rows_b(dq, gradient, E4M3, 1),
        "ds_t": rows_a(dq, gradient, E4M3, 1),
    }


@cute.struct
class Storage:
    """The part of shared memory that is not a tile."""

    kv_full: cute.struct.MemRange[cutlass.Int64, 1]
    q_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    do_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    q_empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    do_empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    s_full: cute.struct.MemRange[cutlass.Int64, 1]
    s_drained: cute.struct.MemRange[cutlass.Int64, 1]
    p_full: cute.struct.MemRange[cutlass.Int64, 1]
    dp_full: cute.struct.MemRange[cutlass.Int64, 1]
    dp_drained: cute.struct.MemRange[cutlass.Int64, 1]
    ds_scaled: cute.struct.MemRange[cutlass.Int64, 1]
    ds_full: cute.struct.MemRange[cutlass.Int64, 1]
    dq_full: cute.struct.MemRange[cutlass.Int64, 1]
    dq_drained: cute.struct.MemRange[cutlass.Int64, 1]
    dkv_full: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32
    words: cute.struct.MemRange[cutlass.Int32, BLOCKS * BLOCKS]  # scales of dS


@cute.kernel
def main_kernel(
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mTerms: cute.Tensor,
    mWork: cute.Tensor,
    mdK: cute.Tensor,
    mdV: cute.Tensor,
    lengths: tuple,
    scale_log2: cutlass.Float32,
    softmax_scale: cutlass.Float32,
    dq_factor: cutlass.Float32,
    causal: cutlass.Constexpr[bool],
    p_offset: cutlass.Constexpr[int],
    rounded: cutlass.Constexpr[bool],
) -> None:
    """One CTA: 128 keys, all queries that see one of them; every warp goes to its role."""
    place = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    head_dim = cute.size(mdK, mode=[3])
    products = make_products(head_dim)
    layouts = make_layouts(products, head_dim)
    sf_layouts = {n: blockscaled_layout.make_smem_layout_sfa(products["s"], TILE, BLOCK, n) for n in (1, STAGES)}
    smem = memory.SmemAllocator()
    storage = smem.allocate(Storage)
    stored, tiles = allocate_tiles(smem, layouts, PAYLOADS[: len(matrices)])
    scales = allocate_scales(smem, sf_layouts)
    sTerms = smem.allocate_tensor(cutlass.Float32, cute.make_layout((2 * TILE_M, STAGES)), byte_alignment=128)
    parts = cute.make_layout((32 * DQ_COLUMNS, DQ_STAGES, REDUCE_WARPS))
    sParts = smem.allocate_tensor(mWork.element_type, parts, byte_alignment=128)
    sWords = storage.words.get_tensor(cute.make_layout((BLOCKS, BLOCKS), stride=(BLOCKS, 1)))
    fill_constant_scales(scales["p"], (E8M0_BIAS - p_offset) * 0x01010101)
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    events = SimpleNamespace(**{b.name: WarpEvent(getattr(storage, b.name).data_ptr(), b.stages) for b in BARRIERS})
    q_tiles, count = visited(place[0], lengths, mWork.shape[1] // mdK.shape[2], causal)

    if warp == LOAD_WARP:
        copies = make_copies(products["s"], tma, matrices, stored, head_dim)
        load(copies, dict(zip(ATOMS, atoms, strict=True)), mTerms, scales, sTerms, events, place, q_tiles)
    elif warp == MMA_WARP:
        if count > 0:
            multiply(products, tiles, scales, tmem, events, count)
    elif warp == SCALES_WARP:
        assemble_scales(sWords, scales["ds"], scales["ds_t"], events, count)
    elif warp < COMPUTE_WARP:
        reduce_dq(tmem, sParts, mWork, events, place, q_tiles, head_dim, dq_factor)
    elif warp < LOAD_WARP:
        compute(
            tmem, sTerms, tiles["ds_t"], sWords, events, place, q_tiles, lengths, scale_log2, causal, p_offset, rounded
        )
        store_gradients(tmem, mdK, mdV, events, place, count, softmax_scale)
    free_tmem(tmem, TMEM.allocation, warp)


main_kernel.set_name_prefix("backward_main", remove_cutlass_symbol=True, keep_mangled_name=False)


def allocate_tiles(smem: memory.SmemAllocator, layouts: dict, payloads: tuple) -> tuple[dict, dict]:
    """Shared memory for the payloads and for dS.

    Returns:
        stored: the payloads as TMA writes them.
        tiles: every view that a product reads; "q_t", "k_t" and "do_t" are other views of "q", "k" and "do" unless they
            have payloads of their own.
    """
    stored = {}
    for name in (*payloads, "ds_t"):
        layout = layouts[name if name == "ds_t" else name.removesuffix("_t")]
        stored[name] = smem.allocate_tensor(E4M3, layout.outer, byte_alignment=1024, swizzle=layout.inner)
    tiles = {}
    for name, layout in layouts.items():
        source = stored[name if name in stored else name.removesuffix("_t")]
        tiles[name] = cute.make_tensor(source.iterator, layout.outer)
    return stored, tiles


def allocate_scales(smem: memory.SmemAllocator, sf_layouts: dict) -> dict:
    """Shared memory for the scales, an atom a stage."""
    names = ("k", "k_t", "v", "p", "ds", "ds_t", *STAGED)
    return {
        name: smem.allocate_tensor(E8M0, sf_layouts[STAGES if name in STAGED else 1], byte_alignment=128)
        for name in names
    }


def make_copies(tiled_mma: cute.TiledMma, tma: tuple, matrices: tuple, stored: dict, head_dim: int) -> dict:
    """By payload: the TMA copy, its destination (TMA, stages) and its source (TMA, tiles, heads, batch)."""
    copies = {}
    for name, copy, matrix in zip(PAYLOADS, tma, matrices, strict=False):
        gX = cute.local_tile(matrix, (TILE_M, head_dim), (None, 0, None, None))
        slice_ = tiled_mma.get_slice(0)
        part = slice_.partition_A(gX) if name in KEY_SIDE else slice_.partition_B(gX)
        copies[name] = (copy, *tma_tiles(copy, stored[name], part))
    return copies


@cute.jit
def fill_constant_scales(sSF: cute.Tensor, word: cutlass.Constexpr[int]) -> None:
    """The scale atom of P, written before the CTA meets for the first time."""
    thread, _, _ = cute.arch.thread_idx()
    if thread < TILE_N:
        sWords = cute.make_tensor(cute.recast_ptr(sSF.iterator, dtype=cutlass.Int32), cute.make_layout(TILE_N))
        sWords[thread] = cutlass.Int32(word)
        cute.arch.fence_view_async_shared()


@cute.jit
def visited(
    kv_tile: cutlass.Int32, lengths: tuple, group: cutlass.Int32, causal: cutlass.Constexpr[bool]
) -> tuple[tuple, cutlass.Int32]:
    """Which tiles of queries see a key of the tile: (first, end, query heads), and how many that are."""
    seqlen_q, seqlen_k = lengths
    tiles = cute.ceil_div(seqlen_q, TILE_M)
    first = cutlass.Int32(0)
    if cutlass.const_expr(causal):
        first = cutlass.min(cutlass.max(kv_tile * TILE_N - seqlen_k + seqlen_q, 0), seqlen_q) // TILE_M
    return (first, tiles, group), (tiles - first) * group
