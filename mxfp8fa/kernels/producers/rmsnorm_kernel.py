"""RMSNorm and quantize: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), straight to codes and scales.

A row has to be seen to its end before its first code can be made, and blocks along the tokens need 32 rows at once. So 32
rows stay in shared memory, x is read once from global memory, and rows of more than 1,024 are shared out to a cluster of
up to eight CTAs, since 32 rows of 8,192 are more than an SM holds.

Memory never waits for arithmetic or for other CTAs. CTAs stay on their SM, and three things go on at the same time: 32
tokens are on their way (bulk copies, a row each), the next ones, which have arrived, are squared and added up, the ones
before are quantized. Sums meet in a warp of their own and go from there to every CTA of the cluster (st.async); nobody asks
for them before he has added up the next 32 tokens.

    load warp        GMEM -> sX[stages], and where these tokens lie: a dozen divisions that nobody else has to make
    quantize warps   sX -> squares: thread, warp (shuffles) -> sOfWarp -> the sum warp
                     rstd from sTotals -> y -> `fragment` -> GMEM
    sum warp         sOfWarp -> sTotals of all CTAs of the cluster

Barriers:

    barrier        count   arrives                                  waits           means
    full[stages]   1       load warp, and the bytes of 32 rows      quantize warps  the stage is filled
    empty[stages]  warps   a thread of each quantize warp           load warp       the stage has been read
    summed[2]      warps   a thread of each quantize warp           sum warp        sums of all warps are there
    totals[4]      1       sum warp, and 128 bytes from every CTA   quantize warps  sums of all CTAs are there

Nobody says that sums have been read. Turn t + 2 overwrites those of turn t in sOfWarp: warps add up t + 2 after the totals
of t, which follow the reading. Turn t + 4 overwrites those in sTotals: its sums follow the totals of t + 2 in every CTA, and
those follow sums of t + 2 of all warps of all CTAs, which had read the totals of t by then.

Scales of 32 tokens are a part of an atom, two bytes of a token and one of a column for a warp. Groups whose tokens do not
exist write the zeros of their part of the padding.

Constraints: as for `quantize_kernel`; rows of at most 8,192.
"""

from typing import NamedTuple

import cutlass
from cutlass import cute, memory
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from mxfp8fa.kernels.producers.atoms import store_column_scales, store_row_scales
from mxfp8fa.kernels.producers.fragment import VECTOR, Blocks, encode_row, fragment_scales, select
from mxfp8fa.kernels.producers.quantize_kernel import (
    ROW_LANES,
    ROWS,
    TILE_COLUMNS,
    TILE_TOKENS,
    WARP_COLUMNS,
    store_row,
    tile_tokens,
)
from mxfp8fa.numerics.mx_tensor import BLOCK

