# `make test` needs nothing but Python 3.11 or newer: it sets up .venv itself; `demo.py` as well.
PYTHON ?= python3
BIN := .venv/bin
# Compiling what nobody imports, most of torch, would take longer than the rest.
INSTALL = $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
# From pip 26 on, what starts `carma` imports no `re`, which takes as long as half of Python's start.
VENV = $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --upgrade 'pip>=26'

# It is compiled when first imported instead, once for all of the tests' processes. Traced scripts
# may not write, so what they import is compiled when it is installed.
unexport PYTHONDONTWRITEBYTECODE
CONFINED := accelerate bitsandbytes lightning peft timm torchmetrics torchvision transformers

.PHONY: demo test test-long pytest bench bench-slurm lint docs deb deb-life clean

demo:
	$(PYTHON) demo.py

test: .venv/installed-test
	$(MAKE) --no-print-directory --jobs 2 pytest lint

# Tests wait on daemons half of the time: three workers for each of the cores that CI has.
PYTEST_OPTIONS := -n 6 --dist worksteal
pytest: .venv/installed-test
	$(BIN)/pytest $(PYTEST_OPTIONS)

# What takes minutes by nature and seldom breaks: before a release, and when its subject changes.
test-long: .venv/installed-test
	$(BIN)/pytest $(PYTEST_OPTIONS) -m long

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/budget.py

bench: .venv/installed-test
	$(BIN)/python -m benchmarks.daemon

# As root: installs Slurm from the distribution if it is not there.
bench-slurm: .venv/installed-test
	command -v slurmctld >/dev/null || { apt-get update -qq && \
	    apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge; }
	$(BIN)/python -m lab.slurm

docs: .venv/installed-docs
	$(BIN)/python docs/publish.py

# For the distribution that it is built on. Needs debhelper and python3-venv.
deb:
	rm -f dist/carma-gpu_*.deb
	packaging/debian/build dist
	! command -v lintian >/dev/null || lintian dist/carma-gpu_*.deb

# Installed, upgraded, removed and purged on a minimal Debian, with jobs running. Needs root.
CLEAN := /var/tmp/carma-clean-system
deb-life: .venv/installed-test
	test -d $(CLEAN) || mmdebstrap --variant=minbase --include=systemd,python3 bookworm $(CLEAN)
	CARMA_CLEAN_SYSTEM=$(CLEAN) $(BIN)/pytest -m '' tests/packaging/test_packages.py -k "life or package"

.venv/installed-docs: pyproject.toml constraints.txt
	$(VENV)
	$(INSTALL) --editable '.[docs]'
	touch $@

.venv/installed-test: pyproject.toml lab/pyproject.toml constraints.txt
	$(VENV)
	$(INSTALL) --editable '.[test]' --editable ./lab
	$(BIN)/python -m compileall -q -j 0 -x transformers/models/ \
		$(foreach package,$(CONFINED),.venv/lib/python3*/site-packages/$(package))
	touch .venv/installed-docs $@

clean:
	rm -rf .venv site
