"""Kernels that nobody here wrote, and that are right: the checker must have nothing to say, whatever the schedule."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from mxfp8fa import emulator

BENCH = Path(__file__).resolve().parents[3] / "bench"
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(10))]


@pytest.fixture(scope="module")
def targets():
    for needed in ("torch", "llvmlite", "cutlass.cute"):
        pytest.importorskip(needed)
    if importlib.util.find_spec("flash_attn") is None:
        pytest.skip("needs flash-attn-4")
    sys.path.insert(0, str(BENCH))
    import targets

    yield targets
    sys.path.remove(str(BENCH))


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("head_dim", [128, 64])
@pytest.mark.parametrize("causal", [False, True], ids=["dense", "causal"])
def test_flash_attention_4(targets, head_dim, causal):
    """Two heads of 256 x 384 in one persistent CTA."""
    target = targets.flash_attention_4(256, 384, 2, head_dim, causal=causal)
    for schedule, seed in SCHEDULES:
        report = emulator.run(
            target.compiled, *target.args, check="races", schedule=schedule, seed=seed, sm_count=1, names=target.names
        )
        assert [str(finding) for finding in report.races] == [], f"{schedule} {seed}"
