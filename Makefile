# `make demo`, `make test`, `make lint`, `make docs` and `make bench` set up .venv themselves; what is up to date is not done again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all lint docs bench golden lock clean

demo: $(READY)
	$(BIN)/betastar train adult --epochs 5 --output runs/demo --resume

# Two tests at a time, each with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site; every snippet of it runs. The variable silences an advertisement.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/monitor.py

golden: $(READY)
	$(BIN)/python tests/golden/generate.py

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "the development environment needs Python 3.11 or later"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# Pins what the extras ask for today. torch is named first: this very version, without the packages for GPUs.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet torch==2.13.0
	build/lock/bin/python -m pip install --quiet --editable ".[dev]"
	build/lock/bin/python -m pip freeze --exclude-editable > build/requirements.lock
	sed 's/+cpu$$//' build/requirements.lock > requirements.lock

clean:
	rm -rf $(VENV) build dist
