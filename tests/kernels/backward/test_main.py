"""The main kernel with what runs around it, bit for bit against the NumPy model."""

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutlass.cute")
pytest.importorskip("llvmlite")

from backward_harness import SQUARE, check_call, make_call  # noqa: E402

from mxfp8fa.kernels.backward import plan  # noqa: E402


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


def test_the_tables_in_the_docstring_are_the_records():
    docstring = re.sub(r"(?m)^    ", "", plan.__doc__)
    assert str(plan.TMEM) in docstring and str(plan.BARRIERS) in docstring
    assert plan.TMEM.allocation == 512 and "512 columns allocated" in docstring


def test_every_barrier_has_its_place_in_shared_memory():
    names = [b.name for b in plan.BARRIERS]
    assert list(plan.Storage._offsets)[: len(names)] == names
