"""Mutation testing: which mutants there are, what becomes of them, and who else orders what a survivor would order."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mxfp8fa.emulator import mutate
from mxfp8fa.emulator.machine.launch import LaunchSpec
from mxfp8fa.emulator.machine.memory import array_range
from mxfp8fa.emulator.machine.program import load_program
from mxfp8fa.emulator.names import Names
from mxfp8fa.emulator.parameters import pack_parameters
from tests.emulator.check.test_races import BARRIER, NEIGHBOUR, STORE, bulk
from tests.emulator.machine.kernels import HEAD_LINES, kernel

ARRIVE = "mbarrier.arrive.shared.b64 _, [%r2];"


def recorded(body, block=64):
    program = load_program(kernel(body), "k")
    out, source = np.zeros(4096, np.uint32), np.arange(4096, dtype=np.uint32)
    params, _ = pack_parameters(program.kernel, [out, source])
    ranges = [array_range(out, "out"), array_range(source, "in")]
    return [mutate.Recorded(program, LaunchSpec((1, 1, 1), (block, 1, 1), params=params), ranges)]


def study(body, **options):
    return mutate.run_study(recorded(body), **options)


def outcomes(body, **options):
    return {(v.mutant.change, v.outcome) for v in study(body, **options).verdicts}


def changes(body):
    return [m.change for m in mutate.mutants(load_program(kernel(body), "k"))]


def test_every_kind_of_mutant():
    assert changes(BARRIER.format(arrive=ARRIVE, parity=0)) == [
        "count one more", "count one less", "thread barrier removed", "arrive removed", "wait removed", "parity flipped"
    ]  # fmt: skip
    assert changes(bulk()) == [
        "count one more", "fence.mbarrier_init removed", "thread barrier removed", "expect_tx removed", "arrive removed",
        "wait removed", "parity flipped", "thread barrier removed",
    ]  # fmt: skip
    store = STORE.format(fence="fence.proxy.async;", wait="cp.async.bulk.wait_group.read 0;", reuse="")
    assert changes(store) == [
        "fence.proxy removed", "thread barrier removed", "group wait removed", "thread barrier removed", "group wait removed"
    ]  # fmt: skip
    tensor = " tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%rd1];\n tcgen05.wait::ld.sync.aligned;\n"
    tensor += " tcgen05.wait::st.sync.aligned;\n tcgen05.fence::after_thread_sync;\n griddepcontrol.wait;\n"
    assert changes(tensor) == [
        "commit removed", "wait::ld removed", "wait::st removed", "fence::after_thread_sync removed",
        "griddepcontrol.wait removed",
    ]  # fmt: skip


def test_mutants_that_change_nothing_are_left_out():
    """A count of 1 has no smaller one, whether it stands there or in a register that is only ever 1."""
    init = " mov.b32 %r9, {};\n mbarrier.init.shared.b64 [%r2], %r9;\n"
    assert changes(init.format(1)) == ["count one more"]
    assert changes(init.format(2)) == ["count one more", "count one less"]
    assert changes(init.format(1) + " mov.b32 %r9, 2;\n") == ["count one more", "count one less"]


def test_all_mutants_of_a_small_pipeline_are_caught():
    found = study(bulk(), schedules=mutate.SCHEDULES[:2])
    survivors = [v.mutant for v in found.of("survived")]
    assert survivors == [] and found.score == 1.0 and found.count("caught") >= 6
    assert sum(found.caught_by.values()) == found.count("caught")


def test_a_survivor_is_explained_by_the_edge_that_orders_the_same():
    """Two barriers in a row: either may go."""
    found = study(NEIGHBOUR.format(sync="bar.sync 1;\n bar.sync 2;"), schedules=mutate.SCHEDULES[:1])
    assert [v.outcome for v in found.verdicts] == ["equivalent"] * 2
    line = HEAD_LINES + 5
    first, second = (v.message for v in found.verdicts)
    assert f"barrier 2 at PTX line {line + 1}" in first and f"barrier 1 at PTX line {line}" in second
    assert "CTA (0, 0, 0) warp 1 after CTA (0, 0, 0) warp 0" in first


def test_names_in_explanations():
    body = NEIGHBOUR.format(sync="bar.sync 1;\n bar.sync 2;")
    (verdict, _) = study(body, schedules=mutate.SCHEDULES[:1], names=Names(roles={1: "reader"})).verdicts
    assert "CTA (0, 0, 0) warp 1 (reader) after CTA (0, 0, 0) warp 0: barrier 2 at PTX line" in verdict.message


def test_a_wait_that_nothing_needs():
    """Warp 1 waits, and then touches nothing that anybody else does."""
    body = BARRIER.format(arrive=ARRIVE, parity=0).replace("ld.shared.u32 %r6, [%r2+64];", "mov.u32 %r6, 1;")
    (wait,) = [v for v in study(body).verdicts if v.mutant.change == "wait removed"]
    assert wait.outcome == "equivalent"
    assert (
        wait.message
        == "no later access of its warp, or of what the warp issues, conflicts with one that it would order"
    )


def test_the_end_of_the_cta_counts_as_an_access():
    """Both warps wait for a copy that nobody reads: either wait keeps it from outliving the CTA."""
    wait = "{0}:\n mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;\n @!%p3 bra {0};\n"
    both = f" setp.lt.u32 %p2, %r1, 32;\n @!%p2 bra SECOND;\n{wait.format('V')} bra DONE;\nSECOND:\n{wait.format('W')}DONE:\n"
    body = bulk(wait=both).replace(" ld.shared.u32 %r6, [%r7];\n bar.sync 0;\n", "")
    first, second = [v for v in study(body).verdicts if v.mutant.change == "wait removed"]
    lines = [v.mutant.site.ptx_line for v in (first, second)]
    end = "before the CTA's exit also ordered by CTA (0, 0, 0) warp {} after TMA: mbarrier 0x400 at PTX line {}"
    assert first.outcome == second.outcome == "equivalent"
    assert first.message.endswith(end.format(1, lines[1])) and second.message.endswith(end.format(0, lines[0]))


def test_an_input_of_two_calls_restores_the_memory_of_both():
    """A mutant runs on every call; the second call's output is its own array."""
    body = NEIGHBOUR.format(sync="bar.sync 1;")
    calls = recorded(body) + recorded(body)
    assert len(mutate._writable(calls)) == 2 * len(mutate._writable(calls[:1]))
    assert mutate.run_study(calls).count("caught") == 1


