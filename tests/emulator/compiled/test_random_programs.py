"""Random programs with both engines, machine code from the first instruction on: the same memory, counts, bytes and errors."""

import contextlib

import pytest
from both_engines import both_engines
from random_programs import GRID, THREADS, random_program

from mxfp8fa.emulator import compiled, run_ptx
from mxfp8fa.emulator.compiled import engine
from mxfp8fa.emulator.errors import Misaligned, OutOfBounds, PoisonError

pytestmark = pytest.mark.skipif(not compiled.available(), reason="no machine code here")

SCHEDULES = [
    {"schedule": "eager"}, {"schedule": "lazy"}, {"schedule": "random", "seed": 1}, {"check": "races"}, {"uninitialised": "strict"},
]  # fmt: skip
# Found by these: a favoured group that met another in one engine only (1057, 1847), shfl from a lane that had exited (1346).
FOUND = {1057: SCHEDULES[2], 1847: SCHEDULES[2], 1346: SCHEDULES[1]}


@pytest.fixture(autouse=True)
def hot(monkeypatch):
    for name, value in (("PATIENCE_STEPS", 0), ("HOT", 1), ("WARM", 1)):
        monkeypatch.setattr(engine, name, value)


def run(ptx, x, **options):
    with both_engines() as programs:
        run_ptx(ptx, "k", grid=GRID, block=THREADS, params=[x], **options)
    assert any(r.address for r in programs[0].engine.regions.values())


@pytest.mark.parametrize("seed", [*range(8), *FOUND, *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 100))])
def test_random_programs(seed):
    run(*random_program(seed), **FOUND.get(seed, SCHEDULES[seed % len(SCHEDULES)]))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 100))])
def test_random_programs_that_may_fail(seed):
    """With values that were never written, and bad addresses; errors are compared by `both_engines`."""
    with contextlib.suppress(Misaligned, OutOfBounds, PoisonError):
        run(*random_program(seed, wild=True), **SCHEDULES[seed % len(SCHEDULES)])
