"""What a trace records, and the pictures drawn from it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import mxfp8fa.emulator as em
from mxfp8fa.emulator.dump import TileDump
from tests.emulator.check.test_races import BARRIER, bulk, tensor
from tests.emulator.machine.kernels import launch


def traced(body, schedule="lazy", **names):
    trace = em.Trace(**names)
    launch(body, np.zeros(4096, np.uint32), np.arange(4096, dtype=np.uint32), block=64, schedule=schedule, trace=trace)
    return trace


def test_spans_of_warps_waits_and_agents():
    trace = traced(bulk(), roles={0: "load", 1: "softmax0"}, barriers={0x400: "full"})
    actors = {span.actor for span in trace.spans}
    assert actors == {"load", "softmax0", "TMA"}
    waits = [span for span in trace.spans if span.what.startswith("waits")]
    assert [span.what for span in waits if "full" in span.what]
    copy = next(span for span in trace.spans if span.actor == "TMA")
    assert copy.start < copy.end and copy.what == "cp.async.bulk"
    for actor in actors - {"TMA"}:  # a warp does one thing at a time
        mine = sorted((s.start, s.end) for s in trace.spans if s.actor == actor)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))


def test_barrier_graph_as_observed():
    trace = traced(BARRIER.format(arrive="mbarrier.arrive.shared.b64 _, [%r2];", parity=0), barriers={0x400: "ready"})
    assert trace.barrier_graph()["ready"] == (["warp 0"], ["warp 1"])


def test_tensor_accesses():
    trace = traced(tensor())
    assert {(a.actor, a.write) for a in trace.tensor_accesses} == {
        ("tcgen05.st", True), ("warp 0", False), ("warp 1", False)
    }  # fmt: skip
    assert {(a.first_column, a.last_column) for a in trace.tensor_accesses} == {(0, 0)}


def test_perfetto_file():
    events = json.loads(traced(tensor()).to_perfetto())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"} and all(e["dur"] >= 1 for e in events if e["ph"] == "X")


def test_the_checker_and_a_trace_watch_the_same_run():
    trace = em.Trace()
    out = np.zeros(64, np.uint32)
    report = launch(tensor(wait_st=""), out, block=64, check="races", trace=trace)
    assert report.races and trace.tensor_accesses


@pytest.mark.parametrize("name", ["fig_timeline", "fig_tensor_memory", "fig_barriers"])
def test_pictures(name):
    pytest.importorskip("matplotlib")
    from mxfp8fa.plots import pipeline

    body = (
        tensor()
        if name == "fig_tensor_memory"
        else BARRIER.format(arrive="mbarrier.arrive.shared.b64 _, [%r2];", parity=0)
    )
    figure = getattr(pipeline, name)(traced(body), finding="A finding", parameters="a test")
    assert figure.axes and any(text.get_text().startswith("Emulated") for text in figure.texts)


def test_waits_are_called_by_the_barriers_name():
    trace = traced(bulk(), roles={0: "load", 1: "softmax0"}, barriers={0x400: "full"})
    assert {s.what for s in trace.spans if s.what.startswith("waits") and "full" in s.what} == {"waits: full"}


def test_what_a_copy_brought_stays_until_its_last_read():
    trace = traced(bulk(), buffers={"tile": (0x480, 0x500)})
    (stay,) = trace.stays()
    assert (stay.buffer, stay.start, stay.stop) == ("tile", 0x480, 0x500)
    assert stay.issued < stay.filled <= stay.last_read
    reads = [a.step for a in trace.shared_accesses if not a.write and a.start < stay.stop and a.stop > stay.start]
    assert stay.last_read == max(reads)
    assert traced(bulk()).stays()[0].buffer == "0x480-0x4ff"


def test_the_ring_is_drawn():
    pytest.importorskip("matplotlib")
    from mxfp8fa.plots import pipeline

    figure = pipeline.fig_shared_ring(traced(bulk()), finding="One tile", parameters="a test")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0x480-0x4ff"]


def dumped(**keywords):
    dump = TileDump(**keywords)
    again = tensor().replace(" bar.sync 0;\n @%p1 tcgen05.dealloc", STORE_AGAIN + " bar.sync 0;\n @%p1 tcgen05.dealloc")
    launch(again, np.zeros(4096, np.uint32), block=64, trace=dump)
    return dump.tiles


STORE_AGAIN = """
 add.u32 %r10, %r1, 100;
 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r8], {%r10};
 tcgen05.wait::st.sync.aligned;
 tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r8];
 tcgen05.wait::ld.sync.aligned;