def test_a_barrier_that_nobody_uses_and_code_that_nobody_reaches():
    body = " setp.eq.u32 %p1, %r1, 0;\n @%p1 mbarrier.init.shared.b64 [%r2], 5;\n bra END;\n bar.sync 3;\nEND:"
    assert outcomes(body) == {
        ("count one more", "equivalent"), ("count one less", "equivalent"), ("thread barrier removed", "not executed")
    }  # fmt: skip


def test_findings_of_the_unbroken_kernel_do_not_count():
    """The race is there with and without the barrier that comes too late."""
    body = NEIGHBOUR.format(sync="") + "\n bar.sync 1;\n"
    found = study(body, schedules=mutate.SCHEDULES[:1])
    assert [v.outcome for v in found.verdicts] != ["caught"]


def test_the_steps_of_the_program_are_as_before():
    launches = recorded(bulk())
    steps = list(launches[0].program.steps)
    mutate.run_study(launches, schedules=mutate.SCHEDULES[:1])
    assert launches[0].program.steps == steps


def test_names_of_synchronisation_objects():
    names = Names(barriers={0x400: "full"})
    assert names.barrier(("mbarrier", 1, 0x400)) == "full" and names.barrier(("mbarrier", 1, 0x408)) == "mbarrier 0x408"
    assert (
        names.barrier(("barrier", 1, 3)) == "barrier 3" and names.barrier(("barrier.cluster", 1)) == "cluster barrier"
    )


# -- a kernel of ours -----------------------------------------------------------------------------------------------------


@pytest.fixture
def dsl():
    for needed in ("torch", "llvmlite", "cutlass.cute"):
        pytest.importorskip(needed)


def test_ten_mutants_of_the_k_loop(dsl, capsys):
    """A sample of the benchmark (bench/mutation.py)."""
    from mxfp8fa.cli import main

    assert main(["mutate", "step2", "--sample", "10", "--schedules", "2", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["caught"] == 10 and found["score"] == 1.0 and len(found["mutants"]) == 10
    assert "[ 10/10]" in captured.err
    assert all("step" in m["source"] for m in found["mutants"])


MINE = """
import cutlass
import torch
from cutlass import cute
from mxfp8fa.kernels import compile_kernel, gmem


@cute.kernel
def shift(a: cute.Tensor):
    smem = cutlass.memory.SmemAllocator()
    s = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), byte_alignment=16)
    i = cute.arch.thread_idx()[0]
    s[i] = 0.0
    cute.arch.sync_threads()
    s[i] = a[i]
    cute.arch.sync_threads()
    a[i] = s[63 - i]


@cute.jit
def host(a: cute.Tensor):
    shift(a).launch(grid=(1, 1, 1), block=(64, 1, 1))


def target():
    a = gmem(torch.arange(64, dtype=torch.float32))
    return compile_kernel(host, a), (a,)


def nothing():
    return 3
"""


def test_a_file_as_target(dsl, tmp_path, capsys):
    from mxfp8fa.cli import main

    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert main(["mutate", f"{path}:target"]) == 0
    out = capsys.readouterr().out
    assert "caught by: race 1" in out and "equivalent: thread barrier removed" in out and "1 of 1 mutants" in out
    for wrong, text in [
        (f"{path}:nothing", "must return (compiled, args)"), (f"{path}:absent", "has no function absent"),
        ("step9", "step2, step3, step6, step7"), (f"{tmp_path}/no.py:f", "there is no such file"),
    ]:  # fmt: skip
        assert main(["mutate", wrong]) == 2
        assert text in capsys.readouterr().err
    assert main(["mutate", "step2", "--schedules", "9"]) == 2
    assert main(["mutate", "step2", "--sample", "0"]) == 2
