# Every action has one command, the same for people and CI. `make` alone lists them.
PYTHON ?= python3
# cpu or gpu: which build of vLLM to install.
ENGINE ?= cpu
# What to test, for pytest: make test TESTS="tests/wire -k epoch"
TESTS ?= tests
ARGS ?=

VENV := .venv/bin
INSTALL := $(PYTHON) deploy/requirements/install.py
PYTEST := $(VENV)/python -m pytest --durations=25 --durations-min=3
# The simulated engine needs no vLLM.
ENGINE_PART := $(if $(filter simulated,$(HEADRACE_ENGINE)),,engine-$(ENGINE))
# A stage that has none of the tests that somebody chose is no failure; one of all tests would be.
MAY_BE_EMPTY := $(if $(filter-out tests,$(TESTS)),|| test $$? -eq 5)
SECONDARY := engine or alone or browser or faults
# Looks at the few tests that failed again, alone, and names those that passed then.
STAGE := $(VENV)/python -m tests.support.stage --durations=25 --durations-min=3

.DEFAULT_GOAL := help
.PHONY: help up setup test check fmt bench faults lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up:  ## a whole Headrace on this machine, with a demo model; Ctrl-C ends it
	@$(INSTALL) gateway $(ENGINE_PART) examples
	@exec $(VENV)/python -m headrace_launcher up

setup:  ## the environment of developers and CI: gateway, engine, tools
	@$(INSTALL) gateway engine-$(ENGINE) dev examples

test: setup  ## every test, on real services: quick ones, SQLite, engine, browser
	$(STAGE) --in-two $(TESTS) -m "not ($(SECONDARY))" $(MAY_BE_EMPTY)
	HEADRACE_TEST_DATABASE=sqlite $(STAGE) --in-two $(TESTS) -m "database and not ($(SECONDARY))" $(MAY_BE_EMPTY)
	$(STAGE) $(TESTS) -m "(engine or alone) and not (browser or faults)" $(MAY_BE_EMPTY)
	$(STAGE) $(TESTS) -m "browser and not faults" $(MAY_BE_EMPTY)

check: setup  ## form, lint, types, import contracts
	$(VENV)/ruff format --check
	$(VENV)/ruff check
	$(VENV)/lint-imports
	$(VENV)/mypy

fmt: setup  ## puts the sources into form
	$(VENV)/ruff check --fix
	$(VENV)/ruff format

bench: setup  ## measures; prints a table and writes JSON to var/
	$(VENV)/python -m tests.load $(ARGS)

faults: setup  ## the long fault tests
	$(PYTEST) $(TESTS) -m faults $(ARGS)

lock:  ## compiles deploy/requirements/*.txt from pyproject.toml and *.in
	@test -x var/tools/bin/uv || { $(PYTHON) -m venv var/tools && var/tools/bin/python -m pip install --quiet "uv==0.13.9"; }
	@deploy/requirements/lock.sh var/tools/bin/uv

clean:  ## removes what tools left behind; .venv and var/ stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find apps platform tests -name __pycache__ -type d -prune -exec rm -rf {} +
