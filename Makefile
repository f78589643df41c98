# GNU make 3.81 (the one macOS ships) or newer, and Python 3.11 or newer: make PYTHON=python3.12 test
# One virtual environment, .venv, serves every target; it is installed anew only when pyproject.toml
# or constraints.txt change. `compare`, `docs` and `bench` put the base install in it, the rest the dev tools too.

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
PYTEST_ARGS ?=
EPISODES ?= 500
SEED ?= 0
BOUNDS := tests/simulator/test_episodes.py tests/simulator/test_extremes.py tests/envs/test_corrected.py

VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
BASE := $(VENV)/.base
DEV := $(VENV)/.dev
SITE := $(VENV)/.site
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Bytecode is kept, whatever the shell says: else each of the many processes that tests start compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help compare test test-all coverage bounds agreement hostile page-commands engines learning format lint type docs site gallery notebooks wheel wheels walk bench clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

compare: $(BASE) ## compare the schedulers with the defaults, into results/ (options: ARGS='--load 0.7')
	$(BIN)/servegym compare $(ARGS)

# Tests of one file stay in one worker, so that the runs its fixtures make are made once; the workers
# share Numba's disk cache, so that a kernel is compiled about once however many workers there are. Torch has one
# thread in each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test: $(DEV) ## run the tests that are not marked slow, in minutes (fewer of them: PYTEST_ARGS=tests/simulator)
	$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

test-all: $(DEV) ## run all tests, then `coverage` and `bounds` (without those of `test`: PYTEST_ARGS='-m slow')
	$(PYTEST) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory coverage
	@$(MAKE) --no-print-directory bounds EPISODES=50

# A read beyond an array shows in compiled code only if what lies there changes. Kernels that check every index are other
# kernels, with cache folders of their own.
bounds: $(DEV) ## run random episodes with kernels that check every index (more of them: EPISODES=5000 of each form)
	NUMBA_BOUNDSCHECK=1 SERVEGYM_EPISODES=$(EPISODES) $(BIN)/python -m pytest -n $(JOBS) $(BOUNDS)

# Compiled code leaves no trace for coverage to see: these tests run once more as plain Python. Only files that have the
# mark are imported.
coverage: $(DEV) ## run the tests marked nojit as plain Python and report the lines they reach
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m coverage run -m pytest -m nojit $$(grep -rlw --include='test_*.py' nojit tests)
	$(BIN)/python -m coverage report

# `test-all` takes a third of the random scenarios that the slow simulator serves too, and of the examples of properties
# that are tried with every policy: these are most of its time.
agreement: $(DEV) ## run the tests of random scenarios, against the slow simulator of tests/reference too, with all of them
	SERVEGYM_SEEDS=all $(PYTEST) $$(grep -rlw --include='test_*.py' 'tests.seeds' tests)

# In numbers that take hours: bad commands, random runs, kills. Each script says what it tries and how to repeat it.
hostile: $(DEV) ## try bad commands, random simulations and kills (other ones: SEED=1)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.commands --seed $(SEED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.simulations --seed $(SEED) --jobs $(JOBS)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.kills --seed $(SEED)

page-commands: $(DEV) ## run every command of the guides as it is written, each for a minute at most (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.page_commands

engines: ## run the tests that need vLLM, in environments of their own in .engines/ (ENGINES='official:0.28.0 cpu:0.32.0')
	PYTHON=$(PYTHON) experiments/engines/engines_test.sh $(PYTEST_ARGS)

learning: $(DEV) ## train as docs/training.md does with Stable-Baselines3, and see that it learns (minutes)
	SERVEGYM_LEARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/learning

format: $(DEV) ## format the sources and sort their imports (ruff)
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

lint: $(DEV) ## look for mistakes in the sources (ruff)
	$(BIN)/ruff check .

type: $(DEV) ## check the types (mypy)
	$(BIN)/mypy

# Tests compare what is generated with what it is generated from.
docs: $(BASE) ## write the generated pages and tables of docs/ anew
	$(BIN)/python -m experiments.pages.profile_table > docs/profiles.md
	$(BIN)/python -m experiments.pages.model_table > docs/models.md
	$(BIN)/python -m experiments.pages.systems_pages docs/systems
	$(BIN)/python -m experiments.pages.observations docs/observations.md
	$(BIN)/python -m experiments.pages.spec docs
	$(BIN)/python -m experiments.claims.harness.page docs/results.md
	$(BIN)/python -m tests.packaging.import_graph docs/architecture.md
	$(BIN)/servegym leaderboard write docs/leaderboard.md
	$(BIN)/python -m experiments.environments.headroom --page docs/results/environments.md
	$(BIN)/python -m experiments.gallery docs/gallery

gallery: $(BASE) ## play the animations of docs/gallery anew, and measure their players
	$(BIN)/python -m experiments.gallery docs/gallery --films

# A link or an anchor that leads nowhere is an error (--strict).
site: $(SITE) ## build the documentation as a site, into build/site (to look at it: ARGS=serve)
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(if $(ARGS),$(ARGS),build --strict)

notebooks: $(DEV) $(SITE) ## run the tutorials of docs/tutorials anew and keep what they print
	PYTHONPATH=. $(BIN)/python -m website.notebooks docs/tutorials/*.ipynb

wheels: ## build the wheel and try it in a clean environment of each Python there is (3.11, 3.12, 3.13)
	.ci/wheels

wheel: ## build a wheel that carries compiled kernels, for this Python and kind of machine, on Linux (20 minutes)
	PYTHON=$(PYTHON) .ci/wheel

walk: ## run the commands of docs/quickstart.md in a clean clone and environment, with their times
	.ci/walk

bench: $(BASE) ## measure the simulator's speed (options: ARGS='--json -')
	$(BIN)/servegym bench $(ARGS)

clean: ## remove .venv, caches and build outputs; results/ stays
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	rm -rf servegym.egg-info src/servegym.egg-info
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit("servegym needs Python 3.11 or newer, and this is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(BASE): pyproject.toml constraints.txt | $(MADE)
	$(PIP_INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(MADE)
	$(PIP_INSTALL) -e '.[dev,train,tune,devices,ray,serve,gateway,kv-events]'
	@touch $(BASE) $@

$(SITE): pyproject.toml constraints.txt | $(MADE)
	$(PIP_INSTALL) -e '.[site]'
	@touch $(BASE) $@
