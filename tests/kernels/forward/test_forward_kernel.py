"""The forward kernel equals its model bit for bit, whatever the sizes, the schedule and the arithmetic."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from forward_harness import assert_same_bits, check, model, operands, run  # noqa: E402

from mxfp8fa.emulator.remains import MemoryAtExit  # noqa: E402
from mxfp8fa.kernels import MXOperand, execution, launch  # noqa: E402
from mxfp8fa.kernels.forward import forward, forward_arguments  # noqa: E402
from mxfp8fa.kernels.forward.plan import TILE_N, TMEM  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, MXTensor, quantize  # noqa: E402

LENGTHS = (1, 31, 32, 33, 127, 128, 129, 300, 512, 1000)
SCHEDULES = {"eager": {}, "lazy": {"schedule": "lazy"}, **{f"random {s}": {"schedule": "random", "seed": s} for s in (1, 2)}}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule(schedule):
    """Three heads on one CTA, two tiles of keys each: every ring comes around. The order of mma and cp is not relied on."""
    q, k, v = operands(1, 130, 200, 3, 1, 64)
    check(q, k, v, ctas=1, schedule=schedule | {"assume_mma_cp_order": False})


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (33, 31), (129, 127), (5, 300)])
def test_lengths_with_the_arithmetic_of_the_tensor_core(seqlen_q, seqlen_k):
    q, k, v = operands(1, seqlen_q, seqlen_k, 1, 1, 64)
    check(q, k, v, options=AttentionOptions(accumulate="blackwell"))


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(300, 270), (270, 300), (129, 33), (1, 257)])
def test_causal(seqlen_q, seqlen_k):
    """More queries than keys leaves queries without any: O = 0, lse = -inf."""
    o, lse, _ = check(*operands(1, seqlen_q, seqlen_k, 1, 1, 64), causal=True, out_dtype=torch.bfloat16, ctas=1)
    blind = max(seqlen_q - seqlen_k, 0)
    assert (o[0, :blind] == 0).all() and torch.isneginf(lse[0, 0, :blind]).all() and lse[0, 0, blind:].isfinite().all()


def test_head_dim_128_grouped_heads_and_batch():
    check(*operands(2, 140, 160, 4, 2, 128), out_dtype=torch.bfloat16, ctas=3)


def test_square_blocks():
    check(*operands(1, 70, 150, 2, 1, 64, square=True))


@pytest.mark.parametrize(
    "options",
    [
        AttentionOptions(exp2=0.25),
        AttentionOptions(row_sum="rounded"),
        AttentionOptions(row_sum="rounded", sum_format="float16"),
        AttentionOptions(p_offset=4, rescale_threshold=4.0),
    ],
    ids=["polynomial", "rounded sum", "float16 sum", "offset 4"],
)
def test_options(options):
    check(*operands(1, 40, 290, 1, 1, 64), options=options)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16])
def test_output_is_rounded_once(out_dtype):
    q, k, v = operands(1, 129, 64, 1, 1, 64)
    check(q, k, v, out_dtype=out_dtype)


def test_codes_of_p():
    """Those of the last tile of keys are still in tensor memory when the CTA ends: E4M3, four keys to a column."""
    q, k, v = operands(1, 256, 180, 1, 1, 64)
    codes, remains = {}, MemoryAtExit()

    def keep(tile):
        codes[tile.q_tile] = tile.p_codes

    run(q, k, v, trace=remains)
    model(q, k, v, on_tile=keep)
    (tmem,) = remains.tmem.values()
    for i in range(2):
        first = TMEM[f"P{i}"].start
        words = torch.from_numpy(tmem.values[:, first : first + TILE_N // 4].view("int32").copy())
        assert torch.equal(words.view(torch.uint8), torch.from_numpy(codes[i]))


def with_nan(x, *at):
    """A scale of 0xFF, and the codes of its block as the quantizer writes them for a NaN."""
    codes, scale = x.codes.copy(), x.scale_e8m0.copy()
    scale[at] = 0xFF
    return MXTensor(codes, scale, x.fmt, x.axes)


def test_nan_in_q_reaches_the_rows_of_its_block():
    q, k, v = operands(1, 140, 130, 1, 1, 64)
    o, lse, _ = check(with_nan(q, 0, 5, 0, 1), k, v)
    assert lse.isnan().nonzero()[:, 2].tolist() == [5] and o.isnan().any(-1).nonzero()[:, 1].tolist() == [5]


def test_nan_in_k_reaches_rows_that_may_see_its_key():
    q, k, v = operands(1, 140, 140, 1, 1, 64)
    o, lse, _ = check(q, with_nan(k, 0, 40, 0, 0), v, causal=True, out_dtype=torch.bfloat16)
    expected = torch.arange(140) >= 40
    assert torch.equal(lse[0, 0].isnan(), expected) and torch.equal(o[0, :, 0].isnan().all(-1), expected)
    assert torch.equal(o[0, :, 0].isnan().any(-1), expected)


def test_nan_in_v_reaches_every_row_of_the_q_tiles_that_visit_its_tile():
    """0 * NaN: in the columns of the block. Q tile 0 does not visit the second tile of keys."""
    q, k, v = operands(1, 140, 140, 1, 1, 64)
    o, lse, _ = check(q, k, with_nan(v, 0, 4, 0, 7), causal=True, out_dtype=torch.bfloat16)
    expected = (torch.arange(140) >= 128)[:, None] & (torch.arange(64) == 7)
    assert torch.equal(o[0, :, 0].isnan(), expected) and not lse.isnan().any()


def test_outputs_of_every_magnitude():
    """Columns of V whose sums overflow to infinity in some rows, stay among the subnormals, and are zeros of one sign."""
    q, k, v = operands(1, 40, 130, 1, 1, 64)
    codes, scale = v.codes.copy(), v.scale_e8m0.copy()
    codes[..., 1], scale[..., 1] = 0x7E, 246  # 448 * 2^119 in every key
    codes[..., 2], scale[..., 2] = 0xFE, 246
    codes[..., 3], scale[..., 3] = 0x01, 0  # 2^-9 * 2^-127
    codes[..., 4], scale[..., 4] = 0x80, 0
    o, lse, _ = check(q, k, MXTensor(codes, scale, v.fmt, v.axes))
    assert (o[..., 1] == torch.inf).any() and (o[..., 2] == -torch.inf).any()
    assert lse.isfinite().all() and not o[..., 0].isnan().any()
    assert (o[..., 3:5].abs() < 2.0**-126).all()


@pytest.mark.parametrize("seqlen_k", [60, 130])
def test_padding_of_the_scales_never_reaches_o(seqlen_k):
    """Scale bytes behind the last query and the last key may be anything: here NaN."""
    tensors = operands(1, 40, seqlen_k, 1, 1, 64)
    garbage = []
    for x, rows in zip(tensors, ("tokens", "tokens", "head_dim"), strict=True):
        given = MXOperand.from_mx_tensor(x)
        ones = MXTensor(x.codes, np.ones_like(x.scale_e8m0), x.fmt, x.axes)
        padding = MXOperand.from_mx_tensor(ones).scales[rows] == 0
        packed = torch.where(padding, torch.tensor(0xFF, dtype=torch.uint8), given.scales[rows])
        garbage.append(MXOperand(given.codes, {rows: packed}, given.axes))
        assert padding.any()
    o, lse, _ = run(*garbage)
    for got, expected in zip((o, lse), model(*tensors), strict=True):
        assert_same_bits(got, expected)


def test_fifty_lengths_compile_once(monkeypatch):
    compiled = []
    monkeypatch.setattr(execution, "_compiled", {})
    monkeypatch.setattr(launch, "compile_kernel", lambda *args, **keywords: compiled.append(args) or len(compiled))
    for n in range(1, 51):
        q, k, v = (MXOperand.from_mx_tensor(x) for x in operands(n % 3 + 1, n, 2 * n, 2 * (n % 2 + 1), 2, 64))
        forward_arguments(q, k, v, softmax_scale=1 / n)
    assert len(compiled) == 1
    forward_arguments(q, k, v, softmax_scale=1.0, causal=True)
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": AttentionOptions(tile_n=64)}, "tile_n = 64"),
        ({"options": AttentionOptions(kv_order="ascending")}, "kv_order"),
        ({"out_dtype": torch.float64}, "out_dtype = torch.float64"),
    ],
)
def test_refused(change, said):
    q, k, v = (MXOperand.from_mx_tensor(x) for x in operands(1, 1, 1, 1, 1, 64))
    with pytest.raises(ValueError, match=said):
        forward_arguments(q, k, v, softmax_scale=1.0, **change)


@pytest.mark.parametrize("shape", [(1, 8, 3, 64), (1, 8, 2, 32), (2, 8, 2, 64)])
def test_shapes_refused(shape):
    """Heads that do not divide, another head_dim, another batch."""
    batch, seqlen, heads, head_dim = shape
    tensors = operands(batch, seqlen, 8, heads, 1, head_dim)[:1] + operands(1, 8, 8, 2, 2, 64)[1:]
    q, k, v = map(MXOperand.from_mx_tensor, tensors)
    with pytest.raises(ValueError, match="allowed"):
        forward_arguments(q, k, v, softmax_scale=1.0)


def test_nothing_to_do():
    q, k, v = (MXOperand.from_mx_tensor(x) for x in operands(1, 4, 4, 1, 1, 64))
    empty = MXOperand.from_mx_tensor(quantize(np.zeros((1, 0, 1, 64), np.float32), axes=3))
    no_v = MXOperand.from_mx_tensor(quantize(np.zeros((1, 0, 1, 64), np.float32), axes=1))
    keywords = dict(softmax_scale=1.0, causal=False, options=AttentionOptions(), out_dtype=torch.float32)
    o, lse = forward(empty, k, v, **keywords)
    assert o.shape == (1, 0, 1, 64) and lse.shape == (1, 1, 0)
    o, lse = forward(q, empty, no_v, **keywords)
    assert (o == 0).all() and torch.isneginf(lse).all()


def test_number_of_ctas_and_interleaving_change_nothing():
    q, k, v = operands(1, 300, 140, 2, 2, 64)
    results = [run(q, k, v, causal=True, ctas=n, interleave=i)[:2] for n, i in ((1, True), (3, True), (2, False))]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(b, a)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)], ids=["one head", "grouped"])
@pytest.mark.parametrize("seqlen_q", LENGTHS)
def test_grid(head_dim, causal, heads, seqlen_q):
    """Every length of queries with a shorter, an equal and a longer one of keys."""
    at = LENGTHS.index(seqlen_q)
    for seqlen_k in {LENGTHS[max(at - 3, 0)], seqlen_q, LENGTHS[(at + 4) % len(LENGTHS)]}:
        check(*operands(1, seqlen_q, seqlen_k, *heads, head_dim), causal=causal, out_dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("length", [33, 127, 128, 129, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_grid_with_the_arithmetic_of_the_tensor_core(length, causal):
    options = AttentionOptions(accumulate="blackwell")
    check(*operands(1, length, length, 1, 1, 128), causal=causal, options=options, out_dtype=torch.bfloat16)