CTA_COLUMNS = 1024
MAX_CLUSTER = 8  # portable (CUDA C++ Programming Guide, "Thread Block Clusters")
MAX_COLUMNS = CTA_COLUMNS * MAX_CLUSTER
BLOCKS_OF_TILE = TILE_TOKENS // BLOCK
COLUMN_LANES = (4, 2, 1)  # distances of the lanes that share a token
HELPERS = 2  # warps: load and sum
SM_THREADS = 32 * (CTA_COLUMNS // WARP_COLUMNS + HELPERS)  # of all CTAs of an SM: up to 112 registers each
SM_STAGE_BYTES = 208 * 1024  # of shared memory, for the stages of all CTAs of an SM
MAX_STAGES = 6
SMEM_PERCENT = 100  # of the memory that is both L1 and shared memory
SUM_SLOTS, TOTAL_SLOTS = 2, 4  # see above
SUM_BYTES = 4 * BLOCK
PLACE = 6  # numbers that say where a group lies


class Shape(NamedTuple):
    """How a row is shared out; what a kernel is compiled for."""

    cluster: int  # CTAs
    warps: int  # that quantize, of a CTA
    stages: int  # groups of 32 tokens that a CTA holds

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return 32 * (self.warps + HELPERS)

    @property
    def columns(self) -> int:
        """Of a CTA."""
        return WARP_COLUMNS * self.warps

    @property
    def ctas_per_sm(self) -> int:
        """That are to fit beside each other."""
        return max(1, SM_THREADS // self.threads) if self.cluster == 1 else 1

    @property
    def ahead(self) -> int:
        """How many groups are added up before one is quantized."""
        return min(1, self.stages - 1)


def shape_for(columns: int, element_bytes: int) -> Shape:
    """The fewest CTAs that hold a row of so many columns, each with whole atoms of it."""
    atoms = -(-columns // TILE_COLUMNS)
    cluster = -(-columns // CTA_COLUMNS)
    shape = Shape(cluster, -(-atoms // cluster) * (TILE_COLUMNS // WARP_COLUMNS), 1)
    stage_bytes = BLOCK * shape.columns * element_bytes
    return shape._replace(stages=max(1, min(MAX_STAGES, SM_STAGE_BYTES // (shape.ctas_per_sm * stage_bytes))))


class Data(NamedTuple):
    """Where everything is in global memory."""

    pX: cute.Pointer
    pWeight: cute.Pointer
    pCodes: cute.Pointer
    pTokens: cute.Pointer | None
    pHeadDim: cute.Pointer | None
    pY: cute.Pointer | None
    pRstd: cute.Pointer
    pTiles: cute.Pointer | None


class Shared(NamedTuple):
    """In shared memory: sX (columns, 32, stages), what `place` says of each stage, sOfWarp (32, warps, 2), sTotals
    (32, CTAs, 4); barriers.
    """

    sX: cute.Tensor
    sPlace: cute.Tensor
    sOfWarp: cute.Tensor
    sTotals: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer
    summed: cute.Pointer
    totals: cute.Pointer


class Part(NamedTuple):
    """The part of the work that is a CTA's: every `step`-th group of 32 tokens, and these columns of it."""

    first: cutlass.Int32  # group
    step: cutlass.Int32
    groups: cutlass.Int32  # of all
    column: cutlass.Int32  # first of the CTA's
    columns: cutlass.Int32  # that exist
    rank: cutlass.Int32  # in the cluster


@cute.jit
def rmsnorm_quantize(
    pX: cute.Pointer,
    pWeight: cute.Pointer,
    pCodes: cute.Pointer,
    pTokens: cute.Pointer | None,
    pHeadDim: cute.Pointer | None,
    pY: cute.Pointer | None,
    pRstd: cute.Pointer,
    pTiles: cute.Pointer | None,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    eps: cutlass.Float32,
    clusters: cutlass.Int32,
    stream: object,
    blocks: cutlass.Constexpr[Blocks],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """Launch clusters that stay; each takes every so manieth group of 32 tokens.

    Args:
        pX: first element of the data.
        pWeight: (head dimension,), contiguous.
        pCodes: of the codes, contiguous.
        pTokens: of the scales with tokens as rows, if blocks run along the last axis.
        pHeadDim: of the scales with the head dimension as rows, if they run along the tokens.
        pY: of y in 16 or 32 bits, contiguous, if it is wanted.
        pRstd: of rstd, a float32 for every row.
        pTiles: of (tiles, 2) int32, first token and number of tokens of every tile, for packed sequences.
        sizes: batches, tokens of one, heads, head dimension, token tiles of a batch.
        strides: of the data, in elements: batch, token, head.
        eps: added to the mean.
        clusters: that fit on the GPU at the same time; more would start when these are done.
        stream: CUDA stream.
        blocks: what to make.
        shape: how a row is shared out.
    """
    batches, _, heads, _, tiles = sizes
    count = cutlass.min(batches * tiles * BLOCKS_OF_TILE * heads, clusters)
    data = Data(pX, pWeight, pCodes, pTokens, pHeadDim, pY, pRstd, pTiles)
    rmsnorm_quantize_kernel(data, sizes, strides, eps, blocks, shape).launch(
        grid=(count * shape.cluster, 1, 1),
        block=(shape.threads, 1, 1),
        cluster=(shape.cluster, 1, 1),
        stream=stream,
        min_blocks_per_mp=shape.ctas_per_sm,
        preferred_smem_carveout=SMEM_PERCENT,
    )


@cute.kernel
def rmsnorm_quantize_kernel(
    data: Data,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    eps: cutlass.Float32,
    blocks: cutlass.Constexpr[Blocks],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """One CTA: its part of group after group of 32 tokens."""
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    batches, _, heads, head_dim, tiles = sizes
    rank = cta % shape.cluster
    column = rank * shape.columns
    part = Part(
        cta // shape.cluster,
        ctas // shape.cluster,
        batches * tiles * BLOCKS_OF_TILE * heads,
        column,
        cutlass.min(head_dim - column, shape.columns),
        rank,
    )
    shared = set_up(data.pX.dtype, warp, shape)
    if warp == shape.warps:
        load(data, shared, part, sizes, strides, shape)
    elif warp == shape.warps + 1:
        add_up(shared, part, shape)
    else:
        quantize(data, shared, part, sizes, eps, warp, blocks, shape)


rmsnorm_quantize_kernel.set_name_prefix("rmsnorm_quantize", remove_cutlass_symbol=True, keep_mangled_name=False)


@cute.jit
def set_up(element_type: type[cutlass.Numeric], warp: cutlass.Int32, shape: cutlass.Constexpr[Shape]) -> Shared:
    """Shared memory, and barriers that every CTA of the cluster may arrive at when this returns."""
    smem = memory.SmemAllocator()
    stages = cute.make_layout((shape.columns, BLOCK, shape.stages))
    shared = Shared(
        smem.allocate_tensor(element_type, stages, byte_alignment=128),
        smem.allocate_tensor(cutlass.Int32, cute.make_layout((PLACE, shape.stages), stride=(1, 8)), byte_alignment=128),
        smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, shape.warps, SUM_SLOTS)), byte_alignment=128),
        smem.allocate_tensor(cutlass.Float32, cute.make_layout((BLOCK, shape.cluster, TOTAL_SLOTS)), byte_alignment=128),
        *(smem.allocate_array(cutlass.Int64, n) for n in (shape.stages, shape.stages, SUM_SLOTS, TOTAL_SLOTS)),
    )
    if warp == 0:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(shape.stages):
                cute.arch.mbarrier_init(shared.full + stage, 1)
                cute.arch.mbarrier_init(shared.empty + stage, shape.warps)
            for slot in cutlass.range_constexpr(SUM_SLOTS):
                cute.arch.mbarrier_init(shared.summed + slot, shape.warps)
            for slot in cutlass.range_constexpr(TOTAL_SLOTS):
                cute.arch.mbarrier_init(shared.totals + slot, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if cutlass.const_expr(shape.cluster > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    return shared


@cute.jit
def place(group: cutlass.Int32, pTiles: cute.Pointer | None, sizes: tuple[cutlass.Int32, ...]) -> tuple:
    """Batch, head, tile, which 32 of its 128 tokens, their first token in the batch, and how many exist (maybe < 1)."""
    _, seqlen, heads, _, tiles = sizes
    head, token_block = group % heads, group // heads % BLOCKS_OF_TILE
    batch_tile = group // (heads * BLOCKS_OF_TILE)
    batch, tile = batch_tile // tiles, batch_tile % tiles
    first, tokens = tile_tokens(pTiles, tile, seqlen)
    return batch, head, tile, token_block, first + BLOCK * token_block, tokens - BLOCK * token_block


@cute.jit
def load(
    data: Data,
    shared: Shared,
    part: Part,
    sizes: tuple[cutlass.Int32, ...],
    strides: tuple[cutlass.Int64, ...],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """The load warp: lane r fetches row r of every group, the tile's last one for all beyond."""
    lane = cute.arch.lane_idx()
    batch_stride, token_stride, head_stride = strides
    row_bytes = part.columns * (data.pX.dtype.width // 8)
    turn = cutlass.Int32(0)
    for group in cutlass.range(part.first, part.groups, part.step, unroll=1):
        where = place(group, data.pTiles, sizes)
        batch, head, _, _, first, tokens = where
        row = first + cutlass.min(lane, tokens - 1)
        source = batch * batch_stride + row * token_stride + head * head_stride + part.column
        stage = turn % shape.stages
        cute.arch.mbarrier_wait(shared.empty + stage, (turn // shape.stages + 1) % 2)
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(PLACE):
                shared.sPlace[i, stage] = where[i]
            cute.arch.mbarrier_arrive_and_expect_tx(shared.full + stage, BLOCK * row_bytes)
        cute.arch.sync_warp()
        bulk_copy(shared.sX[None, lane, stage].iterator, data.pX + source, row_bytes, shared.full + stage)
        turn += 1


@cute.jit
def add_up(shared: Shared, part: Part, shape: cutlass.Constexpr[Shape]) -> None:
    """The sum warp: lane r adds the sums of row r over the warps, in order, and tells every CTA of the cluster."""
    lane = cute.arch.lane_idx()
    turn = cutlass.Int32(0)
    for _ in cutlass.range(part.first, part.groups, part.step, unroll=1):
        cute.arch.mbarrier_wait(shared.summed + turn % SUM_SLOTS, turn // SUM_SLOTS % 2)
        total = shared.sOfWarp[lane, 0, turn % SUM_SLOTS]
        for warp in cutlass.range_constexpr(1, shape.warps):
            total += shared.sOfWarp[lane, warp, turn % SUM_SLOTS]
        slot = turn % TOTAL_SLOTS
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(shared.totals + slot, SUM_BYTES * shape.cluster)
        target = shared.sTotals.iterator + (lane + BLOCK * (part.rank + shape.cluster * slot))
        for peer in cutlass.range_constexpr(shape.cluster):
            cute.arch.store_async_dsmem(target, total.bitcast(cutlass.Int32), shared.totals + slot, peer)
        turn += 1


@cute.jit
def quantize(
    data: Data,
    shared: Shared,
    part: Part,
    sizes: tuple[cutlass.Int32, ...],
    eps: cutlass.Float32,
    warp: cutlass.Int32,
    blocks: cutlass.Constexpr[Blocks],
    shape: cutlass.Constexpr[Shape],
) -> None:
    """A quantize warp: 64 columns, 8 rows and 8 columns a thread (`fragment`)."""
    lane = cute.arch.lane_idx()
    _, seqlen, heads, head_dim, tiles = sizes
    local = WARP_COLUMNS * warp + VECTOR * (lane % 8)
    column = part.column + local
    inside = column < head_dim
    at = cute.assume(cutlass.min(local, part.columns - VECTOR), divby=VECTOR)  # what does not exist is a copy of the last
    weight = cute.make_rmem_tensor(VECTOR, data.pWeight.dtype)
    cute.autovec_copy(cute.make_tensor(data.pWeight + cute.assume(part.column + at, divby=VECTOR), VECTOR), weight)
    across = cute.ceil_div(head_dim, TILE_COLUMNS)

    if cutlass.const_expr(shape.ahead > 0):
        add_squares(shared, at, inside, warp, cutlass.Int32(0), shape)
    turn = cutlass.Int32(0)
    for group in cutlass.range(part.first, part.groups, part.step, unroll=1):
        if group + shape.ahead * part.step < part.groups:
            add_squares(shared, at, inside, warp, turn + shape.ahead, shape)
        rstd = reciprocal_rms(shared.sTotals, shared.totals, head_dim, eps, turn, shape)
        y = scaled_rows(shared.sX, at, rstd, weight.load().to(cutlass.Float32), turn % shape.stages)
        batch, head, tile, token_block, first, tokens = (shared.sPlace[i, turn % shape.stages] for i in range(PLACE))
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(shared.empty + turn % shape.stages)

        row = (cutlass.Int64(batch) * seqlen + first) * heads + head
        if part.rank == 0 and warp == 0 and lane < tokens:
            cute.make_tensor(data.pRstd + (row + lane * heads), 1)[0] = rstd
        scales = fragment_scales(lambda i, _, y=y: y[i], ROWS, 1, ROW_LANES, blocks)  # type: ignore[misc]
        store(y, scales, (data.pCodes, data.pY), row * head_dim + column, heads * head_dim, inside, tokens, blocks)
        head_index = cutlass.Int64(batch * heads + head)
        tile_d = column // TILE_COLUMNS
        if cutlass.const_expr(blocks.last):
            atom = (head_index * tiles + tile) * across + tile_d
            store_row_scales(data.pTokens, scales.of_row, atom, column, token_block, head_dim, tokens)
        if cutlass.const_expr(blocks.token):
            atom = (head_index * across + tile_d) * tiles + tile
            store_column_scales(data.pHeadDim, scales.of_column, atom, column, token_block, head_dim, tokens)
        turn += 1


@cute.jit
def add_squares(
    shared: Shared,
    at: cutlass.Int32,
    inside: cutlass.Boolean,
    warp: cutlass.Int32,
    turn: cutlass.Int32,
    shape: cutlass.Constexpr[Shape],
) -> None:
    """Sums of the squares of 32 rows over the warp's columns, to the sum warp.

    Args:
        shared: memory of the CTA.
        at: first of the thread's columns in it.
        inside: whether they exist.
        warp: which quantize warp.
        turn: counts the groups of the CTA.
        shape: of the CTA.
    """
    lane = cute.arch.lane_idx()
    stage = turn % shape.stages
    cute.arch.mbarrier_wait(shared.full + stage, turn // shape.stages % 2)
    sums = []
    for i in cutlass.range_constexpr(ROWS):
        sums.append(select(inside, sum_of_squares(row_of(shared.sX, at, i, stage)), cutlass.Float32(0)))
    shared.sOfWarp[lane // 8 + 4 * (lane % 8), warp, turn % SUM_SLOTS] = over_lanes(sums, lane)
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(shared.summed + turn % SUM_SLOTS)


def row_of(sX: cute.Tensor, at: cutlass.Int32, i: int, stage: cutlass.Int32) -> cute.TensorSSA:
    """The thread's row i as float32."""
    row = cute.arch.lane_idx() // 8 + 4 * i
    offset = cute.assume(at + cute.crd2idx((0, row, stage), sX.layout), divby=VECTOR)
    raw = cute.make_rmem_tensor(VECTOR, sX.element_type)
    cute.autovec_copy(cute.make_tensor(sX.iterator + offset, VECTOR), raw)
    return raw.load().to(cutlass.Float32)


def sum_of_squares(x: cute.TensorSSA) -> cutlass.Float32:
    """Of a thread's part of a row, from the first column to the last."""
    total = x[0] * x[0]
    for e in range(1, VECTOR):
        total += x[e] * x[e]
    return total


def over_lanes(sums: list[cutlass.Float32], lane: cutlass.Int32) -> cutlass.Float32:
    """Sums of eight rows over eight neighbouring lanes, one row to each lane: 7 shuffles instead of 24.

    At each distance a lane gives half of its rows away and gets its partner's part of the other half.
    """
    for distance in COLUMN_LANES:
        half = len(sums) // 2
        upper = (lane & distance) != 0
        given = [select(upper, sums[j], sums[j + half]) for j in range(half)]
        kept = [select(upper, sums[j + half], sums[j]) for j in range(half)]
        sums = [kept[j] + cute.arch.shuffle_sync_bfly(given[j], offset=distance) for j in range(half)]
    return sums[0]


@cute.jit
def reciprocal_rms(
    sTotals: cute.Tensor,
    totals: cute.Pointer,
    head_dim: cutlass.Int32,
    eps: cutlass.Float32,
    turn: cutlass.Int32,
    shape: cutlass.Constexpr[Shape],
) -> cutlass.Float32:
    """rstd of token `lane`, as soon as the sums of all CTAs are there."""
    lane, slot = cute.arch.lane_idx(), turn % TOTAL_SLOTS
    cute.arch.mbarrier_wait(totals + slot, turn // TOTAL_SLOTS % 2)
    total = sTotals[lane, 0, slot]
    for other in cutlass.range_constexpr(1, shape.cluster):
        total += sTotals[lane, other, slot]
    return cute.math.rsqrt(total / cutlass.Float32(head_dim) + eps)


def scaled_rows(
    sX: cute.Tensor, at: cutlass.Int32, rstd: cutlass.Float32, weight: cute.TensorSSA, stage: cutlass.Int32
) -> list[cute.TensorSSA]:
    """y = (x * rstd) * weight in float32, rounded after each product; rstd is that of token `lane`."""
    token = cute.arch.lane_idx() // 8
    return [
        row_of(sX, at, i, stage) * cute.arch.shuffle_sync(rstd, offset=token + 4 * i) * weight for i in range(ROWS)
    ]


@cute.jit
def store(
    y: cutlass.Constexpr,
    scales: cutlass.Constexpr,
    targets: tuple,
    element: cutlass.Int64,
    stride: cutlass.Int32,
    inside: cutlass.Boolean,
    tokens: cutlass.Int32,
    blocks: cutlass.Constexpr[Blocks],
) -> None:
    """Encode and write the thread's rows.

    Args:
        y: the rows.
        scales: of their blocks.
        targets: first of the codes, and of y or None.
        element: of the thread's columns of token 0 in them.
        stride: from token to token.
        inside: whether the columns exist.
        tokens: how many exist.
        blocks: what to make.
    """
    pCodes, pY = targets
    for i in cutlass.range_constexpr(ROWS):
        token = cute.arch.lane_idx() // 8 + 4 * i
        values = y[i]
        codes = encode_row(values, scales, i, 0, blocks)
        if inside and token < tokens:
            store_row(codes, pCodes, element + cutlass.Int64(token) * stride)
            if cutlass.const_expr(pY is not None):
                rounded = cute.make_rmem_tensor(VECTOR, pY.dtype)
                rounded.store(values.to(pY.dtype))
                store_row(rounded, pY, element + cutlass.Int64(token) * stride)


@dsl_user_op
def bulk_copy(
    sX: cute.Pointer, gX: cute.Pointer, size_bytes: cutlass.Int32, full: cute.Pointer, *, loc: object = None,
    ip: object = None,
) -> None:  # fmt: skip
    """cp.async.bulk by every thread that calls; the DSL has no call for a number of bytes known at run time."""
    operands = [
        sX.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip),
        gX.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip),
        size_bytes.ir_value(loc=loc, ip=ip),
        full.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip),
    ]
    instruction = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    llvm.inline_asm(None, operands, instruction, "r,l,r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)
