# Everything a newcomer, a maintainer or CI runs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Every service that a test starts would compile its modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup check types lint contracts generated test test-slow test-spark test-exhaustive test-soak test-compose demo bench docs pictures client lock sbom clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the locked dependencies

$(READY): requirements.lock pyproject.toml deploy/scripts/setup
	@PYTHON=$(PYTHON) deploy/scripts/setup

check: $(READY) ## lint, types, import contracts, generated docs up to date
	@$(MAKE) -s --no-print-directory -j 2 -O types lint contracts generated

types:
	@$(BIN)/mypy

lint:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

contracts:
	@$(BIN)/lint-imports --no-cache > .lint-imports.log || { cat .lint-imports.log; exit 1; }

generated:
	@$(BIN)/python -m services.mpc_server.protocol_docs --check docs/protocols.md
	@$(BIN)/python -m caps.cli.reference --check docs/cli.md
	@$(BIN)/python -m deploy.proto --check proto/
	@$(BIN)/python -m deploy.architecture --check docs/architecture.md
	@$(BIN)/python -m deploy.reference --check docs/reference.md
	@$(BIN)/python -m deploy.images.wheels --check

test: check ## everything CI runs: check, then the tests
	@deploy/scripts/browser >/dev/null || [ "$$CI" != true ]
	@CAPS_TEST_DRAW=$${CAPS_TEST_DRAW:-$$RANDOM} deploy/scripts/postgres run $(BIN)/pytest -q -n 3 --dist worksteal -m "not slow and not exhaustive"

test-slow: $(READY) ## the tests that take minutes, every case of large families, every protocol with many more inputs
	@$(BIN)/pytest -q -m "slow or drawn"
	@CAPS_TEST_EXAMPLES=60 $(BIN)/pytest -q tests/services/mpc_server/engine -k "as_declared or claims_hold"

test-spark: $(READY) ## holders with tables of Spark: installs pyspark, some 450 MB, into .venv, and a Java runtime
	@deploy/scripts/spark
	@$(BIN)/pytest -q -m slow tests/services/holder/test_sources.py

test-exhaustive: $(READY) ## a crash at every single point of a study, for hours
	@$(BIN)/pytest -q -m exhaustive

test-soak: $(READY) ## studies back to back with faults, for an hour or SECONDS=...; memory, descriptors, threads, disk must stay flat
	@$(BIN)/python -m tests.adversary.soak $(if $(SECONDS),--seconds $(SECONDS))

test-compose: $(READY) ## the federation in containers, with faults; needs root and Debian's packages
	@deploy/scripts/test-compose

demo: $(READY) ## two hospitals, an insurer, MPC servers: one private synthetic dataset; SCHEME=rep4 or rep3-active; KEEP=1 leaves it up
	@$(BIN)/python -m deploy.demo $(if $(SCHEME),--scheme $(SCHEME)) $(if $(KEEP),--keep)

bench: $(READY) ## measure everything, for hours, and write docs/benchmarks.md; peers go to .venv-peers
	@for subject in protocols "protocols --schemes" engine "join --large" "join --schemes" generate noise network apart scaling contribute load pages runtime "runtime --schemes" federated utility; do \
		echo "== $$subject"; $(BIN)/python -m bench $$subject --save || exit 1; \
	done
	@$(BIN)/python -m bench report

docs: $(READY) ## write what is generated from the code: docs/protocols.md, docs/cli.md, docs/reference.md, proto/, the map in docs/architecture.md
	@$(BIN)/python -m services.mpc_server.protocol_docs docs/protocols.md
	@$(BIN)/python -m caps.cli.reference docs/cli.md
	@$(BIN)/python -m deploy.proto proto/
	@$(BIN)/python -m deploy.architecture docs/architecture.md
	@$(BIN)/python -m deploy.reference docs/reference.md

pictures: $(READY) ## docs/pictures: terminals, from real output of the demonstration and its study, and pages, from their tests
	@$(BIN)/python -m deploy.pictures
	@CAPS_PICTURES=docs/pictures/pages $(BIN)/pytest -q tests/system/pages

client: $(READY) ## the wheel of caps-client, what analysts install, in dist/
	@cd clients/python && ../../$(BIN)/python -m hatchling build -t wheel -d ../../dist

lock: $(READY) ## resolve requirements.lock anew from pyproject.toml
	@$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-annotate \
		--python-version 3.11 --extra dev pyproject.toml -o requirements.lock
	@$(MAKE) -s setup && $(BIN)/python -m deploy.images.wheels

sbom: $(READY) ## what is in each image, as CycloneDX JSON in sbom/; with Debian's packages of images that are built here
	@$(BIN)/python -m deploy.images.sbom sbom

clean: ## stop what `make demo KEEP=1` left up, and remove what the targets made, with all keys and tokens
	@if [ -e demo-output/federation/federation.json ] && [ -x $(BIN)/caps ]; then $(BIN)/caps federation clean demo-output/federation; fi
	@rm -rf demo-output people requests .venv .venv-peers .venv-opendp .venv-smartnoise dist .data .mypy_cache .ruff_cache .pytest_cache .hypothesis .lint-imports.log sbom
