# `make demo` and `make test` need nothing but Python 3.11 or newer: they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench lint clean

demo: .venv/installed
	$(BIN)/carma demo

test: .venv/installed-test
	$(MAKE) --no-print-directory lint
	$(BIN)/pytest -n 3 --dist loadfile

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: .venv/installed-test
	$(BIN)/python -m benchmarks.daemon

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv
