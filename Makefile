# Set-up only: makes .venv from the lock, then hands over to snakemake or pytest.
# `make figures/copa_fig1.pdf`, `make results/claims.csv`, `make all`, `make test`.
# `make wheels WHEELS=folder` fetches what `make setup WHEELS=folder` installs without internet.

PYTHON ?= python3
WHEELS ?=
KERNELS ?=
BIN := .venv/bin
READY := .venv/.ready
PYTEST := -n 2 --dist loadfile --no-loadscope-reorder
PIP = $(BIN)/python -m pip install --quiet $(if $(WHEELS),--no-index --find-links "$(WHEELS)")

.PHONY: all figures tables claims setup wheels lint docs lock-check test test-slow test-all test-kernels test-slurm slurm browser FORCE

all figures tables claims: $(READY)
	$(BIN)/snakemake $@

figures/% results/%: $(READY) FORCE
	$(BIN)/snakemake $@

setup: $(READY)

# The marker is written last, so that an interrupted set-up is done again. What builds packages
# without a wheel is installed first, so that pip need not fetch it unchecked. The lock is complete,
# and pip 23, which venv brings, would look in vain for the extra of a pinned package: --no-deps.
$(READY): requirements.lock envs/build.lock pyproject.toml
	@$(PYTHON) envs/supported.py
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r envs/build.lock
	$(PIP) --no-deps --no-build-isolation --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# In an environment of its own, so that a machine that only fetches needs no other.
wheels:
	@test -n "$(WHEELS)" || { echo 'Say where to put them: make wheels WHEELS=folder' >&2; exit 1; }
	@$(PYTHON) envs/supported.py
	$(PYTHON) -m venv .venv/fetch
	.venv/fetch/bin/python -m pip install --quiet --require-hashes -r envs/build.lock
	.venv/fetch/bin/python -m pip download --quiet --require-hashes -r envs/build.lock -d "$(WHEELS)"
	.venv/fetch/bin/python -m pip download --quiet --no-deps --no-build-isolation --require-hashes -r requirements.lock -d "$(WHEELS)"
	rm -rf .venv/fetch

lint: $(READY) lock-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check --compact-diff Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy

# The pages and the library's names as a site, build/site/index.html; a broken link is an error.
docs: $(READY)
	$(BIN)/sphinx-build -E -W --keep-going -q -c docs . build/site

# Asks the package index, if one answers, for wheels of the lock on every supported platform.
lock-check: $(READY)
	$(BIN)/python envs/supported.py --lock

# By file, so that the pipeline is built once, not once a worker.
test: lint
	$(BIN)/pytest -m "not slow" $(PYTEST) --durations=10

# All targets at smoke scale, and whatever else takes long; ends at the first failure.
test-slow: $(READY)
	$(BIN)/pytest -m "slow and not slurm" -x $(PYTEST)

test-all: lint slurm browser
	$(BIN)/pytest $(PYTEST)

# The numeric tests with kernels of other CPUs: all, or `make test-kernels KERNELS="Haswell Prescott"`.
test-kernels: $(READY)
	$(BIN)/python tests/kernels.py test $(KERNELS)

# On a real scheduler, on this machine alone; Debian's packages are installed where that may be.
test-slurm: $(READY) slurm
	$(BIN)/pytest -m slurm

slurm:
	@tests/slurm/setup.sh

# For the tests of pages; Debian's package is installed where that may be.
browser:
	@tests/setup_browser.sh

FORCE:
