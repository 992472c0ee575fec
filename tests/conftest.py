"""One BLAS thread for `pytest` called by hand too, as in `make test`; set before any test module imports NumPy."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
