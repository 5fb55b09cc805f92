# `make demo`, `make test`, `make lint`, `make docs` and `make bench` set up .venv themselves; what is up to date is not done again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
# Most installed modules are never imported; Python compiles the others at their first import, which saves half of the time.
INSTALL := -m pip install --disable-pip-version-check --no-compile

.PHONY: demo test test-all browser oldest fuzz lint docs bench reproduce audits notebooks golden lock clean

# Three epochs on Adult: about 83 % of the test records are right, against 76 % for the most frequent label.
demo: $(DEMO_READY)
	$(BIN)/betastar train adult --epochs 3 --learning-rate 0.002 --output runs/demo --resume

# Two files of tests at a time, each with one thread: what a file has trained serves all of its tests.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY) browser
	$(PYTEST) -m "not slow"

test-all: $(READY) browser
	$(PYTEST)

# The page and the report are looked at in Debian's Chromium. Without it those tests are skipped; with CI=true they fail.
CHROMIUM := /usr/bin/chromium
APT := DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 --quiet
browser:
	@if [ -x $(CHROMIUM) ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! grep -qs '^ID=debian' /etc/os-release; then \
		echo "There is no $(CHROMIUM), and only root on Debian can install it here: the tests that need a browser cannot run."; exit 0; fi; \
	echo "The tests of the page need a browser. Installing Debian's package chromium (apt-get install chromium) ..."; \
	{ $(APT) update && $(APT) install --yes chromium; } || echo "Chromium was not installed: the tests that need a browser cannot run."

# The lowest versions that pyproject.toml allows, in an environment of their own, and some tests of every folder in it. torch is the locked
# version, unless one is named: `make oldest TORCH=2.6.0` (gigabytes). Old packages may warn of what is to change in newer ones.
OLDEST := build/oldest
oldest: $(OLDEST)/.ready$(TORCH)
	$(OLDEST)/bin/python -c 'import sys, torch, opacus, numpy; print("Python", sys.version.split()[0], "torch", torch.__version__, \
		"opacus", opacus.__version__, "numpy", numpy.__version__)'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist loadfile -W default -m "not slow" tests/test_golden.py \
		tests/cli/test_commands.py tests/figures/test_plots.py tests/training/test_accountant.py \
		tests/training/test_monitor.py tests/training/test_gap_clipping.py tests/training/test_trainers.py tests/studies/test_smoke.py tests/crosscheck/test_dp_accounting.py

$(OLDEST)/.ready$(TORCH): pyproject.toml requirements.lock tests/lowest.py
	rm -rf $(OLDEST) && $(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tests/lowest.py $(TORCH) > $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python $(INSTALL) --quiet -r $(OLDEST)/requirements.txt
	$(OLDEST)/bin/python $(INSTALL) --quiet --no-deps --editable .
	touch $@

# 10,000 random settings by all methods, compared. What is done is kept in build/fuzz.jsonl: the same command goes on.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --output build/fuzz.jsonl

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The site, in build/site; every snippet of it runs. The variable silences an advertisement.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/curves.py
	$(BIN)/python benchmarks/attributes.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/text_models.py
	$(BIN)/python docs/hooks/bench.py

# The paper's figures, table and numbers, in build/paper: under an hour on two cores. Trainings are kept: the same command goes on.
reproduce: $(READY)
	$(BIN)/python -m studies.paper all

# The games behind studies/audits. They are kept in build/audits: what was played is not played again.
AUDITS := studies/audits/results
ADULT := $(BIN)/betastar audit games adult --sample 200 --batch-size 20 --epochs 6 --noise 0.6 --lr 0.005 --hidden 16 \
	--references 199 --games 600 --seed 1 --jobs 2 --json --force
audits: $(READY)
	mkdir -p build
	for kind in png svg; do \
		$(ADULT) -o build/audits/canary --plot $(AUDITS)/canary.$$kind > $(AUDITS)/canary.json; \
		$(ADULT) --challenge most-exposed -o build/audits/membership --plot $(AUDITS)/membership.$$kind > $(AUDITS)/membership.json; \
		$(ADULT) --challenge most-exposed --threat attribute --value 17.0 --value 90.0 -o build/audits/attribute \
			--plot $(AUDITS)/attribute.$$kind > $(AUDITS)/attribute.json; \
	done
	$(BIN)/python -m studies.audits $(AUDITS)
	$(BIN)/python -m studies.one_run_power -o studies/one_run_power/results

# What the notebooks of examples/ show is kept in them.
notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.notebooks

golden: $(READY)
	$(BIN)/python tests/golden/generate.py
	$(BIN)/python -m tests.golden.adaptive
	$(BIN)/python -m tests.golden.allocation
	$(BIN)/python tests/golden/groups.py
	$(BIN)/python tests/golden/tails.py
	$(BIN)/python -m tests.golden.samplings
	$(BIN)/python tests/golden/unequal.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "betastar needs Python 3.11 or later"'
	$(PYTHON) -m venv $(VENV)

# What the demo needs, in the pinned versions: the extra `training`.
$(DEMO_READY): requirements.lock pyproject.toml | $(BIN)/python
	test -e $(READY) || $(BIN)/python $(INSTALL) --constraint requirements.lock --editable ".[training]"
	touch $@

# And everything else: tests, linters, peers, the site.
$(READY): requirements.lock pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) --requirement requirements.lock
	$(BIN)/python $(INSTALL) --no-deps --editable .
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
