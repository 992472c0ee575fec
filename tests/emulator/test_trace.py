"""What a trace records, and the pictures drawn from it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import mxfp8fa.emulator as em
from tests.emulator.check.test_races import BARRIER, bulk, tensor
from tests.emulator.machine.kernels import launch


def traced(body, schedule="lazy", **names):
    trace = em.Trace(**names)
    launch(body, np.zeros(4096, np.uint32), np.arange(4096, dtype=np.uint32), block=64, schedule=schedule, trace=trace)
    return trace


def test_spans_of_warps_waits_and_agents():
    trace = traced(
        bulk(), roles={0: "load", 1: "softmax0"}, barriers={0x400: "full"}
    )
    actors = {span.actor for span in trace.spans}
    assert actors == {"load", "softmax0", "TMA"}
    waits = [span for span in trace.spans if span.what.startswith("waits")]
    assert any("mbarrier" in span.what for span in waits)
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
