"""Packed sequences in the backward kernels: every sequence as if it were alone, whatever lies beside it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from backward_harness import SQUARE, assert_same, uneven  # noqa: E402

from mxfp8fa.emulator import EmulationError  # noqa: E402
from mxfp8fa.kernels import MXOperand, execution  # noqa: E402
from mxfp8fa.kernels.backward.call import backward, make_call  # noqa: E402
from mxfp8fa.kernels.execution import emulation  # noqa: E402
from mxfp8fa.kernels.forward.sequences import Packed  # noqa: E402
from mxfp8fa.kernels.jagged import COLUMNS, Jagged  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, attention_mxfp8, quantize  # noqa: E402
from mxfp8fa.numerics.backward import attention_mxfp8_backward  # noqa: E402
from mxfp8fa.numerics.backward_inputs import SecondPayloads  # noqa: E402

SCALE = 0.07
# Empty ones first, last and in a row, on either side and on both; 1, 127, 128, 129 tokens on both sides.
QUERIES = (0, 0, 5, 129, 1, 127, 128, 3, 0, 0)
KEYS = (0, 7, 0, 130, 127, 1, 129, 128, 20, 0)
SCHEDULES = {"eager": {}, "lazy": {"schedule": "lazy"}, "seed 1": {"schedule": "random", "seed": 1}}
SCHEDULES |= {f"seed {seed}": {"schedule": "random", "seed": seed} for seed in (2, 3)}
slow = pytest.mark.slow


def cumulative(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def data(queries, keys, heads_q=1, heads_kv=1, head_dim=64):
    """q, k, v and do by name, (T, H, D), and both cu_seqlens."""
    cu = cumulative(queries), cumulative(keys)
    of = (("q", cu[0], heads_q), ("k", cu[1], heads_kv), ("v", cu[1], heads_kv), ("do", cu[0], heads_q))
    return {n: uneven((1, int(c[-1]), h, head_dim), seed)[0] for seed, (n, c, h) in enumerate(of)}, cu


def model(x, cu, *, causal=False, options=SQUARE, on_tile=None):
    """Operands for `backward`, and what NumPy makes of them."""
    square = options.resolved_qk_blocks(causal) == "square"
    axes = (0, 2) if square else 2
    q, k = (quantize(x[n], axes=axes, tail="partial", cu_seqlens=c) for n, c in zip("qk", cu, strict=True))
    v, v_second = (quantize(x["v"], axes=axis, tail="partial", cu_seqlens=cu[1]) for axis in (0, 2))
    second = {
        n: None if square else quantize(x[n], axes=(0, 2), tail="partial", cu_seqlens=c)
        for n, c in zip("qk", cu, strict=True)
    }
    call = {"softmax_scale": SCALE, "causal": causal, "options": options}
    offsets = {"cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1]}
    o, lse = attention_mxfp8(q, k, v, **call, **offsets)
    expected = attention_mxfp8_backward(
        q,
        k,
        v,
        x["do"],
        o,
        lse,
        **call,
        **offsets,
        second=SecondPayloads(q=second["q"], k=second["k"], v=v_second),
        on_tile=on_tile,
    )
    to = MXOperand.from_mx_tensor
    operands = {"q": to(q), "k": to(k), "v": to(v_second), "o": torch.from_numpy(o), "lse": torch.from_numpy(lse)}
    operands |= {f"{n}_second": to(s) for n, s in second.items() if s is not None}
    return operands | {"do": torch.from_numpy(x["do"]), **call}, expected


def run(operands, sequences, **emulate):
    """The gradients, with everything switched on that can object."""
    with emulation(**{"check": "races", "wait_ld": "required"} | emulate) as report:
        gradients = backward(**operands, sequences=sequences)
    assert report.races == []
    return gradients


def jagged(cu, exact=True):
    cu_q, cu_k = map(torch.from_numpy, cu)
    return Jagged(cu_q, cu_k, int(cu_q[-1]), int(cu_k[-1]), exact=exact)


def assert_equal(gradients, expected):
    for name in ("dV", "dK", "dQ"):  # dQ: with eager copies tiles of keys arrive in order
        assert_same(getattr(gradients, name), getattr(expected, name))


@pytest.mark.parametrize("schedule", [n if n in ("eager", "lazy") else pytest.param(n, marks=slow) for n in SCHEDULES])
def test_all_hard_lengths_in_one_batch(schedule):
    """Keys without queries get zeros, and so do queries without keys; memory by the bound.

    At most two tiles of keys meet a query here: dQ is the same in whatever order they arrive.
    """
    x, cu = data(QUERIES, KEYS)
    operands, expected = model(x, cu)
    gradients = run(operands, jagged(cu, exact=False), **SCHEDULES[schedule])
    assert (gradients.dK[:7] == 0).all() and (gradients.dV[-20:] == 0).all() and (gradients.dQ[:5] == 0).all()
    assert_equal(gradients, expected)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["eager", "lazy", "seed 1"])
def test_the_dense_kernel_gives_the_same_sequence_by_sequence(schedule):
    """dK and dV bit for bit; dQ too, of one or two tiles of keys, and within a bound of three: see the test of shared queries."""
    queries, keys = (130, 40, 33), (90, 129, 300)
    x, cu = data(queries, keys, 2, 1)
    operands, _ = model(x, cu)
    tiles = []
    gradients = run(operands, jagged(cu), **SCHEDULES[schedule])
    for i in range(3):
        own = {"q": slice(cu[0][i], cu[0][i + 1]), "k": slice(cu[1][i], cu[1][i + 1])}
        own |= {"do": own["q"], "v": own["k"]}
        alone, _ = model(
            {name: array[own[name]] for name, array in x.items()},
            tuple(np.array([0, n], np.int32) for n in (queries[i], keys[i])),
            on_tile=lambda t: tiles.append(np.abs(t.dq).max()),
        )
        dense = backward(**as_dense(alone))
        assert_same(gradients.dK[own["k"]], dense.dK[0])
        assert_same(gradients.dV[own["k"]], dense.dV[0])
        if keys[i] <= 256:
            assert_same(gradients.dQ[own["q"]], dense.dQ[0])
        else:
            bound = 2.0**-24 * 2 * 3 * float(SCALE) * 3 * max(tiles)
            assert (gradients.dQ[own["q"]] - dense.dQ[0]).abs().max() <= bound


def as_dense(operands):
    """One packed sequence as a batch of 1."""
    found = {}
    for name, x in operands.items():
        if isinstance(x, MXOperand):
            axes = tuple(axis + 1 for axis in x.axes)
            x = MXOperand(x.codes[None], {rows: s[None] for rows, s in x.scales.items()}, axes, x.fmt)
        found[name] = x[None] if isinstance(x, torch.Tensor) else x
    return found


def test_4096_sequences_of_which_few_have_tokens():
    queries, keys = np.zeros(4096, int), np.zeros(4096, int)
    queries[[0, 7, 4000, 4095]], keys[[0, 7, 8, 4095]] = (1, 2, 1, 3), (2, 1, 3, 1)
    x, cu = data(queries, keys)
    operands, expected = model(x, cu)
    assert_equal(run(operands, jagged(cu)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [{}, {"schedule": "random", "seed": 1}], ids=["eager", "seed 1"])
def test_1_beside_16384(schedule):
    """On either side; 128 tiles of keys add up one row of dQ, in any order: n - 1 roundings apart at most, of each order."""
    x, cu = data((16384, 1, 130), (1, 16384, 1))
    tiles = []
    operands, expected = model(x, cu, on_tile=lambda t: tiles.append((t.q_tile, np.abs(t.dq).astype(np.float64))))
    gradients = run(operands, jagged(cu), check="off", wait_ld="dependency", **schedule)
    for name in ("dV", "dK"):
        assert_same(getattr(gradients, name), getattr(expected, name))
    several = slice(16384, 16385)
    assert_same(gradients.dQ[:16384], expected.dQ[:16384])
    assert_same(gradients.dQ[16385:], expected.dQ[16385:])
    magnitude = sum(tile[0] for _, tile in tiles[128:256])
    error = np.abs(gradients.dQ[several, 0].numpy() - expected.dQ[several, 0])
    assert (error <= 2 * 128 * 2.0**-24 * float(np.float32(SCALE)) * magnitude).all()


def test_nothing_outside_of_a_sequence_is_written():
    """The work of one sequence alone, of three: what belongs to the others stays as it was."""
    x, cu = data((30, 40, 20), (20, 50, 30))
    operands, expected = model(x, cu)
    sequences = jagged(cu)
    tables = {side: sequences.work(side, 128, causal=False, longest_first=False) for side in "qk"}
    for table in tables.values():
        table[[1, 3]] = 0
    object.__setattr__(sequences, "work", lambda side, tile, **_: tables[side])
    gradients, launches = make_call(**operands, sequences=sequences)
    for gradient in gradients:
        gradient.fill_(-77)
    for launch in launches:
        execution.execute(launch.function, *launch.arguments, device=torch.device("cpu"), constants=launch.constants)
    for name, own in (("dQ", slice(30, 70)), ("dK", slice(20, 70)), ("dV", slice(20, 70))):
        given = getattr(gradients, name)
        assert (given[: own.start] == -77).all() and (given[own.stop :] == -77).all()
        assert not (given[own] == -77).any()
    assert_same(gradients.dV[20:70], expected.dV[20:70])


def broken_rows(self, mX, tokens):
    """To the end of all sequences."""
    shift = [0, 0, 0]
    shift[tokens] = self.start
    from cutlass import cute

    return cute.domain_offset(tuple(shift), mX[None, None, None, cute.size(mX, mode=[tokens])])


MUTANTS = {
    "a map that ends with the tensor": ("rows", broken_rows),
    "tiles of the first sequence": ("tile", lambda self, mX, head, tile: mX[0, head, tile, None]),
    "rows of the first sequence": ("row", lambda self, i: (0 * i, i)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_addresses_would_show(monkeypatch, mutant):
    x, cu = data((130, 40), (70, 100))
    x["k"][70:], x["v"][70:], x["q"][130:], x["do"][130:] = np.nan, np.nan, np.nan, np.nan
    operands, expected = model(x, cu)
    monkeypatch.setattr(execution, "_compiled", {})
    assert_noticed(lambda: run(operands, jagged(cu), check="off"), expected, noticed=False)
    monkeypatch.setattr(execution, "_compiled", {})
    monkeypatch.setattr(Packed, *MUTANTS[mutant])
    assert_noticed(lambda: run(operands, jagged(cu), check="off"), expected)


@pytest.mark.slow
@pytest.mark.parametrize(("side", "column"), [(side, column) for side in "qk" for column in COLUMNS])
def test_a_mutant_of_the_work_table_would_show(side, column):
    """Every number that a kernel reads, off by one, makes a wrong result or an error."""
    unread = {("q", name) for name in ("seqlen_k", "k_start", "k_tile", "q_start", "q_tile", "o_tile")}
    x, cu = data((20, 140), (20, 140))
    operands, expected = model(x, cu)
    sequences = jagged(cu)
    off_by_one = sequences.work(side, 128, causal=False, longest_first=side == "k").clone()
    rows = off_by_one[1:]
    rows[rows[:, 0] == 1, COLUMNS.index(column)] += -1 if column in ("tile", "q_tile", "k_tile", "o_tile") else 1
    work = Jagged.work
    object.__setattr__(
        sequences, "work", lambda s, tile, **how: off_by_one if s == side else work(sequences, s, tile, **how)
    )
    assert_noticed(lambda: run(operands, sequences, check="off"), expected, noticed=(side, column) not in unread)


def assert_noticed(make, expected, noticed=True):
    """Wrong gradients, or an error of the emulator."""
    try:
        assert_equal(make(), expected)
    except (AssertionError, EmulationError):
        assert noticed
        return
    assert not noticed


def test_causal_grouped_heads_with_second_payloads():
    x, cu = data((140, 0, 3), (150, 30, 5), 2, 1)
    operands, expected = model(x, cu, causal=True, options=AttentionOptions(qk_blocks="1x32"))
    assert_equal(run(operands, jagged(cu)), expected)


def test_nan_beside_a_sequence_never_reaches_it():
    x, cu = data((30, 40, 20), (20, 50, 30))
    for name, (first, last) in {"q": (30, 70), "do": (30, 70), "k": (20, 70), "v": (20, 70)}.items():
        x[name][:first], x[name][last:] = np.nan, np.nan
    operands, expected = model(x, cu)
    gradients = run(operands, jagged(cu))
    assert_equal(gradients, expected)
    assert gradients.dQ[30:70].isfinite().all() and gradients.dK[20:70].isfinite().all()
    assert gradients.dQ[:30].isnan().all() and gradients.dV[70:].isnan().all()


@pytest.mark.parametrize("dq_accumulate", ["float32", "float16"])
def test_gradient_of_shared_queries_is_summed_in_fp32(dq_accumulate):
    """Three tiles of dQ are added: off by at most half a unit of the sum of magnitudes each, and one for the scale."""
    keys = (40, 0, 130)
    x, _ = data((70,), keys)
    x["do"] = np.random.default_rng(9).standard_normal((210, 1, 64)).astype(np.float32)
    tiles = []
    copies, offsets = x | {"q": np.tile(x["q"], (3, 1, 1))}, (cumulative((70,) * 3), cumulative(keys))
    operands, expected = model(copies, offsets, on_tile=lambda t: tiles.append(t.dq[:70].astype(np.float64)))
    shared = quantize(x["q"], axes=(0, 2), tail="partial", cu_seqlens=np.array([0, 70]))
    options = AttentionOptions(qk_blocks="square", dq_accumulate=dq_accumulate)
    operands |= {"q": MXOperand.from_mx_tensor(shared), "options": options}
    gradients = run(operands, Jagged(None, torch.from_numpy(offsets[1]), 70, 170, exact=True))
    for name in ("dV", "dK"):
        assert_same(getattr(gradients, name), getattr(expected, name))
    assert gradients.dQ.shape == (70, 1, 64) and gradients.dq_overflows is None and len(tiles) == 3
    scale = float(np.float32(SCALE))
    error = np.abs(gradients.dQ[:, 0].numpy() - scale * sum(tiles))
    assert (error <= 2.0**-24 * 1.01 * 3 * scale * sum(map(np.abs, tiles))).all()
