"""Packed sequences in the forward kernel: every sequence as if it were alone, whatever lies beside it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from cutlass import cute  # noqa: E402
from forward_harness import FILLING, SCALE, assert_same_bits, run, values  # noqa: E402

from mxfp8fa import emulator  # noqa: E402
from mxfp8fa.kernels import MXOperand, execution  # noqa: E402
from mxfp8fa.kernels.forward import forward_arguments  # noqa: E402
from mxfp8fa.kernels.forward.names import names  # noqa: E402
from mxfp8fa.kernels.forward.sequences import Packed  # noqa: E402
from mxfp8fa.kernels.jagged import COLUMNS, Jagged, tile_bound  # noqa: E402
from mxfp8fa.numerics import attention_mxfp8, quantize  # noqa: E402

# Empty ones first, last and in a row, on either side and on both; 1, 127, 128, 129 tokens on both sides; two tiles.
QUERIES = (0, 0, 5, 129, 1, 127, 128, 260, 0, 0)
KEYS = (0, 7, 0, 130, 127, 1, 129, 128, 20, 0)


def cumulative(lengths, dtype=np.int32):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def packed(queries, keys, heads_q, heads_kv, head_dim, *, edit=None):
    """Quantized Q, K, V (T, H, D) and both cu_seqlens."""
    cu = cumulative(queries), cumulative(keys), cumulative(keys)
    heads = heads_q, heads_kv, heads_kv
    x = [
        values(1, int(c[-1]), h, head_dim, seed, along=along)[0]
        for c, h, seed, along in zip(cu, heads, (1, 2, 3), ("d", "d", "tokens"), strict=True)
    ]
    if edit is not None:
        edit(*x)
    return [
        quantize(a, axes=axes, tail="partial", cu_seqlens=c) for a, axes, c in zip(x, (2, 2, 0), cu, strict=True)
    ], cu[:2]


def run_jagged(tensors, sequences, *, causal=False, out_dtype=torch.bfloat16, **emulate):
    """O, lse and the report of one launch under the checker."""
    operands = [x if isinstance(x, MXOperand) else MXOperand.from_mx_tensor(x) for x in tensors]
    compiled, arguments, call = forward_arguments(
        *operands, softmax_scale=SCALE, causal=causal, out_dtype=out_dtype, sequences=sequences, ctas=3
    )
    for x in (call.o, call.lse):
        x.view(torch.int32 if x.dtype == torch.float32 else torch.int16).fill_(
            FILLING & (-1 if x.itemsize == 4 else 0x7FFF)
        )
    emulate = {"check": "races", "wait_ld": "required"} | emulate
    report = emulator.run(compiled, *arguments, names=names(operands[0].shape[-1]), **emulate)
    assert report.races == []
    return call.o, call.lse, report


def jagged(cu_q, cu_k, **keywords):
    cu_q, cu_k = map(torch.from_numpy, (cu_q, cu_k))
    return Jagged(cu_q, cu_k, int(cu_q[-1]), int(cu_k[-1]), **keywords)


def check(tensors, cu, *, causal=False, exact=True, **emulate):
    """Run, and compare with the model; returns O and lse."""
    o, lse, _ = run_jagged(tensors, jagged(*cu, exact=exact), causal=causal, **emulate)
    expected_o, expected_lse = attention_mxfp8(
        *tensors, softmax_scale=SCALE, causal=causal, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1]
    )
    assert_same_bits(lse, torch.from_numpy(expected_lse))
    assert_same_bits(o, torch.from_numpy(expected_o).to(o.dtype))
    return o, lse


@pytest.mark.parametrize(
    "schedule", [{}, {"schedule": "lazy"}, {"schedule": "random", "seed": 1}], ids=["eager", "lazy", "seed 1"]
)
def test_all_hard_lengths_in_one_batch(schedule):
    o, lse = check(*packed(QUERIES, KEYS, 1, 1, 64), **schedule)
    assert (o[:5] == 0).all() and torch.isneginf(lse[:, :5]).all()  # queries without keys


def test_causal_grouped_heads_head_dim_128_and_memory_by_the_bound():
    check(*packed((0, 140, 3), (5, 150, 130), 2, 1, 128), causal=True, exact=False)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_the_dense_kernel_gives_the_same_bits_sequence_by_sequence(batch):
    tensors, cu = packed((130, 40)[:batch], (90, 129)[:batch], 1, 1, 64)
    o, lse, _ = run_jagged(tensors, jagged(*cu))
    for i in range(batch):
        alone = []
        for x, c in zip(tensors, (cu[0], cu[1], cu[1]), strict=True):
            one = x.dequantize()[None, c[i] : c[i + 1]]
            alone.append(quantize(one, axes=tuple(axis + 1 for axis in x.axes), tail="partial"))
        dense_o, dense_lse, _ = run(*alone, out_dtype=torch.bfloat16)
        assert_same_bits(o[cu[0][i] : cu[0][i + 1]], dense_o[0])
        assert_same_bits(lse[:, cu[0][i] : cu[0][i + 1]], dense_lse[0])


def test_what_lies_beside_a_sequence_never_reaches_it():
    """Sequences 0 and 2 are NaN all over, 1 ends in the middle of a tile; and their O may be written, 1's only by 1."""

    def edit(q, k, v):
        for x, (first, last) in ((q, (30, 170)), (k, (20, 70)), (v, (20, 70))):
            x[:first], x[last:] = np.nan, np.nan

    o, lse = check(*packed((30, 140, 20), (20, 50, 100), 1, 1, 64, edit=edit))
    assert o[30:170].isfinite().all() and lse[:, 30:170].isfinite().all()
    assert o[:30].isnan().all() and o[170:].isnan().all()


