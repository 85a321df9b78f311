# Two commands need nothing but Python, gcc and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help quickstart test lint docs bench clean

help:
	@echo "make quickstart   measure GEMM kernels on this machine and see what choosing is worth (under 5 minutes)"
	@echo "make test         lint, types, layers, docs, tests"
	@echo "make bench        the numbers in benchmarks/"
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

# All of them, whatever the ones before did; it fails if one missed a bar.
BENCHMARKS := core label_shift sweep collect gemm_cpu quickstart a100_mm a100_mixed_mm h100_gemm tiers_loss select_latency kernel_tuner_search dispatch ttnn query reshard_sweep reshard_lines conv_cpu
bench: $(VENV)/.dev
	@failed=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "missed:$$failed"; exit 1; }

clean:
	rm -rf $(VENV) quickstart docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
