# Two commands need nothing but Python, gcc and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help quickstart test lint docs bench results clean

help:
	@echo "make quickstart   measure GEMM kernels on this machine and see what choosing is worth (under 5 minutes)"
	@echo "make test         lint, types, layers, docs, tests"
	@echo "make bench        run every benchmark, and keep what it measured in benchmarks/results/"
	@echo "make results      docs/results.md from what is kept there"
	@echo "make docs         build docs/_build/html"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again whenever the dependencies change.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.example: $(VENV)/.core examples/softmax/pyproject.toml
	$(PIP) --no-deps -e examples/softmax
	@touch $@

$(VENV)/.dev: $(VENV)/.example
	$(PIP) -e ".[dev,docs,opencl,tune]"
	@touch $@

quickstart: $(VENV)/.core
	$(BIN)/kerncast quickstart

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html

# pytest comes last: its closing lines count what ran and what had to be left out.
test: lint docs
	$(BIN)/python -m pytest -n 2 --dist loadfile

# All of them, whatever the ones before did; it fails if one is short of a target.
BENCHMARKS := a100_mm a100_mixed_mm train_cost tiers_loss off_grid trust_runs kernel_tuner_search h100_gemm ttnn reshard_lines label_shift quickstart conv_cpu gemm_cpu dispatch collect limits select_latency query core sweep reshard_sweep import_gemm
bench: $(VENV)/.dev
	@short=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || short="$$short $$name"; \
	done; test -z "$$short" || { echo "short of a target, or failed:$$short"; exit 1; }

results: $(VENV)/.core
	$(BIN)/python benchmarks/render_results.py

clean:
	rm -rf $(VENV) quickstart docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
