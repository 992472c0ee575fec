"""Kernels that nobody here wrote: what the checker has to say about them under eager, lazy and ten random schedules.

Nothing, but for what is allowed with a reason (`emulator.check.allowed`) and what `TRUE_OF` names: findings that are true of
the kernel. The cases are those of the other tests in this folder; here only the findings count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import test_cudnn_mxfp8
import test_cudnn_mxfp8_backward
import test_flash_attention_backward
import test_quack_gemm
from peer_check import ALL

from mxfp8fa import emulator

BENCH = Path(__file__).resolve().parents[3] / "bench"
pytestmark = pytest.mark.slow

# kind, instruction: what is wrong with the kernel.
TRUE_OF = {
    "flash_bwd_sm100": [
        (
            "outstanding", "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint",
            "epilogue_dK_or_dV_tma commits and waits for a store only if another stage of the epilogue follows: with one "
            "stage the stores of dK and dV are never waited for, and the CTA may exit while TMA reads its shared memory",
        ),
        (
            "outstanding", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32",
            "the same for the sums of dK and dV over the heads of a group: the last stage is not waited for",
        ),
    ],
}  # fmt: skip


def known(finding):
    """Whether a finding is one of TRUE_OF."""
    site = (finding.first or finding.second)[1]
    return any(
        finding.kind == kind and instruction in site.text
        for kernel, entries in TRUE_OF.items()
        for kind, instruction, _ in entries
        if kernel in site.kernel
    )


@pytest.fixture
def silent():
    """Stands in for the fixture `peer`: runs a peer under every schedule with the checker."""

    def run(kernel, shape, run, expected, *, schedules, **options):
        for schedule in schedules:
            name, _, seed = schedule.partition(" ")
            with emulator.active(schedule=name, seed=int(seed or 0), check="races", **options) as report:
                run()
            assert [str(f) for f in report.races if not known(f)] == [], f"{kernel}, {schedule}"
        return {"launches": [{"cluster": launch.cluster} for launch in report.launches]}

    return run


def of(module_cases, *names):
    """Some cases of another test, by name."""
    chosen = [case for case in module_cases if case.name in names]
    assert len(chosen) == len(names)
    return [pytest.param(case, id=case.name) for case in chosen]


@pytest.mark.parametrize("case", of(test_cudnn_mxfp8.CASES, "1cta", "1cta-causal", "2cta", "d64-1cta"))
def test_forward_of_cudnn(cudnn, silent, case):
    test_cudnn_mxfp8.test_mxfp8_forward(cudnn, silent, case, ALL)


@pytest.mark.parametrize("case", of(test_cudnn_mxfp8_backward.CASES, "d256"))
def test_backward_of_cudnn(cudnn, silent, case):
    test_cudnn_mxfp8_backward.test_mxfp8_backward(cudnn, silent, case, ALL)


BACKWARD = of(test_flash_attention_backward.CASES, "1cta", "2cta", "d64", "gqa", "deterministic")


@pytest.mark.parametrize("case", BACKWARD)
def test_backward_of_flash_attention(flash_attn, silent, monkeypatch, case):
    from flash_attn.cute import utils

    def two_cta(on):
        monkeypatch.setattr(utils, "_fa_disable_2cta_enabled", not on)

    test_flash_attention_backward.test_backward(flash_attn, silent, two_cta, case, ALL)


@pytest.mark.parametrize("case", of(test_quack_gemm.DENSE, "bf16", "bf16-many-tiles", "fp8", "split-k"))
def test_dense_of_quack(quack, silent, case):
    test_quack_gemm.test_dense_gemm(quack, silent, case, ALL)


@pytest.mark.parametrize("case", test_quack_gemm.BLOCK_SCALED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_block_scaled_of_quack(quack, silent, case):
    test_quack_gemm.test_block_scaled_gemm(quack, silent, case, ALL)


@pytest.fixture(scope="module")
def targets(flash_attn):
    sys.path.insert(0, str(BENCH))
    import targets

    yield targets
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("head_dim", [128, 64])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
def test_forward_of_flash_attention(targets, silent, head_dim, causal):
    """Two heads of 256 x 384, one after another in one persistent CTA."""
    target = targets.flash_attention_4(256, 384, 2, head_dim, causal=causal)
    for schedule in ALL:
        name, _, seed = schedule.partition(" ")
        options = {"schedule": name, "seed": int(seed or 0), "sm_count": 1, "names": target.names}
        report = emulator.run(target.compiled, *target.args, check="races", **options)
        assert [str(finding) for finding in report.races] == [], schedule
