"""The main kernel: a CTA takes 128 keys of one head and loops over the queries that see one of them, of all query heads
that share the keys.

Scores are held transposed, keys in lanes, so that P^T is the left operand of dV where it stands:

    product       A                        B                        accumulator
    S^T = K Q^T   K, SMEM                  Q, SMEM                  S
    dP^T = V dO^T V, SMEM                  dO, SMEM                 dP
    dV += P^T dO  P, TMEM                  dO, SMEM, d contiguous   dV
    dK += dS^T Q  dS, SMEM                 Q, SMEM, d contiguous    dK
    dQ = dS K     dS, SMEM, q contiguous   K, SMEM, d contiguous    dP, added up in global memory

With square blocks one payload of Q, K and dO serves two products each: the bytes that are K-major for one are MN-major
for the other. What differs are the scales, packed once for each (`tables.py`).
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.backward import plan
from mxfp8fa.kernels.backward.compute import compute
from mxfp8fa.kernels.backward.epilogue import store_gradients
from mxfp8fa.kernels.backward.events import events_of
from mxfp8fa.kernels.backward.load import load, place_of
from mxfp8fa.kernels.backward.mma import multiply, products_of
from mxfp8fa.kernels.backward.plan import BARRIERS, BLOCKS, STAGES, TILE_M, TILE_N, TMEM
from mxfp8fa.kernels.backward.reduce import reduce_dq
from mxfp8fa.kernels.backward.scales import assemble_scales, fill_constant_scales
from mxfp8fa.kernels.forward.events import Fixed
from mxfp8fa.kernels.forward.sequences import InBatch, endings, work_row
from mxfp8fa.kernels.forward.tensors import by_tiles, permuted, unfold
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
    mFactor: cute.Tensor,
    mOverflows: cute.Tensor,
    mTable: cute.Tensor | None,
    sizes: tuple,
    scale_log2: cutlass.Float32,
    softmax_scale: cutlass.Float32,
    config: cutlass.Constexpr[plan.Config],
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
        mFactor: (1, 1) FP32, static factor on FP16 sums.
        mOverflows: (1, 1) Int32, their overflows are added to it (`reduce.py`).
        mTable: None, or for packed sequences the table of work (`mxfp8fa.kernels.jagged`); then B is 1, S is T of all
            sequences, and every sequence has whole tiles of its own. dO may have more rows than Q has.
        sizes: B, Sq, Sk, Hq, Hkv.
        scale_log2: softmax_scale * log2(e).
        softmax_scale: factor on dK.
        config: what is compiled in.
    """
    batch, seqlen_q, seqlen_k, heads_q, heads_kv = sizes
    kv_tiles = cute.ceil_div(seqlen_k, TILE_N)
    if cutlass.const_expr(mTable is not None):
        kv_tiles = cute.size(mTable, mode=[0]) - 1
    head_dim = config.head_dim
    tiled_mmas = make_tiled_mmas(head_dim)
    layouts = make_layouts(tiled_mmas, head_dim)
    load_op = cpasync.CopyBulkTensorTileG2SOp()
    tma, matrices = [], []
    for name, payload in zip(PAYLOADS, payloads, strict=False):
        heads = heads_kv if name in KEY_SIDE else heads_q
        seqlen = cute.size(payload, mode=[0]) // (batch * heads)
        mX = permuted(unfold(payload, batch, seqlen, heads), (1, 3, 2, 0))  # (S, D, H, B)
        if cutlass.const_expr(mTable is not None):
            mX = endings(mX, 0)
        make = cute.nvgpu.make_tiled_tma_atom_A if name in KEY_SIDE else cute.nvgpu.make_tiled_tma_atom_B
        layout = layouts[name.removesuffix("_t")]
        copy, matrix = make(load_op, mX, layout, (TILE_N, TILE_M, head_dim), tiled_mmas["s"])
        tma.append(copy)
        matrices.append(matrix)
    atom_heads = [heads_kv if n in KEY_SIDE else heads_q for n in ATOMS]
    atoms = tuple(by_tiles(x, batch, heads) for x, heads in zip(atoms, atom_heads, strict=True))
    mTerms, mWork = (by_tiles(x, batch, heads_q) for x in (mTerms, mWork))
    mdK, mdV = (unfold(x, batch, seqlen_k, heads_kv) for x in (mdK, mdV))
    main_kernel(
        tuple(tma), tuple(matrices), atoms, mTerms, mWork, mdK, mdV, mFactor, mOverflows, mTable,
        (seqlen_q, seqlen_k), scale_log2, softmax_scale, config,
    ).launch(grid=(kv_tiles, heads_kv, batch), block=(plan.THREADS, 1, 1), min_blocks_per_mp=1)  # fmt: skip


def make_tiled_mmas(head_dim: int) -> dict:
    """The instructions: S and dP; dV, A from tensor memory; dK; dQ, both operands with their rows contiguous."""

    def product(a_major: OperandMajorMode) -> cute.TiledMma:
        op = tcgen05.MmaMXF8F6F4Op(
            E4M3, E4M3, (TILE_M, head_dim, BLOCK), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, a_major,
            OperandMajorMode.MN,
        )  # fmt: skip
        return cute.make_tiled_mma(op)

    return {
        "s": make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K),
        "dv": make_tiled_mma_from_tmem(head_dim, OperandMajorMode.MN),
        "dk": product(OperandMajorMode.K),
        "dq": product(OperandMajorMode.MN),
    }


def make_layouts(tiled_mmas: dict, head_dim: int) -> dict:
    """Of the payloads in shared memory, as each product reads them; "q" and "q_t" are the same bytes."""
    s, dk, dq = (tiled_mmas[name] for name in ("s", "dk", "dq"))
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
        "ds": rows_a(dk, gradient, E4M3, 1),
    }


