"""The benchmark's claims: no slower than torchao's eager RCEIL, little memory, right on the edge blocks."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peers]
BENCH = Path(__file__).parents[2] / "bench" / "bench_quantize.py"


@pytest.fixture(scope="module")
def bench():
    pytest.importorskip("torchao")
    spec = importlib.util.spec_from_file_location("bench_quantize", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_edge_blocks(bench):
    assert bench.wrong_edge_blocks(bench.ours) == []
    wrong = bench.wrong_edge_blocks(bench.torchao_rceil(1))
    assert {"2^-120", "2^-133", "one inf", "next above 1.75"} <= set(wrong)


@pytest.mark.slow
def test_no_slower_than_torchao(bench):
    best = {name: min(times) for name, times in bench.times_ms(9, bench.data()).items()}
    assert best[bench.OURS] <= min(best[bench.ONE_THREAD], best[bench.TWO_THREADS])
