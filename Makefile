# Two commands for everyone:
#   make demo   set up .venv, run the main job (no GPU needed)
#   make test   set up .venv, run all tests and notebooks
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One BLAS thread: the numbers in this repository were taken that way (small products lose time to thread hand-over).
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test lint figures notebooks clean
.DEFAULT_GOAL := demo

# Everything a user needs: core, kernels (Linux), notebooks.
$(VENV)/.user: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): package, kernels and notebooks (once, a few minutes)"
	@$(PIP) -e '.[kernels,notebooks]'
	@touch $@

# What the tests add: test runner, linters, and other people's implementations to compare with.
$(VENV)/.dev: $(VENV)/.user
	@echo "setting up $(VENV): test tools and peers (once)"
	@$(PIP) -e '.[kernels,notebooks,dev,peers]'
	@touch $@

demo: $(VENV)/.user
	@$(BIN)/mxfp8fa demo

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy

# "not slow" keeps `make test` within minutes on two cores; `$(BIN)/pytest -m slow` runs the rest.
test: lint
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile tests
	@$(MAKE) --no-print-directory notebooks

notebooks: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout=120 notebooks

figures: $(VENV)/.user
	@$(BIN)/mxfp8fa figures

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
