"""cuDNN's MXFP8 forward with d = 256 reuses stages of K and V by time: a finding about the kernel, held as it is known.

With one CTA and a dense or causal mask, its mma warp issues the products that read a stage and at once executes
`barrier.arrive 3..6, 64` (`_consumer_arrive_k_empty`, `_consumer_arrive_v_empty`); the load warp, having synchronised with
that, lets TMA fill the stage. tcgen05.mma and tcgen05.cp are asynchronous: that they are complete is told by tcgen05.commit
and its mbarrier only (PTX ISA, "tcgen05: Asynchronous operations"), and no wait of the load warp covers them. The same source
hands stages back by tcgen05.commit for other masks; in that form it is silent, and right under every schedule.
"""

import re

import numpy as np
import pytest
from peer_check import ALL, as_numpy, compare
from test_cudnn_mxfp8 import Case, Tensors, load_kernel

from mxfp8fa import emulator

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

FILE = "prefill_d256_mxfp8"
DENSE = Case("d256-1cta", 256, 256, hq=2, hkv=2, d=256, file=FILE)
CAUSAL = Case("d256-causal", 384, 384, d=256, template={"window_right": 0}, file=FILE)
READS, FILLS = r"^tcgen05\.(mma|cp)\.", r"^cp\.async\.bulk\.tensor\.\d+d\.shared::cta\.global"


def reads_and_fills(finding):
    """Whether a finding is a race between the tensor core, which reads a stage, and TMA, which fills it."""
    texts = [site.text for _, site in (finding.first, finding.second)]
    pair = all(any(re.search(pattern, text) for text in texts) for pattern in (READS, FILLS))
    return finding.kind == "race" and "shared memory" in finding.what and pair


def launch(function, case, schedule, seed=0):
    """Findings and results."""
    tensors = Tensors.of(case)
    with emulator.active(schedule=schedule, seed=seed, check="races", allow=tensors.all, sm_count=1) as report:
        tensors.launch(function, case)
    return report.races, {name: as_numpy(value) for name, value in tensors.results.items()}


@pytest.mark.parametrize("case", [DENSE, CAUSAL], ids=lambda case: case.name)
def test_stages_are_handed_back_before_they_are_read(cudnn, case):
    """As shipped: those races and no others; right while products are faster than copies, wrong where they are not."""
    function, expected = load_kernel(cudnn, case).compile_prepared(has_amax=True), case.expected()
    for schedule in ("eager", "lazy"):
        races, results = launch(function, case, schedule)
        assert races
        assert [str(race) for race in races if not reads_and_fills(race)] == []
        for name in results:
            compare(name, results[name], expected[name])
    races, results = launch(function, case, "random")
    assert [str(race) for race in races if not reads_and_fills(race)] == []
    assert np.abs(results["LSE"] - expected["LSE"].reference).max() > 1


def test_with_a_commit_it_is_right_and_silent(cudnn, peer):
    """The same kernel, causal, by the branch that its source takes for a window."""
    module = load_kernel(cudnn, CAUSAL, again="commit")
    assert module._E5_STYLE_KV_PIPELINE
    module._E5_STYLE_KV_PIPELINE = False
    function, tensors = module.compile_prepared(has_amax=True), Tensors.of(CAUSAL)

    def run():
        tensors.launch(function, CAUSAL)
        return tensors.results

    for schedule in ALL:
        name, _, seed = schedule.partition(" ")
        races, _ = launch(function, CAUSAL, name, int(seed or 0))
        assert [str(race) for race in races] == [], schedule
    shape = f"{CAUSAL.shape}, stages handed back by tcgen05.commit"
    options = {"sm_count": 1, "allow": tensors.all}
    peer("cuDNN MXFP8 forward, d256-causal", shape, run, CAUSAL.expected(), schedules=ALL, **options)
