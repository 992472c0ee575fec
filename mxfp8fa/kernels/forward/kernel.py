"""The kernel: instructions, layouts and copies, and sixteen warps that each go to their role.

    warps      role         does                                    in
    0-3, 4-7   softmax      rows of S to P                          softmax.py
    8-11       correction   O rescaled, divided, to shared memory   correction.py
    12         mma          all products                            mma.py
    13         epilogue     O to global memory                      epilogue.py
    14         load         Q, K, V to shared memory                load.py
    15         none         registers come in groups of four warps

Roles talk through the barriers of `plan.py`; what they compute is `mxfp8fa.numerics.attention_mxfp8`, bit for bit.
"""

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import cute, memory
from cutlass.cute.nvgpu import OperandMajorMode, cpasync
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import blockscaled_layout

from mxfp8fa.kernels.forward import plan
from mxfp8fa.kernels.forward.correction import correct
from mxfp8fa.kernels.forward.epilogue import store
from mxfp8fa.kernels.forward.events import Fixed, events_of
from mxfp8fa.kernels.forward.load import Source, load
from mxfp8fa.kernels.forward.mma import Operands, multiply
from mxfp8fa.kernels.forward.plan import BARRIERS, CHUNK_BYTES, CHUNK_STAGES, KV_STAGES, Q_TILES, TILE_M, TILE_N, TMEM
from mxfp8fa.kernels.forward.scheduler import JaggedScheduler, Scheduler
from mxfp8fa.kernels.forward.sequences import endings
from mxfp8fa.kernels.forward.softmax import softmax
from mxfp8fa.kernels.forward.tensors import by_tiles, permuted, unfold
from mxfp8fa.kernels.steps.step1_one_mma import free_tmem
from mxfp8fa.kernels.steps.step2_k_loop import set_up
from mxfp8fa.kernels.steps.step3_block_scaled import BLOCK, E4M3, E8M0, TILE, make_tiled_mma
from mxfp8fa.kernels.steps.step4_quantizer import make_tiled_mma_from_tmem

TOKEN_MODES = 0, 0, 1, 0  # of Q, K, V^T and O: where the tokens are


@cute.jit
def attention_forward(
    codes: tuple,
    atoms: tuple,
    mO: cute.Tensor,
    mLSE: cute.Tensor,
    mTable: cute.Tensor | None,
    sizes: tuple,
    ctas: cutlass.Int32,
    scale_log2: cutlass.Float32,
    config: cutlass.Constexpr[plan.Config],
) -> None:
    """Choose instructions, layouts and copies; launch.

    Args:
        codes: of Q (B, Sq, Hq, D), K and V (B, Sk, Hkv, D) in E4M3, each as rows (`tensors.py`).
        atoms: their scales, Q and K (B, H, tiles, 512) with tokens as rows of an atom, V with head_dim; as rows.
        mO: (B, Sq, Hq, D) FP32, BF16 or FP16, as rows.
        mLSE: (B, Hq, Sq) FP32, flat.
        mTable: None, or for packed sequences the table of work (`mxfp8fa.kernels.jagged`); then B is 1, S is T of all
            sequences, and every sequence has whole tiles of scales of its own. O may have more rows than Q has.
        sizes: B, Sq, Sk, Hq, Hkv, and heads of a group (`scheduler.py`).
        ctas: as many as run at the same time.
        scale_log2: softmax_scale * log2(e).
        config: what is compiled in.
    """
    batch, seqlen_q, seqlen_k, heads_q, heads_kv, _ = sizes
    head_dim = config.head_dim
    qk = make_tiled_mma(OperandMajorMode.K, OperandMajorMode.K)
    pv = make_tiled_mma_from_tmem(head_dim, OperandMajorMode.MN)
    lengths = (seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv)
    order = (1, 3, 2, 0), (1, 3, 2, 0), (3, 1, 2, 0)  # V is V^T, (D, S, H, B)
    matrices = [
        permuted(unfold(x, batch, *length), modes) for x, length, modes in zip(codes, lengths, order, strict=True)
    ]
    atoms = tuple(by_tiles(x, batch, heads) for x, (_, heads) in zip(atoms, lengths, strict=True))
    seqlen_o = cute.size(mO, mode=[0]) // (batch * heads_q)
    mO = permuted(unfold(mO, batch, seqlen_o, heads_q), order[0])
    mLSE = cute.make_tensor(mLSE.iterator, cute.make_ordered_layout((batch, heads_q, seqlen_o), order=(2, 1, 0)))
    work_tiles = cute.ceil_div(seqlen_q, Q_TILES * TILE_M) * batch * heads_q
    if cutlass.const_expr(mTable is not None):
        *matrices, mO = (endings(x, tokens) for x, tokens in zip((*matrices, mO), TOKEN_MODES, strict=True))
        work_tiles = (cute.size(mTable, mode=[0]) - 1) * heads_q
    layouts = make_layouts(qk, pv, head_dim, mO.element_type)
    copies = make_copies(qk, pv, head_dim, matrices, mO, layouts)
    forward_kernel(
        (qk, pv), layouts, *copies, atoms, mLSE, mTable, sizes, scale_log2, config
    ).launch(grid=(cutlass.min(ctas, work_tiles), 1, 1), block=(plan.THREADS, 1, 1), min_blocks_per_mp=1)  # fmt: skip


