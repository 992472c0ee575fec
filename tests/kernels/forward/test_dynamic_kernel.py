"""The forward kernel with a scale of its own for every block of P equals its model bit for bit."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

import numpy as np  # noqa: E402
from forward_harness import check, model, operands, run  # noqa: E402

from mxfp8fa.emulator.mutate import SCHEDULES as SCHEDULES_OF_MUTANTS  # noqa: E402
from mxfp8fa.emulator.mutate import record, run_study  # noqa: E402
from mxfp8fa.emulator.remains import MemoryAtExit  # noqa: E402
from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.kernels.forward import forward_arguments  # noqa: E402
from mxfp8fa.kernels.forward.names import names  # noqa: E402
from mxfp8fa.kernels.forward.plan import TMEM  # noqa: E402
from mxfp8fa.numerics import AttentionOptions, MXTensor  # noqa: E402

PLAIN = AttentionOptions(p_scale="dynamic", rescale_threshold=8.0)
EXACT_SUM = AttentionOptions(p_scale="dynamic", rescale_threshold=8.0, accumulate="blackwell")
MIXED = AttentionOptions(
    p_scale="dynamic", exp="direct", row_sum="rounded", direct_share=0.5, direct_codes="subnormal", exp2=0.25
)
SCHEDULES = {"eager": {}, "lazy": {"schedule": "lazy"}, "random": {"schedule": "random", "seed": 5}}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_schedule(schedule):
    """Two heads on one CTA, two tiles of keys: the one atom of a Q tile is written four times."""
    q, k, v = operands(1, 130, 200, 2, 1, 64)
    check(q, k, v, options=PLAIN, causal=True, ctas=1, schedule=schedule | {"assume_mma_cp_order": False})


def test_with_the_arithmetic_of_the_tensor_core():
    check(*operands(1, 33, 140, 1, 1, 64), options=EXACT_SUM, causal=True)


def test_a_head_dim_of_128():
    check(*operands(1, 20, 150, 1, 1, 128), options=PLAIN, causal=True, out_dtype=torch.bfloat16)


def test_scales_of_the_last_tile():
    """They are still in tensor memory when the CTA ends: the word of row r in column r // 32, in every quarter."""
    q, k, v = operands(1, 256, 180, 1, 1, 64)
    scales, remains = {}, MemoryAtExit()

    def keep(tile):
        scales[tile.q_tile] = tile.p_scale_e8m0

    run(q, k, v, options=PLAIN, causal=True, trace=remains)
    model(q, k, v, options=PLAIN, causal=True, on_tile=keep)
    (tmem,) = remains.tmem.values()
    for i in range(2):
        first = TMEM[f"SFP{i}"].start
        words = np.ascontiguousarray(tmem.values[:, first : first + 4]).view(np.uint32)  # (lanes, columns)
        rows = scales[i].view(np.uint32).reshape(4, 32).T  # (row % 32, row // 32)
        np.testing.assert_array_equal(words.reshape(4, 32, 4), np.broadcast_to(rows, (4, 32, 4)))
        assert len(np.unique(scales[i])) > 10


def with_scales(x, **scales):
    """An MXTensor with the scale codes of some tokens replaced; "t5=200" is token 5."""
    changed = x.scale_e8m0.copy()
    for token, code in scales.items():
        changed[0, int(token[1:]), 0] = code
    return MXTensor(x.codes, changed, x.fmt, x.axes)


@pytest.mark.parametrize("options", [PLAIN, MIXED], ids=["exact", "half direct, a quarter by polynomial"])
def test_special_scores(options):
    """NaN, infinite and huge scores, rows without keys, blocks without any; sums of rounded P under different scales."""
    q, k, v = operands(1, 150, 140, 1, 1, 64)
    q = with_scales(q, t13=255, t40=155, t41=250, t149=99)
    k = with_scales(k, t7=250, t100=255)
    o, _, _ = check(q, k, v, options=options, causal=True)
    rows = o[0, :, 0].isnan().any(-1)
    assert rows[110:].all() and rows[13] and not rows.all() and (o[0, :10] == 0).all()


@pytest.mark.slow
def test_synchronisation_mutants_are_caught():
    """Among them the fence between a word's store and the copy that reads it, which only dynamic scales have."""
    tensors = map(MXOperand.from_mx_tensor, operands(1, 130, 200, 4, 1, 64))
    compiled, arguments, _ = forward_arguments(*tensors, softmax_scale=0.1, ctas=1, options=PLAIN)
    study = run_study(
        record(compiled, *arguments, sm_count=1), schedules=SCHEDULES_OF_MUTANTS[:4], names=names(64),
        wait_ld="required",
    )  # fmt: skip
    assert study.score == 1 and study.count("caught") > 120
    own = [v for v in study.verdicts if "dynamic.py" in (v.mutant.site.source or "")]
    assert [v.outcome for v in own] == ["caught"]
