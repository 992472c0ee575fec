"""One BLAS thread for `pytest` called by hand too, as in `make test`; set before any test module imports NumPy."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def pytest_addoption(parser):
    engines = ("compiled", "numpy", "hot")
    parser.addoption("--engine", choices=engines, default="compiled", help="evaluator of the emulator's tests")


def pytest_configure(config):
    """`--engine numpy`: every launch runs by Python steps, as where there is no machine code; `hot`: all that can be is compiled
    the first time it runs, so that short tests run machine code too."""
    if config.getoption("--engine") == "numpy":
        from mxfp8fa.emulator import compiled

        compiled.available = lambda: False
    elif config.getoption("--engine") == "hot":
        from mxfp8fa.emulator.compiled import engine

        engine.PATIENCE_STEPS, engine.HOT, engine.WARM = 0, 1, 1
