"""The main kernel with what runs around it, bit for bit against the NumPy model."""

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from backward_harness import SQUARE, check_call, make_call  # noqa: E402

from mxfp8fa import emulator  # noqa: E402
from mxfp8fa.emulator.host import ptx_of  # noqa: E402
from mxfp8fa.emulator.mutate import SCHEDULES, record, run_study  # noqa: E402
from mxfp8fa.kernels.backward import plan  # noqa: E402
from mxfp8fa.kernels.backward.call import make_call as call_launches  # noqa: E402
from mxfp8fa.kernels.execution import compile_once  # noqa: E402


@pytest.mark.parametrize(
    ("shape", "causal", "emulate"),
    [
        ((1, 384, 100, 1, 1, 128), False, {}),
        ((1, 130, 200, 2, 1, 64), False, {"schedule": "lazy"}),
        ((2, 70, 160, 1, 1, 64), True, {"schedule": "random", "seed": 1}),
        ((1, 200, 130, 2, 1, 128), True, {"schedule": "random", "seed": 2, "accumulate": "blackwell"}),
        ((1, 1, 1, 1, 1, 64), True, {}),
    ],
)
def test_equals_the_model(shape, causal, emulate):
    """Races none, dQ with one or two tiles of keys, whose order does not matter."""
    options = replace(SQUARE, accumulate=emulate.get("accumulate", "float32"))
    check_call(make_call(shape, causal=causal, options=options), **emulate)


@pytest.mark.parametrize(("schedule", "seed"), [("lazy", 0), ("random", 1)])
def test_dq_in_order_of_arrival(schedule, seed):
    """Four tiles of keys: FP32 additions in another order give other bits, and are those of that order."""
    check_call(make_call((1, 100, 500, 1, 1, 64)), check="off", schedule=schedule, seed=seed)


@pytest.fixture(scope="module")
def traced():
    """A run with five tiles of queries, so that every ring comes around: its trace, and the PTX it ran."""
    call = make_call((1, 520, 100, 1, 1, 64))
    launch = prepared(call)
    compiled = compile_once(launch.function, *launch.arguments, constants=launch.constants)
    trace = emulator.Trace.named(launch.names)
    emulator.run(compiled, *launch.arguments, wait_ld="required", trace=trace, schedule="random", seed=4)
    return trace, ptx_of(compiled).splitlines()


def prepared(call):
    """The launch of the main kernel, after that of the preprocess kernel has run."""
    _, (before, main, _) = call_launches(**call.operands)
    compiled = compile_once(before.function, *before.arguments, constants=before.constants)
    emulator.run(compiled, *before.arguments)
    return main


def test_columns_are_used_as_the_table_says(traced):
    """An access belongs to the narrowest range that holds its columns; every declared use happens."""
    trace, lines = traced
    seen = set()
    for access in trace.tensor_accesses:
        instruction = re.search(r"tcgen05\.(?:wait::)?[a-z]+", lines[access.ptx_line - 1])[0].replace("wait::", "")
        homes = [r for r in plan.TMEM if r.start <= access.first_column and access.last_column < r.stop]
        home = min(homes, key=lambda r: r.count)
        allowed = {home.writer} if access.write else {home.reader, home.writer}
        assert instruction in allowed, f"{instruction} of columns {access.first_column}-{access.last_column}"
        seen.add((home.name, instruction, access.write))
    assert seen >= {(r.name, r.writer, True) for r in plan.TMEM} | {(r.name, r.reader, False) for r in plan.TMEM}


def test_who_waits_for_what_is_what_the_table_says(traced):
    """As observed: the roles that arrive at a barrier and those that wait there; commits arrive for the tensor core."""
    graph = traced[0].barrier_graph()
    for barrier in plan.BARRIERS:
        for stage in range(barrier.stages):
            name = barrier.name if barrier.stages == 1 else f"{barrier.name}[{stage}]"
            arrive, wait = ({re.sub(r" \d+$", "", role) for role in side} for side in graph[name])
            said = set(re.findall(r"load|mma|compute|scales|reduce", barrier.consumer))
            assert wait == said, f"{name}: {wait}"
            if "warps" in barrier.producer:
                assert arrive == set(re.findall(r"compute|scales|reduce", barrier.producer)), f"{name}: {arrive}"


@pytest.mark.slow
def test_every_synchronisation_mutant_is_caught():
    """But one: compute warps wait for lse and delta, which came with the Q that S was made of; s_full says so too."""
    launch = prepared(make_call((1, 500, 100, 1, 1, 64)))
    compiled = compile_once(launch.function, *launch.arguments, constants=launch.constants)
    study = run_study(record(compiled, *launch.arguments), schedules=SCHEDULES[:4], wait_ld="required")
    assert study.count("survived") == study.count("not executed") == 0
    assert [v.mutant.change for v in study.of("equivalent")] == ["wait removed"]
    assert study.count("caught") > 80


def test_the_tables_in_the_docstring_are_the_records():
    docstring = re.sub(r"(?m)^    ", "", plan.__doc__)
    assert str(plan.TMEM) in docstring and str(plan.BARRIERS) in docstring
    assert plan.TMEM.allocation == 512 and "512 columns allocated" in docstring


def test_every_barrier_has_its_place_in_shared_memory():
    names = [b.name for b in plan.BARRIERS]
    assert list(plan.Storage._offsets)[: len(names)] == names