def make_layouts(qk: cute.TiledMma, pv: cute.TiledMma, head_dim: int, o_type: type[cutlass.Numeric]) -> tuple:
    """Shared memory for Q, K, V and chunks of O, and for the scales of Q, K, V and P."""
    qk_tile, pv_tile = (TILE_M, TILE_N, head_dim), (TILE_M, head_dim, TILE_N)
    return (
        blackwell.make_smem_layout_a(qk, qk_tile, E4M3, Q_TILES),
        blackwell.make_smem_layout_b(qk, qk_tile, E4M3, KV_STAGES),
        blackwell.make_smem_layout_b(pv, pv_tile, E4M3, KV_STAGES),
        blackwell.make_smem_layout_epi(o_type, LayoutEnum.ROW_MAJOR, chunk_shape(o_type), CHUNK_STAGES),
        *(blockscaled_layout.make_smem_layout_sfa(qk, TILE, BLOCK, n) for n in (Q_TILES, KV_STAGES, KV_STAGES, Q_TILES)),
    )


def chunk_shape(o_type: type[cutlass.Numeric]) -> tuple[int, int]:
    """Rows and columns of a chunk of O."""
    return TILE_M, CHUNK_BYTES * 8 // o_type.width


def make_copies(
    qk: cute.TiledMma, pv: cute.TiledMma, head_dim: int, matrices: list, mO: cute.Tensor, layouts: tuple
) -> tuple[tuple, tuple]:
    """The TMA copies of Q, K, V and O, and these tensors as the copies see them."""
    qk_tile, pv_tile = (TILE_M, TILE_N, head_dim), (TILE_M, head_dim, TILE_N)
    into = cpasync.CopyBulkTensorTileG2SOp()
    (mQ, mK, mV), (q_layout, k_layout, v_layout, o_layout, *_) = matrices, layouts
    copies = (
        cute.nvgpu.make_tiled_tma_atom_A(into, mQ, q_layout, qk_tile, qk),
        cute.nvgpu.make_tiled_tma_atom_B(into, mK, k_layout, qk_tile, qk),
        cute.nvgpu.make_tiled_tma_atom_B(into, mV, v_layout, pv_tile, pv),
        cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), mO, cute.select(o_layout, mode=[0, 1]), chunk_shape(mO.element_type)
        ),
    )
    return tuple(tma for tma, _ in copies), tuple(mX for _, mX in copies)


@cute.kernel
def forward_kernel(
    products: tuple,
    layouts: tuple,
    tma: tuple,
    matrices: tuple,
    atoms: tuple,
    mLSE: cute.Tensor,
    mTable: cute.Tensor | None,
    sizes: tuple,
    scale_log2: cutlass.Float32,
    config: cutlass.Constexpr[plan.Config],
) -> None:
    """One CTA: its share of the work tiles."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = memory.SmemAllocator()
    storage = smem.allocate(plan.Storage)
    tiles, scales, sO = allocate_tiles(smem, layouts, config.o_type)
    tmem = set_up(storage, BARRIERS, TMEM.allocation, warp)
    cta = Fixed(
        config=config, scale_log2=scale_log2, tmem=tmem, sO=sO, p_scales=scales[3].iterator,
        events=events_of(storage),
        work=Scheduler(sizes, config.causal) if mTable is None else JaggedScheduler(mTable, sizes, config.causal),
        acc_scale=storage.acc_scale.data_ptr(), row_max=storage.row_max.data_ptr(), row_sum=storage.row_sum.data_ptr(),
    )  # fmt: skip

    if warp < plan.SOFTMAX_WARPS:
        cute.arch.setmaxregister_increase(plan.SOFTMAX_REGISTERS)
        softmax(cta, warp // 4)
    elif warp < plan.MMA_WARP:
        cute.arch.setmaxregister_decrease(plan.CORRECTION_REGISTERS)
        correct(cta, mLSE)
    else:
        cute.arch.setmaxregister_decrease(plan.OTHER_REGISTERS)
        if warp == plan.MMA_WARP:
            multiply(cta, Operands(products, tiles, scales, layouts[4], tmem, config))
        elif warp == plan.EPILOGUE_WARP:
            store(cta, tma[3], matrices[3], chunk_shape(config.o_type))
        elif warp == plan.LOAD_WARP:
            load(cta, *sources(products, tma, matrices, atoms, tiles, scales[:3], config.head_dim))
    free_tmem(tmem, TMEM.allocation, warp)


forward_kernel.set_name_prefix("attention_forward", remove_cutlass_symbol=True, keep_mangled_name=False)


def allocate_tiles(smem: memory.SmemAllocator, layouts: tuple, o_type: type) -> tuple[tuple, tuple, cute.Tensor]:
    """Shared memory for codes of Q, K, V, for scales of these and of P, and for chunks of O."""
    q, k, v, o, *scales = layouts
    tiles = tuple(smem.allocate_tensor(E4M3, x.outer, byte_alignment=1024, swizzle=x.inner) for x in (q, k, v))
    sO = smem.allocate_tensor(o_type, o.outer, byte_alignment=1024, swizzle=o.inner)
    return tiles, tuple(smem.allocate_tensor(E8M0, x, byte_alignment=128) for x in scales), sO


def sources(
    products: tuple, tma: tuple, matrices: tuple, atoms: tuple, tiles: tuple, scales: tuple, head_dim: int
) -> list[Source]:
    """Q, K and V as the load warp takes them."""
    (qk, pv), rest = (product.get_slice(0) for product in products), (None,)  # rest: heads
    cuts = (
        lambda mQ: qk.partition_A(cute.local_tile(mQ, (TILE_M, head_dim), (None, 0, *rest))),
        lambda mK: qk.partition_B(cute.local_tile(mK, (TILE_N, head_dim), (None, 0, *rest))),
        lambda mV: pv.partition_B(cute.local_tile(mV, (head_dim, TILE_N), (0, None, *rest))),
    )
    parts = zip(tma, cuts, matrices, TOKEN_MODES, tiles, atoms, scales, strict=False)
    return [Source(*part) for part in parts]
