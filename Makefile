# Every target makes its own environment first, so each is the only command that a fresh
# machine needs. Another interpreter, in an environment of its own:
#
#     make test PYTHON=python3.13 VENV=.venv-313

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Where this is set, each program that a test starts compiles the library anew (1.3 s of a core), and
# each worker all tests (27 s).
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: $(VENV) demo gateway node-modules test test-all test-lowest fresh chaos check dist docs bench sizes clean

# A stamp for each dependency group, so that a target installs what it needs and no more. The
# stamp, not the folder, says that a group is complete: an installation that broke off is done
# again, and so is one that is older than pyproject.toml. The stamp of `check`, which includes all
# other groups, stands for each of them. pip 25.1 is the first that knows groups.
# Standard output belongs to the demo alone, and so does standard input.
define install
	@echo "making $(VENV) with $(PYTHON): installing the group $(1)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) </dev/null >&2
	@$(BIN)/python -m pip install --quiet --upgrade 'pip >= 25.1' </dev/null >&2
	@$(BIN)/python -m pip install --quiet --editable . --group $(1) </dev/null >&2
	@touch $@
endef

$(STAMP): pyproject.toml
	$(call install,check)

$(VENV)/.installed-%: pyproject.toml
	$(call install,$*)

set = $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-$(1))

$(VENV): $(STAMP)

# Ctrl-C is the demo's own affair: make must not end on it before the demo has. How, and which
# exit code a shell then sees, says tools/foreground.py.
demo: $(call set,demo)
	@exec $(BIN)/python tools/foreground.py $(BIN)/python -m examples.chat_agent $(ARGS)

# OpenAI's Responses API over lanes, on this machine.
gateway: $(call set,gateway)
	@exec $(BIN)/python tools/foreground.py $(BIN)/python -m examples.gateway $(ARGS)

# What checks the page of the monitor: a type checker, and a checker of accessibility.
NODE := node_modules/.installed

$(NODE): package-lock.json
	@npm ci --no-audit --no-fund --silent </dev/null >&2
	@touch $@

# The clients for Node that the tests point at the gateway.
CLIENTS := tests/examples/gateway/clients/node
NODE_CLIENTS := $(CLIENTS)/node_modules/.installed

$(NODE_CLIENTS): $(CLIENTS)/package-lock.json
	@npm ci --prefix $(CLIENTS) --no-audit --no-fund --silent </dev/null >&2
	@touch $@

node-modules: $(NODE) $(NODE_CLIENTS)

# Without npm the tests that need its packages are skipped, as is each test that wants for something.
NPM := $(shell command -v npm)

# A worker that a test has ended is not replaced: pytest-xdist would wait for ever.
PARALLEL := --dist loadfile --no-loadscope-reorder --max-worker-restart=0
CORES := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')

# What a stranger runs, and everybody at each change: a part that touches every layer, on a fifth of
# the examples and seeds (tests/support/short.py). It wants for nothing but Python.
test: $(call set,test)
	CHAOS=$${CHAOS:-0.2} $(BIN)/python -m pytest --short -n $(CORES) $(PARALLEL) $(ARGS)

# All tests. Most of those of real processes wait, so there are more workers than cores. Coverage is
# measured of all tests alone, and has no bound where something was missing (tests/conftest.py).
WORKERS ?= $(shell expr 2 '*' $(CORES))
COVERAGE ?= $(if $(ARGS),,--cov --cov-report=term --cov-fail-under=100)

test-all: $(call set,test-all) $(if $(NPM),$(NODE) $(NODE_CLIENTS))
	$(BIN)/python -m pytest -n $(WORKERS) $(PARALLEL) $(COVERAGE) $(ARGS)

# The same tests with the lowest versions that pyproject.toml allows, which uv can choose.
LOWEST := $(VENV)-lowest

$(LOWEST)/.installed: pyproject.toml
	@echo "making $(LOWEST) with $(PYTHON): the lowest versions" >&2
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST) </dev/null >&2
	@$(LOWEST)/bin/python -m pip install --quiet uv </dev/null >&2
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct \
		-r pyproject.toml --all-extras --group test-all --editable . </dev/null >&2
	@touch $@

test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) $(PARALLEL) $(ARGS)

