# Everything runs in .venv, made here on first use: a machine needs Python, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := $(VENV)/.peers

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help test slow parity demo lint types format clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

test: lint types ## Lint, check types and run the tests
	$(BIN)/pytest -m "not slow"

slow: $(STAMP) ## Train a small encoder with every mechanism
	$(BIN)/pytest -m slow

parity: $(PEERS) ## Compare with published implementations
	$(BIN)/pytest tests/parity

# Threads that spin while they wait slow each other down on a busy machine; these sleep.
demo: $(STAMP) ## Pre-train a small RoBERTa twice and compare
	OMP_WAIT_POLICY=PASSIVE $(BIN)/lln demo

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	$(BIN)/mypy

format: $(STAMP) ## Fix style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment, caches and builds
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is taken up again. Some Linux
# distributions ship Python without ensurepip: there, Python's own pip fills the environment.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "error: lln needs Python 3.10 or newer: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(PYTHON) -m venv $(VENV) >/dev/null || \
		{ $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install --quiet pip; }
	$(INSTALL) -e '.[dev]'
	@touch $@

$(PEERS): $(STAMP)
	$(INSTALL) -e '.[peers]'
	@touch $@