"""


def test_tiles_as_a_role_reads_them():
    tiles = dumped(first=0, last=0, reader="softmax0", roles={0: "softmax0"})
    assert len(tiles) == 2 and {t.reader for t in tiles} == {"softmax0"}
    np.testing.assert_array_equal(tiles[0].values[:32, 0], np.arange(32))
    np.testing.assert_array_equal(tiles[1].values[:32, 0], np.arange(32) + 100)
    assert tiles[0].written[:32].all() and not tiles[0].written[64:].any()
    assert tiles[0].ptx_line > 0 and tiles[0].cta == (0, 0, 0)
    assert dumped(first=1, last=3) == []
    with pytest.raises(ValueError, match="allowed are 0 to 511"):
        TileDump(first=8, last=4)


@pytest.fixture(scope="module")
def dsl():
    for needed in ("torch", "llvmlite", "cutlass.cute"):
        pytest.importorskip(needed)


@pytest.fixture(scope="module")
def step2(dsl):
    from mxfp8fa.cli import targets

    return targets.k_loop()


def test_names_that_a_kernel_declares_are_those_of_what_it_does(step2):
    """Counts and stages of BARRIERS, observed: who arrives, who waits, and the columns of D."""
    trace = em.Trace.named(step2.names)
    em.run(step2.compiled, *step2.args, trace=trace)
    graph = trace.barrier_graph()
    for stage in range(3):
        assert graph[f"full[{stage}]"] == (["load", "TMA"], ["mma"])
        assert graph[f"empty[{stage}]"] == (["tensor core"], ["load"])
    assert graph["done"][0] == ["tensor core"] and set(graph["done"][1]) == {"load", "mma", "warp 2", "warp 3"}
    assert not any(name.startswith("mbarrier") for name in graph)
    assert {(a.first_column, a.last_column) for a in trace.tensor_accesses} == {step2.names.columns["D"]}
    assert len({(s.start, s.stop) for s in trace.stays()}) == 6 and len(trace.stays()) == 2 * 2 * 7


@pytest.mark.parametrize("name", ["step3", "step7"])
def test_declared_tiles_are_those_that_tma_fills(dsl, name):
    """Names of shared memory come from the kernel's layouts, not from its code: every copy must fill one exactly."""
    from mxfp8fa.cli import targets

    target = targets.TARGETS[name]()
    trace = em.Trace.named(target.names)
    report = em.run(target.compiled, *target.args, trace=trace, check="races", names=target.names, **target.options)
    assert report.races == []
    filled = {stay.buffer: (stay.start, stay.stop) for stay in trace.stays()}
    assert filled == {buffer: tuple(place)[:2] for buffer, place in target.names.buffers.items()}
    assert not any(barrier.startswith("mbarrier") for barrier in trace.barrier_graph())


def test_the_command_writes_pictures_and_a_trace(step2, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    from mxfp8fa.cli import main, targets

    monkeypatch.setitem(targets.TARGETS, "step2", lambda: step2)
    assert main(["trace", "step2", "--out", str(tmp_path / "new")]) == 0
    names = {"timeline.png", "tensor_memory.png", "shared_ring.png", "barriers.png", "trace.json"}
    assert {p.name for p in (tmp_path / "new").iterdir()} == names
    assert {line.rpartition("/")[2] for line in capsys.readouterr().out.split()} == names
    events = json.loads((tmp_path / "new" / "trace.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"load", "mma", "TMA", "tensor core"}
    assert main(["trace", "step2", "--sm-count", "0"]) == 2
