# `make demo` and `make test` work on a fresh machine with Python >= 3.11: each makes its own environment.
PYTHON ?= python3
DEMO := .venv
DEV := .venv-dev

.PHONY: demo test test-long lint types bench clean

demo: $(DEMO)/ready
	$(DEMO)/bin/fedsolve run

# The report is tried in a browser if chromium and chromedriver are there (Debian: apt-get install chromium chromium-driver).
test: lint types
	$(DEV)/bin/python -m pytest -m "not long"

test-long: $(DEV)/ready
	$(DEV)/bin/python -m pytest -m long

lint: $(DEV)/ready
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/lint-imports

types: $(DEV)/ready
	$(DEV)/bin/mypy

bench: $(DEV)/ready
	$(DEV)/bin/python -m benchmarks

$(DEMO)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsolve needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsolve needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(DEMO) $(DEV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Small changes to the kernel, one at a time, each against the tests that reach it: about half an hour on two idle cores.
# Of some modules, or of a sample: make mutants MUTANTS="solver.py codec.py" or MUTANTS="--sample 200".
.PHONY: mutants
mutants: $(DEV)/ready
	$(DEV)/bin/python -m tools.mutants $(MUTANTS)
