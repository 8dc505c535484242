# One command for every task. Build products and package caches are outside of the clone, so that the next clone starts warm.

export COVE_CACHE ?= $(HOME)/.cache/cove
export CARGO_TARGET_DIR ?= $(COVE_CACHE)/target
export PIP_CACHE_DIR ?= $(COVE_CACHE)/pip
export npm_config_cache ?= $(COVE_CACHE)/npm

.PHONY: help run build dist test test-quick test-long bench numbers fuzz fmt clean

help: ## what can be done here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## install what is missing, build, and run code in a sandbox
	@scripts/setup build
	@scripts/build
	@scripts/demo

build: ## the program itself, in release form
	@scripts/setup build
	@scripts/build

dist: ## what people install, in dist/: a static program as tarball and Debian package, with checksums
	@scripts/setup dist
	@scripts/dist

test: ## install what is missing and run every test
	@scripts/setup test
	@scripts/test all

test-quick: ## format, lints and the tests that need no SDK
	@scripts/setup build
	@scripts/test quick

test-long: ## 2,000 lives of sandboxes; 1,000 kills of the server and 100 power cuts under load; full disks, a database that goes away; every size and shape to every route; every client of tests/clients (COVE_SEED repeats a run)
	@scripts/setup test
	@scripts/claim
	@COVE_LONG=1 cargo nextest run --profile long --package cove-engine --test soak
	@COVE_LONG=1 cargo nextest run --profile long --package cove --test it crash:: restart:: sizes:: trouble::
	@COVE_LONG=1 COVE_BIN="$(CARGO_TARGET_DIR)/debug/cove" timeout 5400 tests/clients/run.sh

bench: ## measure beside other runtimes, in one run; writes bench/results/ (BENCH=--quick for five minutes)
	@scripts/setup bench
	@scripts/build
	@scripts/bench $(BENCH)

numbers: ## the same, and its numbers and the red team's go into docs/
	@scripts/setup bench
	@scripts/build
	@scripts/bench $(BENCH) --markdown docs/PERFORMANCE.md
	@"$(CARGO_TARGET_DIR)/release/cove" redteam --markdown docs/SECURITY.md

fuzz: ## fuzz every parser for FUZZ_SECONDS each (60)
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-60} tests/fuzz/run.sh

fmt: ## format the sources
	cargo fmt --all

clean: ## remove the build products of every clone
	rm -rf "$(CARGO_TARGET_DIR)"
