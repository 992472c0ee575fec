"""Ways to P, their SASS and cycles, and the training runs: what ships is what is computed, and findings hold."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mxfp8fa.cli.exponential import accuracy_table, sass_table
from mxfp8fa.numerics.inputs import synthetic_llm
from mxfp8fa.studies import exponential, step_costs
from mxfp8fa.studies.attention import Case
from mxfp8fa.studies.training import Run, compare, seed_spread, shipped_runs


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_polynomials_alternate(degree):
    """The best approximation errs equally much at degree + 2 places, with alternating signs (Chebyshev)."""
    f = np.linspace(0, 1, 5001)
    error = np.polynomial.polynomial.polyval(f, exponential.coefficients(degree)) / np.exp2(f) - 1
    pieces = np.split(error, np.flatnonzero(np.diff(np.sign(error))) + 1)
    extrema = [np.abs(piece).max() for piece in pieces]
    assert len(extrema) == degree + 2
    assert max(extrema) < 1.05 * min(extrema) + 2e-7  # coefficients are float32


def test_two_terms_more_than_a_line_are_not_needed():
    found, exact = exponential.polynomial_degrees((1, 2), seqlen=256)
    assert exact.codes_changed == exact.largest_error == 0
    assert exact.p_only_db - found[0].p_only_db > 1 > 0.03 > exact.p_only_db - found[1].p_only_db


def test_shipped_accuracy_is_what_is_computed():
    """One case of those that ship, computed again."""
    (shipped,) = (a for a in exponential.shipped_groups()["by length"] if (a.case, a.way) == ("256 keys", "direct"))
    case = Case(synthetic_llm(seqlen_q=32, seqlen_k=256, num_heads_q=1, logit_std=2.0, seed=0))
    found = exponential.accuracy("direct", case, "256 keys")
    assert found.db == pytest.approx(shipped.db, abs=2e-3) and found.bias == pytest.approx(shipped.bias, abs=2e-6)
    assert "256 keys: direct" in accuracy_table("by length", [shipped])


def test_findings_of_the_accuracy_table():
    alone = {(a.case, a.way): a for a in exponential.shipped_groups()["P alone"]}
    for std in (1, 2, 4, 8):
        exact, rounded, direct = (alone[f"logit std {std}", w] for w in ("exact", "exact, rounded sum", "direct"))
        assert exact.bias < -3e-4 and abs(rounded.bias) < 2e-4 and abs(direct.bias) < 2e-4
        assert exact.db["O"] < direct.db["O"] < rounded.db["O"]


def test_cycles_of_units_that_are_arithmetic():
    assert step_costs.tensor_cycles() == 1024
    assert [step_costs.shared_memory_cycles(pair=pair) for pair in (False, True)] == [1064, 680]
    low, high = step_costs.published_cycles()
    assert (round(low), round(high)) == (1377, 1730)


def test_findings_of_the_counts():
    loops = {each.name: each for each in step_costs.shipped_costs()}
    assert loops["direct"].per_score < 3.2 < loops["exact"].per_score < loops["cudnn"].per_score
    # 128 exponentials of a row, and the factor of the rescaling, 8 cycles each, for two warps of a scheduler.
    assert loops["exact"].step("MUFU").value == 2 * 8 * 129 and loops["direct"].step("MUFU").value == 2 * 8
    assert loops["direct"].opcodes["F2IP.U8.F32.NTZ"] == 64
    for each in loops.values():
        assert each.scores == 128 and sum(each.units.values()) == sum(each.opcodes.values())
        assert all(p.low <= p.value <= p.high for p in each.pipes.values())
    assert "direct" in sass_table(list(loops.values()))
    assert step_costs.from_json(step_costs.as_json(list(loops.values()))) == tuple(loops.values())


@pytest.mark.slow
def test_shipped_counts_are_those_of_the_kernel():
    """One way compiled again."""
    pytest.importorskip("cutlass.cute")
    from mxfp8fa.cli.exponential_kernels import OURS, forward_loop
    from mxfp8fa.timing.binary import ToolError

    (shipped,) = (each for each in step_costs.shipped_costs() if each.name == "direct")
    try:
        found = forward_loop("direct", OURS["direct"])
    except ToolError as error:
        pytest.skip(str(error))
    assert found.units == shipped.units


def test_the_runs_that_ship_are_the_experiment():
    """Three seeds of every attention, at least 3,000 steps each, one device and one corpus."""
    runs = shipped_runs()
    for attention in ("bf16", "exact", "rounded", "direct"):
        mine = [run for run in runs if run.attention == attention]
        assert {0, 1, 2} <= {run.seed for run in mine} and all(run.steps[-1] >= 3000 for run in mine)
    origins = {json.dumps(run.origin | {"seconds": 0}, sort_keys=True) for run in runs}
    assert len(origins) == 1 and runs[0].origin["device"] == "NVIDIA H200"
    assert all(abs(each.mean) < seed_spread(runs) for each in compare(runs))


def test_comparisons_pair_seeds():
    run = shipped_runs()[0]

    def made(attention, seed, final):
        return Run(attention, seed, run.steps, np.append(run.validation[:-1], final), 2 * final, run.origin)

    runs = [made("bf16", 0, 1.0), made("bf16", 1, 1.2), made("direct", 1, 1.3), made("direct", 0, 1.0), made("exact", 5, 9.0)]
    (only,) = compare(runs)
    assert only.attention == "direct" and only.mean == pytest.approx(0.05) == pytest.approx(only.training.mean() / 2)
    assert only.standard_error == pytest.approx(0.05) and np.isnan(replace(only, differences=np.ones(1)).standard_error)
