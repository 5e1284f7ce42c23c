# The tasks of this repository. `make` alone lists them; each target sets up what it needs, once.

PYTHON ?= python3
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))# one per Python: `make test PYTHON=python3.13`
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
UV := $(shell uv --version 2>/dev/null)
BENCH ?=
ARGS ?=
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
SUITE = $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
AGAIN = $(MAKE) --no-print-directory# a variable of another name: `make -n test` would run $(MAKE)
TIERS = @PYTHONPATH=tests $(PY) -m tiers
IN_PROCESS = not process and not spark and not conformance and not long
TEST_SECONDS ?= 120# timeout of a test of the gate; longer beside other runs
CLASSES = .build/spark-classes$(VENV).jsa
COSTS = .build/test-times.jsonl
export PYTHONDONTWRITEBYTECODE := # keep compiled modules: the tests start hundreds of Pythons
WARM = { [ -d tests/__pycache__ ] || $(PY) -m pytest --collect-only -qq > /dev/null 2>&1; } &# compile once on a first run, not in each worker
LINT = { $(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }; } && $(BIN)/ruff check --quiet .

.DEFAULT_GOAL := help
.PHONY: help run test lint gate processes flakes test-times long hunt kafka-full check sim mutants chaos fuzz upgrade soak evidence bench setup format clean

help:  ## this list
	@echo "Polynya: append and tail streams over HTTP, and find every stream again as an Iceberg and a Delta table."
	@echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

run: $(STAMPS)/all $(if $(findstring --diskless,$(ARGS)),$(STAMPS)/s3-server)  ## the demo, end to end: real flights into streams and tables; all query results must agree (ARGS=--diskless: on an S3 server)
	@$(BIN)/polynya demo $(ARGS)

test: lint $(CLASSES)  ## all CI checks: lint, types and both tiers of tests in parallel (PYTHON=python3.13: another Python)
	$(TIERS).both "$(AGAIN) gate TEST_SECONDS=600" $(ARGS)

lint: $(STAMPS)/dev  ## format, lint, strict types
	@$(WARM) $(LINT) && $(BIN)/mypy; status=$$?; wait; exit $$status

gate: $(STAMPS)/dev  ## in-process tests and the simulation with fixed seeds; no reruns
	@PYTHONPATH=tests $(PY) -m tiers.quarantine
	@$(SUITE) --timeout=$(TEST_SECONDS) -m "$(IN_PROCESS)" $(ARGS)

processes: $(CLASSES)  ## tests that start processes; at most three failures are rerun once, alone, and reported
	$(TIERS).processes $(ARGS)

flakes: $(STAMPS)/dev  ## record this machine's flaky tests in tests/flakes.json and docs/design
	$(TIERS).flakes

test-times: $(CLASSES)  ## run the tests and list the 40 most expensive tests and files by CPU seconds; updates the recorded times and slow tests
	@mkdir -p .build; $(SUITE) -m "not long" --costs=$(COSTS) $(ARGS); status=$$?; PYTHONPATH=tests $(PY) -m cpu_seconds $(COSTS) --keep && exit $$status

long: $(CLASSES)  ## long tests outside CI, each with a shorter counterpart in CI; keeps the results in tests/long_result.json (SECONDS=3600: a part, the oldest results first)
	$(TIERS).long $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

hunt: $(STAMPS)/dev  ## search for defects with new seeds, without end or SECONDS=600; records failing seeds in tests/found_seeds.txt (ARGS="--only swarm,chaos")
	$(TIERS).hunt $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

kafka-full: $(STAMPS)/dev  ## Kafka clients with 100,000 records each, and 20 rounds of leader kills (RECORDS=number, ROUNDS=number)
	@KAFKA_RECORDS=$(or $(RECORDS),100000) KAFKA_ROUNDS=$(or $(ROUNDS),20) KAFKA_CORES=2 $(PY) -m pytest tests/clients/test_kafka_*.py tests/e2e/test_e2e_kafka_*.py $(ARGS)

check: lint  ## format, lint, strict types, layers, fast unit tests: about a minute
	@$(SUITE) -q --quick -m "$(IN_PROCESS)" $(ARGS)

sim: $(STAMPS)/dev  ## simulate a cluster in one thread, with faults from a seed (SEED=7, SEEDS=50 for several)
	@PYTHONPATH=src:tests $(PY) -m sim.run --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1) $(ARGS)

mutants: $(STAMPS)/dev  ## mutation tests: plant defects one by one, each must be caught (ARGS="part of a name")
	@PYTHONPATH=src:tests $(PY) -m sim.all_mutants $(ARGS)

chaos: $(STAMPS)/dev  ## chaos test: three real nodes under load, real faults from a seed, and a checker (SEED=7, SECONDS=600; ARGS=--help)
	@PYTHONPATH=src $(PY) -m chaos $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),120) $(ARGS)

fuzz: $(STAMPS)/dev  ## fuzz real nodes: malformed requests, frames, files, settings (SEED=7, SECONDS=600; ARGS="--only http")
	@PYTHONPATH=src:tests $(PY) -m fuzz.run $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),300) $(ARGS)

upgrade: $(STAMPS)/dev  ## rolling upgrade of three nodes from an older revision, under load (FROM=revision; ARGS="--kill --s3")
	@PYTHONPATH=src $(PY) -m chaos.upgrade --from $(or $(FROM),$(error FROM=REVISION is needed)) $(ARGS)

soak: evidence  ## the same as `make evidence`

evidence: $(STAMPS)/dev  ## run long tests, simulation, chaos, soak, fuzzing, upgrades and mutations; write docs/reliability.md (DURATION=seconds, default two hours; ARGS="--only worlds,chaos --resume")
	$(TIERS).long
	@PYTHONPATH=src $(PY) -m chaos.evidence --seconds $(or $(DURATION),7200) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(STAMPS)/dev  ## benchmarks (BENCH=name ARGS=options for a single one)
	@$(PY) -m bench $(BENCH) $(ARGS)

setup: $(CLASSES)  ## set up the environment only

format: $(STAMPS)/dev  ## format the code
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

clean:  ## remove build artifacts (not ./polynya-data)
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.13 ..."; exit 1; }
	@if [ -n '$(UV)' ]; then uv venv --quiet --python $(PYTHON) $(VENV); else $(PYTHON) -m venv $(VENV); fi

$(CLASSES): $(STAMPS)/dev
	@echo "caching Spark's classes for the tests (once; half a minute)"
	@PYTHONPATH=src:tests $(PY) -m spark_classes

$(STAMPS)/%: pyproject.toml | $(PY)
	@echo "setting up $(VENV) [$*] (once; the first time takes a minute or two)"
	@if [ -n '$(UV)' ]; then uv pip install --quiet --python $(PY) -e '.[$*]'; else $(PY) -m pip install --quiet --disable-pip-version-check -e '.[$*]'; fi
	@mkdir -p $(STAMPS) && touch $@
