# Two commands need nothing but Python, gcc and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help quickstart test lint docs bench clean

help:
	@echo "make quickstart   measure a small kernel family on this machine and look at the result"
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
	$(PIP) -e ".[dev,docs]"
	@touch $@

quickstart: $(VENV)/.example
	@rm -rf quickstart && mkdir quickstart
	@echo "measuring softmax/numpy on this machine (about ten seconds) ..."
	@OMP_NUM_THREADS=1 $(BIN)/python examples/softmax/measure.py quickstart/times.csv
	@$(BIN)/kerncast import csv quickstart/times.csv --mapping examples/softmax/times.toml --device local --out quickstart/softmax
	@$(BIN)/kerncast inspect quickstart/softmax --top 8
	@echo
	@echo "three commands to try next:"
	@echo "  $(BIN)/kerncast inspect quickstart/softmax --where problem.dtype=fp32 --json"
	@echo "  $(BIN)/kerncast families gemm/ck_tile dtype=fp8 --device gfx950"
	@echo "  $(BIN)/kerncast devices local"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html

# pytest comes last: its closing lines count what ran and what had to be left out.
test: lint docs
	$(BIN)/python -m pytest

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/label_shift.py

clean:
	rm -rf $(VENV) quickstart docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