@pytest.mark.slow
def test_a_map_that_ends_with_the_tensor_and_not_with_the_sequence_would_show(monkeypatch):
    """A mutant: the next sequence's NaN comes along in the last tile of V, and 0 * NaN is NaN."""

    def to_the_end_of_all(self, mX, tokens):
        shift = [0, 0, 0]
        shift[tokens] = self.start
        return cute.domain_offset(tuple(shift), mX[None, None, None, cute.size(mX, mode=[tokens])])

    def edit(q, k, v):
        v[70:] = np.nan

    monkeypatch.setattr(execution, "_compiled", {})
    monkeypatch.setattr(Packed, "rows", to_the_end_of_all)
    tensors, cu = packed((30, 40), (70, 100), 1, 1, 64, edit=edit)
    o, _, _ = run_jagged(tensors, jagged(*cu), check="off")
    assert o[:30].isnan().all()


def test_shared_queries():
    """Broadcast Q: a block of queries for all sequences; O has rows for each."""
    keys = (40, 0, 130)
    (_, k, v), (_, cu_k) = packed((3,), keys, 1, 1, 64)
    q = quantize(values(1, 131, 1, 64, 1)[0], axes=2, cu_seqlens=np.array([0, 131]))
    o, lse, _ = run_jagged([q, k, v], Jagged(None, torch.from_numpy(cu_k), 131, int(cu_k[-1]), exact=True))
    copies = quantize(np.tile(q.dequantize(), (3, 1, 1)), axes=2, cu_seqlens=cumulative((131,) * 3))
    expected_o, expected_lse = attention_mxfp8(
        copies, k, v, softmax_scale=SCALE, cu_seqlens_q=cumulative((131,) * 3), cu_seqlens_k=cu_k
    )
    assert_same_bits(lse, torch.from_numpy(expected_lse))
    assert_same_bits(o, torch.from_numpy(expected_o).to(o.dtype))


def test_nothing_outside_of_a_sequence_is_written():
    """The work of one sequence alone, of three: what belongs to the others stays as it was."""
    tensors, cu = packed((30, 40, 20), (20, 50, 30), 1, 1, 64)
    sequences = jagged(*cu, exact=True)
    table = sequences.work("q", 256, causal=False, longest_first=False)
    table[[1, 3]] = 0
    object.__setattr__(sequences, "work", lambda side, tile, **_: table)
    o, lse, _ = run_jagged(tensors, sequences)
    for untouched in (o.flatten(1).T.view(torch.int16) == FILLING & 0x7FFF, lse.view(torch.int32) == FILLING):
        assert untouched[:, :30].all() and untouched[:, 70:].all() and not untouched[:, 30:70].any()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_1_beside_16384(causal):
    """Attention on itself, and on the other side: 27 or 55 million warp-instructions."""
    check(*packed((16384, 1, 1), (16384, 1, 16384), 1, 1, 64), causal=causal, check="off", wait_ld="dependency")