@cute.kernel
def main_kernel(
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mTerms: cute.Tensor,
    mWork: cute.Tensor,
    mdK: cute.Tensor,
    mdV: cute.Tensor,
    mFactor: cute.Tensor,
    mOverflows: cute.Tensor,
    mTable: cute.Tensor | None,
    lengths: tuple,
    scale_log2: cutlass.Float32,
    softmax_scale: cutlass.Float32,
    config: cutlass.Constexpr[plan.Config],
) -> None:
    """One CTA: 128 keys, all queries that see one of them; every warp goes to its role."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tiled_mmas = make_tiled_mmas(config.head_dim)
    smem = memory.SmemAllocator()
    storage = smem.allocate(plan.Storage)
    stored, tiles = allocate_tiles(smem, make_layouts(tiled_mmas, config.head_dim), PAYLOADS[: len(matrices)])
    scales = allocate_scales(smem, tiled_mmas["s"])
    terms = cute.make_layout((2 * TILE_M, STAGES))
    parts = cute.make_layout((32 * plan.DQ_COLUMNS, config.dq_stages, plan.REDUCE_WARPS))
    fill_constant_scales(scales["p"], (E8M0_BIAS - config.p_offset) * 0x01010101)
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    work = work_of(mTable, lengths, mWork.shape[1] // mdK.shape[2], config.causal)
    cta = Fixed(
        config=config, tmem=tmem, events=events_of(storage), work=work, tiles=tiles, scales=scales,
        sTerms=smem.allocate_tensor(cutlass.Float32, terms, byte_alignment=128),  # addend, delta
        sParts=smem.allocate_tensor(mWork.element_type, parts, byte_alignment=128),  # of dQ
        sWords=storage.words.get_tensor(cute.make_layout((BLOCKS, BLOCKS), stride=(BLOCKS, 1))),  # scales of dS
        scale_log2=scale_log2, softmax_scale=softmax_scale,
    )  # fmt: skip

    if warp < plan.COMPUTE_WARP:
        cute.arch.setmaxregister_decrease(plan.REDUCE_REGISTERS)
        reduce_dq(cta, mWork, mFactor, mOverflows)
    elif warp < plan.LOAD_WARP:
        cute.arch.setmaxregister_increase(plan.COMPUTE_REGISTERS)
        compute(cta)
        store_gradients(cta, mdK, mdV)
    else:
        cute.arch.setmaxregister_decrease(plan.OTHER_REGISTERS)
        if warp == plan.LOAD_WARP:
            copies = make_copies(tiled_mmas["s"], tma, matrices, stored, cta)
            load(cta, Fixed(copies=copies, atoms=dict(zip(ATOMS, atoms, strict=True))), mTerms)
        elif warp == plan.MMA_WARP:
            if cta.work.count > 0:
                multiply(cta, products_of(cta, tiled_mmas))
        elif warp == plan.SCALES_WARP:
            assemble_scales(cta)
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
        source = stored[name if name in stored else "ds_t" if name == "ds" else name.removesuffix("_t")]
        tiles[name] = cute.make_tensor(source.iterator, layout.outer)
    return stored, tiles


def allocate_scales(smem: memory.SmemAllocator, tiled_mma: cute.TiledMma) -> dict:
    """Shared memory for the scales, an atom a stage."""
    scales = {}
    for name in ("k", "k_t", "v", "p", "ds", "ds_t", *STAGED):
        layout = blockscaled_layout.make_smem_layout_sfa(tiled_mma, TILE, BLOCK, STAGES if name in STAGED else 1)
        scales[name] = smem.allocate_tensor(E8M0, layout, byte_alignment=128)
    return scales


def make_copies(tiled_mma: cute.TiledMma, tma: tuple, matrices: tuple, stored: dict, cta: Fixed) -> dict:
    """By payload: the TMA copy, its destination (TMA, stages) and its source (TMA, tiles, heads)."""
    copies = {}
    for name, copy, matrix in zip(PAYLOADS, tma, matrices, strict=False):
        mX = place_of(cta.work, name).rows(matrix, 0)
        gX = cute.local_tile(mX, (TILE_M, cta.config.head_dim), (None, 0, None))
        slice_ = tiled_mma.get_slice(0)
        part = slice_.partition_A(gX) if name in KEY_SIDE else slice_.partition_B(gX)
        copies[name] = (copy, *tma_tiles(copy, stored[name], part))
    return copies


def work_of(mTable: cute.Tensor | None, lengths: tuple, group: cutlass.Int32, causal: bool) -> Fixed:
    """What the CTA has to do: `kv_tile`, `kv_head`, and the tiles of queries from `first` to `q_tiles` of each of the
    `group` query heads, `count` in all; and where its sequence lies, `q`, `k` and, for dO, `o` (`sequences.py`).
    """
    kv_tile, kv_head, batch = cute.arch.block_idx()
    seqlen_q, seqlen_k = lengths
    q = k = o = InBatch(batch)
    if mTable is not None:
        row = work_row(mTable, kv_tile)
        kv_tile, seqlen_q, seqlen_k, q, k, o = row.tile, row.seqlen_q, row.seqlen_k, row.q, row.k, row.o
    q_tiles, first = cute.ceil_div(seqlen_q, TILE_M), cutlass.Int32(0)
    if causal:
        first = cutlass.min(cutlass.max(kv_tile * TILE_N - seqlen_k + seqlen_q, 0), seqlen_q) // TILE_M
    return Fixed(
        kv_tile=kv_tile, kv_head=kv_head, q=q, k=k, o=o, seqlen_q=seqlen_q, seqlen_k=seqlen_k,
        first=first, q_tiles=q_tiles, group=group, count=(q_tiles - first) * group,
    )  # fmt: skip
