# kerneltrick: `make run` and `make test` set up what they need in .venv and run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test test-all lint format build bench labs stars figures sample mutants clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.lint: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[lint]'
	@touch $@

$(VENV)/.build: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) -e '.[build]'
	@touch $@

run: $(VENV)/.run ## compare the feature maps with softmax attention, and write the report
	@mkdir -p out
	$(BIN)/kerneltrick compare --html out/report.html --json out/report.json
	@echo "Open $(CURDIR)/out/report.html in a browser."

test: $(VENV)/.test ## every test except the long sweeps
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(VENV)/.test ## every test
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.lint ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.lint ## ruff format and its safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.build ## sdist and wheel, checked, in dist/
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist

bench: $(VENV)/.test ## time and memory against the usual formulas, into docs/performance.md
	$(BIN)/python benchmarks/bench.py --write docs/performance.md

labs: $(VENV)/.run ## the student folders, from the reference solutions
	$(BIN)/python tools/make_labs.py

stars: $(VENV)/.run ## the measured comparison table of lab 03
	$(BIN)/python tools/make_stars.py

figures: $(VENV)/.test ## the pictures in the README
	$(BIN)/python tools/make_figures.py

sample: $(VENV)/.test ## the embedded sample, captured again from its model
	$(BIN)/python tools/make_sample.py

mutants: $(VENV)/.test ## seeded bugs, each of which a named test must catch
	$(BIN)/python tools/mutants.py

clean: ## remove what make made
	rm -rf $(VENV) dist build out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
