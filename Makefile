# Two commands need nothing but Python, gcc and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help quickstart test pytest rest soak house goldens check lint style types layers docs bench examples results dist version clean

help:
	@echo "make quickstart   measure GEMM kernels on this machine and see what choosing is worth (under 5 minutes)"
	@echo "make test         lint, types, layers, tests; of one folder of tests/ alone: make test ONLY=measuring"
	@echo "make rest         the tests that the last 'make test' left out, for a machine that now has what they need"
	@echo "make soak         the tests with their long batteries: new random examples, thousands of them; ten minutes of sweeping, 10^8 rows (hours)"
	@echo "make bench        run every benchmark, and keep what it measured in benchmarks/results/"
	@echo "make results      docs/results.md from what is kept there"
	@echo "make house        how heavy the package is: lines, files, rooms, options, and how far one question walks"
	@echo "make goldens      whether what changed since the last commit (or BASE=a commit) answers exactly as before: minutes"
	@echo "make examples     what the pages show below a command, as it is printed now"
	@echo "make docs         build docs/_build/html"
	@echo "make dist         wheel and sdist in dist/, checked and tried in an empty environment (about 10 minutes)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Installed again whenever the dependencies change.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) -e ".[train]"
	@touch $@

$(VENV)/.example: $(VENV)/.core examples/softmax/pyproject.toml
	$(PIP) --no-deps -e examples/softmax
	@touch $@

$(VENV)/.dev: $(VENV)/.example
	$(PIP) -e ".[dev,docs,serve,tune]"
	@touch $@

quickstart: $(VENV)/.core
	$(BIN)/kerncast regenerate quickstart

lint: style types layers

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html

# What one of them prints is kept together.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --output-sync=target types style layers

# There are as many processes as cores, and threads of OpenMP wait by spinning, so there is one of them in each. Files come in
# the order of tests/conftest.py. Tests start hundreds of interpreters, which read bytecode rather than compile again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# `make test` checks while it tests, and ends with what ran and what was left out. `make test ONLY=measuring` runs the tests in
# tests/backends alone.
ONLY :=
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 pytest $(if $(ONLY),,check)

pytest: $(VENV)/.dev
	$(PYTEST) $(addprefix tests/,$(ONLY))

# What the last `make test` left out, on a machine that has more by now: .ci/run installs it.
rest: docs
	$(PYTEST) --left-out

soak: $(VENV)/.dev
	KERNCAST_SOAK=1 $(PYTEST)
	$(BIN)/python benchmarks/load.py --whole

# All of them, whatever the ones before did; it fails if one is short of a target.
BENCHMARKS := first_hour inductor a100_mm matmul_heuristics a100_mixed_mm train_cost tiers_loss off_grid trust_runs kernel_tuner_search h100_gemm unseen_device llm_ops ttnn reshard_lines label_shift quickstart conv_cpu gemm_cpu dispatch collect limits chaos damage crash_points ready select_latency export_size blob query core sweep reshard_sweep import_gemm import_tables coverage passing_kernels wide_products served_models serve ray_scaling ray_chaos fleet_simulation load
bench: $(VENV)/.dev
	@short=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || short="$$short $$name"; \
	done; test -z "$$short" || { echo "short of a target, or failed:$$short"; exit 1; }

# What the pages show below a command, as it is printed now.
examples: $(VENV)/.dev
	KERNCAST_SECOND_STAGE=1 KERNCAST_REWRITE=1 $(PYTEST) tests/docs -k test_what_a_page_shows

house: $(VENV)/.dev
	$(BIN)/python benchmarks/house.py

BASE := HEAD
goldens: $(VENV)/.dev
	$(BIN)/python benchmarks/goldens.py $(BASE)

results: $(VENV)/.core
	$(BIN)/python benchmarks/render_results.py

# What is released: built, checked, then installed into an empty environment and used there. `TRY=--quick` leaves out the
# quickstart.
TRY :=

$(VENV)/.release: $(VENV)/.core
	$(PIP) -e ".[release]"
	@touch $@

dist: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python releasing/try_release.py dist $(TRY)

# `src/kerncast/version.py` is the only place that says it.
version:
	@sed -n 's/^__version__ = "\(.*\)"/\1/p' src/kerncast/version.py

clean:
	rm -rf $(VENV) quickstart dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
