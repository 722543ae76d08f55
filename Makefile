# The two commands of the README, and what they stand on.
#   make demo              answers from the base and three fine-tunes; Ctrl-C ends it
#   make demo ARGS=--once  the same, and stops by itself
#   make test              lint, types, unit, integration and end-to-end tests
#   make test-full         the same, and the long ones

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ENGINE := .venv-engine
PIP := --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)
# Real engines take both cores of a small machine, so nothing runs beside them; all else waits more than it computes.
TESTS_WITH_ENGINES := tests/e2e
ALL_OTHERS := tests/integration tests/unit -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-full check lint types format engine clean

demo: .venv/runtime
	@$(BIN)/tuneplex demo $(ARGS)

test: check engine
	@$(PYTEST) $(TESTS_WITH_ENGINES)
	@$(PYTEST) $(ALL_OTHERS)

test-full: check engine
	@$(PYTEST) -m "" $(TESTS_WITH_ENGINES)
	@$(PYTEST) -m "" $(ALL_OTHERS)

check: lint types

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The engine's environment, with the packages of the training recipe, which the tests compare against, and of the
# plugin's own tests.
ENGINE_EXTRAS := examples/adapters/requirements.txt engine-plugins/vllm/tests/requirements.txt
engine: .venv/runtime
	@$(BIN)/tuneplex engine install --dir $(ENGINE)
	@cat $(ENGINE_EXTRAS) | cmp -s - $(ENGINE)/.extras || { \
	  $(ENGINE)/bin/python -m pip install $(PIP) -q --no-deps $(addprefix -r ,$(ENGINE_EXTRAS)) && \
	  cat $(ENGINE_EXTRAS) > $(ENGINE)/.extras; }

.venv/runtime: requirements/tuneplex.lock pyproject.toml
	@test -x $(BIN)/python || { echo "making .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@echo "installing tuneplex into .venv"
	@$(BIN)/python -m pip install $(PIP) -q --no-deps -r requirements/tuneplex.lock
	@$(BIN)/python -m pip install $(PIP) -q --no-deps -e .
	@touch $@

.venv/dev: .venv/runtime requirements/dev.lock
	@echo "installing the development tools into .venv"
	@$(BIN)/python -m pip install $(PIP) -q --no-deps -r requirements/dev.lock
	@touch $@

clean:
	rm -rf .venv $(ENGINE) .mypy_cache .ruff_cache .pytest_cache .hypothesis
