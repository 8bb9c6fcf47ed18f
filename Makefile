# Set-up only: makes .venv from the lock, then hands over to snakemake or pytest.
# `make figures/copa_fig1.pdf`, `make results/claims.csv`, `make all`, `make test`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: all figures tables claims setup lint test test-all test-slurm slurm FORCE

all figures tables claims: $(READY)
	$(BIN)/snakemake $@

figures/% results/%: $(READY) FORCE
	$(BIN)/snakemake $@

setup: $(READY)

# The marker is written last, so that an interrupted set-up is done again.
$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("gradleak needs Python 3.11 or newer, not " + sys.version.split()[0] + "; set PYTHON=python3.11 or the like.")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check --compact-diff Snakefile workflow/rules
	$(BIN)/snakemake --lint
	$(BIN)/mypy

# By file, so that the pipeline is built once, not once a worker.
test: lint
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-all: lint slurm
	$(BIN)/pytest -n 2 --dist loadfile

# On a real scheduler, on this machine alone; Debian's packages are installed where that may be.
test-slurm: $(READY) slurm
	$(BIN)/pytest -m slurm

slurm:
	@tests/slurm/setup.sh

FORCE:
