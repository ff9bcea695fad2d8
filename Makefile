# `make` lists the targets. They make their own environments: .venv-test, .venv-bench and .venv-docs.

PYTHON ?= python3
DOCS := .venv-docs/bin
TEST := .venv-test/bin
BENCH := .venv-bench/bin
PIP := -m pip --disable-pip-version-check install -qq
# Installed by itself and first: left to choose while resolving the rest, pip may take another build.
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml | head -n 1)

.PHONY: help test check bench lint types suite quick mutants fuzz format tables docs links package pythons portable lowest clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

# Side by side: mypy and the site take a minute each, on one core.
test: ## everything CI runs: lint, types, the site, the suite, planted faults (ten minutes on two cores, no kernels compiled yet)
	$(MAKE) -j2 lint types docs
	$(MAKE) suite
	$(MAKE) mutants

check: ## check an edit: lint, types and the quick tests
	$(MAKE) -j3 lint types quick

bench: .venv-bench/ready ## the quick benchmark against PyTorch and NumPy
	$(BENCH)/pullback bench --quick

# Nothing of the site needs torch.
.venv-docs/ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python $(PIP) --editable ".[docs]"
	touch $@

.venv-%/ready: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) "$(TORCH)"
	.venv-$*/bin/python $(PIP) --editable ".[$(EXTRA)]"
	touch $@

.venv-test/ready: EXTRA := dev
.venv-bench/ready: EXTRA := bench

lint: .venv-test/ready ## ruff, and a check that stubs and tables are up to date
	$(TEST)/ruff check .
	$(TEST)/ruff format --check .
	$(TEST)/python tools/stubs.py --check
	$(TEST)/python tools/ops_table.py --check
	$(TEST)/python tools/speed_short.py --check

types: .venv-test/ready ## mypy
	$(TEST)/mypy

suite: .venv-test/ready ## the tests; select some with PYTEST="-k softmax"
	$(TEST)/python -m pytest -n auto $(PYTEST)

quick: .venv-test/ready ## every op in float32, and tests that compile little
	$(TEST)/python -m pytest -n auto -m quick $(PYTEST)

mutants: .venv-test/ready ## check that the suite notices planted faults
	$(TEST)/python tools/mutants.py

fuzz: .venv-test/ready ## random calls against definitions in long double, until Ctrl-C; FUZZ="--minutes 30"
	$(TEST)/python tools/fuzz.py $(FUZZ)

format: .venv-test/ready ## ruff, fixing what it can
	$(TEST)/ruff check --fix .
	$(TEST)/ruff format .

tables: .venv-test/ready ## regenerate every generated file and table
	$(TEST)/python tools/stubs.py
	$(TEST)/python tools/ops_table.py
	$(TEST)/python tools/names_table.py
	$(TEST)/python tools/speed_short.py
	$(TEST)/python tools/ulp_table.py
	$(TEST)/python tools/console.py

docs: .venv-docs/ready ## build the documentation into docs/_build/html; warnings are errors
	$(DOCS)/sphinx-build -b html -W --keep-going docs docs/_build/html

links: .venv-docs/ready ## check links to other sites; needs a network
	$(DOCS)/sphinx-build -b linkcheck -W --keep-going docs docs/_build/links

package: ## build wheel and source distribution, install each, and run the command
	$(PYTHON) tools/package.py

pythons: ## try the wheel with every installed Python from 3.10 to 3.14
	$(PYTHON) tools/package.py --pythons

# A Python for AArch64 that QEMU runs: Debian's packages, in a folder.
.aarch64/python: .venv-test/ready tools/aarch64.sh
	sh tools/aarch64.sh .aarch64 $(TEST)/python

portable: .venv-test/ready .aarch64/python ## compare the bytes of every op across processors; writes docs/portable.md (half an hour)
	$(TEST)/python tools/portable.py

lowest: ## test with the oldest supported releases: every op in float32, interop, JAX and the command line
	$(PYTHON) tools/lowest.py

clean: ## remove environments and tool caches
	rm -rf .venv-test .venv-bench .venv-docs .venv-lowest .aarch64 docs/_build docs/api build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
