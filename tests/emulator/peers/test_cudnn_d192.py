"""cuDNN's MXFP8 forward with d = 192/128 stores its last P1 by time: a finding about the kernel, held as it is known.

P1 of key tile i is stored (by softmax warpgroup 1) over the columns of S0, once warpgroup 0 has read S0 of tile i + 1. That
also orders it after P1 V of tile i - 1: S0 of tile i + 1 is issued behind that product, and one tcgen05.commit covers both. The
last tile has no S0 behind it. There warpgroup 0 hands out the token itself, at the end of its loop ("one final S0 token for
the last P1"), having seen S0 and, through warpgroup 1, S1 of the last tile: both are issued in front of P1 V of the last tile
but one, which may still read the P1 that is overwritten. For the same reason nothing keeps bmm2_ready of the last P1 from
completing before the mma warp has seen the one before.

With a wait for bmm2_done[1], which tells of that product, it is silent, and right under every schedule.
"""

from pathlib import Path

import numpy as np
import pytest
import test_cudnn_mxfp8
from peer_check import as_numpy, compare
from test_cudnn_mxfp8 import Case, Tensors, load_kernel

from mxfp8fa import emulator
from mxfp8fa.emulator.machine.asynchronous import AsyncEngine

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

FILE = "prefill_d192_d128_mxfp8"
TWO_TILES = Case("d192-128-1cta", 256, 256, d=192, dv=128, file=FILE)
FOUR_TILES = Case("d192-128-four-tiles", 256, 512, d=192, dv=128, file=FILE)
PAIR = Case("d192-128-2cta", 512, 256, d=192, dv=128, ctas=2, file=FILE, sm_count=2)
P1_COLUMNS = range(96, 128)
TOKEN = """        # This balances stage1's seed plus one cross-store wait per KV.
        if bounds.right > bounds.left:
            if sub_tile_id == 0:
"""
WAIT = """                if bounds.right - bounds.left > cutlass.Int32(1):
                    bars.mb_bmm2_done[1].wait((bounds.right - bounds.left) & cutlass.Int32(1))
"""


@pytest.fixture
def tensor_core_last(monkeypatch):
    """Called: from now on the tensor core is the slowest of the asynchronous agents, under "lazy"."""

    def complete_one(engine, *, at_random):
        queues = list(engine._queues)
        others = [key for key in queues if key[0] != "tensor"]
        engine._complete((others or queues)[0])

    return lambda: monkeypatch.setattr(AsyncEngine, "complete_one", complete_one)


def launch(function, case, schedule, seed=0):
    """Findings and results."""
    tensors = Tensors.of(case)
    with emulator.active(
        schedule=schedule, seed=seed, check="races", allow=tensors.all, sm_count=case.sm_count
    ) as report:
        tensors.launch(function, case)
    return report.races, {name: as_numpy(value) for name, value in tensors.results.items()}


def is_known(finding):
    """P1 stored over the one that a product reads, or the mma warp's wait for P1."""
    sides = [side[1].text for side in (finding.first, finding.second) if side]
    if finding.kind == "barrier":
        return "can miss a whole phase" in finding.what and sides[0].startswith("mbarrier.try_wait")
    products = [text for text in sides if text.startswith("tcgen05.mma")]
    stores = [text for text in sides if text.startswith("tcgen05.st")]
    return finding.kind == "race" and len(products) == len(stores) == 1 and column(finding) in P1_COLUMNS


def column(finding):
    """Of tensor memory."""
    return int(finding.where.split("column ")[1].split()[0])


@pytest.mark.parametrize("case", [TWO_TILES, FOUR_TILES, PAIR], ids=lambda case: case.name)
def test_the_last_p1_may_be_stored_over_one_that_is_still_read(cudnn, tensor_core_last, case):
    """As shipped: those reports and no others; right while the product is faster than the softmax, wrong where it is not."""
    function, expected = load_kernel(cudnn, case).compile_prepared(has_amax=True), case.expected()
    for schedule in ("eager", "random"):
        races, results = launch(function, case, schedule)
        assert sorted(finding.kind for finding in races) == ["barrier", "race", "race"]
        assert [str(finding) for finding in races if not is_known(finding)] == []
        for name in results:
            compare(name, results[name], expected[name])
    tensor_core_last()
    races, results = launch(function, case, "lazy")
    assert [str(finding) for finding in races if not is_known(finding)] == []
    wrong = np.abs(results["O"] - expected["O"].reference) > expected["O"].bound
    of_p1 = np.arange(case.sq) // 128 % 2 == 1
    assert not wrong[:, ~of_p1].any()
    assert wrong[:, of_p1].any()


@pytest.mark.parametrize("case", [TWO_TILES, FOUR_TILES], ids=lambda case: case.name)
def test_with_a_wait_for_that_product_it_is_right_and_silent(cudnn, monkeypatch, tmp_path, tensor_core_last, case):
    """The same source with two lines more."""
    source = (Path(cudnn.__file__).parent / test_cudnn_mxfp8.TEMPLATES / f"{FILE}.py").read_text()
    assert source.count(TOKEN) == 1
    (tmp_path / f"{FILE}.py").write_text(source.replace(TOKEN, TOKEN + WAIT))
    monkeypatch.setattr(test_cudnn_mxfp8, "TEMPLATES", tmp_path)
    function = load_kernel(cudnn, case, again="wait").compile_prepared(has_amax=True)
    expected = case.expected()

    def holds(schedule, seed=0):
        races, results = launch(function, case, schedule, seed)
        assert [str(finding) for finding in races] == []
        for name in results:
            compare(name, results[name], expected[name])

    for schedule, seed in ("eager", 0), ("lazy", 0), ("random", 0), ("random", 1):
        holds(schedule, seed)
    tensor_core_last()
    holds("lazy")
