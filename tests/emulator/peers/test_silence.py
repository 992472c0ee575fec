"""Kernels that nobody here wrote: what the checker has to say about them under eager, lazy and ten random schedules.

Nothing, but for what is allowed with a reason (`emulator.check.allowed`) and what `TRUE_OF` names: findings that are true of
the kernel. The cases are those of the other tests in this folder; here only the findings count. Two forwards of cuDNN have
findings that need more words, and tests of their own: test_cudnn_d192.py and test_cudnn_d256.py.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import test_cudnn_mxfp8
import test_cudnn_mxfp8_backward
import test_flash_attention_backward
import test_flash_attention_forward
import test_quack_gemm
import test_quack_norms
import test_quack_rows
from peer_check import ALL, facts

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
def silent(request):
    """Stands in for the fixture `peer`: runs a peer under every schedule with the checker, and records a line of the table."""

    def run(kernel, shape, run, expected, *, schedules, **options):
        start, named, allowed = time.process_time(), set(), set()
        for schedule in schedules:
            name, _, seed = schedule.partition(" ")
            with emulator.active(schedule=name, seed=int(seed or 0), check="races", **options) as report:
                run()
            assert [str(f) for f in report.races if not known(f)] == [], f"{kernel}, {schedule}"
            named |= {place(f) for f in report.races}
            allowed |= {place(f) for launch in report.launches for f in launch.allowed}
        line = {"kernel": kernel, "shape": shape, "schedules": list(schedules), "seconds": time.process_time() - start}
        line |= {"true_of_it": len(named), "allowed": len(allowed), "warp_instructions": report.warp_instructions}
        request.node.user_properties.append(("silence", line))
        return {"launches": [facts(launch) for launch in report.launches]}

    return run


def place(finding):
    """What makes two findings the same."""
    return (finding.kind, *(side and side[1].ptx_line for side in (finding.first, finding.second)))


def of(module_cases, *names):
    """Some cases of another test, by name."""
    chosen = [case for case in module_cases if case.name in names]
    assert len(chosen) == len(names)
    return [pytest.param(case, id=case.name) for case in chosen]


CUDNN = ("1cta", "1cta-causal", "1cta-odd-gqa", "2cta", "d64-1cta", "d256-window")


@pytest.mark.parametrize("case", of(test_cudnn_mxfp8.CASES, *CUDNN))
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


@pytest.fixture
def switches(flash_attn, monkeypatch):
    """As in test_flash_attention_forward."""
    from flash_attn.cute import utils

    def set_switches(*, two_cta, clc=False):
        monkeypatch.setattr(utils, "_fa_disable_2cta_enabled", not two_cta)
        monkeypatch.setattr(utils, "_fa_clc_enabled", clc)

    return set_switches


FORWARD = ("gqa-causal-odd", "2cta", "fp8", "window", "split-kv", "clc-causal")


@pytest.mark.parametrize("case", of(test_flash_attention_forward.DENSE, *FORWARD))
def test_other_forwards_of_flash_attention(flash_attn, silent, switches, case):
    test_flash_attention_forward.test_dense(flash_attn, silent, switches, case, ALL)


@pytest.mark.parametrize("case", of(test_flash_attention_forward.RAGGED, "varlen-zero-lengths"))
def test_ragged_forward_of_flash_attention(flash_attn, silent, switches, case):
    test_flash_attention_forward.test_varlen(flash_attn, silent, switches, case, ALL)


def test_rows_of_quack(quack, silent):
    """A row per warp, per CTA and, for 32,768 columns, per cluster."""
    for case in test_quack_rows.SOFTMAX[1], test_quack_rows.SOFTMAX[3]:
        test_quack_rows.test_softmax(quack, silent, case, ALL)
    test_quack_rows.test_cross_entropy(quack, silent, test_quack_rows.CROSS_ENTROPY[2], ALL)
    test_quack_rows.test_topk(quack, silent, test_quack_rows.TOPK[1], ALL)


def test_norms_of_quack(quack, silent):
    test_quack_norms.test_rmsnorm_forward(quack, silent, test_quack_norms.FORWARD[0], ALL)
    test_quack_norms.test_rmsnorm_backward(quack, silent, test_quack_norms.BACKWARD[0], ALL)
    test_quack_norms.test_layernorm(quack, silent, test_quack_norms.LAYERNORM[2], ALL)


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

    def run():
        target.compiled(*target.args)

    mask = "causal" if causal else "dense"
    silent(f"flash-attn-4 forward, d{head_dim} {mask}", "Sq 256 Sk 384 H 2", run, None, schedules=ALL, sm_count=1)