# Ten times the examples and seeds of a usual run in each test that draws by chance, half of them
# fresh: the head of the output names their seed (tests/support/fresh.py).
fresh: $(call set,test-all)
	CI=true CHAOS=10 $(BIN)/python -m pytest -n $(WORKERS) $(PARALLEL) \
		-m "hypothesis or many_seeds or seeds" $(ARGS)

# The models with twenty times the examples and seeds of a usual run, 100,000 simulated lives,
# processes that are killed 1,000 times each over PostgreSQL and Valkey and 300 times over a served
# file, a gateway that is killed 100 times, and one of several processes whose parent is killed 100
# times with its store away besides, 10,000 cancelled calls of each store, and all orders of acts over
# Valkey with two faults. On two quiet cores the lives take about two hours, and the kills
# half an hour.
LIVES ?= 100000
KILLS ?= 1000
KILLS_SERVED ?= 300
KILLS_SERVER ?= 100
KILLS_GATEWAY ?= 100
ROLLS ?= 100
CUTS ?= 600
STOPS ?= 100
CANCELLED ?= 10000
CANCELLED_CALLS := test_calls_that_are_cancelled_are_done_as_a_whole_or_not_at_all
CUTS_AT_RANDOM := \
	test_cuts_lost_requests_and_lost_answers_at_random_lose_and_double_nothing
STOPPED_AT_RANDOM := \
	test_a_process_that_is_stopped_at_any_moment_holds_the_others_up_for_some_two_seconds
CHAOTIC := tests/durable/test_simulation.py tests/durable/test_kills.py \
	tests/examples/gateway/test_retries.py tests/examples/gateway/test_several.py \
	tests/durable/postgres/test_lives.py tests/durable/postgres/test_processes.py \
	tests/durable/postgres/test_lock_holder.py::$(STOPPED_AT_RANDOM) \
	tests/durable/valkey/test_processes.py tests/durable/valkey/test_interleavings.py \
	tests/durable/valkey/test_lives.py \
	tests/durable/valkey/test_faults.py::$(CUTS_AT_RANDOM) \
	$(addsuffix ::$(CANCELLED_CALLS),tests/durable/test_patience.py \
	tests/durable/postgres/test_faults.py tests/durable/valkey/test_faults.py)

chaos: $(call set,test-all)
	CHAOS=20 THOROUGH=1 LIVES=$(LIVES) LIVES_PROCESSES=2 KILLS=$(KILLS) KILLS_SERVED=$(KILLS_SERVED) \
		CANCELLED=$(CANCELLED) KILLS_SERVER=$(KILLS_SERVER) ROLLS=$(ROLLS) CUTS=$(CUTS) \
		KILLS_GATEWAY=$(KILLS_GATEWAY) STOPS=$(STOPS) \
		$(BIN)/pytest -rP -o faulthandler_timeout=0 tests/model $(CHAOTIC) $(ARGS)
	THOROUGH=1 $(BIN)/pytest -n $(WORKERS) $(PARALLEL) -m thorough $(ARGS)

# pyright looks for packages with the first `python` on the path; and asks the network whether
# there is a newer pyright, unless told not to.
PYRIGHT := PATH="$(abspath $(BIN)):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright

check: $(STAMP) $(NODE) docs dist
	node tools/search_site.mjs docs/_build tools/searches.json
	node_modules/.bin/tsc -p tsconfig.json
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy trio_lanes $(wildcard examples benchmarks tools tests/durable/conformance tests/typing)
	$(PYRIGHT) --verifytypes trio_lanes --ignoreexternal
	$(if $(wildcard tests/typing),$(PYRIGHT) tests/typing)

# The site is docs/_build/index.html. No network is needed.
docs: $(call set,docs)
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build

# The wheel and the source distribution. A second build must give the same bytes.
dist: $(call set,dist)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m build --no-isolation --outdir dist/again . >/dev/null
	cd dist/again && cmp *.whl ../*.whl && cmp *.tar.gz ../*.tar.gz
	rm -r dist/again
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

bench: $(call set,bench)
	$(BIN)/python -m benchmarks $(ARGS)

# How large the house is. It asks for nothing but Python.
sizes:
	@$(PYTHON) -m tools.sizes

clean:
	rm -rf .venv .venv-* .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache dist docs/_build
