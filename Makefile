# gpulab: a menu. `make` alone lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
RUN     = $(BIN)/python -m gpulab

.PHONY: help run test test-gpu test-whole lint format bench check wheel docs clean

help:            ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

run: $(VENV)/.run  ## set up, then run the whole lab: formats, every kernel, what the gates catch
	@$(RUN) run $(ARGS)

test: $(VENV)/.dev  ## everything CI runs: lint, types, tests
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

test-gpu: $(VENV)/.dev  ## the tests that need a card
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

test-whole: $(VENV)/.dev  ## all of what `make test` samples, such as every digest of the card
	@$(BIN)/python -m pytest -n auto --dist worksteal -m whole $(ARGS)

lint: $(VENV)/.dev  ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev  ## let ruff rewrite the sources
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.run  ## time the matmul ladder on the card
	@$(RUN) bench matmul $(ARGS)

check: $(VENV)/.run  ## what is there, what is missing, how to fix it
	@$(RUN) doctor

wheel: $(VENV)/.dev  ## build dist/gpulab-*.whl
	@$(BIN)/python -m build --no-isolation --outdir dist .

docs: $(VENV)/.dev  ## regenerate the parts of README and docs that are computed
	@$(BIN)/python scripts/update_docs.py
	@$(BIN)/python scripts/update_performance.py

clean:           ## remove the environment, build products and caches
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. scripts/choose_extra.py prints the CuPy extra for the driver that is there
# (cuda13, cuda12), or nothing where there is no card.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null \
	  || { echo "There is no $(PYTHON). Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "gpulab needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	            "Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "No environment in $(VENV): the reason is above. Where the venv module is missing," \
	            "on Debian or Ubuntu: sudo apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip

$(VENV)/.run: $(BIN)/python pyproject.toml
	@extra=$$($(PYTHON) scripts/choose_extra.py); \
	 echo "installing gpulab$${extra:+ with $$extra} into $(VENV) ..."; \
	 $(BIN)/python -m pip install -q --disable-pip-version-check -e ".$${extra:+[$$extra]}"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the test tools into $(VENV) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	@touch $@
