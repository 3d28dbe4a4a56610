# `make demo` and `make test` work on a fresh machine with Python >= 3.11: each makes its own environment.
PYTHON ?= python3
JOBS ?= 2
DEMO := .venv
DEV := .venv-dev
BARE := .venv-bare
OLDEST := .venv-oldest
DOCS := .venv-docs
RELEASE := .venv-release

# Tests on real data are skipped unless FEDSOLVE_DATA names a folder that has them.
ifneq ($(wildcard ../shared/data),)
FEDSOLVE_DATA ?= $(abspath ../shared/data)
export FEDSOLVE_DATA
endif

# Byte code is kept whatever the environment says: each of the many processes that tests start would compile everything again.
export PYTHONDONTWRITEBYTECODE =

# As many tests at a time as there are cores, each with one thread; whoever is done first takes over from the others.
SIDE_BY_SIDE := -n $(JOBS) --dist worksteal
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
TESTERS := pytest hypothesis pytest-timeout pytest-xdist

.PHONY: demo test test-long test-bare test-oldest lint types bench docs dist release clean

demo: $(DEMO)/ready
	$(DEMO)/bin/fedsolve run

# The report is tried in a browser if chromium and chromedriver are there (Debian: apt-get install chromium chromium-driver).
test: lint types
	$(ONE_THREAD) $(DEV)/bin/python -m pytest -m "not long" $(SIDE_BY_SIDE)

test-long: $(DEV)/ready
	$(DEV)/bin/python -m pytest -m long

# Without torch, flwr, matplotlib and whatever else is optional: what needs them is skipped and says so.
test-bare: $(BARE)/ready
	$(ONE_THREAD) $(BARE)/bin/python -m pytest -m "not long" $(SIDE_BY_SIDE)

# With the oldest versions of what is required, and nothing that is optional.
test-oldest: $(OLDEST)/ready
	$(ONE_THREAD) $(OLDEST)/bin/python -m pytest -m "not long" $(SIDE_BY_SIDE) tests/core tests/contract tests/methods tests/security tests/runtime/test_cli.py

lint: $(DEV)/ready
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/lint-imports

types: $(DEV)/ready
	$(DEV)/bin/mypy -n $(JOBS)

bench: $(DEV)/ready
	$(DEV)/bin/python -m benchmarks

# Into build/site, without torch; whatever is wrong with a page or a reference stops it.
docs: $(DOCS)/ready
	$(DOCS)/bin/mkdocs build --strict

# Source and wheel into dist/; the wheel is built from the source, installed in a new environment, and tried outside of here.
dist: $(RELEASE)/ready
	$(RELEASE)/bin/python -m tools.release

# Everything that must hold before strangers get it, then the files that they get.
release: test test-bare test-oldest docs dist

define new_environment
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsolve needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check
endef

$(DEMO)/ready: pyproject.toml constraints.txt
	$(new_environment) -c constraints.txt -e .
	touch $@

$(DEV)/ready: pyproject.toml constraints.txt
	$(new_environment) -c constraints.txt -e ".[dev]"
	touch $@

$(BARE)/ready: pyproject.toml constraints.txt
	$(new_environment) -c constraints.txt -e . $(TESTERS)
	touch $@

$(OLDEST)/ready: pyproject.toml constraints-oldest.txt
	$(new_environment) -c constraints-oldest.txt -e . $(TESTERS)
	touch $@

$(RELEASE)/ready: pyproject.toml constraints.txt
	$(new_environment) -c constraints.txt build hatchling
	touch $@

$(DOCS)/ready: pyproject.toml constraints.txt
	$(new_environment) -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(DEMO) $(DEV) $(BARE) $(OLDEST) $(DOCS) $(RELEASE) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .mutants

# A million damaged inputs over every reader of strangers' bytes: about ten minutes on two idle cores.
# Fewer, or of one reader: make fuzz FUZZ="--total 100000" or FUZZ="--target npz".
.PHONY: fuzz
fuzz: $(DEV)/ready
	$(ONE_THREAD) $(DEV)/bin/python -m tools.fuzz --workers $(JOBS) $(FUZZ)

# Small changes to the kernel, one at a time, each against the tests that reach it: about half an hour on two idle cores.
# Of some modules, or of a sample: make mutants MUTANTS="solver.py codec.py" or MUTANTS="--sample 200".
.PHONY: mutants
mutants: $(DEV)/ready
	$(DEV)/bin/python -m tools.mutants $(MUTANTS)