COLUMN_OF = {name: i for i, name in enumerate(COLUMNS)}


@pytest.mark.slow
@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "o_tile"])  # which no forward reads
def test_a_mutant_of_the_work_table_would_show(column):
    """Every number, off by one, makes a wrong result or an error."""
    tensors, cu = packed((20, 300), (20, 140), 1, 1, 64)
    sequences = jagged(*cu, exact=True)
    table = sequences.work("q", 256, causal=False)
    table[1:][table[1:, 0] == 1, COLUMN_OF[column]] += -1 if column in ("tile", "q_tile", "k_tile") else 1
    expected = attention_mxfp8(*tensors, softmax_scale=SCALE, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1])
    object.__setattr__(sequences, "work", lambda side, tile, **_: table)
    try:
        o, lse, _ = run_jagged(tensors, sequences, out_dtype=torch.float32, check="off")
    except emulator.EmulationError:
        return
    assert not (torch.equal(o, torch.from_numpy(expected[0])) and torch.equal(lse, torch.from_numpy(expected[1])))


def test_4096_sequences_of_which_few_have_tokens():
    queries, keys = np.zeros(4096, int), np.zeros(4096, int)
    queries[[0, 7, 4000, 4095]], keys[[0, 7, 8, 4095]] = (1, 2, 1, 3), (2, 1, 3, 1)
    check(*packed(queries, keys, 1, 1, 64))


def test_the_work_table_row_by_row():
    cu = cumulative((0, 300, 0, 5)), cumulative((9, 129, 4, 0))
    table = jagged(*cu).work("q", 256, causal=False)
    assert (
        table.dtype == torch.int32 and table.shape == (1 + tile_bound(305, 4, 256), len(COLUMNS)) and table[0, 0] == 3
    )
    assert table[1:].tolist() == [
        [0, 300, 129, 0, 0, 9, 1, 0, 0],
        [1, 300, 129, 0, 0, 9, 1, 0, 0],
        [0, 5, 0, 300, 3, 142, 4, 300, 3],
        [0] * 9,
        [0] * 9,
    ]
    assert jagged(*cu, exact=True).work("q", 256, causal=False).tolist() == table[:4].tolist()


@pytest.mark.parametrize("side", ["q", "k"])
@pytest.mark.parametrize("causal", [False, True])
def test_long_work_comes_first(side, causal):
    rng = np.random.default_rng(0)
    lengths = [rng.integers(0, 1000, 50) for _ in range(2)]
    table = jagged(*map(cumulative, lengths)).work(side, 128, causal=causal).numpy()[1:]
    rows = table[table[:, 1 if side == "q" else 2] > 0]
    assert len(rows) == sum(-(-lengths[side == "k"] // 128))
    tiles = []
    for tile, n_q, n_k, *_ in rows:
        i, j = np.arange(n_q)[:, None], np.arange(n_k)[None, :]
        seen = (j <= i + n_k - n_q) if causal else np.ones((n_q, n_k), bool)
        own = seen[128 * tile :][:128] if side == "q" else seen[:, 128 * tile :][:, :128].T
        met = np.flatnonzero(own.any(0)) // 128
        tiles.append(len(set(met.tolist())))
    assert tiles == sorted(tiles, reverse=True)


@pytest.mark.parametrize(("tokens", "batch"), [(0, 1), (1, 1), (5, 3), (129, 1), (130, 2), (260, 3)])
def test_no_batch_has_more_tiles_than_the_bound(tokens, batch):
    """And some batch has as many, if there are enough tokens for one in every sequence."""

    def most(tokens, batch):
        if batch == 1:
            return -(-tokens // 128)
        return max(-(-n // 128) + most(tokens - n, batch - 1) for n in range(tokens + 1))

    assert most(tokens, batch) <= tile_bound(tokens, batch)
    assert most(tokens, batch) == tile_bound(tokens, batch) or tokens < batch
