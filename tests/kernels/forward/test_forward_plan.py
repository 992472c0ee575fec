"""What the plan declares is what a run does: columns of tensor memory, barriers, and who can be told apart from them."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from forward_harness import operands  # noqa: E402

from mxfp8fa import emulator  # noqa: E402
from mxfp8fa.cli.targets import forward  # noqa: E402
from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.emulator.mutate import SCHEDULES, record, run_study  # noqa: E402
from mxfp8fa.kernels import MXOperand  # noqa: E402
from mxfp8fa.kernels.forward import forward_arguments, plan  # noqa: E402
from mxfp8fa.kernels.forward.names import names  # noqa: E402

QUARTERS = 4  # of the lanes, one for each warp of a group
BARRIERS = {b.name: b for b in plan.BARRIERS}


@dataclass
class LaneTrace(emulator.Trace):
    """A trace that also keeps which quarters of the lanes each access to tensor memory touches."""

    quarters: list = field(default_factory=list)

    def tensor(self, cta, lanes, columns, *, write):
        super().tensor(cta, lanes, columns, write=write)
        self.quarters.append(sorted(set((np.ravel(lanes) // 32).tolist())))


@pytest.fixture(scope="module")
def kernel():
    """(compiled, arguments): one CTA, two heads, two Q tiles each, two tiles of keys."""
    q, k, v = map(MXOperand.from_mx_tensor, operands(1, 140, 250, 2, 1, 128))
    return forward_arguments(q, k, v, softmax_scale=0.1, ctas=1)[:2]


@pytest.fixture(scope="module", params=[{}, {"schedule": "random", "seed": 3}], ids=["eager", "random"])
def trace(request, kernel):
    """Of a run."""
    compiled, arguments = kernel
    kept = LaneTrace.named(names(128))
    emulator.run(compiled, *arguments, trace=kept, wait_ld="required", **request.param)
    return kept


class Cell:
    """What a column of a quarter of the lanes holds, and who has read it since."""

    def __init__(self):
        self.name, self.reads = None, []

    def is_dead(self):
        """O is, when it was loaded after its last PV; the rest when its reader has read it."""
        if self.name is None or self.name.startswith("O"):
            return self.name is None or self.reads[-1:] == ["tcgen05.ld"]
        return plan.TMEM[self.name].reader in self.reads


def home(access, instruction):
    """The range that an access belongs to: the smallest that holds it and declares the instruction."""
    fitting = [
        r
        for r in plan.TMEM
        if r.start <= access.first_column and access.last_column < r.stop
        and instruction in f"{r.writer}, {r.reader}".split(", ")
    ]  # fmt: skip
    return min(fitting, key=lambda r: r.count)


def test_columns_live_as_declared(kernel, trace):
    """In every cell, whoever reads finds what the map says; whoever writes finds it dead, or adds to O."""
    lines = ptx_of(kernel[0]).splitlines()
    cells = [[Cell() for _ in range(512)] for _ in range(QUARTERS)]
    seen, products = set(), {"S0": 0, "S1": 0}
    for access, quarters in zip(trace.tensor_accesses, trace.quarters, strict=True):
        instruction = re.findall(r"tcgen05\.(?:wait::)?[a-z]+", lines[access.ptx_line - 1])[0].replace("wait::", "")
        r = home(access, instruction)
        seen.add((r.name, access.write))
        accumulator = instruction == "tcgen05.mma" and r.name in ("S0", "S1", "O0", "O1")
        for cell in (cells[q][c] for q in quarters for c in range(access.first_column, access.last_column + 1)):
            if not access.write:
                if not (accumulator and cell.name != r.name):  # the first product of a tile does not use what it reads
                    assert cell.name == r.name, f"{access} reads {r.name} and finds {cell.name}"
                    cell.reads.append(instruction)
            elif cell.name == r.name and (accumulator or r.name.startswith("O")):
                fresh = r.name.startswith("S") and cell.reads[-1:] == ["tcgen05.ld"]
                cell.reads = [] if fresh else cell.reads
            else:
                assert cell.is_dead(), f"{access} writes {r.name} over {cell.name} (read by {cell.reads})"
                cell.name, cell.reads = r.name, []
        products[r.name] = products.get(r.name, 0) + (accumulator and access.write)
    assert seen == {(r.name, write) for r in plan.TMEM for write in (True, False)}
    assert products["S0"] == products["S1"] == 2 * 2 * (128 // 32)  # heads, tiles of keys, instructions


def test_who_arrives_and_waits_is_what_the_table_says(trace):
    """As observed; `softmax` stands for the groups of both Q tiles."""
    roles = {"load warp, and the TMA bytes": {"load", "TMA"}, "tcgen05.commit": {"tensor core"}}
    graph = trace.barrier_graph()
    for name, barrier in BARRIERS.items():
        members = [key for key in graph if key.split("[")[0] == name]
        assert len(members) == barrier.stages, name
        producers, consumers = ({x for m in members for x in graph[m][side]} for side in (0, 1))
        told = roles.get(barrier.producer, set(barrier.producer.split(", ")))
        assert {re.sub(r"\d", "", x) for x in producers} <= told, name
        assert {re.sub(r"\d", "", x) for x in consumers} == set(barrier.consumer.split(", ")), name


@pytest.mark.parametrize("interleave", [True, False])
def test_what_interleaving_buys(interleave):
    """With it, Q tile 0 has scores of the second head before O of Q tile 1 of the first head is complete."""
    q, k, v = map(MXOperand.from_mx_tensor, operands(1, 140, 250, 2, 1, 128))
    compiled, arguments, _ = forward_arguments(q, k, v, softmax_scale=0.1, ctas=1, interleave=interleave)
    trace = emulator.Trace.named(names(128))
    emulator.run(compiled, *arguments, trace=trace)
    times = {
        name: [e.step for e in trace.barrier_events if (e.barrier, e.what) == (name, "complete")]
        for name in ("s_full[0]", "o_full[1]")
    }
    steps = 2  # tiles of keys
    assert (times["s_full[0]"][steps] < times["o_full[1]"][steps - 1]) == interleave


def test_the_readme_shows_the_tables():
    readme = (Path(plan.__file__).parent / "README.md").read_text()
    assert str(plan.TMEM) in readme and str(plan.BARRIERS) in readme
    for _, target in re.findall(r"!?\[([^\]]*)\]\(([^)]+)\)", readme):
        assert (Path(plan.__file__).parent / target).exists(), target


def test_registers_are_those_of_an_sm():
    per_thread = 2 * plan.SOFTMAX_REGISTERS + plan.CORRECTION_REGISTERS + plan.OTHER_REGISTERS
    assert plan.GROUP_THREADS * per_thread == 1 << 16 and plan.THREADS == 4 * plan.GROUP_THREADS


def test_the_map_at_head_dim_128_is_full():
    """S and O take all columns; everything else lies over S."""
    own = [r for r in plan.TMEM if not r.over]
    assert sum(r.count for r in own) == plan.TMEM.allocation == 512
    assert {r.over for r in plan.TMEM if r.over} == {"S0", "S1"} < {r.name for r in own}


@pytest.mark.slow
def test_synchronisation_mutants_are_caught():
    """Those left over are ordered by another edge, named in the verdict, or not executed by this input."""
    target = forward()
    study = run_study(
        record(target.compiled, *target.args, sm_count=1), schedules=SCHEDULES[:4], names=target.names,
        **target.options,
    )  # fmt: skip
    assert study.score >= 0.95 and study.count("caught") > 120
