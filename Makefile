# Two commands for everyone:
#   make demo   set up .venv, run the main job (no GPU needed)
#   make test   set up .venv, run all tests and notebooks
VENV := .venv
BIN  := $(VENV)/bin
# The first interpreter that is new enough; `make PYTHON=/path/to/python` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && { command -v $$p; break; }; done)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One BLAS thread: the numbers in this repository were taken that way (small products lose time to thread hand-over).
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test lint unit notebooks figures clean
.DEFAULT_GOAL := demo

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "mxfp8fa needs Python 3.11 or newer; found none. Try make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "mxfp8fa needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Everything a user needs: core, kernels (Linux), notebooks.
$(VENV)/.user: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV): package, kernels and notebooks (once, a few minutes)"
	@$(PIP) -e '.[kernels,timing,notebooks]'
	@touch $@

# What the tests add: test runner, linters, and other people's implementations to compare with.
$(VENV)/.dev: $(VENV)/.user
	@echo "setting up $(VENV): test tools and peers (once, a minute)"
	@$(PIP) -e '.[kernels,timing,notebooks,dev,peers]'
	@touch $@

demo: $(VENV)/.user
	@$(BIN)/mxfp8fa demo

lint: $(VENV)/.dev
	@echo "lint and types"
	@$(BIN)/ruff check .
	@$(BIN)/mypy

# "not slow" keeps this within minutes on two cores; `$(BIN)/pytest -m slow` runs the rest.
unit: $(VENV)/.dev
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile tests

notebooks: $(VENV)/.dev
	@if ls notebooks/*.ipynb >/dev/null 2>&1; then \
	  $(BIN)/python -m pytest -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout=120 notebooks; \
	else echo "no notebooks yet"; fi

# In this order, and stopping at the first that fails.
test:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory notebooks

figures: $(VENV)/.user
	@$(BIN)/mxfp8fa figures

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
