"""One BLAS thread for `pytest` called by hand too, as in `make test`; set before any test module imports NumPy."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


def pytest_addoption(parser):
    parser.addoption("--engine", choices=("compiled", "numpy"), default="compiled", help="evaluator of the emulator's tests")


def pytest_configure(config):
    """With `--engine numpy` every launch runs by Python steps, as where there is no machine code."""
    if config.getoption("--engine") == "numpy":
        from mxfp8fa.emulator import compiled

        compiled.available = lambda: False
