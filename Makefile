# make test    lint, types, the suite, planted faults; in its own environment (.venv-test)
# make fuzz    random calls against definitions in long double, until Ctrl-C; FUZZ="--minutes 30"
# make bench   the quick benchmark beside PyTorch and JAX; in its own environment (.venv-bench)

PYTHON ?= python3
TEST := .venv-test/bin
BENCH := .venv-bench/bin
PIP := -m pip --disable-pip-version-check install -qq
# Installed by itself and first: left to choose while resolving the rest, pip may take another build.
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml | head -n 1)

.PHONY: test bench lint types suite mutants fuzz format docs clean

test: lint types suite mutants

bench: .venv-bench/ready
	$(BENCH)/pullback bench --quick

.venv-%/ready: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) "$(TORCH)"
	.venv-$*/bin/python $(PIP) --editable ".[$(EXTRA)]"
	touch $@

.venv-test/ready: EXTRA := dev
.venv-bench/ready: EXTRA := bench

lint: .venv-test/ready
	$(TEST)/ruff check .
	$(TEST)/ruff format --check .
	$(TEST)/python tools/stubs.py --check
	$(TEST)/python tools/ops_table.py --check

types: .venv-test/ready
	$(TEST)/mypy

suite: .venv-test/ready
	$(TEST)/python -m pytest -n auto $(PYTEST)

mutants: .venv-test/ready
	$(TEST)/python tools/mutants.py

fuzz: .venv-test/ready
	$(TEST)/python tools/fuzz.py $(FUZZ)

format: .venv-test/ready
	$(TEST)/ruff check --fix .
	$(TEST)/ruff format .

docs: .venv-test/ready
	$(TEST)/python tools/stubs.py
	$(TEST)/python tools/ops_table.py
	$(TEST)/python tools/ulp_table.py
	$(TEST)/python tools/console.py

clean:
	rm -rf .venv-test .venv-bench build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
